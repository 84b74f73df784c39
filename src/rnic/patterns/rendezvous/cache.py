# SPDX-License-Identifier: Apache-2.0
"""Registrations that are kept for buffers that come again."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from rnic.endpoint.buffers import flat
from rnic.enums import AccessFlags
from rnic.records import Record

if TYPE_CHECKING:
    from rnic import PD
    from rnic._nic.nic import MR
    from rnic.endpoint.buffers import AnyBuffer

__all__ = ["CacheStatistics", "RegistrationCache", "array_of"]

_CHANGES = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC
Key = tuple[int, int, int]  # address, bytes, rights


class CacheStatistics(Record):
    """What a RegistrationCache has done."""

    hits: int
    """Registrations that were there already."""
    misses: int
    """Those that were made."""
    evicted: int
    """Kept ones that were closed, as max_bytes was reached."""
    invalidated: int
    """Kept ones that were closed, as their memory went."""
    kept: int
    """Kept ones, which nothing uses now."""
    kept_bytes: int
    """The bytes of these."""


class _Kept(NamedTuple):
    mr: MR
    owner: weakref.ref[Any]


class _Used(NamedTuple):
    key: Key
    array: Any  # its memory cannot go meanwhile
    owner: Any  # None: it is not to be kept


_NOT_KEPT = _Used((0, 0, 0), None, None)


def array_of(buffer: object) -> Any:
    """The NumPy array that a buffer is, or is a view of; None if it is something else."""
    if (numpy := sys.modules.get("numpy")) is None:
        return None
    if isinstance(buffer, memoryview) and isinstance(buffer.obj, numpy.ndarray):
        buffer = numpy.asarray(buffer)
    return buffer if isinstance(buffer, numpy.ndarray) else None


def owner_of(array: Any) -> Any:
    """The array whose end is that of the memory; None if the memory may go without one."""
    while (base := array.base) is not None:
        array = base.obj if isinstance(base, memoryview) else base
        if not isinstance(array, sys.modules["numpy"].ndarray):
            return None
    return array if array.flags.owndata else None


class RegistrationCache:
    """Registrations of one protection domain, by address: take() one, and give() it back after use.

    What nothing uses is kept for the next take() of the same bytes with the same rights, up to max_bytes; the
    one that was not used for the longest time goes first. One that is in use is never closed, and nobody else
    gets it meanwhile: a second take() makes another one.

    A kept registration does not keep its memory. It is closed when the memory goes, before others can get
    it: when the NumPy array that owns the memory is deleted. Of no other object the cache can know when the
    memory goes: a bytearray moves when it grows and cannot be referenced weakly, a mapping can be unmapped.
    So their registrations end with give(). NumPy refuses to resize an array while the cache has a
    registration of it; resize(refcheck=False) forces it, and must not be used on one.

    A peer that has got the key of a kept registration may READ the bytes until it is closed. One that lets
    peers write is closed by give(), as else a peer could change the bytes later. Several ends, in several
    threads, may share a cache.
    """

    def __init__(self, pd: PD, max_bytes: int = 256 << 20) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes {max_bytes}: give bytes from 0 on; 0 keeps nothing")
        self.pd, self.max_bytes = pd, max_bytes
        self._kept: dict[Key, _Kept] = {}  # the first was not used for the longest time
        self._used: dict[MR, _Used] = {}
        self._hits = self._misses = self._evicted = self._invalidated = 0

    def statistics(self) -> CacheStatistics:
        """What it has done so far."""
        kept = [one.mr.length for one in list(self._kept.values())]
        counts = self._hits, self._misses, self._evicted, self._invalidated
        return CacheStatistics(*counts, len(kept), sum(kept))

    def take(self, buffer: AnyBuffer, access: AccessFlags | int = AccessFlags.LOCAL_WRITE) -> MR:
        """A registration of a buffer that is contiguous in C order; give() ends the use.

        Raises ValueError for one that is not, and VerbsError as PD.reg_mr().
        """
        view = flat(buffer, "take()")
        if (array := array_of(buffer)) is None or not view.nbytes:
            return self._register(view, access)
        if view.readonly and access & ~(AccessFlags.REMOTE_READ | AccessFlags.ZERO_BASED):
            return self._register(view, access)  # which refuses
        return self.take_at(array.__array_interface__["data"][0], view.nbytes, access, array)

    def take_at(self, addr: int, length: int, access: AccessFlags | int, array: Any) -> MR:
        """The same of bytes in the memory of a NumPy array, wherever they lie there."""
        owner = None if access & _CHANGES else owner_of(array)
        key = addr, length, int(access)
        if (kept := self._kept.pop(key, None)) is not None:
            self._hits += 1
            mr = kept.mr
        else:
            self._misses += 1
            mr = self.pd.reg_mr(addr=addr, length=length, access=access)
        self._used[mr] = _Used(key, array, owner)
        return mr

    def prepare_at(self, addr: int, length: int, access: AccessFlags | int, array: Any) -> None:
        """Register bytes of a NumPy array for a take_at() that comes, if the cache can keep it till then.

        Also with rights that let peers write: no peer knows its key as yet.
        """
        key, owner = (addr, length, int(access)), owner_of(array)
        if owner is None or key in self._kept or length > self.max_bytes:
            return
        self._misses += 1
        self._keep(key, self.pd.reg_mr(addr=addr, length=length, access=access), owner)

    def _register(self, view: memoryview, access: AccessFlags | int) -> MR:
        self._misses += 1
        return self.pd.reg_mr(view, access)

    def give(self, mr: MR) -> None:
        """Its use is over: it is kept, or closed."""
        used = self._used.pop(mr, _NOT_KEPT)
        key, owner = used.key, used.owner
        if owner is None or mr.closed or mr.length > self.max_bytes or key in self._kept:
            mr.close()
            return
        self._keep(key, mr, owner)

    def _keep(self, key: Key, mr: MR, owner: Any) -> None:
        kept = _Kept(mr, weakref.ref(owner, lambda _: self._invalidate(key)))
        if self._kept.setdefault(key, kept) is not kept:  # another thread has come first
            mr.close()
        while (keys := list(self._kept)) and self.statistics().kept_bytes > self.max_bytes:
            self._evicted += self._close(keys[0])

    def forget(self, mr: MR) -> None:
        """It is not to be kept, as its memory is another one now; give() closes it."""
        self._used.pop(mr, None)

    def close(self) -> None:
        """Close all that are kept; those in use are closed by their give()."""
        self.max_bytes = 0
        for key in list(self._kept):
            self._close(key)

    def _close(self, key: Key) -> bool:
        if (kept := self._kept.pop(key, None)) is None:
            return False
        kept.mr.close()
        return True

    def _invalidate(self, key: Key) -> None:
        """The array goes, in whatever thread, and its memory behind it."""
        self._invalidated += self._close(key)
