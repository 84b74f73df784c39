# SPDX-License-Identifier: Apache-2.0
"""What a service polls: descriptors, in one of epoll's, and what is to be done for them; and its timers."""

from __future__ import annotations

import select
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from rnic.rdmacm.timers import Timers

_AT_ONCE = 64  # descriptors that are looked at before others have a turn


class Watched(Protocol):
    """Something with a socket that a reactor polls."""

    @property
    def sock(self) -> socket.socket | None:
        """The socket."""

    def fileno(self) -> int:
        """The descriptor."""

    def ready(self, events: int) -> None:
        """The descriptor has events of epoll."""


class Reactor:
    """Descriptors, whose ready() is called; under the registry's lock.

    What memory is too short for is done by the next call. What fails twice in a row is not watched any more.
    """

    def __init__(self, mistake: Callable[[str, Exception], None]) -> None:
        self.timers = Timers(mistake)
        self.todo: dict[Watched, int] = {}
        """Whose ready() is to be called by do(), and with which events."""
        self.dropped: Counter[str] = Counter()
        """Connections to listeners that have sent no request, by reason."""
        self._mistake = mistake
        self._watched: dict[int, Watched] = {}
        self._failed: Watched | None = None  # once: it is tried again
        self._epoll = select.epoll()

    def is_lasting(self, one: Watched) -> bool:  # noqa: ARG002 - for services that have such
        """Whether it is watched whatever happens: all ids of a listener would be lost with it."""
        return False

    def watch(self, one: Watched, events: int) -> None:
        """Call one.ready() when its descriptor has events of epoll."""
        fd = one.fileno()
        self._watched[fd] = one
        try:
            self._epoll.modify(fd, events)
        except FileNotFoundError:
            self._epoll.register(fd, events)

    def unwatch(self, one: Watched) -> None:
        """Do not call it any more. A second call does nothing."""
        fd = one.fileno()
        if self._watched.get(fd) is one:
            if not self._epoll.closed:
                with suppress(FileNotFoundError):  # memory was short just behind this
                    self._epoll.unregister(fd)
            del self._watched[fd]

    def look(self) -> bool:
        """Note which descriptors have something. True: there may be more."""
        found = self._epoll.poll(0, _AT_ONCE)
        for fd, events in found:
            if (one := self._watched.get(fd)) is not None:
                self.todo[one] = self.todo.get(one, 0) | events
        return len(found) == _AT_ONCE

    def do(self) -> None:
        """Call ready() of those that have something."""
        while self.todo:
            one = next(iter(self.todo))
            try:
                one.ready(self.todo[one])
            except MemoryError:
                raise
            except Exception as error:
                self._mistake(f"{one!r}", error)
                if self._failed is not one:  # perhaps it came from a signal's handler
                    self._failed = one
                    continue
                if not self.is_lasting(one):  # it costs this connection, not all the ids of the device
                    self.unwatch(one)
            self._failed = None
            self.todo.pop(one, None)

    def close_watched(self) -> None:
        """Close the sockets and what polls them."""
        self._epoll.close()
        for one in self._watched.values():
            if one.sock is not None:
                one.sock.close()
