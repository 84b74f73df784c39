# SPDX-License-Identifier: Apache-2.0
"""Connections: calls become messages of the communication manager, and its events are reported.

Messages are built as the Linux kernel builds them. This module serves ids of port space TCP, or IB with RC
or XRC.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import ECONNRESET, EISCONN, EPROTO, ETIMEDOUT
from ipaddress import IPv6Address
from time import monotonic_ns
from typing import ClassVar, cast

import rnic.cm as cm
from rnic.cm import ack_timeout
from rnic.enums import MTU, QPState, QPType
from rnic.errors import VerbsError
from rnic.log import Log
from rnic.rdmacm import outcomes, reach
from rnic.rdmacm.ibcm.conversation import IbConversation
from rnic.rdmacm.ibcm.link import offer, rtr_attr, rts_attr, timeout_of, to_rts
from rnic.rdmacm.names import ConnParam, IdState, UDParam
from rnic.rdmacm.qp_states import to_error
from rnic.rdmacm.service import Limits, Reason
from rnic.rdmacm.sockaddr import Inet
from rnic.verbs.ah import GID
from rnic.verbs.ece import ECE
from rnic.verbs.qp import QPAttr
from rnic.wire import (
    EXTENDED_XRC,
    IP_REQ_PRIVATE_BYTES,
    CmPath,
    Dreq,
    IpCmHeader,
    Rej,
    RejReason,
    Rep,
    Req,
    TransportType,
    service_id,
)

_log = Log("rnic.rdmacm")

RESERVED_QPNS = (0, 1, 0xFFFFFF)  # of management and of multicast: no connection has them (IBA 3.5.3)
_PERMISSIVE_LID = 0xFFFF
_RETRIES = 7
_WONDER_NS = 10**9  # without an answer to a request
_REASONS = {
    Reason.PROGRAM: RejReason.CONSUMER_DEFINED,
    Reason.SHORTAGE: RejReason.NO_RESOURCES,
    Reason.ECE: RejReason.VENDOR_OPTION_NOT_SUPPORTED,
}


class IbConnection(IbConversation):
    """A connection of an id: what was asked for, what was agreed, and the exchange that says so."""

    limits = Limits(IP_REQ_PRIVATE_BYTES, Rep.PRIVATE_BYTES, Rej.PRIVATE_BYTES, Dreq.PRIVATE_BYTES)
    exchange: cm.Connection | None = None
    asks_for: ConnParam | None = None
    """Of connect(): a smaller path MTU may have to be asked for."""
    asked_at = 0  # ns

    @property
    def _conn(self) -> cm.Connection:
        assert self.exchange is not None
        return self.exchange

    # ------------------------------------------------------------------ calls

    def connect(self, param: ConnParam | UDParam) -> None:
        """Send the REQ."""
        param, link = cast("ConnParam", param), self.link
        link.responder_resources, link.initiator_depth = param.responder_resources, param.initiator_depth
        link.retry_count = min(param.retry_count, _RETRIES)
        link.timeout = ack_timeout(self.service.agent.attr.local_ca_ack_delay, self.one.packet_life_time)
        self.asks_for = param
        self._call(param)

    def _call(self, param: ConnParam) -> None:
        one = self.one
        assert one.remote is not None
        header = IpCmHeader.build(one.local.ip, one.remote.ip, one.local.port)
        req = self._request(param, header.emit() + param.private_data)
        manager = self.service.cm
        self.exchange = manager.connection(self.link.peer, packet_life_time=one.packet_life_time)
        self.exchange.context = self
        self.asked_at = monotonic_ns()
        self.exchange.send_req(req, monotonic_ns(), attr_mod=one.local_ece.options)

    def _request(self, param: ConnParam, private_data: bytes) -> Req:
        one, link, context = self.one, self.link, self.service.agent.context
        assert one.remote is not None
        own, is_xrc = context.query_gid(1, link.peer.sgid_index), one.qp_type is QPType.XRC_SEND
        return Req(
            pkey=context.query_pkey(1, 0),
            vendor_id=one.local_ece.vendor_id,
            service_id=service_id(one.ps, one.remote.port),
            local_qpn=param.qp_num,
            responder_resources=link.responder_resources,
            initiator_depth=link.initiator_depth,
            remote_cm_timeout=one.timing.response_timeout,
            local_cm_timeout=one.timing.response_timeout,
            max_cm_retries=one.timing.max_cm_retries,
            transport_type=TransportType.EXTENDED if is_xrc else TransportType.RC,
            extended_transport_type=EXTENDED_XRC if is_xrc else 0,
            flow_control=param.flow_control,
            starting_psn=link.rq_psn,
            retry_count=link.retry_count,
            rnr_retry_count=min(param.rnr_retry_count, _RETRIES),
            path_mtu=link.path_mtu,
            srq=param.srq,
            primary=CmPath(
                local_lid=_PERMISSIVE_LID,
                remote_lid=_PERMISSIVE_LID,
                local_gid=_ipv6(own),
                remote_gid=_ipv6(link.peer.gid),
                traffic_class=link.traffic_class,
                hop_limit=link.hop_limit,
                ack_timeout=link.timeout,
            ),
            private_data=private_data,
        )

    def accept(self, param: ConnParam | UDParam) -> None:
        """Answer the REQ with a REP; the queue pair can send and receive before that."""
        param, link, one = cast("ConnParam", param), self.link, self.one
        link.responder_resources, link.initiator_depth = param.responder_resources, param.initiator_depth
        is_xrc = one.qp_type is QPType.XRC_RECV
        rep = Rep(
            vendor_id=one.local_ece.vendor_id,
            local_qpn=0 if is_xrc else param.qp_num,
            local_eecn=param.qp_num if is_xrc else 0,
            starting_psn=link.rq_psn,
            responder_resources=link.responder_resources,
            initiator_depth=link.initiator_depth,
            target_ack_delay=self.service.agent.attr.local_ca_ack_delay,
            flow_control=param.flow_control,
            rnr_retry_count=min(param.rnr_retry_count, _RETRIES),
            srq=param.srq,
            private_data=param.private_data,
        )
        if one.qp is not None:
            to_rts(one.qp, link)
        self._conn.send_rep(rep, monotonic_ns(), attr_mod=one.local_ece.options)

    def reject(self, private_data: bytes, reason: Reason) -> None:
        """Answer the REQ or the REP with a REJ."""
        self._conn.send_rej(_REASONS[reason], monotonic_ns(), private_data=private_data)

    def complete(self) -> None:
        """Move the queue pair to RTS, and send the RTU; the second time nothing is left to do."""
        if self._conn.state is not cm.State.ESTABLISHED:
            if self.one.qp is not None:
                to_rts(self.one.qp, self.link)
            self.establish()

    def establish(self) -> None:
        """Send the RTU."""
        self._conn.send_rtu(monotonic_ns())

    def data_came(self) -> None:
        """Data came before the RTU."""
        if self._conn.state is cm.State.ESTABLISHED:
            raise VerbsError(EISCONN, f"{self.one!r} is connected already", "notify")
        self._conn.establish(monotonic_ns())

    def disconnect(self, private_data: bytes) -> None:
        """Send a DREQ, or the DREP for the peer's.

        As with the kernel, it fails in no state of a connection. In the middle of a handshake nothing can be
        sent yet: the peer is told when the handshake ends. The id's queue pair is flushed at once.
        """
        to_error(self.one.qp)
        conn = self._conn
        if conn.state is cm.State.DREQ_RCVD:
            conn.send_drep(monotonic_ns())
        elif conn.state is cm.State.ESTABLISHED:
            conn.send_dreq(monotonic_ns(), private_data)

    def qp_attr(self, state: QPState) -> QPAttr | None:
        """The attributes of what was agreed; None before the peer's queue pair is known."""
        if not self.link.dest_qp_num:
            return None
        return rtr_attr(self.link) if state is QPState.RTR else rts_attr(self.link)

    def expire_at(self, until: int) -> None:
        """Give the handshake up at this time."""
        self._conn.expire_at(until)

    def give_up(self) -> None:
        """Give the handshake up now."""
        self._conn.give_up(monotonic_ns())

    # ------------------------------------------------------------------ events

    def handle(self, event: cm.Event) -> None:
        """Report an event. The network is not asked any more why a peer is silent that has answered."""
        one = self.one
        if one.question is not None and event.type is not cm.EventType.REQ_ERROR:
            one.question.close()
            one.question = None
        if handler := self._handlers.get(event.type):
            handler(self, event)

    def _replied(self, event: cm.Event) -> None:
        rep, link = event.message, self.link
        assert isinstance(rep, Rep)
        if rep.qp_num in RESERVED_QPNS:
            self._conn.send_rej(RejReason.UNSUPPORTED, monotonic_ns())
            outcomes.failed(self.one, -EPROTO)
            return
        link.dest_qp_num, link.sq_psn = rep.qp_num, rep.starting_psn
        link.responder_resources = min(link.responder_resources, rep.initiator_depth)
        link.initiator_depth = min(link.initiator_depth, rep.responder_resources)
        link.rnr_retry_count = rep.rnr_retry_count
        link.timeout = timeout_of(self.one, 0, rep.target_ack_delay)
        param = offer(rep, rep.private_data, 0)  # a REP does not say (IBA 12.6.8): 0, as from the kernel
        outcomes.answered(self.one, param, ECE(rep.vendor_id, event.attr_mod))

    def _established(self, _event: cm.Event) -> None:
        outcomes.established(self.one)

    def _rejected(self, event: cm.Event) -> None:
        rej = event.message
        assert isinstance(rej, Rej)
        if event.source.over and self._calls_again(rej):
            return
        outcomes.refused(self.one, rej.reason, rej.private_data)

    def _unreachable(self, event: cm.Event) -> None:
        """The peer is unreachable: the calling end asks the network why. The other end does not, as strangers
        could make it ask often.
        """
        one = self.one
        if event.gone or one.let_in_by or one.remote is None:
            outcomes.unreachable(one, _error_of(event))
        else:
            self._ask_why(one.remote, _error_of(event))

    def _disconnected(self, event: cm.Event) -> None:
        """A DREQ, its answer, or the absence of an answer."""
        status = _error_of(event) if event.type is cm.EventType.DREQ_ERROR else 0
        data = getattr(event.message, "private_data", b"")
        outcomes.disconnected(self.one, status, data, is_dead=event.gone)

    def _timewait_exit(self, _event: cm.Event) -> None:
        outcomes.timewait_over(self.one)

    _handlers: ClassVar[dict[cm.EventType, Callable[[IbConnection, cm.Event], None]]] = {
        cm.EventType.REP_RECEIVED: _replied,
        cm.EventType.RTU_RECEIVED: _established,
        cm.EventType.USER_ESTABLISHED: _established,
        cm.EventType.REQ_ERROR: _unreachable,
        cm.EventType.REP_ERROR: _unreachable,
        cm.EventType.REJ_RECEIVED: _rejected,
        cm.EventType.DREQ_RECEIVED: _disconnected,
        cm.EventType.DREQ_ERROR: _disconnected,
        cm.EventType.DREP_RECEIVED: _disconnected,
        cm.EventType.TIMEWAIT_EXIT: _timewait_exit,
    }

    # ------------------------------------------------------------------ a path MTU that is too large

    def _calls_again(self, rej: Rej) -> bool:
        """Call _call_again(); a failure is logged, and the application gets the refusal."""
        refused = self.exchange
        try:
            return self._call_again(rej)
        except Exception as error:
            _log.warning("%r cannot be asked for again: %s", self.one, error)
            if self.exchange is not refused and self.exchange is not None:
                self.exchange.close(monotonic_ns())
                self.exchange.context = None
            return False

    def _call_again(self, rej: Rej) -> bool:
        """The path MTU is too large for the peer: request again with the one that its REJ names, or the next
        smaller one.

        IBA 12.6.7.2, reason 26: the additional information is the largest MTU that the peer can use. It has
        to be smaller than ours, so that the repetitions end.
        """
        link, param = self.link, self.asks_for
        if rej.reason != RejReason.INVALID_MTU or param is None:
            return False
        if link.path_mtu <= MTU.MTU_256 or self.one.disconnecting:
            return False
        named = rej.info[0] if rej.info else 0
        smaller = MTU(link.path_mtu - 1)
        link.path_mtu = MTU(named) if MTU.MTU_256 <= named < link.path_mtu else smaller
        _log.info("%r: the peer wants a smaller path MTU: %s", self.one, link.path_mtu.name)
        self._call(param)
        return True

    # ------------------------------------------------------------------ a silent peer

    def watch(self, now: int) -> None:
        """A peer has not answered yet: ask the network why, and keep the answer for later.

        Routers give the reason only a few times (RFC 1812, 4.3.2.8), and the repetitions of the request would
        use these up.
        """
        one = self.one
        waits = self.exchange is not None and self.exchange.state is cm.State.REQ_SENT
        if waits and one.question is None and one.remote is not None and now - self.asked_at >= _WONDER_NS:
            one.question = reach.Question(one.remote.ip, one.local.ip, one.remote.scope)

    def _ask_why(self, remote: Inet, otherwise: int) -> None:
        """Ask the network why; the answer may take a moment, and the agent goes on meanwhile."""
        one, agent = self.one, self.service.agent
        if one.question is not None and (said := one.question.answer()):
            outcomes.unreachable(one, -said)
            return
        question = reach.Question(remote.ip, one.local.ip, remote.scope)

        def tell(_now: int) -> None:
            with question:
                said = question.answer()
            if one.state is not IdState.DESTROYING:
                outcomes.unreachable(one, -said if said else otherwise)

        if question.code is None:
            agent.at(monotonic_ns() + reach.WAIT_MS * 10**6, tell)
        else:
            tell(0)


def _ipv6(gid: GID) -> IPv6Address:
    return IPv6Address(gid.raw)


def _error_of(event: cm.Event) -> int:
    """The status of an event that reports a peer without an answer."""
    return -ECONNRESET if event.gone else -ETIMEDOUT
