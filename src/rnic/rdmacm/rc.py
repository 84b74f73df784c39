# SPDX-License-Identifier: Apache-2.0
"""Connected ids: calls become messages of the communication manager, and its events become events of the id.

Messages are built as the Linux kernel builds them. This module serves ids of port space TCP, or IB with RC.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import ECONNRESET, EINVAL, EISCONN, EPROTO, ETIMEDOUT
from ipaddress import IPv4Address, IPv6Address
from time import monotonic_ns
from typing import TYPE_CHECKING

import rnic.cm as cm
from rnic.cm import ack_timeout, peer_ack_timeout
from rnic.enums import MTU
from rnic.errors import VerbsError
from rnic.log import Log
from rnic.rdmacm import link as link_
from rnic.rdmacm import reach
from rnic.rdmacm.channel import Event
from rnic.rdmacm.gsi import Peer
from rnic.rdmacm.link import Link
from rnic.rdmacm.names import (
    MAX_INIT_DEPTH,
    MAX_RESP_RES,
    NOTHING_SAID,
    ConnParam,
    EventType,
    IdState,
    Option,
)
from rnic.rdmacm.sockaddr import Inet
from rnic.records import replace
from rnic.verbs.ah import GID
from rnic.verbs.ece import ECE
from rnic.wire import (
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

if TYPE_CHECKING:
    from rnic.rdmacm.agent import Agent
    from rnic.rdmacm.cm_id import CmId

_log = Log("rnic.rdmacm")

_PERMISSIVE_LID = 0xFFFF
_MRA_TIMEOUT = 24  # n of how long an application may think about a request: the kernel's
_RETRIES = 7
_WONDER_NS = 10**9  # without an answer to a request
_RESERVED_QPNS = (0, 1, 0xFFFFFF)  # of management and of multicast: no connection has them (IBA 3.5.3)
_BROADCAST = IPv4Address(0xFFFFFFFF)


def check_private(data: bytes, limit: int, verb: str) -> None:
    """Raise EINVAL for private data that is too long for the message."""
    if len(data) > limit:
        raise VerbsError(EINVAL, f"private_data has {len(data)} bytes; {verb}() can carry {limit}", verb)


def _within(name: str, value: int, limit: int, verb: str, all_of_it: int) -> int:
    if value == all_of_it:
        return limit
    if not 0 <= value <= limit:
        raise VerbsError(EINVAL, f"{name} is {value}; the device can do {limit}", verb)
    return value


def _depths(one: CmId, param: ConnParam, verb: str) -> tuple[int, int]:
    """responder_resources and initiator_depth, limited by the device."""
    attr = one.need_agent(verb).attr
    served, asked = min(attr.max_qp_rd_atom, 254), min(attr.max_qp_init_rd_atom, 254)
    return (
        _within("responder_resources", param.responder_resources, served, verb, MAX_RESP_RES),
        _within("initiator_depth", param.initiator_depth, asked, verb, MAX_INIT_DEPTH),
    )


def _connection(one: CmId, verb: str) -> cm.Connection:
    if not isinstance(one.exchange, cm.Connection):
        raise VerbsError(EINVAL, f"{one!r} has no connection", verb)
    return one.exchange


# ------------------------------------------------------------------ calls


def connect(one: CmId, param: ConnParam) -> None:
    """Send the REQ (rdma_connect(3))."""
    check_private(param.private_data, IP_REQ_PRIVATE_BYTES, "connect")
    agent, link = one.need_agent("connect"), one.link
    assert link is not None
    assert one.remote is not None
    link.responder_resources, link.initiator_depth = _depths(one, param, "connect")
    link.retry_count = min(param.retry_count, _RETRIES)
    link.timeout = ack_timeout(agent.attr.local_ca_ack_delay, one.packet_life_time)
    one.asks_for = param
    _call(one, agent, link, param)
    agent.watch(one)
    agent.flush()


def _call(one: CmId, agent: Agent, link: Link, param: ConnParam) -> None:
    assert one.remote is not None
    header = IpCmHeader.build(one.local.ip, one.remote.ip, one.local.port)
    req = _request(one, param, link, header.emit() + param.private_data)
    one.exchange = agent.cm.connection(link.peer, packet_life_time=one.packet_life_time)
    one.exchange.context = one
    one.asked_at = monotonic_ns()
    one.exchange.send_req(req, monotonic_ns(), attr_mod=one.local_ece.options)


def _call_again(one: CmId, rej: Rej) -> bool:
    """The path MTU is too large for the peer: request again with the one that its REJ names, or the next
    smaller one.

    IBA 12.6.7.2, reason 26: the additional information is the largest MTU that the peer can use. It has to be
    smaller than ours, so that the repetitions end.
    """
    link, agent, param = one.link, one.agent, one.asks_for
    if rej.reason != RejReason.INVALID_MTU or link is None or agent is None or param is None:
        return False
    if link.path_mtu <= MTU.MTU_256 or one.disconnecting:
        return False
    named = rej.info[0] if rej.info else 0
    smaller = MTU(link.path_mtu - 1)
    link.path_mtu = MTU(named) if MTU.MTU_256 <= named < link.path_mtu else smaller
    _log.info("%r: the peer wants a smaller path MTU: %s", one, link.path_mtu.name)
    _call(one, agent, link, param)
    return True


def _calls_again(one: CmId, rej: Rej) -> bool:
    """Call _call_again(); a failure is logged, and the application gets the refusal."""
    refused = one.exchange
    try:
        return _call_again(one, rej)
    except Exception as error:
        _log.warning("%r cannot be asked for again: %s", one, error)
        if one.exchange is not refused and one.exchange is not None:
            one.exchange.close(monotonic_ns())
            one.exchange.context = None
        return False


def _request(one: CmId, param: ConnParam, link: Link, private_data: bytes) -> Req:
    assert one.remote is not None
    context = one.need_agent("connect").context
    own = context.query_gid(1, link.peer.sgid_index)
    return Req(
        pkey=context.query_pkey(1, 0),
        vendor_id=one.local_ece.vendor_id,
        service_id=service_id(one.ps, one.remote.port),
        local_qpn=_qp_num(one, param, "connect"),
        responder_resources=link.responder_resources,
        initiator_depth=link.initiator_depth,
        remote_cm_timeout=one.timing.response_timeout,
        local_cm_timeout=one.timing.response_timeout,
        max_cm_retries=one.timing.max_cm_retries,
        transport_type=TransportType.RC,
        flow_control=param.flow_control,
        starting_psn=link.rq_psn,
        retry_count=link.retry_count,
        rnr_retry_count=min(param.rnr_retry_count, _RETRIES),
        path_mtu=link.path_mtu,
        srq=_srq(one, param),
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


def _ipv6(gid: GID) -> IPv6Address:
    return IPv6Address(gid.raw)


def _srq(one: CmId, param: ConnParam) -> bool:
    """Whether the queue pair uses a shared receive queue, which the peer is told (IBA 12.7.22)."""
    return param.srq if one.qp is None else one.qp.srq is not None


def _qp_num(one: CmId, param: ConnParam, verb: str) -> int:
    if one.qp is not None:
        return one.qp.qp_num
    if not param.qp_num:
        raise VerbsError(EINVAL, "there is no queue pair: create_qp(), or qp_num in the ConnParam", verb)
    return param.qp_num


def accept(one: CmId, param: ConnParam | None) -> None:
    """Answer a REQ with a REP (rdma_accept(3)); the queue pair can send and receive before that."""
    conn, link = _connection(one, "accept"), one.link
    if conn.state not in (cm.State.REQ_RCVD, cm.State.MRA_REQ_SENT):
        raise VerbsError(EINVAL, f"no request waits: the connection is in {conn.state.name}", "accept")
    assert link is not None
    agent = one.need_agent("accept")
    param = param or ConnParam(flow_control=bool(conn.req and conn.req.flow_control))
    check_private(param.private_data, Rep.PRIVATE_BYTES, "accept")
    own_resources, own_depth = _depths(one, param, "accept")
    if one.qp is not None and not one.offers_ece and one.remote_ece.vendor_id:
        one.local_ece = one.qp.set_ece(one.remote_ece)
    link.responder_resources = min(own_resources, link.responder_resources)
    link.initiator_depth = min(own_depth, link.initiator_depth)
    rep = Rep(
        vendor_id=one.local_ece.vendor_id,
        local_qpn=_qp_num(one, param, "accept"),
        starting_psn=link.rq_psn,
        responder_resources=link.responder_resources,
        initiator_depth=link.initiator_depth,
        target_ack_delay=agent.attr.local_ca_ack_delay,
        flow_control=param.flow_control,
        rnr_retry_count=min(param.rnr_retry_count, _RETRIES),
        srq=_srq(one, param),
        private_data=param.private_data,
    )
    try:
        if one.qp is not None:
            link_.to_rts(one.qp, link)
        conn.send_rep(rep, monotonic_ns(), attr_mod=one.local_ece.options)
        one.disconnecting = False  # whatever was said before
        if one.let_in_by is not None:
            one.let_in_by.accepted(one, conn, monotonic_ns())
    except VerbsError:
        link_.to_error(one.qp)
        conn.send_rej(RejReason.CONSUMER_DEFINED, monotonic_ns())
        raise
    finally:
        agent.watch(one)
        agent.flush()


def reject(one: CmId, private_data: bytes, reason: int = RejReason.CONSUMER_DEFINED) -> None:
    """Answer a REQ or a REP with a REJ (rdma_reject(3))."""
    check_private(private_data, Rej.PRIVATE_BYTES, "reject")
    _connection(one, "reject").send_rej(reason, monotonic_ns(), private_data=private_data)
    one.need_agent("reject").flush()


def reject_busy(one: CmId) -> None:
    """Answer a REQ with a REJ, no resources (IBA 12.6.7.2, reason 3)."""
    reject(one, b"", RejReason.NO_RESOURCES)


def establish(one: CmId) -> None:
    """Send the RTU (rdma_establish(3))."""
    _connection(one, "establish").send_rtu(monotonic_ns())
    one.need_agent("establish").flush()


def communication_established(one: CmId) -> None:
    """Data came before the RTU (rdma_notify(3))."""
    conn = _connection(one, "notify")
    if conn.state is cm.State.ESTABLISHED:
        raise VerbsError(EISCONN, f"{one!r} is connected already", "notify")
    conn.establish(monotonic_ns())
    one.need_agent("notify").flush()


def disconnect(one: CmId, private_data: bytes = b"") -> bool:
    """Send a DREQ, or the DREP for the peer's (rdma_disconnect(3)). Returns whether an event will report the
    end.

    As with the kernel, it fails in no state of a connection. In the middle of a handshake nothing can be sent
    yet: the peer is told when the handshake ends.
    """
    check_private(private_data, Dreq.PRIVATE_BYTES, "disconnect")
    conn = _connection(one, "disconnect")
    agent = one.need_agent("disconnect")
    link_.to_error(one.qp)
    one.disconnecting = True
    if conn.state is cm.State.DREQ_RCVD:
        conn.send_drep(monotonic_ns())
    elif conn.state is cm.State.ESTABLISHED:
        conn.send_dreq(monotonic_ns(), private_data)
    agent.flush()
    return conn.state is cm.State.DREQ_SENT


# ------------------------------------------------------------------ a request to a listener


def request(listener: CmId, agent: Agent, event: cm.Event) -> None:
    """Handle a REQ: make a new id, and an event for the listener. Beyond the backlog the request is
    refused.
    """
    req, conn = event.message, event.source
    assert isinstance(conn.peer, Peer)
    now = monotonic_ns()
    if not isinstance(req, Req) or not isinstance(conn, cm.Connection):  # a question for a datagram service
        conn.close(now)
        return
    header = IpCmHeader.parse(req.private_data[: IpCmHeader.SIZE])
    if listener.is_full or not header.known:
        conn.close(now)
        return
    if listener.admission.is_full(now):
        text = "%r: a request from %s is refused: max_connections is %s"
        _log.info(text, listener, conn.peer.gid.ip, listener.admission.max_connections)
        conn.send_rej(RejReason.NO_RESOURCES, now)
        return
    if (refusal := _objection(agent, req, conn.peer.sgid_index)) is not None:
        reason, would_do = refusal
        conn.send_rej(reason, now, ari=would_do)
        return
    child = listener.spawn(agent)
    try:
        _let_in(listener, child, agent, conn, event)
    except BaseException:
        conn.context = None
        conn.close(monotonic_ns())
        child.exchange = None
        child.destroy()
        raise


def _let_in(listener: CmId, child: CmId, agent: Agent, conn: cm.Connection, event: cm.Event) -> None:
    req, now = event.message, monotonic_ns()
    assert isinstance(req, Req)
    assert isinstance(conn.peer, Peer)
    header = IpCmHeader.parse(req.private_data[: IpCmHeader.SIZE])
    source, gid, mtu = header.src, GID(req.primary.local_gid), MTU(req.path_mtu)
    child.exchange, conn.context = conn, child
    child.remote = Inet(source, header.sport, listener.scope_of(agent, source))
    child.local = Inet(header.dst, listener.local.port, listener.scope_of(agent, header.dst))
    child.remote_ece = ECE(req.vendor_id, event.attr_mod)
    child.link = Link(
        Peer(gid, conn.peer.sgid_index),
        mtu,
        traffic_class=req.primary.traffic_class,
        hop_limit=req.primary.hop_limit,
        responder_resources=req.initiator_depth,
        initiator_depth=req.responder_resources,
        retry_count=req.retry_count,
        rnr_retry_count=req.rnr_retry_count,
        timeout=_timeout(child, req.primary.ack_timeout, agent.attr.local_ca_ack_delay),
        dest_qp_num=req.local_qpn,
        sq_psn=req.starting_psn,
    )
    child.state = IdState.CONNECT
    child.let_in_by = listener.admission
    listener.admission.asked(child, conn, now)
    conn.send_mra(_MRA_TIMEOUT, now, held=True)
    param = _offer(req, req.private_data[IpCmHeader.SIZE :], req.retry_count)
    listener.channel.put(Event(EventType.CONNECT_REQUEST, child, param=param, listen_id=listener))


def _timeout(one: CmId, asked: int, delay: int) -> int:
    """The queue pair's timeout: the option's value, else the peer's, within limits."""
    own = ack_timeout(delay, one.packet_life_time)
    return own if Option.ACK_TIMEOUT in one.options else peer_ack_timeout(asked, own)


