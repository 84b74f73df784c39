# SPDX-License-Identifier: Apache-2.0
"""Batches: many operations and one wait. This is the common part of synchronous and asyncio batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from rnic._nic.nic import MR, Chain, Result, word
from rnic.conn.core import Core
from rnic.conn.ops import COMPARE_SWAP, FETCH_ADD, READ, WRITE
from rnic.endpoint import Region

if TYPE_CHECKING:
    from rnic.endpoint.buffers import AnyBuffer

__all__ = ["BatchFace", "Result"]


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
        self._core, self._block, self._chain = core, block, Chain(core.machine)
        self._open = self._over = False

    def read(self, local: AnyBuffer | MR, remote: Region, offset: int = 0) -> Result:
        """Fill a buffer or an MR from the peer's region, from byte `offset` on, by the end of the block."""
        if not self._open:
            self._refuse()
        return self._chain.add(self._core.rdma(READ, local, remote, offset, self._chain.fenced))

    def write(self, local: AnyBuffer | MR, remote: Region, offset: int = 0) -> Result:
        """Write a buffer or an MR into the peer's region, at byte `offset`; leave it alone until the end."""
        if not self._open:
            self._refuse()
        return self._chain.add(self._core.rdma(WRITE, local, remote, offset, self._chain.fenced))

    def fetch_add(self, remote: Region, n: int, offset: int = 0) -> Result:
        """Add to 8 bytes of the peer's region; result() tells what was there before."""
        if not self._open:
            self._refuse()
        return self._chain.add(
            self._core.atomic(FETCH_ADD, remote, offset, word(n, "n"), 0, self._chain.fenced)
        )

    def compare_swap(self, remote: Region, compare: int, swap: int, offset: int = 0) -> Result:
        """Replace 8 bytes of the peer's region if they are `compare`; result() tells their old value."""
        if not self._open:
            self._refuse()
        compare, swap = word(compare, "compare"), word(swap, "swap")
        return self._chain.add(
            self._core.atomic(COMPARE_SWAP, remote, offset, compare, swap, self._chain.fenced)
        )

    def fence(self) -> None:
        """What comes next waits for the READs and atomics before it: a WRITE cannot overtake them."""
        self._chain.fenced = True

    def _refuse(self) -> Never:
        if self._over:
            raise RuntimeError("the batch has ended: begin another one")
        raise RuntimeError(
            "the batch has not begun, so nothing would wait: "
            f"begin a block: {self._block} conn.batch() as batch"
        )

    def begin(self) -> None:
        """The block begins."""
        self._core.check()
        self._open = not self._over

    def end(self) -> None:
        """The block has ended; the operations go on."""
        self._open, self._over = False, True

    def is_over(self) -> bool:
        """Whether all have ended."""
        return self._chain.is_over()

    @property
    def failed(self) -> Result | None:
        """The first operation that has failed; None: none has."""
        return self._chain.failed

    def raise_failed(self) -> None:
        """Raise the error of the first operation that failed, if there is one."""
        if self.failed is not None and self.failed.error is not None:
            error = self.failed.error
            note = f"operation {self.failed.index} of the batch: {self.failed.what()}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            raise error
