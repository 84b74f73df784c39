# SPDX-License-Identifier: Apache-2.0
"""What a subscriber makes of datagrams, boards and slots, without a device: whatever is lost, repeated, out
of order, made up by strangers or READ while it is being written.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic import GID
from rnic.patterns.cursor import LiarError
from rnic.patterns.pubsub.feed import Feed, MissedError
from rnic.patterns.pubsub.wire import BOARD, END, HEADER, MAGIC, SLOTS, Welcome, stride, write_slot

EPOCH, QPN, SLOT_COUNT, LONGEST = 0x1122334455667788, 77, 16, 40
WELCOME = Welcome(EPOCH, SLOT_COUNT, LONGEST, 5, QPN, GID("239.1.2.3"), GID("10.0.0.7"))
HEADERS = bytes(32) + bytes([10, 0, 0, 7]) + bytes(4)


class Ring:
    """The publisher's side: its memory, and the datagrams that it would send."""

    def __init__(self) -> None:
        self.memory = bytearray(SLOTS + SLOT_COUNT * stride(LONGEST))
        self.head, self.ended = 0, 0
        self.said: list[bytes] = []

    def publish(self, message: bytes) -> bytes:
        at = SLOTS + self.head % SLOT_COUNT * stride(LONGEST)
        write_slot(memoryview(self.memory), at, EPOCH, self.head, memoryview(message))
        self.head += 1
        self.said.append(message)
        return bytes(self.memory[at : at + HEADER.size + len(message)])

    @property
    def board(self) -> bytes:
        return BOARD.pack(self.head, self.ended)

    def look(self, feed: Feed) -> None:
        feed.board(self.board)

    def fetch(self, feed: Feed, most: int = 100, length: int = stride(LONGEST)) -> None:
        for number in feed.missing(most):
            at = feed.place(number)
            if more := feed.fetched(number, bytes(self.memory[at : at + length])):
                assert more > length
                assert feed.fetched(number, bytes(self.memory[at : at + more])) == 0


def begun(ring: Ring, replay: bool = False) -> Feed:
    feed = Feed(WELCOME)
    feed.begin(ring.board, replay)
    return feed


def hear(feed: Feed, data: bytes, headers: bytes = HEADERS, qpn: int = QPN) -> None:
    feed.datagram(qpn, headers + data)


def taken(feed: Feed) -> list[bytes | int]:
    found: list[bytes | int] = []
    while feed.ready:
        try:
            found.append(feed.take())
        except MissedError as error:
            found.append(error.count)
    return found


