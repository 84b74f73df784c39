# SPDX-License-Identifier: Apache-2.0
"""How processes of a host find who listens, and what they say to each other about requests: the same as
src/nic/names/listen.h and slotmsg.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from time import monotonic_ns

from rnic.log import Log
from rnic.rdmacm.sockaddr import IP

_log = Log("rnic.rdmacm")

ROCE_PORT = 4791
HEADER = struct.Struct("=IHHIIQIBBH28s28s")
"""struct slotmsg: magic, version, type, length, segment, nonce, flow label, hops, traffic class, what of
these is shown, source, destination.
"""
MAGIC, VERSION = 0x524E4943, 1
FORWARD, OWNER_QUERY, OWNER_ANSWER = 1, 2, 3
_FRESH_NS = 250 * 10**6
_SOCKADDR = struct.Struct("=HHI16sI")  # struct sockaddr_in6


def name_at(service: int, ip: IP, scope: int = 0) -> str:
    """The name of who listens for a service at one address."""
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    zone = f"%{scope}" if ip.version == 6 and ip.is_link_local else ""
    return f"\0rnic/1/listen/{service:016x}/{socket.inet_ntop(family, ip.packed)}{zone}"


def name_of_any(service: int, version: int, ifindex: int = 0) -> str:
    """The name of who listens for a service at all addresses of an interface, or (0) of the host."""
    return f"\0rnic/1/listen/{service:016x}/any{version}%{ifindex}"


def life(name: str) -> str:
    """The name of the lifeline."""
    return f"\0life/{name[1:]}"


def is_taken(name: str) -> bool:
    """Whether a process has the name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.connect(life(name))
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # so many look at it that its queue is full
            pass
    return True


def sockaddr(ip: IP, port: int, scope: int = 0) -> bytes:
    """struct sockaddr_in6, IPv4 as ::ffff:a.b.c.d."""
    raw = ip.packed if ip.version == 6 else IPv6Address(f"::ffff:{ip}").packed
    return _SOCKADDR.pack(socket.AF_INET6, socket.htons(port), 0, raw, scope)


def address_of(raw: bytes) -> tuple[IP, int]:
    """The address in struct sockaddr_in6, and its scope."""
    _, _, _, packed, scope = _SOCKADDR.unpack(raw)
    ip = IPv6Address(packed)
    return ip.ipv4_mapped or ip, scope


def forwarded(data: bytes, src: bytes, dst: bytes) -> bytes:
    """The message by which a process hands on a datagram that has come to it."""
    return HEADER.pack(MAGIC, VERSION, FORWARD, len(data), 0, 0, 0, 0, 0, 0, src, dst) + data


def answer(query: bytes, sock: socket.socket, sender: str | bytes) -> None:
    """UDP port 4791 of the address is this process'.

    Only to an abstract name: a path may lead to a socket that the sender may not open itself.
    """
    if not isinstance(sender, bytes) or not sender.startswith(b"\0"):
        return
    fields = list(HEADER.unpack_from(query))
    fields[2:4] = OWNER_ANSWER, 0
    try:
        sock.sendto(HEADER.pack(*fields), sender)
    except OSError as error:  # it asks again
        _log.info("a question is not answered: %s", error)


class Owners:
    """The users who have UDP port 4791 of addresses: the kernel gives them what comes there.

    Strangers may ask at any rate, and its table is long on a busy host: so it is read four times in a second
    at most. Who has just got the port is known by the time a request is repeated.
    """

    def __init__(self) -> None:
        self._read_at = -_FRESH_NS
        self._users: set[tuple[bytes, int]] = set()

    def have(self, uid: int, ip: IP) -> bool:
        """Whether a user has the port of an address, or of all."""
        now = monotonic_ns()
        if now - self._read_at >= _FRESH_NS:
            self._users, self._read_at = set(_owners()), now
        every = ip_address("::" if ip.version == 6 else "0.0.0.0")
        return not self._users.isdisjoint({(sockaddr(ip, 0), uid), (sockaddr(every, 0), uid)})


def _owners() -> Iterator[tuple[bytes, int]]:
    for table in ("/proc/net/udp", "/proc/net/udp6"):
        for line in Path(table).read_text("utf-8").splitlines()[1:]:
            words = line.split()
            where, _, port = words[1].partition(":")
            raw = b"".join(struct.pack("=I", int(where[i : i + 8], 16)) for i in range(0, len(where), 8))
            if int(port, 16) == ROCE_PORT:
                yield sockaddr(ip_address(raw), 0), int(words[7])
