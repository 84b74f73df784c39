# SPDX-License-Identifier: Apache-2.0
"""Peers on one host: by shared memory, and one-sided operations without the other process."""

from __future__ import annotations

import errno
import itertools
import os
import random
import socket
import struct
from contextlib import ExitStack
from pathlib import Path

import pytest

import rnic
from rnic import SGE, QPAttr, QPState, RecvWR, WCStatus, WROpcode
from rnic.testing import End, Options, Pair, connect
from transport.netdev import Netdevs, wait_event
from transport.scene import HASTY, SIZE, Scene, alternate, by_lane, perform, request, send, unreliable
from transport.stranger import connect_to, qp_num_in
from waiting import until

pytestmark = pytest.mark.own_way


def test_nothing_goes_over_the_wire(scene: Scene) -> None:
    before = scene.counted("tx_syscalls")
    for _ in range(100):
        scene.b.qp.post_recv(RecvWR(1, [SGE(scene.target, 0, 1000)]))
        assert scene.do(WROpcode.SEND, 1000).ok
        scene.b.wait_ok()
    assert bytes(scene.target.buf[:1000]) == bytes(scene.source.buf[:1000])
    assert scene.counted("tx_syscalls") == before
    assert scene.counted("local_sent") >= 100
    assert scene.b.ctx.counters().local_received >= 100


@pytest.mark.parametrize("way", [(True, False), (False, True), (False, False)])
def test_who_does_not_want_it_is_reached_by_the_wire(way: tuple[bool, bool]) -> None:
    with End(local=way[0]) as a, End(local=way[1]) as b:
        connect(a.qp, b.qp)
        one = Scene(a, b, a.memory(64), b.memory(64))
        assert one.do(WROpcode.RDMA_WRITE, 64).ok
        assert one.counted("local_sent") == one.counted("local_direct") == 0
        assert one.counted("tx_syscalls") > 0


@pytest.mark.parametrize("length", [1, 8, 4095, SIZE])
def test_memory_of_the_device_is_reached_without_its_process(scene: Scene, length: int) -> None:
    sent, before = scene.counted("local_sent"), scene.counted("local_direct")
    assert scene.do(WROpcode.RDMA_WRITE, length).ok
    assert bytes(scene.target.buf[:length]) == bytes(scene.source.buf[:length])
    scene.target.buf[:length] = os.urandom(length)
    assert scene.do(WROpcode.RDMA_READ, length).ok
    assert bytes(scene.source.buf[:length]) == bytes(scene.target.buf[:length])
    assert scene.counted("local_direct") == before + 2
    assert scene.counted("local_sent") == sent


def mapped() -> int:
    """Pieces of memory files that this process has mapped."""
    return Path("/proc/self/maps").read_text().count("/memfd:rnic (")


def test_many_regions_stay_known(scene: Scene) -> None:
    """Else each operation on one would look it up and map it again."""
    count, order = 600, random.Random(1)
    targets = [scene.b.memory(8) for _ in range(count)]
    before, pieces = scene.counted("local_direct"), mapped()
    for round_ in range(2):
        for i in order.sample(range(count), count):
            struct.pack_into("=Q", scene.source.buf, 0, i + round_)
            assert scene.do(WROpcode.RDMA_WRITE, 8, there=targets[i]).ok
            assert struct.unpack_from("=Q", targets[i].buf) == (i + round_,)
        assert mapped() > pieces + 0.9 * count  # neighbours may be joined
    assert scene.counted("local_direct") == before + 2 * count
    for mr in targets:
        mr.close()
    again = [scene.b.memory(8) for _ in range(count)]
    for mr in again:  # what is not registered any more makes way
        assert scene.do(WROpcode.RDMA_WRITE, 8).ok
        assert scene.do(WROpcode.RDMA_READ, 8, there=mr).ok
    assert mapped() < pieces + 1.5 * count


def test_memory_of_the_device_may_be_registered_once_more(scene: Scene) -> None:
    """A server shares one table with every client: each has a protection domain of its own."""
    with scene.b.register(memoryview(scene.target.buf)[100:200]) as again:
        before = scene.counted("local_direct")
        for there in (again, (scene.target.addr + 100, again.rkey)):
            scene.source.buf[:100] = os.urandom(100)
            assert perform(scene.a, WROpcode.RDMA_WRITE, [SGE(scene.source, 0, 100)], there).ok
            assert scene.target.buf[100:200] == scene.source.buf[:100]
        assert scene.counted("local_direct") == before + 2
        beyond = (again.addr + 1, again.rkey)
        assert not perform(scene.a, WROpcode.RDMA_WRITE, [SGE(scene.source, 0, 100)], beyond).ok


