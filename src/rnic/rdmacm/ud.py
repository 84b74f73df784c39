# SPDX-License-Identifier: Apache-2.0
"""Datagram ids: a SIDR_REQ asks which queue pair serves a port, and a SIDR_REP answers (IBA 12.11)."""

from __future__ import annotations

from errno import EINVAL, ETIMEDOUT
from time import monotonic_ns
from typing import TYPE_CHECKING

import rnic.cm as cm
from rnic.cm import iba_ns
from rnic.errors import VerbsError
from rnic.rdmacm.channel import Event
from rnic.rdmacm.gsi import Peer
from rnic.rdmacm.link import Link
from rnic.rdmacm.names import ConnParam, EventType, IdState, UDParam
from rnic.rdmacm.rc import check_private
from rnic.rdmacm.sockaddr import Inet
from rnic.verbs.ah import AHAttr
from rnic.verbs.ece import ECE
from rnic.wire import (
    IP_SIDR_REQ_PRIVATE_BYTES,
    IpCmHeader,
    SidrRep,
    SidrReq,
    SidrStatus,
    WireError,
    service_id,
)

if TYPE_CHECKING:
    from rnic.rdmacm.agent import Agent
    from rnic.rdmacm.cm_id import CmId


def _resolution(one: CmId, verb: str) -> cm.Resolution:
    if not isinstance(one.exchange, cm.Resolution):
        raise VerbsError(EINVAL, f"{one!r} has no request", verb)
    return one.exchange


def connect(one: CmId, param: ConnParam | UDParam) -> None:
    """Send the SIDR_REQ (rdma_connect(3))."""
    check_private(param.private_data, IP_SIDR_REQ_PRIVATE_BYTES, "connect")
    agent, link = one.need_agent("connect"), one.link
    assert link is not None
    assert one.remote is not None
    header = IpCmHeader.build(one.local.ip, one.remote.ip, one.local.port)
    req = SidrReq(
        service_id=service_id(one.ps, one.remote.port), private_data=header.emit() + param.private_data
    )
    wait = iba_ns(one.timing.response_timeout) + 2 * iba_ns(one.packet_life_time)
    resolution = agent.cm.resolution(link.peer)
    one.exchange, resolution.context = resolution, one
    retries = one.timing.max_cm_retries
    resolution.send_sidr_req(req, monotonic_ns(), timeout_ns=wait, retries=retries)
    agent.flush()


def accept(one: CmId, param: ConnParam | UDParam | None) -> None:
    """Answer with the queue pair's number and Q_Key (rdma_accept(3))."""
    param = param or UDParam()
    check_private(param.private_data, SidrRep.PRIVATE_BYTES, "accept")
    qpn = one.qp.qp_num if one.qp is not None else param.qp_num
    if not qpn:
        raise VerbsError(EINVAL, "there is no queue pair: create_qp(), or qp_num in the UDParam", "accept")
    qkey = (param.qkey if isinstance(param, UDParam) else 0) or one.qkey("accept")
    _answer(one, SidrRep(qpn=qpn, qkey=qkey, private_data=param.private_data), "accept")


def reject(one: CmId, private_data: bytes) -> None:
    """Answer that there is no such service (rdma_reject(3))."""
    check_private(private_data, SidrRep.PRIVATE_BYTES, "reject")
    _answer(one, SidrRep(status=SidrStatus.REJECT, private_data=private_data), "reject")


def reject_busy(one: CmId) -> None:
    """Answer that no queue pair is available."""
    _answer(one, SidrRep(status=SidrStatus.NO_QP), "reject_busy")


def _answer(one: CmId, rep: SidrRep, verb: str) -> None:
    attr_mod = one.local_ece.options
    _resolution(one, verb).send_sidr_rep(rep, monotonic_ns(), attr_mod=attr_mod)
    one.need_agent(verb).flush()


def request(listener: CmId, agent: Agent, event: cm.Event) -> None:
    """Handle a SIDR_REQ: make a new id, and an event for the listener. Beyond the backlog the request is
    refused.
    """
    req, question = event.message, event.source
    now = monotonic_ns()
    if not isinstance(req, SidrReq) or not isinstance(question.peer, Peer) or listener.is_full:
        question.close(now)
        return
    header = IpCmHeader.parse(req.private_data[: IpCmHeader.SIZE])
    try:
        source, dest = header.src, header.dst
    except WireError:
        question.close(now)
        return
    child = listener.spawn(agent)
    child.exchange, question.context = question, child
    child.remote = Inet(source, header.sport, listener.scope_of(agent, source))
    child.local = Inet(dest, listener.local.port, listener.scope_of(agent, dest))
    child.link = Link(question.peer, agent.context.query_port(1).active_mtu)
    child.remote_ece = ECE(0, event.attr_mod)
    child.state = IdState.CONNECT
    param = UDParam(req.private_data[IpCmHeader.SIZE :], child.link.ah_attr)
    listener.channel.put(Event(EventType.CONNECT_REQUEST, child, param=param, listen_id=listener))


def handle(one: CmId, event: cm.Event) -> None:
    """Handle the answer, or its absence."""
    if event.type is cm.EventType.SIDR_REQ_ERROR:
        one.channel.put(Event(EventType.UNREACHABLE, one, -ETIMEDOUT))
        return
    rep = event.message
    if not isinstance(rep, SidrRep):
        return
    one.remote_ece = ECE(rep.vendor_id, event.attr_mod)
    if rep.status != SidrStatus.SUCCESS:
        one.channel.put(Event(EventType.UNREACHABLE, one, rep.status, UDParam(rep.private_data)))
        return
    assert one.link is not None
    ah_attr: AHAttr = one.link.ah_attr
    param = UDParam(rep.private_data, ah_attr, rep.qpn, rep.qkey)
    one.channel.put(Event(EventType.ESTABLISHED, one, param=param))