def _offer(said: Req | Rep, private_data: bytes, retry_count: int) -> ConnParam:
    """The peer's parameters as this application sees them: the peer's initiator depth is what this end
    serves.
    """
    return ConnParam(
        private_data=private_data,
        responder_resources=said.initiator_depth,
        initiator_depth=said.responder_resources,
        flow_control=said.flow_control,
        retry_count=retry_count,
        rnr_retry_count=said.rnr_retry_count,
        srq=said.srq,
        qp_num=said.local_qpn,
    )


def _objection(agent: Agent, req: Req, sgid_index: int) -> tuple[RejReason, bytes] | None:
    """Why a request cannot be served, and the value that could (IBA 12.6.7.2); None: it can be served."""
    own, port_mtu = agent.context.query_gid(1, sgid_index), agent.context.query_port(1).active_mtu
    if GID(req.primary.remote_gid) != own or not _can_reach(own, GID(req.primary.local_gid)):
        return RejReason.INVALID_GID, own.raw
    if not MTU.MTU_256 <= req.path_mtu <= port_mtu:
        return RejReason.INVALID_MTU, bytes([port_mtu])
    if req.local_qpn in _RESERVED_QPNS:
        return RejReason.UNSUPPORTED, b""
    return None


def _can_reach(own: GID, peer: GID) -> bool:
    """Whether a connection from our address can reach the peer's address."""
    ip = peer.ip
    nowhere = ip.is_unspecified or ip.is_multicast or ip == _BROADCAST
    return ip.version == own.ip.version and not nowhere


