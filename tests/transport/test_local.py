# SPDX-License-Identifier: Apache-2.0
"""Peers on one host: by shared memory, and one-sided operations without the other process."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rnic
from rnic import SGE, AccessFlags, QPAttr, QPState, RecvWR, SendFlags, SendWR, WCStatus, WROpcode
from rnic.testing import End, Options, Pair, connect, connect_through
from transport.conftest import Start
from transport.joining import join
from transport.netdev import Netdevs, wait_event
from transport.node import Node

SIZE = 1 << 18
LOCAL = {"env": {"RNIC_LOCAL": "on"}}
READ_ONLY = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ
HASTY = Options(timeout=14, retry_cnt=7)  # 67 ms, eight times
NOBODY = 65534


@dataclass
class Scene:
    """Two ends in contexts of their own; source is a's memory, target b's."""

    a: End
    b: End
    source: rnic.MR
    target: rnic.MR

    def post(self, opcode: WROpcode, length: int, *, at: int = 0, to: int = 0, **fields: Any) -> None:
        wr = SendWR(
            opcode=opcode, send_flags=SendFlags.SIGNALED, sg_list=[SGE(self.source, at, length)], **fields
        )
        if opcode not in (WROpcode.SEND, WROpcode.SEND_WITH_IMM):
            wr.remote_addr, wr.rkey = self.target.addr + to, self.target.rkey
        self.a.qp.post_send(wr)

    def do(self, opcode: WROpcode, length: int, **fields: Any) -> rnic.WC:
        self.post(opcode, length, **fields)
        (wc,) = self.a.wait()
        return wc

    def counted(self, name: str) -> int:
        return int(self.a.ctx.counters()[name])


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Pair(local=True, options=HASTY) as pair:
        made = Scene(pair.a, pair.b, pair.a.memory(SIZE), pair.b.memory(SIZE))
        made.source.buf[:] = os.urandom(SIZE)
        assert made.do(WROpcode.RDMA_WRITE, 0).ok  # the first of all goes as a packet, to see who is there
        yield made


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


def sealed_files() -> list[int]:
    """Descriptors of regions that others may only read."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(entry.readlink()).startswith("/memfd:rnic-sealed"):
                found.append(int(entry.name))
    return found


