# SPDX-License-Identifier: Apache-2.0
"""READs, WRITEs and atomics: their local side, batches of them, and what went wrong with one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from rnic._nic.nic import MR, WC, Chain, Result
from rnic.endpoint import Region
from rnic.endpoint.buffers import flat
from rnic.enums import AccessFlags, WCStatus, WROpcode
from rnic.verbs.pd import PD

if TYPE_CHECKING:
    from rnic.conn.core import Core
    from rnic.endpoint.buffers import AnyBuffer

READ, WRITE = WROpcode.RDMA_READ, WROpcode.RDMA_WRITE  # a name of a class of enum costs as much as a call
FETCH_ADD, COMPARE_SWAP = WROpcode.ATOMIC_FETCH_AND_ADD, WROpcode.ATOMIC_CMP_AND_SWP
# What WC.explain() says of the queue pair is nothing that the user of a connection can look at.
_SILENT = (
    "RETRY_EXC_ERR: the peer did not answer: its process is stopped or gone, or packets do not arrive "
    "(a firewall for UDP port 4791; an MTU on the way that is too small, which counter tx_too_long shows)"
)


def local_side(local: AnyBuffer | MR, pd: PD, opcode: WROpcode) -> memoryview | MR:
    """What a READ fills and a WRITE takes; ValueError for a buffer or a region that it cannot be."""
    reads = opcode is WROpcode.RDMA_READ
    if isinstance(local, MR):
        if local.pd is not pd:
            raise ValueError(
                f"{local!r} is of another protection domain: register it with the connection's, pd"
            )
        if reads and local.access is not None and not local.access & AccessFlags.LOCAL_WRITE:
            raise ValueError(f"read() fills {local!r}, which was registered without LOCAL_WRITE: grant it")
        return local
    name = "read" if reads else "write"
    if isinstance(local, Region):
        order, one = f"{name}(buffer, region)", "a bytearray" if reads else "bytes"
        raise TypeError(f"{name}() needs a buffer, such as {one} or an array, not Region: write {order}")
    data = flat(local, f"{name}()", to_write=reads)
    if reads and data.readonly and len(data):
        raise ValueError("read() needs a buffer that can be written to, and this one is read-only")
    return data


def explain(wc: WC) -> str:
    """A completion that failed, in words."""
    return _SILENT if wc.status is WCStatus.RETRY_EXC_ERR else f"{wc.status.name}: {wc.explain()}"


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
    the block: the first one, which is also `failed`, with a note that names its operation. An operation that
    only the end of the connection stopped comes behind the one that caused that end. result() of each
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
        return self._chain.add(self._core.atomic(FETCH_ADD, remote, offset, n, 0, self._chain.fenced))

    def compare_swap(self, remote: Region, compare: int, swap: int, offset: int = 0) -> Result:
        """Replace 8 bytes of the peer's region if they are `compare`; result() tells their old value."""
        if not self._open:
            self._refuse()
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

    @property
    def failed(self) -> Result | None:
        """The first operation that failed by itself; else the first that failed; None: none has."""
        return self._chain.failed

    def raise_failed(self) -> None:
        """Raise the error of the first operation that failed, if there is one."""
        if self.failed is not None and self.failed.error is not None:
            error = self.failed.error
            note = f"operation {self.failed.index} of the batch: {self.failed.what()}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            self.failed.result()  # raises the error, and notes that the program knows it
