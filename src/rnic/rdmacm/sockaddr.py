# SPDX-License-Identifier: Apache-2.0
"""Addresses in the form of the socket module, (host, port), and in the form that rnic uses inside."""

from __future__ import annotations

import operator
import socket
from errno import EADDRNOTAVAIL, EINVAL
from ipaddress import IPv4Address, IPv6Address, ip_address

from rnic.errors import VerbsError
from rnic.records import Record
from rnic.wording import unknown_name

IP = IPv4Address | IPv6Address
SockAddr = tuple[str, int] | tuple[str, int, int, int]
"""(host, port), or for IPv6 (host, port, flow info, scope id): what socket.getsockname() returns."""


class Inet(Record):
    """An address, a port, and the interface of a link-local address."""

    ip: IP
    port: int
    scope: int = 0

    @property
    def sockaddr(self) -> SockAddr:
        """The address in the form of the socket module."""
        if self.ip.version == 4:
            return (str(self.ip), self.port)
        return (str(self.ip), self.port, 0, self.scope)


def parse(address: SockAddr, verb: str) -> Inet:
    """Read an address; a name is looked up. Raises VerbsError, EINVAL or EADDRNOTAVAIL, if it is not an
    address.
    """
    host, port = _of_types(address, verb)
    if not host:  # the resolver takes that for this host
        raise VerbsError(EINVAL, "the host is empty: give an address or a name", verb)
    if not 0 <= port < 1 << 16:
        raise VerbsError(EINVAL, f"a port is a number from 0 to 65535, not {port!r}", verb)
    scope = address[3] if len(address) == 4 else 0
    plain, _, zone = host.partition("%")
    try:
        ip = ip_address(plain)
    except ValueError:
        return _look_up(host, port, verb)[0]
    return Inet(ip, port, _scope(zone, verb) if zone else scope)


def is_name(host: object) -> bool:
    """Whether parse() would look the host up, which takes time."""
    if not isinstance(host, str):
        return False
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return bool(host)
    return False


def hosts(host: str, port: int, verb: str) -> list[str]:
    """Look a name up, and return its addresses in the order to try them; an address stays as it is."""
    if not is_name(host):
        return [host]
    return [f"{one.ip}%{one.scope}" if one.scope else str(one.ip) for one in _look_up(host, port, verb)]


def _of_types(address: object, verb: str) -> tuple[str, int]:
    """Host and port, or a TypeError that says what an address is."""
    if not isinstance(address, (tuple, list)) or len(address) not in (2, 4):
        raise TypeError(f"{verb}: an address is a tuple (host, port), not {address!r}")
    host, port = address[0], address[1]
    if not isinstance(host, str):
        raise TypeError(f"{verb}: a host is a str, not {type(host).__name__}")
    try:
        return host, operator.index(port)
    except TypeError:
        raise TypeError(f"{verb}: a port is an int, not {type(port).__name__}") from None


def _scope(zone: str, verb: str) -> int:
    try:
        return socket.if_nametoindex(socket.if_indextoname(int(zone)) if zone.isdecimal() else zone)
    except (OSError, OverflowError, ValueError):
        raise VerbsError(EADDRNOTAVAIL, f"there is no network interface {zone!r} here", verb) from None


def _look_up(host: str, port: int, verb: str) -> list[Inet]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise VerbsError(EADDRNOTAVAIL, unknown_name(host, port, error), verb) from None
    return [parse(one[4], verb) for one in found]  # type: ignore[arg-type] # addresses of the two families