def test_what_peers_may_only_read_is_sealed(scene: Scene) -> None:
    """By the kernel, not by good manners: who has the descriptor, or opens it again, cannot write there."""
    mr = scene.b.memory(5000, AccessFlags.REMOTE_READ)
    mr.buf[:] = os.urandom(5000)
    before = scene.counted("local_direct")
    read = SendWR(
        opcode=WROpcode.RDMA_READ, send_flags=SendFlags.SIGNALED, sg_list=[SGE(scene.source, 0, 5000)]
    )
    read.remote_addr, read.rkey = mr.addr, mr.rkey
    for _ in range(2):
        scene.a.qp.post_send(read)
        scene.a.wait_ok()
        assert bytes(scene.source.buf[:5000]) == bytes(mr.buf)
        mr.buf[:] = os.urandom(5000)
    assert scene.counted("local_direct") == before + 2
    (fd,) = sealed_files()
    for flags in (os.O_RDWR, os.O_RDONLY):
        again = os.open(f"/proc/self/fd/{fd}", flags)
        with pytest.raises(PermissionError):
            mmap.mmap(again, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(OSError, match="Errno"):
            os.pwrite(again, b"!", 0)
        with pytest.raises(OSError, match="Errno"):
            os.ftruncate(again, 0)
        os.close(again)
    write = SendWR(opcode=WROpcode.RDMA_WRITE, sg_list=[SGE(scene.source, 0, 8)])
    write.remote_addr, write.rkey = mr.addr, mr.rkey
    scene.a.qp.post_send(write)
    (wc,) = scene.a.wait()
    assert wc.status is WCStatus.REM_ACCESS_ERR
    mr.close()
    assert not sealed_files()


def test_a_sealed_region_can_be_given_other_rights(scene: Scene) -> None:
    """Then its peers go by packets: nobody but its owner can write there."""
    mr = scene.b.memory(4096, AccessFlags.REMOTE_READ)
    mr.rereg(rnic.ReregMRFlags.CHANGE_ACCESS, access=rnic.testing.ALL_ACCESS)
    before = scene.counted("local_direct")
    scene.source.buf[:4096] = os.urandom(4096)
    wr = SendWR(
        opcode=WROpcode.RDMA_WRITE, send_flags=SendFlags.SIGNALED, sg_list=[SGE(scene.source, 0, 4096)]
    )
    wr.remote_addr, wr.rkey = mr.addr, mr.rkey
    scene.a.qp.post_send(wr)
    scene.a.wait_ok()
    assert bytes(mr.buf) == bytes(scene.source.buf[:4096])
    assert scene.counted("local_direct") == before


def test_there_are_more_such_regions_than_descriptors_for_them(scene: Scene) -> None:
    regions = [scene.b.memory(8, AccessFlags.REMOTE_READ) for _ in range(300)]
    assert len(sealed_files()) == 256
    for i, mr in enumerate(regions):
        struct.pack_into("=Q", mr.buf, 0, i)
        wr = SendWR(
            opcode=WROpcode.RDMA_READ, send_flags=SendFlags.SIGNALED, sg_list=[SGE(scene.source, 0, 8)]
        )
        wr.remote_addr, wr.rkey = mr.addr, mr.rkey
        scene.a.qp.post_send(wr)
        scene.a.wait_ok()
        assert struct.unpack_from("=Q", scene.source.buf) == (i,)
    for mr in regions:
        mr.close()
    assert not sealed_files()


def test_a_message_from_sealed_memory_arrives(scene: Scene) -> None:
    mr = scene.a.memory(SIZE, AccessFlags.REMOTE_READ)
    mr.buf[:] = os.urandom(SIZE)
    scene.b.qp.post_recv(RecvWR(1, [SGE(scene.target)]))
    scene.a.qp.post_send(SendWR(send_flags=SendFlags.SIGNALED, sg_list=[SGE(mr)]))
    scene.a.wait_ok()
    scene.b.wait_ok()
    assert bytes(scene.target.buf) == bytes(mr.buf)
    assert scene.counted("timeouts") == 0


def test_another_process_imports_no_sealed_region(scene: Scene) -> None:
    """It would have to map it to write."""
    mr = scene.a.memory(64, AccessFlags.REMOTE_READ)
    script = f"""
import rnic
with rnic.import_device({scene.a.ctx.cmd_fd}) as ctx, ctx.import_pd({scene.a.pd.handle}) as pd:
    try:
        pd.import_mr({mr.handle})
    except rnic.VerbsError as error:
        print(error)
"""
    fds = [scene.a.ctx.cmd_fd]
    done = subprocess.run(
        [sys.executable, "-c", script], pass_fds=fds, capture_output=True, text=True, check=True
    )
    assert "others may only read" in done.stdout


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
            wr = SendWR(opcode=WROpcode.RDMA_WRITE, sg_list=[SGE(scene.source, 0, 8)])
            wr.send_flags, wr.remote_addr, wr.rkey = SendFlags.SIGNALED, targets[i].addr, targets[i].rkey
            scene.a.qp.post_send(wr)
            scene.a.wait_ok()
            assert struct.unpack_from("=Q", targets[i].buf) == (i + round_,)
        assert mapped() > pieces + 0.9 * count  # neighbours may be joined
    assert scene.counted("local_direct") == before + 2 * count
    for mr in targets:
        mr.close()
    again = [scene.b.memory(8) for _ in range(count)]
    for mr in again:  # what is not registered any more makes way
        scene.post(WROpcode.RDMA_WRITE, 8)
        scene.a.wait_ok()
        wr = SendWR(opcode=WROpcode.RDMA_READ, sg_list=[SGE(scene.source, 0, 8)])
        wr.send_flags, wr.remote_addr, wr.rkey = SendFlags.SIGNALED, mr.addr, mr.rkey
        scene.a.qp.post_send(wr)
        scene.a.wait_ok()
    assert mapped() < pieces + 1.5 * count


@pytest.mark.parametrize(("length", "direct"), [(4096, 0), (1 << 16, 2)])
def test_ordinary_memory_is_reached_by_the_kernel_where_that_pays(
    scene: Scene, length: int, direct: int
) -> None:
    """process_vm_writev(2), process_vm_readv(2); less goes through the ring."""
    source, target = bytearray(os.urandom(length)), bytearray(length)
    at_a, at_b = scene.a.register(source), scene.b.register(target)
    before = scene.counted("local_direct")
    pieces = [SGE(at_a, 0, 1000), SGE(at_a, 1000, length - 1000)]
    for opcode in (WROpcode.RDMA_WRITE, WROpcode.RDMA_READ):
        wr = SendWR(opcode=opcode, send_flags=SendFlags.SIGNALED, sg_list=pieces)
        wr.remote_addr, wr.rkey = at_b.addr, at_b.rkey
        scene.a.qp.post_send(wr)
        scene.a.wait_ok()
        assert source == target
        target[:] = os.urandom(length)
    assert scene.counted("local_direct") == before + direct
    at_b.close()
    wr = SendWR(opcode=WROpcode.RDMA_READ, sg_list=pieces, remote_addr=at_a.addr, rkey=0x123456)
    scene.a.qp.post_send(wr)
    (wc,) = scene.a.wait()
    assert wc.status is WCStatus.REM_ACCESS_ERR


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


# ---------------------------------------------------------------- what is refused


def wrong_key(scene: Scene) -> None:
    scene.post(WROpcode.RDMA_WRITE, 8)
    scene.a.wait_ok()
    scene.a.qp.post_send(
        SendWR(
            opcode=WROpcode.RDMA_WRITE,
            sg_list=[SGE(scene.source, 0, 8)],
            remote_addr=scene.target.addr,
            rkey=scene.target.rkey ^ 1,
        )
    )


def deregistered(scene: Scene) -> None:
    assert scene.do(WROpcode.RDMA_WRITE, 8).ok
    addr, rkey = scene.target.addr, scene.target.rkey
    scene.target.close()
    scene.a.qp.post_send(
        SendWR(opcode=WROpcode.RDMA_WRITE, sg_list=[SGE(scene.source, 0, 8)], remote_addr=addr, rkey=rkey)
    )


def out_of_bounds(scene: Scene) -> None:
    scene.post(WROpcode.RDMA_WRITE, 8, to=SIZE - 7)


def read_only(scene: Scene) -> None:
    assert scene.do(WROpcode.RDMA_WRITE, 8).ok
    scene.target.rereg(rnic.ReregMRFlags.CHANGE_ACCESS, access=READ_ONLY)
    assert scene.do(WROpcode.RDMA_READ, 8).ok
    scene.post(WROpcode.RDMA_WRITE, 8)


def of_another_domain(scene: Scene) -> None:
    with scene.b.ctx.alloc_pd() as other, other.alloc_mr(64, rnic.testing.ALL_ACCESS) as mr:
        scene.a.qp.post_send(
            SendWR(
                opcode=WROpcode.RDMA_WRITE,
                sg_list=[SGE(scene.source, 0, 8)],
                remote_addr=mr.addr,
                rkey=mr.rkey,
            )
        )
        (wc,) = scene.a.wait()
        assert wc.status is WCStatus.REM_ACCESS_ERR
        assert bytes(mr.buf[:8]) == bytes(8)


def without_the_queue_pairs_consent(scene: Scene) -> None:
    scene.b.qp.modify(QPAttr(qp_access_flags=AccessFlags.REMOTE_READ))
    scene.post(WROpcode.RDMA_WRITE, 8)


@pytest.mark.parametrize(
    "misdeed",
    [wrong_key, deregistered, out_of_bounds, read_only, of_another_domain, without_the_queue_pairs_consent],
)
def test_keys_are_checked_as_on_the_wire(scene: Scene, misdeed: Callable[[Scene], None]) -> None:
    misdeed(scene)
    if misdeed is not of_another_domain:
        (wc,) = scene.a.wait()
        assert wc.status is WCStatus.REM_ACCESS_ERR
    assert scene.a.qp.state is QPState.ERR
    assert scene.b.qp.state is QPState.ERR


def test_a_misaligned_atomic_is_refused(scene: Scene) -> None:
    assert scene.do(WROpcode.ATOMIC_FETCH_AND_ADD, 8, to=4, compare_add=1).status is WCStatus.REM_INV_REQ_ERR


def test_a_queue_pair_in_error_lets_nobody_in(scene: Scene) -> None:
    assert scene.do(WROpcode.RDMA_WRITE, 8).ok
    scene.b.qp.modify(QPAttr(qp_state=QPState.ERR))
    before = scene.counted("local_direct")
    assert scene.do(WROpcode.RDMA_WRITE, 8).status is WCStatus.RETRY_EXC_ERR
    assert scene.counted("local_direct") == before


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
        scene.a.qp.modify(
            QPAttr(
                alt_ah_attr=rnic.AHAttr(scene.b.ctx.query_gid(1, 0)),
                alt_pkey_index=0,
                alt_port_num=1,
                alt_timeout=14,
                path_mig_state=rnic.MigState.REARM,
            )
        )
    assert caught.value.errno == errno.EOPNOTSUPP
    assert scene.do(WROpcode.RDMA_WRITE, 8).ok


def test_no_receive_is_no_loss(scene: Scene) -> None:
    """RNR: the message waits for its receive, as on the wire."""
    scene.post(WROpcode.SEND, 8)
    time.sleep(0.05)
    scene.b.qp.post_recv(RecvWR(1, [SGE(scene.target, 0, 8)]))
    scene.a.wait_ok()
    scene.b.wait_ok()
    assert scene.b.ctx.counters().rnr_nak_sent > 0


def test_a_message_larger_than_the_ring_arrives(scene: Scene) -> None:
    """Of ordinary memory, which is copied through the ring."""
    size = 5 << 20
    source, target = bytearray(os.urandom(size)), bytearray(size)
    at_a, at_b = scene.a.register(source), scene.b.register(target)
    scene.b.qp.post_recv(RecvWR(1, [SGE(at_b)]))
    scene.a.qp.post_send(SendWR(send_flags=SendFlags.SIGNALED, sg_list=[SGE(at_a)]))
    scene.a.wait_ok()
    scene.b.wait_ok()
    assert target == source
    wr = SendWR(opcode=WROpcode.RDMA_READ, send_flags=SendFlags.SIGNALED, sg_list=[SGE(at_a)])
    wr.remote_addr, wr.rkey = at_b.addr, at_b.rkey
    target[:] = os.urandom(size)
    scene.a.qp.post_send(wr)
    scene.a.wait_ok()
    assert target == source


@pytest.mark.parametrize("loss", [0.05, 0.2])
def test_the_injector_is_between_them_too(loss: float) -> None:
    with Pair(local=True, options=Options(timeout=14, retry_cnt=7)) as pair:
        scene = Scene(pair.a, pair.b, pair.a.memory(SIZE), pair.b.memory(SIZE))
        for end in (pair.a, pair.b):
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
            wr = SendWR(opcode=WROpcode.RDMA_WRITE, send_flags=SendFlags.SIGNALED, sg_list=[SGE(source)])
            wr.remote_addr, wr.rkey = target.addr, target.rkey
            qp.post_send(wr)
            channel.get_cq_event(20.0)
            qp.send_cq.ack_events()
            (wc,) = qp.send_cq.poll(2)
            assert wc.ok


def unreliable(ctx: rnic.Context, stack: ExitStack) -> tuple[rnic.QP, rnic.CompChannel, rnic.MR]:
    pd, channel = stack.enter_context(ctx.alloc_pd()), stack.enter_context(ctx.create_comp_channel())
    cq = stack.enter_context(ctx.create_cq(16, channel))
    init = rnic.QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=rnic.QPType.UC)
    qp = stack.enter_context(pd.create_qp(init))
    return qp, channel, stack.enter_context(pd.alloc_mr(2 << 20, rnic.testing.ALL_ACCESS))


