# SPDX-License-Identifier: Apache-2.0
"""iWARP's door: one TCP socket of all addresses, and for each connection the device of its address."""

from __future__ import annotations

import socket
from errno import EADDRNOTAVAIL, EAFNOSUPPORT
from typing import TYPE_CHECKING

from rnic.enums import Transport
from rnic.errors import VerbsError
from rnic.rdmacm import routes
from rnic.rdmacm.iwcm import sockets
from rnic.rdmacm.iwcm.arrivals import Listening
from rnic.rdmacm.iwcm.manager import IwService
from rnic.rdmacm.names import Option
from rnic.rdmacm.sockaddr import Inet

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.reactor import Reactor
    from rnic.rdmacm.service import OpenAt


class IwDoor:
    """The ids of iWARP at any address of the host; under the registry's lock."""

    transport = Transport.IWARP

    def __init__(self, reactor: Reactor, open_at: OpenAt) -> None:
        self._reactor, self._open_at = reactor, open_at
        self._claims: dict[CmId, IwClaim] = {}

    def claim(self, one: CmId, local: Inet, port: int) -> IwClaim:
        """Bind a TCP port. Raises VerbsError: EADDRINUSE if any program has it at some address."""
        claim = IwClaim(self, one)
        reuse = bool(one.options.get(Option.REUSEADDR))
        missing: VerbsError | None = None
        self._claims[one] = claim
        try:
            for version in (6, 4):
                where = Inet(routes.ANY[version], port)
                if not one.is_among(where.ip, local):
                    continue
                try:
                    claim.sockets.append(sockets.claimed(where, "bind_addr", reuse=reuse))
                except VerbsError as error:
                    if error.errno not in (EADDRNOTAVAIL, EAFNOSUPPORT):  # a host without IPv6
                        raise
                    missing = error
            if missing is not None and not claim.sockets:
                raise missing
        except BaseException:
            claim.close()
            raise
        return claim

    def listen(self, one: CmId) -> None:
        """Take connections from now on."""
        claim = self._claims[one]
        for sock in claim.sockets:
            sockets.listen(sock, "listen")
            claim.listening.append(Listening(self._reactor, one, sock, self._service_of))

    def _service_of(self, sock: socket.socket) -> IwService:
        """The service of the device that has the address to which a connection has come."""
        here = sockets.where_is(sock.getsockname())
        service = self._open_at(self.transport, routes.held_as(here.ip), here.scope).service
        assert isinstance(service, IwService)
        return service

    def unlisten(self, one: CmId) -> None:
        """Take no more."""
        if (claim := self._claims.get(one)) is not None:
            claim.unlisten()

    def share_port(self, one: CmId, *, shared: bool) -> None:
        """Share the port with a socket of one address."""
        claim = self._claims.get(one)
        if claim is not None and not one.options.get(Option.REUSEADDR):  # else it is shared
            for sock in claim.sockets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shared)

    def forget(self, one: CmId) -> None:
        """An id gives its port back."""
        self._claims.pop(one, None)

    def close(self) -> None:
        """Close everything; also in a forked child, whose descriptors are copies."""
        for claim in self._claims.values():
            for sock in claim.sockets:
                sock.close()


class IwClaim:
    """A port that an id has at every address."""

    def __init__(self, door: IwDoor, one: CmId) -> None:
        self._door, self._one = door, one
        self.sockets: list[socket.socket] = []
        self.listening: list[Listening] = []

    def unlisten(self) -> None:
        """Take no more connections."""
        while self.listening:
            self.listening.pop().close()

    def close(self) -> None:
        """Give it back; a second call does nothing."""
        self.unlisten()
        self._door.forget(self._one)
        while self.sockets:
            self.sockets.pop().close()
