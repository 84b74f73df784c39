# SPDX-License-Identifier: Apache-2.0
"""What a queue pair that ends leaves to a peer on this host that is late: nothing to read or to write."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

import rnic
from rnic import SGE, AccessFlags, QPAttr, QPState, SendFlags, SendWR, WCStatus, WROpcode
from rnic.testing import End, Options, complete, prepare
from transport.node import Node, Setting
from transport.scene import HASTY, SIZE, perform
from transport.stranger import Stranger, is_done, slot_of
from waiting import until

pytestmark = pytest.mark.own_way

WAIT = 1.0  # seconds that ending has patience with a copy
HALF = SIZE // 2  # of the receiver's memory: one message
BRIEF = Options(timeout=10, retry_cnt=1)  # 4 ms, twice
LASTING = Options(timeout=20)  # 4 s, eight times


@pytest.fixture
def end() -> Iterator[End]:
    with End(local=True) as made:
        yield made


@pytest.fixture(scope="module")
def process() -> Iterator[Node]:
    with Node(Setting(env={"RNIC_LOCAL": "on"})) as node:
        yield node


@pytest.fixture
def late(process: Node) -> Iterator[Node]:
    """A process that receives, and is stopped now and then."""
    yield process
    process.call("close_all")


def to(state: QPState) -> QPAttr:
    return QPAttr(qp_state=state)


def join_with(end: End, node: Node, name: str, options: Options) -> None:
    node.call("open", name, SIZE, options)
    ours, theirs = prepare(end.qp, options), node.call("prepare", name)
    complete(end.qp, ours, theirs, options)
    node.call("complete", name, ours)


def post(end: End, mr: rnic.MR, nbytes: int) -> None:
    end.qp.post_send(SendWR(1, WROpcode.SEND, SendFlags.SIGNALED, [SGE(mr, 0, nbytes)]))


def say(end: End, mr: rnic.MR, node: Node, name: str) -> None:
    """A short message, so that the two know the way."""
    node.call("post_recv", name, HALF, 8)
    post(end, mr, 8)
    end.wait_ok()
    assert node.call("completion", name)[:2] == ("SUCCESS", 8)


def check_what_came(node: Node, sent: bytes) -> None:
    """All of a message as it was sent, or no message."""
    status, length, content = node.call("completion", "main", timeout=0.5)
    assert (status, length, content) in (("SUCCESS", HALF, sent), ("nothing", 0, b""))


# ---------------------------------------------------------------- payloads that are read where they lie


def test_what_was_flushed_is_not_read_any_more(end: End, late: Node) -> None:
    """The receiver is stopped while the message waits; its sender gives up, and uses the buffer again."""
    mr = end.memory(HALF)
    join_with(end, late, "main", HASTY)
    say(end, mr, late, "main")
    late.call("post_recv", "main", 0, HALF)
    with late.stopped():
        mr.buf[:] = b"A" * HALF
        post(end, mr, HALF)
        end.qp.modify(QPAttr(qp_state=QPState.ERR))
        (wc,) = end.wait()
        assert wc.status is WCStatus.WR_FLUSH_ERR
        mr.buf[:] = b"Z" * HALF
    check_what_came(late, b"A")


def lose_patience(end: End) -> None:
    """A connection that has waited for a peer with much to do: from now on as BRIEF says."""
    end.qp.modify(to(QPState.SQD))
    until(lambda: not end.qp.query()[0].sq_draining, "nothing is under way")
    end.qp.modify(QPAttr(qp_state=QPState.SQD, timeout=BRIEF.timeout, retry_cnt=BRIEF.retry_cnt))
    end.qp.modify(to(QPState.RTS))


def test_what_was_given_up_is_not_read_any_more(end: End, late: Node) -> None:
    """The same, when the retries are used up."""
    mr = end.memory(HALF)
    join_with(end, late, "main", LASTING)
    say(end, mr, late, "main")
    lose_patience(end)
    late.call("post_recv", "main", 0, HALF)
    with late.stopped():
        mr.buf[:] = b"A" * HALF
        post(end, mr, HALF)
        (wc,) = end.wait()
        assert wc.status is WCStatus.RETRY_EXC_ERR
        mr.buf[:] = b"Z" * HALF
    check_what_came(late, b"A")


@pytest.mark.parametrize("how", ["reset", "close"])
def test_what_was_forgotten_is_not_read_any_more(end: End, late: Node, how: str) -> None:
    mr = end.memory(HALF)
    join_with(end, late, "main", HASTY)
    say(end, mr, late, "main")
    late.call("post_recv", "main", 0, HALF)
    with late.stopped():
        mr.buf[:] = b"A" * HALF
        post(end, mr, HALF)
        if how == "reset":
            end.qp.modify(QPAttr(qp_state=QPState.RESET))
        else:
            end.qp.close()
        mr.buf[:] = b"Z" * HALF
    check_what_came(late, b"A")


def test_other_connections_of_the_same_lane_lose_nothing(end: End, late: Node) -> None:
    """What one queue pair takes back concerns its own packets alone."""
    with End(ctx=end.ctx) as other:
        mr, more = end.memory(HALF), other.memory(HALF)
        join_with(end, late, "main", HASTY)
        join_with(other, late, "other", HASTY)
        say(end, mr, late, "main")
        say(other, more, late, "other")
        late.call("post_recv", "main", 0, HALF)
        late.call("post_recv", "other", 0, HALF)
        with late.stopped():
            mr.buf[:], more.buf[:] = b"A" * HALF, b"B" * HALF
            post(end, mr, HALF)
            post(other, more, HALF)
            end.qp.modify(QPAttr(qp_state=QPState.ERR))
            mr.buf[:] = b"Z" * HALF
        other.wait_ok()
        assert late.call("completion", "other") == ("SUCCESS", HALF, b"B")
        check_what_came(late, b"A")


# ---------------------------------------------------------------- marks


def connected(end: End, other: End, options: Options = HASTY) -> rnic.MR:
    rnic.testing.connect(end.qp, other.qp, options)
    return other.memory(64)


@contextmanager
def visited(end: End, options: Options = HASTY) -> Iterator[tuple[Stranger, End, rnic.MR]]:
    """A connection, and a process that passes for the peer's: it may be inside a copy."""
    with End(local=True) as other:
        source = connected(end, other, options)
        with Stranger(slot_of(end.qp.qp_num), more=(slot_of(other.qp.qp_num),)) as stranger:
            yield stranger, other, source


