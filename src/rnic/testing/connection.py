# SPDX-License-Identifier: Apache-2.0
"""A connection through a way that the program has: the two ends tell each other their addresses."""

from __future__ import annotations

import socket
from typing import Protocol

from rnic.verbs.connect import Address, Options, complete, prepare
from rnic.verbs.qp import QP

__all__ = ["BytesPipe", "connect_through"]

_DEFAULT = Options()


class BytesPipe(Protocol):
    """What multiprocessing.Pipe() makes."""

    def send_bytes(self, buf: bytes) -> None:
        """Send one message."""

    def recv_bytes(self) -> bytes:
        """Wait for one message."""


def connect_through(
    qp: QP, way: socket.socket | BytesPipe, options: Options = _DEFAULT, *, own: Address | None = None
) -> Address:
    """Lead a queue pair from RESET to RTS, with the peer that does the same at the other end of a way.

    The way is a connected stream socket or an end of multiprocessing.Pipe().  Returns the peer's address,
    when both ends can receive.  With `own`, prepare() has been called already (to post receives before the
    peer can send).
    """
    own = own or prepare(qp, options)
    peer = Address.from_bytes(_swap(way, bytes(own)))
    complete(qp, own, peer, options)
    _swap(way, bytes(own))  # which says that this end is ready
    return peer


def _swap(way: socket.socket | BytesPipe, message: bytes) -> bytes:
    """Sends a message and returns the peer's, which has the same length."""
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
