# SPDX-License-Identifier: Apache-2.0
"""Communication identifiers: RDMA-CM's sockets (rdma_create_id(3))."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from errno import (
    EADDRNOTAVAIL,
    EBUSY,
    ECONNREFUSED,
    EINVAL,
)
from ipaddress import IPv4Address
from time import monotonic_ns
from types import ModuleType
from typing import Any, Self, cast

from rnic._nic import nic
from rnic.cm import Connection, Exchange, State, Statistics
from rnic.enums import EventType as AsyncEventType
from rnic.enums import QPState, QPType
from rnic.errors import VerbsError
from rnic.rdmacm import addresses, multicast, rc, reach, routes, ud
from rnic.rdmacm import link as link_
from rnic.rdmacm.admission import HANDSHAKE_TIMEOUT, MAX_HALF_OPEN, Admission
from rnic.rdmacm.agent import Agent
from rnic.rdmacm.channel import Event, EventChannel, check_timeout
from rnic.rdmacm.link import Link
from rnic.rdmacm.messages import Messages
from rnic.rdmacm.names import (
    NOTHING_SAID,
    UDP_QKEY,
    ConnParam,
    EventType,
    IdState,
    JoinFlags,
    Option,
    Timing,
    UDParam,
)
from rnic.rdmacm.registry import registry
from rnic.rdmacm.shared import SharedReceives
from rnic.rdmacm.sockaddr import Inet, SockAddr, parse
from rnic.records import replace
from rnic.verbs.ah import GID
from rnic.verbs.context import Context
from rnic.verbs.ece import ECE
from rnic.verbs.pd import PD
from rnic.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from rnic.verbs.qp_ex import QPEx, QPInitAttrEx
from rnic.verbs.srq import SRQ
from rnic.wire import PortSpace, RejReason, service_id

DEFAULT_BACKLOG = 1024
_NOWHERE = Inet(IPv4Address(0), 0)
_QP_TYPES = {PortSpace.TCP: QPType.RC, PortSpace.UDP: QPType.UD, PortSpace.IPOIB: QPType.UD}


class CmId(Messages, SharedReceives):
    """One end of a conversation; create_id() makes it, destroy() ends it; a context manager.

    With an event channel calls return at once, and an event tells how they ended. Without one every call
    waits for its event, which is then `event`, and raises when it says that it failed: VerbsError with the
    event's errno, ECONNREFUSED for REJECTED.
    """

    def __init__(
        self,
        channel: EventChannel | None,
        ps: PortSpace,
        qp_type: QPType,
        context: object,
        timing: Timing,
    ) -> None:
        self.sync = self._owns_channel = channel is None
        self.channel = channel or EventChannel()
        self.ps = ps
        self.qp_type = qp_type
        self.context = context
        """The caller's own."""
        self.timing = timing
        self.event: Event | None = None
        """Without a channel, the event that the last call waited for."""
        self.state = IdState.IDLE
        self.local = _NOWHERE
        self.remote: Inet | None = None
        self.agent: Agent | None = None
        self.link: Link | None = None
        self.exchange: Exchange | None = None
        self.qp: QP | None = None
        """The queue pair that create_qp() made."""
        self.srq: SRQ | None = None
        """The shared receive queue that create_srq() made."""
        self._of_srq = []
        self.pd: PD | None = None
        self.send_cq: nic.CQ | None = None
        self.recv_cq: nic.CQ | None = None
        self.send_cq_channel: nic.CompChannel | None = None
        self.recv_cq_channel: nic.CompChannel | None = None
        self.local_ece = ECE()
        self.offers_ece = False  # set_local_ece() has been called
        self.remote_ece = ECE()
        self.disconnecting = False
        self.asks_for: ConnParam | None = None  # of connect()
        self.asked_at = 0  # ns
        self.question: reach.Question | None = None  # to the network, while the peer does not answer
        self.unacked = 0  # events that were delivered; under the channel's lock
        self.waiting = 0  # requests that nobody has taken yet; likewise
        self.backlog = 0
        self.admission = Admission()  # of one that listens
        self.let_in_by: Admission | None = None  # of one that a request to a listener has made
        self.service: ModuleType = ud if qp_type is QPType.UD else rc
        self.ep_cap: QPCap | None = None
        self.groups: dict[GID, Any] = {}
        self._qkey = UDP_QKEY
        self._agents: list[Agent] = []
        self.claims: list[nic.Listener] = []
        self.calls_from: Agent | None = None  # whose port it has, which it did not bind
        self._own_cqs: list[nic.CQ | nic.CompChannel] = []
        self.options: dict[Option, int] = {}
        self._pid = os.getpid()
        self._destroyed = False
        self.channel.ids.add(self)

    def __repr__(self) -> str:
        remote = f" to {self.remote.ip}:{self.remote.port}" if self.remote else ""
        return f"<CmId {self.ps.name} {self.local.ip}:{self.local.port}{remote} {self.state.name}>"

    # ------------------------------------------------------------------ for the rooms below

    def need_agent(self, verb: str) -> Agent:
        """The agent of its device. EINVAL when it has none yet, ENODEV when that has failed."""
        if self.agent is None:
            raise VerbsError(EINVAL, f"{self!r} has no device yet: bind or resolve an address first", verb)
        self.agent.check(verb)
        return self.agent

    @property
    def packet_life_time(self) -> int:
        """n of 4.096 us * 2**n that a packet can be under way; half the ACK timeout, if that was set."""
        timeout = self.options.get(Option.ACK_TIMEOUT)
        return self.timing.packet_life_time if timeout is None else max(timeout - 1, 0)

    @property
    def is_full(self) -> bool:
        """Whether so many requests wait as the backlog allows."""
        return self.waiting >= self.backlog

    def scope_of(self, agent: Agent, ip: routes.IP) -> int:
        """The scope id of an address of a peer of that device."""
        return agent.ifindex if ip.version == 6 and ip.is_link_local else 0

    def spawn(self, agent: Agent) -> CmId:
        """The id of a request to this one."""
        child = CmId(self.channel, self.ps, self.qp_type, self.context, self.timing)
        try:
            child.options = dict(self.options)
            child._qkey = self._qkey
            child.use(agent)
        except BaseException:
            child.destroy()
            raise
        return child

    def use(self, agent: Agent) -> None:
        """This agent is one of its own."""
        self.agent = agent
        if agent not in self._agents:
            self._agents.append(agent)
            agent.join(self)

    def _expect(self, verb: str, *states: IdState) -> None:
        if self._pid != os.getpid():
            raise VerbsError(EINVAL, f"{self!r} is the parent's: this process was forked", verb)
        if self.state not in states:
            wanted = " or ".join(state.name for state in states)
            raise VerbsError(EINVAL, f"{self!r}: {verb}() needs {wanted}{self._way(states)}", verb)

    def _way(self, wanted: tuple[IdState, ...]) -> str:
        """The calls that lead from its state to one that is wanted, for people; "" when none do."""
        state, calls = self.state, []
        while state not in wanted and state in _NEXT:
            call, state = _NEXT[state]
            if not (self.sync and call == _WAIT):  # its calls wait by themselves
                calls.append(call)
        return f": {', then '.join(calls)}" if calls and state in wanted else ""

    def _check_may_connect(self, verb: str) -> None:
        """EINVAL when there will be no connection that a queue pair could be for."""
        if self.state is IdState.LISTEN:
            text = f"{self!r} listens: the queue pairs of connections are those of the ids of their requests"
            raise VerbsError(EINVAL, text, verb)
        if isinstance(self.exchange, Connection) and self.exchange.state in _ENDED:
            text = f"{self!r}: the connection has ended: {self.exchange.state.name}"
            raise VerbsError(EINVAL, text, verb)

    def put(self, kind: EventType, status: int = 0, **more: Any) -> None:
        """An event of its own, into its channel."""
        self.channel.put(Event(kind, self, status, **more))

    # ------------------------------------------------------------------ waiting, without a channel

    def _complete(self, verb: str) -> None:
        """Without a channel: wait for the event of a call, and raise what it says."""
        if not self.sync:
            return
        self._drop_event()
        event = self.event = self.channel.get_cm_event()
        if event.status or event.event is EventType.REJECTED:
            raise VerbsError(-event.status if event.status < 0 else ECONNREFUSED, event.explain(), verb)

    def _drop_event(self) -> None:
        if self.event is not None:
            self.event.ack()
            self.event = None

    # ------------------------------------------------------------------ addresses

    def bind_addr(self, addr: SockAddr) -> None:
        """Take a local address and port (rdma_bind_addr(3)); port 0: one that is free on this host.

        "0.0.0.0" and "::" stand for every device. EADDRINUSE when another id of this host has the port,
        EADDRNOTAVAIL when no device has the address.
        """
        local = parse(addr, "bind_addr")
        with registry.lock:
            self._expect("bind_addr", IdState.IDLE)
            addresses.bind(self, local, "bind_addr")

    def resolve_addr(self, src: SockAddr | None, dst: SockAddr, timeout_ms: int = 2000) -> None:
        """Find the device, the local address and the next hop to an address (rdma_resolve_addr(3)).

        ADDR_RESOLVED, or ADDR_ERROR with a negative errno as its status: ENETUNREACH without a route,
        ENODEV without a device, ETIMEDOUT when the next hop does not answer ARP or neighbour discovery.
        """
        check_timeout(timeout_ms, "resolve_addr")
        remote = parse(dst, "resolve_addr")
        local = parse(src, "resolve_addr") if src else None
        with registry.lock:
            self._expect("resolve_addr", IdState.IDLE, IdState.ADDR_BOUND)
            told = local is not None and (local.port or not local.ip.is_unspecified)
            if local is not None and told and self.state is IdState.IDLE:
                addresses.bind(self, local, "resolve_addr")
            self.remote = remote
            self.state = IdState.ADDR_QUERY
            addresses.resolve(self, remote, timeout_ms)
        self._complete("resolve_addr")

    def resolve_route(self, timeout_ms: int = 2000) -> None:
        """Find the path to the address (rdma_resolve_route(3)): over RoCE the device knows it already.

        ROUTE_RESOLVED, or ROUTE_ERROR: ENETUNREACH, ENODEV ... when route or address have gone meanwhile.
        """
        check_timeout(timeout_ms, "resolve_route")
        with registry.lock:
            self._expect("resolve_route", IdState.ADDR_RESOLVED)
            addresses.resolve_route(self)
        self._complete("resolve_route")

    def get_local_addr(self) -> SockAddr:
        """The local address and port (rdma_get_local_addr(3))."""
        return self.local.sockaddr

    def get_peer_addr(self) -> SockAddr | None:
        """The peer's address and port, None before there is one (rdma_get_peer_addr(3))."""
        return self.remote.sockaddr if self.remote else None

    def get_src_port(self) -> int:
        """The local port, 0 before there is one (rdma_get_src_port(3))."""
        return self.local.port

    def get_dst_port(self) -> int:
        """The peer's port, 0 before there is one (rdma_get_dst_port(3))."""
        return self.remote.port if self.remote else 0

    @property
    def verbs(self) -> Context | None:
        """The device's context, None before the id has one; ids of one device share it."""
        return self.agent.context if self.agent else None

    @property
    def port_num(self) -> int:
        """The device's port, 0 before the id has one."""
        return 1 if self.agent else 0

    # ------------------------------------------------------------------ connecting

    def listen(
        self,
        backlog: int = 0,
        *,
        max_connections: int | None = None,
        max_half_open: int = MAX_HALF_OPEN,
        handshake_timeout: float = HANDSHAKE_TIMEOUT,
    ) -> None:
        """Take requests (rdma_listen(3)); each makes an event CONNECT_REQUEST with an id of its own.

        `backlog` is how many may wait to be seen, 0: 1024; more are refused, as the kernel refuses them. An
        id that is not bound gets a free port of every device.

        `max_connections` bounds the ids of requests that are not destroyed, None: no limit; more are refused
        with reason 3, no resources. `max_half_open` bounds those of them that were accepted and wait for the
        peer's last message: one more, and the one that waits longest is UNREACHABLE. That is also a request
        that is not accepted `handshake_timeout` seconds after it came, and a connection that is not
        established so long after that (status ETIMEDOUT).
        """
        admission = Admission(max_connections, max_half_open, handshake_timeout)
        with registry.lock:
            self._expect("listen", IdState.IDLE, IdState.ADDR_BOUND)
            if self.state is IdState.IDLE:
                addresses.bind(self, _NOWHERE, "listen")
            if not self.claims:
                raise VerbsError(EINVAL, "resolve_addr() has begun something else", "listen")
            self.admission = admission
            self.backlog = backlog if backlog > 0 else DEFAULT_BACKLOG
            for agent in self._agents:
                agent.serve(service_id(self.ps, self.local.port), self)
            self.state = IdState.LISTEN

    def get_request(self) -> CmId:
        """Wait for a request to an id without a channel (rdma_get_request(3)); its id has none either.

        The request's event, with the peer's private data, is the new id's `event`. A request for whose id
        there is no descriptor or memory is refused (reason 3, no resources), and VerbsError names the limit.
        """
        if not self.sync:
            raise VerbsError(EINVAL, "the id has an event channel: get_cm_event() tells", "get_request")
        self._expect("get_request", IdState.LISTEN)
        self._drop_event()
        event = self.channel.get_cm_event()
        if event.event is not EventType.CONNECT_REQUEST:
            event.ack()
            raise VerbsError(abs(event.status) or EINVAL, event.event.name, "get_request")
        event.ack()
        child = event.id
        try:
            child.migrate_id(None)
            child.event = event
            if self.ep_cap is not None:
                child.create_qp(self.pd, cap=self.ep_cap)
        except (
            BaseException
        ):  # no descriptors, or no memory: this request is refused, and the next one may do
            with contextlib.suppress(VerbsError):
                child.reject_busy()
            child.destroy()
            raise
        return child

    def connect(self, param: ConnParam | UDParam | None = None) -> None:
        """Ask the peer for a connection (rdma_connect(3)), or where a datagram service is.

        ESTABLISHED; CONNECT_RESPONSE when the queue pair is not the id's own; REJECTED, UNREACHABLE or
        CONNECT_ERROR. 56 bytes of private data at most, 180 for a datagram service.
        """
        with registry.lock:
            self._expect("connect", IdState.ROUTE_RESOLVED)
            self.service.connect(self, param or ConnParam())
            self.state = IdState.CONNECT
        self._complete("connect")

    def accept(self, param: ConnParam | UDParam | None = None) -> None:
        """Agree to a request (rdma_accept(3)); ESTABLISHED follows. 196 bytes of private data at most.

        None: what the peer asked for, as far as the device can do it.
        """
        with registry.lock:
            self._expect("accept", IdState.CONNECT)
            self.service.accept(self, param)
        if self.qp_type is not QPType.UD:
            self._complete("accept")

    def reject(self, private_data: bytes = b"") -> None:
        """Refuse a request, or a response (rdma_reject(3)). 148 bytes of private data at most."""
        with registry.lock:
            self._expect("reject", IdState.CONNECT)
            self.service.reject(self, private_data)

    def reject_busy(self) -> None:
        """Refuse a request for want of descriptors, memory or threads: reason 3, no resources.

        (librdmacm's programs cannot say so; what a datagram service answers is "no queue pair".)
        """
        with registry.lock:
            self._expect("reject_busy", IdState.CONNECT)
            self.service.reject_busy(self)

    def reject_ece(self, private_data: bytes = b"") -> None:
        """Refuse a connection because of the peer's vendor options (rdma_reject_ece(3)): reason 35."""
        with registry.lock:
            self._expect("reject_ece", IdState.CONNECT)
            if self.qp_type is QPType.UD:
                text = "the answer to a datagram's question has no such reason: use reject()"
                raise VerbsError(EINVAL, text, "reject_ece")
            rc.reject(self, private_data, RejReason.VENDOR_OPTION_NOT_SUPPORTED)

    def establish(self) -> None:
        """Complete a connection after CONNECT_RESPONSE (rdma_establish(3)); no event follows here."""
        with registry.lock:
            self._expect("establish", IdState.CONNECT)
            rc.establish(self)

    def notify(self, event: AsyncEventType) -> None:
        """Tell of something that happened to the queue pair (rdma_notify(3)).

        COMM_EST completes a connection whose last message was lost, EISCONN: it is complete; an error of the
        queue pair, which the kernel's RDMA-CM does not take, ends it. EINVAL for other events, and for a
        connection that cannot be completed or ended.
        """
        with registry.lock:
            self._expect("notify", IdState.CONNECT, IdState.DISCONNECT)
            if event == AsyncEventType.COMM_EST:
                rc.communication_established(self)
            elif event in _FATAL and self._is_connected:
                self._broke_down()
            else:
                raise VerbsError(EINVAL, f"{self!r}: {event!r} changes nothing", "notify")

    @property
    def _is_connected(self) -> bool:
        established = self.exchange is not None and self.exchange.state is State.ESTABLISHED
        return self.state is IdState.CONNECT and established

    def watch(self, now: int) -> bool:
        """Look whether an error of the queue pair has ended the connection; False: nothing to look at."""
        if self.state is not IdState.CONNECT or self.qp is None or self.qp.closed:
            return False
        if self._is_connected and self.qp.state is QPState.ERR:
            self._broke_down()
        rc.wonder(self, now)
        return True

    def _broke_down(self) -> None:
        """Its queue pair is in the error state: the peer is told, and so is the application."""
        if isinstance(self.exchange, Connection):
            self.state = IdState.DISCONNECT
            self.put(EventType.DISCONNECTED, param=NOTHING_SAID)
            rc.disconnect(self)

    def disconnect(self, private_data: bytes = b"") -> None:
        """End a connection, or agree to its end (rdma_disconnect(3)); the queue pair goes to ERR.

        DISCONNECTED follows, once, and TIMEWAIT_EXIT when the queue pair may be used again. During the
        handshake it follows when that is done, unless it fails, which another event tells. Of a connection
        that has failed nothing follows, nor of an id that listens. Private data, which librdmacm does not
        have here, goes with the DREQ: 220 bytes at most.
        """
        with registry.lock:
            if self.state is IdState.LISTEN:
                return
            self._expect("disconnect", IdState.CONNECT, IdState.DISCONNECT)
            follows = rc.disconnect(self, private_data)
            follows = follows or (self.state is IdState.DISCONNECT and self.channel.has(self))
        if follows:
            self._complete("disconnect")

    def join_multicast(self, addr: SockAddr, context: object = None) -> None:
        """Join a group as a full member (rdma_join_multicast(3)): the id's queue pair receives from it.

        MULTICAST_JOIN tells the way there, queue pair number and Q_Key; or MULTICAST_ERROR.
        """
        self.join_multicast_ex(addr, JoinFlags.FULLMEMBER, context)

    def join_multicast_ex(self, addr: SockAddr, flags: JoinFlags, context: object = None) -> None:
        """Join a group, or send to it only (rdma_join_multicast_ex(3))."""
        group = multicast.group_of(addr, "join_multicast")
        with registry.lock:
            self._expect("join_multicast", *_CAN_JOIN)
            if self.qp_type is not QPType.UD:
                raise VerbsError(EINVAL, f"{self!r} is not for datagrams", "join_multicast")
            multicast.join(self, group, JoinFlags(flags), context)
        self._complete("join_multicast")

    def leave_multicast(self, addr: SockAddr) -> None:
        """Leave a group (rdma_leave_multicast(3))."""
        group = multicast.group_of(addr, "leave_multicast")
        with registry.lock:
            multicast.leave(self, group)

    # ------------------------------------------------------------------ options

    def set_option(self, option: Option, value: int) -> None:
        """Set an option (rdma_set_option(3)): TOS before the route is resolved, REUSEADDR and AFONLY before
        binding, and ACK_TIMEOUT.

        ACK_TIMEOUT is the queue pair's, 4.096 us * 2**value.
        """
        option = Option(option)
        limit = {Option.TOS: 255, Option.ACK_TIMEOUT: 31}.get(option, 1)
        if not 0 <= value <= limit:
            raise VerbsError(EINVAL, f"{option.name} is 0 to {limit}, not {value}", "set_option")
        with registry.lock:
            if option in (Option.REUSEADDR, Option.AFONLY):
                self._expect("set_option", IdState.IDLE)
            self.options[option] = value

    def set_local_ece(self, ece: ECE) -> None:
        """Offer a vendor's options to the peer (rdma_set_local_ece(3)): before connect() or accept().

        Without it, those of the queue pair that create_qp() has made are offered, and of a peer's offer
        accept() answers what that queue pair accepts (QP.set_ece()).
        """
        self.local_ece, self.offers_ece = ece, True

    def get_remote_ece(self) -> ECE:
        """What the peer has offered (rdma_get_remote_ece(3))."""
        return self.remote_ece

    def migrate_id(self, channel: EventChannel | None) -> None:
        """Report to another channel, None: to none, every call waits (rdma_migrate_id(3)).

        Events that wait go along. EBUSY while delivered ones are not acknowledged.
        """
        target = channel or EventChannel()
        self._drop_event()
        with registry.lock, self.channel.lock:
            self._check_acked("migrate_id")
            old, waiting = self.channel, self.channel.take_of(self)
            old.ids.discard(self)
            owned, self.channel = self._owns_channel, target
            self.sync = self._owns_channel = channel is None
            target.ids.add(self)
            for event in waiting:
                target.put(event)
        if owned:
            old.close()

    def write_cm_event(self, event: EventType, status: int = 0, arg: object = None) -> None:
        """Put an event of one's own into the channel (rdma_write_cm_event(3)); USER alone."""
        if event is not EventType.USER:
            raise VerbsError(EINVAL, f"{event.name} is not yours to write, USER is", "write_cm_event")
        self.put(event, status, arg=arg)

    # ------------------------------------------------------------------ queue pairs

    def create_qp(
        self,
        pd: PD | None = None,
        init_attr: QPInitAttr | None = None,
        *,
        cap: QPCap | None = None,
        sq_sig_all: bool = False,
        qp_context: object = None,
    ) -> QP:
        """Make the id's queue pair (rdma_create_qp(3)); from then on the id leads it from state to state.

        Without a protection domain the device's is used, which ids share. Without `init_attr` completion
        queues and channels are made, too: send_cq, recv_cq, send_cq_channel, recv_cq_channel.  It takes from
        the id's shared receive queue, if there is one and `init_attr` names none.
        """
        with registry.lock:
            self._check_may_connect("create_qp")
            agent = self.need_agent("create_qp")
            if self.qp is not None:
                raise VerbsError(EINVAL, "the id has a queue pair", "create_qp")
            pd = pd or self.pd or agent.pd
            if pd.context is not agent.context:
                raise VerbsError(EINVAL, "the protection domain is of another context", "create_qp")
            qkey = self.qkey("create_qp") if self.qp_type is QPType.UD else 0
            if self.srq is not None and self.srq.xrcd is not None:
                text = "the id's shared receive queue is an XRC one, which connections do not take from"
                raise VerbsError(EINVAL, text, "create_qp")
            if init_attr is None:
                init_attr = self._make_cqs(agent, cap or QPCap(), sq_sig_all, qp_context)
            if init_attr.srq is None:
                init_attr = replace(init_attr, srq=self.srq)
            try:
                qp = _new_qp(pd, init_attr)
                link_.to_init(qp, qkey)
            except BaseException:
                self._drop_cqs()
                raise
            self.qp, self.pd = qp, pd
            if not self.offers_ece:
                self.local_ece = qp.query_ece()
            self.send_cq, self.recv_cq = init_attr.send_cq, init_attr.recv_cq
            return qp

    def create_qp_ex(self, init_attr: QPInitAttrEx) -> QPEx:
        """As create_qp(), a queue pair with builders of work requests (rdma_create_qp_ex(3)).

        Without init_attr.pd it is of the device's protection domain.
        """
        return cast(QPEx, self.create_qp(cast("PD | None", init_attr.pd), init_attr))

    def _make_cqs(self, agent: Agent, cap: QPCap, sq_sig_all: bool, qp_context: object) -> QPInitAttr:
        context = agent.context
        self.send_cq_channel = context.create_comp_channel()
        send_cq = context.create_cq(max(cap.max_send_wr, 1), self.send_cq_channel, self)
        self.recv_cq_channel = context.create_comp_channel()
        recv_cq = context.create_cq(max(cap.max_recv_wr, 1), self.recv_cq_channel, self)
        self._own_cqs = [send_cq, recv_cq, self.send_cq_channel, self.recv_cq_channel]
        return QPInitAttr(send_cq, recv_cq, self.qp_type, sq_sig_all, cap, qp_context)

    def destroy_qp(self) -> None:
        """Destroy the id's queue pair, and the completion queues made with it (rdma_destroy_qp(3))."""
        with registry.lock:
            for group, leave in list(self.groups.items()):
                leave()
                self.groups.pop(group, None)
            if self.qp is not None:
                self.qp.close()
                self.qp = None
            self._drop_cqs()

    def _drop_cqs(self) -> None:
        if self._own_cqs:
            for one in self._own_cqs:
                one.close()
            self._own_cqs = []
            self.send_cq = self.recv_cq = self.send_cq_channel = self.recv_cq_channel = None

    def qkey(self, verb: str) -> int:
        """The Q_Key of the port space; that of IPOIB is a subnet manager's to give."""
        if self.ps is PortSpace.IPOIB:
            text = "the Q_Key of port space IPOIB is that of an InfiniBand broadcast group, which RoCE lacks"
            raise VerbsError(EADDRNOTAVAIL, text, verb)
        return self._qkey

    def init_qp_attr(self, state: QPState) -> QPAttr:
        """The attributes that lead a queue pair of one's own to INIT, RTR, RTS (rdma_init_qp_attr(3)).

        EINVAL when the peer has not answered yet, and when the connection has ended.
        """
        with registry.lock:
            self._check_may_connect("init_qp_attr")
            self.need_agent("init_qp_attr")
            if self.qp_type is QPType.UD:
                return link_.ud_attr(state, self.qkey("init_qp_attr"))
            return link_.conn_attr(self.link, state, "init_qp_attr")

    def statistics(self) -> Statistics:
        """What the communication manager of its device has sent, received and dropped so far."""
        with registry.lock:
            return self.need_agent("statistics").cm.statistics()

    # ------------------------------------------------------------------ the end

    def _check_acked(self, verb: str) -> None:
        self.channel.settle_dropped()
        if self.unacked:
            text = f"{self.unacked} events of {self!r} are not acknowledged: call ack() on each first"
            raise VerbsError(EBUSY, text, verb)

    def destroy(self) -> None:
        """End it (rdma_destroy_id(3)): a connection is released, requests that wait are refused.

        EBUSY while events that were delivered are not acknowledged (librdmacm would wait, for ever when this
        thread is to acknowledge them). Events that wait in the channel go. Its own queue pair goes, too.
        What an exception has interrupted, a signal's for one, the next call completes.
        """
        self._drop_event()
        if self._pid != os.getpid():
            self.state = IdState.DESTROYING
            return
        with registry.lock:
            if self._destroyed:
                return
            with self.channel.lock:
                self._check_acked("destroy_id")
                self.destroy_qp()
                self.destroy_srq()
                self.state = IdState.DESTROYING
                self._drop_events()
            self.abandon()
            if self._owns_channel:
                self.channel.drop_fd()
            self._destroyed = True

    def _drop_events(self) -> None:
        """Those that nobody has got; requests to it are refused."""
        for event in self.channel.events_of(self):
            if event.event is EventType.CONNECT_REQUEST and event.listen_id is self:
                event.id.destroy()
        self.channel.take_of(self)
        self.channel.ids.discard(self)

    def silence(self) -> int:
        """Why the peer does not answer, as far as the network says it: an errno, or 0; takes up to 50 ms."""
        with registry.lock:  # the agent takes the question back when the peer answers
            said = self.question.answer() if self.question else 0
        return said or (reach.why(self.remote.ip, None, self.remote.scope) if self.remote else 0)

    def later(self, call: Callable[[], object]) -> None:
        """Another thread calls something: for finalisers, which may take no lock. Not in a forked child."""
        if self._agents and self._pid == os.getpid():
            self._agents[0].later(call)

    def abandon(self) -> None:
        """Let go of all that others see of it; each step can be taken again."""
        now = monotonic_ns()
        if self.let_in_by is not None:
            self.let_in_by.forget(self)
        for agent in self._agents:
            agent.unserve(service_id(self.ps, self.local.port), self)
        if self.exchange is not None:
            if not self.exchange.closed:
                self.exchange.close(now)
            self.exchange.context = None
        if self.question is not None:
            self.question.answer()  # while it can be heard: who gives up may want to know
            self.question.close()
        if self.calls_from is not None and not self.calls_from.ended:
            self.calls_from.ports.give(self.ps, self.local.ip, self.local.port)
        self.calls_from = None
        for claim in self.claims:
            claim.close()
        self.claims = []
        while self._agents:
            agent = self._agents[-1]
            if agent.failed is None and not agent.ended:
                agent.flush()
            agent.leave(self)
            self._agents.pop()

    def device_removed(self, agent: Agent, status: int = 0) -> None:
        """A device is gone; one that listens on others, too, goes on there."""
        if self.agent is None and len(self._agents) > 1:
            self._agents.remove(agent)
            agent.leave(self)
            return
        self.state = IdState.DEVICE_REMOVAL
        self.put(EventType.DEVICE_REMOVAL, status)

    def address_changed(self) -> None:
        """Its local address is not the device's any more."""
        self.put(EventType.ADDR_CHANGE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.destroy()
        except VerbsError:
            if kind is None:
                raise

    def __del__(self) -> None:
        if not getattr(self, "_destroyed", True) and self._pid == os.getpid():
            # No lock here: an agent knows its ids, so this one has none, and nobody else sees it.
            warnings.warn(f"{self!r} was not destroyed", ResourceWarning, stacklevel=2, source=self)
            if self._owns_channel:
                self.channel.drop_fd()


_WAIT = "wait for ADDR_RESOLVED"
_NEXT = {  # what a caller does in a state that is on the way to a connection, and the state that follows
    IdState.IDLE: ("call resolve_addr()", IdState.ADDR_QUERY),
    IdState.ADDR_BOUND: ("call resolve_addr()", IdState.ADDR_QUERY),
    IdState.ADDR_QUERY: (_WAIT, IdState.ADDR_RESOLVED),
    IdState.ADDR_RESOLVED: ("call resolve_route()", IdState.ROUTE_RESOLVED),
}
_CAN_JOIN = (IdState.ADDR_BOUND, IdState.ADDR_RESOLVED, IdState.ROUTE_RESOLVED, IdState.CONNECT)
_ENDED = (State.DREQ_SENT, State.DREQ_RCVD, State.TIMEWAIT, State.IDLE)
_FATAL = (
    AsyncEventType.QP_FATAL,
    AsyncEventType.QP_REQ_ERR,
    AsyncEventType.QP_ACCESS_ERR,
    AsyncEventType.DEVICE_FATAL,
)


def create_id(
    channel: EventChannel | None = None,
    ps: PortSpace = PortSpace.TCP,
    *,
    qp_type: QPType | None = None,
    context: object = None,
    timing: Timing | None = None,
) -> CmId:
    """A new id (rdma_create_id(3)); without a channel its calls wait.

    TCP is for connections, UDP for datagrams; IB is for either, as `qp_type` says (RC when it does not);
    IPOIB is for datagrams of IP over InfiniBand. `timing` is how long the peer's answers are waited for.
    """
    ps = PortSpace(ps)
    kind = _QP_TYPES.get(ps) or qp_type or QPType.RC
    if qp_type not in (None, kind) or kind not in (QPType.RC, QPType.UD):
        raise VerbsError(EINVAL, f"port space {ps.name} does not go with {qp_type!r}", "create_id")
    return CmId(channel, ps, kind, context, timing or Timing())


def _new_qp(pd: PD, init_attr: QPInitAttr) -> QP:
    if isinstance(init_attr, QPInitAttrEx):
        return QPEx.create(replace(init_attr, pd=pd))
    return pd.create_qp(init_attr)
