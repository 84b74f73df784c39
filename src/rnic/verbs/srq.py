# SPDX-License-Identifier: Apache-2.0
"""Shared receive queues: receives for the messages of many queue pairs."""

import errno
from collections.abc import Mapping

from rnic._nic import nic
from rnic.enums import SRQAttrMask, SRQType
from rnic.errors import VerbsError
from rnic.records import Attributes, field, values

__all__ = ["TMCap", "SRQ", "SRQAttr", "SRQInitAttr", "SRQInitAttrEx"]


class SRQAttr(Attributes):
    """Attributes of a shared receive queue (ibv_create_srq(3), ibv_modify_srq(3)); None is: not set.

    They are given by keyword or assigned later; SRQ.modify() takes what is set then.
    """

    max_wr: int | None = None
    """Receives that can be posted and not taken yet."""
    max_sge: int | None = None
    """SGEs in a receive; cannot be changed."""
    srq_limit: int | None = None
    """SRQ_LIMIT_REACHED comes, once, when fewer receives are left; 0: never. Not at creation."""

    def mask(self) -> SRQAttrMask:
        """What of it modify() changes."""
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
    """What a shared receive queue is created with (ibv_create_srq(3))."""

    attr: SRQAttr = field(default_factory=lambda: SRQAttr(max_wr=128, max_sge=4))
    """How much it holds."""
    srq_context: object = None
    """The caller's own."""


class TMCap(Attributes):
    """How much a tag matching SRQ holds (ibv_create_srq_ex(3))."""

    max_num_tags: int = 0
    """Receives with a tag that can be in the list, those included whose data is still coming."""
    max_ops: int = 64
    """Operations on the list in one call."""

    def as_struct(self) -> dict[str, int]:
        """The fields of struct rnic_tm_cap."""
        return values(self)


class SRQInitAttrEx(Attributes):
    """What Context.create_srq_ex() makes (ibv_create_srq_ex(3))."""

    pd: nic.PD | None = None
    """The protection domain of the receives' memory; of an XRC one, also of what XRC requests reach."""
    srq_type: SRQType = SRQType.BASIC
    xrcd: nic.XRCD | None = None
    """XRC: the domain whose queue pairs take from it."""
    cq: nic.CQ | None = None
    """XRC, TM: where its receives complete."""
    attr: SRQAttr = field(default_factory=lambda: SRQAttr(max_wr=128, max_sge=4))
    """How much it holds."""
    srq_context: object = None
    """The caller's own."""
    tm_cap: TMCap = field(default_factory=TMCap)
    """TM: how much its matching list holds."""


class SRQ(nic.SRQ):
    """A shared receive queue: receives for the messages of many queue pairs (IBA 10.2.9; ibv_create_srq(3)).

    PD.create_srq() makes it, and QPInitAttr.srq lets a queue pair take from it.  close() raises EBUSY while
    queue pairs do.  Context.create_srq_ex() makes XRC ones: all XRC_RECV queue pairs of their domain take
    from them, as senders say with SendWR.remote_srqn; closing one makes such requests invalid.
    """

    __slots__ = ()

    def modify(self, attr: SRQAttr, mask: SRQAttrMask | int | None = None) -> None:
        """Change its size, or arm its limit (ibv_modify_srq(3)); what is set is what counts.

        Raises VerbsError: EINVAL for a size smaller than the receives that are posted, or a limit beyond it.
        """
        self.raw_modify(attr.as_struct(), int(attr.mask() if mask is None else mask))

    def get_srq_num(self) -> int:
        """What senders name it by, in SendWR.remote_srqn (ibv_get_srq_num(3)).

        Raises VerbsError: EOPNOTSUPP unless it is an XRC one.
        """
        number = self.srq_num
        if number is None:
            raise VerbsError(errno.EOPNOTSUPP, "only XRC shared receive queues have a number", "get_srq_num")
        return number

    def query(self) -> SRQAttr:
        """Its size as granted, and the limit that is armed, 0: none (ibv_query_srq(3))."""
        return SRQAttr.from_struct(self.raw_query())
