# SPDX-License-Identifier: Apache-2.0
"""Requests on their way to a device or to another process, which wait while its socket is full.

A unix socket holds ten datagrams (net.unix.max_dgram_qlen), and a hundred clients that call at the same time
are more. A request that is lost comes again only when its sender's timeout is over, after seconds. The device
does the same with what it hands on (src/nic/host/outbox.c).
"""

from __future__ import annotations

import select
import socket
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from rnic.log import Log

if TYPE_CHECKING:
    from rnic.rdmacm.reactor import Reactor

_log = Log("rnic.rdmacm")

_EACH = 1024  # messages that wait for one name: the oldest are lost first
_NAMES = 16  # for which messages wait: others may have names, and never read; the oldest is given up


class Outbox:
    """What is sent to names; under the registry's lock."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._boxes: dict[str, _Box] = {}

    def send(self, message: bytes, name: str) -> bool:
        """Send a message to a name, now or when there is room. False: nobody has the name."""
        try:
            if (box := self._boxes.get(name)) is not None:
                box.put(message)
            else:
                self._begin(message, name)
        except ConnectionRefusedError:
            return False
        except OSError as error:
            _log.info("a request is lost: %s", error)
        return True

    def _begin(self, message: bytes, name: str) -> None:
        box = _Box(self, name)
        try:
            box.put(message)
            if not box.waits:
                return
            while len(self._boxes) >= _NAMES:
                self.done(next(iter(self._boxes.values())))
            self._reactor.watch(box, select.EPOLLOUT)
            self._boxes[name] = box
        finally:
            if self._boxes.get(name) is not box:
                box.sock.close()

    def done(self, box: _Box) -> None:
        """Nothing waits there any more, or it is given up."""
        if self._boxes.pop(box.name, None) is not None:
            self._reactor.unwatch(box)
            box.sock.close()


class _Box:
    """Messages to one name, in their order."""

    def __init__(self, outbox: Outbox, name: str) -> None:
        self._outbox, self.name = outbox, name
        self._waiting: deque[bytes] = deque(maxlen=_EACH)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self.sock.setblocking(False)
            self.sock.connect(name)
        except BaseException:
            self.sock.close()
            raise

    def fileno(self) -> int:
        """The descriptor."""
        return self.sock.fileno()

    @property
    def waits(self) -> bool:
        """There are messages that have not been sent."""
        return bool(self._waiting)

    def put(self, message: bytes) -> None:
        """Send a message, behind those that wait."""
        self._waiting.append(message)
        if len(self._waiting) == 1:
            self._send()

    def _send(self) -> None:
        with suppress(BlockingIOError):
            while self._waiting:
                self.sock.send(self._waiting[0])
                self._waiting.popleft()

    def ready(self, _events: int) -> None:
        """There may be room, or nobody has the name any more."""
        try:
            self._send()
        except OSError as error:
            _log.info("requests are lost: %s", error)
            self._waiting.clear()
        if not self._waiting:
            self._outbox.done(self)
