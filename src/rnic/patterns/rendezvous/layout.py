# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of a message lie, and the requests that move them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rnic._nic.nic import SGE, SendWR, blank
from rnic.endpoint.buffers import flat, view_of
from rnic.enums import AccessFlags, ReregMRFlags, WROpcode
from rnic.errors import VerbsError
from rnic.patterns.rendezvous.cache import array_of

if TYPE_CHECKING:
    from rnic._nic.nic import MR
    from rnic.endpoint.buffers import AnyBuffer
    from rnic.patterns.rendezvous.cache import RegistrationCache

    Buffers = AnyBuffer | Sequence[AnyBuffer]
    """A buffer, a NumPy array, or a list or tuple of them."""

__all__ = ["Held", "Layout", "Piece", "Remote", "cut", "hold_blank", "requests"]

LEAST_ROW = 1024  # bytes: shorter rows cost more as elements of requests than as a copy
_MOST = 1 << 24  # bytes of a request
_PEERS = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE


class Remote(NamedTuple):
    """Bytes of the peer's."""

    addr: int
    length: int
    rkey: int


class Piece(NamedTuple):
    """Registered bytes of this end."""

    mr: MR
    offset: int
    length: int


class Held:
    """The registrations of a message, while it moves."""

    def __init__(self, cache: RegistrationCache) -> None:
        self._cache = cache
        self.pieces: list[Piece] = []

    def remote(self) -> list[Remote]:
        """What the peer has to know of them."""
        return [Remote(mr.iova + offset, length, mr.rkey) for mr, offset, length in self.pieces]

    def release(self) -> None:
        """Nobody uses them any more."""
        while self.pieces:
            mr = self.pieces.pop().mr
            if not any(piece.mr is mr for piece in self.pieces[-1:]):
                self._cache.give(mr)

    def move_away(self, *, blank: bool) -> None:
        """Let the peer use other memory from now on, by the same keys: this one is its owner's again.

        blank: that other memory is empty, else a copy. Without memory for it the registration is closed, and
        a peer that uses it loses the connection.
        """
        for mr, _, _ in self.pieces:
            self._cache.forget(mr)
            try:
                with mr.buf as data:
                    copy = bytearray(len(data) if blank else data)
                mr.rereg(ReregMRFlags.CHANGE_TRANSLATION, buffer=copy)
            except (MemoryError, VerbsError):
                mr.close()


def _named(access: AccessFlags) -> AccessFlags:
    """A peer is told no address: bytes count from 0 on. In requests of this end that would cost a copy."""
    return access | AccessFlags.ZERO_BASED if access & _PEERS else access


def hold_blank(total: int, cache: RegistrationCache, access: AccessFlags) -> tuple[bytes, Held]:
    """New bytes, to be filled before anybody sees them, and their registration."""
    data, addr = blank(total)
    held = Held(cache)
    mr = cache.pd.reg_mr(addr=addr, length=total, access=_named(access))
    held.pieces.append(Piece(mr, 0, total))
    return data, held


class _Flat:
    """A buffer in one piece."""

    def __init__(self, view: memoryview) -> None:
        self._view, self.size, self.pieces = view, view.nbytes, 1

    @property
    def place(self) -> list[int]:
        array = array_of(self._view)
        return [] if array is None else [array.__array_interface__["data"][0], self.size]

    def join(self) -> memoryview:
        return self._view

    def put(self, data: memoryview) -> None:
        self._view[: len(data)] = data

    def hold(self, held: Held, cache: RegistrationCache, access: AccessFlags, _: bool) -> None:
        held.pieces.append(Piece(cache.take(self._view, access), 0, self.size))

    def prepare(self, cache: RegistrationCache, access: AccessFlags) -> None:
        if (array := array_of(self._view)) is not None:
            cache.prepare_at(array.__array_interface__["data"][0], self.size, access, array)


class _Rows:
    """An array whose rows lie anywhere."""

    def __init__(self, array: Any, addr: int, blocks: list[tuple[int, int]]) -> None:
        self._array, self._addr, self._blocks = array, addr, blocks
        self.size, self.pieces = array.nbytes, len(blocks)

    @property
    def place(self) -> list[int]:
        return [self._addr, *self._array.shape, *self._array.strides]

    def join(self) -> bytes:
        return bytes(self._array.tobytes())

    def put(self, data: memoryview) -> None:
        copy = self._array.copy(order="C")
        memoryview(copy).cast("B")[: len(data)] = data
        self._array[...] = copy

    def hold(self, held: Held, cache: RegistrationCache, access: AccessFlags, each: bool) -> None:
        if each:
            for at, length in self._blocks:
                mr = cache.take_at(self._addr + at, length, access, self._array)
                held.pieces.append(Piece(mr, 0, length))
        else:
            first = min(at for at, _ in self._blocks)
            span = max(at + length for at, length in self._blocks) - first
            mr = cache.take_at(self._addr + first, span, access, self._array)
            held.pieces.extend(Piece(mr, at - first, length) for at, length in self._blocks)

    def prepare(self, cache: RegistrationCache, access: AccessFlags) -> None:
        for at, length in self._blocks:
            cache.prepare_at(self._addr + at, length, access, self._array)


