# SPDX-License-Identifier: Apache-2.0
"""The service of one device: its queue pair 1, its communication manager, and who listens for what."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from errno import EADDRINUSE, EADDRNOTAVAIL, EINVAL, EOPNOTSUPP
from time import monotonic_ns
from typing import TYPE_CHECKING

import rnic.cm as cm
from rnic.enums import QPType
from rnic.errors import VerbsError
from rnic.rdmacm.ibcm import requests
from rnic.rdmacm.ibcm.connection import IbConnection
from rnic.rdmacm.ibcm.conversation import IbConversation
from rnic.rdmacm.ibcm.gsi import Gsi, Peer
from rnic.rdmacm.ibcm.link import Link
from rnic.rdmacm.ibcm.lookup import IbLookup
from rnic.rdmacm.ibcm.ports import Ports
from rnic.rdmacm.ibcm.processes import Meetings
from rnic.rdmacm.ibcm.unsettled import Port, Shared, Unsettled
from rnic.rdmacm.names import EventType
from rnic.rdmacm.service import Claim, ConnectionService, Refusal
from rnic.verbs.ah import GID, AHAttr
from rnic.wire import PortSpace, RejReason, SidrStatus, service_id
from rnic.wire.cm_names import name_of
from rnic.wording import port_taken

if TYPE_CHECKING:
    from rnic._nic import nic
    from rnic.rdmacm.agent import Agent
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.sockaddr import IP, Inet


class Served:
    """A service id on a device: the ids that listen for it, each at one address or at all."""

    def __init__(self, listener: cm.Listener) -> None:
        self.listener = listener
        self.ids: list[CmId] = []

    def choose(self, ip: IP) -> CmId | None:
        """The id for a request to this address: one that listens at exactly this address goes first."""
        exact = [one for one in self.ids if one.local.ip == ip]
        every = [one for one in self.ids if one.local.ip.is_unspecified and one.is_among(ip, one.local)]
        return next(iter(exact + every), None)


class IbService(ConnectionService):
    """The communication manager of a device, with datagrams and a clock."""

    name = "InfiniBand's communication manager"
    lets_in = True

    def __init__(self, agent: Agent) -> None:
        context = agent.context
        if "rnic.cm/1" not in context.extensions:
            text = (
                f"{context.name}: RDMA-CM is not supported by devices of provider {context.provider}, "
                "only verbs are"
            )
            raise VerbsError(EOPNOTSUPP, text, "open_device")
        self.agent = agent
        self.served: dict[int, Served] = {}
        self.arriving: tuple[cm.Exchange, CmId] | None = None
        """A request, and its id, which is being made."""
        with ExitStack() as undo:  # what a part that fails leaves behind
            self.gsi = undo.enter_context(closing(Gsi(agent.context, agent.pd)))
            self.ports = Ports(agent.context)
            self.cm = cm.IbCm(agent.context.cm_slot(), agent.attr.node_guid)
            self.unsettled = Unsettled(self.cm.table)
            self._shared = Shared()
            self.meetings = Meetings(agent, self.cm, self.gsi)
            undo.pop_all()

    def __repr__(self) -> str:
        return f"<IbService, {len(self.cm.table)} exchanges>"

    # ------------------------------------------------------------------ ports

    def claim(self, one: CmId, local: Inet, port: int) -> Claim:
        """Bind a port, by the name that its listener has on this host."""
        return self._shared.take(one, local, port, lambda: self._named(one, local, port, self.ports.claim))

    def claim_beside(self, one: CmId) -> Claim:
        """The same for an id that has the port already, at all addresses of the host."""
        local, port = one.local, one.local.port
        return self._shared.take(
            one, local, port, lambda: self._named(one, local, port, self.ports.claim_beside)
        )

    def _named(
        self, one: CmId, local: Inet, port: int, claim: Callable[[CmId, Inet, int], nic.Listener]
    ) -> Port:
        try:
            name = claim(one, local, port)
        except VerbsError as error:
            if error.errno != EADDRINUSE or not self.unsettled.give_up(service_id(one.ps, port)):
                raise
            name = claim(one, local, port)
        return Port(name, self.unsettled)

    def take_port(self, ps: PortSpace, ip: IP, verb: str) -> int:
        """A port of a block of this process."""
        return self.ports.take(ps, ip, verb)

    def give_port(self, ps: PortSpace, ip: IP, port: int) -> None:
        """Return it to its block."""
        self.ports.give(ps, ip, port)

    # ------------------------------------------------------------------ peers

    def _link(self, one: CmId, source: IP) -> Link:
        """The path to the id's peer."""
        assert one.remote is not None
        index = self.gsi.index_of(GID(source))
        if index is None:
            text = f"{self.agent.context.name} was opened before it had the address {source}"
            raise VerbsError(EADDRNOTAVAIL, text, "resolve_addr")
        peer = Peer(GID(one.remote.ip), index)
        return Link(peer, self.agent.context.query_port(1).active_mtu)

    def connection(self, one: CmId, source: IP) -> IbConnection:
        """A connection that connect() requests with a REQ."""
        return IbConnection(one, self, self._link(one, source))

    def lookup(self, one: CmId, source: IP) -> IbLookup:
        """A question that connect() asks with a SIDR_REQ."""
        return IbLookup(one, self, self._link(one, source))

    def listen(self, one: CmId) -> None:
        """Deliver requests for the id's service to it from now on."""
        wanted = service_id(one.ps, one.local.port)
        served = self.served.get(wanted)
        if served is not None and any(each.local == one.local for each in served.ids):
            raise VerbsError(EADDRINUSE, port_taken(str(one.local.ip), one.local.port), "listen")
        if served is None:
            self.unsettled.serve(wanted)
            listener = self.cm.listen(wanted, monotonic_ns())
            served = self.served[wanted] = Served(listener)
        served.ids.append(one)

    def unlisten(self, one: CmId) -> None:
        """Deliver no more requests to the id."""
        wanted = service_id(one.ps, one.local.port)
        served = self.served.get(wanted)
        if served is None or one not in served.ids:
            return
        if served.ids == [one]:
            served.listener.close(monotonic_ns())
            del self.served[wanted]
        else:
            served.ids.remove(one)

    def join(self, one: CmId, group: GID) -> AHAttr:
        """Over RoCE a group is an IP multicast address, which no manager has to make."""
        index = self.gsi.index_of(GID(one.local.ip))
        if index is None:
            raise VerbsError(EINVAL, f"{one!r} has no address on its device", "join_multicast")
        return AHAttr(group, index, port_num=1, hop_limit=1)

    # ------------------------------------------------------------------ words

    def refusal(self, kind: EventType, status: int) -> Refusal:
        """The reason of a REJ (IBA 12.6.7.2), or the status of a SIDR_REP (IBA 12.11.2.2)."""
        if kind is EventType.UNREACHABLE:
            return Refusal(name_of(SidrStatus, status), status == SidrStatus.UNSUPPORTED)
        return Refusal(
            name_of(RejReason, status),
            nobody_listens=status == RejReason.INVALID_SERVICE_ID,
            by_program=status == RejReason.CONSUMER_DEFINED,
            no_room=status == RejReason.NO_RESOURCES,
        )

    def statistics(self) -> cm.Statistics:
        """The counters of the communication manager."""
        return self.cm.statistics()

    # ------------------------------------------------------------------ for the agent

    def descriptors(self) -> list[int]:
        """Datagrams that have come; processes that have died."""
        return [self.gsi.channel.fileno(), self.meetings.processes.fileno()]

    def deadline(self) -> int | None:
        """The first one of the communication manager, or of a name that stays."""
        first, name = self.cm.deadline(), self.unsettled.deadline
        return name if first is None or (name is not None and name < first) else first

    def work(self) -> bool:
        """Handle a batch of datagrams, the processes that have died, and the timers that are due."""
        self.gsi.quiet()
        got = self.gsi.take()
        for data, source in got or ():
            self.hear(data, source)
        self.meetings.bury()
        self.cm.timer(monotonic_ns())
        return got is not None

    def settle(self) -> None:
        """Send and report. Work that lacks memory stays queued for the next call; a datagram is lost, as on
        the wire.
        """
        while True:
            if self.arriving is not None:
                self._turn_away(*self.arriving)
            self.meetings.meet_all()
            while (send := self.cm.next_send()) is not None:
                assert isinstance(send.dest, Peer)
                self.gsi.send(send.dest, send.mad.emit())
            if (event := self.cm.next_event()) is None:
                break
            try:
                self._dispatch(event)
            except MemoryError:
                self.cm.put_back(event)
                raise
            except Exception as error:
                self.agent.mistake(f"{event.type.name} of {event.source!r}", error)
        self.unsettled.release(monotonic_ns())

    def _turn_away(self, exchange: cm.Exchange, child: CmId) -> None:
        """Refuse the request whose id is not complete: an exception came in between."""
        self.arriving = None  # the id's end leads here again
        try:
            requests.turn_away(exchange, child)
        except BaseException:
            self.arriving = exchange, child
            raise

    def hear(self, data: bytes, source: Peer) -> None:
        """Handle a datagram, and deliver its events before the next datagram changes more.

        A mistake of rnic costs this datagram, not all the ids of the device: it is counted as dropped, and
        the first one is logged.
        """
        try:
            self.cm.input(data, source, monotonic_ns())
            self.settle()
        except MemoryError:
            self.cm.drop("a datagram, or an answer, lost for want of memory")
        except Exception as error:
            self.cm.drop("a datagram that met a mistake of rnic's own")
            self.agent.mistake(f"a datagram from {source.gid.ip}, {data.hex()},", error)

    def _dispatch(self, event: cm.Event) -> None:
        if event.listener is not None:
            self._request(event)
        elif isinstance(event.source.context, IbConversation):
            event.source.context.handle(event)

    def _request(self, event: cm.Event) -> None:
        assert isinstance(event.listener, cm.Listener)
        served = self.served.get(event.listener.service_id)
        assert isinstance(event.source.peer, Peer)
        entry = self.agent.context.query_gid(1, event.source.peer.sgid_index)
        listening = served.choose(entry.ip) if served else None
        if listening is None:
            event.source.close(monotonic_ns())
        elif listening.qp_type is QPType.UD:
            requests.ask(listening, self, event)
        else:
            requests.call(listening, self, event)

    def hurry(self, now: int, wait: int) -> None:
        """Repeat the DREQs that wait for a DREP sooner."""
        for exchange in self.cm.table.exchanges():
            if exchange.state is cm.State.DREQ_SENT:
                exchange.hurry(now, wait)

    @property
    def is_parting(self) -> bool:
        """Whether a DREP has still to come, or to be sent."""
        leaving = (cm.State.DREQ_SENT, cm.State.DREQ_RCVD)
        return any(one.state in leaving for one in self.cm.table.exchanges())

    def close_descriptors(self) -> None:
        """The watches of other processes."""
        self.meetings.processes.close()

    def close(self) -> None:
        """Names that are left; and queue pair 1, when its last datagrams have been sent."""
        self.unsettled.close()
        self.gsi.close()