ENDINGS = {
    "ERR": lambda end: end.qp.modify(to(QPState.ERR)),
    "RESET": lambda end: end.qp.modify(to(QPState.RESET)),
    "close": lambda end: end.qp.close(),
    "rights": lambda end: end.qp.modify(QPAttr(qp_access_flags=AccessFlags.REMOTE_READ)),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_nothing_ends_while_a_peer_is_inside_a_copy(end: End, how: str) -> None:
    """EBUSY after a second, as of a region; the queue pair serves on, and ends when the peer goes on."""
    with visited(end) as (stranger, other, source):
        target = end.memory(64)
        stranger.mark(7)
        began = time.monotonic()
        with pytest.raises(rnic.VerbsError, match="stopped") as caught:
            ENDINGS[how](end)
        assert caught.value.errno == errno.EBUSY
        assert time.monotonic() - began >= WAIT
        assert end.qp.state is QPState.RTS
        assert perform(other, WROpcode.RDMA_WRITE, [SGE(source)], target).ok
        stranger.mark(8)
        ENDINGS[how](end)


@pytest.mark.parametrize("how", ENDINGS)
def test_who_dies_inside_a_copy_keeps_nothing_from_ending(end: End, how: str) -> None:
    with visited(end) as (stranger, _, _):
        stranger.mark(7)
        timer = threading.Timer(0.2, stranger.close)
        timer.start()
        until(lambda: is_done(lambda: ENDINGS[how](end)), "it ends")
        timer.join()


def test_what_adds_rights_waits_for_nobody(end: End) -> None:
    with visited(end) as (stranger, _, _):
        stranger.mark(7)
        end.qp.modify(QPAttr(qp_access_flags=rnic.testing.ALL_ACCESS & ~AccessFlags.LOCAL_WRITE))
        stranger.mark(8)


def test_a_failed_element_completes_when_nobody_is_inside_its_memory(end: End) -> None:
    """Of its own accord, with its own status; all behind it, and receives, are flushed then."""
    with visited(end, BRIEF) as (stranger, other, _):
        mr = end.memory(64)
        end.qp.post_recv(rnic.RecvWR(7, [SGE(mr, 0, 8)]))
        stranger.mark(7)
        post(end, mr, 8)  # RNR waits for ever
        other.qp.modify(to(QPState.ERR))
        until(lambda: end.qp.state is QPState.ERR, "the retries are used up")
        time.sleep(0.1)
        assert end.cq.poll(4) == []
        stranger.mark(8)
        first, second = end.wait(2)
        assert {first.status, second.status} == {WCStatus.RETRY_EXC_ERR, WCStatus.WR_FLUSH_ERR}
        assert {first.wr_id, second.wr_id} == {1, 7}


def test_a_queue_pair_that_is_being_ended_is_ended_once(end: End) -> None:
    with visited(end) as (stranger, _, _):
        stranger.mark(7)
        failures: list[int | None] = []

        def reset() -> None:
            try:
                end.qp.modify(to(QPState.RESET))
            except rnic.VerbsError as error:
                failures.append(error.errno)

        threads = [threading.Thread(target=reset) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: sum(thread.is_alive() for thread in threads) <= 1, "the others leave it to one")
        stranger.mark(8)
        for thread in threads:
            thread.join()
        assert len(failures) >= 3
        assert set(failures) == {errno.EBUSY}


def test_a_peer_stopped_inside_a_write_writes_nothing_after_the_end(end: End, late: Node) -> None:
    """A real copy of 16 MiB, stopped where it is: either that is over, or closing waits for it."""
    size = 16 << 20
    target = end.pd.alloc_mr(size, rnic.testing.ALL_ACCESS)
    late.call("open", "main", size, HASTY)
    ours, theirs = prepare(end.qp, HASTY), late.call("prepare", "main")
    complete(end.qp, ours, theirs, HASTY)
    late.call("complete", "main", ours)
    late.call("fill", "main", 1)
    late.begin("write_on", "main", (target.addr, target.rkey))
    until(lambda: target.buf[size - 1], "the peer writes")
    closed = False
    with late.stopped():
        with suppress(rnic.VerbsError):  # EBUSY
            end.qp.close()
            closed = True
        target.buf[:] = bytes(size)
    if not closed:
        end.qp.close()
        target.buf[:] = bytes(size)
    assert late.result() != "SUCCESS"
    assert bytes(target.buf) == bytes(size)
    target.close()
