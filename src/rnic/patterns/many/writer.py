# SPDX-License-Identifier: Apache-2.0
"""Writers, for a thread and for a task: each claims a slot, WRITEs its record, and says that it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rnic.endpoint.buffers import flat
from rnic.patterns.cursor import LiarError
from rnic.patterns.many.layout import (
    LAST,
    LENGTH,
    NUMBER,
    OWNER,
    RECORD,
    SLOTS,
    STATE,
    TAIL,
    WAITING,
    WORD,
    Invitation,
    stride,
)
from rnic.patterns.ports import (
    AsyncPort,
    CompareSwap,
    ConnectionPort,
    Pause,
    Piece,
    Port,
    Read,
    Ring,
    Steps,
    Write,
    run,
    run_async,
)
from rnic.patterns.wait import left
from rnic.times import after

if TYPE_CHECKING:
    from collections.abc import Iterable

    import rnic
    from rnic import aio
    from rnic.endpoint import Region
    from rnic.endpoint.buffers import AnyBuffer

__all__ = ["AsyncManyWriter", "ManyWriter"]

_NO_SLOT = "put: there was no free slot in time"
_SHORTEST, _LONGEST = 20e-6, 5e-3  # seconds between two looks at a full ring


class _Writer:
    """One of many."""

    def __init__(self, port: Port | AsyncPort, remote: Region, invitation: bytes) -> None:
        told = Invitation.parse(invitation, remote.length)
        self.number, self._slots = told.writer, told.slots
        self.longest = told.size
        """The longest record, in bytes."""
        self._remote = remote
        self._mr = port.memory(SLOTS + stride(self.longest))
        self._next = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.number}, waits for slot {self._next}>"

    def _begin(self, until: float | None) -> Steps[None]:
        yield from self._look(until)
        self._next = self._word(TAIL)
        self._check_next()

    def _check_next(self) -> None:
        if self._next >= LAST:
            raise LiarError(f"the reader says that {self._next} records were claimed")

    def _look(self, until: float | None) -> Steps[None]:
        yield Read(self._mr, self._remote, Piece(0, SLOTS, 0), until)

    def _word(self, at: int) -> int:
        return int(WORD.unpack_from(self._mr.buf, at)[0])

    def _put_many(self, records: Iterable[AnyBuffer], until: float | None) -> Steps[None]:
        parts = [flat(record, "put()") for record in records]
        if long := next((len(part) for part in parts if len(part) > self.longest), None):
            raise ValueError(f"a record of {long} bytes: this ring takes {self.longest} at most")
        for part in parts:
            number = yield from self._claim(until)
            yield from self._lay(number, part, until)
            self._next = number + 1
        if parts:
            yield from self._wake(until)

    def _wake(self, until: float | None) -> Steps[None]:
        """What was WRITTEN is there when this has looked; and the reader looks, too."""
        yield from self._look(until)
        if self._word(WAITING):
            yield Ring(until)

    def _claim(self, until: float | None) -> Steps[int]:
        """The number of a record whose slot is this writer's now.

        It may have been before: a call that ended early has claimed it, and perhaps WRITTEN it, too.
        """
        pause = _SHORTEST
        while True:
            number = self._next
            self._check_next()
            try:
                old = yield CompareSwap(
                    self._remote, self._at(number), number << NUMBER, number << NUMBER | self.number, until
                )
            except TimeoutError:  # the time ended while the operation was on its way
                raise TimeoutError(_NO_SLOT) from None
            there, writer = old >> NUMBER, old & OWNER
            if there == number and not writer:
                return number
            if there == number and writer == self.number and (yield from self._is_unused(number, until)):
                return number
            if left(until) == 0:
                raise TimeoutError(_NO_SLOT)
            if there < number:  # the ring is full
                yield from self._wake(until)
                yield Pause(pause)
                pause = min(2 * pause, _LONGEST)
            elif there == number:
                yield from self._go_on(until)
            else:
                self._next = max(number, there - self._slots) + 1  # all before are taken

    def _is_unused(self, number: int, until: float | None) -> Steps[bool]:
        """Whether this writer's claim has no record; the reader may take that meanwhile, and gives the claim
        up before it empties the length.
        """
        yield Read(self._mr, self._remote, Piece(0, 8, self._at(number) + LENGTH), until)
        if self._word(0):
            return False
        yield Read(self._mr, self._remote, Piece(0, 8, self._at(number)), until)
        return self._word(0) == number << NUMBER | self.number

    def _go_on(self, until: float | None) -> Steps[None]:
        """Another one was faster: to what is not claimed yet, as far as the reader's memory says."""
        yield from self._look(until)
        tail = self._word(TAIL)
        self._next += 1
        if self._next < tail <= self._next + self._slots:
            self._next = tail

    def _at(self, number: int) -> int:
        return SLOTS + number % self._slots * stride(self.longest)

    def _lay(self, number: int, part: memoryview, until: float | None) -> Steps[None]:
        """The claim was answered, so nothing uses the memory of the record before any more."""
        buf, at = self._mr.buf, self._at(number)
        WORD.pack_into(buf, SLOTS + STATE, number + 1)
        WORD.pack_into(buf, SLOTS + LENGTH, len(part) + 1)
        buf[SLOTS + RECORD : SLOTS + RECORD + len(part)] = part
        pieces = [Piece(SLOTS + RECORD, len(part), at + RECORD)] if len(part) else []
        pieces += [Piece(SLOTS + LENGTH, 8, at + LENGTH), Piece(SLOTS + STATE, 8, TAIL)]
        yield Write(self._mr, self._remote, pieces, until)


