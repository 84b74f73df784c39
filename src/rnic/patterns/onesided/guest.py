# SPDX-License-Identifier: Apache-2.0
"""What all clients have: a way to the server's memory, the wait for other clients, and locks.

A lock is one word of 8 bytes: the number of the client that holds it in the lower 16 bits, 0 if none does;
above, how often it was released. A client READs the word and takes the lock by COMPARE_SWAP, so it also knows
that nobody has held it since the READ. It releases by FETCH_ADD, which adds one to the count and subtracts
its number. The FETCH_ADD goes by the same queue pair as the WRITEs before it: when it is answered, they are
there.

A call may end without an answer: by a timeout, a cancelled task, Ctrl-C. Then the client does not know
whether it holds the lock. The lock is in doubt until the client has looked at it, and released it. In
asyncio a task does that at once, in threads the client's next call. If the client never calls again, the
server takes the lock back at the end of the connection.

The wait for others is a pause of random length, which grows: 20 us to 5 ms. So locks are not fair.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from random import random
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from rnic.patterns.onesided.invitation import Invitation
from rnic.patterns.ports import (
    AsyncPort,
    CompareSwap,
    ConnectionPort,
    FetchAdd,
    Pause,
    Piece,
    Port,
    Read,
    Steps,
    Window,
    run,
    run_async,
)
from rnic.patterns.turn import Turn
from rnic.patterns.wait import left
from rnic.times import after

if TYPE_CHECKING:
    from rnic import Connection
    from rnic.aio import Connection as AsyncConnection
    from rnic.endpoint import Region

__all__ = ["Guest", "HostileMemoryError", "InTasks", "InThreads", "Patience"]

T = TypeVar("T")
TIMEOUT = 5.0
"""Seconds that a call takes at most, if it is not given another limit."""
MOST = 1 << 30
"""Bytes of own memory that a client takes, whatever the server says of sizes."""
OWNER = 0xFFFF
COUNT = 16  # bits below the count of a lock
WORD = struct.Struct("<Q")
_FULL = 1 << 64
_SHORTEST, _LONGEST = 20e-6, 5e-3


class HostileMemoryError(ConnectionError):
    """The server's memory has contents that no client of this pattern writes."""


def owner_of(word: int) -> int:
    """The number of the client that holds a lock, or 0."""
    return word & OWNER


class Patience:
    """Pauses that grow, until a time limit."""

    def __init__(self, until: float | None) -> None:
        self._until, self._next = until, _SHORTEST

    def pause(self, why: str) -> Steps[None]:
        """Wait a moment; TimeoutError says why all the waiting was."""
        if self._until is not None and monotonic() >= self._until:
            raise TimeoutError(why)
        yield Pause(self._next * (0.5 + random()))
        self._next = min(2 * self._next, _LONGEST)