# ------------------------------------------------------------------ what happens to a connection


def handle(one: CmId, event: cm.Event) -> None:
    """Handle an event of the communication manager; it is repeated if memory was short."""
    if one.let_in_by is not None and event.source.state not in cm.HALF_OPEN:
        one.let_in_by.settled(one)
    if one.question is not None and event.type is not cm.EventType.REQ_ERROR:
        one.question.close()
        one.question = None
    if handler := _HANDLERS.get(event.type):
        handler(one, event)


def _replied(one: CmId, event: cm.Event) -> None:
    rep, link = event.message, one.link
    assert isinstance(rep, Rep)
    assert link is not None
    if rep.local_qpn in _RESERVED_QPNS:
        _connection(one, "connect").send_rej(RejReason.UNSUPPORTED, monotonic_ns())
        _broken(one, EventType.CONNECT_ERROR, -EPROTO)
        return
    one.remote_ece = ECE(rep.vendor_id, event.attr_mod)
    link.dest_qp_num, link.sq_psn = rep.local_qpn, rep.starting_psn
    link.responder_resources = min(link.responder_resources, rep.initiator_depth)
    link.initiator_depth = min(link.initiator_depth, rep.responder_resources)
    link.rnr_retry_count = rep.rnr_retry_count
    link.timeout = _timeout(one, 0, rep.target_ack_delay)
    param = _offer(rep, rep.private_data, 0)  # a REP does not say (IBA 12.6.8): 0, as from the kernel
    conn = _connection(one, "connect")
    if one.qp is None and one.disconnecting:
        _confirm(conn)
        disconnect(one)
        return
    if one.qp is None:
        one.channel.put(Event(EventType.CONNECT_RESPONSE, one, param=param))
        return
    try:
        if conn.state is not cm.State.ESTABLISHED:
            link_.to_rts(one.qp, link)
        _confirm(conn)
    except VerbsError as error:
        conn.send_rej(RejReason.CONSUMER_DEFINED, monotonic_ns())
        _broken(one, EventType.CONNECT_ERROR, -(error.errno or EINVAL))
        return
    one.channel.put(Event(EventType.ESTABLISHED, one, param=param))


