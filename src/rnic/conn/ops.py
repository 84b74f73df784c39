# SPDX-License-Identifier: Apache-2.0
"""READs, WRITEs and atomics of the user's: checked, posted in order, each with its own outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic._nic.nic import MR, SGE, WC, SendWR
from rnic.endpoint import Region
from rnic.enums import AccessFlags, SendFlags, WROpcode

if TYPE_CHECKING:
    from typing_extensions import Buffer

_NEEDS = {
    WROpcode.RDMA_WRITE: AccessFlags.REMOTE_WRITE,
    WROpcode.RDMA_READ: AccessFlags.REMOTE_READ,
    WROpcode.ATOMIC_FETCH_AND_ADD: AccessFlags.REMOTE_ATOMIC,
    WROpcode.ATOMIC_CMP_AND_SWP: AccessFlags.REMOTE_ATOMIC,
}
_MASK = (1 << 64) - 1


class Op:
    """One of them, from the call to the completion."""

    def __init__(
        self,
        opcode: WROpcode,
        remote: Region,
        offset: int,
        length: int,
        *,
        local: Buffer | MR | None = None,
        compare_add: int = 0,
        swap: int = 0,
    ) -> None:
        check(opcode, remote, offset, length)
        self.opcode, self.remote, self.offset = opcode, remote, offset
        self.local = local
        self.compare_add, self.swap = compare_add & _MASK, swap & _MASK
        self.done = False
        self.error: Exception | None = None
        self.value = 0
        """What was there before an atomic."""
        self.slot = -1  # of an atomic's result
        self.own_mr: MR | None = None  # registered for this alone

    def wr(self, wr_id: int, sge: SGE) -> SendWR:
        """The work request."""
        return SendWR(
            wr_id,
            self.opcode,
            SendFlags.SIGNALED,
            [sge],
            self.remote.addr + self.offset,
            self.remote.rkey,
            compare_add=self.compare_add,
            swap=self.swap,
        )

    def finish(self, error: Exception | None = None) -> None:
        """It is over; the buffer is the caller's again."""
        if self.own_mr is not None:
            self.own_mr.close()
            self.own_mr = None
        self.local = None
        self.error, self.done = error, True

    def result(self) -> int:
        """What an atomic has found; raises what went wrong."""
        if self.error is not None:
            raise self.error
        return self.value


def check(opcode: WROpcode, remote: Region, offset: int, length: int) -> None:
    """ValueError for what the peer would refuse, which would end the connection."""
    if not 0 <= offset <= offset + length <= remote.length:
        raise ValueError(f"{length} bytes at {offset} are beyond region {remote.id} of {remote.length} bytes")
    if not remote.access & _NEEDS[opcode]:
        raise ValueError(f"region {remote.id} grants {remote.access!r}: {opcode.name} is not allowed")
    if opcode not in (WROpcode.RDMA_WRITE, WROpcode.RDMA_READ) and (remote.addr + offset) % 8:
        raise ValueError(f"{opcode.name} needs an address that is a multiple of 8, not offset {offset}")


def size_of(local: Buffer | MR) -> int:
    """Bytes of a buffer, or of a memory region."""
    return local.length if isinstance(local, MR) else memoryview(local).nbytes


def explain(wc: WC, error: Exception | None) -> str:
    """A completion that failed, in words; one that was only flushed tells what ended the connection."""
    return f"{wc.status.name}: {wc.explain()}" if error is None else str(error)
