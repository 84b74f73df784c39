# SPDX-License-Identifier: Apache-2.0
"""Rights to memory, and kinds of memory."""

from rnic.wording import Named, NamedFlags

__all__ = [
    "AccessFlags",
    "MWType",
    "ReregMRFlags",
    "AdviseMRAdvice",
    "AdviseMRFlags",
    "PlacementType",
    "SelectivityLevel",
]


class AccessFlags(NamedFlags):
    """What may be done to a memory region, or through a queue pair (IBA 10.6.3; ibv_reg_mr(3))."""

    LOCAL_WRITE = 1 << 0
    """The device may write here: receives, and what READs and atomics return. REMOTE_WRITE needs it too."""
    REMOTE_WRITE = 1 << 1
    """The peer may WRITE."""
    REMOTE_READ = 1 << 2
    """The peer may READ."""
    REMOTE_ATOMIC = 1 << 3
    """The peer may do atomics."""
    MW_BIND = 1 << 4
    """Memory windows may be bound to the region."""
    ZERO_BASED = 1 << 5
    """Work requests and peers name the bytes from 0 on."""
    ON_DEMAND = 1 << 6
    """Pages of the region may come and go."""
    HUGETLB = 1 << 7
    """A hint that the memory has huge pages; software needs none."""
    RELAXED_ORDERING = 1 << 20
    """A hint that bytes may become visible in any order; without effect in software."""
    FLUSH_GLOBAL = 1 << 8
    """The peer may FLUSH, so that its writes are seen by all."""
    FLUSH_PERSISTENT = 1 << 9
    """The peer may FLUSH, so that its writes outlive the power."""


class MWType(Named):
    """The type of a memory window: usable by its protection domain, or by the queue pair that bound it.

    IBA 10.6.7; ibv_alloc_mw(3).
    """

    TYPE_1 = 1
    """QP.bind_mw() binds it; every queue pair of its protection domain may be asked for its bytes."""
    TYPE_2 = 2
    """A BIND_MW work request binds it, for one queue pair."""


class ReregMRFlags(NamedFlags):
    """What MR.rereg() changes (ibv_rereg_mr(3))."""

    CHANGE_TRANSLATION = 1 << 0
    """The memory."""
    CHANGE_PD = 1 << 1
    """The protection domain."""
    CHANGE_ACCESS = 1 << 2
    """The rights."""


class AdviseMRAdvice(Named):
    """The kinds of advice of PD.advise_mr() (ibv_advise_mr(3))."""

    PREFETCH = 0
    """Map the pages, to be read."""
    PREFETCH_WRITE = 1
    """Map them, to be written."""
    PREFETCH_NO_FAULT = 2
    """Use those that are mapped."""


class AdviseMRFlags(NamedFlags):
    """Flags of PD.advise_mr() (ibv_advise_mr(3))."""

    FLUSH = 1 << 0
    """Return when it is done."""


class PlacementType(NamedFlags):
    """What a FLUSH guarantees (IBA A19.4.3): that everybody sees the bytes, or that they survive a loss of
    power.
    """

    GLOBAL = 1 << 0
    """All see the bytes."""
    PERSISTENT = 1 << 1
    """The bytes outlive the power."""


class SelectivityLevel(Named):
    """Which bytes a FLUSH covers (IBA A19.4.3): a range, or the whole memory region."""

    RANGE = 0
    """The bytes that the request names."""
    MR = 1
    """The whole memory region."""
