# SPDX-License-Identifier: Apache-2.0
"""A cyclic buffer in the receiver's memory, into which the sender RDMA WRITEs records.

    with rnic.connect(host, port) as conn:          # one end
        writer = RingWriter.over(conn)
        writer.put_many(records)                    # one WRITE for all that fit, and one for the new tail
        writer.end()

    with listener.accept() as conn:                 # the other end
        for record in RingReader.over(conn, 1 << 20):
            ...

over() exchanges the memory of both ends by the connection. On queue pairs, a program makes each end from a
QueuePairPort, and tells the other end the window of its `mr`.

What is on the wire: the writer's number (cursor.py) is the *tail*, the bytes ever put; the reader's is the
*head*, the bytes ever taken. Behind its board the reader has the ring, whose length is a power of two. A
record is its length (4 bytes, little-endian) and its bytes, padded to a multiple of 8; it lies in one piece.
Instead of a length, ffffffff says that the rest of the ring is skipped, as the next record does not fit
there, and fffffffe that no record follows. A record takes at most half of the ring.
"""

from __future__ import annotations

import struct
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from rnic.endpoint.buffers import flat
from rnic.patterns.cursor import BOARD, Cursor, LiarError
from rnic.patterns.ports import AsyncPort, ConnectionPort, Piece, Port, run, run_async
from rnic.times import after

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    import rnic
    from rnic.aio import Connection as AsyncConnection
    from rnic.endpoint import Region
    from rnic.endpoint.buffers import AnyBuffer
    from rnic.patterns.ports import Steps, Window

__all__ = ["AsyncRingReader", "AsyncRingWriter", "RingReader", "RingWriter"]

P = TypeVar("P", Port, AsyncPort)
_LENGTH = struct.Struct("<I")
_SKIP, _END = 0xFFFFFFFF, 0xFFFFFFFE
LEAST = 256
SIZE = 1 << 20
_LONG, _SHORT = 1000, 200
"""Looks before a sleep: a thread looks for some 100 us, as a doorbell costs more; a loop has other tasks."""


def _size(record: int) -> int:
    """Bytes that a record takes."""
    return _LENGTH.size + record + 7 & ~7


# ---------------------------------------------------------------- the writing end


