# SPDX-License-Identifier: Apache-2.0
"""Each limit at its edge, each time at its moment, each number that is told, each counter at its wrap."""

from __future__ import annotations

import pickle
from dataclasses import replace
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint.queues import SMALL, End, Pair
from rnic.endpoint import (
    SPARE,
    AbortedError,
    ClosedError,
    Config,
    EndpointError,
    Failed,
    Hello,
    LostError,
    NoHelloError,
    Protocol,
    ProtocolError,
    Reason,
    RefusedError,
    Region,
    Role,
    State,
    Statistics,
    VersionError,
    parse_refusal,
    refusal,
)
from rnic.endpoint.frame import abort_frame
from rnic.enums import AccessFlags

READ, WRITE, ATOMIC = AccessFlags.REMOTE_READ, AccessFlags.REMOTE_WRITE, AccessFlags.REMOTE_ATOMIC
MESSAGE, MORE, CREDIT, SHARE, WITHDRAW, RELEASE, GOODBYE, ABORT = range(1, 9)
ROOMY = replace(SMALL, receives=16, max_backlog=1 << 20)
TOP = 0xFFFFFFFF
LAST = (1 << 64) - 1


@pytest.fixture
def pair() -> Pair:
    return Pair(ROOMY, ROOMY)


def failure(end: End) -> EndpointError:
    while end.take_event():
        pass
    event = end.events[-1]
    assert isinstance(event, Failed)
    return event.error


# -------------------------------------------------------------------------------- regions


@given(st.data())
def test_a_region_may_lie_anywhere_in_the_address_space(data: st.DataObject) -> None:
    length = data.draw(st.sampled_from([0, 1, 1 << 63, LAST]) | st.integers(0, LAST))
    last = LAST + 1 - max(length, 1)
    addr = data.draw(st.sampled_from([0, last]) | st.integers(0, last))
    rkey = data.draw(st.sampled_from([0, TOP]) | st.integers(0, TOP))
    access = AccessFlags(data.draw(st.sampled_from([2, 4, 6, 8, 10, 12, 14])))
    pair = Pair()
    region = pair.a.protocol.share(addr, length, rkey, access)
    pair.run()
    assert dict(pair.b.protocol.regions) == {1: region} == {1: Region(1, addr, length, rkey, access)}


@pytest.mark.parametrize(
    ("addr", "length", "rkey"),
    [(-1, 0, 0), (0, -1, 0), (1, (1 << 64), 0), ((1 << 64) - 1, 2, 0), (0, 0, -1), (0, 0, 1 << 32)],
)
def test_no_region_lies_elsewhere(addr: int, length: int, rkey: int) -> None:
    with pytest.raises(ValueError, match="cannot be a region"):
        Pair().a.protocol.share(addr, length, rkey, READ)


# -------------------------------------------------------------------------------- hello, refusal, ABORT


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({"receive_size": 64}, True), ({"receive_size": 63}, False),
        ({"receive_size": 1 << 31}, True), ({"receive_size": (1 << 31) + 1}, False),
        ({"receives": 3}, True), ({"receives": 2}, False), ({"receives": 0xFFFF}, True),
        ({"version_min": 1, "version_max": 255}, True), ({"version_min": 0}, False),
        ({"max_message": 0}, True), ({"max_message": (1 << 64) - 1}, True), ({"max_regions": 0xFFFF}, True),
    ],
)  # fmt: skip
def test_a_hello_is_taken_up_to_its_limits(change: dict[str, Any], fits: bool) -> None:
    hello = replace(SMALL.hello(), **change)
    if fits:
        assert Hello.parse(hello.emit()) == hello
    else:
        with pytest.raises(ProtocolError):
            Hello.parse(hello.emit())


