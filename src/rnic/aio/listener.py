# SPDX-License-Identifier: Apache-2.0
"""The asyncio face of a listener."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Self

from rnic.aio.connection import Connection
from rnic.aio.pump import readable
from rnic.conn.face import ListenerFace
from rnic.conn.handshake import Desk
from rnic.endpoint import Config
from rnic.errors import VerbsError

_log = logging.getLogger("rnic.aio")


class Listener(ListenerFace):
    """Takes connections at an address and port; one task at a time waits for them."""

    async def accept(self) -> Connection:
        """Wait for the next connection.  Who is no endpoint is refused, in words, and not seen here.

        VerbsError, EBADF, when the listener is closed, also by another task meanwhile.
        """
        with self._desk.waiting():
            while (core := self._desk.take(monotonic())) is None:
                await readable(self._desk.fileno())
        return Connection(core)

    async def __aiter__(self) -> AsyncIterator[Connection]:
        """Connections, one after the other, until close()."""
        while not self._desk.closed:
            try:
                yield await self.accept()
            except VerbsError:
                if not self._desk.closed:
                    raise

    async def serve(self, agent: Callable[[Connection], Awaitable[object]], *, grace: float = 5.0) -> None:
        """Run an agent, in a task of its own, for each connection, until close() or cancellation.

        A connection is closed when its agent returns; what an agent raises goes to the loop's exception
        handler, and its peer hears of it.  At the end nobody new is served, agents have `grace` seconds to
        finish, and then are cancelled.
        """
        tasks: set[asyncio.Task[None]] = set()
        try:
            async for conn in self:
                task = asyncio.create_task(_attend(agent, conn))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        finally:
            self.close()
            await _dismiss(tasks, grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


async def _attend(agent: Callable[[Connection], Awaitable[object]], conn: Connection) -> None:
    try:
        async with conn:
            await agent(conn)
    except ConnectionError as error:
        _log.info("%r: %s", conn, error)
    except Exception as error:
        text = f"the agent of {conn!r} has failed"
        asyncio.get_running_loop().call_exception_handler({"message": text, "exception": error})


async def _dismiss(tasks: set[asyncio.Task[None]], grace: float) -> None:
    """Wait for all; those that take longer are cancelled, and all are when this is."""
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def listen(host: str, port: int, *, backlog: int = 0, config: Config | None = None) -> Listener:
    """Take connections at an address, "0.0.0.0" or "::" for all; port 0: one that is free."""
    return Listener(Desk(host, port, config or Config(), backlog))