class _Writer:
    """It keeps a copy of the ring, from which it WRITEs: so a record may be forgotten when it was put, and
    the copy's bytes are free when the reader has taken them.
    """

    _spins = _SHORT

    def __init__(self, port: Port | AsyncPort, remote: Window | Region) -> None:
        size = remote.length - BOARD
        if size < LEAST or size & (size - 1):
            raise LiarError(f"a ring of {size} bytes: it is a power of two, from {LEAST} on")
        self._size = size
        self.mr = port.memory(BOARD + size)
        """Its memory; the reader needs the first 64 bytes."""
        self.longest = size // 2 - _LENGTH.size
        """The longest record, in bytes."""
        self._cursor = Cursor(port, self.mr, remote, self._spins)
        self._ended = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._size} bytes, {self._cursor.own} put>"

    def _put_now(self, record: AnyBuffer) -> bool:
        """put() where there is room, and nothing has to be waited for; False: nothing was done."""
        cursor, begin = self._cursor, self._cursor.own
        if self._ended or not cursor.is_ready:
            return False
        data = record if type(record) is bytes else flat(record, "put()")
        length, at = len(data), begin % self._size
        size = _size(length)
        if length > self.longest or at + size > self._size or begin + size - cursor.look(begin) > self._size:
            return False
        buf, at = self.mr.buf, BOARD + at
        _LENGTH.pack_into(buf, at, length)
        buf[at + 4 : at + 4 + length] = data
        cursor.publish_now(begin + size, at, size)
        return True

    def _put_many(self, records: Iterable[AnyBuffer], until: float | None) -> Steps[None]:
        left = deque(flat(record, "put()") for record in records)
        if self._ended:
            raise ValueError("put() behind end()")
        if long := next((len(record) for record in left if len(record) > self.longest), None):
            raise ValueError(f"a record of {long} bytes: this ring takes {self.longest} at most")
        yield from self._settle(until)
        while left:
            begin = self._cursor.own
            tail = self._lay(begin, left)
            if tail == begin:
                need = begin + self._need(begin, len(left[0])) - self._size
                yield from self._cursor.beyond(need - 1, begin, until, "put")
            else:
                yield from self._cursor.publish(tail, self._pieces(begin, tail), until)

    def _end(self, until: float | None) -> Steps[None]:
        yield from self._settle(until)
        if self._ended:
            return
        begin = self._cursor.own
        yield from self._cursor.beyond(begin + 7 - self._size, begin, until, "end")
        at = begin % self._size
        _LENGTH.pack_into(self.mr.buf, BOARD + at, _END)
        self._ended = True
        yield from self._cursor.publish(begin + 8, self._pieces(begin, begin + 8), until)

    def _settle(self, until: float | None) -> Steps[None]:
        """Put again what a call that was interrupted has laid, and perhaps not put; it must not be another
        record, as the reader may have it already.
        """
        cursor = self._cursor
        if cursor.told < cursor.own:
            begin = max(cursor.told, cursor.look(cursor.own))
            yield from cursor.publish(cursor.own, self._pieces(begin, cursor.own), until)

    def _drain(self, until: float | None) -> Steps[None]:
        own = self._cursor.own
        yield from self._cursor.beyond(own - 1, own, until, "drain")

    def _need(self, tail: int, record: int) -> int:
        """Bytes that a record takes there, with those that are skipped ahead of it."""
        size, rest = _size(record), self._size - tail % self._size
        return size if size <= rest else rest + size

    def _lay(self, tail: int, records: deque[memoryview]) -> int:
        """Lays as many records into the copy as there is room for; the new tail."""
        limit, ring = self._cursor.look(tail) + self._size, self.mr.buf[BOARD:]
        while records:
            length = len(records[0])
            need = self._need(tail, length)
            if tail + need > limit:
                break
            at = tail % self._size
            if need > _size(length):
                _LENGTH.pack_into(ring, at, _SKIP)
                at = 0
            _LENGTH.pack_into(ring, at, length)
            ring[at + 4 : at + 4 + length] = records.popleft()
            tail += need
        return tail

    def _pieces(self, begin: int, end: int) -> list[Piece]:
        if begin == end:
            return []
        first, last = begin % self._size, end % self._size
        if first < last or not last:
            return [Piece(BOARD + first, end - begin, BOARD + first)]
        return [
            Piece(BOARD + first, self._size - first, BOARD + first),
            Piece(BOARD, last, BOARD),
        ]


class RingWriter(_Writer):
    """The writing end, for a thread. `remote` is the reader's memory."""

    _spins = _LONG

    def __init__(self, port: Port, remote: Window | Region) -> None:
        super().__init__(port, remote)
        self._port = port

    @classmethod
    def over(cls, conn: rnic.Connection, timeout: float | None = None) -> Self:
        """Meet the RingReader.over() at the connection's other end; raises TimeoutError."""
        writer = cls(ConnectionPort(conn), conn.next_region(timeout))
        conn.share(writer.mr.buf[:BOARD])
        return writer

    def put(self, record: AnyBuffer, timeout: float | None = None) -> None:
        """Put one record; waits while the ring is full.

        Raises ValueError for one that is too long, LiarError, or what the connection raises when the peer is
        gone. TimeoutError: if the ring is full, nothing was put. If the peer's device does not take it, which
        has a second at least, the next call of this writer puts it again.
        """
        until = None if timeout is None else after(timeout)
        if not self._put_now(record):
            run(self._port, self._put_many((record,), until))
        elif not self._cursor.is_ready:
            run(self._port, self._settle(until))

    def put_many(self, records: Iterable[AnyBuffer], timeout: float | None = None) -> None:
        """Put many records, with as few WRITEs as the ring's room allows; raises as put().

        After TimeoutError the first of them were put: those that the reader gets.
        """
        run(self._port, self._put_many(records, after(timeout)))

    def end(self, timeout: float | None = None) -> None:
        """Say that no record follows. A second call does nothing."""
        run(self._port, self._end(after(timeout)))

    def drain(self, timeout: float | None = None) -> None:
        """Wait until the reader has taken all that was put. Raises as put().

        On a queue pair, call it behind end() before you destroy the queue pair: what the network has lost is
        sent again only as long as it is there. A connection's close() waits for that itself.
        """
        run(self._port, self._drain(after(timeout)))


