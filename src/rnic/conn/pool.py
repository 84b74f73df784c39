# SPDX-License-Identifier: Apache-2.0
"""Registered memory that is used again: the user's, and buffers that come to read() and write() again.

What the user has registered is found by address, so a slice of it is as good as the whole.  Of other long
buffers the last ones stay registered, for the same addresses to come again.  Nothing rests on such a
registration but that.  It holds no export and no reference, so buffers can be freed, resized and closed.  It
pins no page and translates nothing: what it says of a buffer is its addresses, and each operation exports its
buffer anew to know them.  And it grants nothing to peers.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from rnic._nic.nic import MR, Hold, Places
from rnic.conn.arrays import kind_of, numpy_for
from rnic.conn.device import later, let_go_memory, part_with
from rnic.endpoint.buffers import flat
from rnic.enums import AccessFlags
from rnic.verbs.pd import PD

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from rnic.endpoint.buffers import AnyBuffer

MAX_CACHED = 16
"""Registrations that are kept for buffers that come again."""
_Key = tuple[int, int, bool]


class Pool:
    """The memory of one protection domain that is registered for more than one operation."""

    def __init__(self, pd: PD, staged: int) -> None:
        """`staged`: bytes of a buffer that is copied, and not registered, at most."""
        self._pd, self._staged = pd, staged
        self.places = Places()
        """What the user has registered."""
        self._registered: list[MR] = []
        self._cached: OrderedDict[_Key, MR] = OrderedDict()

    def alloc(self, nbytes: int) -> MR:
        """Memory of the device."""
        mr = self._pd.alloc_mr(nbytes, AccessFlags.LOCAL_WRITE)
        self.places.add(mr)
        return mr

    def register(self, buffer: AnyBuffer) -> MR:
        """A buffer of the user's."""
        data = flat(buffer, "register()")
        mr = self._pd.reg_mr(data, AccessFlags(0) if data.readonly else AccessFlags.LOCAL_WRITE)
        self._registered = [one for one in self._registered if not one.closed] + [mr]
        self.places.add(mr)
        return mr

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array in memory of the device, which goes with it."""
        np, kind = numpy_for("empty()"), kind_of(dtype, "empty()")
        nbytes = math.prod((shape,) if isinstance(shape, int) else shape) * kind.itemsize
        array: NDArray[Any]
        if nbytes <= 0:  # no region is empty; of a negative length NumPy says what is wrong
            array = np.empty(shape, kind)
        else:
            array = np.frombuffer(self.alloc(nbytes).buf, kind).reshape(
                shape
            )  # ndarray() would hold no export
        return array

    def find(self, data: memoryview, reads: bool) -> Hold | None:
        """Registered memory that has these bytes, the user's or what is cached; `reads`: a READ fills it."""
        found = self.places.find(data, reads)
        if found is None and data.nbytes > self._staged:
            found = self._find_cached(data, reads)
        return found

    def hold(self, data: memoryview, reads: bool) -> Hold:
        """As find(), however short it is."""
        return self.places.find(data, reads) or self._find_cached(data, reads)

    def _find_cached(self, data: memoryview, reads: bool) -> Hold:
        key = (Places.address(data), data.nbytes, reads)
        mr = self._cached.get(key)
        if mr is None:
            access = AccessFlags.LOCAL_WRITE if reads else AccessFlags(0)
            mr = self._cached[key] = self._pd.reg_mr(addr=key[0], length=key[1], access=access)
            while len(self._cached) > MAX_CACHED:
                self._forget(next(iter(self._cached)))
        self._cached.move_to_end(key)
        return Hold(mr, 0, data.nbytes, later)

    def _forget(self, key: _Key) -> None:
        part_with(self._cached[key])
        del self._cached[key]

    @property
    def awaited(self) -> bool:
        """Arrays lie in its memory: it goes with the last of them, and its domain, too."""
        return any(mr.awaited for mr in self.places.regions())

    def let_go(self) -> None:
        """Give it all back.  What arrays lie in goes with the last of them."""
        for key in list(self._cached):
            self._forget(key)
        self._registered.clear()
        for mr in self.places.regions():
            if not mr.awaited:
                let_go_memory(mr)
