# SPDX-License-Identifier: Apache-2.0
"""Connections to listeners, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Any

from rnic.aio.connection import Connection
from rnic.aio.waiting import Readable
from rnic.conn.dial import Dial
from rnic.conn.handshake import AnyDevice
from rnic.endpoint import Config
from rnic.rdmacm.sockaddr import hosts, is_name
from rnic.times import after


class Connecting(Coroutine[Any, Any, Connection]):
    """What connect() returns: `await` gives the connection, and `async with` closes it behind the block."""

    def __init__(self, dialing: Coroutine[Any, Any, Connection]) -> None:
        self._dialing = dialing

    def __await__(self) -> Generator[Any, Any, Connection]:
        return self._dialing.__await__()

    async def __aenter__(self) -> Connection:
        self._conn = await self._dialing
        return await self._conn.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._conn.__aexit__(kind, value, traceback)

    def send(self, value: Any) -> Any:
        """Go on, as a coroutine does: asyncio.create_task() and asyncio.run() take it for one."""
        if value is not None:  # somebody means Connection.send(): asyncio sends None alone
            raise TypeError("this is not a connection yet: write conn = await rnic.aio.connect(...)")
        return self._dialing.send(value)

    def throw(self, *error: Any) -> Any:
        """Go on with an exception, as a coroutine does."""
        return self._dialing.throw(*error)

    def close(self) -> None:
        """End the call, as a coroutine does."""
        self._dialing.close()


def connect(
    host: str,
    port: int,
    *,
    timeout: float | None = 10.0,
    config: Config | None = None,
    data: bytes = b"",
    device: AnyDevice = None,
) -> Connecting:
    """Connect to a program that listens with rnic.listen() or rnic.aio.listen().

        async with rnic.aio.connect("192.0.2.1", 7471) as conn:
            await conn.send(b"hello")

    `conn = await rnic.aio.connect(...)` leaves it to the program to close the connection. `data` and `device`
    are those of rnic.connect(), and it raises what that raises.
    """
    return Connecting(_connect(host, port, timeout, config, data, device))


async def _connect(
    host: str, port: int, timeout: float | None, config: Config | None, data: bytes, device: AnyDevice
) -> Connection:
    dial, until = None, after(timeout)
    try:
        async with asyncio.timeout(timeout):
            dial = Dial(await _hosts(host, port), port, config, data, device, until)
            try:
                descriptor = Readable(dial.fileno)
                while not dial.step(monotonic()):
                    share = None if dial.deadline is None else dial.deadline - monotonic()
                    with suppress(TimeoutError):  # the next host is tried
                        async with asyncio.timeout(share):
                            await descriptor.wait()
                assert dial.core is not None
                return Connection(dial.core)
            except BaseException:
                dial.abandon()
                raise
    except TimeoutError:
        if dial is None:
            raise
        why = await asyncio.to_thread(dial.silence)
        raise TimeoutError(f"connect: no answer from {dial.name} within {timeout} s: {why}") from None


async def _hosts(host: str, port: int) -> list[str]:
    """Look a name up in a thread, so that the loop goes on meanwhile."""
    if not is_name(host):
        return [host]
    return await asyncio.to_thread(hosts, host, port, "connect")
