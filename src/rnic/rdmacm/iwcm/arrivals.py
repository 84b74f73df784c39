# SPDX-License-Identifier: Apache-2.0
"""Connections that come to a listener: each sends its request in time, which makes a new id or is refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from select import EPOLLIN
from time import monotonic_ns
from typing import TYPE_CHECKING

import rnic.mpa as mpa
from rnic.errors import exhausted
from rnic.log import INFO, WARNING, Log
from rnic.rdmacm import outcomes
from rnic.rdmacm.iwcm import sockets
from rnic.rdmacm.iwcm.connection import IwConnection
from rnic.rdmacm.iwcm.guests import guests
from rnic.rdmacm.iwcm.line import Line
from rnic.rdmacm.names import MAX_INIT_DEPTH, MAX_RESP_RES, NOTHING_SAID, ConnParam
from rnic.rdmacm.service import Request
from rnic.rdmacm.sockaddr import SockAddr
from rnic.records import replace
from rnic.verbs.ece import ECE

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.iwcm.manager import IwService
    from rnic.rdmacm.reactor import Reactor

_log = Log("rnic.rdmacm")

REQUEST_NS = 10 * 10**9
"""A connection without a request is given up then."""
_AT_ONCE = 64  # connections of a listener that are taken before others have a turn
_PAUSE_NS = 250 * 10**6  # until connections are taken again, where descriptors or memory were missing
_MOST_DEPTH = 254  # 255 is MAX_RESP_RES


class Listening:
    """A socket of an id that listens, and the connections of it that have not sent their requests yet.

    `service_of` says which device a connection is for. If it has none, it raises VerbsError.
    """

    def __init__(
        self,
        reactor: Reactor,
        listener: CmId,
        sock: socket.socket,
        service_of: Callable[[socket.socket], IwService],
    ) -> None:
        self._reactor, self.listener, self.sock, self._service_of = reactor, listener, sock, service_of
        self._arrivals: dict[Arrival, None] = {}  # the oldest first
        self._new: tuple[socket.socket, SockAddr] | None = None  # that nobody looks after yet, and its peer
        self._spare = sockets.Spare()
        self._warned = False
        reactor.watch(self, EPOLLIN)

    def __repr__(self) -> str:
        return f"<Listening for {self.listener!r}>"

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.sock.fileno()

    def ready(self, _events: int) -> None:
        """Connections have come."""
        for _ in range(_AT_ONCE):
            if self._new is None and not self._accept():
                return
            self._begin()

    def _accept(self) -> bool:
        if self.sock.fileno() < 0:
            return False
        try:
            self._new = sockets.accept(self.sock)
        except OSError as error:
            self._refuse_for(error)
        return self._new is not None

    def _refuse_for(self, error: OSError) -> None:
        """Refuse all for whom there is no descriptor or memory; or let them wait, if even that needs more."""
        level = INFO if self._warned else WARNING
        _log.log(level, "%r refuses a connection: %s", self.listener, exhausted(error.errno or 0))
        self._warned = True
        for _ in range(_AT_ONCE):
            if not self._spare.refuse(self.sock):
                break
            self._reactor.dropped["no descriptor or memory"] += 1
        self._reactor.unwatch(self)
        self._reactor.timers.at(monotonic_ns() + _PAUSE_NS, self._go_on)

    def _begin(self) -> None:
        assert self._new is not None
        if len(self._arrivals) >= self.listener.admission.max_half_open:
            next(iter(self._arrivals)).give_way()
        sock, peer = self._new
        try:
            service = self._service_of(sock)
        except OSError as error:
            _log.info("%r refuses a connection: %s", self.listener, error)
            self._reactor.dropped["no device for its address"] += 1
            sockets.abort(sock)
            self._new = None
            return
        arrival = Arrival(self, service, sock, peer)
        guests.came(arrival)
        self._arrivals[arrival] = None
        arrival.came()
        service.todo[arrival.line] = EPOLLIN
        self._new = None
        if service is not self._reactor:
            service.agent.flush()

    def _go_on(self, _now: int) -> None:
        if self.sock.fileno() >= 0:
            self._reactor.watch(self, EPOLLIN)

    def forget(self, arrival: Arrival) -> None:
        """A connection is nothing of the listener's any more."""
        if arrival in self._arrivals:
            del self._arrivals[arrival]
            arrival.gone()

    def close(self) -> None:
        """Take no more, and let those go that have not asked yet."""
        self._reactor.unwatch(self)
        while self._arrivals:
            next(iter(self._arrivals)).close()
        if self._new is not None:
            self._new[0].close()
        self._spare.close()
        self.sock.close()


