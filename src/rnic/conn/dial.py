# SPDX-License-Identifier: Apache-2.0
"""The handshake of two ends, in steps that never wait: Dial asks for a connection (handshake.py answers)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from errno import ETIMEDOUT
from time import monotonic

from rnic.conn.core import Core
from rnic.conn.handshake import AnyDevice
from rnic.endpoint import (
    Config,
    EndpointError,
    LostError,
    RefusedError,
    parse_refusal,
)
from rnic.endpoint.buffers import flat
from rnic.endpoint.hello import MAX_DATA_ASKING
from rnic.errors import VerbsError
from rnic.rdmacm import ConnParam, Event, EventChannel, EventType, Timing, create_id
from rnic.wire import RejReason, rej_reason
from rnic.wording import no_host, nobody_listens, place

_FAILED = (EventType.ADDR_ERROR, EventType.ROUTE_ERROR, EventType.CONNECT_ERROR)
# A lost message is sent again after one second, not five as in the kernel, because connect() waits for ten.
# A peer that needs longer to accept sends an MRA.
_TIMING = Timing(response_timeout=17)


class Dial:
    """A connection that is being made; when step() returns True, `core` is the connection.

    Where no program listens at the first of the hosts, or one that has no room, the next is tried: a name
    may have several addresses, and "localhost" often is ::1 before it is 127.0.0.1. If all have to be tried
    `until` a time, one that is silent has its share of what is left.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        port: int,
        config: Config | None,
        data: bytes = b"",
        device: AnyDevice = None,
        until: float | None = None,
    ) -> None:
        self._data = bytes(flat(data, "connect(data=...)"))
        if len(self._data) > MAX_DATA_ASKING:
            raise ValueError(f"connect(): data has {len(data)} bytes, there is room for {MAX_DATA_ASKING}")
        self._left, self._device = list(hosts), device
        self._until = until
        self.deadline: float | None = None
        """When the next host is tried, if this one is silent until then."""
        self.port = port
        self.config = Config.given(config, "connect")
        self.done = False
        self._begin()

    def _begin(self) -> None:
        """Ask at the next host."""
        if self._until is not None:
            now = monotonic()
            self.deadline = now + (self._until - now) / len(self._left) if len(self._left) > 1 else None
        self.host = self._left.pop(0)
        self.name = place(self.host, self.port)
        self.core: Core | None = None
        self.channel = EventChannel()
        try:
            self.cm_id = create_id(self.channel, timing=_TIMING, device=self._device)
        except BaseException:
            self.channel.close()
            raise
        try:
            self.cm_id.resolve_addr(None, (self.host, self.port))
        except BaseException as error:
            if not self._left or not isinstance(error, VerbsError):
                self.abandon()
                raise
            self._nobody(error)

    def _nobody(self, error: VerbsError | EndpointError) -> None:
        """Nobody was met at this host: go on with the next, or raise the error of the last."""
        if not self._left:
            raise error
        self.abandon()
        self._begin()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when step() has something to do."""
        return self.channel.fileno()

    def silence(self) -> str:
        """Return in words why the peer does not answer, as far as can be known; takes up to 50 ms."""
        return self.cm_id.silence_words(self.cm_id.silence())

    def step(self, now: float) -> bool:
        """Handle the events that have come; return True when connected.

        RefusedError, VersionError, LostError, ProtocolError or VerbsError when the connection cannot be made.
        """
        while not self.done:
            if (event := self.channel.peek()) is not None:
                self.channel.drop(event)  # so that abandon() need not wait for an ack()
                self._on(event)
            elif self.deadline is not None and now >= self.deadline:
                self._nobody(LostError(f"{self.name} does not answer"))
            else:
                return False
        return True

    def _on(self, event: Event) -> None:
        data = event.param.private_data if isinstance(event.param, ConnParam) else b""
        match event.event:
            case EventType.ADDR_RESOLVED:
                self.cm_id.resolve_route()
            case EventType.ROUTE_RESOLVED:
                self.core = Core(self.cm_id, self.config)
                self.channel.close()
                self.channel = self.core.channel
                self.cm_id.connect(ConnParam(self.core.hello(self._data)))
            case EventType.ESTABLISHED:
                assert self.core is not None
                self.core.establish()
                self.core.greet(data)
                self.done = True
            case EventType.REJECTED:
                self._rejected(event, data)
            case EventType.UNREACHABLE:
                why = self.cm_id.silence_words(-event.status)
                self._nobody(LostError(f"{self.name} does not answer: {why}"))
            case kind if kind in _FAILED:
                code = -event.status
                silent = code == ETIMEDOUT  # that is said of a neighbour: nothing was sent to the peer yet
                why = self.cm_id.failure_words(code) if kind is EventType.CONNECT_ERROR else ""
                text = no_host(self.host, self.port) if silent else f"{self.name}: {why or os.strerror(code)}"
                self._nobody(VerbsError(code, text, "connect"))
            case kind:
                raise LostError(f"{self.name}: {kind.name} during the handshake")

    def _rejected(self, event: Event, data: bytes) -> None:
        refusal, reason = event.refusal(), max(event.status, 0)
        if refusal.by_program or any(data):
            raise parse_refusal(data)
        if refusal.nobody_listens:
            self._nobody(RefusedError(nobody_listens(self.host, self.port), RejReason.INVALID_SERVICE_ID))
            return
        if refusal.no_room:
            text = "has no room for one more connection now: a limit of the listener or its process, "
            text += "or the request has waited for too long"
            text = text if reason else f"has refused: {refusal.text}"
            self._nobody(RefusedError(f"{self.name} {text}", RejReason.NO_RESOURCES))
            return
        raise RefusedError(f"{self.name} rejected the request: reason {rej_reason(reason)}", reason)

    def abandon(self) -> None:
        """Give everything back, as the connection is not wanted or has failed."""
        if self.core is not None:
            self.core.release()
        else:
            self.cm_id.destroy()
            self.channel.close()
