# SPDX-License-Identifier: Apache-2.0
"""Registered memory that is used again: the user's, and long buffers that read() and write() see again.

Memory that the user has registered is found by address, so a slice of it serves as well as the whole.  Of
other long buffers, the registrations of the last few are cached by address.  A cached registration holds no
export and no reference, so the buffer can be freed, resized and closed.  It pins no page and translates no
address: it is only a range of addresses, and each operation exports its buffer anew to learn them.  It
grants peers no rights.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from rnic._nic.nic import MR, Places
from rnic.conn.arrays import kind_of, numpy_for
from rnic.conn.device import let_go_memory, part_with
from rnic.endpoint.buffers import flat
from rnic.enums import AccessFlags
from rnic.verbs.pd import PD

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from rnic.endpoint.buffers import AnyBuffer

MAX_CACHED = 16
"""The most registrations that are cached for buffers that come again."""
_Key = tuple[int, int, bool]


class Pool:
    """The memory of one protection domain that stays registered for more than one operation."""

    def __init__(self, pd: PD) -> None:
        """Make an empty pool."""
        self._pd = pd
        self.places = Places()
        """The memory that the user has registered."""
        self._registered: list[MR] = []  # also some that were closed since
        self._open = 0  # the number of those that were open when that was last looked at
        self._cached: OrderedDict[_Key, MR] = OrderedDict()

    def alloc(self, nbytes: int) -> MR:
        """Allocate and register `nbytes` bytes of memory; return the region."""
        mr = self._pd.alloc_mr(nbytes, AccessFlags.LOCAL_WRITE)
        self.places.add(mr)
        return mr

    def register(self, buffer: AnyBuffer) -> MR:
        """Register a buffer of the user; return the region.  ValueError when it is not contiguous."""
        data = flat(buffer, "register()")
        mr = self._pd.reg_mr(data, AccessFlags(0) if data.readonly else AccessFlags.LOCAL_WRITE)
        self._registered.append(mr)
        if len(self._registered) > 2 * self._open + 8:
            self._registered = [one for one in self._registered if not one.closed]
            self._open = len(self._registered)
        self.places.add(mr)
        return mr

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array in newly registered memory, which is freed with the array."""
        np, kind = numpy_for("empty()"), kind_of(dtype, "empty()")
        nbytes = math.prod((shape,) if isinstance(shape, int) else shape) * kind.itemsize
        array: NDArray[Any]
        if nbytes <= 0:  # a region cannot be empty; for a negative length NumPy raises the error
            array = np.empty(shape, kind)
        else:
            array = np.frombuffer(self.alloc(nbytes).buf, kind).reshape(
                shape
            )  # ndarray() would hold no export
        return array

    def find(self, addr: int, length: int, reads: bool) -> MR:
        """Return the cached registration of these bytes; they are registered now if there is none.

        `reads`: the memory is for a READ to fill, so it must be writable.
        """
        key = (addr, length, reads)
        mr = self._cached.get(key)
        if mr is None:
            while len(self._cached) >= MAX_CACHED:  # first: an exception here leaves none too many
                part_with(self._cached.popitem(last=False)[1])
            access = AccessFlags.LOCAL_WRITE if reads else AccessFlags(0)
            mr = self._cached[key] = self._pd.reg_mr(addr=addr, length=length, access=access)
        self._cached.move_to_end(key)
        return mr

    @property
    def awaited(self) -> bool:
        """Arrays lie in memory of the pool: that memory and its domain stay until the last array is freed."""
        return any(mr.awaited for mr in self.places.regions())

    def let_go(self) -> None:
        """Deregister everything; memory in which arrays lie stays until the last of them is freed."""
        while self._cached:
            part_with(self._cached.popitem()[1])
        self._registered.clear()
        for mr in self.places.regions():
            if not mr.awaited:
                let_go_memory(mr)
