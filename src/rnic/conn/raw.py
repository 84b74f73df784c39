# SPDX-License-Identifier: Apache-2.0
"""A peer that says no hello, by the option `raw`: what Protocol is to an endpoint, for plain SENDs.

A message is one SEND.  There are no credits, regions or goodbyes: a SEND without a receive is tried again by
the transport, and a disconnect is the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
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
from rnic.endpoint.buffers import flat
from rnic.enums import AccessFlags

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from rnic.endpoint.buffers import AnyBuffer

_ENDED = (State.CLOSED, State.FAILED)


class Raw:
    """Drives as Protocol does; see there what each method is for, and how it bears exceptions."""

    farewell = b""
    released = 0
    unreleased: tuple[int, ...] = ()
    regions: Mapping[int, Region] = {}
    shared: Mapping[int, Region] = {}

    def __init__(self, config: Config, posted: int) -> None:
        self.config = config
        self.state = State.RAW
        self.error: EndpointError | None = None
        self.undelivered = 0
        self.wanted = False
        self.posted_receives = posted
        self.receives_seen = 0
        self.completed = 0  # SENDs
        self._queue: deque[tuple[int, bytes]] = deque()
        self._numbers = 0  # SENDs handed out
        self._events: deque[tuple[int, Event]] = deque()  # with how many SENDs had come by then
        self._handles = 0
        self._closing = False

    def settle(self) -> None:
        """A message that is among the events has been seen."""
        if self._events:
            self.receives_seen = max(self.receives_seen, self._events[-1][0])

    @property
    def _held(self) -> int:
        return max(0, len(self._events) - self.config.receives)

    @property
    def finished(self) -> bool:
        """Nothing is left but to disconnect."""
        return self.state in _ENDED

    def send(self, message: AnyBuffer, tag: int = 0) -> int:
        """Queue a message, which is copied; it has to fit one SEND."""
        if self._closing or self.finished:
            raise ClosedError("send(): the connection is closed")
        if tag:
            raise ValueError("send(): a raw peer knows no tags")
        data = bytes(flat(message, "send()"))
        if len(data) > self.config.send_size:
            raise MessageTooLongError(
                f"a raw message of {len(data)} bytes is longer than send_size {self.config.send_size}"
            )
        self._queue.append((self.next_handle, data))
        self._handles += 1
        return self._handles

    @property
    def next_handle(self) -> int:
        """What send() will return."""
        return self._handles + 1

    def cancel(self, handle: int) -> bool:
        """Take back what was not handed out."""
        for item in self._queue:
            if item[0] == handle:
                self._queue.remove(item)
                return True
        return False

    def detach(self, handle: int) -> None:
        """Messages are copies already."""

    def share(
        self,
        addr: int,
        length: int,
        rkey: int,
        access: AccessFlags,
        shape: tuple[int, ...] = (),
        dtype: str = "",
    ) -> Region:
        """A raw peer cannot be told."""
        del addr, length, rkey, access, shape, dtype
        raise ValueError("share(): a raw peer is told of no regions")

    def withdraw(self, region_id: int) -> None:
        """Nor of their end."""
        raise ValueError(f"withdraw(): no region {region_id} is shared")

    def receives_to_post(self) -> int:
        """How many receives are due."""
        return self.config.receives + self.receives_seen - self._held - self.posted_receives

    def receives_posted(self, number: int) -> None:
        """They are posted."""
        self.posted_receives += number

    def next_send(self, kept: deque[Outgoing]) -> Outgoing | None:
        """The next SEND, which is in `kept` then."""
        if kept and kept[-1].number > self._numbers:  # an exception came in between
            self._handed_out(kept[-1])
        if not self._queue or self.finished:
            return None
        handle, data = self._queue[0]
        out = Outgoing(self._numbers + 1, b"", memoryview(data), ends=handle)
        kept.append(out)
        self._handed_out(out)
        return out

    def _handed_out(self, out: Outgoing) -> None:
        if self._queue and self._queue[0][0] == out.ends:
            self._queue.popleft()
        self._numbers = out.number

    @property
    def outstanding(self) -> int:
        """SENDs that have not completed."""
        return self._numbers - self.completed

    def sent(self, number: int, now: float) -> tuple[int, ...]:
        """SENDs have completed."""
        del now
        self.completed = number
        return ()

    def receive(self, data: Buffer, now: float) -> None:
        """A SEND has come; when too many lie here untaken, its receive is held back."""
        del now
        self._events.append((self.receives_seen + 1, MessageReceived(bytes(data))))
        self.settle()

    def peek_event(self) -> Event | None:
        """What next_event() would return."""
        self.settle()
        return self._events[0][1] if self._events else None

    def next_event(self) -> Event | None:
        """Take an event."""
        self.settle()
        return self._events.popleft()[1] if self._events else None

    def want(self, wanted: bool) -> None:
        """There are no unfinished messages."""
        self.wanted = wanted

    def discard(self) -> None:
        """Whoever closes takes all events."""

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
        if not self._queue and not self.outstanding:
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
        if self._queue or self.outstanding:
            self.lost("the peer disconnected with messages to it on their way")
        elif not self.finished:
            self._events.append((self.receives_seen, PeerClosed()))
            self._end(State.CLOSED, Closed())

    def _fail(self, error: EndpointError) -> None:
        if not self.finished:
            self.error, self.undelivered = error, len(self._queue) + self.outstanding
            self._end(State.FAILED, Failed(error, self.undelivered))

    def _end(self, state: State, event: Event) -> None:
        self.state = state
        self._events.append((self.receives_seen, event))

    def statistics(self) -> Statistics:
        """What was done so far."""
        queued = sum(len(data) for _, data in self._queue)
        backlog = len(self._events)
        return Statistics(
            state=self.state,
            messages_sent=self.completed,
            messages_received=self.receives_seen,
            sends=self._numbers,
            receives=self.receives_seen,
            credit_sends=0,
            probes=0,
            credits=0,
            queued=queued,
            backlog=backlog,
            held=self._held,
            partial=0,
        )
