# SPDX-License-Identifier: Apache-2.0
"""A socket on which a start-up goes on: it is read as far as the start-up wants, and written.

If memory is short anywhere in ready(), the service calls it again: each step is noted when it is done.
"""

from __future__ import annotations

import socket
from errno import ECONNRESET
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP
from time import monotonic_ns
from typing import TYPE_CHECKING, Protocol

import rnic.mpa as mpa
from rnic.rdmacm.iwcm import sockets
from rnic.rdmacm.iwcm.guests import guests

if TYPE_CHECKING:
    from rnic.rdmacm.iwcm.manager import IwService
    from rnic.rdmacm.timers import Timer

_ENDS = EPOLLRDHUP | EPOLLHUP | EPOLLERR
_LEAVE_NS = 1_000_000_000
"""How long a peer that was refused may take to close its end."""


class Owner(Protocol):
    """Who is told what comes of a line. Each call is repeated if memory is short."""

    def connected(self, line: Line, error: int) -> None:
        """The TCP connection is there, or an errno says why not."""

    def flushed(self, line: Line) -> None:
        """All that was to be written has left."""

    def lost(self, line: Line, error: int) -> None:
        """What was to be written cannot be."""

    def told(self, line: Line, event: mpa.Event) -> None:
        """Something has happened to the start-up."""


class Line:
    """A socket, its start-up, and what the service watches of it."""

    def __init__(self, service: IwService, sock: socket.socket, startup: mpa.Startup, owner: Owner) -> None:
        self._service, self.sock, self.startup, self.owner = service, sock, startup, owner
        self.is_connecting = False
        self._outcome: int | None = None  # of connecting, when it is known
        self._out = b""
        self._is_full = False  # of bytes whose departure is to be told
        self._is_telling = False
        self.is_done = False
        """The socket is closed, or somebody else's."""
        self._watched = 0
        self._leaves_at: int | None = None
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<Line of {self.owner!r}>"

    # ------------------------------------------------------------------ what is watched

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.sock.fileno()

    def _watch(self) -> None:
        wants = EPOLLRDHUP
        if self.is_connecting or self._out:
            wants |= EPOLLOUT
        if self.startup.wanted:
            wants |= EPOLLIN
        if wants != self._watched:
            self._service.watch(self, wants)
            self._watched = wants

    def _set_timer(self) -> None:
        due = self._leaves_at or self.startup.deadline
        if self._timer is not None and self._timer.due != due:
            self._timer.cancel()
            self._timer = None
        if due is not None and self._timer is None:
            self._timer = self._service.timers.at(due, self._expire)

    def _expire(self, now: int) -> None:
        if self._leaves_at is not None:
            self.close()
            return
        self.startup.timer(now)
        self.push()

    # ------------------------------------------------------------------ what comes and goes

    def ready(self, events: int) -> None:
        """The socket can be read or written, or has ended."""
        if self.is_done:
            return
        if self._leaves_at is not None and events & _ENDS:
            self.close()
            return
        if self.is_connecting:
            if self._outcome is None and events & (EPOLLOUT | _ENDS):
                self._outcome = sockets.outcome(self.sock)
            if self._outcome is not None:
                self.owner.connected(self, self._outcome)
                self.is_connecting = False
        else:
            self._read(events)
        self.push()

    def _read(self, events: int) -> None:
        startup = self.startup
        startup.receive(b"", monotonic_ns())
        try:
            while (wanted := startup.wanted) and (data := sockets.read(self.sock, wanted)) is not None:
                startup.buffer += data  # ahead of any call, for which memory may be short
                if not data:
                    startup.end(monotonic_ns())
                    return
                startup.receive(b"", monotonic_ns())
        except OSError as error:
            startup.end(monotonic_ns(), error.errno or ECONNRESET)
            return
        if events & _ENDS and startup.state is mpa.State.REQ_RCVD:
            startup.end(monotonic_ns(), sockets.outcome(self.sock) or ECONNRESET)

    def push(self) -> None:
        """Write what is to be written, and tell what has happened."""
        if self.is_done:
            return
        if new := self.startup.take_out():
            self._out, self._is_full = self._out + new, True
        try:
            while self._out and (taken := sockets.write(self.sock, self._out)):
                self._out = self._out[taken:]
        except OSError as error:
            if self.startup.wanted:
                self.startup.end(monotonic_ns(), error.errno or ECONNRESET)
            else:
                self.owner.lost(self, error.errno or ECONNRESET)
            self._out, self._is_full = b"", False
        if self._is_full and not self._out:
            self.owner.flushed(self)
            self._is_full = False
        self._tell()
        if not self.is_done:
            self._watch()
            self._set_timer()

    def _tell(self) -> None:
        if self._is_telling:  # whoever is told has written something
            return
        self._is_telling = True
        try:
            while (event := self.startup.event) is not None:
                self.owner.told(self, event)
                self.startup.drop_event()
        finally:
            self._is_telling = False

    # ------------------------------------------------------------------ the end

    def unwatch(self) -> None:
        """Nobody watches the socket any more. A second call does nothing."""
        guests.forget(self)
        if self._watched:
            self._service.unwatch(self)
            self._watched = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Close it in order: what was written is read by the peer. A second call does nothing."""
        if not self.is_done:
            self.unwatch()
            self.sock.close()
            self.is_done = True

    def leave(self) -> None:
        """Write what is to be written; close it when the peer has closed its end, or after a second.

        Linux' siw takes a refusal for a lost connection, without its private data, if the end of the stream
        comes in the same packet.
        """
        self._leaves_at = monotonic_ns() + _LEAVE_NS
        guests.forget(self)
        self.push()
        self._service.leaves(self)

    def abort(self) -> None:
        """Close it with a reset. A second call does nothing."""
        if not self.is_done:
            self.unwatch()
            sockets.abort(self.sock)
            self.is_done = True
