# SPDX-License-Identifier: Apache-2.0
"""Protection domains: groups of memory regions and queue pairs that may be used together."""

from errno import EINVAL
from typing import TYPE_CHECKING, Any, cast

from rnic._nic import nic
from rnic.enums import AccessFlags, MWType
from rnic.errors import VerbsError
from rnic.verbs.ah import AH, AHAttr
from rnic.verbs.memory import LOCK, RegionVerbs
from rnic.verbs.mw import MW
from rnic.verbs.qp import QP, QPInitAttr
from rnic.verbs.qp_ex import QPInitAttrEx
from rnic.verbs.srq import SRQ, SRQInitAttr

Grh = bytes | bytearray | memoryview

if TYPE_CHECKING:
    from rnic.verbs.context import Context

__all__ = ["PD"]


class PD(RegionVerbs):
    """A protection domain: only its own queue pairs reach its memory regions (IBA 10.2.3; ibv_alloc_pd(3)).

    Context.alloc_pd() makes it. Domains of Context.alloc_parent_domain() and Context.import_pd() can be used
    in its place. close() raises EBUSY while it has memory regions or queue pairs.
    """

    __slots__ = ()

    def reg_mr(
        self,
        buffer: Any = None,
        access: AccessFlags | int = 0,
        *,
        addr: int | None = None,
        length: int | None = None,
        lock: bool = False,
    ) -> nic.MR:
        """Register memory (ibv_reg_mr(3)): a buffer (bytearray, mmap, array), or `length` bytes at `addr`.

            mr = pd.reg_mr(bytearray(4096), AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ)

        `access` says what requests may do with the memory. Sending needs no flag; LOCAL_WRITE is for
        receives, READ answers and results of atomics; the REMOTE flags are for peers. The region is the
        buffer's memory in its own order: a Fortran-ordered array is registered column after column. Until the
        MR is closed, the buffer cannot be resized. A read-only buffer can be registered without LOCAL_WRITE,
        REMOTE_WRITE and REMOTE_ATOMIC. If you give `addr`, you must keep that memory mapped. The memory is
        not pinned: software needs no physical addresses. `lock=True` prevents swapping (mlock(2)) until no
        locked region contains the memory any more.

        With ON_DEMAND, pages may be unmapped and mapped again. Access to an unmapped page fails with
        REM_ACCESS_ERR or LOC_PROT_ERR, and each access costs a system call. With addr 0 and length 2**64 - 1
        the region is the whole address space. Atomics and ATOMIC_WRITE to such a region take some ten
        microseconds. RELAXED_ORDERING and HUGETLB have no effect.

        With ZERO_BASED, work requests and peers name the bytes from 0 on (MR.iova). With MW_BIND, memory
        windows can be bound to the region; while one is bound, close() and MR.rereg() raise EBUSY.

        Raises VerbsError: EINVAL for remote write or atomic access without LOCAL_WRITE (IBA 10.6.3.1), EFAULT
        for memory that is not mapped, ENOMEM if RLIMIT_MEMLOCK forbids the lock (`ulimit -l`).
        """
        if lock:
            return self._register("reg_mr", LOCK, access, buffer, addr, length)
        if buffer is not None:
            if addr is not None or length is not None:
                raise TypeError("reg_mr takes a buffer, or addr and length")
            return self.reg_buffer(buffer, access)
        if addr is None or length is None:
            raise TypeError("reg_mr takes a buffer, or addr and length")
        return self.reg_addr(addr, length, access)

    def alloc_mr(self, nbytes: int, access: AccessFlags | int, lock: bool = False) -> nic.MR:
        """Allocate memory and register it; `mr.buf` is the memory, close() frees it.

        The memory is in a memory file, so other processes can import it (Context.cmd_fd). Memory that peers
        may read (REMOTE_READ) and no request may write (no LOCAL_WRITE) is in a file of its own: it is sealed
        against writing by other processes, and cannot be imported. `lock` as in reg_mr().
        """
        return self._allocate(nbytes, access) if lock else super().alloc_mr(nbytes, access)

    def alloc_mw(self, mw_type: MWType | int) -> MW:
        """Create a memory window, not bound (IBA 11.2.8.9; ibv_alloc_mw(3)).

        TYPE_1 is for QP.bind_mw(), TYPE_2 for BIND_MW work requests.
        """
        return MW(self, mw_type)

    def create_srq(self, init_attr: SRQInitAttr | None = None) -> SRQ:
        """Create a shared receive queue (ibv_create_srq(3)), by default for 128 receives of 4 SGEs.

        SRQ.query() tells the granted size. Raises VerbsError: EINVAL for a size beyond DeviceAttr's limits.
        """
        return SRQ(self, init_attr or SRQInitAttr())

    def create_qp(self, init_attr: QPInitAttr) -> QP:
        """Create a queue pair in the state RESET (ibv_create_qp(3)); QP.cap has the granted sizes.

        Raises VerbsError: EINVAL for a capability beyond DeviceAttr's limits, EOPNOTSUPP for a type that the
        device does not have, ENOMEM if the device has no room for more.
        """
        if not isinstance(init_attr, QPInitAttr):
            raise TypeError(f"create_qp() takes a QPInitAttr, not {type(init_attr).__name__}")
        if init_attr.xrcd is not None:
            text = "an XRC domain has queue pairs of its own: XRCD.create_qp() makes them"
            raise VerbsError(EINVAL, text, "create_qp")
        if isinstance(init_attr, QPInitAttrEx):
            raise VerbsError(EINVAL, "a QPInitAttrEx is for create_qp_ex() of the context", "create_qp")
        return QP(self, init_attr)

    def create_ah(self, attr: AHAttr) -> AH:
        """Create an address handle (ibv_create_ah(3)), which SendWR.ah of a datagram names.

        Raises VerbsError: EINVAL for an impossible path (no such GID index, IPv4 to IPv6), EOPNOTSUPP for
        fields that Ethernet does not have.
        """
        return AH(self, attr)

    def create_ah_from_wc(self, wc: nic.WC, grh: Grh, port_num: int = 1) -> AH:
        """Create the address handle of the way back to a datagram's sender (ibv_create_ah_from_wc(3)).

        `grh` is the beginning of the receive's memory. Context.init_ah_from_wc() makes the address vector.
        """
        context = cast("Context", self.context)
        return self.create_ah(context.init_ah_from_wc(port_num, wc, grh))
