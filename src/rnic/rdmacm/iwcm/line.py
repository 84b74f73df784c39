# SPDX-License-Identifier: Apache-2.0
"""A socket on which a start-up goes on: it is read as far as the start-up wants, and written."""

from __future__ import annotations

import socket
from errno import ECONNRESET
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP
from time import monotonic_ns
from typing import TYPE_CHECKING, Protocol

import rnic.mpa as mpa
from rnic.rdmacm.iwcm import sockets

if TYPE_CHECKING:
    from rnic.rdmacm.iwcm.manager import IwService
    from rnic.rdmacm.iwcm.timers import Timer

_ENDS = EPOLLRDHUP | EPOLLHUP | EPOLLERR


class Owner(Protocol):
    """Who is told what comes of it."""

    def connected(self, error: int) -> None:
        """The TCP connection is there, or an errno says why not."""

    def flushed(self) -> None:
        """All that was to be written has left."""

    def spoken(self) -> None:
        """The peer has sent something behind the start-up, or has closed."""

    def told(self, event: mpa.Event) -> None:
        """Something has happened to the start-up."""


class Line:
    """A socket, its start-up, and what the service watches of it."""

    def __init__(self, service: IwService, sock: socket.socket, startup: mpa.Startup, owner: Owner) -> None:
        self._service, self.sock, self.startup, self.owner = service, sock, startup, owner
        self.is_connecting = False
        self.is_listening = False
        """The start-up is over, and the first byte behind it is waited for."""
        self._out = b""
        self._watched = 0
        self._timer: Timer | None = None

    # ------------------------------------------------------------------ what is watched

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.sock.fileno()

    def _watch(self) -> None:
        wants = EPOLLRDHUP
        if self.is_connecting or self._out:
            wants |= EPOLLOUT
        if self.startup.wanted or self.is_listening:
            wants |= EPOLLIN
        if wants != self._watched:
            self._service.watch(self, wants)
            self._watched = wants
        self._set_timer()

    def _set_timer(self) -> None:
        due = self.startup.deadline
        if self._timer is not None and self._timer.due != due:
            self._timer.cancel()
            self._timer = None
        if due is not None and self._timer is None:
            self._timer = self._service.timers.at(due, self._expire)

    def _expire(self, now: int) -> None:
        self.startup.timer(now)
        self.push()

    # ------------------------------------------------------------------ what comes and goes

    def ready(self, events: int) -> None:
        """The socket can be read or written, or has ended."""
        if self.is_connecting:
            if events & (EPOLLOUT | _ENDS):
                self.is_connecting = False
                self.owner.connected(sockets.outcome(self.sock))
            return
        if self.is_listening and events & (EPOLLIN | _ENDS):
            self.owner.spoken()
            return
        self._read(events)
        self.push()

    def _read(self, events: int) -> None:
        try:
            while (wanted := self.startup.wanted) and (data := sockets.read(self.sock, wanted)) is not None:
                if not data:
                    self.startup.end(monotonic_ns())
                    return
                self.startup.receive(data, monotonic_ns())
        except OSError as error:
            self.startup.end(monotonic_ns(), error.errno or ECONNRESET)
            return
        if events & _ENDS and self.startup.state is mpa.State.REQ_RCVD:
            self.startup.end(monotonic_ns(), sockets.outcome(self.sock))

    def push(self) -> None:
        """Write what is to be written, and tell what has happened."""
        self._out += self.startup.take_out()
        was_due = bool(self._out)
        try:
            while self._out and (taken := sockets.write(self.sock, self._out)):
                self._out = self._out[taken:]
        except OSError as error:
            self._out = b""
            if self.startup.wanted:  # else what has been read says more
                self.startup.end(monotonic_ns(), error.errno or ECONNRESET)
        if self.sock.fileno() >= 0:
            self._watch()
        if was_due and not self._out:
            self.owner.flushed()
        for event in self.startup.take_events():
            self.owner.told(event)

    # ------------------------------------------------------------------ the end

    def detach(self) -> socket.socket:
        """The socket, which nobody watches any more."""
        if self._watched:
            self._service.unwatch(self)
            self._watched = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self.sock

    def close(self) -> None:
        """Close it in order: what was written is read by the peer. A second call does nothing."""
        if self.sock.fileno() >= 0:
            self.detach().close()

    def abort(self) -> None:
        """Close it with a reset. A second call does nothing."""
        if self.sock.fileno() >= 0:
            sockets.abort(self.detach())
