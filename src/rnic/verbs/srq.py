# SPDX-License-Identifier: Apache-2.0
"""Shared receive queues: receives for messages of many queue pairs."""

import errno
from collections.abc import Mapping

from rnic._nic import nic
from rnic.enums import SRQAttrMask, SRQType
from rnic.errors import VerbsError
from rnic.records import Attributes, field, values

__all__ = ["TMCap", "SRQ", "SRQAttr", "SRQInitAttr", "SRQInitAttrEx"]


class SRQAttr(Attributes):
    """Attributes of a shared receive queue (ibv_create_srq(3), ibv_modify_srq(3)); an attribute that is None
    is not set.

    Give attributes by keyword, or assign them later.
    """

    max_wr: int | None = None
    """The most receives that can be posted and not yet taken."""
    max_sge: int | None = None
    """The most SGEs in a receive; it cannot be changed."""
    srq_limit: int | None = None
    """The event SRQ_LIMIT_REACHED comes once when fewer receives than this are left; 0: never. Not for
    creation.
    """

    def mask(self) -> SRQAttrMask:
        """The attributes that modify() changes."""
        found = SRQAttrMask(0)
        if self.max_wr is not None:
            found |= SRQAttrMask.MAX_WR
        if self.srq_limit is not None:
            found |= SRQAttrMask.LIMIT
        return found

    def as_struct(self) -> dict[str, int]:
        """The fields of struct rnic_srq_attr, those that are not set as 0."""
        return {name: value or 0 for name, value in values(self).items()}

    @classmethod
    def from_struct(cls, values: Mapping[str, int]) -> "SRQAttr":
        """The record of struct rnic_srq_attr's fields."""
        return cls(**values)


class SRQInitAttr(Attributes):
    """Attributes of a new shared receive queue (ibv_create_srq(3))."""

    attr: SRQAttr = field(default_factory=lambda: SRQAttr(max_wr=128, max_sge=4))
    """The size of the queue."""
    srq_context: object = None
    """Any object of the caller."""


class TMCap(Attributes):
    """The size of a tag matching SRQ (ibv_create_srq_ex(3))."""

    max_num_tags: int = 0
    """The most receives with a tag in the list, including those whose data is still coming."""
    max_ops: int = 64
    """The most operations on the list in one call."""

    def as_struct(self) -> dict[str, int]:
        """The fields of struct rnic_tm_cap."""
        return values(self)


class SRQInitAttrEx(Attributes):
    """Attributes of a new shared receive queue of Context.create_srq_ex() (ibv_create_srq_ex(3))."""

    pd: nic.PD | None = None
    """The protection domain of the receives' memory; for XRC, also of the memory that XRC requests use."""
    srq_type: SRQType = SRQType.BASIC
    """What takes from it."""
    xrcd: nic.XRCD | None = None
    """XRC: the domain whose queue pairs take receives from the queue."""
    cq: nic.CQ | None = None
    """XRC and TM: the completion queue of its receives."""
    attr: SRQAttr = field(default_factory=lambda: SRQAttr(max_wr=128, max_sge=4))
    """The size of the queue."""
    srq_context: object = None
    """Any object of the caller."""
    tm_cap: TMCap = field(default_factory=TMCap)
    """TM: the size of the matching list."""


class SRQ(nic.SRQ):
    """A shared receive queue: receives for messages of many queue pairs (IBA 10.2.9; ibv_create_srq(3)).

    PD.create_srq() makes it, and QPInitAttr.srq makes a queue pair use it. close() raises EBUSY while queue
    pairs use it. Context.create_srq_ex() makes XRC ones: all XRC_RECV queue pairs of the domain use them, and
    the sender chooses one with SendWR.remote_srqn. Requests to a closed one are invalid.
    """

    __slots__ = ()

    def modify(self, attr: SRQAttr, mask: SRQAttrMask | int | None = None) -> None:
        """Change the size, or set the limit (ibv_modify_srq(3)); only attributes that are set count.

        Raises VerbsError: EINVAL for a size smaller than the number of posted receives, or a limit larger
        than the size.
        """
        self.raw_modify(attr.as_struct(), int(attr.mask() if mask is None else mask))

    def get_srq_num(self) -> int:
        """The number of an XRC shared receive queue, for SendWR.remote_srqn (ibv_get_srq_num(3)).

        Raises VerbsError: EOPNOTSUPP for other types.
        """
        number = self.srq_num
        if number is None:
            raise VerbsError(errno.EOPNOTSUPP, "only XRC shared receive queues have a number", "get_srq_num")
        return number

    def query(self) -> SRQAttr:
        """The granted size, and the limit in force, 0: none (ibv_query_srq(3))."""
        return SRQAttr.from_struct(self.raw_query())