def test_who_does_not_answer_is_tried_by_the_wire() -> None:
    """Somebody has the name of a slot that nobody owns, and says nothing."""
    with End(local=True) as a, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        slot = next(n for n in range(1024) if listens(silent, n))
        a.qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=AccessFlags(0)))
        a.qp.modify(
            QPAttr(
                qp_state=QPState.RTR,
                path_mtu=rnic.MTU.MTU_1024,
                dest_qp_num=slot << 14 | 77,
                rq_psn=0,
                max_dest_rd_atomic=1,
                min_rnr_timer=1,
                ah_attr=rnic.AHAttr(a.ctx.query_gid(1, 0)),
            )
        )
        a.qp.modify(
            QPAttr(qp_state=QPState.RTS, sq_psn=0, timeout=10, retry_cnt=1, rnr_retry=0, max_rd_atomic=1)
        )
        source = a.memory(64)
        a.qp.post_send(SendWR(send_flags=SendFlags.SIGNALED, sg_list=[SGE(source)]))
        (wc,) = a.wait(timeout=20.0)
        assert wc.status is WCStatus.RETRY_EXC_ERR
        assert a.ctx.counters().tx_syscalls > 0


def listens(end: socket.socket, slot: int) -> bool:
    try:
        end.bind(f"\0rnic/1/lane/{slot}")
    except OSError:
        return False
    end.listen(8)
    return True


