# SPDX-License-Identifier: Apache-2.0
"""iWARP without RDMA-CM: the TCP connection of two queue pairs whose programs know each other's Address.

Each end listens at an address of its network interface.  Of the two, the one whose Address comes first
connects to the other, and says by its Address that it is the one that is waited for.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from contextlib import suppress
from pathlib import Path
from time import monotonic

__all__ = ["Meeting", "addresses"]

_SIOCGIFADDR = 0x8915
_LIMIT = 60.0  # seconds that the peer has to come

IP = ipaddress.IPv4Address | ipaddress.IPv6Address


def addresses(netdev: str) -> list[IP]:
    """The addresses of a network interface: its first one of IPv4, then those of IPv6."""
    found: list[IP] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks, suppress(OSError):
        answer = fcntl.ioctl(asks, _SIOCGIFADDR, struct.pack("16s24x", netdev.encode()))
        found.append(ipaddress.IPv4Address(answer[20:24]))
    with suppress(OSError):
        rows = (row.split() for row in Path("/proc/net/if_inet6").read_text().splitlines())
        found += [ipaddress.IPv6Address(bytes.fromhex(row[0])) for row in rows if row[-1] == netdev]
    return found


class Meeting:
    """The end that listens, until it has met its peer or is dropped."""

    def __init__(self, ip: IP, scope: int) -> None:
        self.ip = ip
        """Where it listens, and"""
        self._scope = scope if ip.is_link_local else 0
        self._listener = socket.socket(_family(ip))
        self._listener.bind(self._at(ip, 0))
        self._listener.listen()
        self.port: int = self._listener.getsockname()[1]
        """by which port."""

    def __del__(self) -> None:
        self._listener.close()

    def __reduce__(self) -> tuple[object, ...]:
        """In another process there is none."""
        return _nobody, ()

    def _at(self, ip: IP, port: int) -> tuple[object, ...]:
        return (str(ip), port, 0, self._scope) if ip.version == 6 else (str(ip), port)

    def go(self, own: bytes, ip: IP, port: int) -> socket.socket:
        """Connect to the peer, and say who has come."""
        sock = socket.socket(_family(ip))
        try:
            sock.settimeout(_LIMIT)
            sock.bind(self._at(self.ip, 0))
            sock.connect(self._at(ip, port))
            sock.sendall(own)
        except BaseException:
            sock.close()
            raise
        self._listener.close()
        return sock

    def wait(self, peer: bytes) -> socket.socket:
        """Wait for the peer, and leave out others. Raises TimeoutError."""
        until = monotonic() + _LIMIT
        try:
            while True:
                self._listener.settimeout(max(until - monotonic(), 0.001))
                sock, _ = self._listener.accept()
                if _says(sock, peer, until):
                    self._listener.close()
                    return sock
                sock.close()
        except TimeoutError:
            text = f"the peer has not connected within {_LIMIT:g} s: it makes the same call at the same time"
            raise TimeoutError(text) from None


def _nobody() -> None:
    return None


def _family(ip: IP) -> socket.AddressFamily:
    return socket.AF_INET6 if ip.version == 6 else socket.AF_INET


def _says(sock: socket.socket, wanted: bytes, until: float) -> bool:
    """Whether these bytes come first."""
    found = b""
    with suppress(OSError):
        while len(found) < len(wanted):
            sock.settimeout(max(until - monotonic(), 0.001))
            part = sock.recv(len(wanted) - len(found))
            if not part:
                break
            found += part
    return found == wanted
