# SPDX-License-Identifier: Apache-2.0
"""A batch: many operations and one wait.  What both faces have; each waits in its own way."""

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
    """Operations that are posted as they come, up to 64 at a time, and waited for at the end of a block.

    They are posted in the order of the calls, and carried out in it, with one exception that all queue pairs
    have: a WRITE or an atomic may overtake a READ before it, unless fence() stands in between.  Each call
    returns a Result, whose result() is there when the block has ended.

    A buffer of up to 4 KiB is copied; a longer one is registered, unless it is already (alloc(), register(),
    empty()).  A buffer is in use until the block has ended: a READ fills it, and a WRITE takes it, at any
    time until then.

    What cannot be (ValueError, TypeError) is raised by the call.  What fails later is raised at the end of
    the block, with a note that says which operation it was: the first that failed, which is also `failed`.
    result() of each tells its own outcome.  An exception from inside the block leaves it at once: what was
    posted goes on, and what was not is not posted any more.
    """

    if TYPE_CHECKING:  # the same, by their types

        def read(self, local: AnyBuffer | MR, remote: Region, offset: int = 0) -> Result:
            """Fill a buffer or an MR."""

        def write(self, local: AnyBuffer | MR, remote: Region, offset: int = 0) -> Result:
            """Write one."""

    def __init__(self, core: Core, waits: bool) -> None:
        super().__init__(core.operations, core.pool.hold, self._look, waits)
        self._core = core

    def _look(self, opcode: int, local: Any, remote: Region, offset: int) -> memoryview | MR | None:
        """Raises what is wrong with an operation; else its local side."""
        kind = WROpcode(opcode)
        side = None if local is None else local_side(local, self._core.pd, kind)
        length = 8 if side is None else side.length if isinstance(side, MR) else side.nbytes
        check(kind, remote, offset, length)
        return side

    def raise_failed(self) -> None:
        """Raise what the first that failed has met."""
        if self.failed is not None and self.failed.error is not None:
            error = self.failed.error
            note = f"operation {self.failed.index} of the batch: {self.failed.what()}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            raise error
