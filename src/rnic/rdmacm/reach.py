# SPDX-License-Identifier: Apache-2.0
"""Why a peer does not answer: what the kernel and the network report about a datagram to it.

RoCE's packets are sent from a socket that others share, which hears no ICMP error. So one empty datagram is
sent from a socket of its own, which hears them (ip(7), IP_RECVERR).
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from errno import EACCES, ECONNREFUSED, EHOSTUNREACH, EMFILE, ENETUNREACH, ENFILE, ENOBUFS, ENOMEM, EPERM
from typing import Self

from rnic.rdmacm.sockaddr import IP

ROCE_PORT = 4791
WAIT_MS = 50  # for an ICMP error, of a router some hops away
_FRESH = 1.0  # seconds for which an answer holds
_SCARCE = (EMFILE, ENFILE, ENOBUFS, ENOMEM)  # here: they say nothing of the peer
_RECVERR = {4: (socket.IPPROTO_IP, 11), 6: (socket.IPPROTO_IPV6, 25)}  # IP_RECVERR, IPV6_RECVERR
_WORDS = {
    EPERM: f"this host's firewall refuses packets to UDP port {ROCE_PORT} there",
    EACCES: "this host's routes or firewall prohibit packets to it",
    ECONNREFUSED: f"ICMP says that UDP port {ROCE_PORT} is closed there: no RDMA device is open, or a "
    "firewall rejects its packets",
    EHOSTUNREACH: "ICMP or the kernel says that the host is unreachable: it is down, or a router or firewall "
    "rejects packets to it",
    ENETUNREACH: "there is no route to its network",
}
_UNKNOWN = (
    "no router says why: the program there has not accepted the connection yet, the host is down, "
    f"UDP port {ROCE_PORT} is blocked, or addresses are changed on the way (NAT), which RoCE's checksum does "
    "not allow"
)
_HERE = (
    "a program of this host listens there, and has not accepted the connection yet: it serves others, or is "
    "stopped"
)
_seen: dict[IP, tuple[float, int]] = {}
_open: set[socket.socket] = set()  # of questions that are not closed
_whole = threading.RLock()  # held while a socket comes or goes, so that a fork finds in _open what it copies


def why(dst: IP, src: IP | None = None, scope: int = 0) -> int:
    """Send a datagram to the peer's RoCE port. Returns the errno that it meets, or 0 if nothing is heard.

    It takes up to 50 ms; a result of the last second is returned at once.
    """
    with Question(dst, src, scope) as question:
        if question.code is None:
            poll = select.poll()
            poll.register(question.fileno(), select.POLLERR)
            poll.poll(WAIT_MS)
        return question.answer()


class Question:
    """why() without waiting: `code` is known at once or, after 50 ms, by answer()."""

    def __init__(self, dst: IP, src: IP | None = None, scope: int = 0) -> None:
        self.dst = dst
        self.code: int | None = None
        self._asked = time.monotonic()
        self._probe: socket.socket | None = None
        at, code = _seen.get(dst, (0.0, 0))
        if self._asked - at < _FRESH:
            self.code = code
            return
        try:
            self._ask(src, scope)
        except OSError as error:
            if error.errno in _SCARCE:
                self.close()
            else:
                self._learn(error.errno or 0)

    def fileno(self) -> int:
        """A descriptor on which poll(2) reports an error, while nothing is known."""
        assert self._probe is not None
        return self._probe.fileno()

    def answer(self) -> int:
        """The answer so far; a later answer can still be heard."""
        if self.code is None:
            assert self._probe is not None
            heard = self._probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if heard or time.monotonic() - self._asked >= WAIT_MS / 1e3:
                self._learn(heard)
        return self.code or 0

    def _ask(self, src: IP | None, scope: int) -> None:
        version = self.dst.version
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        more = (0, scope) if family == socket.AF_INET6 else ()
        with _whole:
            self._probe = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            _open.add(self._probe)
        self._probe.setsockopt(*_RECVERR[version], 1)
        if src is not None:
            self._probe.bind((str(src), 0, *more))
        self._probe.connect((str(self.dst), ROCE_PORT, *more))
        self._probe.send(b"")

    def _learn(self, code: int) -> None:
        now = time.monotonic()
        for old in [ip for ip, (when, _) in list(_seen.items()) if now - when >= _FRESH]:
            _seen.pop(old, None)  # another thread may have done so
        if now - self._asked < _FRESH:
            _seen[self.dst] = self._asked, code
        self.code = code
        self.close()

    def close(self) -> None:
        """Drop the question."""
        self.code = self.code or 0
        if self._probe is not None:
            with _whole:
                _open.discard(self._probe)
                self._probe.close()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def words(code: int, dst: IP | None = None) -> str:
    """The answer in words. On this host nothing is lost, and whoever does not listen refuses at once."""
    return _WORDS.get(code) or (_HERE if dst is not None and _is_here(dst) else _UNKNOWN)


def _is_here(address: IP) -> bool:
    """Whether it is an address of this host: it can be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((str(address), 0))
    except OSError:
        return False
    return True


def forked() -> None:
    """In a forked child: forget the questions, which belong to the parent."""
    global _whole
    _whole = threading.RLock()
    while _open:
        _open.pop().close()


def forget() -> None:
    """Forget all results: the network has changed."""
    _seen.clear()


os.register_at_fork(before=lambda: _whole.acquire(), after_in_parent=lambda: _whole.release())
