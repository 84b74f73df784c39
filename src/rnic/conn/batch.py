# SPDX-License-Identifier: Apache-2.0
"""Batches: many operations and one wait. This is the common part of synchronous and asyncio batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rnic._nic.nic import MR, Chain, Result
from rnic.conn.core import Core
from rnic.conn.ops import check, local_side
from rnic.endpoint import Region
from rnic.enums import WROpcode

if TYPE_CHECKING:
    from rnic.endpoint.buffers import AnyBuffer

__all__ = ["BatchFace", "Result"]


class BatchFace(Chain):
    """Operations that are posted at once, up to 64 at a time; the end of the block waits for all.

    They are posted and carried out in the order of the calls, with one exception: a WRITE or an atomic may
    overtake a READ before it, unless fence() stands in between. (Over iWARP a WRITE may also overtake an
    atomic behind that READ.) Each call returns a Result, whose result() is
    there when the block has ended.

    A buffer of up to 4 KiB is copied; a longer one is registered, unless it is registered already (alloc(),
    register(), empty()). Do not touch a buffer until the block has ended: a READ may fill it, and a WRITE may
    read it, at any time.

    A call raises ValueError or TypeError for an impossible operation. A later failure is raised at the end of
    the block: the first one, which is also `failed`, with a note that names its operation. result() of each
    operation tells its own outcome. An exception inside the block leaves it at once: posted operations go on,
    and the others are not posted.
    """

    if TYPE_CHECKING:  # the same, by their types

        def read(self, local: AnyBuffer | MR, remote: Region, offset: int = 0) -> Result:
            """Fill a buffer or an MR from the peer's region, from byte `offset` on."""

        def write(self, local: AnyBuffer | MR, remote: Region, offset: int = 0) -> Result:
            """Write a buffer or an MR into the peer's region, at byte `offset`."""

    def __init__(self, core: Core, waits: bool) -> None:
        super().__init__(core.operations, core.pool.hold, self._look, waits)
        self._core = core

    def _look(self, opcode: int, local: Any, remote: Region, offset: int) -> memoryview | MR | None:
        """Return the local side of an operation; ValueError or TypeError when the operation is impossible."""
        kind = WROpcode(opcode)
        side = None if local is None else local_side(local, self._core.pd, kind)
        length = 8 if side is None else side.length if isinstance(side, MR) else side.nbytes
        check(kind, remote, offset, length)
        return side

    def raise_failed(self) -> None:
        """Raise the error of the first operation that failed, if there is one."""
        if self.failed is not None and self.failed.error is not None:
            error = self.failed.error
            note = f"operation {self.failed.index} of the batch: {self.failed.what()}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            raise error
