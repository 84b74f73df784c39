# SPDX-License-Identifier: Apache-2.0
"""The protocol of channels on plain queues: every SEND meets a receive, and nobody waits for ever."""

from __future__ import annotations

import struct
from collections import deque
from random import Random

import pytest

import rnic
from rnic.patterns.credits.flow import HEADER, Flow, Kind
from rnic.patterns.cursor import LiarError

HELLO = struct.pack("<BxHI4sHHII", 1, 0, 0, b"rnCF", 1, 4, 64, 1000)


class End:
    """An end whose device is two queues."""

    def __init__(self, receives: int = 4, size: int = 64, longest: int = 1000, backlog: int = 0) -> None:
        self.flow = Flow(receives, size, longest, backlog)
        self.posted, self.size = receives, size
        self.wire: deque[bytes] = deque()  # to this end
        self.got: list[bytes] = []

    def step(self, peer: End) -> bool:
        """Post what may go next; whether there was anything."""
        self.posted += self.flow.receives_to_post()
        if (out := self.flow.next_send()) is None:
            return False
        peer.wire.append(b"".join(out))
        return True

    def arrive(self) -> bool:
        """The next SEND comes in; whether there was one."""
        if not self.wire:
            return False
        send = self.wire.popleft()
        assert self.posted > 0, "a SEND that meets no receive"
        assert len(send) <= self.size, "a SEND that is longer than its receive"
        self.posted -= 1
        self.flow.receive(send)
        return True

    def take(self) -> bool:
        """The program takes a message, or waits for one; whether there was one."""
        self.flow.wanted = 1
        if (message := self.flow.take()) is None:
            return False
        self.got.append(message)
        return True


def messages(dice: Random, longest: int) -> list[bytes]:
    return [dice.randbytes(dice.choice([0, 1, 55, 56, 57, longest])) for _ in range(30)]


@pytest.mark.parametrize("seed", range(60))
def test_all_arrives_whatever_the_order_of_steps(seed: int) -> None:
    dice = Random(seed)
    a, b = (
        End(dice.choice([3, 4, 5, 16]), dice.choice([64, 100, 4096]), 1000, dice.choice([0, 500, 5000]))
        for _ in range(2)
    )
    sent = messages(dice, 1000), messages(dice, 1000)
    for end, peer, batch in (a, b, sent[0]), (b, a, sent[1]):
        end.step(peer)  # the HELLO, without which no length is known
        for message in batch:
            end.flow.queue(message)
    deeds = [lambda: a.step(b), lambda: b.step(a), a.arrive, b.arrive, a.take, b.take]
    still = 0
    while len(a.got) < 30 or len(b.got) < 30:
        deed = dice.choice(deeds)
        still = 0 if deed() else still + 1
        if still > 50:  # chance may have left out one that could be done
            assert any(deed() for deed in deeds), "both ends wait"
            still = 0
    assert (b.got, a.got) == sent


def test_a_direction_whose_program_takes_nothing_does_not_stop_the_other() -> None:
    a, b = talking()
    for _ in range(50):
        a.flow.queue(b"x" * 50)
        b.flow.queue(b"y" * 50)
    while a.step(b) or b.step(a) or b.arrive() or a.arrive() or a.take():
        pass
    assert len(a.got) == 50
    assert b.flow.statistics().backlog < 50 * 50  # the rest waits at a


def test_a_waiting_program_gets_a_message_beyond_the_backlog() -> None:
    a, b = talking()
    a.flow.queue(bytes(1000))
    b.flow.wanted = 1
    while a.step(b) or b.step(a) or b.arrive() or a.arrive():
        pass
    assert b.flow.take() == bytes(1000)


def talking() -> tuple[End, End]:
    """Two ends that know each other."""
    a, b = End(), End()
    a.step(b)
    b.step(a)
    a.arrive()
    b.arrive()
    return a, b


def test_a_message_that_was_not_begun_can_be_taken_back() -> None:
    a, b = talking()
    handle = a.flow.queue(b"first")
    a.flow.queue(b"second")
    a.flow.take_back(handle)
    while a.step(b) or b.arrive():
        pass
    assert b.flow.take() == b"second"


def test_a_message_that_was_begun_comes_whole_though_its_buffer_changes() -> None:
    a, b = talking()
    buffer = bytearray(b"x" * 300)
    handle = a.flow.queue(buffer)
    a.step(b)
    a.flow.take_back(handle)
    buffer[:] = b"y" * 300
    b.flow.wanted = 1
    while a.step(b) or b.step(a) or b.arrive() or a.arrive():
        pass
    assert b.flow.take() == b"x" * 300


def test_too_long_for_the_peer_is_refused_also_if_queued_before_its_hello() -> None:
    a, b = End(), End(longest=10)
    early = a.flow.queue(bytes(11))
    b.step(a)
    a.arrive()
    with pytest.raises(rnic.MessageTooLongError, match="11 bytes: the peer takes 10"):
        a.flow.is_sent(early)
    with pytest.raises(rnic.MessageTooLongError):
        a.flow.queue(bytes(11))


