# SPDX-License-Identifier: Apache-2.0
"""What completion queues are created with and changed to."""

from collections.abc import Mapping
from typing import Any

from rnic._nic import nic
from rnic.enums import CQAttrMask, CQInitAttrMask, CreateCQAttrFlags, CreateCQWCFlags
from rnic.records import Record

__all__ = [
    "WC_STANDARD_FLAGS",
    "CQInitAttrEx",
    "CQModerationCaps",
    "ModerateCQ",
    "ModifyCQAttr",
]

WC_STANDARD_FLAGS = (
    CreateCQWCFlags.WITH_BYTE_LEN
    | CreateCQWCFlags.WITH_IMM
    | CreateCQWCFlags.WITH_QP_NUM
    | CreateCQWCFlags.WITH_SRC_QP
    | CreateCQWCFlags.WITH_SLID
    | CreateCQWCFlags.WITH_SL
    | CreateCQWCFlags.WITH_DLID_PATH_BITS
)
"""The fields that a WC has, too."""


class CQInitAttrEx(Record):
    """What an extended completion queue is created with (ibv_create_cq_ex(3))."""

    cqe: int
    """Completions that it has room for, at least."""
    cq_context: object = None
    """The caller's own."""
    channel: "nic.CompChannel | None" = None
    comp_vector: int = 0
    """Less than Context.num_comp_vectors."""
    wc_flags: CreateCQWCFlags = WC_STANDARD_FLAGS
    """Which fields of a completion can be read; timestamps are taken for those who ask for them."""
    comp_mask: CQInitAttrMask | None = None
    """None: what is set is what counts."""
    flags: CreateCQAttrFlags = CreateCQAttrFlags(0)
    """SINGLE_THREADED: a promise that no two threads poll at a time; one that does gets EBUSY.
    IGNORE_OVERRUN: when the queue is full, the oldest completion is lost, and nothing tells."""
    parent_domain: "nic.PD | None" = None
    """EOPNOTSUPP: no device makes use of it."""

    def mask(self) -> CQInitAttrMask:
        """What of the later fields counts."""
        if self.comp_mask is not None:
            return self.comp_mask
        found = CQInitAttrMask.FLAGS if self.flags else CQInitAttrMask(0)
        return found if self.parent_domain is None else found | CQInitAttrMask.PD

    def extensions(self) -> dict[str, int]:
        """The fields of struct rnic_cq_init_attr_ex that create_cq() does not know."""
        return {"wc_flags": int(self.wc_flags), "comp_mask": int(self.mask()), "flags": int(self.flags)}


class ModerateCQ(Record):
    """When a completion event that was asked for comes (ibv_modify_cq(3))."""

    cq_count: int = 0
    """After so many completions, 0 to 65535; 0: any number."""
    cq_period: int = 0
    """At the latest so many microseconds after the first of them, 0 to 65535; 0: at once, not moderated."""


class ModifyCQAttr(Record):
    """What CQ.modify() changes (ibv_modify_cq(3)); None is: not set."""

    moderate: ModerateCQ | None = None
    attr_mask: CQAttrMask | None = None
    """None: what is set is what counts."""

    def as_struct(self) -> dict[str, Any]:
        """The fields of struct rnic_modify_cq_attr."""
        mask, limits = self.attr_mask, self.moderate or ModerateCQ()
        if mask is None:
            mask = CQAttrMask(0) if self.moderate is None else CQAttrMask.MODERATE
        return {
            "attr_mask": int(mask),
            "moderate": {"cq_count": limits.cq_count, "cq_period": limits.cq_period},
        }


class CQModerationCaps(Record):
    """The largest ModerateCQ (ibv_query_device_ex(3))."""

    max_cq_count: int
    max_cq_period: int
    """Microseconds."""

    @classmethod
    def from_struct(cls, values: Mapping[str, int]) -> "CQModerationCaps":
        """The record of struct rnic_cq_moderation_caps' fields."""
        return cls(**values)
