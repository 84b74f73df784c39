# SPDX-License-Identifier: Apache-2.0
"""XRC domains: one connection serves the shared receive queues of many parts of a program."""

from rnic._nic import nic
from rnic.enums import QPType
from rnic.records import replace
from rnic.verbs.qp import QP, QPInitAttr, QPOpenAttr

__all__ = ["XRCD"]


class XRCD(nic.XRCD):
    """An XRC domain (IBA Annex A14; ibv_open_xrcd(3)); Context.open_xrcd() makes it.

    XRC_RECV queue pairs and XRC shared receive queues (Context.create_srq_ex()) belong to a domain. Each
    incoming request names its shared receive queue. close() raises EBUSY while the domain has queue pairs or
    shared receive queues.
    """

    __slots__ = ()

    def create_qp(self, init_attr: QPInitAttr | None = None) -> QP:
        """Create an XRC_RECV queue pair (ibv_create_qp_ex(3) with an XRC domain).

        No work can be posted to it. Post receives to shared receive queues, and send answers by an XRC_SEND
        queue pair, which PD.create_qp() makes. Raises VerbsError: EINVAL for another type, or for completion
        queues.
        """
        wanted = init_attr or QPInitAttr(qp_type=QPType.XRC_RECV)
        return QP(None, replace(wanted, xrcd=self))

    def open_qp(self, qp_num: int, qp_context: object = None) -> QP:
        """Open another handle of one of the domain's queue pairs, as Context.open_qp() does."""
        return QP(None, QPOpenAttr(self, qp_num, qp_context=qp_context))