def test_the_end_comes_behind_the_messages() -> None:
    a, b = talking()
    a.flow.queue(b"last")
    a.flow.end()
    while a.step(b) or b.arrive():
        pass
    assert b.flow.take() == b"last"
    with pytest.raises(EOFError):
        b.flow.take()
    with pytest.raises(ValueError, match="after close"):
        a.flow.queue(b"more")


def test_both_ends_know_that_all_has_arrived() -> None:
    a, b = talking()
    for end in (a, b):
        end.flow.queue(b"last")
        end.flow.end()
    while a.step(b) or b.step(a) or a.arrive() or b.arrive():
        assert not (a.flow.finished and not b.flow.ended)
    assert a.flow.finished
    assert b.flow.finished


def test_an_abort_says_why_to_the_peer() -> None:
    a, b = talking()
    a.flow.fail(LiarError("it lied"), "it lied")
    assert a.step(b)
    assert not a.step(b)
    b.arrive()
    with pytest.raises(rnic.AbortedError, match="it lied"):
        b.flow.take()


LIES = {
    "no header": (b"\2\0\0", "no header"),
    "an unknown kind": (HEADER.pack(9, 0, 0), "kind 9"),
    "a second HELLO": (HELLO, "HELLO"),
    "credits that were never given": (HEADER.pack(Kind.CREDIT, 9, 0), "gave 12 credits: it has 4"),
    "a CREDIT of nothing": (HEADER.pack(Kind.CREDIT, 1, 0), "CREDIT of 1"),
    "more than the rest": (HEADER.pack(Kind.PIECE, 0, 2) + b"abc", "3 bytes, where 2"),
    "a piece of nothing": (HEADER.pack(Kind.PIECE, 0, 2), "0 bytes, where 2"),
    "too long a message": (HEADER.pack(Kind.PIECE, 0, 1001) + b"a", "1001 bytes"),
    "an END with a body": (HEADER.pack(Kind.END, 0, 0) + b"a", "END"),
    "a SEEN of no END": (HEADER.pack(Kind.SEEN, 0, 0), "did not send"),
    "a CREDIT with a rest": (HEADER.pack(Kind.CREDIT, 2, 1), "CREDIT"),
}


def knowing() -> Flow:
    """An end that has the peer's HELLO, and has sent its own."""
    flow = Flow(4, 64, 1000, 0)
    flow.next_send()
    flow.receive(HELLO)
    return flow


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found_out(lie: str) -> None:
    send, why = LIES[lie]
    with pytest.raises(LiarError, match=why):
        knowing().receive(send)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (HEADER.pack(Kind.PIECE, 0, 5) + b"abc", "says 5 bytes are left of its message: 6"),
        (HEADER.pack(Kind.END, 0, 0), "inside a message"),
    ],
)
def test_a_message_goes_on_as_it_began(second: bytes, why: str) -> None:
    flow = knowing()
    flow.receive(HEADER.pack(Kind.PIECE, 0, 7) + b"a")
    with pytest.raises(LiarError, match=why):
        flow.receive(second)


def test_nothing_follows_an_end() -> None:
    flow = knowing()
    flow.receive(HEADER.pack(Kind.END, 0, 0))
    with pytest.raises(LiarError, match="after its END"):
        flow.receive(HEADER.pack(Kind.PIECE, 0, 1) + b"a")


def test_a_send_without_a_credit_is_found_out() -> None:
    flow = knowing()
    for _ in range(3):  # the HELLO took the first of four
        flow.receive(HEADER.pack(Kind.PIECE, 0, 1) + b"a")
    with pytest.raises(LiarError, match="without a credit"):
        flow.receive(HEADER.pack(Kind.PIECE, 0, 1) + b"a")


@pytest.mark.parametrize(
    ("at", "value"), [(8, b"Rn"), (12, b"\2\0"), (14, b"\2\0"), (16, b"\x3f\0"), (16, b"\0\0\0\x7f")]
)
def test_a_hello_that_cannot_be_is_found_out(at: int, value: bytes) -> None:
    hello = bytearray(HELLO)
    hello[at : at + len(value)] = value
    with pytest.raises(LiarError):
        Flow(4, 64, 1000, 0).receive(bytes(hello))


@pytest.mark.parametrize("seed", range(100))
def test_any_bytes_are_a_message_or_a_lie(seed: int) -> None:
    dice, flow = Random(seed), knowing()
    for _ in range(8):
        head = HEADER.pack(dice.randint(1, 6), dice.choice([0, 0, 1, 2, 9]), dice.choice([0, 1, 5, 60]))
        send = (head + dice.randbytes(dice.choice([0, 1, 5, 56])))[: dice.choice([7, 64, 64, 64])]
        try:
            flow.receive(send)
        except LiarError:
            return


@pytest.mark.parametrize("wrong", [(2, 64, 0, 0), (3, 63, 0, 0), (3, 64, 1 << 32, 0), (3, 64, 0, -1)])
def test_impossible_sizes_are_refused(wrong: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="give"):
        Flow(*wrong)
