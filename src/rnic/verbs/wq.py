# SPDX-License-Identifier: Apache-2.0
"""Receive side scaling: work queues, tables of them, and how frames are spread by a hash."""

from typing import Self

from rnic._nic import nic
from rnic.enums import RxHashFields, RxHashFunction, WQAttrMask, WQFlags, WQState, WQType
from rnic.records import Record

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


class WQInitAttr(Record):
    """What a work queue is created with (ibv_create_wq(3))."""

    pd: nic.PD
    """Of the receives' memory."""
    cq: nic.CQ
    """Where receives complete."""
    max_wr: int = 128
    """Receives that can be posted."""
    max_sge: int = 4
    """SGEs in a receive."""
    wq_type: WQType = WQType.RQ
    create_flags: WQFlags | int = 0
    """None is supported."""
    wq_context: object = None
    """The caller's own."""


class WQAttr(Record):
    """Attributes of a work queue (ibv_modify_wq(3)); None is: not set."""

    wq_state: WQState | None = None
    """The state to move to."""
    curr_wq_state: WQState | None = None
    """The state that the caller takes it to be in."""
    flags: WQFlags | None = None
    flags_mask: WQFlags | None = None
    """Which of the flags change; none is supported."""

    def mask(self) -> WQAttrMask:
        """What of it is set."""
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
    """A receive work queue: receives without a queue pair of their own (ibv_create_wq(3)).

    Context.create_wq() makes it, in RESET; modify() to RDY opens it for receives.  A receive that is too
    short for its frame fails with LOC_LEN_ERR, and the work queue is in ERR then, with the event WQ_FATAL;
    RESET begins anew.  close() raises EBUSY while an indirection table names it.
    """

    __slots__ = ()

    def modify(self, attr: WQAttr) -> None:
        """Move to another state (ibv_modify_wq(3)): RESET, RDY, ERR; out of ERR only to RESET.

        Raises VerbsError: EINVAL for a move that is not allowed; EOPNOTSUPP for flags.
        """
        self.raw_modify(attr.as_struct())


class RwqIndTableInitAttr(Record):
    """What an indirection table is created with (ibv_create_rwq_ind_table(3))."""

    log_ind_tbl_size: int
    """Its size is 2**log_ind_tbl_size."""
    ind_tbl: tuple[nic.WQ, ...]
    """The work queue of each entry; one may stand at several."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ind_tbl", tuple(self.ind_tbl))


class RwqIndTable(nic.RwqIndTable):
    """Which work queue a hash stands for: that of the entry hash % size (ibv_create_rwq_ind_table(3)).

    Context.create_rwq_ind_table() makes it, QPInitAttr.rwq_ind_tbl uses it.  close() raises EBUSY while a
    queue pair does.
    """

    __slots__ = ()


class RxHashConf(Record):
    """How a queue pair spreads what it receives (ibv_create_qp_ex(3)).

    The hash runs over the fields in the order of RxHashFields.  A field that a frame does not have is left
    out: of a fragment there are no ports.  Without any the hash is 0.
    """

    rx_hash_key: bytes
    """40 bytes."""
    rx_hash_fields_mask: RxHashFields
    """Not of IPv4 and IPv6 at once, nor of TCP and UDP."""
    rx_hash_function: RxHashFunction = RxHashFunction.TOEPLITZ


class RSSCaps(Record):
    """What a device can spread (struct ibv_rss_caps)."""

    supported_qpts: int
    """Bit n: queue pair type n."""
    max_rwq_indirection_tables: int
    max_rwq_indirection_table_size: int
    rx_hash_fields_mask: RxHashFields
    rx_hash_function: RxHashFunction

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
    """What a device can cut up when it sends (struct ibv_tso_caps); 0: nothing."""

    max_tso: int
    supported_qpts: int


class RawPacketAttr(Record):
    """Where the frames of RAW_PACKET queue pairs go; not in libibverbs."""

    max_frame: int
    """Bytes of the longest frame, from the Ethernet header on, without VLAN tags."""
    wire: bool
    """Frames leave and come by the network device; else they stay in this context."""
    why: str
    """Why they stay."""
