# SPDX-License-Identifier: Apache-2.0
"""Memory windows: keys for parts of memory regions, which work requests grant and withdraw."""

from typing import TYPE_CHECKING

from rnic._nic import nic
from rnic.enums import AccessFlags, SendFlags
from rnic.records import Attributes

if TYPE_CHECKING:
    from rnic.verbs.qp import QP

__all__ = ["MW", "MWBind", "MWBindInfo", "inc_rkey"]


def inc_rkey(rkey: int) -> int:
    """The next key of a window: its lower 8 bits, which belong to the user, plus one (ibv_inc_rkey)."""
    return rkey & 0xFFFFFF00 | (rkey + 1) & 0xFF


class MWBindInfo(Attributes):
    """The part of a region that a window gives access to, and the rights (ibv_bind_mw(3))."""

    mr: nic.MR | None = None
    """The memory region, registered with MW_BIND; None with length 0 unbinds the window."""
    addr: int = 0
    """The first byte of the window, as work requests name it: from mr.iova on."""
    length: int = 0
    """Bytes."""
    mw_access_flags: AccessFlags | int = 0
    """REMOTE_READ; REMOTE_WRITE and REMOTE_ATOMIC if the region has LOCAL_WRITE; with ZERO_BASED, peers name
    the bytes from 0 on.
    """


class MWBind(Attributes):
    """The request that QP.bind_mw() posts (ibv_bind_mw(3))."""

    bind_info: MWBindInfo
    """What the window shows."""
    send_flags: SendFlags | int = 0
    """SIGNALED, FENCE."""
    wr_id: int = 0
    """The caller's own number; the completion carries it."""


class MW(nic.MW):
    """A memory window: a key for a part of a memory region (IBA 10.6.7; ibv_alloc_mw(3)).

    PD.alloc_mw() makes it; close() unbinds it. QP.bind_mw() binds a window of type 1, as often as you like,
    and peers of every queue pair of the protection domain may use it. A BIND_MW work request binds a window
    of type 2 (2B) to the queue pair that it is posted to. Invalidate it before it is bound again, by
    LOCAL_INV or the peer's SEND_WITH_INV. A queue pair that is reset or closed unbinds its windows of type 2.
    A SEND_WITH_INV that follows a READ through the window needs FENCE (IBA 10.8.3.3).

    While a window is bound to a region, the region cannot be closed. The window keeps the region of its last
    bind until the window is closed or bound to another region.
    """

    __slots__ = ()

    def bind(self, qp: "QP", mw_bind: MWBind) -> None:
        """Bind the window, as qp.bind_mw(self, mw_bind) does."""
        qp.bind_mw(self, mw_bind)

    def query(self) -> MWBindInfo:
        """The current binding; `mr` is None if there is none (IBA 11.2.8.10; libibverbs lacks it)."""
        mr, addr, length, flags = self.raw_query()
        return MWBindInfo(mr, addr, length, AccessFlags(flags))
