# SPDX-License-Identifier: Apache-2.0
"""Routes and neighbours, as the kernel knows them (rtnetlink(7)), and its ports for callers; nothing is
changed, so no right is needed.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from errno import EINVAL, ENETUNREACH, ENOENT
from ipaddress import IPv4Address, IPv6Address, ip_address

from rnic.records import Record

IP = IPv4Address | IPv6Address

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_RTMSG = struct.Struct("=BBBBBBBBI")
_IFADDR = struct.Struct("=BBBBI")
_NDMSG = struct.Struct("=BBHiHBB")
_ATTR = struct.Struct("=HH")
_ERROR, _DONE = 2, 3
_GETADDR, _GETROUTE, _GETNEIGH = 22, 26, 30
DELLINK, NEWADDR, DELADDR = 17, 20, 21
_REQUEST, _DUMP = 1, 0x300
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_SRC, _RTA_OIF, _RTA_GATEWAY, _RTA_PREFSRC = 1, 2, 4, 5, 7
_NDA_DST = 1
_LOCAL, _MULTICAST = 2, 5  # types of routes: rtnetlink(7)
_REACHABLE = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80  # states of neighbours that have an address
_SIOCGIFFLAGS, _IFF_NOARP = 0x8913, 0x80  # netdevice(7)
_GROUPS = 0x1 | 0x10 | 0x100  # links, IPv4 and IPv6 addresses
DISCARD = 9  # the port of RFC 863
TRIES = 64  # ports that ephemeral() proposes
LOOPBACK: dict[int, IP] = {4: IPv4Address("127.0.0.1"), 6: IPv6Address("::1")}
ANY: dict[int, IP] = {4: IPv4Address(0), 6: IPv6Address(0)}
"""By the version of IP."""


class Way(Record):
    """The route that the kernel would use to an address."""

    source: IP | None  # the local address that it would use
    ifindex: int
    next_hop: IP
    direct: bool  # no neighbour has to be known: our own address, or a group


class Change(Record):
    """An address that is new or was removed, or a network interface that was removed."""

    kind: int  # NEWADDR, DELADDR or DELLINK
    ifindex: int
    address: IP | None


def _family(ip: IP) -> int:
    return socket.AF_INET if ip.version == 4 else socket.AF_INET6


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTR.pack(_ATTR.size + len(value), kind) + value.ljust(-(-len(value) // 4) * 4, b"\0")


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while len(data) >= _ATTR.size:
        length, kind = _ATTR.unpack_from(data)
        if length < _ATTR.size:
            break
        found[kind & 0x3FFF] = data[_ATTR.size : length]
        data = data[-(-length // 4) * 4 :]
    return found


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _HEADER.size:
        length, kind, _, _, _ = _HEADER.unpack_from(data)
        if length < _HEADER.size:
            return
        yield kind, data[_HEADER.size : length]
        data = data[-(-length // 4) * 4 :]


def _ask(kind: int, flags: int, body: bytes) -> Iterator[tuple[int, bytes]]:
    """The kernel's answer; OSError if it refuses."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as s:
        s.send(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, 1, 0) + body)
        while True:
            for answer, data in _messages(s.recv(1 << 16)):
                if answer == _DONE:
                    return
                if answer == _ERROR:
                    (code,) = struct.unpack_from("=i", data)
                    raise OSError(-code, os.strerror(-code))
                yield answer, data
            if not flags & _DUMP:
                return


def _address(kind: int, data: bytes) -> tuple[int, bytes] | None:
    if kind not in (NEWADDR, DELADDR):
        return None
    _, _, _, _, ifindex = _IFADDR.unpack_from(data)
    found = _attributes(data[_IFADDR.size :])
    raw = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS)
    return (ifindex, raw) if raw else None


def _addresses(family: int) -> list[tuple[int, bytes]]:
    asked = _ask(_GETADDR, _DUMP, _IFADDR.pack(family, 0, 0, 0, 0))
    return [one for kind, data in asked if (one := _address(kind, data)) is not None]


def addresses(family: int = socket.AF_UNSPEC) -> list[tuple[int, IP]]:
    """The addresses of this network namespace, each with the index of its network interface."""
    return [(index, ip_address(raw)) for index, raw in _addresses(family)]


def interfaces_of(ip: IP) -> list[int]:
    """The indices of the network interfaces that have an address; a link-local one may be on several."""
    return [index for index, raw in _addresses(_family(ip)) if raw == ip.packed]


