# SPDX-License-Identifier: Apache-2.0
"""Addresses of this host: where its processes meet, what clients of a server call, and the cure for none."""

from __future__ import annotations

import fcntl
import shlex
import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from ipaddress import IPv4Address

import click
from click.core import ParameterSource

import rnic
from rnic.cli.params import Failure
from rnic.rdmacm.routes import addresses
from rnic.rdmacm.sockaddr import IP

LOOPBACK = "lo"
LOOPBACK_CURE = f"ip link set {LOOPBACK} up"
ADDRESS_CURE = "ip addr add ADDRESS dev NAME"
SIOCGIFFLAGS, IFF_UP = 0x8913, 1  # netdevice(7)
EVERY = ("", "0.0.0.0", "::")  # what listens at all addresses: the first and the last of both families
MORE = "and `rnic doctor` looks for more"


def trouble() -> str | None:
    """Tell what every command lacks on this host, and the cure; None: nothing."""
    if not loopback_is_up():
        return f"the network interface {LOOPBACK} is down: `{LOOPBACK_CURE}` brings it up, {MORE}"
    if not addresses():
        return f"no network interface has an address: `{ADDRESS_CURE}` gives one, {MORE}"
    return None


def loopback_is_up() -> bool:
    """Tell whether processes of this host reach each other by IP; they do not by other interfaces alone."""
    asked = struct.pack("16sH14x", LOOPBACK.encode(), 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, suppress(OSError):
        (flags,) = struct.unpack("16xH14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, asked))
        return bool(flags & IFF_UP)
    return True


def here(device: rnic.Device | None = None) -> str:
    """Return the address at which two processes of this host meet, or their devices if they take this one.

    Failure when there is none.
    """
    if why := trouble():
        raise Failure(why)
    known = [one for one in addresses() if device is None or one[0] == device.index]
    if device is not None and not known:
        why = f"the network interface {device.netdev} has no address: `{ADDRESS_CURE}` gives one"
        raise Failure(f"{device.name}: {why}")
    return _text(min(known, key=lambda one: (not one[1].is_loopback, *_distance(one))))


def reached_at(host: str) -> list[str]:
    """Return the addresses by which a server at `host` is called, those for other hosts first."""
    if host not in EVERY:
        return [host]
    known = [one for one in addresses() if host != "0.0.0.0" or isinstance(one[1], IPv4Address)]
    wide = [one for one in known if not one[1].is_link_local] or known
    return list(dict.fromkeys(map(_text, sorted(wide, key=_distance)))) or [host]


def _distance(one: tuple[int, IP]) -> tuple[bool, bool, int]:
    ip = one[1]
    return ip.is_link_local, ip.is_loopback, ip.version


def _text(one: tuple[int, IP]) -> str:
    """An address as it is called; one of a link is one together with the network interface."""
    index, ip = one
    return f"{ip}%{socket.if_indextoname(index)}" if ip.is_link_local and ip.version == 6 else str(ip)


# ---------------------------------------------------------------------- what a server says


Client = Callable[[str], Iterable[str]]
"""From an address to the arguments of the client's command."""


def announce(host: str, port: int, client: Client) -> None:
    """Say where a server listens from now on, and which command is its client."""
    places = reached_at(host)
    click.echo(f"listening on port {port} of {', '.join(places)}", err=True)
    click.echo(f"client: {shlex.join(client(places[0]))}", err=True)


def given(*names: str) -> list[str]:
    """Return the words on this command line for these options, which the other end needs as well."""
    context, words = click.get_current_context(), []
    for param in context.command.params:
        if param.name in names and context.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            words.append(param.opts[0])
            words += [] if getattr(param, "is_flag", False) else [str(context.params[param.name])]
    return words


def port_words(port: int) -> list[str]:
    """Return what a client says of the server's port: nothing if it would call that one anyway."""
    (param,) = (one for one in click.get_current_context().command.params if one.name == "port")
    return [] if port == param.default else [param.opts[0], str(port)]
