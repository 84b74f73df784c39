# SPDX-License-Identifier: Apache-2.0
"""The asyncio face of a listener."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import monotonic
from typing import Self

from rnic.aio.connection import Connection
from rnic.aio.pump import readable
from rnic.conn.handshake import Desk
from rnic.endpoint import Config
from rnic.rdmacm.sockaddr import SockAddr


class Listener:
    """Takes connections at an address and port; one task at a time waits for them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @property
    def address(self) -> SockAddr:
        """Host and port where it listens."""
        return self._desk.cm_id.get_local_addr()

    @property
    def port(self) -> int:
        """The port: one that was free, if 0 was asked for."""
        return self._desk.cm_id.get_src_port()

    async def accept(self) -> Connection:
        """Wait for the next connection.  Who is no endpoint is refused, in words, and not seen here."""
        while (core := self._desk.take(monotonic())) is None:
            await readable(self._desk.fileno())
        return Connection(core)

    async def __aiter__(self) -> AsyncIterator[Connection]:
        """Connections, one after the other."""
        while not self._desk.closed:
            yield await self.accept()

    def close(self) -> None:
        """Listen no longer; connections that were accepted stay."""
        self._desk.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def listen(host: str, port: int, *, backlog: int = 0, config: Config | None = None) -> Listener:
    """Take connections at an address, "0.0.0.0" or "::" for all; port 0: one that is free."""
    return Listener(Desk(host, port, config or Config(), backlog))
