# SPDX-License-Identifier: Apache-2.0
"""The calls of a synchronous connection that are about memory: what is shared, and what the peer shares."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rnic._nic.nic import MR
from rnic.conn.arrays import Layout
from rnic.conn.ops import COMPARE_SWAP, FETCH_ADD, READ, WRITE, BatchFace
from rnic.conn.waits import Waits
from rnic.endpoint import Region
from rnic.enums import AccessFlags
from rnic.times import after, seconds

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from rnic.endpoint.buffers import AnyBuffer


class Remote(Waits):
    """Regions, and the READs, WRITEs and atomics in them."""

    def share(self, buffer: AnyBuffer, access: AccessFlags | None = None) -> Region:
        """Let the peer read, write and add to a buffer; the peer gets the Region from next_region().

        Returns the Region, for withdraw() and revoke(). `access` says what the peer may do; None: everything
        that Config.access allows (only reading, if the buffer is read-only).
        """
        self._enter("share")
        try:
            region = self._core.sharing.share(buffer, access)
            try:
                self._core.pump(monotonic())
            except BaseException:  # the caller does not get it
                self._core.sharing.withdraw(region)
                raise
            return region
        finally:
            self._inside = None

    def withdraw(self, region: Region, timeout: float | None = None) -> None:
        """Stop sharing a region; returns when the peer can no longer use the buffer.

        After TimeoutError the withdrawal continues: the buffer is closed to the peer as soon as it confirms.
        If the peer never confirms, use revoke().
        """
        self._enter("withdraw", timeout)
        try:
            self._core.sharing.withdraw(region)
            self._wait(lambda: self._core.sharing.is_withdrawn(region), timeout, "withdraw")
        finally:
            self._inside = None

    def revoke(self, region: Region) -> None:
        """Stop sharing a region at once, without the peer's confirmation; on return the peer cannot use the
        buffer.

        A peer that still tries loses the connection. Raises VerbsError: EBUSY, after a second at most, if a
        process of this host is stopped in the middle of a copy. Then that is done later; a further call tells
        whether.
        """
        self._enter("revoke")
        try:
            self._core.sharing.revoke(region)
            self._core.pump(monotonic())
        finally:
            self._inside = None

    def next_region(self, timeout: float | None = None) -> Region:
        """Wait for the next region that the peer shares, and return it; each region is returned once."""
        self._enter("next_region", timeout)
        try:
            while (region := self._core.sharing.next_region()) is None:
                self._wait(self._core.sharing.has_region, timeout, "next_region")
            return region
        finally:
            self._inside = None

    def next_withdrawn(self, timeout: float | None = None) -> Region:
        """Wait until the peer has withdrawn a region that next_region() returned, and return it; each is
        returned once.

        Regions to which the program keeps no reference are left out.
        """
        self._enter("next_withdrawn", timeout)
        try:
            while (region := self._core.sharing.next_withdrawn()) is None:
                self._wait(self._core.sharing.has_withdrawn, timeout, "next_withdrawn")
            return region
        finally:
            self._inside = None

    def write(
        self, local: AnyBuffer | MR, remote: Region, offset: int = 0, *, timeout: float | None = None
    ) -> None:
        """Write a whole buffer into the peer's region, from byte `offset` on; returns when the bytes are
        there.

        Raises ValueError if the region is too short, was withdrawn or does not grant REMOTE_WRITE. After
        TimeoutError the operation continues, and uses the buffer until close() or a later operation has
        returned; so it is for read(), fetch_add() and compare_swap().
        """
        self._enter("write", timeout)
        try:
            self._finish(self._core.rdma(WRITE, local, remote, offset), timeout, "write")
        finally:
            self._inside = None

    def read(
        self, local: AnyBuffer | MR, remote: Region, offset: int = 0, *, timeout: float | None = None
    ) -> None:
        """Fill a whole buffer from the peer's region, from byte `offset` on; returns when it is full.

        For a part of a buffer, give a slice of its memoryview. Raises ValueError if the region is too short,
        was withdrawn or does not grant REMOTE_READ.
        """
        self._enter("read", timeout)
        try:
            self._finish(self._core.rdma(READ, local, remote, offset), timeout, "read")
        finally:
            self._inside = None

    def read_array(
        self,
        region: Region,
        *,
        shape: int | tuple[int, ...] | None = None,
        dtype: DTypeLike | None = None,
        timeout: float | None = None,
    ) -> NDArray[Any]:
        """Read the peer's region into a new array, with the region's shape and type, or with the given ones.

        With `dtype` alone, the length follows from the region's bytes, unless the region has more than one
        dimension. Raises ValueError if the region does not say what array it holds and `dtype` is not given,
        or if they do not fit its length; ImportError if NumPy is not installed. `timeout` is in
        seconds.
        """
        array = Layout(region, shape, dtype, "read_array()").empty()
        until = after(timeout)
        for start, piece in self._pieces(array):
            self.read(piece, region, start, timeout=None if until is None else max(0.0, until - monotonic()))
        return array

    def fetch_add(self, remote: Region, n: int, offset: int = 0, *, timeout: float | None = None) -> int:
        """Add `n` to 8 bytes of the peer's region in one step; returns their old value.

        The 8 bytes are an unsigned number in the byte order of the peer's machine, which wraps at 2**64; a
        negative `n` subtracts. Their address, the region's and `offset`, is a multiple of 8. Raises
        ValueError if it is not, if they lie outside of the region, or if 8 bytes do not hold `n`.
        """
        self._enter("fetch_add", timeout)
        try:
            return self._finish(self._core.atomic(FETCH_ADD, remote, offset, n), timeout, "fetch_add") or 0
        finally:
            self._inside = None

    def compare_swap(
        self, remote: Region, compare: int, swap: int, offset: int = 0, *, timeout: float | None = None
    ) -> int:
        """Replace 8 bytes of the peer's region by `swap` if they equal `compare`, in one step; returns their
        old value.

        They were replaced if that is `compare`. The numbers and the address are those of fetch_add().
        """
        self._enter("compare_swap", timeout)
        try:
            one = self._core.atomic(COMPARE_SWAP, remote, offset, compare, swap)
            return self._finish(one, timeout, "compare_swap") or 0
        finally:
            self._inside = None

    def batch(self, timeout: float | None = None) -> Batch:
        """Start many operations and wait for all at the end of the block: `with conn.batch() as b:
        b.read(...)`.

        `timeout` is in seconds, for the wait at the end.
        """
        seconds(timeout)
        return Batch(self, timeout)


class Batch(BatchFace):
    """The operations of a `with conn.batch()` block; BatchFace has its calls. It waits at the end of the
    block.
    """

    def __init__(self, conn: Remote, timeout: float | None) -> None:
        super().__init__(conn._core, "with")
        self._conn, self._timeout = conn, timeout

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()
        if kind is not None:
            return
        self._conn._enter("batch", self._timeout)
        try:
            self._conn._wait(self._chain.is_over, self._timeout, "batch")
        finally:
            self._conn._inside = None
        self.raise_failed()
