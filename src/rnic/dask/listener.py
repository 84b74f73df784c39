# SPDX-License-Identifier: Apache-2.0
"""Listeners of schedulers, workers and clients."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import dask
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import BaseListener, CommClosedError
from distributed.comm.utils import ensure_concrete_host
from distributed.utils import ensure_ip

from rnic.aio import Connection, listen
from rnic.aio import Listener as Source
from rnic.dask.comm import CONFIG, PREFIX, Comm, refuse_encryption
from rnic.dask.frames import GREETING

_log = logging.getLogger("distributed.comm.rnic")


class Listener(BaseListener):
    """Makes a Comm of each connection that comes, and gives it to a handler after Dask's handshake."""

    prefix = PREFIX
    """What a worker asks for."""

    def __init__(
        self,
        address: str,
        comm_handler: Callable[[Comm], Any],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **connection_args: Any,
    ) -> None:
        """Prepare to listen at "host:port"; no host, or 0.0.0.0: at all addresses of IPv4, and :: at all.

        Port 0 chooses a free one.  `default_host` is the host of contact_address when it listens at all.
        RuntimeError when the configuration requires encryption.
        """
        super().__init__()
        refuse_encryption(address, connection_args)
        self._host, self._port = parse_host_port(address, default_port)
        self._handler = comm_handler
        self._deserialize, self._allow_offload = deserialize, allow_offload
        self._default_host = default_host
        self._source: Source | None = None
        self._address: tuple[str, int] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen.  VerbsError, an OSError, when the address is in use or of no device here."""
        backlog = int(dask.config.get("distributed.comm.socket-backlog"))
        host = ensure_ip(self._host) if self._host else "0.0.0.0"
        self._source = listen(host, self._port, backlog=backlog, config=CONFIG, admit=_admit)
        self._address = self._source.address[:2]
        self._begin(self._accept(self._source))

    def stop(self) -> None:
        """Listen no longer.  Comms stay, until abort_handshaking_comms() those in their handshake, too."""
        source, self._source = self._source, None
        if source is not None:
            source.close()

    # ------------------------------------------------------------ connections

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, source: Source) -> None:
        try:
            async for conn in source:
                self._begin(self._serve(conn))
        except OSError:
            _log.exception("%s listens no longer", self.listen_address)

    async def _serve(self, conn: Connection) -> None:
        peer = conn.peer_address
        if self._source is None or peer is None:
            conn.drop("the listener was stopped")
            return
        comm = Comm(conn, PREFIX + unparse_host_port(*peer[:2]), self._deserialize)
        comm.allow_offload = self._allow_offload
        try:
            await self.on_connection(comm)
        except CommClosedError as error:
            _log.info("no handshake with %s: %s", comm.peer_address, error)
            return
        result = self._handler(comm)
        if inspect.isawaitable(result):
            await result

    # ------------------------------------------------------------ addresses

    def _where(self) -> tuple[str, int]:
        if self._address is None:
            raise ValueError("the listener was not started")
        return self._address

    @property
    def port(self) -> int:
        """The port at which it listens."""
        return self._where()[1]

    @property
    def listen_address(self) -> str:
        """The address at which it listens."""
        return PREFIX + unparse_host_port(*self._where())

    @property
    def contact_address(self) -> str:
        """An address at which others reach it: of a host, even if it listens at all addresses."""
        host, port = self._where()
        return PREFIX + unparse_host_port(ensure_concrete_host(host, self._default_host), port)


def _admit(data: bytes, _: object) -> None:
    """Refuse programs that are not Dask, or speak another version of the format."""
    if data != GREETING:
        raise PermissionError(f"this is a listener of Dask, for clients that say {GREETING!r}")