class AsyncRingWriter(_Writer):
    """The writing end, for a task of asyncio; asyncio.timeout() limits its calls."""

    def __init__(self, port: AsyncPort, remote: Window | Region) -> None:
        super().__init__(port, remote)
        self._port = port

    @classmethod
    async def over(cls, conn: AsyncConnection) -> Self:
        """Meet the reader at the connection's other end."""
        writer = cls(AsyncPort(conn), await conn.next_region())
        await conn.share(writer.mr.buf[:BOARD])
        return writer

    async def put(self, record: AnyBuffer) -> None:
        """Put one record; waits while the ring is full. Raises as RingWriter.put()."""
        await run_async(self._port, self._put_many((record,), None))

    async def put_many(self, records: Iterable[AnyBuffer]) -> None:
        """Put many records, with as few WRITEs as the ring's room allows."""
        await run_async(self._port, self._put_many(records, None))

    async def end(self) -> None:
        """Say that no record follows. A second call does nothing."""
        await run_async(self._port, self._end(None))

    async def drain(self) -> None:
        """Wait until the reader has taken all that was put. Raises as RingWriter.put()."""
        await run_async(self._port, self._drain(None))


# ---------------------------------------------------------------- the reading end


class _Reader(Generic[P]):
    """The end that has the ring."""

    _spins = _SHORT

    def __init__(self, port: P, nbytes: int = SIZE) -> None:
        if nbytes < LEAST or nbytes & (nbytes - 1):
            raise ValueError(f"a ring of {nbytes} bytes: give a power of two, from {LEAST} on")
        self._size = nbytes
        self._port: P = port
        self.mr = port.memory(BOARD + nbytes)
        """Its memory, of which the writer needs all."""
        self._cursor: Cursor | None = None
        self._head = 0
        self._taken: list[bytes] = []  # which no call has returned yet
        self.ended = False
        """Whether the writer has said that no record follows."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._size} bytes, {self._head} taken>"

    def begin(self, remote: Window | Region) -> None:
        """Take the writer's memory; before the first get()."""
        self._cursor = Cursor(self._port, self.mr, remote, self._spins)

    def _get_now(self, most: int | None) -> list[bytes] | None:
        """get_many() where records are here, or come soon; None: _get_many() does what is left to do."""
        cursor, head = self._cursor, self._head
        if (
            cursor is None
            or not cursor.is_ready
            or self._taken
            or self.ended
            or (most is not None and most < 1)
        ):
            return None
        if head == cursor.seen and not cursor.spin(head, head + self._size):
            return None
        self._taken = self._take(cursor.seen, most)
        if self._is_due(cursor):
            cursor.publish_now(self._head)
            if not cursor.is_ready:
                return None
        found, self._taken = self._taken, []
        return found

    def _is_due(self, cursor: Cursor) -> bool:
        """Whether the writer has to know what was taken."""
        return self._head - cursor.own >= self._size // 4 or self._head == cursor.seen

    def _tell(self, cursor: Cursor, until: float | None) -> Steps[None]:
        with suppress(EOFError, OSError):  # a writer that is gone, or stopped, needs no room
            yield from cursor.publish(self._head, [], until)

    def _get_many(self, most: int | None, until: float | None) -> Steps[list[bytes]]:
        cursor = self._cursor
        if cursor is None:
            raise ValueError("get() before begin(): the reader does not know its writer's memory yet")
        if most is not None and most < 1:
            raise ValueError(f"at most {most} records: give 1 or more, or None")
        if cursor.told < cursor.own:  # a call was interrupted, or could not do it without a wait
            yield from self._tell(cursor, until)
        while not (self._taken or self.ended):
            yield from cursor.beyond(self._head, self._head + self._size, until, "get")
            self._taken = self._take(cursor.seen, most)
            if self._is_due(cursor):
                yield from self._tell(cursor, until)
        found = self._taken[:most]
        del self._taken[:most]
        return found

    def _take(self, tail: int, most: int | None) -> list[bytes]:
        found: list[bytes] = []
        head, ring, mask = self._head, self.mr.buf[BOARD:], self._size - 1
        while head < tail and len(found) != most and not self.ended:
            at = head & mask
            (length,) = _LENGTH.unpack_from(ring, at)
            size = self._size - at if length == _SKIP else 8 if length == _END else length + 11 & ~7
            if head + size > tail or at + size > self._size:
                raise LiarError(f"a record of {length} bytes, {tail - head} bytes before the tail")
            if length < _END:
                found.append(bytes(ring[at + 4 : at + 4 + length]))
            self.ended = length == _END
            head += size
        self._head = head
        return found