def held_as(ip: IP) -> IP:
    """The address by which an interface has this one: for all others of 127/8, which the kernel takes as this
    host without an interface's having them, 127.0.0.1.
    """
    if ip.version == 6 or not ip.is_loopback or ip == LOOPBACK[4] or interfaces_of(ip):
        return ip
    return LOOPBACK[4]


def way_to(dst: IP, src: IP | None = None, ifindex: int = 0) -> Way:
    """The route to an address; OSError with the kernel's errno if there is none."""
    body = _RTMSG.pack(_family(dst), 8 * len(dst.packed), 0, 0, 0, 0, 0, 0, 0)
    body += _attribute(_RTA_DST, dst.packed)
    if src is not None:
        body += _attribute(_RTA_SRC, src.packed)
    if ifindex:
        body += _attribute(_RTA_OIF, struct.pack("=I", ifindex))
    for _, data in _ask(_GETROUTE, 0, body):
        kind = _RTMSG.unpack_from(data)[7]
        found = _attributes(data[_RTMSG.size :])
        source = found.get(_RTA_PREFSRC)
        gateway = found.get(_RTA_GATEWAY)
        return Way(
            source=src or (ip_address(source) if source else None),
            ifindex=struct.unpack("=I", found[_RTA_OIF])[0] if _RTA_OIF in found else 0,
            next_hop=ip_address(gateway) if gateway else dst,
            direct=kind == _LOCAL or dst.is_multicast,
        )
    raise OSError(ENETUNREACH, os.strerror(ENETUNREACH))


def is_neighbour_known(ip: IP, ifindex: int) -> bool:
    """Whether the kernel has a hardware address for the next hop, or needs none."""
    body = _NDMSG.pack(_family(ip), 0, 0, ifindex, 0, 0, 0) + _attribute(_NDA_DST, ip.packed)
    try:
        for _, data in _ask(_GETNEIGH, 0, body):
            return bool(_NDMSG.unpack_from(data)[4] & _REACHABLE)
    except OSError as error:
        if error.errno not in (ENOENT, EINVAL):
            raise
    return _has_no_neighbours(ifindex)


def _has_no_neighbours(ifindex: int) -> bool:
    """Whether an interface is without hardware addresses, as a tunnel is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            asked = struct.pack("16s16x", socket.if_indextoname(ifindex).encode())
            (flags,) = struct.unpack_from("=H", fcntl.ioctl(sock, _SIOCGIFFLAGS, asked), 16)
        except OSError:  # it has gone
            return False
    return bool(flags & _IFF_NOARP)


def provoke(dst: IP, src: IP, ifindex: int) -> None:
    """Make the kernel resolve the neighbour: send an empty datagram to the discard port."""
    scope = ifindex if dst.is_link_local else 0
    with socket.socket(_family(dst), socket.SOCK_DGRAM) as s:
        s.setblocking(False)
        try:
            if dst.version == 4:
                s.bind((str(src), 0))
                s.sendto(b"", (str(dst), DISCARD))
            else:
                s.bind((str(src), 0, 0, ifindex if src.is_link_local else 0))
                s.sendto(b"", (str(dst), DISCARD, 0, scope))
        except OSError:
            pass  # the time limit speaks


def ephemeral() -> list[int]:
    """Ports to try, from the kernel's range for outgoing connections."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as f:  # noqa: PTH123 - a name of the kernel's
            low, high = map(int, f.read().split())
    except (OSError, ValueError):
        low, high = 32768, 60999
    return [low + one % (high - low + 1) for one in struct.unpack(f"{TRIES}I", os.urandom(4 * TRIES))]


class Changes:
    """Reports new and removed addresses, and removed network interfaces: fileno() and take()."""

    def __init__(self) -> None:
        self.sock = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 0
        )
        self.sock.bind((0, _GROUPS))

    def fileno(self) -> int:
        """Readable when there may be news."""
        return self.sock.fileno()

    def take(self) -> list[Change]:
        """What has changed since the last call."""
        found: list[Change] = []
        while True:
            try:
                data = self.sock.recv(1 << 16)
            except OSError:  # nothing more, or more than the kernel kept for us
                return found
            found += [change for kind, body in _messages(data) if (change := _change(kind, body))]

    def close(self) -> None:
        """Close the descriptor."""
        self.sock.close()


def _change(kind: int, body: bytes) -> Change | None:
    if kind == DELLINK:
        (ifindex,) = struct.unpack_from("=4xi", body)
        return Change(kind, ifindex, None)
    if kind in (NEWADDR, DELADDR) and (found := _address(kind, body)):
        return Change(kind, found[0], ip_address(found[1]))
    return None
