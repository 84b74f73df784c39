# SPDX-License-Identifier: Apache-2.0
"""A peer that says no hello, by the option `raw`: what Protocol is to an endpoint, for plain SENDs.

A message is one SEND.  There are no credits, regions or goodbyes: a SEND without a receive is tried again by
the transport, and a disconnect is the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rnic.endpoint import (
    AbortedError,
    Closed,
    ClosedError,
    Config,
    EndpointError,
    Event,
    Failed,
    LostError,
    MessageReceived,
    MessageTooLongError,
    Outgoing,
    PeerClosed,
    Reason,
    Region,
    State,
    Statistics,
)
from rnic.enums import AccessFlags

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ENDED = (State.CLOSED, State.FAILED)


class Raw:
    """Drives as Protocol does; see there what each method is for."""

    farewell = b""
    unreleased: tuple[int, ...] = ()
    regions: Mapping[int, Region] = {}

    def __init__(self, config: Config, posted: int) -> None:
        self.config = config
        self.state = State.RAW
        self._to_post = config.receives - posted
        self._held = 0
        self._queue: deque[tuple[int, bytes]] = deque()
        self._posted: deque[int] = deque()
        self._events: deque[Event] = deque()
        self._handles = self._numbers = self._received = self._sent = 0
        self._closing = False

    @property
    def finished(self) -> bool:
        """Nothing is left but to disconnect."""
        return self.state in _ENDED

    def send(self, message: Buffer) -> int:
        """Queue a message, which is copied; it has to fit one SEND."""
        if self._closing or self.finished:
            raise ClosedError("send(): the connection is closed")
        data = bytes(memoryview(message))
        if len(data) > self.config.send_size:
            raise MessageTooLongError(
                f"a raw message of {len(data)} bytes is longer than send_size {self.config.send_size}"
            )
        self._handles += 1
        self._queue.append((self._handles, data))
        return self._handles

    def cancel(self, handle: int) -> bool:
        """Take back what was not handed out."""
        for item in self._queue:
            if item[0] == handle:
                self._queue.remove(item)
                return True
        return False

    def detach(self, handle: int) -> None:
        """Messages are copies already."""

    def share(self, addr: int, length: int, rkey: int, access: AccessFlags) -> Region:
        """A raw peer cannot be told."""
        del addr, length, rkey, access
        raise ValueError("share(): a raw peer is told of no regions")

    def withdraw(self, region_id: int) -> None:
        """Nor of their end."""
        raise ValueError(f"withdraw(): no region {region_id} is shared")

    def receives_to_post(self) -> int:
        """How many receives are due."""
        return self._to_post

    def receives_posted(self, number: int) -> None:
        """They are posted."""
        self._to_post -= number

    def next_send(self) -> Outgoing | None:
        """The next SEND."""
        if not self._queue or self.finished:
            return None
        handle, data = self._queue.popleft()
        self._numbers += 1
        self._posted.append(self._numbers)
        return Outgoing(self._numbers, b"", memoryview(data), ends=handle)

    def sent(self, number: int, now: float) -> tuple[int, ...]:
        """SENDs have completed."""
        del now
        while self._posted and self._posted[0] <= number:
            self._posted.popleft()
            self._sent += 1
        return ()

    def receive(self, data: Buffer, now: float) -> None:
        """A SEND has come; when too many lie here untaken, its receive is held back."""
        del now
        self._received += 1
        if len(self._events) < self.config.receives:
            self._to_post += 1
        else:
            self._held += 1
        self._events.append(MessageReceived(bytes(data)))

    def next_event(self) -> Event | None:
        """Take an event."""
        if not self._events:
            return None
        if self._held:
            self._held -= 1
            self._to_post += 1
        return self._events.popleft()

    def events(self) -> Iterator[Event]:
        """All of them."""
        while (event := self.next_event()) is not None:
            yield event

    def heard(self, now: float) -> None:
        """There are no probes."""

    def deadline(self) -> float | None:
        """There are no probes."""
        return None

    def timer(self, now: float) -> None:
        """There are no probes."""

    def close(self, now: float, timeout: float | None = None) -> None:
        """Disconnect when all is sent, or at once at the limit."""
        self._closing = True
        if self.finished:
            return
        if not self._queue and not self._posted:
            self._end(State.CLOSED, Closed())
        elif timeout is not None and timeout <= 0:
            self._fail(AbortedError(f"closed with messages on their way at {now}", Reason.TIMEOUT))

    def abort(self, text: str = "the program aborted the connection") -> None:
        """Disconnect now."""
        self._fail(AbortedError(text, Reason.APPLICATION))

    def lost(self, text: str) -> None:
        """The connection broke."""
        self._fail(LostError(text))

    def disconnected(self, private_data: bytes = b"") -> None:
        """The peer has disconnected, as raw peers end."""
        del private_data
        if self._queue or self._posted:
            self.lost("the peer disconnected with messages to it on their way")
        elif not self.finished:
            self._events.append(PeerClosed())
            self._end(State.CLOSED, Closed())

    def _fail(self, error: EndpointError) -> None:
        if not self.finished:
            undelivered = len(self._queue) + len(self._posted)
            self._end(State.FAILED, Failed(error, undelivered))

    def _end(self, state: State, event: Event) -> None:
        self.state = state
        self._events.append(event)

    def statistics(self) -> Statistics:
        """What was done so far."""
        queued = sum(len(data) for _, data in self._queue)
        backlog = len(self._events)
        return Statistics(
            state=self.state,
            messages_sent=self._sent,
            messages_received=self._received,
            sends=self._numbers,
            receives=self._received,
            credit_sends=0,
            probes=0,
            credits=0,
            queued=queued,
            backlog=backlog,
            held=self._held,
            partial=0,
        )
