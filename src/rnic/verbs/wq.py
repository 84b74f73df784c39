# SPDX-License-Identifier: Apache-2.0
"""Receive side scaling: work queues, indirection tables, and the hash that spreads frames."""

from typing import Self

from rnic._nic import nic
from rnic.enums import RxHashFields, RxHashFunction, WQAttrMask, WQFlags, WQState, WQType
from rnic.records import Attributes, Record

__all__ = [
    "RSSCaps",
    "RawPacketAttr",
    "RwqIndTable",
    "RwqIndTableInitAttr",
    "RxHashConf",
    "TSOCaps",
    "WQ",
    "WQAttr",
    "WQInitAttr",
]


class WQInitAttr(Attributes):
    """Attributes of a new work queue (ibv_create_wq(3))."""

    pd: nic.PD
    """The protection domain of the receives' memory."""
    cq: nic.CQ
    """The completion queue of its receives."""
    max_wr: int = 128
    """The most receives that can be posted."""
    max_sge: int = 4
    """The most SGEs in a receive."""
    wq_type: WQType = WQType.RQ
    """What it holds."""
    create_flags: WQFlags | int = 0
    """Must be 0: no flag is supported."""
    wq_context: object = None
    """Any object of the caller."""


class WQAttr(Attributes):
    """Attributes of a work queue (ibv_modify_wq(3)); an attribute that is None is not set."""

    wq_state: WQState | None = None
    """The state to move to."""
    curr_wq_state: WQState | None = None
    """The state in which the caller expects the work queue to be."""
    flags: WQFlags | None = None
    """What it does beside receiving."""
    flags_mask: WQFlags | None = None
    """The flags to change; no flag is supported."""

    def mask(self) -> WQAttrMask:
        """The attributes that are set."""
        found = WQAttrMask(0)
        if self.wq_state is not None:
            found |= WQAttrMask.STATE
        if self.curr_wq_state is not None:
            found |= WQAttrMask.CURR_STATE
        if self.flags is not None or self.flags_mask is not None:
            found |= WQAttrMask.FLAGS
        return found

    def as_struct(self) -> dict[str, int]:
        """The fields of struct rnic_wq_attr, those that are not set as 0."""
        return {
            "attr_mask": int(self.mask()),
            "wq_state": self.wq_state or 0,
            "curr_wq_state": self.curr_wq_state or 0,
            "flags": self.flags or 0,
            "flags_mask": self.flags_mask or 0,
        }


class WQ(nic.WQ):
    """A receive work queue: receives for RAW_PACKET queue pairs that spread frames (ibv_create_wq(3)).

    Context.create_wq() makes it, in RESET; after modify() to RDY receives can be posted. If a receive is too
    short for its frame, it fails with LOC_LEN_ERR, the work queue moves to ERR, and the event WQ_FATAL comes.
    After RESET the work queue can be used again. close() raises EBUSY while an indirection table names it.
    """

    __slots__ = ()

    def modify(self, attr: WQAttr) -> None:
        """Move to another state (ibv_modify_wq(3)): RESET, RDY or ERR; from ERR only to RESET.

        Raises VerbsError: EINVAL for a move that is not allowed; EOPNOTSUPP for flags.
        """
        self.raw_modify(attr.as_struct())


class RwqIndTableInitAttr(Record):
    """Attributes of a new indirection table (ibv_create_rwq_ind_table(3))."""

    log_ind_tbl_size: int
    """The table has 2**log_ind_tbl_size entries."""
    ind_tbl: tuple[nic.WQ, ...]
    """The work queue of each entry; a work queue may be at several entries."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ind_tbl", tuple(self.ind_tbl))


class RwqIndTable(nic.RwqIndTable):
    """Which work queue a frame goes to: that of the entry hash % size (ibv_create_rwq_ind_table(3)).

    Context.create_rwq_ind_table() makes it, QPInitAttr.rwq_ind_tbl uses it. close() raises EBUSY while a
    queue pair uses it.
    """

    __slots__ = ()


class RxHashConf(Record):
    """How a queue pair spreads received frames over work queues (ibv_create_qp_ex(3)).

    The hash runs over the fields in the order of RxHashFields. It leaves out a field that a frame does not
    have: a fragment has no ports. Without any field the hash is 0.
    """

    rx_hash_key: bytes
    """40 bytes."""
    rx_hash_fields_mask: RxHashFields
    """The fields to hash; not IPv4 together with IPv6, nor TCP together with UDP."""
    rx_hash_function: RxHashFunction = RxHashFunction.TOEPLITZ
    """How it is hashed."""


class RSSCaps(Record):
    """The device's capabilities for receive side scaling (struct ibv_rss_caps)."""

    supported_qpts: int
    """Bit n stands for queue pair type n."""
    max_rwq_indirection_tables: int
    """Indirection tables."""
    max_rwq_indirection_table_size: int
    """Entries of an indirection table."""
    rx_hash_fields_mask: RxHashFields
    """What can be hashed."""
    rx_hash_function: RxHashFunction
    """How it can be hashed."""

    @classmethod
    def from_struct(cls, fields: dict[str, int]) -> Self:
        """From the fields of struct rnic_rss_caps."""
        return cls(
            fields["supported_qpts"],
            fields["max_rwq_indirection_tables"],
            fields["max_rwq_indirection_table_size"],
            RxHashFields(fields["rx_hash_fields_mask"]),
            RxHashFunction(fields["rx_hash_function"]),
        )


class TSOCaps(Record):
    """The device's capabilities for TCP segmentation (struct ibv_tso_caps); 0: none."""

    max_tso: int
    """Bytes of a request."""
    supported_qpts: int
    """Bit n: queue pair type n."""


class RawPacketAttr(Record):
    """Whether frames of RAW_PACKET queue pairs reach the network; not in libibverbs."""

    max_frame: int
    """The longest frame in bytes, from the Ethernet header on, without VLAN tags."""
    wire: bool
    """Frames go to and come from the network interface; if False, they stay in this context."""
    why: str
    """Why frames stay in this context."""
