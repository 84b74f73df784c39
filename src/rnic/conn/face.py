# SPDX-License-Identifier: Apache-2.0
"""The common part of synchronous and asyncio connections: everything that does not wait."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import EINVAL
from typing import TYPE_CHECKING, Any

from rnic._nic.nic import LONGEST, MR
from rnic.conn.arrays import Layout
from rnic.conn.core import Core
from rnic.conn.handshake import Desk
from rnic.conn.pool import Pool
from rnic.endpoint import Region, Statistics
from rnic.endpoint.buffers import flat
from rnic.errors import VerbsError
from rnic.notebook import table
from rnic.rdmacm.sockaddr import SockAddr
from rnic.records import values
from rnic.verbs.pd import PD

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from rnic.endpoint.buffers import AnyBuffer
    from rnic.rdmacm import CmId


def _device_of(cm_id: CmId) -> str:
    """The name of the device, also when all is released; a listener at all addresses has all devices."""
    device = cm_id.verbs or cm_id.device
    return "all devices" if device is None else device.name


class Face:
    """The properties of a connection, and its memory."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def __repr__(self) -> str:
        core = self._core
        state = "released" if core.released else core.state.value
        ends = f"{core.cm_id.local.sockaddr} to {core.cm_id.get_peer_addr()}"
        return f"<{type(self).__name__} {ends} on {_device_of(core.cm_id)}, {state}>"

    def _repr_html_(self) -> str:
        core = self._core
        ends = [
            ("device", _device_of(core.cm_id)),
            ("local", core.cm_id.local.sockaddr),
            ("peer", core.cm_id.get_peer_addr()),
            ("closed", self.closed),
        ]
        return table(type(self).__name__, [*ends, *values(self.statistics()).items()])

    @property
    def local_address(self) -> SockAddr:
        """Host and port of this end."""
        return self._core.cm_id.get_local_addr()

    @property
    def peer_address(self) -> SockAddr | None:
        """Host and port of the peer."""
        return self._core.cm_id.get_peer_addr()

    @property
    def peer_data(self) -> bytes:
        """The bytes that the peer's program sent when the connection was made.

        At the listener's end: the `data` of connect(), at most 24 bytes. At the other end: the answer of
        admit(), at most 164 bytes. Empty if the program sent none, or the peer speaks version 1 of the
        endpoint protocol.
        """
        return self._core.peer_data

    @property
    def closed(self) -> bool:
        """Whether everything of the connection was closed."""
        return self._core.released

    @property
    def raw(self) -> bool:
        """Whether the peer is not an rnic endpoint, which Config.raw allows: a message is one SEND, and
        regions are not announced.

        A Region that the program has learned otherwise can be read and written.
        """
        return self._core.raw

    @property
    def pd(self) -> PD:
        """The protection domain: read() and write() accept regions of its reg_mr() and alloc_mr()."""
        return self._core.pd

    @property
    def regions(self) -> Mapping[int, Region]:
        """The regions that the peer shares now, by id."""
        return self._core.sharing.peers()

    @property
    def undelivered(self) -> int:
        """When the connection has failed: the number of messages that may not have reached the peer."""
        return self._core.machine.undelivered

    def statistics(self) -> Statistics:
        """The counters of the connection."""
        return self._core.statistics()

    def alloc(self, nbytes: int) -> MR:
        """Allocate `nbytes` of registered memory, from the beginning of a page on; `buf` of the MR is the
        memory.

        read() and write() use this memory, and any slice or array of it, without registration or copy; so
        they do for register() and empty(). When the memory is shared, a peer on this host reaches it without
        this process. close() or a `with` block frees it, and raises EBUSY while arrays or views of it exist.
        Otherwise it is freed when nothing refers to it any more, also after the end of the connection. Raises
        VerbsError for 0 bytes, or too many.
        """
        self._core.check()
        return self._core.pool.alloc(nbytes)

    def register(self, buffer: AnyBuffer) -> MR:
        """Register a buffer, so that read() and write() use it, and any slice of it, without registration or
        copy.

        close() of the MR, the end of its `with` block or the end of the connection releases the buffer; until
        then it cannot be resized. close() raises EBUSY while an operation uses it. A read-only buffer can be
        the source of a write(). Raises ValueError if the bytes are not in C order.
        """
        self._core.check()
        return self._core.pool.register(buffer)

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = float) -> NDArray[Any]:
        """Make an uninitialised NumPy array in memory of alloc(); the memory is freed with the array and all
        views of it.

        Raises ImportError if NumPy is not installed; ValueError for arrays of Python objects.
        """
        self._core.check()
        return self._core.pool.empty(shape, dtype)

    def asarray(
        self,
        region: Region,
        *,
        shape: int | tuple[int, ...] | None = None,
        dtype: DTypeLike | None = None,
    ) -> NDArray[Any]:
        """The array in a buffer that share() has shared, without a copy: it shows what the peer writes.

        It is writable if the shared buffer is. `shape` and `dtype` are the region's, if it has any, or as
        for read_array(). Raises ValueError for a region that was withdrawn, or that is the peer's (use
        read_array()).
        """
        memory = self._core.sharing.memory(region)
        return Layout(region, shape, dtype, "asarray()").over(memory)

    def _pieces(self, array: NDArray[Any]) -> Iterator[tuple[int, memoryview]]:
        """Parts of it that one READ can fill, and where they are."""
        data = flat(array, "read_array()")
        for start in range(0, len(data), LONGEST):
            yield start, data[start : start + LONGEST]