def _confirm(conn: cm.Connection) -> None:
    """Handle the peer's reply; a second call does nothing."""
    if conn.state is not cm.State.ESTABLISHED:
        conn.send_rtu(monotonic_ns())


def _established(one: CmId, _event: cm.Event) -> None:
    one.channel.put(Event(EventType.ESTABLISHED, one, param=NOTHING_SAID))
    if one.disconnecting:
        disconnect(one)


def _broken(one: CmId, kind: EventType, status: int, param: ConnParam | None = None) -> None:
    one.channel.put(Event(kind, one, status, param))  # before work is flushed: it says why
    link_.to_error(one.qp)


def _error_of(event: cm.Event) -> int:
    """The status of an event that reports a peer without an answer."""
    return -ECONNRESET if event.gone else -ETIMEDOUT


def _unreachable(one: CmId, event: cm.Event) -> None:
    """The peer is unreachable: the calling end asks the network why. The other end does not, as strangers
    could make it ask often.
    """
    if one.channel.take_request(one):  # nobody has seen it, nor will
        one.destroy()
    elif event.gone or one.let_in_by or one.remote is None:
        _broken(one, EventType.UNREACHABLE, _error_of(event))
    else:
        _ask_why(one, one.remote, _error_of(event))


def wonder(one: CmId, now: int) -> None:
    """A peer has not answered yet: ask the network why, and keep the answer for later.

    Routers give the reason only a few times (RFC 1812, 4.3.2.8), and the repetitions of the request would use
    these up.
    """
    waits = one.exchange is not None and one.exchange.state is cm.State.REQ_SENT
    if waits and one.question is None and one.remote is not None and now - one.asked_at >= _WONDER_NS:
        one.question = reach.Question(one.remote.ip, one.local.ip, one.remote.scope)


