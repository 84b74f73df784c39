# SPDX-License-Identifier: Apache-2.0
"""How connections of iWARP end: in order, by errors, the injector, a process, a port or a device."""

from __future__ import annotations

import errno
import select
import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from rnic import (
    SGE,
    EventType,
    Faults,
    QPAttr,
    QPState,
    RecvWR,
    SendFlags,
    SendWR,
    StreamEnd,
    StreamEvent,
    WCStatus,
    WROpcode,
)
from rnic.testing import End, Options, Pair, connect
from transport.conftest import Start
from transport.joining import join
from transport.scene import perform
from waiting import until

pytestmark = pytest.mark.own_way

DEVICE = "iwarp_lo"
N, COUNT = 100_000, 8  # bytes of a message, and messages
OK, FLUSHED, LOST = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR, WCStatus.RETRY_EXC_ERR


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair(DEVICE) as made:
        yield made


def end_of(end: End) -> StreamEvent:
    """The report of the end of its connection."""
    assert select.select([end.ctx.stream_fileno()], [], [], 60)[0]
    event = end.ctx.next_stream_event()
    assert event is not None
    assert event.qp_num == end.qp.qp_num
    return event


def ends(pair: Pair) -> tuple[StreamEnd, StreamEnd]:
    return end_of(pair.a).end, end_of(pair.b).end