def test_nobody_writes_into_a_region_once_it_is_closed(scene: Scene, soak: bool) -> None:
    """By a thread that does nothing else: what was under way has ended, or does not begin."""
    length = 1 << 17
    source = scene.a.register(bytearray(b"a" * length))
    writes = 0
    for _ in range(1000 if soak else 60):
        target = bytearray(length)
        mr = scene.b.register(target)
        writer = Writer(scene.a, source, mr.addr, mr.rkey, length)
        writer.start()
        time.sleep(random.random() * 0.002)
        mr.close()
        target[:] = bytes(length)
        writer.join()
        assert target.count(0) == length
        assert writer.status in (WCStatus.REM_ACCESS_ERR, WCStatus.RETRY_EXC_ERR)
        writes += writer.done
        for qp in (scene.a.qp, scene.b.qp):
            qp.modify(QPAttr(qp_state=QPState.RESET))
        connect(scene.a.qp, scene.b.qp, HASTY)
        assert scene.do(WROpcode.RDMA_WRITE, 0).ok
    assert writes > 10
    assert scene.counted("local_direct") > 0


class Writer(threading.Thread):
    """WRITEs to the same place until that is refused."""

    def __init__(self, end: End, source: rnic.MR, addr: int, rkey: int, length: int) -> None:
        super().__init__()
        self.end, self.done, self.status = end, 0, WCStatus.SUCCESS
        self.wr = SendWR(
            opcode=WROpcode.RDMA_WRITE, send_flags=SendFlags.SIGNALED, sg_list=[SGE(source, 0, length)]
        )
        self.wr.remote_addr, self.wr.rkey = addr, rkey

    def run(self) -> None:
        while self.status is WCStatus.SUCCESS:
            self.end.qp.post_send(self.wr)
            (wc,) = self.end.wait()
            self.status, self.done = wc.status, self.done + wc.ok


