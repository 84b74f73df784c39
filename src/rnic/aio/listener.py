# SPDX-License-Identifier: Apache-2.0
"""Listeners for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from time import monotonic
from typing import Self

from rnic.aio.connection import Connection
from rnic.aio.waiting import Readable, turn_of
from rnic.conn.core import Core
from rnic.conn.face import ListenerFace
from rnic.conn.handshake import HANDSHAKE_TIMEOUT, MAX_HALF_OPEN, Admit, AnyDevice, Desk, Limits
from rnic.endpoint import Config, EndpointError
from rnic.errors import VerbsError
from rnic.log import Log
from rnic.times import seconds

_log = Log("rnic.aio")


class Listener(ListenerFace):
    """Accepts connections at an address and port; waiting tasks get one connection each, in their order."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._requests = Readable(desk.fileno)

    async def accept(self) -> Connection:
        """Wait for the next connection, and return it. A peer that is not an rnic endpoint is refused, with
        the reason.

        Raises VerbsError: EBADF if the listener is closed, also by another task during the call.
        """
        await turn_of(asyncio.get_running_loop()).take()
        core = None
        with self._desk.waiting():
            again = False
            try:
                while True:
                    if (core := self._desk.take(monotonic())) is None:
                        await self._requests.wait(again)
                        again = True
                    elif (conn := self._begin(core)) is not None:
                        return conn
                    else:
                        core = None
                        await asyncio.sleep(0)
            except BaseException:
                if core is not None:  # an exception from outside
                    core.release()
                self._requests.wake()  # the end concerns the others, too
                raise

    def _begin(self, core: Core) -> Connection | None:
        """A connection in this loop; None: the loop cannot watch one more, which costs this one alone."""
        try:
            return Connection(core)
        except (OSError, MemoryError) as error:
            self._desk.not_served(core.cm_id.get_peer_addr(), error)
            core.release()
            return None

    async def __aiter__(self) -> AsyncIterator[Connection]:
        """Connections, one after the other, until close()."""
        while not self._desk.closed:
            try:
                yield await self.accept()
            except VerbsError:
                if not self._desk.closed:
                    raise

    async def serve(
        self, agent: Callable[[Connection], Awaitable[object]], *, grace: float | None = 5.0
    ) -> None:
        """Call `agent` for each connection, in a task of its own, until close() or cancellation.

        A connection is closed when its agent returns, or ends by the EOFError of its recv(). If an agent
        raises another exception, it goes to the loop's exception handler, and the connection is aborted. At
        the end no new connection is served. Agents have `grace` seconds to finish, and then are cancelled.
        After cancellation, an agent that would wait for a message gets ClosedError at once.
        """
        seconds(grace, "grace")
        tasks: dict[asyncio.Task[None], Connection] = {}
        interrupted = True

        def begin(conn: Connection) -> None:
            task = asyncio.create_task(_attend(agent, conn))
            tasks[task] = conn
            task.add_done_callback(tasks.pop)

        self._desk.serves_to_the_end = True
        try:
            async for conn in self:
                begin(conn)
            interrupted = False
        finally:
            self.close()
            for core in self._desk.take_left():
                if (last := self._begin(core)) is not None:
                    begin(last)
            if interrupted:
                for conn in tasks.values():
                    conn._core.leave()
            await _dismiss(tasks, grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


async def _attend(agent: Callable[[Connection], Awaitable[object]], conn: Connection) -> None:
    try:
        async with conn:
            await agent(conn)
    except EndpointError as error:  # of this connection, mostly; a ConnectionError is of another
        _log.info("%r: %s", conn, error)
    except Exception as error:
        if not conn._core.messages.is_own_end(error):
            text = f"the agent of {conn!r} has failed"
            asyncio.get_running_loop().call_exception_handler({"message": text, "exception": error})


async def _dismiss(tasks: Iterable[asyncio.Task[None]], grace: float | None) -> None:
    """Wait for all tasks; those that take longer are cancelled, and all of them if this call is cancelled."""
    tasks = set(tasks)
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def listen(
    host: str,
    port: int,
    *,
    backlog: int = 0,
    config: Config | None = None,
    max_connections: int | None = None,
    max_half_open: int = MAX_HALF_OPEN,
    handshake_timeout: float = HANDSHAKE_TIMEOUT,
    admit: Admit | None = None,
    device: AnyDevice = None,
) -> Listener:
    """Listen for connections at an address, "0.0.0.0" or "::" for all; port 0 chooses a free one.

    The limits are those of rnic.listen(). `backlog` is the number of requests that may wait for the program,
    0: 1024. `max_connections` limits the connections; None: as many as descriptors, memory and threads allow.
    Further requests are refused (RefusedError at the peer, reason 3), and the other connections go on.
    `handshake_timeout` is in seconds: if a peer does not finish the handshake within this time, its
    connection is given up. At most `max_half_open` connections are in this state; a new one replaces the
    oldest.

    `admit(data, address)` is called for each request, with the `data` of connect() and the client's address.
    It returns the answer, which the client finds in `peer_data`: at most 164 bytes, or None. If it raises
    PermissionError, the client gets RefusedError with its text.

    `device` chooses the device, by its name or as a Device. None: at "0.0.0.0" and "::" all devices, RoCE and
    iWARP, else the first one of get_device_list() that has the address.
    """
    limits = Limits(backlog, max_connections, max_half_open, handshake_timeout)
    return Listener(Desk(host, port, config, limits, admit, device))
