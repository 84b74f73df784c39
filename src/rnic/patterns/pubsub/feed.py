# SPDX-License-Identifier: Apache-2.0
"""What a subscriber knows, and whom it trusts. No I/O and no clock: it is told of datagrams, of the
publisher's board and of slots, and says what to READ next.

Anybody can send to a group. So a datagram that does not come from the publisher's address and queue pair, or
does not have its epoch, its length and its CRC, is counted and forgotten. The next message in order is taken
from a datagram alone. Everything else is only a reason to look at the board, which comes by the connection: a
message that is ahead is kept until then, and forgotten if the board says that it is not published yet.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from rnic.patterns.cursor import LiarError
from rnic.patterns.pubsub.wire import BOARD, END, HEADER, SLOTS, is_whole, read_head, stride
from rnic.records import Record

if TYPE_CHECKING:
    from rnic.patterns.pubsub.wire import Welcome

__all__ = ["Feed", "MissedError", "SubscriberStatistics"]

GRH = 40  # bytes in front of a datagram: its addresses
FIRST = 2048  # bytes of a slot that are READ before its message's length is known
_EARLY = 1024  # messages ahead that are kept
_TRIES = 8
_IPV4 = bytes(10) + b"\xff\xff"


class MissedError(RuntimeError):
    """Messages were overwritten in the publisher's ring before this subscriber had them; the next call goes
    on behind them. `count` says how many they were.
    """

    def __init__(self, count: int) -> None:
        super().__init__(
            f"{count} messages were overwritten before they were received: receive faster, or publish with"
            " more slots"
        )
        self.count = count


class SubscriberStatistics(Record):
    """What a subscriber has seen so far."""

    received: int
    """Messages that came as datagrams."""
    repaired: int
    """Messages that were READ from the publisher's ring: lost datagrams, and messages that were announced."""
    missed: int
    """Messages that were overwritten before they were received."""
    duplicates: int
    """Datagrams of messages that were there already."""
    strange: int
    """Datagrams that are not the publisher's, or that say what is not so."""
    looks: int
    """READs of the publisher's board."""


