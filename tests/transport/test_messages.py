# SPDX-License-Identifier: Apache-2.0
"""All operations at all sizes, over IPv4 and IPv6: what arrives, how it completes, and in which order."""

from __future__ import annotations

import itertools
import random
import select
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from rnic import (
    MTU,
    SGE,
    AccessFlags,
    EventType,
    Faults,
    Lose,
    PostError,
    QPAttr,
    QPCap,
    QPState,
    RecvWR,
    SendFlags,
    SendWR,
    Transport,
    WCFlags,
    WCOpcode,
    WROpcode,
)
from rnic._nic.nic import MR
from rnic.testing import Options, Pair
from rnic.wire import Opcode
from transport.scene import arrive

SIGNALED = SendFlags.SIGNALED
ADDRESSES = ["127.0.0.1", "::1"]
# Around what matters: empty, padding, one packet and one more at each MTU, the batch of 64, several windows.
SIZES = [0, 1, 2, 3, 4, 5, 255, 256, 257, 1023, 4095, 4096, 4097, 65535, 65537, 1 << 20, (5 << 20) + 3]
IMM = 0xCAFE0001
SENDS = {WROpcode.SEND, WROpcode.SEND_WITH_IMM}
WITH_IMM = {WROpcode.SEND_WITH_IMM, WROpcode.RDMA_WRITE_WITH_IMM}
SEND_WITH_IMM = pytest.param(WROpcode.SEND_WITH_IMM, marks=pytest.mark.roce)
WORD = struct.Struct("=Q")


def content(n: int) -> bytes:
    return random.Random(n).randbytes(n)


class Scene:
    """A pair with memory at both ends."""

    def __init__(self, pair: Pair, nbytes: int) -> None:
        self.a, self.b = pair.a, pair.b
        self.source, self.target = self.a.memory(nbytes), self.b.memory(nbytes)

    def request(self, opcode: WROpcode, sges: list[SGE], flags: SendFlags = SIGNALED, **more: Any) -> SendWR:
        """A request of a's to the start of b's memory."""
        fields = {"remote_addr": self.target.addr, "rkey": self.target.rkey, **more}
        return SendWR(1, opcode, flags, sges, **fields)


@pytest.fixture(params=ADDRESSES)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with Pair(options=Options(address=request.param)) as pair:
        yield Scene(pair, max(SIZES))


@pytest.fixture
def small() -> Iterator[Scene]:
    with Pair() as pair:
        yield Scene(pair, 64 << 10)


# ---------------------------------------------------------------- operations and sizes


@pytest.mark.one_in(3)
@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize(
    "opcode", [WROpcode.SEND, SEND_WITH_IMM, WROpcode.RDMA_WRITE, WROpcode.RDMA_WRITE_WITH_IMM]
)
def test_a_message_arrives_whole_and_nowhere_else(scene: Scene, opcode: WROpcode, nbytes: int) -> None:
    scene.source.buf[:nbytes] = sent = content(nbytes)
    receives = opcode in SENDS | WITH_IMM
    if receives:
        sges = [SGE(scene.target)] if opcode in SENDS else []
        scene.b.qp.post_recv(RecvWR(7, sges))
    scene.a.qp.post_send(scene.request(opcode, [SGE(scene.source, 0, nbytes)], imm_data=IMM))
    (wc,) = scene.a.wait_ok()
    assert wc.opcode == (WCOpcode.SEND if opcode in SENDS else WCOpcode.RDMA_WRITE)
    if receives:
        (wc,) = scene.b.wait_ok()
        assert (wc.wr_id, wc.byte_len) == (7, nbytes)
        assert wc.opcode == (WCOpcode.RECV if opcode in SENDS else WCOpcode.RECV_RDMA_WITH_IMM)
        assert wc.imm_data == (IMM if opcode in WITH_IMM else None)
        assert bool(wc.wc_flags & WCFlags.WITH_IMM) == (opcode in WITH_IMM)
        iwarp = scene.b.ctx.device.transport is Transport.IWARP  # which has no numbers in its messages
        assert (wc.qp_num, wc.src_qp) == (scene.b.qp.qp_num, 0 if iwarp else scene.a.qp.qp_num)
    arrive(scene.a)
    assert scene.target.buf[:nbytes] == sent
    assert not any(scene.target.buf[nbytes : nbytes + 8192])


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_read_fetches_the_whole_and_no_more(scene: Scene, nbytes: int) -> None:
    scene.target.buf[:] = there = content(len(scene.target))
    scene.a.qp.post_send(scene.request(WROpcode.RDMA_READ, [SGE(scene.source, 0, nbytes)]))
    (wc,) = scene.a.wait_ok()
    assert (wc.opcode, wc.byte_len) == (WCOpcode.RDMA_READ, nbytes)
    assert scene.source.buf[:nbytes] == there[:nbytes]
    assert not any(scene.source.buf[nbytes : nbytes + 8192])