def talk(pair: Pair) -> tuple[list[WCStatus], list[WCStatus]]:
    """SENDs from a to b, and a READ behind them: what became of each."""
    a, b = pair.a, pair.b
    here, there = a.memory(N), b.memory(N)
    here.buf[:] = bytes(range(200)) * (N // 200)
    b.qp.post_recv([RecvWR(i, [SGE(there)]) for i in range(COUNT)])
    a.qp.post_send([SendWR(i, WROpcode.SEND, SendFlags.SIGNALED, [SGE(here)]) for i in range(COUNT)])
    read = SendWR(COUNT, WROpcode.RDMA_READ, SendFlags.SIGNALED, [SGE(here)], there.addr, there.rkey)
    a.qp.post_send(read)
    done_a, done_b = a.wait(COUNT + 1), b.wait(COUNT)
    assert [wc.wr_id for wc in done_a] == list(range(COUNT + 1))
    assert [wc.wr_id for wc in done_b] == list(range(COUNT))
    return [wc.status for wc in done_a], [wc.status for wc in done_b]


def in_order(statuses: list[WCStatus], *kinds: WCStatus) -> None:
    """Some of the first kind, then one of each between, then all others of the last."""
    assert sorted(statuses, key=kinds.index) == statuses
    count = Counter(statuses)
    assert all(count[kind] == 1 for kind in kinds[1:-1])


# ---------------------------------------------------------------- in order


def test_an_end_that_is_destroyed_lets_what_it_has_sent_arrive(pair: Pair) -> None:
    """Also with bytes of the peer's that nobody has read: they must not make it a reset."""
    a, b = pair.a, pair.b
    here, there = a.memory(N), b.memory(N)
    b.qp.post_recv(RecvWR(1, [SGE(there)]))
    remote = here.addr, here.rkey
    b.qp.post_send([SendWR(9, WROpcode.RDMA_WRITE, 0, [SGE(there)], *remote) for _ in range(16)])
    a.qp.post_send(SendWR(1, WROpcode.SEND, SendFlags.SIGNALED, [SGE(here)]))
    a.wait_ok()
    a.qp.close()
    assert b.wait()[0].status is OK
    assert end_of(b).end is StreamEnd.FIN
    assert b.qp.state is QPState.ERR


def test_both_close_in_order(pair: Pair) -> None:
    a, b = pair.a, pair.b
    here, there = a.memory(N), b.memory(N)
    b.qp.post_recv([RecvWR(i, [SGE(there)]) for i in range(3)])
    a.qp.post_send([SendWR(i, WROpcode.SEND, SendFlags.SIGNALED, [SGE(here)]) for i in range(2)])
    a.qp.modify(QPAttr(qp_state=QPState.SQD))
    assert [wc.status for wc in b.wait(3)] == [OK, OK, FLUSHED]
    assert [wc.status for wc in a.wait(2)] == [OK, OK]
    assert ends(pair) == (StreamEnd.CLOSED, StreamEnd.FIN)
    assert (a.qp.state, b.qp.state) == (QPState.ERR, QPState.ERR)
    assert pair.a.ctx.next_stream_event() is None, "once"


def test_an_event_of_a_queue_pair_that_has_gone_is_forgotten(pair: Pair) -> None:
    a, b = pair.a, pair.b
    a.qp.modify(QPAttr(qp_state=QPState.ERR))
    for end in (a, b):
        assert select.select([end.ctx.stream_fileno()], [], [], 60)[0]
    a.qp.close()
    b.qp.modify(QPAttr(qp_state=QPState.RESET))
    for end in (a, b):
        assert not select.select([end.ctx.stream_fileno()], [], [], 0)[0]
        assert end.ctx.next_stream_event() is None


# ---------------------------------------------------------------- by an error


def test_a_read_of_memory_that_is_not_granted_ends_it(pair: Pair) -> None:
    a, b = pair.a, pair.b
    here, there = a.memory(64), b.memory(64)
    wc = perform(a, WROpcode.RDMA_READ, [SGE(here)], (there.addr, there.rkey ^ 1))
    assert wc.status is WCStatus.REM_ACCESS_ERR
    at_a, at_b = end_of(a), end_of(b)
    assert (at_a.end, at_b.end) == (StreamEnd.TERMINATED, StreamEnd.REFUSED)
    assert (at_a.layer, at_a.type, at_a.code) == (at_b.layer, at_b.type, at_b.code)


def test_a_write_of_memory_that_is_not_granted_ends_it_afterwards(pair: Pair) -> None:
    """The WRITE itself is complete when the socket has taken it."""
    a, b = pair.a, pair.b
    here, there = a.memory(64), b.memory(64)
    there.buf[:] = bytes(64)
    perform(a, WROpcode.RDMA_WRITE, [SGE(here)], (there.addr + 1, there.rkey))
    assert ends(pair) == (StreamEnd.TERMINATED, StreamEnd.REFUSED)
    assert not any(there.buf)
    assert b.ctx.get_async_event(60).event_type is EventType.QP_ACCESS_ERR
    a.qp.post_send(SendWR(7, WROpcode.SEND, SendFlags.SIGNALED, []))
    assert [wc.status for wc in a.wait()] == [FLUSHED]


def test_a_send_that_meets_no_receive_ends_it(pair: Pair) -> None:
    pair.a.qp.post_send(SendWR(1, WROpcode.SEND, SendFlags.SIGNALED, []))
    assert pair.a.wait()[0].status in (OK, WCStatus.REM_OP_ERR, WCStatus.RNR_RETRY_EXC_ERR)
    assert ends(pair) == (StreamEnd.TERMINATED, StreamEnd.REFUSED)


def test_a_completion_says_what_its_status_means_on_iwarp(pair: Pair) -> None:
    pair.a.qp.confirm_stream()
    pair.a.qp.post_send([SendWR(i, WROpcode.SEND, SendFlags.SIGNALED, []) for i in range(2)])
    first, second = pair.a.wait(2)
    assert (first.status, second.status) == (WCStatus.RNR_RETRY_EXC_ERR, FLUSHED)
    assert "iWARP does not send it again" in first.explain()
    assert "rnr_retry" not in first.explain()
    assert "Context.next_stream_event()" in second.explain()


def test_a_completion_says_that_the_connection_was_lost(pair: Pair) -> None:
    pair.a.ctx.set_faults(Faults(reset_after=1))
    pair.a.qp.post_send(SendWR(1, WROpcode.SEND, SendFlags.SIGNALED, []))
    (wc,) = pair.a.wait()
    assert wc.status is LOST
    assert "the TCP connection was lost" in wc.explain()
    assert "Context.next_stream_event()" in wc.explain()
    assert end_of(pair.a).explain() == "the connection was lost: Connection reset by peer"
    assert not [word for word in ("dest_qp_num", "PSN", "4791", "path_mtu") if word in wc.explain()]


BY_PEER = "the peer has ended the connection with a Terminate message: "
BY_US = "this end has refused what the peer has sent, and ended the connection: "


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (StreamEvent(1, StreamEnd.FIN, 0, 0, 0, 0), "the peer has closed the connection"),
        (StreamEvent(1, StreamEnd.CLOSED, 0, 0, 0, 0), "both ends have closed the connection"),
        (StreamEvent(1, StreamEnd.LOST, 0, 0, 0, 0), "the connection was lost"),
        (
            StreamEvent(1, StreamEnd.LOST, 0, 0, 0, errno.ETIMEDOUT),
            "the connection was lost: Connection timed out",
        ),
        (
            StreamEvent(1, StreamEnd.TERMINATED, 1, 2, 2, 0),
            f"{BY_PEER}DDP: untagged buffer error: no receive is posted",
        ),
        (
            StreamEvent(1, StreamEnd.REFUSED, 0, 1, 2, 0),
            f"{BY_US}RDMAP: remote protection error: access rights violation",
        ),
        (StreamEvent(1, StreamEnd.TERMINATED, 9, 8, 7, 0), f"{BY_PEER}layer 9: type 8: code 7"),
        (
            StreamEvent(1, StreamEnd.READY, 0, 0, 0, 0),
            "the connection has not ended: the peer's first message has come",
        ),
    ],
)
def test_an_event_says_in_words_how_the_connection_has_ended(event: StreamEvent, words: str) -> None:
    assert event.explain() == words


