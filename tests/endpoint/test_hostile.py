# SPDX-License-Identifier: Apache-2.0
"""A peer that sends anything: the connection ends with an error in words, and nothing ever raises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpoint.queues import SMALL, End, Pair
from rnic.endpoint import (
    AbortedError,
    EndpointError,
    Failed,
    MessageReceived,
    Protocol,
    ProtocolError,
    Reason,
    State,
)
from rnic.enums import AccessFlags

MESSAGE, MORE, CREDIT, SHARE, WITHDRAW, RELEASE, GOODBYE, ABORT, ANNOUNCE, TAKEN, STOP = range(1, 12)
ROOMY = replace(SMALL, receives=64, max_backlog=1 << 20)
END_STATES = (State.ABORTING, State.FAILED, State.CLOSED)


def send(kind: int, ident: int = 0, body: bytes = b"", flags: int = 0, refill: int = 0) -> bytes:
    return pack(">BBHI", kind, flags, refill, ident) + body


def message(ident: int, data: bytes, total: int | None = None, last: int = 1) -> bytes:
    return send(MESSAGE, ident, pack(">Q", len(data) if total is None else total) + data, last)


def share(ident: int = 1, addr: int = 0, length: int = 8, access: int = 2) -> bytes:
    return send(SHARE, ident, pack(">QQII", addr, length, 0xABCD, access))


def announced(total: int, ident: int = 0, addr: int = 0x1000, tag: int = 0) -> bytes:
    body = pack(">QQI4x", total, addr, 7) + (pack(">Q", tag) if tag else b"")
    return send(ANNOUNCE, ident, body, 2 if tag else 0)


def victim() -> Protocol:
    return Pair(ROOMY, ROOMY).b.protocol


def outcome(protocol: Protocol) -> Failed | None:
    """The failure, if there was one; it has words that a terminal bears."""
    for event in protocol.events():
        if isinstance(event, Failed):
            assert isinstance(event.error, EndpointError)
            assert str(event.error).isprintable()
            return event
    return None


# ------------------------------------------------------------ each rule, broken once

LONG = 4097
VIOLATIONS = {
    "empty": ([b""], "no room for the header"),
    "cut header": ([send(CREDIT, refill=1)[:7]], "7 bytes has no room for the header"),
    "type 0": ([send(0)], "no SEND of type 0"),
    "type 12": ([send(12)], "no SEND of type 12"),
    "unknown flag": ([message(0, b"x", last=5)], "MESSAGE has the flags 0x05"),
    "flag where there is none": ([send(GOODBYE, flags=1)], "GOODBYE has the flags 0x01"),
    "longer than the receives": ([message(0, bytes(49))], "a SEND of 65 bytes into 64"),
    "no total": ([send(MESSAGE, 0, bytes(7), 1)], "MESSAGE has 7 bytes after its header"),
    "too long": ([message(0, b"x", LONG, 0)], "4097 bytes is longer than 4096"),
    "wrong number": ([message(1, b"x")], "MESSAGE of message 1, where 0 is due"),
    "number again": ([message(0, b"x"), message(0, b"x")], "MESSAGE of message 0, where 1 is due"),
    "message in a message": ([message(0, b"x", 2, 0), message(1, b"x")], "before message 0 was complete"),
    "MORE of nothing": ([send(MORE, 0, b"x", 1)], "MORE of message 0, which was not begun"),
    "MORE of another": ([message(0, b"x", 2, 0), send(MORE, 1, b"x", 1)], "MORE of message 1, where 0"),
    "MORE is empty": ([message(0, b"x", 2, 0), send(MORE, 0)], "MORE of message 0 is empty"),
    "MESSAGE is empty": ([message(0, b"", 2, 0)], "MESSAGE of message 0 is empty"),
    "more than the total": ([message(0, b"xyz", 2)], "has 2 bytes, and a fragment goes to 3"),
    "MORE beyond the total": ([message(0, b"x", 2, 0), send(MORE, 0, b"xy", 1)], "a fragment goes to 3"),
    "LAST too early": ([message(0, b"x", 2)], "says LAST at 1 of 2"),
    "LAST is missing": ([message(0, b"x", last=0)], "does not say LAST at 1 of 1"),
    "CREDIT with a body": ([send(CREDIT, 0, b"x", refill=1)], "CREDIT has 1 bytes after its header"),
    "CREDIT of nothing": ([send(CREDIT)], "CREDIT returns 0, it must be two"),
    "credits that nobody used": ([send(CREDIT, refill=1)], "1 credits returned where 0 of 64"),
    "SHARE cut": ([share()[:-1]], "SHARE has 23 bytes"),
    "SHARE beyond memory": ([share(addr=(1 << 64) - 1, length=2)], "ends beyond the address space"),
    "SHARE without access": ([share(access=0)], "with the access 0x0"),
    "SHARE with LOCAL_WRITE": ([share(access=3)], "with the access 0x3"),
    "SHARE twice": ([share(), share()], "region 1 is shared twice"),
    "SHARE of too many": ([share(i) for i in range(5)], "more than 4 regions"),
    "WITHDRAW of nothing": ([send(WITHDRAW, 1)], "region 1 is withdrawn, and was not shared"),
    "RELEASE of nothing": ([send(RELEASE, 1)], "RELEASE says 1, after 0"),
    "RELEASE of nothing new": ([send(RELEASE)], "RELEASE says 0, after 0"),
    "GOODBYE in a message": ([message(0, b"x", 2, 0), send(GOODBYE)], "GOODBYE inside of message 0"),
    "GOODBYE counts wrong": ([message(0, b"x"), send(GOODBYE)], "GOODBYE after 0 messages, 1 have come"),
    "message after GOODBYE": ([send(GOODBYE), message(0, b"")], "MESSAGE after GOODBYE"),
    "GOODBYE twice": ([send(GOODBYE), send(GOODBYE)], "GOODBYE after GOODBYE"),
    "no credit": ([message(i, b"") for i in range(64)], "a SEND without a credit: 1 left"),
}


@pytest.mark.parametrize(("sends", "words"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_violation_ends_the_connection_and_the_peer_is_told(sends: list[bytes], words: str) -> None:
    pair = Pair(ROOMY, ROOMY)
    for data in sends:
        assert pair.b.protocol.state not in END_STATES
        pair.b.protocol.receive(data, 0.0)
    failed = outcome(pair.b.protocol)
    assert failed is not None
    assert isinstance(failed.error, ProtocolError)
    assert words in str(failed.error)
    while pair.b.post_send():
        pair.arrive(pair.b)
    told = outcome(pair.a.protocol)
    assert told is not None
    assert isinstance(told.error, AbortedError)
    assert told.error.reason == failed.error.reason
    assert str(failed.error)[:40] in str(told.error)


def test_message_that_is_too_long_has_a_reason_of_its_own() -> None:
    protocol = victim()
    protocol.receive(message(0, b"x", LONG, 0), 0.0)
    failed = outcome(protocol)
    assert failed is not None
    assert failed.error.reason == Reason.TOO_LONG


@pytest.mark.parametrize(("sends", "words"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_failure_does_not_hold_the_receive_buffer(sends: list[bytes], words: str) -> None:
    protocol = victim()
    for data in map(bytearray, sends):
        protocol.receive(data, 0.0)
        data.clear()  # BufferError while something views it
    failed = outcome(protocol)
    assert failed is not None
    assert words in str(failed.error)


def test_claimed_length_takes_no_memory() -> None:
    pair = Pair(ROOMY, replace(ROOMY, max_message=1 << 60))
    pair.b.protocol.receive(message(0, b"x", 1 << 60, 0), 0.0)
    assert pair.b.protocol.statistics().partial == 1
    assert outcome(pair.b.protocol) is None


def test_nothing_is_looked_at_after_the_end() -> None:
    protocol = victim()
    protocol.receive(b"", 0.0)
    protocol.receive(message(0, b"x"), 0.0)
    assert not any(isinstance(event, MessageReceived) for event in protocol.events())
    assert protocol.statistics().receives == 2


def test_hostile_text_is_made_printable() -> None:
    protocol = victim()
    protocol.receive(send(ABORT, 99, b"\x1b[2J\xff bye\n"), 0.0)
    failed = outcome(protocol)
    assert failed is not None
    assert failed.error.reason == 99


# ------------------------------------------------------------ valid traffic, changed


def conversation() -> list[bytes]:
    """What a sends to b in a talk that has a SEND of every type but ABORT."""
    pair = Pair(ROOMY, ROOMY)
    a, b = pair.a.protocol, pair.b.protocol
    theirs = b.share(0, 8, 1, AccessFlags.REMOTE_READ)
    pair.run()
    b.withdraw(theirs.id)
    pair.exchange(pair.a, b"hello")
    ours = a.share(4096, 8, 1, AccessFlags.REMOTE_WRITE)
    pair.exchange(pair.a, bytes(range(120)))
    a.withdraw(ours.id)
    for _ in range(40):
        pair.exchange(pair.b, b"")
    pair.exchange(pair.a, b"")
    a.close(0.0)
    pair.run()
    assert {data[0] for data in pair.a.log} == set(range(1, 8))
    return pair.a.log


TRAFFIC = conversation()


def replay(sends: list[bytes]) -> Failed | None:
    """Give the sends to an end like b, which has said what b said."""
    pair = Pair(ROOMY, ROOMY)
    protocol = pair.b.protocol
    region = protocol.share(0, 8, 1, AccessFlags.REMOTE_READ)
    protocol.withdraw(region.id)
    for _ in range(40):
        protocol.send(b"")
    for data in [None, *sends]:
        if data is not None:
            protocol.receive(data, 0.0)
            protocol.receives_posted(protocol.receives_to_post())
        while protocol.next_send() is not None:
            pass
    return outcome(protocol)


def mutations(data: bytes) -> Iterator[bytes]:
    for place, byte in enumerate(data):
        for value in {byte ^ 1 << bit for bit in range(8)} | {0, 0x7F, 0xFF} - {byte}:
            yield data[:place] + bytes([value]) + data[place + 1 :]


def test_the_traffic_itself_is_sound() -> None:
    assert replay(TRAFFIC) is None


@pytest.mark.parametrize("index", range(len(TRAFFIC)))
def test_every_byte_of_valid_traffic_can_be_wrong(index: int) -> None:
    before, data, after = TRAFFIC[:index], TRAFFIC[index], TRAFFIC[index + 1 :]
    failures = 0
    for mutated in mutations(data):
        failures += replay([*before, mutated, *after]) is not None
    assert failures >= 8 * 3, "wrong types, flags and numbers are noticed"


@pytest.mark.parametrize("index", range(len(TRAFFIC)))
def test_every_send_can_be_missing_doubled_cut_or_longer(index: int) -> None:
    before, data, after = TRAFFIC[:index], TRAFFIC[index], TRAFFIC[index + 1 :]
    replay([*before, *after])
    replay([*before, data, data, *after])
    for length in range(len(data)):
        replay([*before, data[:length], *after])
    replay([*before, data + b"\0", *after])
    replay([*before, *after[:1], data, *after[1:]])


# ------------------------------------------------------------ anything at all

NUMBERS = st.one_of(st.integers(0, 3), st.integers(0, 0xFFFF))
SENDS = st.one_of(
    st.binary(max_size=70),
    st.builds(send, st.integers(0, 13), NUMBERS, st.binary(max_size=60), st.integers(0, 4), NUMBERS),
    st.builds(message, NUMBERS, st.binary(max_size=48), st.one_of(st.none(), NUMBERS), st.integers(0, 1)),
    st.builds(share, NUMBERS, st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), NUMBERS),
    st.builds(announced, st.integers(0, 5000), NUMBERS, st.integers(0, (1 << 64) - 1), st.integers(0, 1)),
    st.sampled_from(TRAFFIC),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(SENDS, max_size=30), st.booleans(), st.booleans())
def test_any_sends_end_in_words_or_are_heard(sends: list[bytes], busy: bool, closing: bool) -> None:
    pair = Pair(ROOMY, ROOMY)
    protocol = pair.b.protocol
    if busy:
        protocol.send(bytes(1000))
        protocol.withdraw(protocol.share(0, 8, 1, AccessFlags.REMOTE_READ).id)
        protocol.announce(1000, 0x1000, 7)
    if closing:
        protocol.close(0.0, 5.0)
    for data in sends:
        if protocol.may_fetch:
            protocol.begin_fetch()
            protocol.fetched(None)
        while (out := protocol.next_send()) is not None:
            protocol.sent(out.number, 0.0)
        protocol.receive(bytearray(data), 0.0)
        protocol.receives_posted(protocol.receives_to_post())
        seen = protocol.statistics()
        assert seen.credits <= ROOMY.receives
        assert len(protocol.regions) <= ROOMY.max_regions
    failed = outcome(protocol)
    assert (failed is None) == (protocol.state not in (State.ABORTING, State.FAILED))


class Liar(Pair):
    """One SEND is changed on its way.  A SEND into an empty queue breaks the connection, as RNR does."""

    def __init__(self, at: int, place: int, mask: int) -> None:
        super().__init__()
        self.at, self.place, self.mask = at, place, mask

    def arrive(self, end: End) -> bool:
        if end.wire and not self.peer(end).receives:
            end.wire.clear()
            end.protocol.lost("RNR_RETRY_EXC_ERR")
            self.peer(end).protocol.disconnected()
            return True
        if end.wire:
            self.at -= 1
            if self.at == 0:
                out, payload = end.wire[0]
                header = bytearray(out.header)
                header[self.place % len(header)] ^= self.mask
                end.wire[0] = (replace(out, header=bytes(header)), payload)
        return super().arrive(end)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 60), st.integers(0, 31), st.integers(1, 255), st.integers(0, 600), st.integers(0, 600))
def test_one_wrong_byte_between_two_ends_hangs_nobody(
    at: int, place: int, mask: int, a_size: int, b_size: int
) -> None:
    pair = Liar(at, place, mask)
    for end, size in ((pair.a, a_size), (pair.b, b_size)):
        region = end.protocol.share(0, 8, 1, AccessFlags.REMOTE_READ)
        end.protocol.send(bytes(size))
        end.protocol.withdraw(region.id)
        end.announce(bytes(size + 1))
        end.protocol.send(b"")
        end.protocol.close(0.0, timeout=5.0)
    pair.run()
    pair.now = 6.0
    for end in pair.ends:
        end.protocol.timer(pair.now)
    pair.run()
    for end in pair.ends:
        if end.protocol.finished:
            pair.peer(end).protocol.disconnected(end.protocol.farewell)
    pair.run()
    for end in pair.ends:
        assert end.protocol.finished
        assert end.events
