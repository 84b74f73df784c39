# SPDX-License-Identifier: Apache-2.0
"""What the ends say to each other: JSON, one object a line, over TCP.

    client                              server
    hello    plan                       hello    its machine (or error: it was given other options)
    end      queue pairs                end      likewise; with RDMA-CM its port alone
    linked   memory                     linked   likewise: queue pairs are ready
    run      size                       ready    receives are posted; now both are in their loops
    over                                over     CPU time, and what it streamed; then the next run
    results  all rows

Either end says `error`, with a text, before it goes.
"""

from __future__ import annotations

import json
import select
import socket
from time import monotonic
from typing import Any

from rnic.cli.params import Failure, printable

QUIET = (
    10.0  # seconds after which an end that has to answer is taken for gone; one that dies is known at once
)
LONGEST = 1 << 20
Message = dict[str, Any]


class Gone(Failure):
    """The other end has closed the connection, or does not answer at all."""


class Line:
    """A TCP connection to the other end."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.sock = sock
        self.peer = peer  # "server" or "client"
        self._pending = b""
        # A host that vanishes says nothing: the kernel asks.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._news, self._end = select.poll(), select.poll()
        self._news.register(sock, select.POLLIN)
        self._end.register(sock, select.POLLRDHUP)

    def has_news(self, seconds: float = 0) -> bool:
        """Whether there is something to hear, be it that the connection has ended."""
        return bool(self._news.poll(seconds * 1000))

    def has_ended(self) -> bool:
        """Whether the other end has closed it; what it said before may wait to be heard."""
        return bool(self._end.poll(0))

    def fileno(self) -> int:
        """Of the socket."""
        return self.sock.fileno()

    def say(self, kind: str, **more: object) -> None:
        """Send a message; Failure when the other end is gone."""
        try:
            self.sock.settimeout(QUIET)
            self.sock.sendall(json.dumps({"kind": kind, **more}).encode() + b"\n")
        except OSError:
            raise self.gone() from None

    def hear(self, kind: str, seconds: float | None = QUIET) -> Message:
        """The next message, which must be of that kind; None waits as long as the other end lives."""
        until = None if seconds is None else monotonic() + seconds
        while b"\n" not in self._pending:
            try:
                part = self._receive(until)
            except TimeoutError as error:
                if error.errno or seconds is None:  # not ours: the kernel asked, and nobody answered
                    raise self.gone() from None
                raise Failure(f'the {self.peer} said no "{kind}" within {seconds:g} s') from None
            except OSError:
                raise self.gone() from None
            if not part:
                raise self.gone()
            self._pending += part
            if len(self._pending) > LONGEST:
                raise Failure(f"the {self.peer} talks too much: is it rnic perf?")
        text, _, self._pending = self._pending.partition(b"\n")
        return self._parsed(text, kind)

    def _receive(self, until: float | None) -> bytes:
        """Some bytes, or none at the end; TimeoutError without errno when it is too late."""
        left = None if until is None else until - monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        self.sock.settimeout(left)
        return self.sock.recv(65536)

    def _parsed(self, text: bytes, kind: str) -> Message:
        try:
            message = json.loads(text)
            said = message["kind"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise Failure(f"the {self.peer} is not rnic perf: it said {text[:40]!r}") from None
        if said == "error":
            raise Failure(f"{self.peer}: {printable(message.get('text'))}")
        if said != kind:
            raise Failure(f'the {self.peer} said "{printable(said)}" where "{kind}" belongs')
        assert isinstance(message, dict)
        return message

    def gone(self) -> Gone:
        """The error to raise when the connection has ended."""
        return Gone(f"the {self.peer} is gone")
