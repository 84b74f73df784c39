# SPDX-License-Identifier: Apache-2.0
"""A Comm of Dask over one connection of rnic.aio."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Mapping
from typing import Any

import dask
from dask.utils import parse_bytes, parse_timedelta
from distributed.comm import core
from distributed.comm.addressing import unparse_host_port
from distributed.comm.core import CommClosedError
from distributed.comm.utils import from_frames, to_frames
from distributed.protocol.utils import host_array

from rnic import Config, EndpointError, VerbsError
from rnic.aio import Connection
from rnic.dask.frames import FramesError, Incoming, pack

PREFIX = "rnic://"
CONFIG = Config(max_message=1 << 62)
"""Memory is the limit of a message."""
CLOSE = 5.0
"""Seconds, at most, that the last word to the peer may take."""
_LEFT = "the peer has closed the connection"


class Comm(core.Comm):
    """One end between two processes of Dask.

    Read and write from one task at a time each, in the loop in which it was made.  write() waits for nobody,
    as Dask's own comms do: until the peer has read a long array, the array stays in memory, and may not be
    changed.  Whatever ends a read() or write() before its time, cancellation too, ends the connection: a part
    of a message may have gone.
    """

    def __init__(self, conn: Connection, peer: str, deserialize: bool = True) -> None:
        """Take a connection over; `peer` is the address that the peer is known by."""
        self._conn: Connection | None = conn
        self._why = ""
        """Why it is closed, when the peer or an error closed it."""
        self._local_addr = PREFIX + unparse_host_port(*conn.local_address[:2])
        self._peer_addr = peer
        super().__init__(deserialize)
        me = weakref.ref(self)
        conn.on_end(lambda error: _note_end(me, error))

    # ------------------------------------------------------------ messages

    async def read(self, deserializers: Any = None) -> Any:
        """Return the next message.  CommClosedError, with the reason, when there is none to come."""
        conn = self._open_conn()
        try:
            frames = await _receive(conn)
        except BaseException as error:
            self._failed(error)
            raise
        try:
            return await from_frames(
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError as error:
            self._failed(FramesError("the frames hold less than they promise"), error)

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        """Send a message; return its length in bytes.  CommClosedError, with the reason, if it cannot go."""
        conn = self._open_conn()
        context = {"sender": self.local_info, "recipient": self.remote_info, **self.handshake_options}
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context=context,
            frame_split_size=parse_bytes(dask.config.get("distributed.comm.shard")),
        )
        head, own = pack(frames)
        try:
            await conn.post(head)
            for frame in own:
                await conn.post(frame)
        except BaseException as error:
            self._failed(error)
            raise
        return len(head) + sum(frame.nbytes for frame in own)

    def _open_conn(self) -> Connection:
        if self._conn is None:
            raise self._is_closed()
        return self._conn

    def _is_closed(self) -> CommClosedError:
        return CommClosedError(f"in {self!r}: {self._why or 'it was closed here'}")

    def _failed(self, error: BaseException, cause: BaseException | None = None) -> None:
        """End the connection after an error; CommClosedError if it says that the connection has ended."""
        if isinstance(error, EOFError):
            why = _LEFT
        elif isinstance(error, FramesError):
            why = f"the peer sent {error}"
        else:
            why = reason(error)
        self._drop(why)
        if isinstance(error, EOFError | FramesError | EndpointError | VerbsError):
            raise self._is_closed() from cause or error

    # ------------------------------------------------------------ the end

    async def close(self) -> None:
        """Close it after all that was written; return when the peer has that.

        It gives up, and what is left is lost, when the peer reads no long frame for
        `distributed.comm.timeouts.tcp` (30 s).
        """
        conn, self._conn = self._conn, None
        if conn is None:
            return
        try:
            with contextlib.suppress(EndpointError, VerbsError):  # the peer may be quicker to end it
                await _flush(conn, parse_timedelta(dask.config.get("distributed.comm.timeouts.tcp")))
                await conn.close(CLOSE, wait=False)
        finally:
            conn.drop("the comm was aborted")

    def abort(self) -> None:
        """Close it at once, from any thread; what was written may be lost."""
        self._drop("")

    def _drop(self, why: str) -> None:
        """End it, unless it has ended: the first reason counts."""
        conn, self._conn = self._conn, None
        if conn is not None:
            self._why = why
            conn.drop(why or "the comm was aborted")

    def closed(self) -> bool:
        """Whether it was closed, by this end or the peer, or has failed."""
        return self._conn is None

    # ------------------------------------------------------------ addresses

    @property
    def local_address(self) -> str:
        """The address of this end."""
        return self._local_addr

    @property
    def peer_address(self) -> str:
        """The address of the peer."""
        return self._peer_addr


async def _flush(conn: Connection, patience: float) -> None:
    """Wait until the peer has all that was written, or has taken nothing for so many seconds."""
    before = -1
    while conn.unsent not in (0, before):
        before = conn.unsent
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await conn.flush()


async def _receive(conn: Connection) -> list[memoryview]:
    incoming = Incoming(await conn.recv(), host_array)
    for room in incoming.rooms():
        try:
            length = await conn.recv_into(room)
        except ValueError as error:
            raise FramesError(f"more than the {room.nbytes} bytes of a frame") from error
        if length != room.nbytes:
            raise FramesError(f"{length} bytes for a frame of {room.nbytes}")
    return incoming.frames


def _note_end(me: weakref.ref[Comm], error: EndpointError | None) -> None:
    """The peer has closed the connection and left nothing to read, or the connection has failed."""
    comm = me()
    if comm is not None:
        comm._drop(reason(error) if error else _LEFT)


def refuse_encryption(address: str, connection_args: Mapping[str, object]) -> None:
    """RuntimeError when the configuration of Dask requires encryption."""
    if connection_args.get("require_encryption"):
        raise RuntimeError(
            f"encryption required by the configuration of Dask, and there is none: {PREFIX}{address}"
        )


def reason(error: BaseException) -> str:
    """The error in words, for a CommClosedError."""
    return f"{type(error).__name__}: {error}"
