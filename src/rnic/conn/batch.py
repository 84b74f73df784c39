# SPDX-License-Identifier: Apache-2.0
"""Batches: many operations and one wait. This is the common part of synchronous and asyncio batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic._nic.nic import MR, Result, word
from rnic.conn.core import Core
from rnic.endpoint import Region
from rnic.enums import WROpcode

if TYPE_CHECKING:
    from rnic.endpoint.buffers import AnyBuffer

__all__ = ["BatchFace", "Result"]

_CHAIN = 16  # operations that are posted at a time


class BatchFace:
    """Operations that are posted at once, up to 64 at a time; the end of the block waits for all.

    They are posted and carried out in the order of the calls, with one exception: a WRITE or an atomic may
    overtake a READ before it, unless fence() stands in between. (Over iWARP a WRITE may also overtake an
    atomic behind that READ.) Each call returns a Result, whose result() is there when the block has
    ended.

    A buffer of up to 16 KiB is copied; a longer one is registered, unless it is registered already (alloc(),
    register(), empty()). Do not touch a buffer until the block has ended: a READ may fill it, and a WRITE may
    read it, at any time.

    A call raises ValueError or TypeError for an impossible operation. A later failure is raised at the end of
    the block: the first one, which is also `failed`, with a note that names its operation. result() of each
    operation tells its own outcome. An exception inside the block leaves it at once: posted operations go on.
    """

    def __init__(self, core: Core, block: str) -> None:
        self._core, self._block = core, block
        self._under_way: list[Result] = []  # some may have ended
        self._given = 0
        self._fenced = self._begun = self._over = False
        self.failed: Result | None = None
        """The first operation that has failed; None: none has."""

    def read(self, local: AnyBuffer | MR, remote: Region, offset: int = 0) -> Result:
        """Fill a buffer or an MR from the peer's region, from byte `offset` on, by the end of the block."""
        self._check()
        return self._add(self._core.rdma(WROpcode.RDMA_READ, local, remote, offset, self._fenced))

    def write(self, local: AnyBuffer | MR, remote: Region, offset: int = 0) -> Result:
        """Write a buffer or an MR into the peer's region, at byte `offset`; leave it alone until the end."""
        self._check()
        return self._add(self._core.rdma(WROpcode.RDMA_WRITE, local, remote, offset, self._fenced))

    def fetch_add(self, remote: Region, n: int, offset: int = 0) -> Result:
        """Add to 8 bytes of the peer's region; result() tells what was there before."""
        self._check()
        kind = WROpcode.ATOMIC_FETCH_AND_ADD
        return self._add(self._core.atomic(kind, remote, offset, word(n, "n"), 0, self._fenced))

    def compare_swap(self, remote: Region, compare: int, swap: int, offset: int = 0) -> Result:
        """Replace 8 bytes of the peer's region if they are `compare`; result() tells their old value."""
        self._check()
        kind, values = WROpcode.ATOMIC_CMP_AND_SWP, (word(compare, "compare"), word(swap, "swap"))
        return self._add(self._core.atomic(kind, remote, offset, *values, self._fenced))

    def fence(self) -> None:
        """What comes next waits for the READs and atomics before it: a WRITE cannot overtake them."""
        self._fenced = True

    def _check(self) -> None:
        if not self._begun:
            raise RuntimeError(
                "the batch has not begun, so nothing would wait: "
                f"begin a block: {self._block} conn.batch() as batch"
            )
        if self._over:
            raise RuntimeError("the batch has ended: begin another one")

    def _add(self, one: Result) -> Result:
        one.index, self._given, self._fenced = self._given, self._given + 1, False
        self._under_way.append(one)
        if self._given % _CHAIN == 0:
            self._core.machine.pump()
            self.is_over()
        return one

    def begin(self) -> None:
        """The block begins."""
        self._core.check()
        self._begun = True

    def end(self) -> None:
        """The block has ended; the operations go on."""
        self._over = True

    def is_over(self) -> bool:
        """Whether all have ended; what has is forgotten here, but for the first that failed."""
        n = 0
        for one in self._under_way:
            if not one.done:
                break
            n += 1
            if one.error is not None and self.failed is None:
                self.failed = one
        del self._under_way[:n]
        return not self._under_way

    def raise_failed(self) -> None:
        """Raise the error of the first operation that failed, if there is one."""
        if self.failed is not None and self.failed.error is not None:
            error = self.failed.error
            note = f"operation {self.failed.index} of the batch: {self.failed.what()}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            raise error