@pytest.mark.parametrize("length", [4096, 1 << 16])
def test_ordinary_memory_is_reached_by_the_kernel(scene: Scene, length: int) -> None:
    """process_vm_writev(2), process_vm_readv(2): short ones too, while few are under way."""
    source, target = bytearray(os.urandom(length)), bytearray(length)
    at_a, at_b = scene.a.register(source), scene.b.register(target)
    before = scene.counted("local_direct")
    pieces = [SGE(at_a, 0, 1000), SGE(at_a, 1000, length - 1000)]
    for opcode in (WROpcode.RDMA_WRITE, WROpcode.RDMA_READ):
        assert perform(scene.a, opcode, pieces, at_b).ok
        assert source == target
        target[:] = os.urandom(length)
    assert scene.counted("local_direct") == before + 2
    at_b.close()
    refused = perform(scene.a, WROpcode.RDMA_READ, pieces, (at_a.addr, 0x123456))
    assert refused.status is WCStatus.REM_ACCESS_ERR


def test_atomics_are_atomic_whichever_way_they_come(scene: Scene) -> None:
    """The same word, by shared memory, as packets of the same queue pair, and over the wire."""
    with End(local=False) as c, End(ctx=scene.b.ctx) as d:
        connect(c.qp, d.qp)
        through = d.register(scene.target.buf)
        words = Scene(c, d, c.memory(4096), through)
        scene.target.buf[:8] = bytes(8)
        for _ in range(200):
            scene.post(WROpcode.ATOMIC_FETCH_AND_ADD, 8, compare_add=1)
            words.post(WROpcode.ATOMIC_FETCH_AND_ADD, 8, compare_add=1)
            scene.a.wait_ok()
            words.a.wait_ok()
        assert struct.unpack("=Q", scene.target.buf[:8]) == (400,)
        assert scene.counted("local_direct") >= 200
        assert words.counted("local_direct") == 0
    found = scene.do(WROpcode.ATOMIC_CMP_AND_SWP, 8, compare_add=400, swap=7)
    assert found.ok
    assert struct.unpack("=Q", scene.source.buf[:8]) == (400,)
    assert struct.unpack("=Q", scene.target.buf[:8]) == (7,)


def test_order_is_kept_between_messages_and_what_goes_without_them(scene: Scene) -> None:
    for i in range(300):
        scene.b.qp.post_recv(RecvWR(i, [SGE(scene.target, 8, 8)]))
        struct.pack_into("=Q", scene.source.buf, 0, i)
        scene.post(WROpcode.RDMA_WRITE, 8)
        scene.post(WROpcode.SEND, 8)
        (wc,) = scene.b.wait_ok()
        assert wc.wr_id == i
        assert struct.unpack("=2Q", scene.target.buf[:16]) == (i, i), "the WRITE was posted first"
        scene.a.wait_ok(2)


def test_who_was_reset_and_connected_again_goes_local_again(scene: Scene) -> None:
    for qp in (scene.a.qp, scene.b.qp):
        qp.modify(QPAttr(qp_state=QPState.RESET))
    connect(scene.a.qp, scene.b.qp, HASTY)
    sent, direct = scene.counted("local_sent"), scene.counted("local_direct")
    assert scene.do(WROpcode.RDMA_WRITE, 8).ok
    assert scene.do(WROpcode.RDMA_WRITE, 8).ok
    assert scene.counted("local_sent") > sent
    assert scene.counted("local_direct") > direct


def test_an_alternate_path_is_refused_where_there_is_no_wire(scene: Scene) -> None:
    with pytest.raises(rnic.VerbsError, match="before the first message") as caught:
        scene.a.qp.modify(alternate(scene.b.ctx, path_mig_state=rnic.MigState.REARM))
    assert caught.value.errno == errno.EOPNOTSUPP
    assert scene.do(WROpcode.RDMA_WRITE, 8).ok


def test_no_receive_is_no_loss(scene: Scene) -> None:
    """RNR: the message waits for its receive, as on the wire."""
    scene.post(WROpcode.SEND, 8)
    until(lambda: scene.b.ctx.counters().rnr_nak_sent, "the message finds no receive")
    scene.b.qp.post_recv(RecvWR(1, [SGE(scene.target, 0, 8)]))
    scene.a.wait_ok()
    scene.b.wait_ok()


def test_a_message_larger_than_the_ring_arrives(scene: Scene) -> None:
    """Of ordinary memory, which is copied through the ring."""
    size = 5 << 20
    source, target = bytearray(os.urandom(size)), bytearray(size)
    at_a, at_b = scene.a.register(source), scene.b.register(target)
    scene.b.qp.post_recv(RecvWR(1, [SGE(at_b)]))
    assert send(scene.a, [SGE(at_a)]).ok
    scene.b.wait_ok()
    assert target == source
    target[:] = os.urandom(size)
    assert perform(scene.a, WROpcode.RDMA_READ, [SGE(at_a)], at_b).ok
    assert target == source