# ---------------------------------------------------------------- two ends, two opinions


@contextmanager
def of_two_minds(options: Options = HASTY) -> Iterator[tuple[Scene, Scene]]:
    """a, which has an alternate path, takes the wire, b the lane; neither has heard of the other."""
    with Pair(local=True, options=options) as pair:
        there = Scene(pair.a, pair.b, pair.a.memory(SIZE), pair.b.memory(SIZE))
        back = Scene(pair.b, pair.a, there.target, there.source)
        alternate = QPAttr(
            alt_ah_attr=rnic.AHAttr(pair.b.ctx.query_gid(1, 0)),
            alt_pkey_index=0,
            alt_port_num=1,
            alt_timeout=14,
        )
        pair.a.qp.modify(alternate)
        yield there, back


def both_first(there: Scene, back: Scene, post: Callable[[Scene], None]) -> None:
    """Neither gets the other's first packet before it has sent its own."""
    there.a.ctx.set_faults(rnic.Faults(seed=1, loss=1.0))
    post(there)
    while not there.counted("fault_lost"):
        time.sleep(0.001)
    post(back)
    while not back.counted("local_sent"):
        time.sleep(0.001)
    there.a.ctx.set_faults(None)


def test_peers_that_choose_different_ways_understand_each_other() -> None:
    """Requests go the way that their sender has chosen, answers the way that the requests came."""
    with of_two_minds() as (there, back):
        half = SIZE // 2
        there.source.buf[:half], back.source.buf[half:] = os.urandom(half), os.urandom(half)
        both_first(there, back, lambda one: one.post(WROpcode.RDMA_WRITE, 8, at=0 if one is there else half))
        there.a.wait_ok()
        back.a.wait_ok()
        for one, at in ((there, 0), (back, half)):
            for i in range(20):
                end = one.b
                end.qp.post_recv(RecvWR(i, [SGE(one.target, at, half)]))
                assert one.do(WROpcode.SEND, half, at=at).ok
                end.wait_ok()
                assert bytes(one.target.buf[at : at + half]) == bytes(one.source.buf[at : at + half])
                one.source.buf[at : at + half] = os.urandom(half)
                assert one.do(WROpcode.RDMA_WRITE, half, at=at, to=at).ok
                assert bytes(one.target.buf[at : at + half]) == bytes(one.source.buf[at : at + half])
                one.target.buf[at : at + half] = os.urandom(half)
                assert one.do(WROpcode.RDMA_READ, half, at=at, to=at).ok
                assert bytes(one.target.buf[at : at + half]) == bytes(one.source.buf[at : at + half])
            one.target.buf[at : at + 8] = bytes(8)
            for i in range(20):
                assert one.do(WROpcode.ATOMIC_FETCH_AND_ADD, 8, at=at, to=at, compare_add=1).ok
                assert struct.unpack("=Q", one.source.buf[at : at + 8]) == (i,)
        assert there.counted("local_direct") == 0, "a has chosen the wire"
        assert back.counted("local_direct") > 0