def test_atomics_return_what_was_there_and_store_what_was_asked(scene: Scene) -> None:
    word = SGE(scene.source, 0, 8)

    def swap(compare: int, value: int) -> int:
        wr = scene.request(WROpcode.ATOMIC_CMP_AND_SWP, [word], compare_add=compare, swap=value)
        return ask(wr, WCOpcode.COMP_SWAP)

    def add(value: int) -> int:
        wr = scene.request(WROpcode.ATOMIC_FETCH_AND_ADD, [word], compare_add=value)
        return ask(wr, WCOpcode.FETCH_ADD)

    def ask(wr: SendWR, opcode: WCOpcode) -> int:
        scene.a.qp.post_send(wr)
        (wc,) = scene.a.wait_ok()
        assert (wc.opcode, wc.byte_len) == (opcode, 8)
        return int(WORD.unpack_from(scene.source.buf)[0])

    top = 2**64 - 1
    assert swap(0, top) == 0
    assert swap(1, 5) == top, "not equal: nothing is stored"
    assert add(3) == top, "it wraps"
    assert add(0x0102030405060708) == 2
    assert WORD.unpack_from(scene.target.buf)[0] == 0x010203040506070A


@pytest.mark.wire
@pytest.mark.parametrize("mtu", list(MTU))
@pytest.mark.parametrize("address", ADDRESSES)
def test_every_path_mtu_carries_all_operations(mtu: MTU, address: str) -> None:
    n = 3 * mtu.nbytes + 1
    with Pair(options=Options(path_mtu=mtu, address=address)) as pair:
        scene = Scene(pair, 2 * n)
        scene.source.buf[:n] = sent = content(n)
        scene.b.qp.post_recv(RecvWR(1, [SGE(scene.target, n)]))
        scene.a.qp.post_send(
            [
                scene.request(WROpcode.RDMA_WRITE, [SGE(scene.source, 0, n)]),
                scene.request(WROpcode.SEND, [SGE(scene.source, 0, n)]),
                scene.request(WROpcode.RDMA_READ, [SGE(scene.source, n, n)]),
            ]
        )
        scene.a.wait_ok(3)
        scene.b.wait_ok()
        assert scene.target.buf[:n] == scene.target.buf[n:] == scene.source.buf[n:] == sent
        assert scene.a.ctx.counters().requests_sent >= 2 * 4 + 1


def test_both_ends_send_at_once(scene: Scene) -> None:
    n, count = 128 << 10, 8
    rng = random.Random(1)
    for end, here in ((scene.a, scene.source), (scene.b, scene.target)):
        here.buf[: n * count] = rng.randbytes(n * count)
        end.qp.post_recv([RecvWR(i, [SGE(here, n * (count + i), n)]) for i in range(count)])
    for end, here in ((scene.a, scene.source), (scene.b, scene.target)):
        end.qp.post_send([SendWR(i, WROpcode.SEND, SIGNALED, [SGE(here, n * i, n)]) for i in range(count)])
    for end in (scene.a, scene.b):
        assert {wc.opcode for wc in end.wait_ok(2 * count)} == {WCOpcode.SEND, WCOpcode.RECV}
    half, end_ = n * count, 2 * n * count
    assert scene.source.buf[:half] == scene.target.buf[half:end_]
    assert scene.target.buf[:half] == scene.source.buf[half:end_]


