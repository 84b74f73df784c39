# SPDX-License-Identifier: Apache-2.0
"""TCP ports of ids: one that is bound has a socket at each of its addresses, one that only calls has one."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from errno import EADDRNOTAVAIL
from typing import TYPE_CHECKING

from rnic.errors import VerbsError
from rnic.rdmacm import routes
from rnic.rdmacm.iwcm import sockets
from rnic.rdmacm.names import Option
from rnic.rdmacm.sockaddr import IP, Inet

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.iwcm.manager import IwService


class Bound:
    """A port that an id has bound: the claim of the service."""

    def __init__(self, service: IwService, one: CmId, made: list[socket.socket]) -> None:
        self._service, self.one, self.sockets = service, one, made

    def take(self, ip: IP) -> socket.socket | None:
        """The socket at an address, to connect by; it is not this object's any more."""
        for sock in self.sockets:
            if sockets.where_is(sock.getsockname()).ip == ip:
                self.sockets.remove(sock)
                return sock
        return None

    def has(self, ip: IP) -> bool:
        """Whether there is a socket at an address."""
        return any(sockets.where_is(sock.getsockname()).ip == ip for sock in self.sockets)

    def close(self) -> None:
        """Give the port back; a second call does nothing."""
        self._service.forget(self)
        for sock in self.sockets:
            sock.close()
        self.sockets.clear()


class Ports:
    """The ports of this process at the addresses of a network interface; under the registry's lock."""

    def __init__(self, ifindex: int) -> None:
        self._ifindex = ifindex
        self._taken: dict[tuple[IP, int], socket.socket] = {}

    def claim(self, one: CmId, local: Inet, port: int) -> list[socket.socket]:
        """Sockets at the id's address, or at all addresses of the interface of its family: none while it has
        none of that family, as address_came() adds later ones.

        Raises VerbsError: EADDRINUSE if any process has the port at one of them.
        """
        found: list[socket.socket] = []
        with ExitStack() as undo:
            for ip in self._ips_of(one, local):
                try:
                    found.append(undo.enter_context(self.bound(one, ip, port)))
                except VerbsError as error:
                    if error.errno != EADDRNOTAVAIL or not local.ip.is_unspecified:
                        raise
            undo.pop_all()
        return found

    def bound(self, one: CmId, ip: IP, port: int) -> socket.socket:
        """A socket for an id at one address."""
        reuse = bool(one.options.get(Option.REUSEADDR))
        return sockets.claimed(Inet(ip, port, self.scope_of(ip)), "bind_addr", reuse=reuse)

    def _ips_of(self, one: CmId, local: Inet) -> list[IP]:
        """The addresses to which an id is bound."""
        if not local.ip.is_unspecified:
            return [local.ip]
        # An interface may have one several times, with other prefixes.
        own = dict.fromkeys(ip for index, ip in routes.addresses() if index == self._ifindex)
        return [ip for ip in own if one.is_among(ip, local)]

    def is_for(self, one: CmId, ip: IP) -> bool:
        """Whether an id is bound to any address, and this is one."""
        return one.local.ip.is_unspecified and one.is_among(ip, one.local)

    def scope_of(self, ip: IP) -> int:
        """The scope id of an address of the interface, or of a peer there."""
        return self._ifindex if ip.version == 6 and ip.is_link_local else 0

    # ------------------------------------------------------------------ to connect from

    def take(self, ip: IP, verb: str) -> int:
        """A free port, which is kept until it is used or given back."""
        sock = sockets.bound(Inet(ip, 0, self.scope_of(ip)), verb)
        port: int = sock.getsockname()[1]
        self._taken[ip, port] = sock
        return port

    def use(self, local: Inet, verb: str) -> socket.socket:
        """The socket of a port that was taken; or of one that was used before, for one more try."""
        sock = self._taken.pop((local.ip, local.port), None)
        return sock or sockets.bound(local, verb, reuse=True)

    def give(self, ip: IP, port: int) -> None:
        """Give back a port that was taken and not used."""
        if (sock := self._taken.pop((ip, port), None)) is not None:
            sock.close()

    def close(self) -> None:
        """Give all back; also in a forked child, whose descriptors are copies."""
        for sock in self._taken.values():
            sock.close()
        self._taken.clear()
