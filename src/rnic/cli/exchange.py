# SPDX-License-Identifier: Apache-2.0
"""The exchange of queue pair addresses before a ping-pong: ibv_rc_pingpong's, over TCP.

Client and server each send one message of 52 bytes, text with its final NUL:

    LID : QPN : PSN : GID        "%04x:%06x:%06x:" and 32 hexadecimal digits

The client sends first. The server connects its queue pair, then answers. The client says "done\\0" and both
close. So the server can receive before the client can send.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rnic.cli.params import Failure
from rnic.records import Record
from rnic.times import bounded
from rnic.wording import nobody_listens, place, port_taken, unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGE = re.compile(rb"([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{32})\0", re.IGNORECASE)
MESSAGE_BYTES = len("0000:000000:000000:") + 32 + 1
DONE = b"done\0"


class PeerAddress(Record):
    """The address of a queue pair, which its peer needs to connect to it."""

    lid: int  # local identifier of InfiniBand's port; 0 on Ethernet
    qp_num: int
    psn: int  # of the first packet that this end sends
    gid: bytes  # 16 bytes

    def encode(self) -> bytes:
        """The 52 bytes of the exchange."""
        return f"{self.lid:04x}:{self.qp_num:06x}:{self.psn:06x}:{self.gid.hex()}\0".encode()

    @classmethod
    def parse(cls, message: bytes) -> PeerAddress:
        """Read a message of the exchange. Raises ValueError if it is malformed."""
        match = MESSAGE.fullmatch(message)
        if match is None:
            raise ValueError(f"{message!r} is not the address of a queue pair")
        lid, qp_num, psn = (int(field, 16) for field in match.groups()[:3])
        return cls(lid, qp_num, psn, bytes.fromhex(match[4].decode()))

    def __str__(self) -> str:
        """As ibv_rc_pingpong prints it."""
        gid = socket.inet_ntop(socket.AF_INET6, self.gid)
        return f"LID 0x{self.lid:04x}, QPN 0x{self.qp_num:06x}, PSN 0x{self.psn:06x}, GID {gid}"


def send_address(sock: socket.socket, address: PeerAddress) -> None:
    """Sends one message; Failure when the peer is gone."""
    send_addresses(sock, [address])


def send_addresses(sock: socket.socket, addresses: list[PeerAddress]) -> None:
    """Sends a message for each; Failure when the peer is gone."""
    with _failures("sending the local address"):
        sock.sendall(b"".join(address.encode() for address in addresses))


def receive_address(sock: socket.socket) -> PeerAddress:
    """Receive the peer's message. Raises Failure if the peer closes, is silent too long, or sends something
    else.
    """
    message = _receive(sock, MESSAGE_BYTES, "waiting for the peer's address")
    try:
        return PeerAddress.parse(message)
    except ValueError as error:
        raise Failure(f"the peer does not speak the exchange of ibv_rc_pingpong: {error}") from None


def send_done(sock: socket.socket) -> None:
    """Send the client's last message."""
    with _failures("ending the exchange"):
        sock.sendall(DONE)


def receive_done(sock: socket.socket) -> None:
    """Wait for the client's last message: from now on the client may send."""
    word = _receive(sock, len(DONE), "waiting for the peer to end the exchange")
    if word != DONE:
        raise Failure(f'the peer ended the exchange with {word!r} instead of "done"')


def tell(sock: socket.socket, data: bytes, doing: str) -> None:
    """Send bytes of another exchange. Raises Failure, with what was being done, if the peer is gone."""
    with _failures(doing):
        sock.sendall(data)


def hear(sock: socket.socket, length: int, doing: str) -> bytes:
    """Receive exactly this many bytes of another exchange. Raises Failure if the peer closes or is silent too
    long.
    """
    return _receive(sock, length, doing)


def connect(host: str, port: int, timeout: float | None) -> socket.socket:
    """A TCP connection to the server; Failure when there is none within timeout seconds."""
    if not host:
        raise Failure("could not connect: the host's name is empty")  # the resolver takes that for this host
    try:
        sock = socket.create_connection((host, port), bounded(timeout))
    except (socket.gaierror, UnicodeError) as error:
        raise Failure(unknown_name(host, port, error)) from None
    except ConnectionRefusedError:
        raise Failure(nobody_listens(host, port)) from None
    except OSError as error:
        raise Failure(f"could not connect to {place(host, port)}: {error.strerror or error}") from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def listen(port: int, host: str = "") -> socket.socket:
    """A listening socket, of every IPv4 and IPv6 address when host is empty; port 0 takes any free one."""
    try:
        if not host and socket.has_dualstack_ipv6():
            try:
                return socket.create_server(
                    ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1
                )
            except OSError as error:
                if not _no_ipv6(error):
                    raise
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1)
    except (socket.gaierror, UnicodeError) as error:
        raise Failure(unknown_name(host, port, error)) from None
    except OSError as error:
        raise Failure(_why(host or "::", port, error)) from None


def _why(host: str, port: int, error: OSError) -> str:
    """Without what the socket module adds."""
    if error.errno == errno.EADDRINUSE:
        return port_taken(host, port)
    why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return f"could not listen at {place(host, port)}: {why}"


def _no_ipv6(error: OSError) -> bool:
    """Whether this machine has IPv6 compiled in, but switched off."""
    return error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def accept(listener: socket.socket, timeout: float | None) -> socket.socket:
    """The first client; the timeout is that of later sends and receives, the wait itself has none."""
    sock, _ = listener.accept()
    sock.settimeout(bounded(timeout))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _receive(sock: socket.socket, length: int, doing: str) -> bytes:
    """Receive exactly `length` bytes."""
    received = b""
    with _failures(doing):
        while len(received) < length:
            part = sock.recv(length - len(received))
            if not part:
                got = f"after {len(received)} of {length} bytes" if received else "without a word"
                raise Failure(f"{doing}: the peer closed the TCP connection {got}")
            received += part
    return received


@contextmanager
def _failures(doing: str) -> Iterator[None]:
    """Turns what goes wrong on the TCP connection into words."""
    try:
        yield
    except TimeoutError:
        raise Failure(f"{doing}: the peer said nothing in time") from None
    except OSError as error:
        raise Failure(f"{doing}: the TCP connection failed: {error.strerror or error}") from None