# ---------------------------------------------------------------- inline, gather and scatter


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 255, 256])
@pytest.mark.parametrize("opcode", [SEND_WITH_IMM, WROpcode.RDMA_WRITE])
def test_inline_data_is_taken_at_post_and_needs_no_registration(
    scene: Scene, opcode: WROpcode, nbytes: int
) -> None:
    memory = bytearray(content(nbytes) + b"!")
    with scene.a.pd.reg_mr(memory, AccessFlags.LOCAL_WRITE) as mr:
        addr = mr.addr  # bytearrays do not tell their address
    sent = bytes(memory[:nbytes])
    if opcode in SENDS:
        scene.b.qp.post_recv(RecvWR(1, [SGE(scene.target)]))
    wr = scene.request(
        opcode, [SGE(addr=addr, length=nbytes, lkey=0)], SIGNALED | SendFlags.INLINE, imm_data=IMM
    )
    scene.a.qp.post_send(wr)
    memory[:] = bytes(len(memory))
    scene.a.wait_ok()
    if opcode in SENDS:
        assert scene.b.wait_ok()[0].imm_data == IMM
    arrive(scene.a)
    assert scene.target.buf[:nbytes] == sent


def pieces(mr: MR, lengths: list[int]) -> list[SGE]:
    """SGEs of these lengths that lie in the memory with gaps between them, the first at the far end."""
    ends = itertools.accumulate(length + 13 for length in reversed(lengths))
    starts = [end - length - 13 for end, length in zip(ends, reversed(lengths), strict=True)]
    return [SGE(mr, start, length) for start, length in zip(reversed(starts), lengths, strict=True)]


def joined(mr: MR, sges: list[SGE]) -> bytes:
    """The bytes that the pieces name, in their order."""
    return b"".join(bytes(mr.buf[sge.addr - mr.addr : sge.addr - mr.addr + sge.length]) for sge in sges)