@pytest.mark.parametrize("loss", [0.05, 0.2])
def test_the_injector_is_between_them_too(loss: float) -> None:
    with by_lane() as scene:
        for end in (scene.a, scene.b):
            end.ctx.set_faults(rnic.Faults(seed=3, loss=loss, duplicate=loss, reorder=loss))
        scene.target.buf[:8] = bytes(8)
        for i in range(200):
            scene.source.buf[8:4104] = os.urandom(4096)
            assert scene.do(WROpcode.RDMA_WRITE, 4096, at=8, to=8).ok
            assert bytes(scene.target.buf[8:4104]) == bytes(scene.source.buf[8:4104])
            assert scene.do(WROpcode.ATOMIC_FETCH_AND_ADD, 8, compare_add=1).ok
            assert struct.unpack("=Q", scene.target.buf[:8]) == (i + 1,), "each is executed once"
        assert scene.counted("fault_lost") > 0
        assert scene.counted("local_direct") == 0


def test_who_posts_more_than_the_ring_holds_and_sleeps_is_served() -> None:
    """Of an unreliable connection nothing comes back that would stir the engine."""
    with ExitStack() as stack:
        a, b = (stack.enter_context(rnic.open_device("roce_lo", local=True)) for _ in range(2))
        ends = [unreliable(ctx, stack) for ctx in (a, b)]
        (qp, channel, source), (peer, _, target) = ends
        connect(qp, peer)
        for _ in range(20):
            qp.send_cq.req_notify()
            qp.post_send(request(WROpcode.RDMA_WRITE, [SGE(source)], target))
            channel.get_cq_event(60)
            qp.send_cq.ack_events()
            (wc,) = qp.send_cq.poll(2)
            assert wc.ok


def test_who_does_not_answer_is_tried_by_the_wire() -> None:
    """Somebody has the name of a slot that nobody owns, and says nothing."""
    with End(local=True) as a, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        slot = next(n for n in range(1024) if listens(silent, n))
        connect_to(a.qp, qp_num_in(slot), "127.0.0.1")
        assert send(a, [SGE(a.memory(64))]).status is WCStatus.RETRY_EXC_ERR
        assert a.ctx.counters().tx_syscalls > 0


def listens(end: socket.socket, slot: int) -> bool:
    try:
        end.bind(f"\0rnic/1/lane/{slot}")
    except OSError:
        return False
    end.listen(8)
    return True


def test_an_address_that_comes_later_is_this_hosts_too() -> None:
    with Netdevs() as devs:
        devs.address(devs.a, "10.99.0.1/24")
        with Pair(f"roce_{devs.a}", local=True, options=HASTY) as pair:
            first = Scene(pair.a, pair.b, pair.a.memory(64), pair.b.memory(64))
            assert first.do(WROpcode.RDMA_WRITE, 8).ok
            devs.address(devs.a, "10.99.0.2/24")
            for ctx in (pair.a.ctx, pair.b.ctx):
                wait_event(ctx, rnic.EventType.GID_CHANGE)
            with End(ctx=pair.a.ctx) as a, End(ctx=pair.b.ctx) as b:
                connect(a.qp, b.qp, Options(address="10.99.0.2"))
                later = Scene(a, b, a.memory(64), b.memory(64))
                sent, wire = later.counted("local_sent"), later.counted("tx_syscalls")
                assert later.do(WROpcode.RDMA_WRITE, 8).ok
                assert later.counted("local_sent") > sent
                assert later.counted("tx_syscalls") == wire


def test_many_contexts_of_one_process_reach_each_other() -> None:
    with ExitStack() as stack:
        ends = [stack.enter_context(End(local=True)) for _ in range(6)]
        for a, b in itertools.pairwise(ends):
            left, right = stack.enter_context(End(ctx=a.ctx)), stack.enter_context(End(ctx=b.ctx))
            connect(left.qp, right.qp)
            scene = Scene(left, right, left.memory(64), right.memory(64))
            scene.source.buf[:] = os.urandom(64)
            assert scene.do(WROpcode.RDMA_WRITE, 64).ok
            assert scene.do(WROpcode.RDMA_READ, 64).ok
            assert bytes(scene.target.buf) == bytes(scene.source.buf)
        assert all(end.ctx.counters().tx_packets == end.ctx.counters().local_sent for end in ends)


def test_a_long_write_waits_for_the_answer_before_it_rather_than_be_a_request(scene: Scene) -> None:
    before = scene.counted("local_direct"), scene.counted("requests_sent")
    scene.post(WROpcode.RDMA_WRITE_WITH_IMM, 8)
    scene.post(WROpcode.RDMA_WRITE, 1 << 16)
    until(lambda: scene.b.ctx.counters().rnr_nak_sent, "the first finds no receive")
    scene.b.qp.post_recv(RecvWR(1))
    scene.a.wait_ok(2)
    assert bytes(scene.target.buf[: 1 << 16]) == bytes(scene.source.buf[: 1 << 16])
    assert (scene.counted("local_direct"), scene.counted("requests_sent")) == (before[0] + 1, before[1] + 1)