@pytest.mark.parametrize("loss", [0.05, 0.2])
def test_two_ways_lose_packets_like_one(loss: float) -> None:
    with of_two_minds() as (there, back):
        both_first(there, back, lambda one: one.post(WROpcode.RDMA_WRITE, 8))
        there.a.wait_ok()
        back.a.wait_ok()
        for end in (there.a, back.a):
            end.ctx.set_faults(rnic.Faults(seed=5, loss=loss, duplicate=loss, reorder=loss))
        for _ in range(50):
            for one, at in ((there, 0), (back, SIZE // 2)):
                one.source.buf[at : at + 70000] = os.urandom(70000)
                assert one.do(WROpcode.RDMA_WRITE, 70000, at=at, to=at).ok
                assert bytes(one.target.buf[at : at + 70000]) == bytes(one.source.buf[at : at + 70000])
                assert one.do(WROpcode.RDMA_READ, 70000, at=at, to=at).ok


def test_an_unreliable_connection_hears_both_ways() -> None:
    with ExitStack() as stack:
        a, b = (stack.enter_context(rnic.open_device("roce_lo", local=True)) for _ in range(2))
        (qp, _, source), (peer, _, target) = (unreliable(ctx, stack) for ctx in (a, b))
        connect(qp, peer)
        qp.modify(
            QPAttr(
                alt_ah_attr=rnic.AHAttr(b.query_gid(1, 0)), alt_pkey_index=0, alt_port_num=1, alt_timeout=14
            )
        )
        a.set_faults(rnic.Faults(seed=1, loss=1.0))
        for one, mr, to in ((qp, source, target), (peer, target, source)):  # into no receive: one may be late
            first = SendWR(opcode=WROpcode.RDMA_WRITE, send_flags=SendFlags.SIGNALED, sg_list=[SGE(mr, 0, 8)])
            first.remote_addr, first.rkey = to.addr + (3 << 19), to.rkey
            one.post_send(first)
        for one in (qp, peer):
            while not one.send_cq.poll(1):
                pass
        a.set_faults(None)
        assert b.counters().local_sent == 1
        for one, mr, other, to in ((qp, source, peer, target), (peer, target, qp, source)):
            mr.buf[:100000] = os.urandom(100000)
            other.post_recv(RecvWR(1, [SGE(to, 1 << 20, 100000)]))
            one.post_send(SendWR(sg_list=[SGE(mr, 0, 100000)]))
            while not (found := other.recv_cq.poll(1)):
                pass
            assert found[0].ok
            assert bytes(to.buf[1 << 20 : (1 << 20) + 100000]) == bytes(mr.buf[:100000])
        assert b.counters().local_sent == 3
        assert a.counters().tx_syscalls > 0


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


# ---------------------------------------------------------------- processes


def pair_of(start: Start, **setting: Any) -> tuple[Node, Node, Any]:
    a, b = start(**LOCAL), start(**{**LOCAL, **setting})
    _, at_b = join(a, b, SIZE, HASTY)
    return a, b, at_b


def test_a_stopped_process_is_still_read_and_written(start: Start) -> None:
    """As by a network card: one-sided operations are no matter of the process."""
    a, b, at_b = pair_of(start)
    assert a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0] == "SUCCESS"
    b.signal(signal.SIGSTOP)
    before = a.call("counters", "main")["local_direct"]
    assert a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0] == "SUCCESS"
    assert a.call("one", "main", WROpcode.RDMA_READ, at_b)[0] == "SUCCESS"
    assert a.call("counters", "main")["local_direct"] == before + 2
    b.signal(signal.SIGCONT)
    assert b.call("state", "main") == "RTS"