def _ask_why(one: CmId, remote: Inet, otherwise: int) -> None:
    """Ask the network why; the answer may take a moment, and the agent goes on meanwhile."""
    agent = one.agent
    if one.question is not None and (said := one.question.answer()):
        _broken(one, EventType.UNREACHABLE, -said)
        return
    question = reach.Question(remote.ip, one.local.ip, remote.scope)

    def tell(_now: int) -> None:
        with question:
            said = question.answer()
        if one.state is not IdState.DESTROYING:
            _broken(one, EventType.UNREACHABLE, -said if said else otherwise)

    if question.code is None and agent is not None:
        agent.at(monotonic_ns() + reach.WAIT_MS * 10**6, tell)
    else:
        tell(0)


def _rejected(one: CmId, event: cm.Event) -> None:
    rej = event.message
    assert isinstance(rej, Rej)
    if event.source.over and _calls_again(one, rej):
        return
    _broken(one, EventType.REJECTED, rej.reason, replace(NOTHING_SAID, private_data=rej.private_data))


def _disconnected(one: CmId, event: cm.Event) -> None:
    """Report DISCONNECTED, once, whichever end began. A DREQ that crossed ours is answered here.

    Work for a dead process is flushed at once, not when its retries are used up.
    """
    conn = _connection(one, "disconnect")
    if one.disconnecting and conn.state is cm.State.DREQ_RCVD:
        conn.send_drep(monotonic_ns())
    if one.state is not IdState.CONNECT:
        return
    status = _error_of(event) if event.type is cm.EventType.DREQ_ERROR else 0
    data = getattr(event.message, "private_data", b"")
    data = data if any(data) else b""  # librdmacm's programs say nothing here, and are told of nothing
    one.channel.put(Event(EventType.DISCONNECTED, one, status, replace(NOTHING_SAID, private_data=data)))
    one.state = IdState.DISCONNECT  # when it is told: what lacks memory is done again
    if event.gone:
        link_.to_error(one.qp)


def _timewait_exit(one: CmId, _event: cm.Event) -> None:
    """Report TIMEWAIT_EXIT for a connection that was established; another event has reported a refused or
    abandoned one.
    """
    if one.state is IdState.DISCONNECT:
        one.channel.put(Event(EventType.TIMEWAIT_EXIT, one))


_HANDLERS: dict[cm.EventType, Callable[[CmId, cm.Event], None]] = {
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
