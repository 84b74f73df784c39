# SPDX-License-Identifier: Apache-2.0
"""A connection in a loop: pumped when a descriptor is readable or a time has come, to wake who waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from time import monotonic

from rnic.conn.core import Core


class Pump:
    """Keeps a core going in the running loop."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._again: asyncio.Handle | None = None
        self._filenos: tuple[int, ...] = core.filenos()
        for fd in self._filenos:
            self._loop.add_reader(fd, self.run)
        self.run()

    def run(self) -> None:
        """Pump, and wake whom it concerns."""
        try:
            self.core.pump(monotonic())
        except BaseException as error:
            self._break(error)
            raise
        for future, is_so in list(self._waiters.items()):
            if not future.done() and is_so():
                future.set_result(None)
        self._plan()

    def _break(self, error: BaseException) -> None:
        """A mistake of this package: nobody hangs because of it."""
        self._unwatch()
        for future in self._waiters:
            if not future.done():
                future.set_exception(error)

    def _plan(self) -> None:
        for handle in (self._timer, self._again):
            if handle is not None:
                handle.cancel()
        self._timer = self._again = None
        if self.core.released or not self._filenos:
            return
        if self.core.busy:
            self._again = self._loop.call_soon(self.run)
        elif (due := self.core.deadline()) is not None:
            self._timer = self._loop.call_later(max(0.0, due - monotonic()), self.run)

    async def wait(self, is_so: Callable[[], bool]) -> None:
        """Until something is so, which a pump may have made so."""
        self.run()
        if is_so():
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiters[future] = is_so
        try:
            await future
        finally:
            del self._waiters[future]

    def release(self) -> None:
        """Leave the loop and give everything back; who still waits hears that it is closed."""
        self._unwatch()
        self.core.release()
        for future in self._waiters:
            if not future.done():
                future.set_result(None)

    def _unwatch(self) -> None:
        filenos, self._filenos = self._filenos, ()
        for fd in filenos:
            self._loop.remove_reader(fd)
        self._plan()

    def forget(self) -> None:
        """Nobody holds the connection any more, and the loop may be closed."""
        with contextlib.suppress(RuntimeError, ValueError):
            self._unwatch()
        self.core.release()


async def readable(fd: int) -> None:
    """Until a descriptor is readable."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(fd, wake)
    try:
        await future
    finally:
        loop.remove_reader(fd)
