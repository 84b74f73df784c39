# SPDX-License-Identifier: Apache-2.0
"""Completion queues over sockets: extended polling, moderation, overrun, resizing under load, counters."""

from __future__ import annotations

import errno
import select
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import rnic
from rnic import (
    SGE,
    CompCntrInitAttr,
    CompCntrType,
    CQInitAttrEx,
    CreateCQAttrFlags,
    CreateCQWCFlags,
    EventType,
    ModerateCQ,
    ModifyCQAttr,
    QPAttachCompCntrAttr,
    QPAttachCompCntrOp,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    VerbsError,
    WCFlags,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from rnic.testing import ALL_ACCESS, End, Options, Pair, connect
from waiting import until

STAMPS = CreateCQWCFlags.WITH_COMPLETION_TIMESTAMP | CreateCQWCFlags.WITH_COMPLETION_TIMESTAMP_WALLCLOCK
NONE = CreateCQWCFlags(0)
ALL = rnic.WC_STANDARD_FLAGS | STAMPS
Op = QPAttachCompCntrOp


class Looped(End):
    """Two queue pairs of one device, each other's peer, that complete to an extended queue."""

    def __init__(self, **init: Any) -> None:
        super().__init__()
        init = {"cqe": 64, "channel": self.channel, "wc_flags": ALL, **init}
        self.ex = self._stack.enter_context(self.ctx.create_cq_ex(CQInitAttrEx(**init)))
        self.near, self.far = self.queue_pair(), self.queue_pair()
        self.mr = self.memory(65536)

    def queue_pair(self, kind: QPType = QPType.RC) -> rnic.QP:
        init = QPInitAttr(self.ex, self.ex, kind, sq_sig_all=True)
        return self._stack.enter_context(self.pd.create_qp(init))

    def connect(self) -> None:
        connect(self.near, self.far)

    def send(self, wr_id: int, nbytes: int = 8, **more: Any) -> None:
        more.setdefault("opcode", WROpcode.SEND)
        self.near.post_send(SendWR(wr_id, sg_list=[SGE(self.mr, 0, nbytes)], **more))

    def receive(self, wr_id: int) -> None:
        self.far.post_recv(RecvWR(wr_id, [SGE(self.mr, 32768, 4096)]))

    def first(self, timeout: float = 60.0) -> None:
        """Begins a batch, when there is a completion."""
        end = time.monotonic() + timeout
        while not self.ex.start_poll():
            assert time.monotonic() < end

    def taken(self, n: int, timeout: float = 60.0) -> list[int]:
        """The next n completions' wr_ids."""
        found: list[int] = []
        end = time.monotonic() + timeout
        while len(found) < n:
            assert time.monotonic() < end, found
            found += [wc.wr_id for wc in self.ex.poll(n - len(found))]
        return found


@pytest.fixture
def looped() -> Iterator[Looped]:
    with Looped() as end:
        end.connect()
        yield end


# ---------------------------------------------------------------- extended polling


@pytest.mark.roce
def test_completions_are_read_field_by_field(looped: Looped) -> None:
    cq = looped.ex
    assert not cq.start_poll()
    cq.end_poll()
    looped.receive(7)
    before, wall = looped.ctx.query_rt_values_ex().raw_clock, time.time_ns()
    looped.send(9, 100, opcode=WROpcode.SEND_WITH_IMM, imm_data=0x01020304)
    seen: dict[int, tuple[Any, ...]] = {}
    while len(seen) < 2:
        looped.first()
        while True:
            after, now = looped.ctx.query_rt_values_ex().raw_clock, time.time_ns()
            assert before is not None
            assert after is not None
            assert before <= cq.read_completion_ts() <= after
            assert wall - 10_000_000 <= cq.read_completion_wallclock_ns() <= now + 10_000_000
            assert cq.status is WCStatus.SUCCESS
            seen[cq.wr_id] = (cq.read_opcode(), cq.read_qp_num(), cq.read_imm_data(), cq.read_vendor_err())
            if cq.wr_id == 7:
                assert (cq.read_byte_len(), cq.read_wc_flags()) == (100, WCFlags.WITH_IMM)
                assert cq.read_invalidated_rkey() is None
                assert (cq.read_src_qp(), cq.read_slid()) == (looped.near.qp_num, 0)
                assert (cq.read_sl(), cq.read_dlid_path_bits()) == (0, 0)
            if not cq.next_poll():
                break
        cq.end_poll()
    assert seen == {
        7: (WCOpcode.RECV, looped.far.qp_num, 0x01020304, 0),
        9: (WCOpcode.SEND, looped.near.qp_num, None, 0),
    }


@pytest.mark.roce
def test_a_failed_completion_tells_its_status_and_why(looped: Looped) -> None:
    looped.send(1, opcode=WROpcode.RDMA_WRITE, remote_addr=looped.mr.addr, rkey=looped.mr.rkey ^ 1)
    looped.first()
    assert looped.ex.status is WCStatus.REM_ACCESS_ERR
    assert looped.ex.read_vendor_err() != 0
    assert "remote side" in looped.ex.explain()
    looped.ex.end_poll()


READERS = {
    "read_byte_len": "WITH_BYTE_LEN",
    "read_imm_data": "WITH_IMM",
    "read_invalidated_rkey": "WITH_IMM",
    "read_qp_num": "WITH_QP_NUM",
    "read_src_qp": "WITH_SRC_QP",
    "read_slid": "WITH_SLID",
    "read_sl": "WITH_SL",
    "read_dlid_path_bits": "WITH_DLID_PATH_BITS",
    "read_completion_ts": "WITH_COMPLETION_TIMESTAMP",
    "read_completion_wallclock_ns": "WITH_COMPLETION_TIMESTAMP_WALLCLOCK",
}


def test_a_field_that_was_not_asked_for_cannot_be_read() -> None:
    with Looped(wc_flags=NONE) as end:
        end.connect()
        end.send(1, opcode=WROpcode.RDMA_WRITE, remote_addr=end.mr.addr, rkey=end.mr.rkey)
        end.first()
        for reader, flag in READERS.items():
            with pytest.raises(VerbsError, match=f"{reader}: .* create it with wc_flags {flag} ") as caught:
                getattr(end.ex, reader)()
            assert caught.value.errno == errno.EINVAL
        assert end.ex.read_opcode() is WCOpcode.RDMA_WRITE
        end.ex.end_poll()
    for reader, flag in READERS.items():
        with Looped(wc_flags=CreateCQWCFlags[flag]) as end:
            end.connect()
            end.send(1, opcode=WROpcode.RDMA_WRITE, remote_addr=end.mr.addr, rkey=end.mr.rkey)
            end.first()
            getattr(end.ex, reader)()
            end.ex.end_poll()


def test_polling_out_of_order_is_refused_with_the_cure(looped: Looped) -> None:
    cq = looped.ex
    for call in (lambda: cq.wr_id, cq.read_opcode, cq.next_poll):
        with pytest.raises(VerbsError, match=r"start_poll\(\) first") as caught:
            call()
        assert caught.value.errno == errno.EINVAL
    looped.receive(1)
    looped.send(2)
    looped.first()
    for call in (cq.start_poll, cq.poll):
        with pytest.raises(VerbsError, match=r"end_poll\(\) first") as caught:
            call()
        assert caught.value.errno == errno.EBUSY
    left = [cq.wr_id]
    cq.end_poll()
    assert sorted(left + looped.taken(1)) == [1, 2]  # what a batch has not reached stays in the queue


def test_places_are_free_as_soon_as_a_completion_is_the_current_one(looped: Looped) -> None:
    room = looped.near.cap.max_send_wr
    write = {"opcode": WROpcode.RDMA_WRITE, "remote_addr": looped.mr.addr, "rkey": looped.mr.rkey}
    looped.ex.resize(4 * room)
    for i in range(room):
        looped.send(i, **write)
    with pytest.raises(rnic.PostError, match="full"):
        looped.send(room, **write)
    looped.first()
    looped.send(room, **write)  # within the batch
    looped.ex.end_poll()
    assert looped.taken(room) == list(range(1, room + 1))


@pytest.mark.parametrize(
    ("init", "number", "words"),
    [
        ({"cqe": 0}, errno.EINVAL, "0 entries"),
        ({"cqe": (1 << 32) - 1}, errno.EINVAL, "cqe is 4294967295; allowed are 1 to"),
        ({"comp_vector": 1}, errno.EINVAL, "comp_vector is 1; the device has 1"),
        ({"wc_flags": CreateCQWCFlags.WITH_CVLAN}, errno.EOPNOTSUPP, "no fields 0x100"),
        ({"flags": CreateCQAttrFlags(4)}, errno.EOPNOTSUPP, "flags: 0x4"),
        ({"comp_mask": rnic.CQInitAttrMask(4)}, errno.EINVAL, "comp_mask: 0x4"),
        (
            {"comp_mask": rnic.CQInitAttrMask(0), "flags": CreateCQAttrFlags.IGNORE_OVERRUN},
            errno.EINVAL,
            "comp_mask lacks FLAGS",
        ),
        ({"comp_mask": rnic.CQInitAttrMask.PD}, errno.EINVAL, "parent_domain and its bit"),
    ],
)
def test_what_a_queue_cannot_be_is_refused(init: dict[str, Any], number: int, words: str) -> None:
    with rnic.open_device("roce_lo") as ctx:
        with pytest.raises(VerbsError, match=words) as caught:
            ctx.create_cq_ex(CQInitAttrEx(**{"cqe": 4, **init}))
        assert caught.value.errno == number


def test_there_is_one_completion_vector() -> None:
    with rnic.open_device("roce_lo") as ctx:
        assert ctx.num_comp_vectors == 1
        with pytest.raises(VerbsError, match="comp_vector is 1") as caught:
            ctx.create_cq(4, comp_vector=1)
        assert caught.value.errno == errno.EINVAL
        with pytest.raises(VerbsError, match="comp_vector is -1"):
            ctx.create_cq(4, comp_vector=-1)


def test_the_clock_of_the_device() -> None:
    with rnic.open_device("roce_lo") as ctx:
        attr = ctx.query_device_ex()
        assert attr.orig_attr == ctx.query_device()
        assert attr.completion_timestamp_mask == (1 << 64) - 1
        began = time.monotonic()
        first = ctx.query_rt_values_ex().raw_clock
        time.sleep(0.02)
        second, ended = ctx.query_rt_values_ex().raw_clock, time.monotonic()
        assert first is not None
        assert second is not None
        seconds = (second - first) / (attr.hca_core_clock * 1000)
        assert 0.02 <= seconds <= ended - began + 1e-6
        with pytest.raises(VerbsError, match="comp_mask is 0x2"):
            ctx.query_rt_values_ex(rnic.ValuesMask(2))


def test_a_single_threaded_queue_refuses_a_second_thread() -> None:
    with Looped(flags=CreateCQAttrFlags.SINGLE_THREADED) as end:
        end.connect()
        stop, refused = threading.Event(), 0
        failures: list[BaseException] = []

        def poll() -> None:
            nonlocal refused
            while not stop.is_set():
                try:
                    end.ex.poll()
                except VerbsError as error:
                    if error.errno != errno.EBUSY or "SINGLE_THREADED" not in str(error):
                        failures.append(error)
                    refused += 1

        threads = [threading.Thread(target=poll) for _ in range(3)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        while not refused and time.monotonic() < deadline:
            time.sleep(0.01)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures
        assert refused
        end.receive(1)
        end.send(2)
        assert sorted(end.taken(2)) == [1, 2]


# ---------------------------------------------------------------- moderation


def waits(pair: Pair, n: int) -> float:
    """Sends n messages to a that has armed its queue; the seconds until the event."""
    source, target = pair.b.memory(64), pair.a.memory(64)
    pair.a.qp.post_recv([RecvWR(i, [SGE(target)]) for i in range(n)])
    pair.a.cq.req_notify()
    began = time.monotonic()
    pair.b.qp.post_send([SendWR(i, WROpcode.SEND, SendFlags.SIGNALED, [SGE(source)]) for i in range(n)])
    assert pair.a.channel.get_cq_event(60) is pair.a.cq
    pair.a.cq.ack_events()
    return time.monotonic() - began


def test_events_are_moderated_and_never_lost() -> None:
    with Pair() as pair:
        pair.a.cq.modify(ModifyCQAttr(ModerateCQ(cq_count=1000, cq_period=50_000)))
        assert waits(pair, 3) >= 0.049  # nobody polls: the engine comes back for it
        pair.a.wait_ok(3)
        pair.a.cq.modify(ModifyCQAttr(ModerateCQ(cq_count=3, cq_period=65_535)))
        until(lambda: waits(pair, 3) < 0.06, "the third completion makes the event, before the time is over")
        pair.a.cq.modify(ModifyCQAttr(ModerateCQ()))
        assert waits(pair, 1) < 20


def test_a_moderated_event_comes_while_the_program_polls_another_queue() -> None:
    with Pair() as pair, pair.a.ctx.create_cq(4) as idle:
        a, source, target = pair.a, pair.b.memory(64), pair.a.memory(64)
        a.cq.modify(ModifyCQAttr(ModerateCQ(cq_count=0, cq_period=20_000)))
        for i in range(5):
            a.qp.post_recv(RecvWR(i, [SGE(target)]))
            a.cq.req_notify()
            pair.b.qp.post_send(SendWR(i, WROpcode.SEND, SendFlags.SIGNALED, [SGE(source)]))
            end = time.monotonic() + 60
            while not select.select([a.channel], [], [], 0)[0]:
                assert time.monotonic() < end
                assert idle.poll(4) == []
            a.channel.get_cq_event(0)
            a.cq.ack_events()
            a.wait_ok()


def test_fewer_events_than_messages() -> None:
    with Pair() as pair:
        a, b = pair.a, pair.b
        a.cq.modify(ModifyCQAttr(ModerateCQ(cq_count=8, cq_period=20_000)))
        source, target = b.memory(64), a.memory(64)
        a.qp.post_recv([RecvWR(i, [SGE(target)]) for i in range(64)])
        a.cq.req_notify()
        found, events, began = 0, 0, time.monotonic()
        for i in range(64):
            b.qp.post_send(SendWR(i, WROpcode.SEND, SendFlags.SIGNALED, [SGE(source)]))
        while found < 64:
            a.channel.get_cq_event(60)
            a.cq.ack_events()
            events += 1
            a.cq.req_notify()
            found += len(a.cq.poll(64))
        late = (time.monotonic() - began) / 0.02  # those that came because the time was over
        assert events <= 64 // 8 + 2 + late


def test_moderation_that_cannot_be_is_refused() -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.create_cq(4) as cq, ctx.create_comp_channel() as channel:
        with pytest.raises(VerbsError, match="without a completion channel") as caught:
            cq.modify(ModifyCQAttr(ModerateCQ(1, 1)))
        assert caught.value.errno == errno.EINVAL
        cq.modify(ModifyCQAttr())  # nothing is set
        with ctx.create_cq(4, channel) as other:
            with pytest.raises(VerbsError, match="attr_mask is 0x2"):
                other.modify(ModifyCQAttr(attr_mask=rnic.CQAttrMask(2)))
            caps = ctx.query_device_ex().cq_mod_caps
            other.modify(ModifyCQAttr(ModerateCQ(caps.max_cq_count, caps.max_cq_period)))
            with pytest.raises(VerbsError, match=f"cq_count is .* allowed are 0 to {caps.max_cq_count}"):
                other.modify(ModifyCQAttr(ModerateCQ(caps.max_cq_count + 1, 0)))


# ---------------------------------------------------------------- overrun and resizing


@pytest.mark.roce
def test_an_overrun_is_told_and_takes_every_queue_pair_down() -> None:
    with Looped(cqe=2) as end:
        other = [end.queue_pair() for _ in range(2)]
        end.connect()
        connect(*other)
        write = {"opcode": WROpcode.RDMA_WRITE, "remote_addr": end.mr.addr, "rkey": end.mr.rkey}
        for i in range(3):
            end.send(i, **write)
        events = {}
        for _ in range(2):
            event = end.ctx.get_async_event(60)
            events[event.event_type] = event.element
            event.ack()
        assert events == {EventType.CQ_ERR: end.ex, EventType.QP_FATAL: end.near}
        assert end.near.state is QPState.ERR
        assert end.taken(2) == [0, 1]
        for poll in (end.ex.poll, end.ex.start_poll):
            with pytest.raises(VerbsError, match="overran") as caught:
                poll()
            assert caught.value.errno == errno.EOVERFLOW
        wr = SendWR(9, WROpcode.RDMA_WRITE, 0, [SGE(end.mr, 0, 8)], end.mr.addr, end.mr.rkey)
        other[0].post_send(wr)  # has no part in it, but nowhere to complete to
        event = end.ctx.get_async_event(60)
        assert (event.event_type, event.element) == (EventType.QP_FATAL, other[0])
        event.ack()
        assert other[1].state is QPState.RTS


def test_with_ignore_overrun_the_newest_completions_stay() -> None:
    with Looped(cqe=4, flags=CreateCQAttrFlags.IGNORE_OVERRUN) as end:
        end.connect()
        write = {"opcode": WROpcode.RDMA_WRITE, "remote_addr": end.mr.addr, "rkey": end.mr.rkey}
        with end.ctx.create_comp_cntr() as sent:
            count = QPAttachCompCntrAttr(Op.RDMA_WRITE)
            end.near.modify(rnic.QPAttr(qp_state=QPState.RESET))
            end.far.modify(rnic.QPAttr(qp_state=QPState.RESET))
            end.near.attach_comp_cntr(sent, count)
            end.connect()
            for i in range(300):  # more than the send queue has places: those of lost completions are free
                deadline = time.monotonic() + 60
                while sent.read() < i - 50:
                    assert time.monotonic() < deadline
                    time.sleep(0.001)
                end.send(i, **write)
            while sent.read() < 300:
                time.sleep(0.001)
            assert [wc.wr_id for wc in end.ex.poll(16)] == [296, 297, 298, 299]
            assert end.near.state is QPState.RTS
            end.near.close()


@pytest.mark.parametrize("ends", ["reset", "close"])
def test_a_queue_pair_that_ends_takes_its_completions_out(ends: str) -> None:
    with Looped() as end:
        end.connect()
        for i in range(3):
            end.send(i, opcode=WROpcode.RDMA_WRITE, remote_addr=end.mr.addr, rkey=end.mr.rkey)
        assert end.taken(1) == [0]
        if ends == "close":
            end.near.close()
        else:
            end.near.modify(rnic.QPAttr(qp_state=QPState.RESET))
        assert end.ex.poll(16) == []


def test_a_queue_is_resized_under_load_and_nothing_is_lost_or_doubled(soak: bool) -> None:
    total = 50_000 if soak else 3_000
    with Pair(cqe=1024, cap=rnic.QPCap(max_send_wr=64)) as pair:
        a, target = pair.a, pair.b.memory(64)
        source = a.memory(64)
        stop, resized = threading.Event(), 0

        # At most 64 are under way: the queue never overruns.
        def resize() -> None:
            nonlocal resized
            size = 0
            while not stop.is_set():
                size = (size * 7 + 3) % 300
                a.cq.resize(64 + size)
                resized += 1

        thread = threading.Thread(target=resize)
        thread.start()
        try:
            found: list[int] = []
            posted = 0
            deadline = time.monotonic() + 60
            while len(found) < total or resized <= 10:
                assert time.monotonic() < deadline
                if posted < total and posted - len(found) < 64:
                    wr = SendWR(posted, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [SGE(source)])
                    wr.remote_addr, wr.rkey = target.addr, target.rkey
                    a.qp.post_send(wr)
                    posted += 1
                found += [wc.wr_id for wc in a.cq.poll(16) if wc.ok]
        finally:
            stop.set()
            thread.join()
        assert found == list(range(total))


def test_a_queue_cannot_become_smaller_than_what_lies_in_it() -> None:
    with Looped(cqe=64) as end:
        end.connect()
        for i in range(9):
            end.send(i, opcode=WROpcode.RDMA_WRITE, remote_addr=end.mr.addr, rkey=end.mr.rkey)
        with end.ctx.create_comp_cntr():
            deadline = time.monotonic() + 60
            while end.near.statistics().sq_depth:
                assert time.monotonic() < deadline
        with pytest.raises(VerbsError, match="holds 9 completions, more than 8: poll them first") as caught:
            end.ex.resize(8)
        assert caught.value.errno == errno.EINVAL
        assert end.ex.cqe == 64
        end.ex.resize(9)
        assert end.taken(9) == list(range(9))
        end.ex.resize(1)
        assert end.ex.cqe == 1


# ---------------------------------------------------------------- counters


def counters_of(pair: Pair, kind: CompCntrType = CompCntrType.WRS) -> tuple[dict[Op, Any], dict[Op, Any]]:
    found: tuple[dict[Op, Any], dict[Op, Any]] = ({}, {})
    for end, counters in zip((pair.a, pair.b), found, strict=True):
        for op in Op:
            counters[op] = end.ctx.create_comp_cntr(CompCntrInitAttr(type=kind))
            end.qp.attach_comp_cntr(counters[op], QPAttachCompCntrAttr(op))
    return found


def reset(pair: Pair) -> None:
    for end in (pair.a, pair.b):
        end.qp.modify(rnic.QPAttr(qp_state=QPState.RESET))


def close_all(pair: Pair, *groups: dict[Op, Any]) -> None:
    pair.a.qp.close()
    pair.b.qp.close()
    for group in groups:
        for counter in group.values():
            counter.close()


@pytest.mark.parametrize("kind", list(CompCntrType))
def test_operations_are_counted_at_both_ends(kind: CompCntrType) -> None:
    with Pair() as pair:
        reset(pair)
        ours, theirs = counters_of(pair, kind)
        connect(pair.a.qp, pair.b.qp)
        mine, other = pair.a.memory(8192), pair.b.memory(8192)
        pair.b.qp.post_recv([RecvWR(i, [SGE(other, 0, 100)]) for i in range(3)])
        jobs = [
            (WROpcode.SEND, SendFlags(0), 10),
            (WROpcode.SEND, SendFlags.SIGNALED, 20),
            (WROpcode.RDMA_WRITE_WITH_IMM, SendFlags(0), 5000),
            (WROpcode.RDMA_WRITE, SendFlags(0), 30),
            (WROpcode.RDMA_READ, SendFlags.SIGNALED, 6000),
        ]
        for opcode, flags, n in jobs:
            pair.a.qp.post_send(SendWR(1, opcode, flags, [SGE(mine, 0, n)], other.addr, other.rkey))
        pair.a.wait_ok(2)
        pair.b.wait_ok(3)
        counted = kind is CompCntrType.BYTES
        assert {op: counter.read() for op, counter in ours.items()} == {
            Op.SEND: 30 if counted else 2,
            Op.RECV: 0,
            Op.RDMA_READ: 6000 if counted else 1,
            Op.REMOTE_RDMA_READ: 0,
            Op.RDMA_WRITE: 5030 if counted else 2,
            Op.REMOTE_RDMA_WRITE: 0,
        }
        assert {op: counter.read() for op, counter in theirs.items()} == {
            Op.SEND: 0,
            Op.RECV: 5030 if counted else 3,
            Op.RDMA_READ: 0,
            Op.REMOTE_RDMA_READ: 6000 if counted else 1,
            Op.RDMA_WRITE: 0,
            Op.REMOTE_RDMA_WRITE: 5030 if counted else 2,
        }
        assert not any(c.read_err() for c in (*ours.values(), *theirs.values()))
        close_all(pair, ours, theirs)


@pytest.mark.roce
def test_failures_are_counted_apart() -> None:
    with Pair() as pair:
        reset(pair)
        ours, theirs = counters_of(pair)
        connect(pair.a.qp, pair.b.qp)
        mine, other = pair.a.memory(64), pair.b.memory(64)
        bad = SendWR(1, WROpcode.RDMA_READ, 0, [SGE(mine)], other.addr, other.rkey ^ 1)
        pair.a.qp.post_send([bad, SendWR(2, WROpcode.SEND)])
        assert [wc.status for wc in pair.a.wait(2)] == [WCStatus.REM_ACCESS_ERR, WCStatus.WR_FLUSH_ERR]
        assert (ours[Op.RDMA_READ].read_err(), ours[Op.SEND].read_err()) == (1, 1)
        assert theirs[Op.REMOTE_RDMA_READ].read_err() == 1
        assert not any(c.read() for c in (*ours.values(), *theirs.values()))
        close_all(pair, ours, theirs)


def test_a_counter_adds_up_many_queue_pairs_and_what_it_is_told() -> None:
    with End() as end, end.ctx.create_comp_cntr() as sent:
        mr = end.memory(64)
        init = QPInitAttr(end.cq, end.cq, sq_sig_all=True)
        pairs = [(end.pd.create_qp(init), end.pd.create_qp(init)) for _ in range(3)]
        for near, far in pairs:
            near.attach_comp_cntr(sent, QPAttachCompCntrAttr(Op.RDMA_WRITE | Op.SEND))
            connect(near, far)
        sent.set(100)
        sent.inc(11)
        for near, _ in pairs:
            near.post_send(SendWR(1, WROpcode.RDMA_WRITE, 0, [SGE(mr)], mr.addr, mr.rkey))
        end.wait_ok(3)
        assert sent.read() == 114
        caps = end.ctx.query_comp_cntr_caps()
        sent.set(caps.max_value)
        pairs[0][0].post_send(SendWR(1, WROpcode.RDMA_WRITE, 0, [SGE(mr)], mr.addr, mr.rkey))
        end.wait_ok(1)
        assert sent.read() == 0
        sent.set_err(41)
        sent.inc_err()
        assert sent.read_err() == 42
        with pytest.raises(VerbsError, match="CompCntr is in use by QP") as caught:
            sent.close()
        assert caught.value.errno == errno.EBUSY
        for qp in (qp for both in pairs for qp in both):
            qp.close()


@pytest.mark.roce
def test_counters_that_cannot_be_attached() -> None:
    with End() as end, End() as other, end.ctx.create_comp_cntr() as counter:
        with other.ctx.create_comp_cntr() as foreign, pytest.raises(VerbsError, match="another device"):
            end.qp.attach_comp_cntr(foreign, QPAttachCompCntrAttr(Op.SEND))
        for mask, number, words in (
            (Op(0), errno.EINVAL, "nothing to count"),
            (Op(64), errno.EOPNOTSUPP, "no operations 0x40"),
        ):
            with pytest.raises(VerbsError, match=words) as caught:
                end.qp.attach_comp_cntr(counter, QPAttachCompCntrAttr(mask))
            assert caught.value.errno == number
        end.qp.attach_comp_cntr(counter, QPAttachCompCntrAttr(Op.SEND | Op.RECV))
        with pytest.raises(VerbsError, match="operations 0x1 have a counter already") as caught:
            end.qp.attach_comp_cntr(counter, QPAttachCompCntrAttr(Op.SEND | Op.RDMA_READ))
        assert caught.value.errno == errno.EBUSY
        connect(end.qp, other.qp)
        with pytest.raises(VerbsError, match="in RTS; counters are attached in RESET or INIT") as caught:
            end.qp.attach_comp_cntr(counter, QPAttachCompCntrAttr(Op.RDMA_READ))
        assert caught.value.errno == errno.EINVAL
        for kind, lacks in ((QPType.UD, Op.RDMA_WRITE), (QPType.UC, Op.REMOTE_RDMA_READ)):
            with end.pd.create_qp(QPInitAttr(end.cq, end.cq, kind)) as qp:
                with pytest.raises(VerbsError, match="of this type has no operations") as caught:
                    qp.attach_comp_cntr(counter, QPAttachCompCntrAttr(lacks))
                assert caught.value.errno == errno.EOPNOTSUPP
                qp.attach_comp_cntr(counter, QPAttachCompCntrAttr(Op.SEND))
        with pytest.raises(VerbsError, match="both must be 0"):
            end.ctx.create_comp_cntr(CompCntrInitAttr(flags=1))
        end.qp.close()


@pytest.mark.roce
def test_loss_changes_no_count() -> None:
    faults = rnic.Faults(seed=5, loss=0.05, duplicate=0.05, reorder=0.05)
    with Pair() as pair:
        reset(pair)
        ours, theirs = counters_of(pair)
        connect(pair.a.qp, pair.b.qp, Options())
        for end in (pair.a, pair.b):
            end.ctx.set_faults(faults)
        mine, other = pair.a.memory(4096, ALL_ACCESS), pair.b.memory(4096, ALL_ACCESS)
        for _ in range(10):
            for opcode in (WROpcode.RDMA_WRITE, WROpcode.RDMA_READ):
                wr = SendWR(1, opcode, SendFlags.SIGNALED, [SGE(mine)], other.addr, other.rkey)
                pair.a.qp.post_send(wr)
        pair.a.wait_ok(20)
        assert (ours[Op.RDMA_WRITE].read(), ours[Op.RDMA_READ].read()) == (10, 10)
        assert (theirs[Op.REMOTE_RDMA_WRITE].read(), theirs[Op.REMOTE_RDMA_READ].read()) == (10, 10)
        for end in (pair.a, pair.b):
            end.ctx.set_faults(None)
        close_all(pair, ours, theirs)
