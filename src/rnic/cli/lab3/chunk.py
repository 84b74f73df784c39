# SPDX-License-Identifier: Apache-2.0
"""A region that the judge offers, for a chunk of a file that it knows."""

from __future__ import annotations

import rnic
from rnic.cli.lab3.line import Line
from rnic.cli.lab3.messages import Region
from rnic.cli.lab3.receiver import REGION_ACCESS

_OTHER = bytes(byte ^ 0xFF for byte in range(256))
_UNTOUCHED = b"\xa5"


class Chunk:
    """Bytes that should come into a region; before that, each byte there is another one."""

    def __init__(self, line: Line, data: bytes, room: int) -> None:
        mr = line.stack.enter_context(line.pd.alloc_mr(room, REGION_ACCESS))
        self.region = Region(mr.rkey, mr.addr, mr.length)
        self._data, self._mr, self._memory = data, mr, mr.buf
        self._marked: list[int] = []
        self._right = data.ljust(room, _UNTOUCHED)
        mr.buf[:] = data.translate(_OTHER).ljust(room, _UNTOUCHED)

    def mark(self) -> list[rnic.SGE]:
        """The first and the last byte, for two bytes of DONE that are zero: no byte of the file is.

        What the WRITE puts there is not seen then; of fewer than three bytes that would be all.
        """
        self._marked = [0, len(self._data) - 1] if len(self._data) > 2 else []
        return [rnic.SGE(self._mr, at, 1) for at in self._marked]

    def is_right(self) -> bool:
        """Whether they are all there, and nothing behind them."""
        return bytes(self._memory) == self._right

    def is_under_marks(self) -> bool:
        """As is_right(), but with DONE on top, which came last: else there are bytes of the file."""
        came = bytearray(self._memory)
        on_top = all(came[at] != self._right[at] for at in self._marked)
        for at in self._marked:
            came[at] = self._right[at]
        return on_top and came == self._right

    def difference(self, earlier: list[Chunk], file: bytes) -> str:
        """What is wrong, and what to do about it."""
        size = len(self._data)
        came = bytes(self._memory)
        wrong = [at for at, byte in enumerate(self._data) if came[at] != byte]
        if not wrong:
            return f"more than the {size} bytes of this chunk were written: write no byte behind them"
        if len(wrong) == size:
            return f"none of the {size} bytes of this chunk is in the region: {self._where(earlier)}"
        whence = _whence(came[wrong[0] :], file)
        return (
            f"{len(wrong)} of the {size} bytes of this chunk are wrong, the first at {wrong[0]}{whence}: "
            "write byte i of the chunk to addr + i, and leave that memory alone until the WRITE has completed"
        )

    def _where(self, earlier: list[Chunk]) -> str:
        if any(self._data in bytes(one._memory) for one in earlier):
            return "they are in an earlier one: take the rkey and the addr from each REGION anew"
        return "RDMA WRITE them to its addr, leave their memory alone until it has completed, then send DONE"


def _whence(came: bytes, file: bytes) -> str:
    """The bytes of the file that are in the wrong place, if it is they."""
    sample = came[:16]
    found = file.find(sample) if len(sample) == 16 else -1
    return "" if found < 0 else f", where the file's bytes from {found} on are"