def room(buffer: AnyBuffer) -> memoryview:
    """The bytes of a buffer that recv_into() fills."""
    view = flat(buffer, "recv_into()", to_write=True)
    if view.readonly and len(view):
        raise ValueError("recv_into() needs a buffer that can be written to, and this one is read-only")
    return view


class ListenerFace:
    """The properties of a listener."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def __repr__(self) -> str:
        closed = ", closed" if self._desk.closed else ""
        return f"<{type(self).__name__} at {self.address} on {_device_of(self._desk.cm_id)}{closed}>"

    def _repr_html_(self) -> str:
        rows = [
            ("device", _device_of(self._desk.cm_id)),
            ("address", self.address),
            ("closed", self._desk.closed),
        ]
        return table(type(self).__name__, rows)

    def __del__(self) -> None:
        desk: Desk | None = getattr(self, "_desk", None)
        if desk is not None and not desk.closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            desk.forget()

    @property
    def address(self) -> SockAddr:
        """Host and port at which it listens."""
        return self._desk.cm_id.get_local_addr()

    @property
    def port(self) -> int:
        """The port; if 0 was requested, the free port that was chosen."""
        return self._desk.cm_id.get_src_port()

    def alloc(self, nbytes: int) -> MR:
        """Allocate memory as Connection.alloc() does, to share with any number of connections:
        `conn.share(mr.buf)`.

        Clients on this host read and write it without this process. Raises VerbsError: EINVAL for a listener
        at all addresses, which has no device.
        """
        with self._pool("alloc") as pool:
            return pool.alloc(nbytes)

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = float) -> NDArray[Any]:
        """Make an uninitialised NumPy array in memory of alloc()."""
        with self._pool("empty") as pool:
            return pool.empty(shape, dtype)

    @contextmanager
    def _pool(self, verb: str) -> Iterator[Pool]:
        """Its protection domain goes with the memory."""
        context = self._desk.cm_id.verbs
        if context is None:
            raise VerbsError(EINVAL, "a listener at all addresses has no device: listen at one", verb)
        pd = context.alloc_pd()
        try:
            yield Pool(pd)
        finally:
            pd.__exit__(VerbsError, None, None)  # now, or with what uses it

    def close(self) -> None:
        """Stop listening; accepted connections stay."""
        self._desk.close()