class Arrival:
    """A connection whose request has not come yet."""

    def __init__(self, listening: Listening, service: IwService, sock: socket.socket, peer: SockAddr) -> None:
        self._listening, self._service, self._peer = listening, service, sockets.where_is(peer)
        sock.setblocking(False)
        self._child: CmId | None = None  # that is being made
        startup = mpa.Startup(service.options)
        now = monotonic_ns()
        startup.await_request(now, now + REQUEST_NS)
        self.line = Line(service, sock, startup, self)

    def __repr__(self) -> str:
        return f"<Arrival at {self._listening.listener!r}>"

    def came(self) -> None:
        """Its device is in use from now on,"""
        self._service.agent.came()

    def gone(self) -> None:
        """and by it no more."""
        self._service.agent.gone()

    def told(self, line: Line, event: mpa.Event) -> None:
        """The request has come, or never will."""
        service = self._service
        if event.type is mpa.EventType.REQUEST:
            self._ask(line, event)
            service.received["REQUEST"] += 1
        else:
            service.dropped[f"no request: {os.strerror(event.error)}"] += 1
            _log.info("%r: a connection is closed: %s", self._listening.listener, event.text)
            self.close()

    def give_way(self) -> None:
        """There are too many that have sent no request, and this one is the oldest."""
        _log.info("%r gives way: too many connections have sent no request", self)
        self.close()

    def close(self) -> None:
        """Nobody waits for its request any more."""
        self.line.close()
        self._listening.forget(self)

    def _ask(self, line: Line, event: mpa.Event) -> None:
        listener = self._listening.listener
        if line.startup.state is not mpa.State.REQ_RCVD or listener.is_full:
            self._refuse(line)
        elif not guests.may_ask(line):
            _log.info("%r: a request is refused: those that wait have a quarter of all descriptors", listener)
            self._refuse(line)
        elif self._child is not None:  # memory was short when it was made: the peer may ask again
            self._child.conversation = None
            self._child.destroy()
            self._refuse(line)
        elif listener.admission.is_full(monotonic_ns()):
            text = "%r: a request is refused: max_connections is %s"
            _log.info(text, listener, listener.admission.max_connections)
            self._refuse(line)
        else:
            self._let_in(line, event)

    def _refuse(self, line: Line) -> None:
        if line.startup.state is mpa.State.REQ_RCVD:
            line.startup.send_reject(b"", monotonic_ns())
            self._service.sent["REJECT"] += 1
        line.push()
        self.close()

    def _let_in(self, line: Line, event: mpa.Event) -> None:
        listener, service = self._listening.listener, self._service
        child = self._child = listener.spawn()
        child.use(service.agent)
        conversation = IwConnection(child, service, line)
        conversation.prepare(line)
        here = sockets.where_is(line.sock.getsockname())
        request = Request(conversation, here, self._peer, _wishes(event), ECE())
        self._listening.forget(self)
        outcomes.requested(listener, child, request)
        line.owner, self._child = conversation, None

    def connected(self, line: Line, error: int) -> None:
        """It came connected."""

    def flushed(self, line: Line) -> None:
        """Nothing was to be written but a refusal,"""

    def lost(self, line: Line, error: int) -> None:
        """which did not reach the peer."""


def _wishes(event: mpa.Event) -> ConnParam:
    """What the peer asks for. A request of revision 1 says no depths: the most are what it will do with."""
    assert event.frame is not None
    wishes = mpa.wishes(event.frame)
    return replace(
        NOTHING_SAID,
        private_data=event.frame.private_data,
        responder_resources=MAX_RESP_RES if wishes is None else min(wishes.ird, _MOST_DEPTH),
        initiator_depth=MAX_INIT_DEPTH if wishes is None else min(wishes.ord, _MOST_DEPTH),
    )
