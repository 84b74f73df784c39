# SPDX-License-Identifier: Apache-2.0
"""TCP sockets that never block: how they are made, bound and connected, and which errors say what."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from errno import (
    EADDRINUSE,
    EADDRNOTAVAIL,
    EAGAIN,
    EINPROGRESS,
    EINTR,
    EMFILE,
    ENFILE,
    ENOBUFS,
    ENOMEM,
)
from ipaddress import ip_address

from rnic.errors import VerbsError, exhausted
from rnic.rdmacm.sockaddr import IP, Inet, SockAddr
from rnic.wording import port_taken

SCARCE = (EMFILE, ENFILE, ENOBUFS, ENOMEM)
"""What is missing here; it says nothing of the peer."""
_NOT_NOW = (EAGAIN, EINTR, EINPROGRESS)
_BACKLOG = 4096  # connections that the kernel has made and nobody has accepted yet
_TOS, _TCLASS = (socket.IPPROTO_IP, socket.IP_TOS), (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: a reset instead of a farewell
_USER_TIMEOUT = 20.0  # seconds: how long the peer may not acknowledge
_IDLE = 20  # seconds until an idle peer is asked whether it lives,
_BETWEEN = 5  # and between two such questions


def _family(ip: IP) -> socket.AddressFamily:
    return socket.AF_INET if ip.version == 4 else socket.AF_INET6


def where_is(name: SockAddr) -> Inet:
    """An address of the socket module."""
    return Inet(ip_address(name[0].partition("%")[0]), name[1], name[3] if len(name) == 4 else 0)


def bound(where: Inet, verb: str, *, reuse: bool = False) -> socket.socket:
    """A socket at an address and port, 0: a free one.

    Without `reuse` nobody else can bind the port. Raises VerbsError: EADDRINUSE, EADDRNOTAVAIL, EACCES.
    """
    sock = made(where.ip, verb)
    try:
        if reuse:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where.sockaddr)
    except OSError as error:
        sock.close()
        raise _not_bound(where, error.errno or EADDRNOTAVAIL, verb) from None
    except BaseException:
        sock.close()
        raise
    return sock


def made(ip: IP, verb: str) -> socket.socket:
    """A socket for addresses of a family. Raises VerbsError: EMFILE if no descriptor is left."""
    try:
        sock = socket.socket(_family(ip), socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    except OSError as error:
        raise VerbsError(error.errno or EMFILE, exhausted(error.errno or EMFILE), verb) from None
    if ip.version == 6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return sock


def _not_bound(where: Inet, errno: int, verb: str) -> VerbsError:
    if errno == EADDRINUSE:
        return VerbsError(errno, port_taken(str(where.ip), where.port), verb)
    return VerbsError(errno, f"TCP port {where.port} of {where.ip}: {os.strerror(errno)}", verb)


def claimed(where: Inet, verb: str, *, reuse: bool) -> socket.socket:
    """A socket that has a port for an id.

    The port is this socket's alone, also where old connections of it are in TIME_WAIT. Binding beside these
    takes SO_REUSEADDR, with which two may bind a port: it is off again at once. Of two that bind in the same
    moment, or with `reuse`, one can listen.
    """
    if reuse:
        return bound(where, verb, reuse=True)
    try:
        return bound(where, verb)
    except VerbsError as error:
        if error.errno != EADDRINUSE:
            raise
    sock = bound(where, verb, reuse=True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return sock


def listen(sock: socket.socket, verb: str) -> None:
    """Take connections. Raises VerbsError: EADDRINUSE if another socket listens at the port.

    SO_REUSEADDR is for whoever binds the port after this process, beside the connections that are left then.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.listen(_BACKLOG)
    except OSError as error:
        raise _not_bound(where_is(sock.getsockname()), error.errno or EADDRINUSE, verb) from None


def connect(sock: socket.socket, peer: Inet) -> int:
    """Begin to connect: 0, or an errno. The socket is writable when the outcome() is there.

    SO_REUSEADDR is for whoever binds the port when this connection is in TIME_WAIT.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    code = sock.connect_ex(peer.sockaddr)
    return 0 if code in _NOT_NOW else code


def outcome(sock: socket.socket) -> int:
    """How connecting, or the connection, has ended: 0, or an errno."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def accept(listener: socket.socket) -> tuple[socket.socket, SockAddr] | None:
    """The next connection, and its peer; None: there is none. Raises OSError with an errno of SCARCE."""
    try:
        return listener.accept()
    except OSError as error:
        if error.errno in SCARCE:
            raise
        return None  # it has gone already, as accept(2) says


class Spare:
    """A descriptor that is given up to take a connection when no other is left, and to refuse it."""

    def __init__(self) -> None:
        self._fd = -1
        self._take()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def refuse(self, listener: socket.socket) -> bool:
        """Reset the next connection; False: it is still there."""
        if self._fd < 0:
            self._take()
        if self._fd < 0:
            return False
        self.close()
        try:
            found = accept(listener)
        except OSError:
            return False
        if found is not None:
            abort(found[0])
        self._take()
        return found is not None

    def close(self) -> None:
        """Give it back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read(sock: socket.socket, most: int) -> bytes | None:
    """Bytes that have come, b"" at the end; None: none now. Raises OSError."""
    try:
        return sock.recv(most)
    except (BlockingIOError, InterruptedError):
        return None


def write(sock: socket.socket, data: bytes) -> int:
    """How many bytes were taken. Raises OSError."""
    try:
        return sock.send(data, socket.MSG_NOSIGNAL)
    except (BlockingIOError, InterruptedError):
        return 0


def prepare(sock: socket.socket, traffic_class: int, timeout: float | None = None) -> None:
    """What a connection is to be: without delays of the kernel's, and with an end if the peer vanishes.

    `timeout` is how long the peer may not acknowledge what was sent to it, in seconds; None: 20.
    """
    wait = _USER_TIMEOUT if timeout is None else timeout
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(wait * 1000))),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _BETWEEN),
    ]
    if traffic_class:
        is_v4 = sock.family == socket.AF_INET
        level, name = _TOS if is_v4 else _TCLASS
        options.append((level, name, traffic_class))
    for option in options:
        with contextlib.suppress(OSError):  # the connection goes on without
            sock.setsockopt(*option)


def abort(sock: socket.socket) -> None:
    """Close with a reset: the port can be used again at once."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    sock.close()
