# SPDX-License-Identifier: Apache-2.0
"""ATOMIC WRITE, FLUSH, drained send queues, rates and enhanced connections over real sockets, with loss."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from time import monotonic

import pytest

import rnic
from rnic import (
    ECE,
    SGE,
    AccessFlags,
    EventType,
    Faults,
    PlacementType,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RateLimitAttr,
    RecvWR,
    SelectivityLevel,
    SendFlags,
    SendWR,
    SpecEth,
    VerbsError,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from rnic.testing import ALL_ACCESS, End, Options, Pair, connect
from transport.frames import MAC_B, Frames, ethernet

pytestmark = pytest.mark.roce

FLUSHES = AccessFlags.FLUSH_GLOBAL | AccessFlags.FLUSH_PERSISTENT
OPTIONS = Options(access=Options().access | FLUSHES)


def flush(number: int, mr: rnic.MR, kind: PlacementType, level: int = SelectivityLevel.RANGE) -> SendWR:
    return SendWR(
        number,
        WROpcode.FLUSH,
        SendFlags.SIGNALED,
        remote_addr=mr.addr,
        rkey=mr.rkey,
        flush_length=mr.length,
        flush_type=kind,
        flush_level=level,
    )


def atomic_write(number: int, source: SGE, mr: rnic.MR, offset: int = 0) -> SendWR:
    flags = SendFlags.SIGNALED
    return SendWR(number, WROpcode.ATOMIC_WRITE, flags, [source], mr.addr + offset, mr.rkey)


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_writes_atomic_writes_and_flushes_in_their_order(loss: float) -> None:
    with Pair(options=OPTIONS) as pair:
        source = pair.a.register(bytearray(os.urandom(8192)))
        target = pair.b.register(bytearray(8192), ALL_ACCESS | AccessFlags.FLUSH_GLOBAL)
        faults = Faults(seed=7, loss=loss, duplicate=loss, reorder=loss)
        pair.a.ctx.set_faults(faults)
        pair.b.ctx.set_faults(faults)
        for turn in range(20):
            place = 400 * turn
            pair.a.qp.post_send(
                [
                    SendWR(
                        1,
                        WROpcode.RDMA_WRITE,
                        SendFlags.SIGNALED,
                        [SGE(source, place, 392)],
                        target.addr + place,
                        target.rkey,
                    ),
                    flush(2, target, PlacementType.GLOBAL),
                    atomic_write(3, SGE(source, place + 392, 8), target, place + 392),
                ]
            )
            done = pair.a.wait_ok(3)
            assert [wc.opcode for wc in done] == [
                WCOpcode.RDMA_WRITE,
                WCOpcode.FLUSH,
                WCOpcode.ATOMIC_WRITE,
            ]
            assert bytes(target.buf[: place + 400]) == bytes(source.buf[: place + 400])
        assert not any(target.buf[8000:])


def test_a_persistent_flush_reaches_the_file(tmp_path: Path) -> None:
    file = tmp_path / "persistent"
    file.write_bytes(bytes(8192))
    with (
        Pair(options=OPTIONS) as pair,
        file.open("r+b") as opened,
        mmap.mmap(opened.fileno(), 8192) as memory,
    ):
        try:
            target = pair.b.pd.reg_mr(memory, ALL_ACCESS | FLUSHES)
        except VerbsError as error:
            pytest.skip(f"{tmp_path} is not on a disk: {error}")
        with target:
            source = pair.a.register(bytearray(b"persistent"))
            wr = SendWR(1, WROpcode.RDMA_WRITE, 0, [SGE(source)], target.addr, target.rkey)
            both = PlacementType.GLOBAL | PlacementType.PERSISTENT
            pair.a.qp.post_send([wr, flush(2, target, both), flush(3, target, both, SelectivityLevel.MR)])
            pair.a.wait_ok(2)
            assert file.read_bytes()[:10] == b"persistent"


def test_memory_that_is_no_file_cannot_be_persistent() -> None:
    with End() as end:
        for register in (
            lambda: end.pd.reg_mr(bytearray(64), ALL_ACCESS | FLUSHES),
            lambda: end.pd.alloc_mr(64, ALL_ACCESS | FLUSHES),
            lambda: end.pd.reg_mr(mmap.mmap(-1, 4096), ALL_ACCESS | FLUSHES),
        ):
            with pytest.raises(VerbsError, match=r"FLUSH_PERSISTENT.* map a file of a disk") as caught:
                register()
            assert caught.value.errno == errno.EOPNOTSUPP


def test_an_atomic_write_needs_no_room_for_inline_data() -> None:
    with Pair(options=OPTIONS, cap=rnic.QPCap(max_inline_data=0)) as pair:
        assert pair.a.qp.query()[1].cap.max_inline_data == 0
        source, target = pair.a.register(bytearray(b"12345678")), pair.b.register(bytearray(8))
        wr = atomic_write(1, SGE(source), target)
        wr.send_flags |= SendFlags.INLINE
        pair.a.qp.post_send(wr)
        pair.a.wait_ok()
        assert bytes(target.buf) == b"12345678"


@pytest.mark.parametrize("what", [WROpcode.FLUSH, WROpcode.ATOMIC_WRITE])
def test_what_the_peer_does_not_grant_is_an_access_error(what: WROpcode) -> None:
    with Pair(options=OPTIONS) as pair:
        source = pair.a.register(bytearray(8))
        target = pair.b.register(bytearray(8), AccessFlags.REMOTE_READ)
        if what is WROpcode.FLUSH:
            pair.a.qp.post_send(flush(1, target, PlacementType.GLOBAL))
        else:
            pair.a.qp.post_send(atomic_write(1, SGE(source), target))
        (wc,) = pair.a.wait()
        assert wc.status is WCStatus.REM_ACCESS_ERR
        assert pair.b.ctx.get_async_event(60).event_type is EventType.QP_ACCESS_ERR


def test_other_types_have_neither() -> None:
    with End() as end, end.memory(8) as mr:
        init = QPInitAttr(end.cq, end.cq, QPType.UC)
        qp, peer = end.pd.create_qp(init), end.pd.create_qp(init)
        with qp, peer:
            connect(qp, peer)
            refuse_both(qp, mr)


def refuse_both(qp: rnic.QP, mr: rnic.MR) -> None:
    for wr in (flush(1, mr, PlacementType.GLOBAL), atomic_write(1, SGE(mr), mr)):
        with pytest.raises(VerbsError, match="unreliable connection"):
            qp.post_send(wr)


# -------------------------------------------------------------------------------- drained send queues


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_a_send_queue_drains_and_goes_on(loss: float) -> None:
    with Pair(options=OPTIONS) as pair:
        source, target = pair.a.register(bytearray(os.urandom(1 << 20))), pair.b.memory(1 << 20)
        pair.a.ctx.set_faults(Faults(seed=3, loss=loss))
        write = SendWR(1, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [SGE(source)], target.addr, target.rkey)
        pair.a.qp.post_send([write])
        pair.a.qp.modify(QPAttr(qp_state=QPState.SQD, en_sqd_async_notify=True))
        assert pair.a.ctx.get_async_event(60).event_type is EventType.SQ_DRAINED
        attr = pair.a.qp.query()[0]
        assert (attr.qp_state, attr.sq_draining) == (QPState.SQD, False)
        begun = pair.a.cq.poll(2)
        assert all(wc.ok for wc in begun)
        pair.a.qp.modify(QPAttr(timeout=12, retry_cnt=5))  # of what may be changed now
        with pytest.raises(VerbsError, match="does not take path_mtu"):
            pair.a.qp.modify(QPAttr(path_mtu=rnic.MTU.MTU_256))
        pair.a.qp.post_send(SendWR(2, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [], target.addr, target.rkey))
        pair.b.register(bytearray(8))
        assert pair.a.cq.poll(1) == []  # it waits
        assert pair.a.qp.statistics().sq_depth == 2 - len(begun)
        pair.a.qp.modify(QPAttr(qp_state=QPState.RTS))
        pair.a.wait_ok(2 - len(begun))
        assert bytes(target.buf) == bytes(source.buf)
        assert pair.a.qp.query()[0].timeout == 12


# -------------------------------------------------------------------------------- rates


@pytest.mark.wire
@pytest.mark.parametrize("qp_type", [QPType.RC, QPType.UC])
def test_a_rate_is_kept(qp_type: QPType) -> None:
    with (
        End() as a,
        End() as b,
        a.pd.create_qp(QPInitAttr(a.cq, a.cq, qp_type)) as qp,
        b.pd.create_qp(QPInitAttr(b.cq, b.cq, qp_type)) as peer,
    ):
        connect(qp, peer)
        source, target = a.register(bytearray(os.urandom(1 << 18))), b.memory(1 << 18)
        qp.modify_rate_limit(RateLimitAttr(8000, max_burst_sz=8192))  # a byte a microsecond
        assert qp.query()[0].rate_limit == 8000
        write = SendWR(1, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [SGE(source)], target.addr, target.rkey)
        start = monotonic()
        qp.post_send(write)
        a.wait_ok(1)
        assert monotonic() - start >= ((1 << 18) - 8192) / 1e6
        if qp_type is QPType.RC:
            assert bytes(target.buf) == bytes(source.buf)
            assert qp.statistics().counters.timeouts == 0
        qp.modify_rate_limit(RateLimitAttr())
        start = monotonic()
        for _ in range(4):
            qp.post_send(write)
        a.wait_ok(4)
        assert qp.query()[0].rate_limit == 0


def test_a_rate_is_kept_of_frames_too() -> None:
    with Frames() as frames:
        a, b = frames.queue(), frames.queue(64)
        b.flow(SpecEth(dst_mac=MAC_B))
        a.qp.modify_rate_limit(
            RateLimitAttr(8000, max_burst_sz=2000, typical_pkt_sz=1000)
        )  # a byte a microsecond
        assert a.qp.query()[0].rate_limit == 8000
        sent = [ethernet(bytes([i]) * 986) for i in range(64)]
        start = monotonic()
        for frame in sent:
            assert a.send(frame).ok
        assert monotonic() - start >= 0.062
        assert b.take(64) == sent


def test_rates_that_cannot_be_are_refused() -> None:
    with Pair() as pair, End() as idle:
        most = pair.a.ctx.query_device_ex().packet_pacing_caps.qp_rate_limit_max
        pair.a.qp.modify_rate_limit(RateLimitAttr(most))
        for attr, words in [
            (RateLimitAttr(most + 1), f"the most is {most}"),
            (RateLimitAttr(0, 100), "rate_limit is 0"),
            (RateLimitAttr(1, comp_mask=1), "comp_mask is 0x1"),
        ]:
            with pytest.raises(VerbsError, match=words) as caught:
                pair.a.qp.modify_rate_limit(attr)
            assert caught.value.errno == errno.EINVAL
        with pytest.raises(VerbsError, match="is in RESET; a rate is set from RTR on"):
            idle.qp.modify_rate_limit(RateLimitAttr(1))
        with pytest.raises(VerbsError, match="does not take rate_limit"):
            pair.a.qp.modify(QPAttr(rate_limit=5))
        pair.a.qp.modify(QPAttr(qp_state=QPState.RESET))
        assert pair.a.qp.query()[0].rate_limit == 0
        gsi = idle.pd.create_qp(QPInitAttr(idle.cq, idle.cq, QPType.GSI))
        with gsi, pytest.raises(VerbsError, match="cannot be paced") as caught:
            gsi.modify_rate_limit(RateLimitAttr(1))
        assert caught.value.errno == errno.EOPNOTSUPP


# -------------------------------------------------------------------------------- order of data, ECE


def test_no_order_of_bytes_is_promised() -> None:
    with Pair() as pair:
        for op in (WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ):
            assert pair.a.qp.query_data_in_order(op) == 0
            assert pair.a.qp.query_data_in_order(op, 1) == 0
        with pytest.raises(VerbsError, match="flags 0x2"):
            pair.a.qp.query_data_in_order(WROpcode.SEND, 2)
        with pytest.raises(VerbsError, match="no opcode 99"):
            pair.a.qp.query_data_in_order(99)  # type: ignore[arg-type]


def test_no_vendor_options_are_accepted() -> None:
    with End() as end, Pair() as pair:
        none = ECE(end.ctx.query_device().vendor_id, 0)
        assert none.vendor_id
        assert end.qp.query_ece() == none
        assert end.qp.set_ece(ECE(0x2C9, 0xFF)) == none
        assert end.qp.query_ece() == none
        with pytest.raises(VerbsError, match="comp_mask is 0x1"):
            end.qp.set_ece(ECE(1, 1, 1))
        with pytest.raises(VerbsError, match="is in RTS; options are set before RTR"):
            pair.a.qp.set_ece(ECE(1, 1))


def test_a_query_tells_the_shared_receive_queue_of_its_creation() -> None:
    with End() as end, end.pd.create_srq() as srq:
        with end.pd.create_qp(QPInitAttr(end.cq, end.cq, srq=srq)) as qp:
            assert qp.query()[1].srq is srq
        srq.post_recv(RecvWR(1))
