# SPDX-License-Identifier: Apache-2.0
"""Options of several commands, and the meaning of addresses on the command line."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, TypeVar

import click

from rnic.cli import network, params
from rnic.cli.params import Failure
from rnic.rdmacm import AddrInfo, CmId, PortSpace, getaddrinfo
from rnic.records import Record

SockAddr = tuple[str, int] | tuple[str, int, int, int]
_F = TypeVar("_F", bound=Callable[..., Any])

EVERY = "::"  # all addresses, those of IPv4 too
RESOLVE_MS = 2000  # for the neighbour to answer, as the originals give it


def all_of(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Several options as one decorator, in the order in which help shows them."""

    def decorate(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


timeout = click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Give up after this many seconds in which nothing happens (0: never).",
)


def port(default: int, *names: str) -> Callable[[_F], _F]:
    """The option for the server's port."""
    return click.option(
        *names,
        "port",
        type=params.number(0, 65535),
        default=default,
        show_default=True,
        help="Port of the server; 0: a server takes a free one.",
    )


load = all_of(
    click.option(
        "-c", "connections", type=params.number(1), default=1, show_default=True, help="Connections."
    ),
    click.option(
        "-C", "count", type=params.number(0), default=10, show_default=True, help="Messages on each."
    ),
    click.option(
        "-S", "size", type=params.size(1 << 31), default=100, show_default=True, help="Bytes in a message."
    ),
)

ends = all_of(
    click.option("-s", "server", metavar="ADDRESS", help="The server; without it: be the server."),
    click.option("-b", "bind", metavar="ADDRESS", help="The local address to use."),
    click.option(
        "-f",
        "form",
        type=click.Choice(["name", "ip", "ipv6", "gid"], case_sensitive=False),
        default="name",
        show_default=True,
        help="Format of addresses: names, or numbers (gid: not supported).",
    ),
    click.option("-t", "tos", type=params.number(0, 255), help="Type of service."),
)


def not_supported(option: str, words: str) -> Failure:
    """The error for an option that rnic does not support."""
    return Failure(f"{option}: {words}: operation not supported (EOPNOTSUPP)")


class Where(Record):
    """The two addresses of a command line, looked up."""

    source: SockAddr | None
    server: SockAddr | None
    """None: this end is the server."""


def look_up(server: str | None, bind: str | None, port: int, *, form: str = "name", ps: PortSpace) -> Where:
    """Find the addresses; a server without one listens at all of IPv4 and IPv6."""
    if form == "gid":
        raise not_supported("-f gid", "addresses of the family AF_IB")
    numeric = form != "name"
    if server is None:
        return Where(_first(bind or EVERY, port, AddrInfo(passive=True, numeric_host=numeric, ps=ps)), None)
    if port == 0:
        raise click.UsageError("a client needs the server's port, which cannot be 0")
    target = _first(server, port, AddrInfo(numeric_host=numeric, ps=ps))
    family = socket.AF_INET6 if len(target) == 4 else socket.AF_INET
    hints = AddrInfo(numeric_host=numeric, ps=ps, family=family)
    return Where(_first(bind, 0, hints) if bind else None, target)


def _first(node: str, port: int, hints: AddrInfo) -> SockAddr:
    found = getaddrinfo(node, port, hints)[0]
    address = found.src_addr if hints.passive else found.dst_addr
    assert address is not None
    return address


SHARED = ("connections", "count", "size", "space", "space_number")  # what both ends need alike


def announce(listener: CmId, *client: str) -> None:
    """Tell, with these words and the address, that clients may connect now."""
    (host, port, *_) = listener.get_local_addr()
    shared = [*network.given(*SHARED), *network.port_words(port)]
    network.announce(host, port, lambda address: ["rnic", *client, address, *shared])
