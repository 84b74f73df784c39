# SPDX-License-Identifier: Apache-2.0
"""The protocol for a peer that says no hello, with the option `raw`: Raw takes the place of Protocol.

Each message is one SEND.  There are no credits, regions or goodbyes.  The transport repeats a SEND that finds
no receive, and a disconnect ends the connection.
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
    """Plain SENDs, with the methods of Protocol; see there for their use, and for exceptions from outside."""

    farewell = b""
    released = 0
    unreleased: tuple[int, ...] = ()
    regions: Mapping[int, Region] = {}
    shared: Mapping[int, Region] = {}

    def __init__(self, config: Config, receives: int, posted: int) -> None:
        """`receives`: how many are to be posted at a time; `posted`: how many are already."""
        self.config = config
        self._receives = receives
        self.state = State.RAW
        self.error: EndpointError | None = None
        self.undelivered = 0
        self.wanted = False
        self.posted_receives = posted
        self.receives_seen = 0
        self.completed = 0  # SENDs
        self._queue: deque[tuple[int, bytes]] = deque()
        self._numbers = 0  # SENDs handed out
        self._events: deque[tuple[int, Event]] = deque()  # each with the count of SENDs that had come by then
        self._handles = 0
        self._closing = False

    def settle(self) -> None:
        """Finish what an exception has interrupted: count the message that was put among the events."""
        if self._events:
            self.receives_seen = max(self.receives_seen, self._events[-1][0])

    @property
    def _held(self) -> int:
        return max(0, len(self._events) - self._receives)

    @property
    def finished(self) -> bool:
        """The connection has ended: only a disconnect is left to do."""
        return self.state in _ENDED

    def send(self, message: AnyBuffer, tag: int = 0) -> int:
        """Queue a copy of a message; return its handle.

        MessageTooLongError when it does not fit one SEND, ClosedError after close(), ValueError for a tag.
        """
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
        """The handle that the next send() returns."""
        return self._handles + 1

    def cancel(self, handle: int) -> bool:
        """Take back a message that was not handed out yet; return False when it is too late."""
        for item in self._queue:
            if item[0] == handle:
                self._queue.remove(item)
                return True
        return False

    def detach(self, handle: int) -> None:
        """Do nothing: send() has copied the message."""

    def share(
        self,
        addr: int,
        length: int,
        rkey: int,
        access: AccessFlags,
        shape: tuple[int, ...] = (),
        dtype: str = "",
    ) -> Region:
        """Raise ValueError: a raw peer cannot be told of a region."""
        del addr, length, rkey, access, shape, dtype
        raise ValueError("share(): a raw peer is told of no regions")

    def withdraw(self, region_id: int) -> None:
        """Raise ValueError: no region can have been shared with a raw peer."""
        raise ValueError(f"withdraw(): no region {region_id} is shared")

    def receives_to_post(self) -> int:
        """Return how many receives the driver has to post now."""
        return self._receives + self.receives_seen - self._held - self.posted_receives

    def receives_posted(self, number: int) -> None:
        """Note that the driver has posted so many receives."""
        self.posted_receives += number

    def next_send(self, kept: deque[Outgoing]) -> Outgoing | None:
        """Return the next SEND, and append it to `kept`; None when there is none."""
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
        """The number of SENDs that were handed out and have not completed."""
        return self._numbers - self.completed

    def sent(self, number: int, now: float) -> tuple[int, ...]:
        """Note that the SENDs up to `number` have completed; return no handles, as messages are copies."""
        del now
        self.completed = number
        return ()

    def receive(self, data: Buffer, now: float) -> None:
        """Take in a SEND as a message; its receive is held back when too many messages wait."""
        del now
        self._events.append((self.receives_seen + 1, MessageReceived(bytes(data))))
        self.settle()

    def peek_event(self) -> Event | None:
        """Return the next event without taking it; None when there is none."""
        self.settle()
        return self._events[0][1] if self._events else None

    def next_event(self) -> Event | None:
        """Take and return the next event; None when there is none."""
        self.settle()
        return self._events.popleft()[1] if self._events else None

    def want(self, wanted: bool) -> None:
        """Note whether a call waits; nothing follows, as no message here is unfinished."""
        self.wanted = wanted

    def discard(self) -> None:
        """Do nothing: a core that closes takes all events."""

    def heard(self, now: float) -> None:
        """Do nothing: a raw peer is not probed."""

    def deadline(self) -> float | None:
        """Return None: a raw peer is not probed."""
        return None

    def timer(self, now: float) -> None:
        """Do nothing: a raw peer is not probed."""

    def close(self, now: float, timeout: float | None = None) -> None:
        """End the connection when all messages are sent; at once if `timeout` is 0 or less."""
        self._closing = True
        if self.finished:
            return
        if not self._queue and not self.outstanding:
            self._end(State.CLOSED, Closed())
        elif timeout is not None and timeout <= 0:
            self._fail(AbortedError(f"closed with messages on their way at {now}", Reason.TIMEOUT))

    def abort(self, text: str = "the program aborted the connection") -> None:
        """End the connection at once; messages on their way may be lost."""
        self._fail(AbortedError(text, Reason.APPLICATION))

    def lost(self, text: str) -> None:
        """End the connection, which has failed for the reason in the text."""
        self._fail(LostError(text))

    def disconnected(self, private_data: bytes = b"") -> None:
        """End the connection, as the peer has disconnected; an error if messages are still on their way."""
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
        """Return counts of what the connection has done so far."""
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
