# SPDX-License-Identifier: Apache-2.0
"""Messages that are announced and READ, messages that are taken back, and tags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint.queues import SMALL, End, Pair
from endpoint.test_hostile import (
    ANNOUNCE,
    GOODBYE,
    MESSAGE,
    MORE,
    SHARE,
    STOP,
    TAKEN,
    announced,
    message,
    outcome,
    send,
)
from rnic.endpoint import (
    AbortedError,
    Closed,
    Failed,
    MessageReceived,
    MessageTooLongError,
    ProtocolError,
    Reason,
    State,
)
from rnic.endpoint.frame import FrameType
from rnic.endpoint.outbox import Outbox
from rnic.enums import AccessFlags

LONG = bytes(range(256)) * 15  # more than the backlog has room for
ROOMY = replace(SMALL, receives=64, max_backlog=1 << 20)


def received(end: End) -> list[tuple[bytes, int]]:
    return [(bytes(event.data), event.tag) for event in end.events if isinstance(event, MessageReceived)]


def types(end: End) -> list[int]:
    """What it has sent, but credits."""
    return [data[0] for data in end.log if data[0] != FrameType.CREDIT]


def described(array: bytes) -> bytes:
    return send(SHARE, 1, pack(">QQII", 0, 8, 0xABCD, 2) + array, 4)


# ------------------------------------------------------------ arrays


def test_a_region_says_what_array_it_holds() -> None:
    pair = Pair()
    region = pair.a.protocol.share(0, 48, 1, AccessFlags.REMOTE_READ, (2, 3), "<f8")
    assert (region.shape, region.dtype) == ((2, 3), "<f8")
    pair.run()
    assert dict(pair.b.protocol.regions) == {region.id: region}


@pytest.mark.parametrize("shape", [(1,) * 5, (1,) * 256], ids=["small receives", "many"])
def test_an_array_whose_shape_does_not_fit_is_a_plain_region(shape: tuple[int, ...]) -> None:
    large = replace(SMALL, receive_size=64 if len(shape) == 5 else 1 << 16)
    pair = Pair(SMALL, large)
    region = pair.a.protocol.share(0, 8, 1, AccessFlags.REMOTE_READ, shape, "<f8")
    pair.run()
    assert pair.b.protocol.regions[region.id] == replace(region, shape=(), dtype="")


def test_a_peer_of_version_1_hears_of_no_array() -> None:
    pair = Pair(hello=False)
    pair.b.protocol.accept_hello(replace(SMALL.hello(), version_max=1).emit(), 0.0)
    pair.b.protocol.hello()
    pair.b.protocol.share(0, 8, 1, AccessFlags.REMOTE_READ, (1,), "<f8")
    out = pair.b.protocol.next_send()
    assert out is not None
    assert len(out.header) == 32
    assert out.header[1] == 0


# ------------------------------------------------------------ announced


def test_an_announced_message_comes_in_its_place_and_its_sender_hears_when() -> None:
    pair = Pair(hello=True)
    pair.a.protocol.send(b"before")
    handle = pair.a.announce(LONG, tag=9)
    pair.a.protocol.send(b"behind")
    pair.run(takers=())
    assert pair.a.protocol.taken == 0  # nobody waits, and it is longer than the backlog
    assert types(pair.a) == [MESSAGE, ANNOUNCE]
    assert pair.a.protocol.queued == len(LONG) + len(b"behind")
    pair.run()
    assert pair.a.protocol.taken == handle
    assert received(pair.b) == [(b"before", 0), (LONG, 9), (b"behind", 0)]
    assert types(pair.a) == [MESSAGE, ANNOUNCE, MESSAGE]
    assert types(pair.b) == [TAKEN]
    assert pair.a.protocol.statistics().messages_sent == 3
    assert pair.b.protocol.statistics().messages_received == 3


def test_one_that_fits_the_backlog_is_read_though_nobody_waits() -> None:
    pair = Pair()
    pair.a.announce(b"x" * 100)
    pair.run(takers=())
    assert pair.a.protocol.taken == 1
    assert pair.b.protocol.statistics().backlog == 100 + 64


def test_both_ends_announce_at_once() -> None:
    pair = Pair()
    for end in pair.ends:
        for _ in range(3):
            end.announce(LONG)
    pair.run()
    assert [len(received(end)) for end in pair.ends] == [3, 3]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 600), st.integers(0, 3)), max_size=12), st.booleans())
def test_messages_of_both_kinds_come_in_order(items: list[tuple[bool, int, int]], both: bool) -> None:
    pair = Pair()
    for end in pair.ends if both else (pair.a,):
        for n, (whole, size, tag) in enumerate(items):
            data = bytes([n]) * size
            if whole:
                end.announce(data, tag)
            else:
                end.protocol.send(data, tag)
    pair.run()
    expected = [(bytes([n]) * size, tag) for n, (_, size, tag) in enumerate(items)]
    assert received(pair.b) == expected
    assert received(pair.a) == (expected if both else [])
    for end in pair.ends:
        end.protocol.close(pair.now)
    pair.run()
    assert all(end.protocol.state is State.CLOSED for end in pair.ends)


def test_the_goodbye_waits_until_it_is_taken() -> None:
    pair = Pair()
    pair.a.announce(LONG)
    pair.a.protocol.close(0.0)
    pair.run(takers=(pair.a,))
    assert types(pair.a) == [ANNOUNCE]
    pair.b.protocol.close(0.0)
    pair.run()
    assert all(isinstance(end.events[-1], Closed) for end in pair.ends)


def test_a_peer_that_takes_no_more_messages_does_not_read_it() -> None:
    pair = Pair()
    pair.a.announce(LONG)
    pair.run(takers=())
    pair.b.protocol.discard()
    pair.a.announce(LONG)  # one comes before, and one behind that
    pair.a.memory.clear()  # a READ would fail
    pair.run()
    assert pair.a.protocol.taken == 2
    assert received(pair.b) == []


def test_what_the_driver_has_put_elsewhere_is_no_event() -> None:
    pair = Pair()
    pair.a.announce(LONG)
    pair.run(takers=())
    pair.b.protocol.begin_fetch()
    assert not pair.b.protocol.may_fetch
    pair.b.protocol.fetched(None)
    pair.run()
    assert (pair.a.protocol.taken, pair.b.events) == (1, [])
    pair.exchange(pair.a, b"next")
    assert received(pair.b) == [(b"next", 0)]


def test_a_read_that_came_to_nothing_is_due_again() -> None:
    pair = Pair()
    pair.a.announce(LONG)
    pair.run(takers=())
    pair.b.protocol.begin_fetch()
    pair.b.protocol.give_up_fetch()
    pair.run()
    assert received(pair.b) == [(LONG, 0)]


def test_one_that_was_not_taken_is_undelivered() -> None:
    pair = Pair()
    pair.a.announce(LONG)
    pair.a.protocol.send(b"behind")
    pair.run(takers=())
    pair.a.protocol.lost("gone")
    event = pair.a.protocol.next_event()
    assert isinstance(event, Failed)
    assert event.undelivered == 2


def test_limits_of_what_is_announced() -> None:
    pair = Pair()
    with pytest.raises(MessageTooLongError):
        pair.a.protocol.announce(4097, 0x1000, 7)
    with pytest.raises(ValueError, match="tag -1"):
        pair.a.protocol.send(b"", tag=-1)
    with pytest.raises(ValueError, match="tag 18446744073709551616"):
        pair.a.protocol.send(b"", tag=1 << 64)


# ------------------------------------------------------------ taken back


def test_a_message_that_is_stopped_in_the_middle_does_not_come() -> None:
    pair = Pair()
    handle = pair.a.protocol.send(LONG)
    pair.a.protocol.send(b"behind")
    for _ in range(2):
        pair.a.post_send()
    assert pair.a.protocol.stop(handle)
    assert pair.a.protocol.queued == len(b"behind")
    pair.run()
    assert received(pair.b) == [(b"behind", 0)]
    assert types(pair.a) == [MESSAGE, MORE, STOP, MESSAGE]
    assert pair.b.protocol.statistics().messages_received == 1
    assert pair.a.protocol.statistics().messages_sent == 1
    for end in pair.ends:
        end.protocol.close(0.0)
    pair.run()
    assert pair.a.protocol.state is State.CLOSED


def test_an_offer_that_is_stopped_does_not_come_and_its_memory_is_free() -> None:
    pair = Pair()
    handle = pair.a.announce(LONG)
    pair.a.protocol.send(b"behind")
    pair.run(takers=())
    pair.a.protocol.stop(handle)
    pair.run()
    assert received(pair.b) == [(b"behind", 0)]
    assert pair.a.protocol.taken == handle
    assert types(pair.a) == [ANNOUNCE, STOP, MESSAGE]


@pytest.mark.parametrize("confirmed", [False, True], ids=["while it is READ", "behind it"])
def test_a_stop_that_comes_too_late_changes_nothing(confirmed: bool) -> None:
    pair = Pair()
    handle = pair.a.announce(LONG)
    pair.run(takers=())
    pair.b.protocol.begin_fetch()
    if confirmed:
        pair.b.protocol.fetched(LONG)
    pair.a.protocol.stop(handle)
    pair.a.post_send()
    assert pair.arrive(pair.a)
    if not confirmed:
        pair.b.protocol.fetched(LONG)
    pair.run()
    pair.exchange(pair.a, b"next")
    assert received(pair.b) == [(LONG, 0), (b"next", 0)]
    assert pair.a.protocol.taken == handle


def test_what_was_not_begun_and_what_has_gone_is_not_stopped() -> None:
    pair = Pair()
    handle = pair.a.protocol.send(b"x")
    assert pair.a.protocol.cancel(handle)
    pair.exchange(pair.a, b"y")
    assert pair.a.protocol.stop(2)
    pair.run()
    assert types(pair.a) == [MESSAGE]
    assert received(pair.b) == [(b"y", 0)]


# ------------------------------------------------------------ who breaks the rules

VIOLATIONS: dict[str, tuple[list[bytes], str]] = {
    "ANNOUNCE cut": ([announced(8)[:-1]], "ANNOUNCE has 23 bytes after its header, not 24"),
    "tag cut": ([announced(8, tag=1)[:-1]], "ANNOUNCE has 31 bytes after its header, not 32"),
    "no bytes": ([announced(0)], "ANNOUNCE of 0 bytes at 0x1000"),
    "beyond memory": ([announced(8, addr=(1 << 64) - 7)], "which cannot be"),
    "too long": ([announced(4097)], "4097 bytes is longer than 4096"),
    "wrong number": ([announced(8, 1)], "ANNOUNCE of message 1, where 0 is due"),
    "in a message": ([message(0, b"x", 2, 0), announced(8, 1)], "ANNOUNCE inside of message 0"),
    "two": ([announced(1000), announced(1000, 1)], "ANNOUNCE came before message 0 was taken"),
    "a message behind": ([announced(1000), message(1, b"x")], "MESSAGE came before message 0 was taken"),
    "GOODBYE behind": ([announced(1000), send(GOODBYE, 1)], "GOODBYE came before message 0 was taken"),
    "TAKEN of nothing": ([send(TAKEN)], "TAKEN of message 0, which waits for none"),
    "STOP of nothing": ([send(STOP)], "STOP of message 0, which was not begun"),
    "STOP of another": ([message(0, b"x", 2, 0), send(STOP, 1)], "STOP of message 1"),
    "STOP of what is whole": ([message(0, b"x"), send(STOP, 0)], "STOP of message 0"),
    "tag of a message is cut": (
        [send(MESSAGE, 0, bytes(15), 3)],
        "MESSAGE has 15 bytes after its header, 16",
    ),
    "flags of TAKEN": ([send(TAKEN, flags=1)], "TAKEN has the flags 0x01"),
    "flags of SHARE": ([send(SHARE, 1, bytes(24), 2)], "SHARE has the flags 0x02"),
    "array without a type": ([described(b"\x01\x00" + bytes(14))], "16 bytes for the array"),
    "array is cut": ([described(b"\x01\x03" + bytes(6) + bytes(7))], "15 bytes for the array"),
    "no array": ([described(b"")], "0 bytes for the array"),
    "array and more": ([described(b"\x00\x01" + bytes(6) + b"ff")], "10 bytes for the array"),
    "type is not readable": ([described(b"\x00\x01" + bytes(6) + b"\x1b")], "nobody can read"),
    "MORE of a stopped one": (
        [message(0, b"x", 2, 0), send(STOP, 0), send(MORE, 0, b"x", 1)],
        "MORE of message 0, which was not begun",
    ),
}


@pytest.mark.parametrize(("sends", "words"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_violation_ends_the_connection(sends: list[bytes], words: str) -> None:
    small = replace(ROOMY, max_backlog=300)
    protocol = Pair(small, small).b.protocol
    for data in sends:
        assert protocol.state is State.OPEN
        protocol.receive(data, 0.0)
    failed = outcome(protocol)
    assert failed is not None
    assert isinstance(failed.error, ProtocolError)
    assert words in str(failed.error)


@pytest.mark.parametrize("data", [announced(8), send(TAKEN), send(STOP), message(0, bytes(8), 0, last=3)])
def test_a_peer_of_version_1_may_not_say_what_it_does_not_know(data: bytes) -> None:
    pair = Pair(ROOMY, ROOMY, hello=False)
    old = replace(ROOMY.hello(), version_max=1)
    pair.b.protocol.accept_hello(old.emit(), 0.0)
    pair.b.protocol.hello()
    pair.b.protocol.receive(data, 0.0)
    failed = outcome(pair.b.protocol)
    assert failed is not None
    assert failed.error.reason == Reason.VIOLATION


def test_an_abort_ends_what_is_announced() -> None:
    pair = Pair()
    pair.a.announce(LONG)
    pair.run(takers=())
    pair.a.protocol.abort("enough")
    pair.run()
    assert pair.b.protocol.offer is None
    assert not pair.b.protocol.may_fetch
    last = pair.b.events[-1]
    assert isinstance(last, Failed)
    assert isinstance(last.error, AbortedError)


def test_bytes_of_a_tagged_message_fill_the_receive_and_no_more() -> None:
    pair = Pair()
    pair.a.protocol.send(bytes(41), tag=1)
    pair.run()
    assert [len(data) for data in pair.a.log if data[0] in (MESSAGE, MORE)] == [64, 9]
    assert received(pair.b) == [(bytes(41), 1)]


def test_nothing_is_ready_in_an_empty_outbox() -> None:
    assert not Outbox(Pair().a.protocol.flow).ready


def steps(pair: Pair) -> list[Callable[[], object]]:
    return [lambda: pair.step(pair.a), lambda: pair.step(pair.b)]


@given(st.lists(st.integers(0, 6), max_size=60), st.integers(0, 2))
def test_stops_at_any_time_leave_whole_messages_in_order(choices: list[int], tag: int) -> None:
    pair = Pair()
    for n in range(6):
        data = bytes([n]) * (50 + 150 * n)
        if n % 2:
            pair.a.announce(data, tag)
        else:
            pair.a.protocol.send(data, tag)
    asked = set()
    for choice in choices:
        if choice == 6:
            pair.step(pair.b)
        else:
            pair.step(pair.a)
            if not pair.a.protocol.cancel(choice + 1):
                pair.a.protocol.stop(choice + 1)
            asked.add(choice)
    pair.run()
    found = received(pair.b)
    assert all(data == bytes([data[0]]) * (50 + 150 * data[0]) for data, _ in found)
    order = [data[0] for data, _ in found]
    assert order == sorted(set(order))
    assert set(range(6)) - asked <= set(order)
    pair.exchange(pair.a, b"next")
    assert received(pair.b)[-1] == (b"next", 0)
