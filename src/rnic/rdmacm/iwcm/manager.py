# SPDX-License-Identifier: Apache-2.0
"""The service of one device of iWARP: its sockets, its timers, and who is told what."""

from __future__ import annotations

import select
import socket
from collections import Counter, deque
from collections.abc import Callable
from errno import EACCES, ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, EOPNOTSUPP, EPROTO
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import rnic.mpa as mpa
from rnic._nic import nic
from rnic.cm.events import Statistics
from rnic.enums import QPType, StreamEnd
from rnic.errors import VerbsError
from rnic.log import Log
from rnic.rdmacm.iwcm import sockets
from rnic.rdmacm.iwcm.arrivals import Listening
from rnic.rdmacm.iwcm.connection import IwConnection
from rnic.rdmacm.iwcm.ports import Bound, Ports
from rnic.rdmacm.names import EventType
from rnic.rdmacm.reactor import Reactor, Watched
from rnic.rdmacm.service import Claim, ConnectionService, Refusal
from rnic.wire import PortSpace

if TYPE_CHECKING:
    from rnic.rdmacm.agent import Agent
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.iwcm.line import Line
    from rnic.rdmacm.sockaddr import IP, Inet
    from rnic.verbs.stream import StreamEvent

_log = Log("rnic.rdmacm")

_SILENCE = {
    0: "TCP gets no answer: the host is down, a firewall drops the packets, or its program has not "
    "accepted the connection yet",
    EACCES: "this host's routes or firewall prohibit connections to it",
    EHOSTUNREACH: "ICMP or the kernel says that the host is unreachable: it is down, or a router or firewall "
    "rejects packets to it",
    ENETUNREACH: "there is no route to its network",
}
_MOST_LEAVING = 64
_NO_MPA = (
    "what listens there does not speak iWARP (MPA), or wants what this end does not have: check the port"
)


def serves(one: CmId) -> bool:
    """Whether an id can have connections of iWARP: of RC queue pairs."""
    return one.ps is PortSpace.TCP and one.qp_type is QPType.RC


