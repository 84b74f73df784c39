# SPDX-License-Identifier: Apache-2.0
"""Memory windows: keys for parts of memory regions, given and taken by work requests."""

from typing import TYPE_CHECKING

from rnic._nic import nic
from rnic.enums import AccessFlags, SendFlags
from rnic.records import Record

if TYPE_CHECKING:
    from rnic.verbs.qp import QP

__all__ = ["MW", "MWBind", "MWBindInfo", "inc_rkey"]


def inc_rkey(rkey: int) -> int:
    """The key with its lower 8 bits, which are the window's user's, counted on (ibv_inc_rkey)."""
    return rkey & 0xFFFFFF00 | (rkey + 1) & 0xFF


class MWBindInfo(Record):
    """What a window shows (ibv_bind_mw(3))."""

    mr: nic.MR | None = None
    """The memory region, registered with MW_BIND; None with length 0: the window is unbound."""
    addr: int = 0
    """Where the window begins, as the region's work requests name it: from mr.iova on."""
    length: int = 0
    """Bytes."""
    mw_access_flags: AccessFlags | int = 0
    """REMOTE_READ; REMOTE_WRITE and REMOTE_ATOMIC, if the region has LOCAL_WRITE; with ZERO_BASED peers name
    its bytes from 0 on."""


class MWBind(Record):
    """What QP.bind_mw() posts (ibv_bind_mw(3))."""

    bind_info: MWBindInfo
    send_flags: SendFlags | int = 0
    """SIGNALED, FENCE."""
    wr_id: int = 0


class MW(nic.MW):
    """A memory window: a key for a part of a memory region (IBA 10.6.7; ibv_alloc_mw(3)).

    PD.alloc_mw() makes it; close() unbinds it.  Of type 1, QP.bind_mw() binds it, again and again, and every
    queue pair of the protection domain may be asked for its bytes.  Of type 2 (2B), a BIND_MW work request
    binds it, for the one queue pair that it was posted to; it must be invalidated, by LOCAL_INV or the peer's
    SEND_WITH_INV, before it is bound again.  A queue pair that is reset or closed leaves its windows of type
    2 unbound.  A SEND_WITH_INV that follows a READ through the window needs FENCE (IBA 10.8.3.3).

    A region is in use while a window is bound to it.  A window holds the region of its last bind until it is
    closed or bound elsewhere.
    """

    __slots__ = ()

    def bind(self, qp: "QP", mw_bind: MWBind) -> None:
        """The same as qp.bind_mw(self, mw_bind)."""
        qp.bind_mw(self, mw_bind)

    def query(self) -> MWBindInfo:
        """What it is bound to now; mr is None when it is not bound (IBA 11.2.8.10; libibverbs lacks it)."""
        mr, addr, length, flags = self.raw_query()
        return MWBindInfo(mr, addr, length, AccessFlags(flags))
