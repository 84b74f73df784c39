# SPDX-License-Identifier: Apache-2.0
"""Memory and domains beyond PD.reg_mr(): kinds of regions, device memory, parent domains, import."""

import errno
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rnic._nic import nic
from rnic.enums import AccessFlags, AdviseMRAdvice, AdviseMRFlags
from rnic.errors import VerbsError
from rnic.records import Record

if TYPE_CHECKING:
    pass

__all__ = ["AllocDMAttr", "ParentDomainInitAttr", "RegionVerbs"]

# enum rnic_mr_init_mask of nic.h
IOVA, FD, DM, ALLOC, LOCK = (1 << i for i in range(5))


class AllocDMAttr(Record):
    """What device memory is made with (ibv_alloc_dm(3))."""

    length: int
    """Bytes, a multiple of 4."""
    log_align_req: int = 0
    """Its first byte lies at a multiple of 2 to the power of this; a page's is what there is."""


class ParentDomainInitAttr(Record):
    """What a parent domain is made of (ibv_alloc_parent_domain(3))."""

    pd: nic.PD
    td: nic.TD | None = None
    alloc: object = None
    """Allocators of the caller's own are not supported: the device's queues lie in its own memory, and
    never call back."""
    free: object = None
    pd_context: object = None

    def check(self) -> None:
        """Raise what cannot be had: EOPNOTSUPP."""
        if self.alloc is not None or self.free is not None or self.pd_context is not None:
            raise VerbsError(
                errno.EOPNOTSUPP,
                "allocators (alloc, free, pd_context) are not supported: the device's queues are in its "
                "own memory",
                "alloc_parent_domain",
            )


class RegionVerbs(nic.PD):
    """The verbs of a protection domain that make other regions than those of a buffer."""

    __slots__ = ()

    def reg_mr_iova(
        self,
        buffer: Any = None,
        iova: int = 0,
        access: AccessFlags | int = 0,
        *,
        addr: int | None = None,
        length: int | None = None,
    ) -> nic.MR:
        """Register memory whose first byte work requests name as `iova` (ibv_reg_mr_iova(3)); else as
        reg_mr().

        Raises VerbsError: EINVAL also for a range of such addresses that wraps around.
        """
        return self._register("reg_mr_iova", IOVA, access, buffer, addr, length, iova)

    def reg_dmabuf_mr(
        self, offset: int, length: int, iova: int, fd: int, access: AccessFlags | int = 0
    ) -> nic.MR:
        """Register `length` bytes from `offset` on of a dma-buf (ibv_reg_dmabuf_mr(3)); `fd` stays the
        caller's.

        Any descriptor that can be mapped will do.  Work requests name the first byte as `iova`.  Where the
        file is no dma-buf and becomes shorter, access to what is gone fails like access to an unmapped page.

        Raises VerbsError: EINVAL for a range beyond its end, or an iova at another place of its page than
        `offset`; EOPNOTSUPP for REMOTE_ATOMIC; what mmap(2) says of a descriptor that cannot be mapped.
        """
        return self.raw_reg_mr_ex("reg_dmabuf_mr", FD, int(access), 0, length, iova, fd, offset, None, None)

    def reg_dm_mr(
        self, dm: nic.DM, dm_offset: int, length: int, access: AccessFlags | int = AccessFlags.ZERO_BASED
    ) -> nic.MR:
        """Register `length` bytes from `dm_offset` on of device memory (ibv_reg_dm_mr(3)).

        Work requests name the first byte as 0: ZERO_BASED must be among the access flags (EINVAL).
        """
        return self.raw_reg_mr_ex("reg_dm_mr", DM, int(access), 0, length, 0, -1, dm_offset, dm, None)

    def alloc_null_mr(self) -> nic.MR:
        """A region that has every address and no memory (ibv_alloc_null_mr(3)).

        What is written there is dropped, what is read is zeros.  Its lkey alone is of use: it is not for
        peers.
        """
        return self.raw_alloc_null_mr()

    def advise_mr(
        self,
        advice: AdviseMRAdvice | int,
        flags: AdviseMRFlags | int,
        sg_list: Iterable[nic.SGE],
    ) -> None:
        """Bring in pages of regions that are registered ON_DEMAND, before they are needed (ibv_advise_mr(3)).

        PREFETCH makes them readable, PREFETCH_WRITE writable.  PREFETCH_NO_FAULT only asks for what the
        host has in memory already, and this device needs nothing for that.  It is done when the call
        returns; only with FLUSH does it tell when pages cannot be had.

        Raises VerbsError: ENOENT for an lkey that is not registered, EINVAL for a region without ON_DEMAND,
        EPERM for one of another protection domain, or without LOCAL_WRITE for PREFETCH_WRITE, EFAULT for a
        range beyond its region, and, with FLUSH, for one that is not mapped.
        """
        self.raw_advise_mr(int(advice), int(flags), list(sg_list))

    def import_mr(self, handle: int) -> nic.MR:
        """The memory region with this handle (MR.handle), of this domain (ibv_import_mr(3)); close() lets
        it go.

        Within a process it is the region itself, which cannot be closed meanwhile (EBUSY).  Of another
        process' context, memory of alloc_mr() and device memory can be imported, with the same keys; `addr`
        is then where this process has it, `iova` what work requests name.  When the owner closes it, work
        that still names it fails, and the bytes are of no use.

        Raises VerbsError: ENOENT when there is none, EINVAL when it is of another domain, EOPNOTSUPP for what
        cannot be shared with another process, EEXIST when this context has the key already.
        """
        return self.raw_import_mr(handle)

    def _register(
        self,
        verb: str,
        mask: int,
        access: int,
        buffer: Any,
        addr: int | None,
        length: int | None,
        iova: int = 0,
    ) -> nic.MR:
        given = addr is not None and length is not None
        if given == (buffer is not None) or (addr is None) != (length is None):
            raise TypeError(f"{verb} takes a buffer, or addr and length")
        return self.raw_reg_mr_ex(verb, mask, int(access), addr or 0, length or 0, iova, -1, 0, None, buffer)

    def _allocate(self, nbytes: int, access: int) -> nic.MR:
        return self.raw_reg_mr_ex("alloc_mr", ALLOC | LOCK, access, 0, nbytes, 0, -1, 0, None, None)
