# SPDX-License-Identifier: Apache-2.0
"""A cyclic buffer in the receiver's memory, into which the sender RDMA WRITEs records.

    reader = RingReader(port, 1 << 20)            # one end; reader.window goes to the other end, by any way
    reader.begin(peers_window)
    for record in reader: ...

    writer = RingWriter(port, reader_window)      # the other end; writer.window goes to the reader
    writer.put(b"record")
    writer.put_many(records)                      # one WRITE for all that fit, and one for the new tail

What is on the wire: the writer's number (cursor.py) is the *tail*, the bytes ever put; the reader's is the *head*,
the bytes ever taken. Behind its board the reader has the ring, whose length is a power of two. A record is its
length (4 bytes, little-endian) and its bytes, padded to a multiple of 8; it lies in one piece. Where one would not
fit before the end of the ring, the length ffffffff says that the rest of the ring is skipped. A record takes at
most half of the ring.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

from rnic.patterns.cursor import BOARD, Cursor, LiarError
from rnic.patterns.ports import Piece, Port, Steps, Window, run
from rnic.times import after

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rnic.endpoint.buffers import AnyBuffer

__all__ = ["RingReader", "RingWriter"]

_LENGTH = struct.Struct("<I")
_SKIP = 0xFFFFFFFF
_SKIPS = _LENGTH.pack(_SKIP)
_PADS = [bytes(-n % 8) for n in range(8)]
LEAST = 256


def _size(record: int) -> int:
    """Bytes that a record takes."""
    return _LENGTH.size + record + 7 & ~7


class RingWriter:
    """The sending end. It keeps a copy of the ring, from which it WRITEs; so put() may forget its record."""

    def __init__(self, port: Port, remote: Window) -> None:
        size = remote.length - BOARD
        if size < LEAST or size & (size - 1):
            raise LiarError(f"a ring of {size} bytes: it is a power of two, from {LEAST} on")
        self._port, self._size = port, size
        self._mr = port.memory(BOARD + size)
        self._cursor = Cursor(self._mr, remote)
        self._copy = self._mr.buf[BOARD:]
        self.longest = size // 2 - _LENGTH.size
        """The longest record, in bytes."""
        self.window = Window(self._mr.addr, BOARD, self._mr.rkey)
        """For the reader."""

    def put(self, record: AnyBuffer, timeout: float | None = None) -> None:
        """Put one record; waits while the ring is full. Raises ValueError for one that is too long,
        TimeoutError, or what the connection raises when the peer is gone.
        """
        self.put_many((record,), timeout)

    def put_many(self, records: Iterable[AnyBuffer], timeout: float | None = None) -> None:
        """Put many records, with as few WRITEs as the ring's room allows.

        After TimeoutError some of them were put: those that the reader gets.
        """
        run(self._port, self._put_many(deque(records), after(timeout)))

    def _put_many(self, records: deque[AnyBuffer], until: float | None) -> Steps[None]:
        while records:
            begin = self._cursor.own
            tail = self._lay(begin, records)
            if tail == begin:
                need = begin + self._need(begin, len(memoryview(records[0]).cast("B"))) - self._size
                yield from self._cursor.beyond(need - 1, begin, until, "put")
                continue
            yield from self._cursor.publish(tail, self._pieces(begin, tail))

    def _need(self, tail: int, record: int) -> int:
        """Bytes that a record takes there, with those that are skipped ahead of it."""
        size, rest = _size(record), self._size - tail % self._size
        return size if size <= rest else rest + size

    def _lay(self, tail: int, records: deque[AnyBuffer]) -> int:
        """Lays as many records into the copy as there is room for; the new tail."""
        limit = self._cursor.look(tail) + self._size
        while records:
            record = memoryview(records[0]).cast("B")
            length = len(record)
            if length > self.longest:
                raise ValueError(f"a record of {length} bytes: the ring takes {self.longest} at most")
            need = self._need(tail, length)
            if tail + need > limit:
                break
            at = tail % self._size
            if need > _size(length):
                self._copy[at : at + 4] = _SKIPS
                at = 0
            _LENGTH.pack_into(self._copy, at, length)
            self._copy[at + 4 : at + 4 + length] = record
            tail += need
            records.popleft()
        return tail

    def _pieces(self, begin: int, end: int) -> list[Piece]:
        first, last = begin % self._size, end % self._size
        if first < last or not last:
            return [Piece(BOARD + first, end - begin, BOARD + first)]
        return [
            Piece(BOARD + first, self._size - first, BOARD + first),
            Piece(BOARD, last, BOARD),
        ]


class RingReader:
    """The receiving end. begin() it with the writer's window, before the first get()."""

    def __init__(self, port: Port, nbytes: int = 1 << 20) -> None:
        if nbytes < LEAST or nbytes & (nbytes - 1):
            raise ValueError(f"a ring of {nbytes} bytes: give a power of two, from {LEAST} on")
        self._port, self._size = port, nbytes
        self._mr = port.memory(BOARD + nbytes)
        self._ring = self._mr.buf[BOARD:]
        self._cursor: Cursor | None = None
        self._head = 0
        self.window = Window(self._mr.addr, self._mr.length, self._mr.rkey)
        """For the writer."""

    def begin(self, remote: Window) -> None:
        """Take the writer's window."""
        if remote.length < BOARD:
            raise LiarError(f"a writer's window of {remote.length} bytes: it has {BOARD}")
        self._cursor = Cursor(self._mr, remote)

    def get(self, timeout: float | None = None) -> bytes:
        """The next record; waits for it. Raises TimeoutError, LiarError, or what the connection raises."""
        return self.get_many(1, timeout)[0]

    def get_many(self, most: int | None = None, timeout: float | None = None) -> list[bytes]:
        """Wait for a record; returns it and those behind it, at most `most`."""
        return run(self._port, self._get_many(most, after(timeout)))

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield from self.get_many()

    def _get_many(self, most: int | None, until: float | None) -> Steps[list[bytes]]:
        cursor = self._cursor
        if cursor is None:
            raise ValueError("get() before begin(): the reader does not know its writer")
        found: list[bytes] = []
        while not found:
            yield from cursor.beyond(self._head, self._head + self._size, until, "get")
            self._take(found, cursor.seen, most)
            if self._head - cursor.own >= self._size // 4 or self._head == cursor.seen:
                yield from cursor.publish(self._head, [])
        return found

    def _take(self, found: list[bytes], tail: int, most: int | None) -> None:
        head, ring, mask = self._head, self._ring, self._size - 1
        while head < tail and len(found) != most:
            at = head & mask
            (length,) = _LENGTH.unpack_from(ring, at)
            size = self._size - at if length == _SKIP else length + 11 & ~7
            if head + size > tail or at + size > self._size:
                raise LiarError(f"a record of {length} bytes, {tail - head} bytes before the tail")
            if length != _SKIP:
                found.append(bytes(ring[at + 4 : at + 4 + length]))
            head += size
        self._head = head
