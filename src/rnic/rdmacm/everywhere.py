# SPDX-License-Identifier: Apache-2.0
"""Ids that listen at any address of the host: one thread and a few descriptors for all interfaces.

An interface costs nothing until the first request comes to one of its addresses, whether or not it was
there when the id began to listen. Then its device is opened, and the request is the device's. How a request
is heard before that is the matter of each connection service (Door).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from errno import EADDRNOTAVAIL
from time import monotonic_ns
from typing import TYPE_CHECKING

from rnic.enums import Transport
from rnic.errors import VerbsError
from rnic.log import Log
from rnic.rdmacm.agent import Agent, Loop
from rnic.rdmacm.reactor import Reactor, Watched
from rnic.rdmacm.service import Claim, ConnectionService, Door, OpenAt
from rnic.rdmacm.transports import doors_of

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.sockaddr import IP, Inet
    from rnic.wire import PortSpace

_log = Log("rnic.rdmacm")


class DoorService(Reactor, ConnectionService):
    """The doors of all transports, as the service of a thread."""

    name = "a listener at any address"

    def __init__(self, loop: Everywhere, open_at: OpenAt, agents: Callable[[], list[Agent]]) -> None:
        super().__init__(loop.mistake)
        self._loop = loop
        self._doors = doors_of(self, open_at, agents)
        self._used: dict[CmId, list[Door]] = {}

    def __repr__(self) -> str:
        return f"<DoorService, {len(self._used)} ids>"

    def is_lasting(self, one: Watched) -> bool:  # noqa: ARG002 - all are
        """Everything here is of ids that listen."""
        return True

    # ------------------------------------------------------------------ for ids

    def claim(self, one: CmId, local: Inet, port: int) -> Claim:
        """Bind a port at every address. An id that chose the port has to have it with the transport that
        comes first: another one's may be in use by programs that know nothing of RDMA.
        """
        claims: list[Claim] = []
        doors: list[Door] = []
        with ExitStack() as undo:
            for transport in self._loop.transports_of(one):
                door = self._doors[transport]
                try:
                    claim = door.claim(one, local, port)
                except VerbsError as error:
                    if not local.port or not claims:
                        raise
                    _log.warning("peers over %s will not reach %r: %s", transport.name, one, error)
                    continue
                undo.callback(claim.close)
                claims.append(claim)
                doors.append(door)
            undo.pop_all()
        self._used[one] = doors
        return Claims(claims, lambda: self._used.pop(one, None))

    def listen(self, one: CmId) -> None:
        """Take requests at every address."""
        for door in self._used[one]:
            door.listen(one)

    def unlisten(self, one: CmId) -> None:
        """Take no more."""
        for door in self._used.get(one, ()):
            door.unlisten(one)

    def share_port(self, one: CmId, *, shared: bool) -> None:
        """Let a socket of one address have the same port."""
        for door in self._used.get(one, ()):
            door.share_port(one, shared=shared)

    def take_port(self, ps: PortSpace, ip: IP, verb: str) -> int:  # noqa: ARG002 - it is no device
        """Nobody calls from every address."""
        raise VerbsError(EADDRNOTAVAIL, "any address is not one to call from", verb)

    # ------------------------------------------------------------------ for the thread

    def descriptors(self) -> list[int]:
        """All sockets in one."""
        return [self._epoll.fileno()]

    def deadline(self) -> int | None:
        """The first timer's."""
        return self.timers.deadline()

    def work(self) -> bool:
        """Handle what has come, and what is due."""
        more = self.look()
        self.do()
        self.timers.fire(monotonic_ns())
        return more

    def close_descriptors(self) -> None:
        """Sockets, and what polls them; also in a forked child, whose descriptors are copies."""
        self.close_watched()
        for door in self._doors.values():
            door.close()

    def close(self) -> None:
        """Nothing else is left."""


class Claims:
    """The ports of several transports, as one."""

    def __init__(self, claims: Sequence[Claim], then: Callable[[], object]) -> None:
        self._claims, self._then = claims, then

    def close(self) -> None:
        """Give all back; a second call does nothing."""
        for claim in self._claims:
            claim.close()
        self._then()


class Everywhere(Loop):
    """The thread of ids at any address; there is one in a process."""

    def __init__(
        self,
        lock: threading.RLock,
        open_at: OpenAt,
        agents: Callable[[], list[Agent]],
        transports_of: Callable[[CmId], list[Transport]],
    ) -> None:
        self._open_at, self._agents, self.transports_of = open_at, agents, transports_of
        super().__init__(lock, "any")

    def _make_service(self) -> ConnectionService:
        return DoorService(self, self._open_at, self._agents)

    @property
    def transport(self) -> Transport:
        """None of one device: it has all."""
        return Transport.UNKNOWN
