# SPDX-License-Identifier: Apache-2.0
"""Connect two queue pairs over a socket or pipe of the program: the two ends exchange their addresses."""

from __future__ import annotations

import socket
from typing import Protocol

from rnic.verbs.connect import Address, Options, complete, prepare
from rnic.verbs.qp import QP

__all__ = ["BytesPipe", "connect_through"]

_DEFAULT = Options()


class BytesPipe(Protocol):
    """An end of multiprocessing.Pipe()."""

    def send_bytes(self, buf: bytes) -> None:
        """Send one message."""

    def recv_bytes(self) -> bytes:
        """Wait for one message."""


def connect_through(
    qp: QP, way: socket.socket | BytesPipe, options: Options = _DEFAULT, *, own: Address | None = None
) -> Address:
    """Connect a queue pair with the peer's, over a socket or pipe; the peer makes the same call at the other
    end.

    `way` is a connected stream socket or an end of multiprocessing.Pipe(). The queue pair goes from RESET to
    RTS. The call returns the peer's address, when both ends can receive. To post receives before the peer can
    send, call prepare() first, and give its result as `own`.
    """
    own = own or prepare(qp, options)
    peer = Address.from_bytes(_swap(way, bytes(own)))
    complete(qp, own, peer, options)
    _swap(way, bytes(own))  # which says that this end is ready
    return peer


def _swap(way: socket.socket | BytesPipe, message: bytes) -> bytes:
    """Send a message, and return the peer's, which has the same length."""
    if not isinstance(way, socket.socket):
        way.send_bytes(message)
        return way.recv_bytes()
    way.sendall(message)
    received = b""
    while len(received) < len(message):
        part = way.recv(len(message) - len(received))
        if not part:
            raise ConnectionError("the peer closed the socket before the queue pairs were connected")
        received += part
    return received