def _blocks(array: Any) -> list[tuple[int, int]] | None:
    """Where an array's rows lie, from its first element on, and their lengths; None for one to be copied."""
    axis, length = array.ndim, array.itemsize
    while axis and array.strides[axis - 1] == length:
        axis -= 1
        length *= array.shape[axis]
    if axis and length < LEAST_ROW:
        return None
    offsets = [0]
    for size, stride in zip(array.shape[:axis], array.strides[:axis], strict=True):
        offsets = [at + n * stride for at in offsets for n in range(size)]
    return [(at, length) for at in offsets]


class Layout:
    """The bytes of a message, in their order: a buffer, an array, or a list of them.

    Rows of a NumPy array that lie apart are used where they lie. Rows of less than 1 KiB, as those of an
    array whose last axis has a stride, are copied.
    """

    def __init__(self, buffers: Buffers, what: str, to_write: bool) -> None:
        self.copied = 0
        """Bytes that were copied, as their memory cannot be used where it lies."""
        self._to_write = to_write
        self._back: list[tuple[Any, Any]] = []  # arrays, and the copies that stand for them
        self._parts: list[_Flat | _Rows] = []
        for one in buffers if isinstance(buffers, list | tuple) else (buffers,):
            self._add(one, what)
        self.total = sum(part.size for part in self._parts)
        """Bytes of the message, or of the room for one."""

    def _add(self, buffer: AnyBuffer, what: str) -> None:
        array = array_of(buffer)
        if array is not None and array.dtype.hasobject:
            raise ValueError(f"{what}: {array.dtype} holds Python objects, which mean nothing to a peer")
        if array is not None and array.dtype.kind in "mM":  # NumPy makes no buffer of dates
            buffer = array = array.view("i8")
        view = view_of(buffer, what, to_write=self._to_write)
        if self._to_write and view.readonly:
            raise ValueError(f"{what} needs a buffer that can be written, not a {type(buffer).__name__}")
        if array is None or view.c_contiguous or not view.nbytes:
            if data := flat(buffer, what):
                self._parts.append(_Flat(data))
        elif (blocks := _blocks(array)) is not None:
            self._parts.append(_Rows(array, array.__array_interface__["data"][0], blocks))
        else:
            self._copy(array)

    def _copy(self, array: Any) -> None:
        copy = array.copy(order="C")
        self.copied += copy.nbytes
        if self._to_write:
            self._back.append((array, copy))
        self._parts.append(_Flat(memoryview(copy).cast("B")))

    @property
    def places(self) -> list[int]:
        """Addresses and bytes of arrays: two layouts that have the same are of the same memory."""
        return [number for part in self._parts for number in part.place]

    @property
    def pieces(self) -> int:
        """How many pieces of memory it has."""
        return sum(part.pieces for part in self._parts)

    def join(self, head: bytes) -> bytes:
        """A copy of all bytes, behind these."""
        return b"".join((head, *(part.join() for part in self._parts)))

    def put(self, message: bytes) -> None:
        """Copy a message that is not too long here."""
        left = memoryview(message)
        for part in self._parts:
            part.put(left[: part.size])
            left = left[part.size :]
        self.filled()

    def filled(self) -> None:
        """The bytes have come: what was copied goes back to its place."""
        for array, copy in self._back:
            array[...] = copy

    def hold(self, cache: RegistrationCache, access: AccessFlags, each: bool) -> Held:
        """Registrations of all bytes.

        each: one for each piece, which is what a peer may get; else one for each buffer, with what lies
        between its pieces.
        """
        held = Held(cache)
        try:
            for part in self._parts:
                part.hold(held, cache, _named(access), each)
        except BaseException:
            held.release()
            raise
        return held

    def prepare(self, cache: RegistrationCache, access: AccessFlags) -> None:
        """Let the next hold() of the same bytes, one for each piece, find registrations that are there."""
        for part in self._parts:
            part.prepare(cache, _named(access))


def requests(
    opcode: WROpcode, local: Sequence[Piece], remote: Sequence[Remote], max_sge: int
) -> Iterator[SendWR]:
    """The READs or WRITEs that move all remote bytes from or to the first local ones."""
    pieces = iter(local)
    mr, offset, left = next(pieces)
    for addr, length, rkey in remote:
        at = 0
        while at < length:
            start, sges = at, list[SGE]()
            while at < length and len(sges) < max_sge and at - start < _MOST:
                if not left:
                    mr, offset, left = next(pieces)
                size = min(left, length - at, _MOST - (at - start))
                sges.append(SGE(mr, offset, size))
                at, offset, left = at + size, offset + size, left - size
            yield SendWR(opcode=opcode, sg_list=tuple(sges), remote_addr=addr + start, rkey=rkey)


def cut(pieces: Sequence[Remote], total: int) -> list[Remote]:
    """The first `total` bytes of these pieces."""
    found = []
    for addr, length, rkey in pieces:
        if total:
            found.append(Remote(addr, min(length, total), rkey))
            total -= found[-1].length
    return found