def test_every_end_has_words() -> None:
    assert len({StreamEvent(1, end, 0, 0, 0, 0).explain() for end in StreamEnd}) == len(StreamEnd)


def test_both_ends_say_in_words_what_was_wrong(pair: Pair) -> None:
    pair.a.qp.post_send(SendWR(1, WROpcode.SEND, SendFlags.SIGNALED, []))
    assert end_of(pair.a).explain() == f"{BY_PEER}DDP: untagged buffer error: no receive is posted"
    assert end_of(pair.b).explain() == f"{BY_US}DDP: untagged buffer error: no receive is posted"


# ---------------------------------------------------------------- by the injector


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 64, 3000])
@pytest.mark.parametrize("options", [Options(), Options(markers=True), Options(crc=False)], ids=str)
def test_reads_and_writes_of_any_size_change_nothing(side: str, chunk: int, options: Options) -> None:
    with Pair(DEVICE, options=options) as pair:
        end = getattr(pair, side)
        end.ctx.set_faults(Faults(chunk=chunk, seed=chunk))
        n = 300 * chunk if chunk < 64 else 20_000
        here, there = pair.a.memory(2 * n), pair.b.memory(n)
        here.buf[:n] = bytes(i * i % 251 for i in range(n))
        pair.b.qp.post_recv(RecvWR(1, [SGE(there)]))
        pair.a.qp.post_send(SendWR(1, WROpcode.SEND, SendFlags.SIGNALED, [SGE(here, 0, n)]))
        pair.a.wait_ok()
        pair.b.wait_ok()
        assert perform(pair.a, WROpcode.RDMA_READ, [SGE(here, n, n)], there).ok
        assert here.buf[:n] == here.buf[n:]


@pytest.mark.parametrize("after", [1, 19, 20, 21, 65_000, 250_001, N * COUNT])
def test_a_reset_ends_both(pair: Pair, after: int) -> None:
    pair.a.ctx.set_faults(Faults(reset_after=after))
    done_a, done_b = talk(pair)
    in_order(done_a, OK, LOST, FLUSHED)
    in_order(done_b, OK, FLUSHED)
    for end in (pair.a, pair.b):
        event = end_of(end)
        assert (event.end, event.error) == (StreamEnd.LOST, errno.ECONNRESET)
        assert end.qp.state is QPState.ERR
    assert pair.a.ctx.counters().fault_reset == 1


def test_resets_by_chance_end_both(pair: Pair) -> None:
    pair.a.ctx.set_faults(Faults(reset=0.2, chunk=50_000, seed=3))
    done_a, _ = talk(pair)
    in_order(done_a, OK, LOST, FLUSHED)
    assert ends(pair) == (StreamEnd.LOST, StreamEnd.LOST)


def test_what_stands_still_goes_on_when_the_injector_lets_it(pair: Pair) -> None:
    pair.a.ctx.set_faults(Faults(stall_after=150_000))
    here, there = pair.a.memory(N), pair.b.memory(N)
    pair.b.qp.post_recv([RecvWR(i, [SGE(there)]) for i in range(3)])
    pair.a.qp.post_send([SendWR(i, WROpcode.SEND, SendFlags.SIGNALED, [SGE(here)]) for i in range(3)])
    until(lambda: pair.a.ctx.counters().fault_stalled, "it stands still")
    assert len(pair.b.wait_ok(1)) == 1
    assert pair.b.cq.poll(1) == []
    pair.a.ctx.set_faults(None)
    pair.a.wait_ok(3)
    pair.b.wait_ok(2)


def test_a_queue_pair_whose_peer_has_vanished_can_be_closed(pair: Pair) -> None:
    pair.a.ctx.set_faults(Faults(stall_after=100))
    pair.a.qp.post_send(SendWR(1, WROpcode.SEND, SendFlags.SIGNALED, [SGE(pair.a.memory(N))]))
    until(lambda: pair.a.ctx.counters().fault_stalled, "it stands still")
    pair.a.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert [wc.status for wc in pair.a.wait(1)] == [FLUSHED]
    pair.a.qp.close()


