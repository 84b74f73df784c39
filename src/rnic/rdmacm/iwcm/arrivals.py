# SPDX-License-Identifier: Apache-2.0
"""Connections that come to a listener: each sends its request in time, which makes a new id or is refused."""

from __future__ import annotations

import socket
from select import EPOLLIN
from time import monotonic_ns
from typing import TYPE_CHECKING

import rnic.mpa as mpa
from rnic.log import Log
from rnic.rdmacm import outcomes
from rnic.rdmacm.iwcm import sockets
from rnic.rdmacm.iwcm.connection import IwConnection
from rnic.rdmacm.iwcm.line import Line
from rnic.rdmacm.names import MAX_INIT_DEPTH, MAX_RESP_RES, NOTHING_SAID
from rnic.rdmacm.service import Request
from rnic.records import replace
from rnic.verbs.ece import ECE

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.iwcm.manager import IwService

_log = Log("rnic.rdmacm")

REQUEST_NS = 10 * 10**9
"""A connection without a request is given up then."""
_AT_ONCE = 64  # connections of a listener that are taken before others have a turn
_PAUSE_NS = 250 * 10**6  # until connections are taken again, where descriptors or memory were missing
_MOST_DEPTH = 254  # 255 is MAX_RESP_RES


class Listening:
    """A socket of an id that listens, and the connections of it that have not sent their requests yet."""

    def __init__(self, service: IwService, listener: CmId, sock: socket.socket) -> None:
        self.service, self.listener, self.sock = service, listener, sock
        self._arrivals: dict[Arrival, None] = {}  # the oldest first
        service.watch(self, EPOLLIN)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.sock.fileno()

    def ready(self, _events: int) -> None:
        """Connections have come."""
        for _ in range(_AT_ONCE):
            try:
                sock = sockets.accept(self.sock)
            except OSError as error:
                self._pause(error)
                return
            if sock is None:
                return
            self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        if len(self._arrivals) >= self.listener.admission.max_half_open:
            next(iter(self._arrivals)).startup.give_up(monotonic_ns())
            self._drop(next(iter(self._arrivals)))
        try:
            arrival = Arrival(self, sock)
            self._arrivals[arrival] = None
        except BaseException:
            sock.close()
            raise
        arrival.begin()

    def _pause(self, error: OSError) -> None:
        _log.info("%r takes no connections for a moment: %s", self.listener, error)
        self.service.unwatch(self)
        self.service.timers.at(monotonic_ns() + _PAUSE_NS, self._go_on)

    def _go_on(self, _now: int) -> None:
        if self.sock.fileno() >= 0:
            self.service.watch(self, EPOLLIN)

    def forget(self, arrival: Arrival) -> None:
        """A connection is nothing of the listener's any more."""
        self._arrivals.pop(arrival, None)

    def _drop(self, arrival: Arrival) -> None:
        self.forget(arrival)
        arrival.line.close()

    def close(self) -> None:
        """Take no more, and let those go that have not asked yet."""
        self.service.unwatch(self)
        for arrival in list(self._arrivals):
            self._drop(arrival)


class Arrival:
    """A connection whose request has not come yet."""

    def __init__(self, listening: Listening, sock: socket.socket) -> None:
        self._listening = listening
        self.startup = mpa.Startup(listening.service.options)
        self.line = Line(listening.service, sock, self.startup, self)

    def begin(self) -> None:
        """Wait for the request, or take it if it is there."""
        now = monotonic_ns()
        self.startup.await_request(now, now + REQUEST_NS)
        self.line.push()

    def told(self, event: mpa.Event) -> None:
        """The request has come, or never will."""
        self._listening.forget(self)
        if event.type is not mpa.EventType.REQUEST:
            _log.info("%r: a connection is closed: %s", self._listening.listener, event.text)
            self.line.close()
            return
        try:
            self._ask(event)
        except BaseException:
            self.line.close()
            raise

    def _ask(self, event: mpa.Event) -> None:
        listener, service = self._listening.listener, self._listening.service
        if listener.is_full or listener.admission.is_full(monotonic_ns()):
            text = "%r: a request is refused: the backlog of %s, or max_connections of %s, is reached"
            _log.info(text, listener, listener.backlog, listener.admission.max_connections)
            self.startup.send_reject(b"", monotonic_ns())
            self.line.push()
            self.line.close()
            return
        child = listener.spawn()
        try:
            child.use(service.agent)
            conversation = self.line.owner = IwConnection(child, service, self.line)
            conversation.prepare(self.line)
            outcomes.requested(listener, child, _request(conversation, self.line.sock, event))
        except BaseException:  # the peer can ask again
            child.destroy()
            raise

    def connected(self, error: int) -> None:
        """It came connected."""

    def flushed(self) -> None:
        """Nothing was to be written but a refusal."""

    def spoken(self) -> None:
        """Nobody listens for that yet."""


def _request(conversation: IwConnection, sock: socket.socket, event: mpa.Event) -> Request:
    assert event.frame is not None
    wishes = mpa.wishes(event.frame)
    param = replace(
        NOTHING_SAID,
        private_data=event.frame.private_data,
        responder_resources=MAX_RESP_RES if wishes is None else min(wishes.ird, _MOST_DEPTH),
        initiator_depth=MAX_INIT_DEPTH if wishes is None else min(wishes.ord, _MOST_DEPTH),
    )
    here, there = sockets.where_is(sock.getsockname()), sockets.where_is(sock.getpeername())
    return Request(conversation, here, there, param, ECE())
