# SPDX-License-Identifier: Apache-2.0
"""XRC domains: one connection for all the shared receive queues of a host's processes, or of one's parts."""

from rnic._nic import nic
from rnic.enums import QPType
from rnic.records import replace
from rnic.verbs.qp import QP, QPInitAttr, QPOpenAttr

__all__ = ["XRCD"]


class XRCD(nic.XRCD):
    """An XRC domain (IBA Annex A14; ibv_open_xrcd(3)); Context.open_xrcd() makes it.

    XRC_RECV queue pairs are of a domain, and so are XRC shared receive queues (Context.create_srq_ex()): each
    request that comes names the queue that it is for.  close() raises EBUSY while it has either.
    """

    __slots__ = ()

    def create_qp(self, init_attr: QPInitAttr | None = None) -> QP:
        """A new XRC_RECV queue pair (ibv_create_qp_ex(3) with an XRC domain): it needs nothing else.

        Nothing can be posted to it: receives are posted to shared receive queues, answers need an XRC_SEND
        queue pair, which PD.create_qp() makes.  Raises VerbsError: EINVAL for another type, or for completion
        queues.
        """
        wanted = init_attr or QPInitAttr(qp_type=QPType.XRC_RECV)
        return QP(None, replace(wanted, xrcd=self))

    def open_qp(self, qp_num: int, qp_context: object = None) -> QP:
        """One of its queue pairs once more; Context.open_qp() says what that means."""
        return QP(None, QPOpenAttr(self, qp_num, qp_context=qp_context))
