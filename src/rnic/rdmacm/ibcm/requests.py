# SPDX-License-Identifier: Apache-2.0
"""Requests to listeners: a REQ or a SIDR_REQ is checked, and makes a new id or is refused."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address
from time import monotonic_ns
from typing import TYPE_CHECKING

import rnic.cm as cm
from rnic.enums import MTU, QPType
from rnic.log import Log
from rnic.rdmacm import outcomes
from rnic.rdmacm.ibcm.connection import RESERVED_QPNS, IbConnection
from rnic.rdmacm.ibcm.gsi import Peer
from rnic.rdmacm.ibcm.link import Link, offer, timeout_of
from rnic.rdmacm.ibcm.lookup import IbLookup
from rnic.rdmacm.names import UDParam
from rnic.rdmacm.service import Request
from rnic.rdmacm.sockaddr import Inet
from rnic.verbs.ah import GID
from rnic.verbs.ece import ECE
from rnic.wire import IpCmHeader, RejReason, Req, SidrReq

if TYPE_CHECKING:
    from rnic.rdmacm.agent import Agent
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.ibcm.manager import IbService

_log = Log("rnic.rdmacm")

_MRA_TIMEOUT = 24  # n of how long an application may think about a request: the kernel's
_BROADCAST = IPv4Address(0xFFFFFFFF)


def call(listener: CmId, service: IbService, event: cm.Event) -> None:
    """Handle a REQ: make a new id, and report the request. Beyond the listener's limits it is refused."""
    req, conn = event.message, event.source
    assert isinstance(conn.peer, Peer)
    now = monotonic_ns()
    if not isinstance(req, Req) or not isinstance(conn, cm.Connection):  # a question for a datagram service
        conn.close(now)
        return
    if listener.is_full or not _header(req).known or req.is_xrc != (listener.qp_type is QPType.XRC_RECV):
        conn.close(now)
        return
    if listener.admission.is_full(now):
        text = "%r: a request from %s is refused: max_connections is %s"
        _log.info(text, listener, conn.peer.gid.ip, listener.admission.max_connections)
        conn.send_rej(RejReason.NO_RESOURCES, now)
        return
    if (refusal := _objection(service.agent, req, conn.peer.sgid_index)) is not None:
        reason, would_do = refusal
        conn.send_rej(reason, now, ari=would_do)
        return
    _let_in(listener, service, conn, lambda child: _connection(listener, child, service, event))


def ask(listener: CmId, service: IbService, event: cm.Event) -> None:
    """Handle a SIDR_REQ: make a new id, and report the request. Beyond the backlog it is refused."""
    req, question = event.message, event.source
    now = monotonic_ns()
    if not isinstance(req, SidrReq) or listener.is_full or not _header(req).known:
        question.close(now)
        return
    _let_in(listener, service, question, lambda child: _lookup(listener, child, service, event))


def _let_in(
    listener: CmId, service: IbService, exchange: cm.Exchange, make: Callable[[CmId], Request]
) -> None:
    """Make the id of a request; if that fails, the service turns it away."""
    child = listener.spawn()
    service.arriving = exchange, child
    child.use(service.agent)
    outcomes.requested(listener, child, make(child))
    service.arriving = None


def turn_away(exchange: cm.Exchange, child: CmId) -> None:
    """Refuse a request whose id could not be made: nothing is left of it. The call can be repeated."""
    if not child.seen:
        exchange.context = child.conversation = None
        if not exchange.over and not exchange.closed:
            exchange.close(monotonic_ns())
        child.destroy()


def _connection(listener: CmId, child: CmId, service: IbService, event: cm.Event) -> Request:
    req, conn = event.message, event.source
    assert isinstance(req, Req)
    assert isinstance(conn, cm.Connection)
    assert isinstance(conn.peer, Peer)
    link = Link(
        Peer(GID(req.primary.local_gid), conn.peer.sgid_index),
        MTU(req.path_mtu),
        traffic_class=req.primary.traffic_class,
        hop_limit=req.primary.hop_limit,
        responder_resources=req.initiator_depth,
        initiator_depth=req.responder_resources,
        retry_count=req.retry_count,
        rnr_retry_count=req.rnr_retry_count,
        timeout=timeout_of(child, req.primary.ack_timeout, service.agent.attr.local_ca_ack_delay),
        dest_qp_num=req.local_qpn,
        sq_psn=req.starting_psn,
    )
    found = IbConnection(child, service, link)
    found.exchange, conn.context = conn, found
    conn.send_mra(_MRA_TIMEOUT, monotonic_ns(), held=True)
    param = offer(req, req.private_data[IpCmHeader.SIZE :], req.retry_count)
    here, there = _ends(listener, service.agent, req)
    return Request(found, here, there, param, ECE(req.vendor_id, event.attr_mod))


def _lookup(listener: CmId, child: CmId, service: IbService, event: cm.Event) -> Request:
    req, question = event.message, event.source
    assert isinstance(req, SidrReq)
    assert isinstance(question, cm.Resolution)
    assert isinstance(question.peer, Peer)
    found = IbLookup(child, service, Link(question.peer, service.agent.context.query_port(1).active_mtu))
    found.exchange, question.context = question, found
    param = UDParam(req.private_data[IpCmHeader.SIZE :], found.link.ah_attr)
    here, there = _ends(listener, service.agent, req)
    return Request(found, here, there, param, ECE(0, event.attr_mod))


def _header(req: Req | SidrReq) -> IpCmHeader:
    return IpCmHeader.parse(req.private_data[: IpCmHeader.SIZE])


def _ends(listener: CmId, agent: Agent, req: Req | SidrReq) -> tuple[Inet, Inet]:
    """The address here that the peer has asked for, and the peer's own."""
    header = _header(req)
    here, there = header.dst, header.src
    return (
        Inet(here, listener.local.port, listener.scope_of(agent, here)),
        Inet(there, header.sport, listener.scope_of(agent, there)),
    )


def _objection(agent: Agent, req: Req, sgid_index: int) -> tuple[RejReason, bytes] | None:
    """Why a request cannot be served, and the value that could (IBA 12.6.7.2); None: it can be served."""
    own, port_mtu = agent.context.query_gid(1, sgid_index), agent.context.query_port(1).active_mtu
    if GID(req.primary.remote_gid) != own or not _can_reach(own, GID(req.primary.local_gid)):
        return RejReason.INVALID_GID, own.raw
    if not MTU.MTU_256 <= req.path_mtu <= port_mtu:
        return RejReason.INVALID_MTU, bytes([port_mtu])
    if req.local_qpn in RESERVED_QPNS:
        return RejReason.UNSUPPORTED, b""
    return None


def _can_reach(own: GID, peer: GID) -> bool:
    """Whether a connection from our address can reach the peer's address."""
    ip = peer.ip
    nowhere = ip.is_unspecified or ip.is_multicast or ip == _BROADCAST
    return ip.version == own.ip.version and not nowhere