@pytest.mark.parametrize(
    ("size", "error", "words"),
    [(0, NoHelloError, "begins with nothing, not"), (3, NoHelloError, "begins with 72 6e 45, not"),
     (5, NoHelloError, "begins with 72 6e 45 50 01, not"), (6, ProtocolError, "the hello has 6 of 24"),
     (23, ProtocolError, "the hello has 23 of 24")],
)  # fmt: skip
def test_a_hello_that_was_cut_is_told_by_what_is_there(
    size: int, error: type[EndpointError], words: str
) -> None:
    with pytest.raises(error, match=words):
        Hello.parse(SMALL.hello().emit()[:size])


def test_of_what_is_no_hello_eight_bytes_are_shown() -> None:
    with pytest.raises(NoHelloError, match="begins with 00 01 02 03 04 05 06 07, not"):
        Hello.parse(bytes(range(20)))


def test_a_refusal_may_be_without_words_and_carries_sixteen_bits_of_its_reason() -> None:
    assert len(refusal(1, "")) == 8
    for reason in (1, 0xFFFF):
        error = parse_refusal(refusal(reason | 0x10000, ""))
        assert (type(error), str(error), error.reason) == (
            RefusedError,
            "the peer refused: (no text)",
            reason,
        )
    assert "no reason in words" in str(parse_refusal(refusal(1, "")[:7]))
    assert len(refusal(1, "x" * 141)) == len(refusal(1, "x" * 140)) == 148


@pytest.mark.parametrize(("size", "text"), [(64, 56), (147, 139), (148, 140), (4096, 140)])
def test_the_text_of_an_abort_is_cut_to_what_fits(size: int, text: int) -> None:
    assert abort_frame(7, "x" * 200, size) == pack(">BBHI", ABORT, 0, 0, 7) + b"x" * text


@pytest.mark.parametrize(
    "cls", [ProtocolError, NoHelloError, VersionError, RefusedError, AbortedError, LostError, ClosedError]
)
def test_an_error_can_be_sent_to_another_process(cls: type[EndpointError]) -> None:
    error = pickle.loads(pickle.dumps(cls("why", Reason.CREDIT)))
    assert (type(error), str(error), error.reason) == (cls, "why", Reason.CREDIT)
    assert cls("why").reason == Reason.VIOLATION


def test_what_a_config_is_by_default() -> None:
    assert Config() == Config(
        receive_size=1 << 16, receives=32, send_size=1 << 16, max_message=1 << 30, max_backlog=1 << 20,
        max_regions=1024, access=READ | WRITE | ATOMIC, idle_interval=10.0, raw=False,
    )  # fmt: skip


# -------------------------------------------------------------------------------- receives and credits


