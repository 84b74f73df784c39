# SPDX-License-Identifier: Apache-2.0
"""The local side of READs and WRITEs, and what went wrong with an operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic._nic.nic import MR, WC
from rnic.endpoint import Region
from rnic.endpoint.buffers import flat
from rnic.enums import AccessFlags, WCStatus, WROpcode
from rnic.verbs.pd import PD

if TYPE_CHECKING:
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
        order = f"{name}(buffer, region)"
        raise TypeError(f"{name}() needs a buffer, such as bytes or an array, not Region: write {order}")
    data = flat(local, f"{name}()")
    if reads and data.readonly and len(data):
        raise ValueError("read() needs a buffer that can be written to, and this one is read-only")
    return data


def explain(wc: WC) -> str:
    """A completion that failed, in words."""
    return _SILENT if wc.status is WCStatus.RETRY_EXC_ERR else f"{wc.status.name}: {wc.explain()}"