@pytest.mark.parametrize("loss", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("seed", range(10))
def test_every_message_once_and_in_order_or_counted_as_missed(seed: int, loss: float) -> None:
    dice = random.Random(seed)
    ring, heard = Ring(), list[bytes | int]()
    feed = begun(ring)
    air: list[bytes] = []
    for _ in range(2000):
        match dice.randrange(8):
            case 0 | 1 | 2:
                datagram = ring.publish(dice.randbytes(dice.randint(0, LONGEST)))
                if dice.random() >= loss:
                    air.insert(dice.randint(max(0, len(air) - 3), len(air)), datagram)
            case 3 | 4 | 5 if air:
                hear(feed, air[0] if dice.random() < 0.1 else air.pop(0))
            case 6 if feed.due or dice.random() < 0.1:
                ring.look(feed)
            case 7:
                ring.fetch(feed, dice.randint(1, 5), dice.choice((HEADER.size, stride(LONGEST))))
        heard += taken(feed)
    ring.ended = 1
    while not feed.ended:
        ring.look(feed)
        ring.fetch(feed)
        heard += taken(feed)
    number = missed = 0
    for one in heard:
        if isinstance(one, int):
            number, missed = number + one, missed + one
        else:
            assert one == ring.said[number]
            number += 1
    assert number == len(ring.said)
    said = feed.statistics()
    assert (said.missed, said.received + said.repaired) == (missed, number - missed)
    assert said.strange == 0


def test_what_was_overwritten_is_counted_once_and_what_came_by_datagram_is_not() -> None:
    ring = Ring()
    feed = begun(ring)
    datagrams = [ring.publish(b"%d" % n) for n in range(40)]
    hear(feed, datagrams[0])
    hear(feed, datagrams[5])
    hear(feed, datagrams[30])  # too far ahead to keep: a reason to look
    assert (feed.due, taken(feed)) == (True, [b"0"])
    ring.look(feed)
    assert taken(feed) == [4, b"5", 19]
    assert feed.missing(3) == [25, 26, 27]
    ring.fetch(feed)
    assert taken(feed) == [b"%d" % n for n in range(25, 40)]
    assert feed.statistics().strange == 0


def test_messages_missed_one_after_the_other_are_one_gap() -> None:
    ring = Ring()
    feed = begun(ring)
    for _ in range(3):
        for _ in range(20):
            ring.publish(b"")
        ring.look(feed)
    assert taken(feed) == [45]


def test_a_late_subscriber_begins_at_the_head_or_at_the_oldest() -> None:
    ring = Ring()
    for n in range(20):
        ring.publish(b"%d" % n)
    assert begun(ring).next == 20
    feed = begun(ring, replay=True)
    ring.fetch(feed)
    assert taken(feed) == [b"%d" % n for n in range(5, 20)]


def test_a_message_that_was_announced_and_the_notice_of_the_end_are_reasons_to_look() -> None:
    ring = Ring()
    feed = begun(ring)
    hear(feed, ring.publish(b"long")[: HEADER.size])
    assert (feed.due, feed.ready) == (True, False)
    ring.look(feed)
    ring.fetch(feed)
    assert (feed.due, taken(feed)) == (False, [b"long"])
    ring.ended = 1
    hear(feed, HEADER.pack(MAGIC, 0, EPOCH, 1, END, 0))
    assert (feed.due, feed.ended) == (True, False)
    ring.look(feed)
    assert feed.ended
    assert feed.statistics().strange == 0


# ---------------------------------------------------------------- strangers


def test_what_is_not_the_publishers_is_counted_and_forgotten() -> None:
    ring = Ring()
    feed = begun(ring)
    good = ring.publish(b"good")
    other = bytes(32) + bytes([10, 0, 0, 8]) + bytes(4)
    hear(feed, good, headers=other)
    hear(feed, good, qpn=QPN + 1)
    for cut in (0, 1, HEADER.size - 1, len(good) - 1):
        hear(feed, good[:cut])
    hear(feed, good + b"x")
    for at in (0, 5, 9, 17, 25, 33):  # magic, CRC, epoch, number, length, message
        hear(feed, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    hear(feed, HEADER.pack(MAGIC, 0, EPOCH, 0, LONGEST + 1, 0))
    assert (feed.ready, feed.due, feed.next) == (False, False, 0)
    assert feed.statistics().strange == 14
    hear(feed, good)
    assert taken(feed) == [b"good"]


def test_a_message_without_bytes_has_a_checksum_too() -> None:
    ring = Ring()
    feed = begun(ring)
    good = ring.publish(b"")
    for at in (5, 16, 17):  # CRC, number
        hear(feed, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    assert (feed.ready, feed.due) == (False, False)
    assert feed.statistics().strange == 3
    hear(feed, good)
    assert taken(feed) == [b""]


@pytest.mark.parametrize("number", [1, 15, 16, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("form", ["message", "announcement", "end"])
def test_what_is_ahead_of_the_publisher_is_believed_only_if_its_board_says_so(number: int, form: str) -> None:
    ring = Ring()
    feed = begun(ring)
    slot = memoryview(bytearray(stride(LONGEST)))
    write_slot(slot, 0, EPOCH, number, memoryview(b"lie"))
    lies = {
        "message": bytes(slot[: HEADER.size + 3]),
        "announcement": bytes(slot[: HEADER.size]),
        "end": HEADER.pack(MAGIC, 0, EPOCH, number, END, 0),
    }
    hear(feed, lies[form])
    assert (feed.due, feed.ready) == (True, False)
    ring.look(feed)
    assert (feed.due, feed.ready, feed.ended, feed.next) == (False, False, False, 0)
    assert (feed.statistics().strange, feed.statistics().received) == (1, 0)
    hear(feed, ring.publish(b"true"))
    assert taken(feed) == [b"true"]


def test_a_flood_of_messages_ahead_is_kept_in_bounds() -> None:
    welcome = Welcome(EPOCH, 1 << 20, 0, 5, QPN, WELCOME.group, WELCOME.source)
    feed = Feed(welcome)
    feed.begin(BOARD.pack(0, 0), False)
    slot = memoryview(bytearray(64))
    for number in range(1, 5000):
        write_slot(slot, 0, EPOCH, number, memoryview(b""))
        hear(feed, bytes(slot[: HEADER.size]))
    assert len(feed._early) + len(feed._claims) <= 2048
    feed.board(BOARD.pack(0, 0))
    assert not feed._early
    assert not feed._claims


@given(st.binary(max_size=120), st.booleans())
def test_any_datagram(data: bytes, headed: bool) -> None:
    feed = begun(Ring())
    feed.datagram(QPN, HEADERS + HEADER.pack(MAGIC, 0, EPOCH, 0, 10, 0) + data if headed else data)
    assert feed.ready is False


# ---------------------------------------------------------------- a publisher that lies


@pytest.mark.parametrize(
    ("before", "after"),
    [((5, 0), (4, 0)), ((5, 0), (5, 2)), ((5, 1), (5, 0)), ((5, 1), (6, 1)), ((0, 0), (0, 1 << 63))],
)
def test_a_board_that_cannot_be(before: tuple[int, int], after: tuple[int, int]) -> None:
    feed = Feed(WELCOME)
    feed.begin(BOARD.pack(*before), False)
    with pytest.raises(LiarError):
        feed.board(BOARD.pack(*after))


def test_a_number_that_jumps_is_a_gap_and_takes_no_time() -> None:
    feed = begun(Ring())
    feed.board(BOARD.pack((1 << 64) - 1, 0))
    assert taken(feed) == [(1 << 64) - 1 - 15]
    assert len(feed.missing(1000)) == 15


def test_a_slot_that_never_has_what_the_board_says() -> None:
    ring = Ring()
    feed = begun(ring)
    ring.publish(b"whole")
    ring.memory[SLOTS + HEADER.size] ^= 1
    ring.look(feed)
    for _ in range(7):
        ring.fetch(feed)
        assert (feed.due, feed.ready) == (True, False)
        ring.look(feed)
    ring.fetch(feed)
    with pytest.raises(LiarError, match="message 0"):
        ring.look(feed)


def test_a_slot_that_is_overwritten_while_it_is_read_is_a_gap() -> None:
    ring = Ring()
    feed = begun(ring)
    for n in range(15):
        ring.publish(b"%d" % n)
    ring.look(feed)
    for n in range(15, 20):
        ring.publish(b"%d" % n)
    ring.fetch(feed, 1)
    assert (feed.due, feed.ready) == (True, False)
    ring.look(feed)
    assert taken(feed) == [5]
    assert feed._doubts == {}


@given(st.binary(max_size=120), st.booleans())
def test_any_slot(data: bytes, headed: bool) -> None:
    ring = Ring()
    feed = begun(ring)
    ring.publish(b"x")
    ring.look(feed)
    slot = HEADER.pack(MAGIC, 0, EPOCH, 0, 10, 0) + data if headed else data
    assert feed.fetched(0, slot) in (0, HEADER.size + 10)
    assert feed.ready is False


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slots": 1}, "1 slots"),
        ({"slots": (1 << 20) + 1}, "slots"),
        ({"longest": (16 << 20) + 1}, "messages of"),
        ({"slots": SLOT_COUNT + 1}, "too few"),
        ({"longest": LONGEST + 64}, "too few"),
        ({"group": GID("10.0.0.1")}, "which is none"),
    ],
)
def test_a_welcome_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    room = SLOTS + SLOT_COUNT * stride(LONGEST)
    names = "epoch", "slots", "longest", "qkey", "qp_num", "group", "source"
    good = {name: getattr(WELCOME, name) for name in names}
    assert Welcome.parse(Welcome(**good).pack(), room) == WELCOME
    with pytest.raises(ValueError, match=words):
        Welcome.parse(Welcome(**{**good, **changes}).pack(), room)


@given(st.binary(max_size=100))
def test_any_welcome(data: bytes) -> None:
    with pytest.raises(ValueError, match="no publisher"):
        Welcome.parse(data, 1 << 20)
