# SPDX-License-Identifier: Apache-2.0
"""What every part of an id knows: its attributes, its states, and how it waits without a channel."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EADDRNOTAVAIL, ECONNREFUSED, EINVAL
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any, cast

from rnic._nic import nic
from rnic.enums import QPType
from rnic.errors import VerbsError
from rnic.rdmacm import reach
from rnic.rdmacm.admission import Admission
from rnic.rdmacm.agent import Agent, Loop
from rnic.rdmacm.channel import Event, EventChannel
from rnic.rdmacm.names import UDP_QKEY, ConnParam, EventType, IdState, Option, Path, Timing, UDParam
from rnic.rdmacm.service import ENDED, Claim, Connection, Conversation, Order, Phase
from rnic.rdmacm.sockaddr import IP, Inet
from rnic.verbs.ah import GID
from rnic.verbs.device import Device
from rnic.verbs.ece import ECE
from rnic.verbs.pd import PD
from rnic.verbs.qp import QP, QPCap
from rnic.verbs.srq import SRQ
from rnic.wire import PortSpace

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId
    from rnic.verbs.stream import StreamEvent

NOWHERE = Inet(IPv4Address(0), 0)
_WAIT = "wait for ADDR_RESOLVED"
_NEXT = {  # what a caller does in a state that is on the way to a connection, and the state that follows
    IdState.IDLE: ("call resolve_addr()", IdState.ADDR_QUERY),
    IdState.ADDR_BOUND: ("call resolve_addr()", IdState.ADDR_QUERY),
    IdState.ADDR_QUERY: (_WAIT, IdState.ADDR_RESOLVED),
    IdState.ADDR_RESOLVED: ("call resolve_route()", IdState.ROUTE_RESOLVED),
}


class IdBase:
    """The attributes and states of a CmId, which derives from it."""

    orders: list[Order] | None = None
    """None: the queue pairs of its connections are in this process. Else they are in another one, and here is
    what is to be done to them there.
    """

    def __init__(
        self,
        channel: EventChannel | None,
        ps: PortSpace,
        qp_type: QPType,
        context: object,
        timing: Timing,
        device: Device | None = None,
    ) -> None:
        self.sync = self._owns_channel = channel is None
        self.channel = channel or EventChannel()
        self.ps = ps
        self.qp_type = qp_type
        self.context = context
        """The caller's own."""
        self.timing = timing
        self.device = device
        """The device that it is to use; None: any that has its address."""
        self.event: Event | None = None
        """Without a channel, the event that the last call waited for."""
        self.state = IdState.IDLE
        self.local = NOWHERE
        self.remote: Inet | None = None
        self.path: Path | None = None
        """To the peer, when it is resolved or given."""
        self.agent: Agent | None = None
        self.conversation: Conversation | None = None
        """With the peer, from resolve_addr() or a request on."""
        self.offered: ConnParam | UDParam | None = None  # by the peer, in a request
        self.qp: QP | None = None
        """The queue pair that create_qp() made."""
        self.srq: SRQ | None = None
        """The shared receive queue that create_srq() made."""
        self._of_srq: list[nic.CQ | nic.CompChannel | nic.XRCD] = []  # what was made with it
        self.pd: PD | None = None
        self.send_cq: nic.CQ | None = None
        self.recv_cq: nic.CQ | None = None
        self.send_cq_channel: nic.CompChannel | None = None
        self.recv_cq_channel: nic.CompChannel | None = None
        self.local_ece = ECE()
        self.offers_ece = False  # set_local_ece() has been called
        self.remote_ece = ECE()
        self.disconnecting = False
        self.stream_end: StreamEvent | None = None
        """How an iWARP connection has ended; with a Terminate message it says why. None while it has not."""
        self.is_settled = False
        """It is connected, and no queue pair has failed since watch() looked at its own."""
        self.question: reach.Question | None = None  # to the network, while the peer does not answer
        self.unacked = 0  # events that were delivered; under the channel's lock
        self.waiting = 0  # requests that nobody has taken yet; likewise
        self.backlog = 0
        self.admission = Admission()  # of one that listens
        self.let_in_by: Admission | None = None  # of one that a request to a listener has made
        self.ep_cap: QPCap | None = None
        self.groups: dict[GID, Callable[[], None]] = {}
        self._qkey = UDP_QKEY
        self._agents: list[Loop] = []
        self.claims: list[Claim] = []
        self.let_in_on: dict[Loop, Claim] = {}  # devices that a door has opened, and the id's port there
        self.calls_from: Agent | None = None  # whose port it has, which it did not bind
        self._own_cqs: list[nic.CQ | nic.CompChannel] = []
        self.options: dict[Option, int] = {}
        self.seen = False
        """The program has it, and is to destroy it."""
        self._pid = os.getpid()
        self._destroyed = False
        self.channel.ids.add(self.as_id)

    def __repr__(self) -> str:
        remote = f" to {self.remote.ip}:{self.remote.port}" if self.remote else ""
        return f"<CmId {self.ps.name} {self.local.ip}:{self.local.port}{remote} {self.state.name}>"

    @property
    def as_id(self) -> CmId:
        """This id, as events and agents know it."""
        return cast("CmId", self)

    # ------------------------------------------------------------------ for the rooms below

    def need_agent(self, verb: str) -> Agent:
        """The agent of the id's device. Raises VerbsError: EINVAL if the id has no device yet, or was
        destroyed, ENODEV if the agent has failed.
        """
        if self._destroyed:
            raise VerbsError(EINVAL, f"{self!r} was destroyed", verb)
        if self.agent is None:
            raise VerbsError(EINVAL, f"{self!r} has no device yet: bind or resolve an address first", verb)
        self.agent.check(verb)
        return self.agent

    @property
    def packet_life_time(self) -> int:
        """How long a packet can be under way, as n of 4.096 us * 2**n: half the ACK timeout, if that was
        set, else that of the path.
        """
        timeout = self.options.get(Option.ACK_TIMEOUT)
        if timeout is not None:
            return max(timeout - 1, 0)
        own = self.path.packet_life_time if self.path is not None else None
        return self.timing.packet_life_time if own is None else own

    @property
    def is_full(self) -> bool:
        """Whether as many requests wait as the backlog allows."""
        return self.waiting >= self.backlog

    def scope_of(self, agent: Agent, ip: IP) -> int:
        """The scope id for an address of a peer of this device."""
        return agent.ifindex if ip.version == 6 and ip.is_link_local else 0

    def need_conversation(self, verb: str) -> Conversation:
        """What the id and its peer say to each other. Raises VerbsError: EINVAL if nothing was said yet."""
        if self.conversation is None or self.conversation.phase is Phase.NEW:
            what = "request" if self.is_datagram else "connection"
            raise VerbsError(EINVAL, f"{self!r} has no {what}", verb)
        return self.conversation

    def need_connection(self, verb: str) -> Connection:
        """The connection. Raises VerbsError: EINVAL if there is none, or the id is for datagrams."""
        if self.is_datagram:
            raise VerbsError(EINVAL, f"{self!r} has no connection", verb)
        return cast("Connection", self.need_conversation(verb))

    @property
    def is_datagram(self) -> bool:
        """Whether it is for datagrams, not for connections."""
        return self.qp_type is QPType.UD

    def qkey(self, verb: str) -> int:
        """The Q_Key of the port space; for IPOIB only a subnet manager can give one."""
        if self.ps is PortSpace.IPOIB:
            text = "the Q_Key of port space IPOIB is that of an InfiniBand broadcast group, which RoCE lacks"
            raise VerbsError(EADDRNOTAVAIL, text, verb)
        return self._qkey

    def is_among(self, ip: IP, local: Inet) -> bool:
        """Whether any address, `local`, stands for this one. That of IPv6 stands for those of IPv4, too."""
        return ip.version == local.ip.version or (ip.version == 4 and not self.options.get(Option.AFONLY))

    def use(self, agent: Agent) -> None:
        """Count this agent as the one that the id uses."""
        self.agent = agent
        self.use_too(agent)

    @property
    def is_listening(self) -> bool:
        """Whether requests to its port are for it."""
        return self.state is IdState.LISTEN

    def uses(self, loop: Loop) -> bool:
        """Whether it counts as one that uses this agent."""
        return loop in self._agents

    def use_too(self, loop: Loop) -> None:
        """Count this agent, or the door, as one of those that the id uses."""
        if loop not in self._agents:
            self._agents.append(loop)
            loop.join(self.as_id)

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """It binds its port on one device: what hears for it elsewhere is not in the way."""
        for loop in self._agents:
            loop.service.share_port(self.as_id, shared=True)
        try:
            yield
        finally:
            for loop in self._agents:
                loop.service.share_port(self.as_id, shared=False)

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
        conversation = self.conversation
        if conversation is not None and not self.is_datagram and conversation.phase in ENDED:
            text = f"{self!r}: the connection has ended: {conversation.state_name}"
            raise VerbsError(EINVAL, text, verb)

    def put(self, kind: EventType, status: int = 0, **more: Any) -> None:
        """Add an event of this id to its channel."""
        self.channel.put(Event(kind, self.as_id, status, **more))

    # ------------------------------------------------------------------ waiting, without a channel

    def _complete(self, verb: str, goal: EventType | None = None) -> None:
        """Without a channel: wait for the event of a call, and raise the error that it reports.

        An event of the kind `goal` is no error, whatever its status: the call has come to what it is for.
        """
        if not self.sync:
            return
        self._drop_event()
        event = self.event = self.channel.get_cm_event()
        if event.event is not goal and (event.status or event.event is EventType.REJECTED):
            raise VerbsError(-event.status if event.status < 0 else ECONNREFUSED, event.explain(), verb)

    def _drop_event(self) -> None:
        if self.event is not None:
            self.event.ack()
            self.event = None
