# SPDX-License-Identifier: Apache-2.0
"""Datagram services: a SIDR_REQ asks which queue pair serves a port, and a SIDR_REP answers (IBA 12.11)."""

from __future__ import annotations

from errno import ETIMEDOUT
from time import monotonic_ns
from typing import cast

import rnic.cm as cm
from rnic.cm import iba_ns
from rnic.rdmacm import outcomes
from rnic.rdmacm.ibcm.conversation import IbConversation
from rnic.rdmacm.names import ConnParam, UDParam
from rnic.rdmacm.service import Limits, Reason
from rnic.verbs.ece import ECE
from rnic.wire import IP_SIDR_REQ_PRIVATE_BYTES, IpCmHeader, SidrRep, SidrReq, SidrStatus, service_id

_STATUS = {Reason.PROGRAM: SidrStatus.REJECT, Reason.SHORTAGE: SidrStatus.NO_QP}


class IbLookup(IbConversation):
    """A question for a datagram service, at either end."""

    limits = Limits(IP_SIDR_REQ_PRIVATE_BYTES, SidrRep.PRIVATE_BYTES, SidrRep.PRIVATE_BYTES)
    exchange: cm.Resolution | None = None

    def connect(self, param: ConnParam | UDParam) -> None:
        """Send the SIDR_REQ."""
        one = self.one
        assert one.remote is not None
        header = IpCmHeader.build(one.local.ip, one.remote.ip, one.local.port)
        req = SidrReq(
            service_id=service_id(one.ps, one.remote.port), private_data=header.emit() + param.private_data
        )
        wait = iba_ns(one.timing.response_timeout) + 2 * iba_ns(one.packet_life_time)
        self.exchange = self.service.cm.resolution(self.link.peer)
        self.exchange.context = self
        retries = one.timing.max_cm_retries
        self.exchange.send_sidr_req(req, monotonic_ns(), timeout_ns=wait, retries=retries)

    def accept(self, param: ConnParam | UDParam) -> None:
        """Answer with the queue pair's number and Q_Key."""
        param = cast("UDParam", param)
        self._answer(SidrRep(qpn=param.qp_num, qkey=param.qkey, private_data=param.private_data))

    def reject(self, private_data: bytes, reason: Reason) -> None:
        """Answer that there is no such service, or no queue pair for it."""
        self._answer(SidrRep(status=_STATUS[reason], private_data=private_data))

    def _answer(self, rep: SidrRep) -> None:
        assert self.exchange is not None
        self.exchange.send_sidr_rep(rep, monotonic_ns(), attr_mod=self.one.local_ece.options)

    def handle(self, event: cm.Event) -> None:
        """Report the answer, or its absence."""
        if event.type is cm.EventType.SIDR_REQ_ERROR:
            outcomes.unreachable(self.one, -ETIMEDOUT)
            return
        rep = event.message
        if not isinstance(rep, SidrRep):
            return
        self.one.remote_ece = ECE(rep.vendor_id, event.attr_mod)
        if rep.status != SidrStatus.SUCCESS:
            outcomes.not_found(self.one, rep.status, rep.private_data)
            return
        outcomes.found(self.one, UDParam(rep.private_data, self.link.ah_attr, rep.qpn, rep.qkey))