class ManyWriter(_Writer):
    """A writer, for a thread, with a connection of its own."""

    def __init__(self, port: Port, remote: Region, invitation: bytes) -> None:
        super().__init__(port, remote, invitation)
        self._port = port

    @classmethod
    def over(cls, conn: rnic.Connection, timeout: float | None = None) -> Self:
        """Meet the ManyReader that serves the connection's other end.

        Raises ValueError if it is none, TimeoutError, or what the connection raises.
        """
        until = after(timeout)
        region = conn.next_region(left(until))
        writer = cls(ConnectionPort(conn), region, conn.recv(left(until)))
        run(writer._port, writer._begin(until))
        return writer

    def put(self, record: AnyBuffer, timeout: float | None = None) -> None:
        """Put one record; it is in the reader's memory when this returns.

        Waits while the ring is full, with pauses of 20 us to 5 ms. Raises ValueError for one that is too
        long, TimeoutError, or what the connection raises when the reader is gone. A call that ends early may
        have put the record; or it may have claimed a slot, at which the reader waits until this writer's next
        call, or the end of its connection.
        """
        run(self._port, self._put_many((record,), after(timeout)))

    def put_many(self, records: Iterable[AnyBuffer], timeout: float | None = None) -> None:
        """Put many records; other writers' may come in between. Raises as put(); then the first were put."""
        run(self._port, self._put_many(records, after(timeout)))


class AsyncManyWriter(_Writer):
    """A writer, for a task of asyncio; asyncio.timeout() limits its calls."""

    def __init__(self, port: AsyncPort, remote: Region, invitation: bytes) -> None:
        super().__init__(port, remote, invitation)
        self._port = port

    @classmethod
    async def over(cls, conn: aio.Connection) -> Self:
        """Meet the reader that serves the connection's other end."""
        region = await conn.next_region()
        writer = cls(AsyncPort(conn), region, await conn.recv())
        await run_async(writer._port, writer._begin(None))
        return writer

    async def put(self, record: AnyBuffer) -> None:
        """Put one record. Raises as ManyWriter.put()."""
        await run_async(self._port, self._put_many((record,), None))

    async def put_many(self, records: Iterable[AnyBuffer]) -> None:
        """Put many records; other writers' may come in between."""
        await run_async(self._port, self._put_many(records, None))
