# SPDX-License-Identifier: Apache-2.0
"""Attributes of completion queues: for creation and for changes."""

from collections.abc import Mapping
from typing import Any

from rnic._nic import nic
from rnic.enums import CQAttrMask, CQInitAttrMask, CreateCQAttrFlags, CreateCQWCFlags
from rnic.records import Attributes, Record

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
"""The fields that a WC also has."""


class CQInitAttrEx(Attributes):
    """Attributes of a new extended completion queue (ibv_create_cq_ex(3))."""

    cqe: int
    """The queue has room for at least this many completions."""
    cq_context: object = None
    """Any object of the caller."""
    channel: "nic.CompChannel | None" = None
    """Where its completion events arrive, or None."""
    comp_vector: int = 0
    """Less than Context.num_comp_vectors."""
    wc_flags: CreateCQWCFlags = WC_STANDARD_FLAGS
    """The fields of a completion that can be read; timestamps are taken only if they are among them."""
    comp_mask: CQInitAttrMask | None = None
    """Which later fields count; None: those that are set."""
    flags: CreateCQAttrFlags = CreateCQAttrFlags(0)
    """SINGLE_THREADED: the program promises that only one thread polls at a time; a second one gets EBUSY.
    IGNORE_OVERRUN: if the queue is full, the oldest completion is lost without a report.
    """
    parent_domain: "nic.PD | None" = None
    """Not supported (EOPNOTSUPP)."""

    def mask(self) -> CQInitAttrMask:
        """The later fields that count."""
        if self.comp_mask is not None:
            return self.comp_mask
        found = CQInitAttrMask.FLAGS if self.flags else CQInitAttrMask(0)
        return found if self.parent_domain is None else found | CQInitAttrMask.PD

    def extensions(self) -> dict[str, int]:
        """The fields of struct rnic_cq_init_attr_ex that create_cq() does not know."""
        return {"wc_flags": int(self.wc_flags), "comp_mask": int(self.mask()), "flags": int(self.flags)}


class ModerateCQ(Attributes):
    """How long a requested completion event is held back, to cover several completions (ibv_modify_cq(3))."""

    cq_count: int = 0
    """The event comes after this many completions, 0 to 65535; 0: the number does not matter."""
    cq_period: int = 0
    """The event comes at most this many microseconds after the first completion, 0 to 65535; 0: at once,
    without moderation.
    """


class ModifyCQAttr(Attributes):
    """Changes for CQ.modify() (ibv_modify_cq(3)); an attribute that is None is not changed."""

    moderate: ModerateCQ | None = None
    """When completion events come."""
    attr_mask: CQAttrMask | None = None
    """Which attributes count; None: those that are set."""

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
    """The largest values of ModerateCQ (ibv_query_device_ex(3))."""

    max_cq_count: int
    """Completions."""
    max_cq_period: int
    """Microseconds."""

    @classmethod
    def from_struct(cls, values: Mapping[str, int]) -> "CQModerationCaps":
        """The record of struct rnic_cq_moderation_caps' fields."""
        return cls(**values)