class Guest:
    """One client: where the server's memory is, and own memory for what goes there and comes from there.

    port: ports.ConnectionPort, QueuePairPort or AsyncPort. remote: the server's memory, a Region or a Window.
    invitation: the bytes that the server gave for this client.
    """

    kind: ClassVar[int]

    def __init__(self, port: Any, remote: Window | Region, invitation: bytes) -> None:
        told = Invitation.parse(invitation, self.kind)
        if remote.length < told.length:
            raise ValueError(f"the server has {told.length} bytes, as it says, and shares {remote.length}")
        self._port, self._remote = port, remote
        self.number = told.number
        """This client's number at the server, from 1 on."""
        self._doubts: set[int] = set()
        needed = self._measure(told)
        if needed > MOST:
            raise ValueError(
                f"the sizes that the server tells need {needed} bytes here, and {MOST} are the most"
            )
        self._mr = port.memory(needed)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: client {self.number} of {self._remote.length} bytes>"

    @property
    def _buf(self) -> memoryview:
        """Own memory; a view that stayed would keep the device open."""
        return memoryview(self._mr.buf)

    def _measure(self, told: Invitation) -> int:
        """Check the sizes that the server tells, and keep them; the bytes of own memory that are needed."""
        raise NotImplementedError

    # ------------------------------------------------------------ steps

    def _fetch(self, at: int, length: int, remote_offset: int, until: float | None) -> Steps[None]:
        """READ into own memory."""
        yield Read(self._mr, self._remote, Piece(at, length, remote_offset), until)

    def _word(self, at: int) -> int:
        return int(WORD.unpack_from(self._buf, at)[0])

    def _look(self, at: int, remote_offset: int, until: float | None) -> Steps[int]:
        """READ a word, by the place `at` of own memory."""
        yield from self._fetch(at, 8, remote_offset, until)
        return self._word(at)

    def _try_lock(self, offset: int, seen: int, until: float | None) -> Steps[bool]:
        """Take a lock that had this word; False if it has another one now. One that was taken is in doubt."""
        self._doubts.add(offset)
        old = yield CompareSwap(self._remote, offset, seen, seen | self.number, until)
        if old != seen:
            self._doubts.discard(offset)
        return old == seen

    def _unlock(self, offset: int, until: float | None) -> Steps[None]:
        """Release a lock; all WRITEs before are there when this returns."""
        self._doubts.add(offset)
        old = yield FetchAdd(self._remote, offset, (1 << COUNT) - self.number, until)
        self._doubts.discard(offset)
        if owner_of(old) != self.number:
            raise HostileMemoryError(
                f"the lock at {offset} was this client's, and is client {owner_of(old)}'s"
            )

    def _settle(self, at: int, until: float | None) -> Steps[None]:
        """Release the locks that calls without an answer have left behind."""
        for offset in list(self._doubts):
            word = yield from self._look(at, offset, until)
            if owner_of(word) == self.number:
                yield from self._unlock(offset, until)
            self._doubts.discard(offset)


class InThreads(Guest):
    """A client whose calls wait. Threads may share it, and take turns.

    The handler of a signal that comes in the middle of a call gets RuntimeError.
    """

    def __init__(self, port: Port, remote: Window | Region, invitation: bytes) -> None:
        super().__init__(port, remote, invitation)
        self._turn = Turn("client")

    @classmethod
    def over(cls, conn: Connection, timeout: float | None = TIMEOUT) -> Self:
        """By a connection to serve() or serve_async(); raises ValueError if they serve something else.

        TimeoutError; or what the connection raises, as AbortedError with the reason if there is no place.
        """
        until = after(timeout)
        region = conn.next_region(left(until))
        return cls(ConnectionPort(conn), region, conn.recv(left(until)))

    def _run(self, steps: Steps[T], until: float | None) -> T:
        busy = TimeoutError("another thread was at work here all the time")
        return self._turn.run(lambda: run(self._port, steps), left(until), busy)


class InTasks(Guest):
    """A client for asyncio. Tasks may share it, and take turns."""

    def __init__(self, port: AsyncPort, remote: Window | Region, invitation: bytes) -> None:
        super().__init__(port, remote, invitation)
        self._turn = asyncio.Lock()
        self._settling: asyncio.Task[None] | None = None

    @classmethod
    async def over(cls, conn: AsyncConnection) -> Self:
        """By a connection to serve() or serve_async(); as of threads. asyncio.timeout() limits it."""
        region = await conn.next_region()
        return cls(AsyncPort(conn), region, await conn.recv())

    async def _run(self, steps: Steps[T], until: float | None) -> T:
        try:
            return await self._in_turn(steps, until)
        finally:
            if self._doubts and (self._settling is None or self._settling.done()):
                self._settling = asyncio.create_task(self._settle_soon())

    async def _in_turn(self, steps: Steps[T], until: float | None) -> T:
        async with asyncio.timeout(left(until)):
            await self._turn.acquire()
        try:
            return await run_async(self._port, steps)
        except TimeoutError as error:
            if error.args:
                raise
            raise TimeoutError(
                "the server's device did not answer in time"
            ) from None  # as of asyncio.timeout()
        finally:
            self._turn.release()

    async def _settle_soon(self) -> None:
        """The next call may be far away. What goes wrong here, that call finds out, or the server."""
        with suppress(OSError):
            async with asyncio.timeout(TIMEOUT), self._turn:
                await run_async(self._port, self._settle(0, after(TIMEOUT)))
