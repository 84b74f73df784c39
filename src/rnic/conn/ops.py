# SPDX-License-Identifier: Apache-2.0
"""READs, WRITEs and atomics of the user's: which there can be, and what went wrong with one."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING

from rnic._nic.nic import MR, WC
from rnic.endpoint import Region
from rnic.endpoint.buffers import flat
from rnic.enums import AccessFlags, WCStatus, WROpcode
from rnic.verbs.pd import PD

if TYPE_CHECKING:
    from rnic.endpoint.buffers import AnyBuffer

_NEEDS = {
    WROpcode.RDMA_WRITE: AccessFlags.REMOTE_WRITE,
    WROpcode.RDMA_READ: AccessFlags.REMOTE_READ,
    WROpcode.ATOMIC_FETCH_AND_ADD: AccessFlags.REMOTE_ATOMIC,
    WROpcode.ATOMIC_CMP_AND_SWP: AccessFlags.REMOTE_ATOMIC,
}
# What WC.explain() says of the queue pair is nothing that the user of a connection can look at.
_SILENT = (
    "RETRY_EXC_ERR: the peer did not answer: its process is stopped or gone, or packets do not arrive "
    "(a firewall for UDP port 4791; an MTU on the way that is too small, which counter tx_too_long shows)"
)
LONGEST = 1 << 31  # bytes in one READ or WRITE (IBA 9.7.2)


def check(opcode: WROpcode, remote: Region, offset: int, length: int) -> int:
    """The offset as an int; ValueError for what the peer would refuse, which would end the connection.

    TypeError for no Region, and for an offset that is no whole number.
    """
    if not isinstance(remote, Region):
        raise TypeError(
            f"{opcode.name}: remote is a Region, as next_region() returns it, not {type(remote).__name__}"
        )
    offset = index(offset)  # NumPy's numbers cannot be added to every address
    if length > LONGEST:
        raise ValueError(f"{length} bytes are more than {LONGEST}, the most of one operation: use several")
    if not 0 <= offset <= offset + length <= remote.length:
        raise ValueError(f"{length} bytes at {offset} are beyond region {remote.id} of {remote.length} bytes")
    if not int.__and__(remote.access, _NEEDS[opcode]):  # without a flag of Python's for the result
        granted, needed = remote.access.name or "nothing", _NEEDS[opcode].name
        raise ValueError(f"region {remote.id} grants {granted}, and {opcode.name} needs {needed}")
    if opcode not in (WROpcode.RDMA_WRITE, WROpcode.RDMA_READ) and (remote.addr + offset) % 8:
        raise ValueError(f"{opcode.name} needs an address that is a multiple of 8, not offset {offset}")
    return offset


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
