# SPDX-License-Identifier: Apache-2.0
"""Attributes of completion counters and of counters of flows."""

from rnic.enums import CompCntrType, CounterDescription, QPAttachCompCntrOp
from rnic.records import Attributes, Record

__all__ = ["CompCntrCaps", "CompCntrInitAttr", "CounterAttachAttr", "QPAttachCompCntrAttr"]


class CompCntrInitAttr(Attributes):
    """Attributes of a new completion counter (rdma-core 64: ibv_create_comp_cntr(3))."""

    comp_mask: int = 0
    """Must be 0."""
    type: CompCntrType = CompCntrType.WRS
    """Whether it counts work requests or their bytes; failed ones count as one in either case."""
    flags: int = 0
    """Must be 0."""

    def as_struct(self) -> dict[str, int]:
        """The fields of struct rnic_comp_cntr_init_attr."""
        return {"comp_mask": self.comp_mask, "type": int(self.type), "flags": self.flags}


class CompCntrCaps(Record):
    """The limits of the device's completion counters (rdma-core 64: ibv_query_comp_cntr_caps(3))."""

    max_value: int
    """The largest value; the next increment continues from 0."""
    max_counters: int
    """Counters that a device can have."""
    supported_qp_attach_ops: QPAttachCompCntrOp
    """What can be counted."""


class QPAttachCompCntrAttr(Attributes):
    """Which operations of a queue pair a completion counter counts (rdma-core 64:
    ibv_qp_attach_comp_cntr(3)).
    """

    op_mask: QPAttachCompCntrOp
    """The operations that are counted."""


class CounterAttachAttr(Attributes):
    """What to count of a flow, and at which index (ibv_attach_counters_point_flow(3))."""

    counter_desc: CounterDescription
    """Frames or bytes."""
    index: int
    """Which of the counters that FlowCounters.read() returns."""
    comp_mask: int = 0
    """Must be 0."""

    def as_struct(self) -> dict[str, int]:
        """The fields of struct rnic_counter_attach_attr."""
        return {"counter_desc": int(self.counter_desc), "index": self.index, "comp_mask": self.comp_mask}