OWNER = """
import socket, struct, sys
from rnic import AccessFlags
from rnic.testing import End, connect_through
with socket.socket(fileno=int(sys.argv[1])) as way, End(local=True) as end:
    mr = end.memory(4096, AccessFlags.REMOTE_READ)
    mr.buf[:] = bytes(range(256)) * 16
    connect_through(end.qp, way)
    way.sendall(struct.pack("=QI", mr.addr, mr.rkey))
    way.recv(1)
"""


def test_the_sealed_memory_of_another_process_is_read_without_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, End(local=True) as end:
        with theirs:
            fds = [theirs.fileno()]
            owner = subprocess.Popen([sys.executable, "-c", OWNER, str(fds[0])], pass_fds=fds)
        into = end.memory(4096)
        connect_through(end.qp, ours)
        addr, rkey = struct.unpack("=QI", ours.recv(12, socket.MSG_WAITALL))
        for _ in range(2):
            into.buf[:] = bytes(4096)
            wr = SendWR(opcode=WROpcode.RDMA_READ, send_flags=SendFlags.SIGNALED, sg_list=[SGE(into)])
            wr.remote_addr, wr.rkey = addr, rkey
            end.qp.post_send(wr)
            end.wait_ok()
            assert bytes(into.buf) == bytes(range(256)) * 16
        assert end.ctx.counters().local_direct == 1
    assert owner.wait(20) == 0


def test_a_killed_process_is_not_written_any_more(start: Start) -> None:
    a, b, at_b = pair_of(start)
    assert a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0] == "SUCCESS"
    assert a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0] == "SUCCESS"
    b.kill()
    deadline = time.monotonic() + 20
    while (status := a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0]) == "SUCCESS":
        assert time.monotonic() < deadline
    assert status == "RETRY_EXC_ERR"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_has_the_ring_but_no_memory(start: Start) -> None:
    a, _b, at_b = pair_of(start, uid=NOBODY)
    for _ in range(3):
        assert a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0] == "SUCCESS"
    counters = a.call("counters", "main")
    assert counters["local_sent"] > 0
    assert counters["local_direct"] == 0


def test_who_is_idle_needs_no_processor(start: Start) -> None:
    a, b, at_b = pair_of(start)
    for _ in range(10):
        assert a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0] == "SUCCESS"
    time.sleep(0.2)
    before = [cpu_seconds(node) for node in (a, b)]
    time.sleep(1.0)
    used = [cpu_seconds(node) - was for node, was in zip((a, b), before, strict=True)]
    assert max(used) < 0.2, used


def cpu_seconds(node: Node) -> float:
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    scene.post(WROpcode.RDMA_WRITE_WITH_IMM, 8)  # which finds no receive yet
    scene.post(WROpcode.RDMA_WRITE, 1 << 16)
    time.sleep(0.01)
    scene.b.qp.post_recv(RecvWR(1))
    scene.a.wait_ok(2)
    assert bytes(scene.target.buf[: 1 << 16]) == bytes(scene.source.buf[: 1 << 16])
    assert (scene.counted("local_direct"), scene.counted("requests_sent")) == (before[0] + 1, before[1] + 1)
