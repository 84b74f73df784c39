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
    """A communication identifier: one end of a connection or datagram service; create_id() makes it,
    destroy() ends it.

    With an event channel, calls return at once, and an event reports the result. Without a channel, every
    call waits for its event, which is then in `event`. If the event reports a failure, the call raises
    VerbsError with the event's errno; for REJECTED that is ECONNREFUSED. An id is a context manager.
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
        self.is_settled = False
        """It is connected, and no queue pair has failed since watch() looked at its own."""
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
        """The agent of the id's device. Raises VerbsError: EINVAL if the id has no device yet, ENODEV if the
        agent has failed.
        """
        if self.agent is None:
            raise VerbsError(EINVAL, f"{self!r} has no device yet: bind or resolve an address first", verb)
        self.agent.check(verb)
        return self.agent

    @property
    def packet_life_time(self) -> int:
        """How long a packet can be under way, as n of 4.096 us * 2**n; half the ACK timeout, if that was
        set.
        """
        timeout = self.options.get(Option.ACK_TIMEOUT)
        return self.timing.packet_life_time if timeout is None else max(timeout - 1, 0)

    @property
    def is_full(self) -> bool:
        """Whether as many requests wait as the backlog allows."""
        return self.waiting >= self.backlog

    def scope_of(self, agent: Agent, ip: routes.IP) -> int:
        """The scope id for an address of a peer of this device."""
        return agent.ifindex if ip.version == 6 and ip.is_link_local else 0

    def spawn(self, agent: Agent) -> CmId:
        """Make the id of a request to this listener."""
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
        """Count this agent as one that the id uses."""
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
        """The calls that lead from the id's state to a wanted one, in words; "" if none do."""
        state, calls = self.state, []
        while state not in wanted and state in _NEXT:
            call, state = _NEXT[state]
            if not (self.sync and call == _WAIT):  # its calls wait by themselves
                calls.append(call)
        return f": {', then '.join(calls)}" if calls and state in wanted else ""

    def _check_may_connect(self, verb: str) -> None:
        """Raise EINVAL if the id can have no connection for a queue pair."""
        if self.state is IdState.LISTEN:
            text = f"{self!r} listens: the queue pairs of connections are those of the ids of their requests"
            raise VerbsError(EINVAL, text, verb)
        if isinstance(self.exchange, Connection) and self.exchange.state in _ENDED:
            text = f"{self!r}: the connection has ended: {self.exchange.state.name}"
            raise VerbsError(EINVAL, text, verb)

    def put(self, kind: EventType, status: int = 0, **more: Any) -> None:
        """Add an event of this id to its channel."""
        self.channel.put(Event(kind, self, status, **more))

    # ------------------------------------------------------------------ waiting, without a channel

    def _complete(self, verb: str) -> None:
        """Without a channel: wait for the event of a call, and raise the error that it reports."""
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
        """Bind the id to a local address and port (rdma_bind_addr(3)); port 0 chooses a free one.

        "0.0.0.0" and "::" mean every device. Raises VerbsError: EADDRINUSE if another id of this host has the
        port, EADDRNOTAVAIL if no device has the address.
        """
        local = parse(addr, "bind_addr")
        with registry.lock:
            self._expect("bind_addr", IdState.IDLE)
            addresses.bind(self, local, "bind_addr")

    def resolve_addr(self, src: SockAddr | None, dst: SockAddr, timeout_ms: int = 2000) -> None:
        """Find the device, the local address and the next hop for an address (rdma_resolve_addr(3)).

        Event: ADDR_RESOLVED, or ADDR_ERROR with a negative errno as its status: ENETUNREACH without a route,
        ENODEV without a device, ETIMEDOUT if the next hop does not answer ARP or neighbour discovery.
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
        """Find the path to the address (rdma_resolve_route(3)). Over RoCE the device knows it already.

        Event: ROUTE_RESOLVED, or ROUTE_ERROR (ENETUNREACH, ENODEV ...) if route or address were removed since
        resolve_addr().
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
        """The peer's address and port, None if there is none yet (rdma_get_peer_addr(3))."""
        return self.remote.sockaddr if self.remote else None

    def get_src_port(self) -> int:
        """The local port, 0 if there is none yet (rdma_get_src_port(3))."""
        return self.local.port

    def get_dst_port(self) -> int:
        """The peer's port, 0 if there is none yet (rdma_get_dst_port(3))."""
        return self.remote.port if self.remote else 0

    @property
    def verbs(self) -> Context | None:
        """The context of the id's device, None if there is none yet; ids of one device share it."""
        return self.agent.context if self.agent else None

    @property
    def port_num(self) -> int:
        """The device's port, 0 if the id has no device yet."""
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
        """Listen for requests (rdma_listen(3)); each one makes an event CONNECT_REQUEST with a new id.

        `backlog` is the number of requests that may wait for the program, 0: 1024. Further ones are refused,
        as the kernel does. An id that is not bound gets a free port of every device.

        `max_connections` limits the ids of requests that are not destroyed yet, None: no limit. Further
        requests are refused with reason 3, no resources. `max_half_open` limits the accepted ids that wait
        for the peer's last message. One more makes the one that has waited longest UNREACHABLE.
        `handshake_timeout` (seconds) limits the time from a request to accept(), and from accept() to
        ESTABLISHED. After it the id is UNREACHABLE, with status ETIMEDOUT.
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
        """Wait for a request to an id without a channel, and return its new id (rdma_get_request(3)).

        The new id has no channel either. Its `event` is the request, with the peer's private data. If there
        is no descriptor or memory for the new id, the request is refused (reason 3, no resources), and
        VerbsError names the limit.
        """
        if not self.sync:
            raise VerbsError(EINVAL, "the id has an event channel: call get_cm_event()", "get_request")
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
        """Request a connection from the peer, or look up its datagram service (rdma_connect(3)).

        Event: ESTABLISHED, or CONNECT_RESPONSE if the queue pair is not the id's own; on failure REJECTED,
        UNREACHABLE or CONNECT_ERROR. Private data has at most 56 bytes, 180 for a datagram service.
        """
        with registry.lock:
            self._expect("connect", IdState.ROUTE_RESOLVED)
            self.service.connect(self, param or ConnParam())
            self.state = IdState.CONNECT
        self._complete("connect")

    def accept(self, param: ConnParam | UDParam | None = None) -> None:
        """Accept a request (rdma_accept(3)); the event ESTABLISHED follows. Private data has at most 196
        bytes.

        None as `param` accepts what the peer asked for, as far as the device can do it.
        """
        with registry.lock:
            self._expect("accept", IdState.CONNECT)
            self.service.accept(self, param)
        if self.qp_type is not QPType.UD:
            self._complete("accept")

    def reject(self, private_data: bytes = b"") -> None:
        """Refuse a request or a response (rdma_reject(3)). Private data has at most 148 bytes."""
        with registry.lock:
            self._expect("reject", IdState.CONNECT)
            self.service.reject(self, private_data)

    def reject_busy(self) -> None:
        """Refuse a request because descriptors, memory or threads are missing: reason 3, no resources.

        librdmacm has no such call. A datagram service answers "no queue pair".
        """
        with registry.lock:
            self._expect("reject_busy", IdState.CONNECT)
            self.service.reject_busy(self)

    def reject_ece(self, private_data: bytes = b"") -> None:
        """Refuse a connection because of the peer's vendor options (rdma_reject_ece(3)): reason 35."""
        with registry.lock:
            self._expect("reject_ece", IdState.CONNECT)
            if self.qp_type is QPType.UD:
                text = "a SIDR_REP has no such reason: use reject()"
                raise VerbsError(EINVAL, text, "reject_ece")
            rc.reject(self, private_data, RejReason.VENDOR_OPTION_NOT_SUPPORTED)

    def establish(self) -> None:
        """Complete a connection after CONNECT_RESPONSE (rdma_establish(3)); no event follows at this end."""
        with registry.lock:
            self._expect("establish", IdState.CONNECT)
            rc.establish(self)

    def notify(self, event: AsyncEventType) -> None:
        """Report an event of the queue pair to RDMA-CM (rdma_notify(3)).

        COMM_EST completes a connection whose last message was lost; EISCONN means that it is complete
        already. An error of the queue pair ends the connection (the kernel's RDMA-CM does not accept these
        events). Raises VerbsError: EINVAL for other events, and for a connection that cannot be completed or
        ended.
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
        """Check whether an error of the queue pair has ended the connection. Returns False if there is
        nothing to check.
        """
        if self.state is not IdState.CONNECT or self.qp is None or self.qp.closed:
            return False
        if not self._is_connected:
            rc.wonder(self, now)
        elif self.qp.state is QPState.ERR:
            self._broke_down()
        else:
            self.is_settled = True
        return True

    def _broke_down(self) -> None:
        """The queue pair is in the error state: tell the peer and the application."""
        if isinstance(self.exchange, Connection):
            self.state = IdState.DISCONNECT
            self.put(EventType.DISCONNECTED, param=NOTHING_SAID)
            rc.disconnect(self)

    def disconnect(self, private_data: bytes = b"") -> None:
        """End a connection, or confirm the peer's disconnect (rdma_disconnect(3)); the queue pair moves to
        ERR.

        The event DISCONNECTED follows once, and TIMEWAIT_EXIT when the queue pair may be used again. During
        the handshake, DISCONNECTED follows when the handshake has succeeded; if the handshake fails, another
        event reports that. No event follows for a connection that has failed, or for an id that listens.
        Private data has at most 220 bytes, and goes with the DREQ; librdmacm does not have it here.
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
        """Join a multicast group as a full member (rdma_join_multicast(3)): the id's queue pair receives its
        datagrams.

        Event: MULTICAST_JOIN with the path to the group, queue pair number and Q_Key; or MULTICAST_ERROR.
        """
        self.join_multicast_ex(addr, JoinFlags.FULLMEMBER, context)

    def join_multicast_ex(self, addr: SockAddr, flags: JoinFlags, context: object = None) -> None:
        """Join a multicast group, to receive and send or to send only (rdma_join_multicast_ex(3))."""
        group = multicast.group_of(addr, "join_multicast")
        with registry.lock:
            self._expect("join_multicast", *_CAN_JOIN)
            if self.qp_type is not QPType.UD:
                raise VerbsError(EINVAL, f"{self!r} is not for datagrams", "join_multicast")
            multicast.join(self, group, JoinFlags(flags), context)
        self._complete("join_multicast")

    def leave_multicast(self, addr: SockAddr) -> None:
        """Leave a multicast group (rdma_leave_multicast(3))."""
        group = multicast.group_of(addr, "leave_multicast")
        with registry.lock:
            multicast.leave(self, group)

    # ------------------------------------------------------------------ options

    def set_option(self, option: Option, value: int) -> None:
        """Set an option (rdma_set_option(3)).

        Set TOS before the route is resolved, REUSEADDR and AFONLY before bind_addr(). ACK_TIMEOUT is the
        timeout of the queue pair, 4.096 us * 2**value.
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
        """Offer a vendor's options to the peer (rdma_set_local_ece(3)); call it before connect() or accept().

        Without this call, connect() offers the options of the queue pair that create_qp() made, and accept()
        answers with those that the queue pair accepts (QP.set_ece()).
        """
        self.local_ece, self.offers_ece = ece, True

    def get_remote_ece(self) -> ECE:
        """The vendor options that the peer has offered (rdma_get_remote_ece(3))."""
        return self.remote_ece

    def migrate_id(self, channel: EventChannel | None) -> None:
        """Report events to another channel (rdma_migrate_id(3)); None makes the id synchronous.

        Waiting events move to the new channel. Raises VerbsError: EBUSY while delivered events are not
        acknowledged.
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
        """Add an event of the program to the channel (rdma_write_cm_event(3)); only USER is allowed."""
        if event is not EventType.USER:
            raise VerbsError(EINVAL, f"{event.name} cannot be written; only USER can", "write_cm_event")
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
        """Create the id's queue pair (rdma_create_qp(3)); the id changes its states from then on.

        Without a protection domain it uses the device's, which ids share. Without `init_attr`, completion
        queues and channels are created, too: send_cq, recv_cq, send_cq_channel, recv_cq_channel. If the id
        has a shared receive queue, and `init_attr` names none, the queue pair uses the id's.
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
        """Create the id's queue pair with builders of work requests (rdma_create_qp_ex(3)).

        Without init_attr.pd it uses the device's protection domain.
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
        """Destroy the id's queue pair, and the completion queues that create_qp() made
        (rdma_destroy_qp(3)).
        """
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
        """The Q_Key of the port space; for IPOIB only a subnet manager can give one."""
        if self.ps is PortSpace.IPOIB:
            text = "the Q_Key of port space IPOIB is that of an InfiniBand broadcast group, which RoCE lacks"
            raise VerbsError(EADDRNOTAVAIL, text, verb)
        return self._qkey

    def init_qp_attr(self, state: QPState) -> QPAttr:
        """The attributes that move a queue pair of the program to INIT, RTR or RTS (rdma_init_qp_attr(3)).

        Raises VerbsError: EINVAL if the peer has not answered yet, or the connection has ended.
        """
        with registry.lock:
            self._check_may_connect("init_qp_attr")
            self.need_agent("init_qp_attr")
            if self.qp_type is QPType.UD:
                return link_.ud_attr(state, self.qkey("init_qp_attr"))
            return link_.conn_attr(self.link, state, "init_qp_attr")

    def statistics(self) -> Statistics:
        """The counters of the device's communication manager: messages sent, received and dropped."""
        with registry.lock:
            return self.need_agent("statistics").cm.statistics()

    # ------------------------------------------------------------------ the end

    def _check_acked(self, verb: str) -> None:
        self.channel.settle_dropped()
        if self.unacked:
            text = f"{self.unacked} events of {self!r} are not acknowledged: call ack() on each first"
            raise VerbsError(EBUSY, text, verb)

    def destroy(self) -> None:
        """Destroy the id (rdma_destroy_id(3)): its connection is released, and waiting requests are refused.

        Raises VerbsError: EBUSY while delivered events are not acknowledged. (librdmacm would wait, for ever
        if this thread is to acknowledge them.) Events that wait in the channel are dropped. The id's own
        queue pair is destroyed, too. If an exception interrupts the call, Ctrl-C for example, the next call
        completes it.
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
        """Drop events that were not delivered, and refuse their requests."""
        for event in self.channel.events_of(self):
            if event.event is EventType.CONNECT_REQUEST and event.listen_id is self:
                event.id.destroy()
        self.channel.take_of(self)
        self.channel.ids.discard(self)

    def silence(self) -> int:
        """Why the peer does not answer, if the network says so: an errno, or 0; takes up to 50 ms."""
        with registry.lock:  # the agent takes the question back when the peer answers
            said = self.question.answer() if self.question else 0
        return said or (reach.why(self.remote.ip, None, self.remote.scope) if self.remote else 0)

    def later(self, call: Callable[[], object]) -> None:
        """Let another thread call a function: for finalisers, which may take no lock. Not in a forked
        child.
        """
        if self._agents and self._pid == os.getpid():
            self._agents[0].later(call)

    def abandon(self) -> None:
        """Give up everything that others see of the id; each step can be repeated."""
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
        """A device was removed; an id that also listens on others continues there."""
        if self.agent is None and len(self._agents) > 1:
            self._agents.remove(agent)
            agent.leave(self)
            return
        self.state = IdState.DEVICE_REMOVAL
        self.put(EventType.DEVICE_REMOVAL, status)

    def address_changed(self) -> None:
        """The device no longer has the id's local address."""
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
    """Create an id (rdma_create_id(3)); without a channel its calls wait for their events.

    TCP is for connections, UDP for datagrams. IB is for either, as `qp_type` says (default: RC). IPOIB is for
    datagrams of IP over InfiniBand. `timing` is how long to wait for the peer's answers.
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