@pytest.mark.parametrize("lengths", [[10], [1, 0, 3], [4096, 4096, 1], [5000, 1, 9000, 4095]])
@pytest.mark.parametrize("opcode", [WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
def test_pieces_are_gathered_here_and_scattered_there(
    small: Scene, opcode: WROpcode, lengths: list[int]
) -> None:
    total = sum(lengths)
    here, there = pieces(small.source, lengths), pieces(small.target, lengths)
    small.source.buf[:] = content(len(small.source))
    small.target.buf[:] = content(len(small.target) + 1)[1:]
    sent, fetched = joined(small.source, here), bytes(small.target.buf[:total])
    if opcode == WROpcode.SEND:
        small.b.qp.post_recv(RecvWR(1, there))
    small.a.qp.post_send(small.request(opcode, here))
    small.a.wait_ok()
    if opcode == WROpcode.SEND:
        assert small.b.wait_ok()[0].byte_len == total
        assert joined(small.target, there) == sent
    elif opcode == WROpcode.RDMA_WRITE:
        arrive(small.a)
        assert small.target.buf[:total] == sent
    else:
        assert joined(small.source, here) == fetched


def test_a_receive_may_be_longer_than_its_message_and_keeps_the_rest(small: Scene) -> None:
    small.target.buf[:] = b"\xaa" * len(small.target)
    small.b.qp.post_recv(RecvWR(1, [SGE(small.target, 0, 10), SGE(small.target, 100, 5000)]))
    small.a.qp.post_send(small.request(WROpcode.SEND, [SGE(small.source, 0, 20)]))
    assert small.b.wait_ok()[0].byte_len == 20
    assert small.target.buf[:10] == bytes(10)
    assert small.target.buf[10:100] == b"\xaa" * 90
    assert small.target.buf[100:110] == bytes(10)
    assert small.target.buf[110:6000] == b"\xaa" * 5890


# ---------------------------------------------------------------- completions and events


def test_only_signaled_requests_complete_and_each_confirms_those_before_it(small: Scene) -> None:
    wrs = [
        SendWR(i, WROpcode.RDMA_WRITE, SIGNALED if i % 10 == 9 else 0, [SGE(small.source, 0, 8)],
               small.target.addr + 8 * i, small.target.rkey)
        for i in range(100)
    ]  # fmt: skip
    small.a.qp.post_send(wrs)
    assert [wc.wr_id for wc in small.a.wait_ok(10)] == list(range(9, 100, 10))
    assert small.a.cq.poll() == []
    assert small.a.qp.statistics().sq_depth == 0


def test_sq_sig_all_signals_every_request() -> None:
    with Pair(sq_sig_all=True) as pair:
        pair.a.qp.post_send([SendWR(i, WROpcode.RDMA_WRITE) for i in range(5)])
        assert [wc.wr_id for wc in pair.a.wait_ok(5)] == list(range(5))


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


@pytest.mark.roce
def test_a_queue_armed_for_solicited_events_wakes_for_those_only(small: Scene) -> None:
    b = small.b
    b.qp.post_recv([RecvWR(i, [SGE(small.target)]) for i in range(3)])
    b.cq.req_notify(solicited_only=True)
    plain = small.request(WROpcode.SEND, [SGE(small.source, 0, 8)])
    for _ in range(2):
        small.a.qp.post_send(plain)
        small.a.wait_ok()  # acknowledged, so received
    assert not is_readable(b.channel.fileno())
    small.a.qp.post_send(
        small.request(WROpcode.SEND, [SGE(small.source, 0, 8)], SIGNALED | SendFlags.SOLICITED)
    )
    assert b.channel.get_cq_event(60.0) is b.cq
    b.cq.ack_events()
    assert len(b.cq.poll(8)) == 3
    small.a.wait_ok()


@pytest.mark.roce
def test_a_failure_wakes_a_queue_armed_for_solicited_events(small: Scene) -> None:
    small.a.cq.req_notify(solicited_only=True)
    small.a.qp.post_send(small.request(WROpcode.RDMA_WRITE, [SGE(small.source, 0, 8)], rkey=1))
    assert small.a.channel.get_cq_event(60.0) is small.a.cq
    small.a.cq.ack_events()
    assert not small.a.wait()[0].ok


def test_an_armed_queue_makes_one_event_until_it_is_armed_again(small: Scene) -> None:
    a = small.a
    write = small.request(WROpcode.RDMA_WRITE, [SGE(small.source, 0, 8)])
    for _ in range(3):
        a.cq.req_notify()
        a.qp.post_send([write])
        assert a.channel.get_cq_event(60.0) is a.cq
        a.cq.ack_events()
        assert len(a.cq.poll(4)) == 1
        a.qp.post_send(write)
        while not a.cq.poll():
            pass
        assert not is_readable(a.channel.fileno())


# ---------------------------------------------------------------- order


@pytest.mark.roce
def test_a_fenced_request_waits_for_the_reads_before_it(small: Scene) -> None:
    """The WRITE sends what the READ fetches, which the READ's lost first answer delays."""
    small.target.buf[:8] = b"fetched!"
    small.source.buf[:8] = b"too soon"
    small.b.ctx.set_faults(Faults(lose=[Lose(Opcode.RC_READ_RESP_ONLY)]))
    read = small.request(WROpcode.RDMA_READ, [SGE(small.source, 0, 8)], SendFlags(0))
    write = small.request(
        WROpcode.RDMA_WRITE,
        [SGE(small.source, 0, 8)],
        SIGNALED | SendFlags.FENCE,
        remote_addr=small.target.addr + 64,
    )
    small.a.qp.post_send([read, write])
    small.a.wait_ok()
    assert small.b.ctx.counters().fault_lost == 1
    assert bytes(small.target.buf[64:72]) == b"fetched!"


def test_operations_take_effect_in_the_order_of_posting(small: Scene) -> None:
    """A WRITE is fenced behind the READ before it, which else may fetch what comes later (IBA 10.8.3.3)."""
    wrs, fenced = [], SIGNALED | SendFlags.FENCE
    for i in range(32):
        struct.pack_into("=Q", small.source.buf, 8 * i, i)
        wrs.append(small.request(WROpcode.RDMA_WRITE, [SGE(small.source, 8 * i, 8)], fenced))
        wrs.append(small.request(WROpcode.RDMA_READ, [SGE(small.source, 4096 + 8 * i, 8)]))
    small.a.qp.post_send(wrs)
    small.a.wait_ok(64)
    assert list(struct.unpack_from("=32Q", small.source.buf, 4096)) == list(range(32))


@pytest.mark.roce
def test_sqd_finishes_what_was_begun_and_rts_goes_on_with_the_rest(small: Scene) -> None:
    a = small.a
    small.b.ctx.set_faults(Faults(loss=1.0))  # what is begun cannot finish
    a.qp.post_send(small.request(WROpcode.RDMA_WRITE, [SGE(small.source, 0, 8)]))
    a.qp.modify(QPAttr(qp_state=QPState.SQD, en_sqd_async_notify=True))
    assert a.qp.query()[0].sq_draining
    a.qp.post_send(small.request(WROpcode.RDMA_WRITE, [SGE(small.source, 0, 16)]))
    assert not is_readable(a.ctx.async_fileno())
    small.b.ctx.set_faults(None)
    event = a.ctx.get_async_event(60.0)
    assert (event.event_type, event.element) == (EventType.SQ_DRAINED, a.qp)
    assert not a.qp.query()[0].sq_draining
    assert len(a.wait_ok()) == 1
    assert a.cq.poll() == [], "the second waits"
    a.qp.modify(QPAttr(qp_state=QPState.RTS))
    assert len(a.wait_ok()) == 1


@pytest.mark.roce
def test_an_idle_queue_pair_is_drained_at_once(small: Scene) -> None:
    small.a.qp.modify(QPAttr(qp_state=QPState.SQD, en_sqd_async_notify=True))
    assert small.a.ctx.get_async_event(60.0).event_type == EventType.SQ_DRAINED
    assert small.a.qp.state == QPState.SQD


@pytest.mark.roce
def test_a_queue_pair_in_sqd_still_serves_its_peer(small: Scene) -> None:
    small.b.qp.modify(QPAttr(qp_state=QPState.SQD))
    small.source.buf[:5] = b"hello"
    small.a.qp.post_send(small.request(WROpcode.RDMA_WRITE, [SGE(small.source, 0, 5)]))
    small.a.wait_ok()
    assert bytes(small.target.buf[:5]) == b"hello"


# ---------------------------------------------------------------- very long


LONGEST = (1 << 31) - 1


def test_a_message_of_2_gib_is_refused(small: Scene) -> None:
    parts = [SGE(addr=small.source.addr, length=1 << 30, lkey=small.source.lkey)] * 2
    with pytest.raises(PostError, match="2147483648 bytes; the longest is 2 GiB - 1"):
        small.a.qp.post_send(small.request(WROpcode.RDMA_WRITE, parts))


@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ, WROpcode.SEND])
def test_a_message_of_2_gib_less_a_byte_arrives_whole(opcode: WROpcode, soak: bool) -> None:
    """The same 64 MiB and a bit, again and again, at the sender: 2 GiB are needed once, at the target."""
    if not soak:
        pytest.skip("2 GiB of memory and some seconds: RNIC_SOAK=1")
    part = (LONGEST + 31) // 32
    lengths = [part] * 31 + [LONGEST - 31 * part]
    with Pair(cap=QPCap(max_send_sge=32, max_recv_sge=32)) as pair:
        here, there = pair.a.memory(part), pair.b.memory(LONGEST)
        sges = [SGE(here, 0, length) for length in lengths]
        pattern = random.Random(2).randbytes(part)
        fetching = opcode == WROpcode.RDMA_READ
        if fetching:
            for i, length in enumerate(lengths):
                there.buf[i * part : i * part + length] = pattern[:length]
        else:
            here.buf[:] = pattern
        if opcode == WROpcode.SEND:
            pair.b.qp.post_recv(RecvWR(1, [SGE(there)]))
        pair.a.qp.post_send(SendWR(1, opcode, SIGNALED, sges, there.addr, there.rkey))
        (wc,) = pair.a.wait_ok(timeout=300.0)
        if opcode == WROpcode.SEND:
            assert pair.b.wait_ok(timeout=300.0)[0].byte_len == LONGEST
        if fetching:
            assert wc.byte_len == LONGEST
            assert here.buf == pattern
        else:
            assert all(
                there.buf[i * part : i * part + length] == pattern[:length]
                for i, length in enumerate(lengths)
            )