def test_delays_delay(pair: Pair) -> None:
    pair.a.ctx.set_faults(Faults(delay=1.0, delay_s=0.02))
    began = time.monotonic()
    done_a, done_b = talk(pair)
    assert set(done_a + done_b) == {OK}
    assert time.monotonic() - began >= 0.02 * (pair.a.ctx.counters().fault_delayed > 0)
    assert pair.a.ctx.counters().fault_delayed


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("markers", [False, True])
def test_a_wrong_crc_ends_both(seed: int, markers: bool) -> None:
    with Pair(DEVICE, options=Options(markers=markers)) as pair:
        pair.a.ctx.set_faults(Faults(flip=0.3, seed=seed))
        done_a, done_b = talk(pair)
        assert FLUSHED in done_b
        assert set(done_a) - {OK, FLUSHED} <= {WCStatus.REM_INV_REQ_ERR, WCStatus.REM_OP_ERR, LOST}
        assert ends(pair) == (StreamEnd.TERMINATED, StreamEnd.REFUSED)


@pytest.mark.parametrize("seed", range(40))
def test_a_wrong_header_with_the_right_crc_ends_both(seed: int) -> None:
    """But for bits that mean nothing to the receiver."""
    with Pair(DEVICE) as pair:
        guard = pair.b.memory(4096)
        guard.buf[:] = b"\xa5" * 4096
        pair.a.ctx.set_faults(Faults(flip_header=0.2, seed=seed))
        done_a, done_b = talk(pair)
        if set(done_a + done_b) != {OK}:
            assert {pair.a.qp.state, pair.b.qp.state} == {QPState.ERR}
            at_a, at_b = ends(pair)
            assert at_a in (StreamEnd.TERMINATED, StreamEnd.REFUSED, StreamEnd.LOST)
            assert at_b in (StreamEnd.TERMINATED, StreamEnd.REFUSED, StreamEnd.LOST)
        assert guard.buf == b"\xa5" * 4096


# ---------------------------------------------------------------- with a process, a port or a device


def test_a_process_that_is_killed_ends_its_connections(start: Start) -> None:
    a, b = start(), start()
    _, remote = join(a, b, 1 << 20, device=DEVICE)
    a.begin("write_on", "main", remote)
    b.kill()
    assert a.result() in ("RETRY_EXC_ERR", "WR_FLUSH_ERR")
    assert a.call("state", "main") == "ERR"


def test_a_process_that_is_stopped_holds_up_and_goes_on(start: Start) -> None:
    a, b = start(), start()
    _, remote = join(a, b, 1 << 20, device=DEVICE)
    with b.stopped():
        a.begin("move", "main", WROpcode.RDMA_READ, remote, 1 << 16)
    assert a.result()[1] == "SUCCESS"
    a.signal(signal.SIGCONT)


def test_a_port_that_is_down_lets_nothing_through(pair: Pair) -> None:
    a, b = pair.a, pair.b
    a.ctx.raise_event(EventType.PORT_ERR)
    assert a.ctx.get_async_event(60).event_type is EventType.PORT_ERR
    b.qp.post_recv(RecvWR(1))
    a.qp.post_send(SendWR(1, WROpcode.SEND, SendFlags.SIGNALED, []))
    assert a.cq.poll(1) == b.cq.poll(1) == []
    a.ctx.raise_event(EventType.PORT_ACTIVE)
    assert a.ctx.get_async_event(60).event_type is EventType.PORT_ACTIVE
    a.wait_ok()
    b.wait_ok()


def test_a_device_that_fails_ends_its_connections(pair: Pair) -> None:
    a, b = pair.a, pair.b
    a.qp.post_recv([RecvWR(i) for i in range(3)])
    a.ctx.raise_event(EventType.DEVICE_FATAL)
    assert [wc.status for wc in a.wait(3)] == [FLUSHED] * 3
    assert end_of(b).end in (StreamEnd.FIN, StreamEnd.LOST)
    assert end_of(a).qp_num == a.qp.qp_num


def test_a_context_that_is_closed_with_all_that_is_in_it_ends_its_connections() -> None:
    with End(DEVICE) as b:
        a = End(DEVICE)
        connect(a.qp, b.qp)
        a.ctx.close(force=True)
        assert end_of(b).end is StreamEnd.FIN
