# SPDX-License-Identifier: Apache-2.0
"""What a peer may say, and when: the books of both ends, without I/O. What is not allowed is a CopyError."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_128

if TYPE_CHECKING:
    from rnic.files.records import Data, Entry, Opened

__all__ = ["CopyError", "Incoming", "Outgoing", "Pace", "Sum", "Told"]

SLOW = 4.0
"""A WRITE of more seconds halves how much goes at a time. ALIVE and twice this are less than QUIET."""
LEAST = 256 * 1024
"""Bytes that go at a time, at least."""

_DATA = Struct("<QI16s")


class CopyError(ConnectionError):
    """The peer refuses, is silent, or says what the protocol does not allow. The copy has ended."""


class Sum:
    """The digest of a file's Data, in their order: both ends keep one."""

    def __init__(self) -> None:
        self._hash = xxh3_128()

    def add(self, data: Data) -> None:
        """One more."""
        self._hash.update(_DATA.pack(data.offset, data.length, data.digest))

    def digest(self) -> bytes:
        """Of all so far."""
        return self._hash.digest()


class Pace:
    """How many bytes go at a time: with more, a slow link would carry nothing else for so long that
    the peer misses the signs of life, which wait behind them.
    """

    def __init__(self, most: int) -> None:
        self._most, self.limit = most, LEAST

    def took(self, seconds: float) -> None:
        """A WRITE or a message has taken so long, with those that were ahead of it."""
        self.limit = max(LEAST, self.limit // 2) if seconds > SLOW else min(self._most, self.limit * 2)


class Told(NamedTuple):
    """What the receiver was told of an entry."""

    path: bytes
    size: int
    folder: bool = False


class Outgoing:
    """The sender's books: entries without an answer, slots in use."""

    def __init__(self, slots: int) -> None:
        self.entries = 0
        """Entries that were sent; the number of the next one."""
        self.unanswered: dict[int, Told] = {}
        """Those that have no Done yet, by their numbers."""
        self.asked: set[int] = set()
        self.free = list(range(slots))
        self._busy: dict[int, int] = {}
        self.finishing = False

    def new_id(self) -> int:
        """The number of a new entry."""
        return self.new_ids(1)

    def new_ids(self, count: int) -> int:
        """The first of so many numbers."""
        self.entries += count
        return self.entries - count

    def sent(self, entries: dict[int, Told]) -> None:
        """Entries are on their way."""
        self.unanswered |= entries

    def use(self, slot: int, length: int) -> None:
        """A Data is about to be sent."""
        self._busy[slot] = length

    def freed(self, slot: int) -> int:
        """A Free has come; the bytes that were in the slot."""
        if slot not in self._busy:
            raise CopyError(f"the peer freed slot {slot}, which was not in use")
        self.free.append(slot)
        return self._busy.pop(slot)

    def check_open(self, number: int) -> None:
        """The peer says something of a file that it has not ended."""
        if number not in self.unanswered:
            raise CopyError(f"the peer told of file {number}, which is not on its way")

    def opened(self, record: Opened) -> None:
        """An answer to an Open has come."""
        if record.id not in self.asked:
            raise CopyError(f"the peer answered for file {record.id}, which was not asked")
        self.asked.discard(record.id)

    def done(self, number: int) -> Told:
        """An entry has ended."""
        found = self.unanswered.pop(number, None)
        if found is None:
            raise CopyError(f"the peer ended file {number}, which is not on its way")
        return found

    def finished(self) -> None:
        """A Finished has come."""
        if not self.finishing or self.unanswered:
            raise CopyError("the peer finished before everything was sent and answered")


class Incoming:
    """The receiver's books: the next entry, open files, slots in use."""

    def __init__(self, slots: int, chunk: int) -> None:
        self._slots, self._chunk = slots, chunk
        self.entries = 0
        self.open: dict[int, tuple[int, Sum]] = {}
        """Size and digest of each open file, by id."""
        self.asked: dict[int, int] = {}
        """What was offered to a file that may be resumed: the offset."""
        self._busy: set[int] = set()
        self.most_open = 4 * slots

    def entry(self, number: int, count: int = 1) -> None:
        """So many entries have come, from this number on."""
        if number != self.entries:
            raise CopyError(f"the peer sent entry {number} where {self.entries} was due")
        self.entries += count

    def begin(self, record: Entry) -> None:
        """A file is open now."""
        if len(self.open) >= self.most_open:
            raise CopyError(f"the peer opened more than {self.most_open} files at a time")
        self.open[record.id] = record.size, Sum()

    def data(self, record: Data) -> None:
        """A Data has come: its slot is in use from now on."""
        if record.id not in self.open or record.id in self.asked:
            raise CopyError(f"the peer sent data of file {record.id}, which is not open")
        size, total = self.open[record.id]
        if record.slot >= self._slots or record.slot in self._busy:
            raise CopyError(f"the peer sent data in slot {record.slot}, which it may not use")
        if not 0 < record.length <= self._chunk or record.offset + record.length > size:
            span = f"{record.length} bytes at {record.offset}"
            raise CopyError(f"the peer sent {span} of a file of {size} bytes, in a slot of {self._chunk}")
        self._busy.add(record.slot)
        total.add(record)

    def freed(self, slot: int) -> None:
        """A slot is free again."""
        self._busy.discard(slot)

    def resume(self, file: int, offset: int) -> None:
        """A Resume has come."""
        have = self.asked.pop(file, None)
        if have is None or offset not in (0, have):
            raise CopyError(f"the peer resumed file {file} at {offset}, which was not offered")

    def end(self, file: int) -> Sum:
        """A file's End or Cancel has come; its digest."""
        found = self.open.pop(file, None)
        if found is None:
            raise CopyError(f"the peer ended file {file}, which is not open")
        self.asked.pop(file, None)
        return found[1]

    def finish(self, entries: int) -> None:
        """A Finish has come."""
        if entries != self.entries or self.open:
            raise CopyError(f"the peer finished after {entries} entries, {self.entries} have come")
