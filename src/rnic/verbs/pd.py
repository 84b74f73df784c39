# SPDX-License-Identifier: Apache-2.0
"""Protection domains: memory and queue pairs that may use each other."""

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

    Context.alloc_pd() makes it; Context.alloc_parent_domain() and Context.import_pd() make others that can
    stand in its place.  close() raises EBUSY while it has memory regions or queue pairs.
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

        The region is the buffer's memory as it lies: of a Fortran-ordered array, column after column.  The
        buffer stays exported, so it cannot be resized, until the MR is closed; a read-only one can be
        registered without LOCAL_WRITE, REMOTE_WRITE and REMOTE_ATOMIC.  That bytes at an address stay there
        is the caller's word.  The memory is not pinned: software needs no physical addresses.  `lock=True`
        keeps it from being swapped (mlock(2)) until no locked region has it any more.

        With ON_DEMAND its pages may come and go: access to one that is not mapped fails, with
        REM_ACCESS_ERR or LOC_PROT_ERR, and costs a system call in any case.  With addr 0 and length 2**64 -
        1 the region is the whole address space.  RELAXED_ORDERING and HUGETLB are hints, which software has
        no use for.

        With ZERO_BASED, work requests and peers name the bytes from 0 on (MR.iova); with MW_BIND, memory
        windows can be bound to it, and while one is, close() and MR.rereg() raise EBUSY.

        Raises VerbsError: EINVAL for remote write or atomic access without LOCAL_WRITE (IBA 10.6.3.1),
        EFAULT for memory that is not mapped, EOPNOTSUPP for ON_DEMAND with REMOTE_ATOMIC, ENOMEM when
        RLIMIT_MEMLOCK forbids the lock (`ulimit -l`).
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
        """Memory of the device's own making, registered; `mr.buf` is the way to it, close() frees it.

        It lies in a memory file, so that other processes can import it (Context.cmd_fd).  What peers may read
        (REMOTE_READ) and nobody's requests may write (no LOCAL_WRITE) lies in one of its own, which is sealed
        against their writing and cannot be imported.  `lock` as in reg_mr().
        """
        return self._allocate(nbytes, access) if lock else super().alloc_mr(nbytes, access)

    def alloc_mw(self, mw_type: MWType | int) -> MW:
        """A new memory window, not bound (IBA 11.2.8.9; ibv_alloc_mw(3)): TYPE_1 for QP.bind_mw(), TYPE_2 for
        BIND_MW work requests.
        """
        return MW(self, mw_type)

    def create_srq(self, init_attr: SRQInitAttr | None = None) -> SRQ:
        """A new shared receive queue (ibv_create_srq(3)), by default for 128 receives of 4 SGEs.

        SRQ.query() tells what was granted.

        Raises VerbsError: EINVAL for a size beyond DeviceAttr's limits.
        """
        return SRQ(self, init_attr or SRQInitAttr())

    def create_qp(self, init_attr: QPInitAttr) -> QP:
        """A new queue pair in the state RESET (ibv_create_qp(3)); QP.cap is what was granted.

        Raises VerbsError: EINVAL for a capability beyond DeviceAttr's limits, EOPNOTSUPP for a type that
        the device does not have, ENOMEM when the device is full.
        """
        if not isinstance(init_attr, QPInitAttr):
            raise TypeError(f"create_qp() takes a QPInitAttr, not {type(init_attr).__name__}")
        if init_attr.xrcd is not None:
            text = "an XRC domain has queue pairs of its own: create_qp of the XRCD makes them"
            raise VerbsError(EINVAL, text, "create_qp")
        if isinstance(init_attr, QPInitAttrEx):
            raise VerbsError(EINVAL, "a QPInitAttrEx is for create_qp_ex() of the context", "create_qp")
        return QP(self, init_attr)

    def create_ah(self, attr: AHAttr) -> AH:
        """A new address handle (ibv_create_ah(3)): what SendWR.ah of a datagram names.

        Raises VerbsError: EINVAL for a path that cannot be (no such GID index, IPv4 to IPv6), EOPNOTSUPP for
        what Ethernet has no field for.
        """
        return AH(self, attr)

    def create_ah_from_wc(self, wc: nic.WC, grh: Grh, port_num: int = 1) -> AH:
        """The address handle that leads back to a datagram's sender (ibv_create_ah_from_wc(3)).

        `grh` is the beginning of the receive's memory.  Context.init_ah_from_wc() tells what is made of it.
        """
        context = cast("Context", self.context)
        return self.create_ah(context.init_ah_from_wc(port_num, wc, grh))
