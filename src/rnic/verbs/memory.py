# SPDX-License-Identifier: Apache-2.0
"""Memory and domains beyond PD.reg_mr(): other kinds of regions, device memory, parent domains, import."""

import errno
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rnic._nic import nic
from rnic.enums import AccessFlags, AdviseMRAdvice, AdviseMRFlags
from rnic.errors import VerbsError
from rnic.records import Attributes

if TYPE_CHECKING:
    pass

__all__ = ["AllocDMAttr", "ParentDomainInitAttr", "RegionVerbs"]

# enum rnic_mr_init_mask of nic.h
IOVA, FD, DM, ALLOC, LOCK = (1 << i for i in range(5))


class AllocDMAttr(Attributes):
    """Attributes of new device memory (ibv_alloc_dm(3))."""

    length: int
    """Bytes, a multiple of 4."""
    log_align_req: int = 0
    """The first byte is aligned to 2**log_align_req, at most to a page."""


class ParentDomainInitAttr(Attributes):
    """Attributes of a new parent domain (ibv_alloc_parent_domain(3))."""

    pd: nic.PD
    """The protection domain in whose place it stands."""
    td: nic.TD | None = None
    """The thread domain of what is created with it, or None."""
    alloc: object = None
    """Allocators of the caller's own are not supported: the device's queues lie in its own memory, and
    never call back."""
    free: object = None
    """Not supported, as alloc."""
    pd_context: object = None
    """Not supported, as alloc."""

    def check(self) -> None:
        """Raise EOPNOTSUPP if allocators are given."""
        if self.alloc is not None or self.free is not None or self.pd_context is not None:
            raise VerbsError(
                errno.EOPNOTSUPP,
                "allocators (alloc, free, pd_context) are not supported: the device's queues are in its "
                "own memory",
                "alloc_parent_domain",
            )


class RegionVerbs(nic.PD):
    """The verbs of a protection domain that make regions of other memory than a buffer."""

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
        """Register memory as reg_mr() does, and let work requests name its first byte as `iova`
        (ibv_reg_mr_iova(3)).

        Raises VerbsError as reg_mr() does; EINVAL also if the range of addresses from `iova` on wraps around.
        """
        return self._register("reg_mr_iova", IOVA, access, buffer, addr, length, iova)

    def reg_dmabuf_mr(
        self, offset: int, length: int, iova: int, fd: int, access: AccessFlags | int = 0
    ) -> nic.MR:
        """Register `length` bytes of a dma-buf, from `offset` on (ibv_reg_dmabuf_mr(3)); the caller keeps
        `fd`.

        Any descriptor that can be mapped will do. Work requests name the first byte as `iova`. If a file that
        is not a dma-buf becomes shorter, access to the lost part fails like access to an unmapped page.

        Raises VerbsError: EINVAL for a range beyond the end of the file, or if `iova` and `offset` are at
        different places of a page; EOPNOTSUPP for REMOTE_ATOMIC; the error of mmap(2) if the descriptor
        cannot be mapped.
        """
        return self.raw_reg_mr_ex("reg_dmabuf_mr", FD, int(access), 0, length, iova, fd, offset, None, None)

    def reg_dm_mr(
        self, dm: nic.DM, dm_offset: int, length: int, access: AccessFlags | int = AccessFlags.ZERO_BASED
    ) -> nic.MR:
        """Register `length` bytes of device memory, from `dm_offset` on (ibv_reg_dm_mr(3)).

        Work requests name the first byte as 0, so ZERO_BASED must be among the access flags (EINVAL).
        """
        return self.raw_reg_mr_ex("reg_dm_mr", DM, int(access), 0, length, 0, -1, dm_offset, dm, None)

    def alloc_null_mr(self) -> nic.MR:
        """Create a region that has every address and no memory (ibv_alloc_null_mr(3)).

        Bytes that are written to it are dropped; reading returns zeros. Only its lkey is useful: peers cannot
        use it.
        """
        return self.raw_alloc_null_mr()

    def advise_mr(
        self,
        advice: AdviseMRAdvice | int,
        flags: AdviseMRFlags | int,
        sg_list: Iterable[nic.SGE],
    ) -> None:
        """Bring in pages of ON_DEMAND regions before they are needed (ibv_advise_mr(3)).

        PREFETCH makes pages readable, PREFETCH_WRITE writable. PREFETCH_NO_FAULT asks only for pages that are
        in memory already, for which this device does nothing. The work is done when the call returns. Without
        FLUSH the call does not report pages that cannot be had.

        Raises VerbsError: ENOENT for an lkey that is not registered; EINVAL for a region without ON_DEMAND;
        EPERM for a region of another protection domain, or without LOCAL_WRITE for PREFETCH_WRITE; EFAULT for
        a range beyond its region and, with FLUSH, for a range that is not mapped.
        """
        self.raw_advise_mr(int(advice), int(flags), list(sg_list))

    def import_mr(self, handle: int) -> nic.MR:
        """Import the memory region with this handle (MR.handle) of this domain (ibv_import_mr(3)); close()
        ends the import.

        If this process made the region, the import is the region itself, which cannot be closed before
        (EBUSY). If another process made it, it must be memory of alloc_mr() or device memory, and it keeps
        its keys. Then `addr` is its address in this process, and `iova` the address for work requests. When
        the owner closes the region, work that still names it fails, and its bytes are invalid.

        Raises VerbsError: ENOENT if there is no such region; EINVAL if it belongs to another domain;
        EOPNOTSUPP if processes cannot share it; EEXIST if this context has the key already.
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
