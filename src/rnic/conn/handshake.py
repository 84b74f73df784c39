# SPDX-License-Identifier: Apache-2.0
"""How two ends find each other, step by step, without waiting: Dial for who asks, Desk for who is asked."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EBADF, ENODEV

from rnic.conn.core import Core
from rnic.endpoint import (
    Config,
    EndpointError,
    LostError,
    ProtocolError,
    RefusedError,
    Role,
    parse_refusal,
    refusal,
)
from rnic.errors import VerbsError
from rnic.rdmacm import CmId, ConnParam, Event, EventChannel, EventType, Timing, create_id
from rnic.wire import RejReason

_log = logging.getLogger("rnic.conn")
_FAILED = (EventType.ADDR_ERROR, EventType.ROUTE_ERROR, EventType.CONNECT_ERROR)
# A lost message comes again after a second, not after five as the kernel has it: connect() waits for ten.  A
# peer that needs longer to accept says so with an MRA.
_TIMING = Timing(response_timeout=17)


class Dial:
    """A connection that is being made; `core` is there when it has been."""

    def __init__(self, host: str, port: int, config: Config) -> None:
        self.name = f"{host}:{port}"
        self.config = config
        self.core: Core | None = None
        self.done = False
        self.channel = EventChannel()
        self.cm_id = create_id(self.channel, timing=_TIMING)
        try:
            self.cm_id.resolve_addr(None, (host, port))
        except BaseException:
            self.abandon()
            raise

    def fileno(self) -> int:
        """Readable when step() has something to do."""
        return self.channel.fileno()

    def step(self, now: float) -> bool:
        """Go on with what has happened; True when it is connected.  Raises when it cannot be."""
        while not self.done:
            try:
                event = self.channel.get_cm_event(0)
            except TimeoutError:
                return False
            with event:
                self._on(event, now)
        return True

    def _on(self, event: Event, now: float) -> None:
        data = event.param.private_data if isinstance(event.param, ConnParam) else b""
        match event.event:
            case EventType.ADDR_RESOLVED:
                self.cm_id.resolve_route()
            case EventType.ROUTE_RESOLVED:
                self.core = Core(self.cm_id, self.channel, self.config, Role.INITIATOR)
                self.cm_id.connect(ConnParam(self.core.hello()))
            case EventType.ESTABLISHED:
                self._greet(data, now)
            case EventType.REJECTED:
                raise self._rejected(event.status, data)
            case EventType.UNREACHABLE:
                raise LostError(f"{self.name} does not answer")
            case kind if kind in _FAILED:
                code = -event.status
                raise VerbsError(code, f"{self.name}: {kind.name}, {os.strerror(code)}", "connect")
            case kind:
                raise LostError(f"{self.name}: {kind.name} during the handshake")

    def _greet(self, data: bytes, now: float) -> None:
        assert self.core is not None
        self.core.established = True
        self.core.greet(data, now)
        self.done = True

    def _rejected(self, reason: int, data: bytes) -> EndpointError:
        if reason == RejReason.CONSUMER_DEFINED:
            return parse_refusal(data)
        if reason == RejReason.INVALID_SERVICE_ID:
            return RefusedError(f"{self.name}: nobody listens there", reason)
        names = {int(one): one.name for one in RejReason}
        return RefusedError(f"{self.name} rejected the request: {names.get(reason, reason)}", reason)

    def abandon(self) -> None:
        """It is not wanted, or has failed."""
        if self.core is not None:
            self.core.release()
        else:
            self.cm_id.destroy()
            self.channel.close()


class Desk:
    """Where requests arrive: an id that listens.  Who is no endpoint is refused, in words."""

    def __init__(self, host: str, port: int, config: Config, backlog: int) -> None:
        self.config = config
        self.channel = EventChannel()
        self.cm_id = create_id(self.channel)
        self._ready: deque[Core] = deque()
        self.closed = False
        self._waiters = 0
        self._lock = threading.RLock()  # a signal handler may close it
        try:
            self.cm_id.bind_addr((host, port))
            self.cm_id.listen(backlog)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around whatever waits for fileno(): close() wakes it, and closes the descriptor behind it."""
        with self._lock:
            self._check_open()
            self._waiters += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiters -= 1
                last = self.closed and not self._waiters
            if last:
                self._release()

    def _check_open(self) -> None:
        if self.closed:
            raise VerbsError(EBADF, "the listener is closed", "accept")

    def fileno(self) -> int:
        """Readable when there are requests."""
        return self.channel.fileno()

    def take(self, now: float) -> Core | None:
        """The next connection; None: there is none yet.  EBADF when the desk is closed."""
        while not self._ready:
            self._check_open()
            try:
                event = self.channel.get_cm_event(0)
            except TimeoutError:
                return None
            kind, one, param = event.event, event.id, event.param
            event.ack()
            if kind is EventType.CONNECT_REQUEST and isinstance(param, ConnParam):
                self._serve(one, param, now)
            elif kind is EventType.DEVICE_REMOVAL:
                raise VerbsError(ENODEV, "the device is gone", "accept")
        return self._ready.popleft()

    def _serve(self, one: CmId, param: ConnParam, now: float) -> None:
        """One request that comes to nothing ends no listener."""
        try:
            self._answer(one, param, now)
        except (EndpointError, VerbsError) as error:
            _log.info("a request from %s was not served: %s", one.get_peer_addr(), error)

    def _answer(self, one: CmId, param: ConnParam, now: float) -> None:
        channel = EventChannel()
        try:
            one.migrate_id(channel)
            core = Core(one, channel, self.config, Role.ACCEPTOR)
        except BaseException:
            one.destroy()
            channel.close()
            raise
        try:
            core.greet(param.private_data, now)
            one.accept(ConnParam(core.hello()))
        except ProtocolError as error:
            one.reject(refusal(error.reason, str(error)))
            core.release()
            raise
        except BaseException:
            core.release()
            raise
        self._ready.append(core)

    def close(self) -> None:
        """Take no more; requests that wait are refused, and who waits for them hears that it is closed."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            waiters = self._waiters
        if waiters:
            self.channel.wake()
        else:
            self._release()

    def _release(self) -> None:
        while self._ready:
            self._ready.popleft().release()
        self.cm_id.destroy()
        self.channel.close()