class IwService(Reactor, ConnectionService):
    """TCP connections and start-ups of a device."""

    name = "iWARP"
    asks_network = False  # TCP hears the network itself
    hears_ends = True  # of streams, with the reason

    def __init__(self, agent: Agent) -> None:
        context = agent.context
        if "rnic.stream/1" not in context.extensions:
            text = (
                f"{context.name}: RDMA-CM is not supported by devices of provider {context.provider}, "
                "only verbs are"
            )
            raise VerbsError(EOPNOTSUPP, text, "open_device")
        super().__init__(agent.mistake)
        self.agent = agent
        self.options = mpa.Options(crc=nic.env_mpa_crc(), most_ird=agent.attr.max_qp_rd_atom)
        self.ports = Ports(agent.ifindex)
        self.streams: dict[int, IwConnection] = {}
        """By the numbers of their queue pairs: what the device is to report the end of."""
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        """Frames of the start-up, by kind."""
        self.retried = 0
        """Peers that were asked again in revision 1."""
        self._leaving: deque[Line] = deque()
        self._bound: dict[CmId, Bound] = {}
        self._listening: dict[CmId, list[Listening]] = {}
        self._reports: deque[tuple[CmId, Callable[..., None], tuple[Any, ...]]] = deque()
        self._reported: object = None  # the first of them, when that is done
        self._is_settling = False
        self._end: StreamEvent | None = None  # that is being handled
        self._ends = context.stream_fileno()
        try:
            self._epoll.register(self._ends, select.EPOLLIN)
        except BaseException:
            self._epoll.close()
            raise

    def is_lasting(self, one: Watched) -> bool:
        """A listener stays."""
        return isinstance(one, Listening)

    def __repr__(self) -> str:
        return f"<IwService, {len(self.streams)} streams, {len(self._watched)} sockets>"

    # ------------------------------------------------------------------ ports

    def claim(self, one: CmId, local: Inet, port: int) -> Claim:
        """Bind a TCP port at each address."""
        self.check(one, "bind_addr")
        found = self._bound[one] = Bound(self, one, self.ports.claim(one, local, port))
        return found

    def check(self, one: CmId, verb: str) -> None:
        """Raise EOPNOTSUPP for an id that cannot have connections of iWARP."""
        if one.is_datagram:
            raise self.lacks("datagrams", verb)
        if not serves(one):
            raise self.lacks(f"port space {one.ps.name} with {one.qp_type.name} queue pairs", verb)

    def forget(self, claim: Bound) -> None:
        """A port is given back."""
        if self._bound.get(claim.one) is claim:
            del self._bound[claim.one]

    def take_port(self, ps: PortSpace, ip: IP, verb: str) -> int:
        """A free TCP port of the address."""
        if ps is not PortSpace.TCP:
            raise self.lacks(f"port space {ps.name}", verb)
        return self.ports.take(ip, verb)

    def give_port(self, ps: PortSpace, ip: IP, port: int) -> None:  # noqa: ARG002 - there is one
        """Give it back, if no connection has used it."""
        self.ports.give(ip, port)

    def socket_of(self, one: CmId) -> socket.socket:
        """A socket for an id to connect by, at the id's own port."""
        claim = self._bound.get(one)
        taken = claim.take(one.local.ip) if claim is not None else None
        if taken is not None:
            return taken
        with one.connecting():
            return self.ports.use(one.local, "connect")

    # ------------------------------------------------------------------ peers

    def connection(self, one: CmId, source: IP) -> IwConnection:  # noqa: ARG002 - the id's port has it
        """A connection that connect() makes."""
        self.check(one, "resolve_addr")
        return IwConnection(one, self)

    def listen(self, one: CmId) -> None:
        """Take connections at the id's port from now on."""
        claim = self._bound.get(one)
        listening: list[Listening] = []
        try:
            for sock in claim.sockets if claim is not None else ():
                sockets.listen(sock, "listen")
                listening.append(Listening(self, one, sock, lambda _: self))
        except BaseException:
            for each in listening:
                each.close()
            raise
        self._listening[one] = listening

    def address_came(self, ip: IP) -> None:
        """Ids that listen at any address listen at this one, too, if nobody else has the port there."""
        for one, listening in self._listening.items():
            claim = self._bound.get(one)
            if claim is None or not self.ports.is_for(one, ip) or claim.has(ip):
                continue
            try:
                sock = self.ports.bound(one, ip, one.local.port)
            except VerbsError as error:  # of IPv6 it may not be ready yet: then it comes once more
                _log.info("%r does not listen at %s: %s", one, ip, error)
                continue
            claim.sockets.append(sock)
            sockets.listen(sock, "listen")
            listening.append(Listening(self, one, sock, lambda _: self))

    def leaves(self, line: Line) -> None:
        """A peer was refused, and may close its end; of many the oldest have had their time."""
        self._leaving.append(line)
        while self._leaving and (self._leaving[0].is_done or len(self._leaving) > _MOST_LEAVING):
            self._leaving.popleft().close()

    def unlisten(self, one: CmId) -> None:
        """Take no more: peers are refused by the kernel from now on."""
        for each in self._listening.pop(one, ()):
            each.close()

    def refusal(self, kind: EventType, status: int) -> Refusal:  # noqa: ARG002 - of one kind
        """MPA says no more than that the peer refuses; TCP says whether anybody listens."""
        if -status == ECONNREFUSED:
            return Refusal("TCP says that the port is closed", nobody_listens=True)
        text = "its program does not want it, or there is no room for one more: iWARP does not say which"
        return Refusal(text, no_room=True)

    def statistics(self) -> Statistics:
        """The frames of start-ups, and the connections that have not come to one."""
        handshakes = sum(not isinstance(one, Listening) for one in self._watched.values())
        return Statistics(
            exchanges=len(self.streams) + handshakes,
            listeners=len(self._listening),
            sent=dict(self.sent),
            received=dict(self.received),
            resent=self.retried,
            dropped=dict(self.dropped),
        )

    def silence(self, code: int, dst: IP | None) -> str:  # noqa: ARG002 - as of RoCE
        """Why TCP makes no connection."""
        return _SILENCE.get(code, _SILENCE[0])

    def failure(self, code: int) -> str:
        """What is wrong with the peer's answer."""
        return _NO_MPA if code == EPROTO else ""

    # ------------------------------------------------------------------ what is reported

    def report(self, one: CmId, call: Callable[..., None], *values: Any) -> None:
        """Call a function of rnic.rdmacm.outcomes for an id when settle() comes."""
        self._reports.append((one, call, values))

    def forget_reports(self, one: CmId) -> None:
        """An id has gone: what is not reported yet is not reported any more."""
        if any(entry[0] is one for entry in self._reports):
            self._reports = deque(entry for entry in self._reports if entry[0] is not one)

    def settle(self) -> None:
        """Do what is to be done, and report; what memory is too short for stays for the next call."""
        if self._is_settling:  # whoever is told of something has done something
            return
        self._is_settling = True
        try:
            self.do()
            self._tell()
        finally:
            self._is_settling = False

    def _tell(self) -> None:
        while self._reports:
            entry = one, call, values = self._reports[0]
            if entry is not self._reported:
                try:
                    call(one, *values)
                except MemoryError:
                    raise
                except Exception as error:
                    self.agent.mistake(f"a report of {one!r}", error)
                self._reported = entry
            if self._reports and self._reports[0] is entry:  # unless the call has destroyed the id
                self._reports.popleft()

    # ------------------------------------------------------------------ for the agent

    def descriptors(self) -> list[int]:
        """All sockets, and the device's reports, in one."""
        return [self._epoll.fileno()]

    def deadline(self) -> int | None:
        """The first timer's."""
        return self.timers.deadline()

    def work(self) -> bool:
        """Handle what the device reports, what has come, and what is due."""
        self._take_ends()
        more = self.look()
        self.do()
        self.timers.fire(monotonic_ns())
        return more

    def _take_ends(self) -> None:
        while (event := self._end or self.agent.context.next_stream_event()) is not None:
            self._end = event
            self.ended(event)
            self._end = None

    def ended(self, event: StreamEvent) -> None:
        """A stream has ended, or begun."""
        if (conn := self.streams.get(event.qp_num)) is None:
            return
        if event.end is StreamEnd.READY:
            conn.stream_began()
        else:
            conn.stream_ended(event)

    def forget_stream(self, qp_num: int, conn: IwConnection) -> None:
        """The end of a stream is known. A second call does nothing."""
        if self.streams.get(qp_num) is conn:
            del self.streams[qp_num]

    def close_descriptors(self) -> None:
        """Sockets, and what polls them; also in a forked child, whose descriptors are copies."""
        self.close_watched()
        self.ports.close()
        for claim in self._bound.values():
            for sock in claim.sockets:
                sock.close()