class Feed:
    """The messages of one publisher, in order."""

    def __init__(self, welcome: Welcome) -> None:
        self._epoch, self._slots, self._longest = welcome.epoch, welcome.slots, welcome.longest
        self._qp_num = welcome.qp_num
        raw = welcome.source.raw
        mapped = raw.startswith(_IPV4)
        self._sender = raw[12:] if mapped else raw
        self._at = slice(32, 36) if mapped else slice(8, 24)  # where the sender stands in those 40 bytes
        self.stride = stride(welcome.longest)
        self._ready: deque[bytes | int] = deque()  # a number: so many were missed
        self._early: dict[int, bytes] = {}
        self._claims: list[int] = []  # of other datagrams: so many messages are published
        self._torn: set[int] = set()  # whose slots had something else, since the last look at the board
        self._doubts: dict[int, int] = {}  # how often that was so although the board says otherwise
        self._next = self._head = 0
        self.due = False
        """Whether something is a reason to look at the board."""
        self.ended = False
        """Whether the publisher has ended, and all messages were taken from here."""
        self._last = False
        self._received = self._repaired = self._missed = self._duplicates = self._strange = self._looks = 0

    def statistics(self) -> SubscriberStatistics:
        """What it has seen so far."""
        return SubscriberStatistics(
            self._received, self._repaired, self._missed, self._duplicates, self._strange, self._looks
        )

    @property
    def ready(self) -> bool:
        """Whether take() has something."""
        return bool(self._ready)

    @property
    def next(self) -> int:
        """The number of the message that is waited for."""
        return self._next

    def take(self) -> bytes:
        """The next message; MissedError if there are none for a while."""
        found = self._ready.popleft()
        self._end_if_all()
        if isinstance(found, int):
            raise MissedError(found)
        return found

    # ------------------------------------------------------------ datagrams

    def datagram(self, qp_num: int, raw: bytes) -> None:
        """One has come from this queue pair, with its 40 bytes of addresses in front."""
        data = raw[GRH:]
        said = read_head(data)
        if said is None or qp_num != self._qp_num or raw[self._at] != self._sender or said[1] != self._epoch:
            self._strange += 1
            return
        crc, _, number, length = said
        body = len(data) - HEADER.size
        if number < self._next or number in self._early:
            self._duplicates += 1
        elif not body and length == END:
            self._claim(number)
        elif length > self._longest or (
            (body or not length) and (body != length or not is_whole(data, crc, length))
        ):
            self._strange += 1
        elif body != length or number >= self._next + self._slots or len(self._early) >= _EARLY:
            self._claim(number + 1)
        else:
            self._arrived(number, data[HEADER.size :])

    def _claim(self, head: int) -> None:
        self.due = True
        if len(self._claims) < _EARLY:
            self._claims.append(head)

    def _arrived(self, number: int, message: bytes) -> None:
        self._received += 1
        if number == self._next:
            self._put(message)
            self._drain()
        else:
            self.due = True
            self._early[number] = message

    def _put(self, message: bytes) -> None:
        self._ready.append(message)
        self._next += 1

    def _drain(self) -> None:
        while self._next in self._early:
            self._put(self._early.pop(self._next))

    # ------------------------------------------------------------ the board

    def begin(self, board: bytes, replay: bool) -> None:
        """The board when the subscriber begins: with the next message, or with the oldest that is there."""
        self._read_board(board)
        self._next = self._oldest if replay else self._head
        self._end_if_all()

    def board(self, board: bytes) -> None:
        """The board was read; raises LiarError if it cannot be so, or if a slot has never what it says."""
        self.due = False
        self._read_board(board)
        for number in [n for n in self._early if n >= self._head]:
            del self._early[number]
            self._received -= 1
            self._strange += 1
        self._strange += sum(claim > self._head for claim in self._claims)
        self._claims.clear()
        self._judge()
        self._skip_to(self._oldest)
        self._end_if_all()

    @property
    def _oldest(self) -> int:
        """The oldest message that is not being overwritten."""
        return max(0, self._head + 1 - self._slots)

    def _read_board(self, board: bytes) -> None:
        head, ended = BOARD.unpack_from(board)
        if head < self._head or ended > 1 or ended < self._last or (self._last and head != self._head):
            raise LiarError(f"the publisher's number went from {self._head} to {head}, its end is {ended}")
        self._looks += 1
        self._head, self._last = head, bool(ended)

    def _end_if_all(self) -> None:
        self.ended = self._last and not self._ready and self._next >= self._head

    def _skip_to(self, oldest: int) -> None:
        """What is older is gone, if it did not come as a datagram."""
        for number in sorted(self._early):
            if number >= oldest:
                break
            self._miss(number - self._next)
            self._put(self._early.pop(number))
        self._miss(oldest - self._next)
        self._drain()

    def _judge(self) -> None:
        """Slots that had something else were overwritten, as the board tells now; or the publisher lies."""
        torn = [number for number in self._torn if number >= self._oldest]
        self._doubts = {number: self._doubts.get(number, 0) + 1 for number in torn}
        self._torn.clear()
        if (wrong := next((n for n, times in self._doubts.items() if times == _TRIES), None)) is not None:
            raise LiarError(f"the publisher says that message {wrong} is in its ring, and it is not")

    def _miss(self, count: int) -> None:
        if count <= 0:
            return
        self._missed += count
        self._next += count
        if self._ready and isinstance(self._ready[-1], int):
            count += self._ready.pop()  # type: ignore[operator] # a number, too
        self._ready.append(count)

    # ------------------------------------------------------------ slots

    def missing(self, most: int) -> list[int]:
        """The numbers of messages to READ now, by the last look at the board: at most so many."""
        found: list[int] = []
        number = self._next
        while number < self._head and len(found) < most:
            if number not in self._early:
                found.append(number)
            number += 1
        return found

    def place(self, number: int) -> int:
        """Where in the ring this message's slot begins."""
        return SLOTS + number % self._slots * self.stride

    def fetched(self, number: int, slot: bytes) -> int:
        """The beginning of a message's slot was READ. How many bytes of it are needed, if these are too few;
        else 0.
        """
        said = read_head(slot)
        if said is not None and said[1:3] == (self._epoch, number) and said[3] <= self._longest:
            crc, _, _, length = said
            if HEADER.size + length > len(slot):
                return HEADER.size + length
            if is_whole(slot, crc, length):
                self._repaired += 1
                self._early[number] = slot[HEADER.size : HEADER.size + length]
                self._drain()
                return 0
        self.due = True
        self._torn.add(number)
        return 0