@pytest.mark.parametrize("receives", range(3, 12))
def test_credits_are_returned_when_half_of_them_are_owed_but_two_at_least(receives: int) -> None:
    config = replace(SMALL, receives=receives, max_backlog=1 << 20)
    pair = Pair(config, config)
    due = max(2, receives // 2)
    for count in range(1, receives):
        pair.b.protocol.send(b"")
        assert pair.b.post_send()
        pair.arrive(pair.b)
        pair.a.post_receives()
        assert (pair.a.protocol.next_send() is not None) == (count == due)
        if count == due:
            return


def test_the_last_credit_is_for_credit_and_abort_alone(pair: Pair) -> None:
    for _ in range(ROOMY.receives - 1):
        pair.a.protocol.send(b"")
        assert pair.a.post_send()
    for _ in range(ROOMY.receives - 1):
        pair.arrive(pair.a)
    assert pair.a.protocol.statistics().credits == 1
    pair.a.protocol.send(b"")
    assert not pair.a.post_send()
    pair.a.protocol.abort("with the last one")
    assert pair.a.protocol.state is State.ABORTING
    assert pair.a.post_send()
    pair.arrive(pair.a)
    error = failure(pair.b)
    assert (type(error), str(error)[-17:]) == (AbortedError, "with the last one")


@pytest.mark.parametrize(
    ("kind", "body", "fits"),
    [(MESSAGE, bytes(8), False), (SHARE, pack(">QQII", 0, 8, 1, 2), False), (GOODBYE, b"", False),
     (WITHDRAW, b"", False), (MORE, b"x", False), (CREDIT, b"", True), (RELEASE, b"", True),
     (ABORT, b"", True)],
)  # fmt: skip
def test_after_a_goodbye_only_what_needs_no_answer_may_come(kind: int, body: bytes, fits: bool) -> None:
    pair = Pair(ROOMY, ROOMY)
    protocol = pair.b.protocol
    region = protocol.share(0, 8, 1, READ)
    protocol.withdraw(region.id)
    for _ in range(4):
        pair.b.post_send()
    protocol.receive(pack(">BBHI", GOODBYE, 0, 0, 0), 0.0)
    protocol.receive(pack(">BBHI", kind, 0, 2 if kind == CREDIT else 0, 1) + body, 0.0)
    if fits and kind != ABORT:
        assert protocol.state is State.HALF_CLOSED_REMOTE
        return
    error = failure(pair.b)
    assert (type(error) is AbortedError) == fits
    assert ("after GOODBYE" in str(error)) == (not fits)


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_receives_are_held_back_from_the_byte_that_fills_the_backlog(over: int) -> None:
    waiting = 3 * (64 + 40)  # what three messages weigh
    config = replace(ROOMY, max_backlog=waiting - over)
    pair = Pair(config, config)
    for count in range(1, 4):
        pair.a.protocol.send(bytes(40))
        pair.a.post_send()
        pair.arrive(pair.a)
        assert pair.b.protocol.statistics().backlog == count * 104
    assert pair.b.protocol.statistics().held == (1 if over >= 0 else 0)
    pair.b.take_event()
    assert pair.b.protocol.statistics().held == 0


@pytest.mark.parametrize("waits", [False, True])
def test_an_unfinished_message_fills_the_backlog_unless_somebody_waits(waits: bool) -> None:
    config = replace(ROOMY, max_backlog=104)
    pair = Pair(config, config)
    if waits:
        assert pair.b.protocol.next_event() is None
    pair.a.protocol.send(bytes(500))
    for held in (0, 1, 2):
        pair.a.post_send()
        pair.arrive(pair.a)
        assert pair.b.protocol.statistics().held == (0 if waits else held)
    pair.b.protocol.want(not waits)
    assert pair.b.protocol.statistics().held == 0
    pair.a.post_send()
    pair.arrive(pair.a)
    assert pair.b.protocol.statistics().held == (1 if waits else 0)


def test_what_events_weigh(pair: Pair) -> None:
    pair.a.protocol.withdraw(pair.a.protocol.share(0, 8, 1, READ).id)
    pair.a.protocol.send(bytes(10))
    pair.a.protocol.send(b"")
    pair.a.protocol.close(0.0)
    pair.run(takers=())
    found = []
    while pair.b.take_event():
        found.append(pair.b.protocol.statistics().backlog)
    assert found == [266, 202, 128, 64, 0]


def test_nothing_is_kept_of_messages_that_nobody_takes(pair: Pair) -> None:
    pair.a.protocol.send(bytes(200))
    pair.a.post_send()
    pair.arrive(pair.a)
    assembler = pair.b.protocol._assembler
    assert assembler._data.getvalue() != b""
    pair.b.protocol.discard()
    assert assembler._data.getvalue() == b""
    pair.a.post_send()
    pair.arrive(pair.a)
    assert (assembler._data.getvalue(), assembler.buffered) == (b"", 48 + 56)
    pair.run()
    assert pair.b.events == []
    assert pair.b.protocol.statistics().messages_received == 1


# -------------------------------------------------------------------------------- time


def test_a_probe_is_due_at_its_moment_once(pair: Pair) -> None:
    protocol = pair.a.protocol
    protocol.heard(5.0)
    assert protocol.deadline() == 15.0
    protocol.timer(14.999)
    assert protocol.next_send() is None
    protocol.timer(15.0)
    assert protocol.deadline() is None
    probe = protocol.next_send()
    assert probe is not None
    assert (probe.probe, probe.header, probe.fence, probe.ends) == (True, b"", False, None)
    assert protocol.next_send() is None
    protocol.timer(99.0)
    assert protocol.next_send() is None
    assert protocol.sent(probe.number, 20.0) == ()
    assert protocol.deadline() == 30.0
    assert protocol.statistics().sends == 0


def test_goodbyes_are_waited_for_until_their_moment(pair: Pair) -> None:
    protocol = pair.a.protocol
    protocol.heard(100.0)
    protocol.close(100.0, timeout=5.0)
    assert protocol.deadline() == 105.0
    protocol.timer(104.999)
    assert not protocol.statistics().probes
    protocol.close(102.0, timeout=4.0)
    assert protocol.deadline() == 106.0
    protocol.close(103.0)
    assert protocol.deadline() == 110.0  # of the probe
    protocol.close(103.0, timeout=0.5)
    protocol.timer(103.499)
    assert protocol.deadline() == 103.5
    protocol.timer(103.5)
    assert protocol.state is State.ABORTING
    assert protocol.deadline() is None


@pytest.mark.parametrize("come", ["receive", "sent", "heard"])
def test_every_sign_of_life_puts_the_probe_off(pair: Pair, come: str) -> None:
    protocol = pair.a.protocol
    (pair.b if come == "receive" else pair.a).protocol.send(b"")
    if come == "receive":
        pair.now = 4.0
        pair.b.post_send()
        pair.arrive(pair.b)
    elif come == "sent":
        pair.a.post_send()
        pair.arrive(pair.a)
        pair.a.complete(4.0)
    else:
        protocol.heard(4.0)
    assert protocol.deadline() == 14.0


# -------------------------------------------------------------------------------- numbers


def test_statistics_before_and_after() -> None:
    pair = Pair(hello=False)
    nothing = Statistics(State.HELLO, *[0] * 11)
    one = pair.a.protocol
    assert one.statistics() == nothing
    assert (one.version, one.undelivered, one.receives_seen, one.completed, one.released) == (0, 0, 0, 0, 0)
    assert (one.next_handle, one.outstanding, one.posted_receives) == (1, 0, SMALL.receives + SPARE)
    pair = Pair(ROOMY, ROOMY)
    pair.a.protocol.send(bytes(100))
    pair.a.protocol.send(bytes(30))
    pair.a.post_send()
    pair.arrive(pair.a)
    assert pair.a.protocol.statistics() == replace(
        nothing, state=State.OPEN, sends=1, credits=15, queued=52 + 30
    )
    assert pair.b.protocol.statistics() == replace(
        nothing, state=State.OPEN, receives=1, credits=16, partial=48
    )
    assert pair.a.protocol.outstanding == 1
    pair.run()
    assert pair.a.protocol.statistics() == replace(
        nothing, state=State.OPEN, messages_sent=2, sends=3, credits=13
    )
    assert pair.a.protocol.outstanding == 0
    assert pair.a.protocol.posted_receives == 16 + SPARE


def test_of_a_connection_that_has_ended_nothing_is_kept(pair: Pair) -> None:
    for end in pair.ends:
        end.protocol.share(0, 8, 1, READ)
    pair.run()
    pair.a.protocol.timer(1e3)
    pair.a.protocol.send(b"out")
    pair.a.post_send()
    pair.a.protocol.send(bytes(200))
    pair.b.protocol.send(bytes(200))
    pair.b.post_send()
    pair.arrive(pair.b)
    pair.a.protocol.lost("no more")
    protocol = pair.a.protocol
    assert (protocol.queued, dict(protocol.regions), protocol.statistics().partial) == (0, {}, 0)
    assert protocol._assembler._data.getvalue() == b""
    assert (protocol.next_send(), protocol.deadline(), protocol.undelivered) == (None, None, 2)
    assert (str(protocol.error), protocol.farewell) == ("no more", b"")


@pytest.mark.parametrize("how", ["closed", "failed", "aborting"])
def test_what_comes_after_the_end_changes_nothing(how: str) -> None:
    pair = Pair(ROOMY, ROOMY)
    protocol = pair.a.protocol
    if how == "closed":
        for end in pair.ends:
            end.protocol.close(0.0)
        pair.run()
    elif how == "failed":
        protocol.lost("no more")
    elif how == "aborting":
        protocol.abort("first")
    before = (protocol.state, str(protocol.error), protocol.farewell, list(protocol._inbox._events))
    protocol.close(1.0, timeout=1.0)
    protocol.timer(100.0)
    if how != "aborting":
        protocol.abort("again")
        protocol.lost("again")
        protocol.disconnected()
    assert (protocol.state, str(protocol.error), protocol.farewell, list(protocol._inbox._events)) == before


def test_a_farewell_says_how_many_messages_came(pair: Pair) -> None:
    for number in range(3):
        pair.exchange(pair.b, bytes(number))
    for end in pair.ends:
        end.protocol.close(0.0)
    pair.run()
    assert pair.a.protocol.farewell == pack(">BBHI", GOODBYE, 0, 0, 3)
    assert pair.b.protocol.farewell == pack(">BBHI", GOODBYE, 0, 0, 0)


def test_messages_are_counted_on_behind_two_to_the_32() -> None:
    pair = Pair(ROOMY, ROOMY)
    pair.a.protocol.flow.begun = pair.b.protocol.flow.complete = TOP - 1
    for size in (200, 100, 0, 60):
        pair.exchange(pair.a, bytes(size))
    firsts = [int.from_bytes(data[4:8], "big") for data in pair.a.log if data[0] == MESSAGE]
    assert firsts == [TOP - 1, TOP, 0, 1]
    for end in pair.ends:
        end.protocol.close(0.0)
    pair.run()
    assert (pair.a.protocol.state, pair.b.protocol.state) == (State.CLOSED, State.CLOSED)
    assert pair.b.protocol.farewell == pack(">BBHI", GOODBYE, 0, 0, 2)


def test_a_goodbye_in_the_disconnect_request_is_counted_on_likewise(pair: Pair) -> None:
    pair.a.protocol.flow.begun = pair.b.protocol.flow.complete = TOP
    pair.b.protocol.close(0.0)
    pair.run()
    pair.a.protocol.send(b"last")
    pair.a.protocol.close(0.0)
    while pair.a.post_send():
        pair.arrive(pair.a)
    pair.a.protocol.disconnected(pack(">BBHI", GOODBYE, 0, 0, 0))
    assert pair.a.protocol.state is State.CLOSED


def test_regions_and_withdrawals_are_counted_on_behind_two_to_the_32(pair: Pair) -> None:
    a, b = pair.a.protocol, pair.b.protocol
    a._own._ids = a._own.released = b._theirs.withdrawals = b._theirs.confirmed = TOP - 1
    for number in (TOP, 0, 1):
        region = a.share(0, 8, 1, READ)
        assert region.id == number
        pair.run()
        a.withdraw(region.id)
        pair.run()
        assert (a.unreleased, dict(b.regions)) == ((), {})
    assert (a.released, b._theirs.withdrawals) == (1, 1)


def test_a_bare_queue_pair_that_is_aborted_has_failed() -> None:
    raw = Protocol(replace(SMALL, raw=True), Role.ACCEPTOR)
    raw.receives_posted(raw.receives_to_post())
    assert raw.accept_hello(b"", 0.0) is None
    raw.abort()
    assert raw.state is State.FAILED
