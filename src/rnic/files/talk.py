# SPDX-License-Identifier: Apache-2.0
"""A connection as a copy uses it: records instead of messages, and a peer that may not be silent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, TypeVar

import rnic
from rnic.endpoint.text import printable
from rnic.files import records
from rnic.files.records import Alive, Record, Refused, decode, encode
from rnic.files.state import CopyError

__all__ = ["CONFIG", "GREETING", "STALL", "StalledError", "Talk", "beside", "told"]

GREETING = b"rnic files 1"
"""The data of connect()."""
CONFIG = rnic.Config(max_message=records.MESSAGE_MOST, announce=None, max_regions=4)
ALIVE = 5.0
"""Seconds between two signs of life."""
QUIET = 30.0
"""Seconds without one, after which the peer is given up."""
STALL = 900.0
"""A server gives a client up when both ends have sent nothing but signs of life for so many seconds.

The limit is high: to count many files, or to read what is there of a large one, takes long.
"""
T = TypeVar("T")
R = TypeVar("R", bound=Record)


class StalledError(CopyError):
    """Both ends are alive, and the copy does not go on."""


class Talk:
    """The records of one connection."""

    def __init__(self, conn: rnic.aio.Connection, quiet: float = QUIET, stall: float = math.inf) -> None:
        self.conn = conn
        self._quiet, self._stall = quiet, stall
        self._moved = monotonic()
        self._rest: Iterator[Record] = iter(())
        self._limits: set[asyncio.Timeout] = set()
        """Of what waits for the peer: it has so long again, whenever it says something."""

    async def send(self, *what: Record) -> None:
        """Send a message."""
        await self._soon(self.conn.send(encode(*what)))
        self._moved = monotonic()

    async def hear(self) -> list[Record]:
        """The records of the next message, or what next() has left of one. CopyError when the peer says
        nothing, or has gone; StalledError.
        """
        if rest := list(self._rest):
            return rest
        try:
            message = await self._soon(self.conn.recv())
        except EOFError:
            raise CopyError("the peer ended the copy before it was complete") from None
        for limit in self._limits:
            limit.reschedule(asyncio.get_running_loop().time() + self._quiet)
        found: list[Record] = [one for one in decode(message) if not isinstance(one, Alive)]
        if found:
            self._moved = monotonic()
        elif monotonic() - self._moved >= self._stall:
            raise StalledError(f"the copy has made no progress for {self._stall:g} s")
        return found

    async def next(self, kind: type[R]) -> R:
        """The next record, which must be of this kind; a refusal is raised."""
        while (one := next(self._rest, None)) is None:
            self._rest = iter(await self.hear())
        if isinstance(one, Refused):
            raise CopyError(printable(one.text))
        if not isinstance(one, kind):
            raise CopyError(f"the peer sent a {type(one).__name__} where a {kind.__name__} was due")
        return one

    async def next_region(self) -> rnic.Region:
        """The memory that the peer shares."""
        return await self._soon(self.conn.next_region())

    async def _soon(self, what: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._quiet) as limit:
                self._limits.add(limit)
                try:
                    return await what
                finally:
                    self._limits.discard(limit)
        except TimeoutError:
            raise CopyError(f"the peer has said nothing for {self._quiet:g} s") from None

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """Give signs of life meanwhile."""
        task = asyncio.create_task(self._stay_alive())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)  # who hears the peer knows better why

    async def _stay_alive(self) -> None:
        while True:
            await asyncio.sleep(ALIVE)
            await self.conn.send(encode(Alive()))


@asynccontextmanager
async def told(conn: rnic.aio.Connection, text: str) -> AsyncIterator[None]:
    """Tell the peer this, if the task is cancelled meanwhile."""
    try:
        yield
    except asyncio.CancelledError:
        await conn.abort(text)
        raise


async def beside(main: Coroutine[Any, Any, T], *others: Coroutine[Any, Any, object]) -> T:
    """The result of the first; if another one raises, its error, and the first is cancelled."""
    first = asyncio.create_task(main)
    rest = [asyncio.create_task(one) for one in others]
    tasks = {first, *rest}
    try:
        pending: set[asyncio.Task[Any]] = tasks
        while first in pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        for one in rest:
            await one
        return first.result()
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.wait(tasks)
        for one in tasks:
            if not one.cancelled():
                one.exception()  # it was heard