class RingReader(_Reader[Port]):
    """The reading end, for a thread; iterating over it gives all records, to the writer's end()."""

    _spins = _LONG

    @classmethod
    def over(cls, conn: rnic.Connection, nbytes: int = SIZE, timeout: float | None = None) -> Self:
        """Meet the RingWriter.over() at the connection's other end, with a ring of so many bytes."""
        reader = cls(ConnectionPort(conn), nbytes)
        conn.share(reader.mr.buf)
        reader.begin(conn.next_region(timeout))
        return reader

    def get(self, timeout: float | None = None) -> bytes:
        """The next record; waits for it.

        Raises TimeoutError; EOFError behind the writer's end(); LiarError if what the writer has written
        cannot be; or what the connection raises when the peer is gone.
        """
        if not (found := self.get_many(1, timeout)):
            raise EOFError("the writer has ended the ring")
        return found[0]

    def get_many(self, most: int | None = None, timeout: float | None = None) -> list[bytes]:
        """Wait for a record; returns it and those behind it, at most `most`. None: the writer has ended.

        Raises as get(), but not EOFError: the list is empty then.
        """
        until = None if timeout is None else after(timeout)
        found = self._get_now(most)
        return run(self._port, self._get_many(most, until)) if found is None else found

    def __iter__(self) -> Iterator[bytes]:
        while found := self.get_many():
            yield from found


class AsyncRingReader(_Reader[AsyncPort]):
    """The reading end, for a task of asyncio; asyncio.timeout() limits its calls."""

    @classmethod
    async def over(cls, conn: AsyncConnection, nbytes: int = SIZE) -> Self:
        """Meet the writer at the connection's other end, with a ring of so many bytes."""
        reader = cls(AsyncPort(conn), nbytes)
        await conn.share(reader.mr.buf)
        reader.begin(await conn.next_region())
        return reader

    async def get(self) -> bytes:
        """The next record; waits for it. Raises as RingReader.get()."""
        if not (found := await self.get_many(1)):
            raise EOFError("the writer has ended the ring")
        return found[0]

    async def get_many(self, most: int | None = None) -> list[bytes]:
        """Wait for a record; returns it and those behind it, at most `most`; an empty list behind the end."""
        return await run_async(self._port, self._get_many(most, None))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while found := await self.get_many():
            for record in found:
                yield record
