# SPDX-License-Identifier: Apache-2.0
"""Event channels, and the events that come through them."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from errno import EBADF, EBUSY, ECONNRESET, EINVAL, ETIMEDOUT
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from rnic._nic import nic
from rnic.errors import VerbsError
from rnic.rdmacm.names import ConnParam, EventType, UDParam
from rnic.rdmacm.service import Refusal
from rnic.times import after, milliseconds
from rnic.wording import no_host, nobody_listens, place

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId


class Event:
    """Something that happened to an id, such as CONNECT_REQUEST (rdma_get_cm_event(3)); a context manager
    that acknowledges it.
    """

    __slots__ = (
        "__weakref__",
        "_delivered",
        "_waits",
        "acked",
        "arg",
        "event",
        "id",
        "listen_id",
        "param",
        "status",
    )

    def __init__(
        self,
        event: EventType,
        cm_id: CmId,
        status: int = 0,
        param: ConnParam | UDParam | None = None,
        listen_id: CmId | None = None,
        arg: Any = None,
    ) -> None:
        self.event = event
        """What happened."""
        self.id = cm_id
        """The id that it happened to; with CONNECT_REQUEST the new one."""
        self.listen_id = listen_id
        """With CONNECT_REQUEST, the id that listens."""
        self.status = status
        """0, a negative errno, or with REJECTED the reason of the REJ (IBA 12.6.7.2)."""
        self.param = param
        """What the peer asks for or has agreed to, its private data included."""
        self.arg = arg
        """Of a USER event, what write_cm_event() was given; of ADDRINFO_RESOLVED the list of results."""
        self.acked = False
        """ack() was called."""
        self._delivered: EventChannel | None = None
        self._waits = False

    @property
    def owner(self) -> CmId:
        """The id that cannot be destroyed before this event is acknowledged."""
        return self.listen_id or self.id

    def deliver(self, channel: EventChannel) -> None:
        """Count the event as delivered: from now on it has to be acknowledged. Call it under the channel's
        lock.
        """
        self._delivered = channel
        self.id.seen = True
        self.owner.unacked += 1

    def wait(self) -> None:
        """The event is in a channel; a request there counts in its listener's backlog."""
        owner = self.owner
        if self.event is EventType.CONNECT_REQUEST and not self._waits:
            self._waits = True
            owner.waiting += 1

    def wait_no_more(self) -> None:
        """The event has left the channel; a second call does nothing."""
        owner = self.owner
        if self._waits:
            self._waits = False
            owner.waiting -= 1

    def ack(self) -> None:
        """Acknowledge the event (rdma_ack_cm_event(3)); a second call does nothing."""
        channel = self._delivered
        if channel is None or self.acked:
            return
        with channel.lock:
            if not self.acked:
                self.acked = True
                self.owner.unacked -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ack()

    def __del__(self) -> None:
        channel = getattr(self, "_delivered", None)  # of one that memory was too short for, there is none
        if channel is not None and not self.acked:
            self.acked = True
            channel.dropped.append(self.owner)  # no lock here: whoever is interrupted may hold it
            warnings.warn(f"{self!r} was never acknowledged", ResourceWarning, stacklevel=2, source=self)

    def explain(self) -> str:
        """The event in words: why the peer refused, or what failed."""
        if self.status > 0 or self.event is EventType.REJECTED:
            refusal = self.refusal()
            peer = self.id.get_peer_addr()
            if refusal.nobody_listens and peer is not None:
                why = f"{self.event.name}, reason {self.status}: {refusal.text}"
                return f"{nobody_listens(peer[0], peer[1])} ({why})"
            return f"{self.event.name}: refused by the peer, reason {self.status} ({refusal.text})"
        return self._why_not() or self._named()

    def _named(self) -> str:
        why = f": {os.strerror(-self.status)}" if self.status else ""
        return f"{self.event.name}{why}"

    def _why_not(self) -> str | None:
        """What it means that a peer cannot be reached or understood, and the cure; None for other events."""
        peer = self.id.get_peer_addr()
        if peer is None or not self.status:
            return None
        match self.event:
            case EventType.ADDR_ERROR if self.status == -ETIMEDOUT:
                return f"{no_host(peer[0], peer[1])} ({self._named()})"
            case EventType.ADDR_ERROR | EventType.ROUTE_ERROR:
                return f"{place(peer[0], peer[1])}: no way there: check address and routes ({self._named()})"
            case EventType.UNREACHABLE if self.status != -ECONNRESET:
                why = self.id.silence_words(-self.status)
                return f"{place(peer[0], peer[1])} does not answer: {why} ({self._named()})"
            case EventType.CONNECT_ERROR if why := self.id.failure_words(-self.status):
                return f"{place(peer[0], peer[1])}: {why} ({self._named()})"
        return None

    def refusal(self) -> Refusal:
        """What the status of a refusal means, as the id's connection service has it."""
        agent = self.id.agent
        return agent.service.refusal(self.event, self.status) if agent else Refusal(str(self.status))

    def __repr__(self) -> str:
        status = f" status {self.status}" if self.status else ""
        return f"<Event {self.event.name} of {self.id!r}{status}>"


_channels: weakref.WeakSet[EventChannel] = weakref.WeakSet()


class EventChannel:
    """A queue of events of ids (rdma_create_event_channel(3)); a context manager.

    `beside`: a completion channel whose descriptor also reports the events of this channel, so that a program
    needs one descriptor for both. If CompChannel.get_cq_event(0) finds nothing, get_cm_event(0) does. Close
    this channel first. Raises VerbsError: EMFILE if the process has no descriptor left.
    """

    def __init__(self, beside: nic.CompChannel | None = None) -> None:
        self.lock = threading.RLock()
        self.ids: weakref.WeakSet[CmId] = weakref.WeakSet()
        self._events: deque[Event] = deque()
        self._beside = beside
        self.dropped: deque[CmId] = (
            deque()
        )  # whose events were dropped and not acknowledged; filled without lock
        self._own: nic.EventFd | None = None
        if beside is not None:
            self._fd = beside.fileno()
        else:
            self._own = nic.EventFd("create_event_channel")
            self._fd = self._own.fd
        _channels.add(self)

    def fileno(self) -> int:
        """A file descriptor that is readable while events wait, for select, epoll and asyncio."""
        self._need("fileno")
        return self._fd

    def _need(self, verb: str) -> None:
        if self._fd < 0:
            raise VerbsError(EBADF, "the event channel is closed", verb)

    def put(self, event: Event) -> None:
        """Add an event."""
        with self.lock:
            if self._fd < 0:
                return
            event.wait()
            roused = False
            try:
                if not self._events:
                    self._rouse()
                    roused = True
                self._events.append(event)
            except BaseException:  # it is not queued
                if roused:
                    self._drain()
                event.wait_no_more()
                raise

    def wake(self) -> None:
        """Make the descriptor readable even without an event, so that waiting threads look again."""
        with self.lock:
            if self._fd >= 0:
                self._rouse()

    def _rouse(self) -> None:
        if self._beside is not None:
            self._beside.wake()
        else:
            os.eventfd_write(self._fd, 1)

    def _pop(self) -> Event | None:
        with self.lock:
            self._need("get_cm_event")
            if not self._events:
                return None
            event = self._events.popleft()
            event.deliver(self)
            event.wait_no_more()
            self._quiet()
            return event

    def _quiet(self) -> None:
        if not self._events and self._fd >= 0:
            self._drain()

    def _drain(self) -> None:
        if self._beside is not None:
            self._beside.unwake()
        else:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._fd)

    @property
    def has_events(self) -> bool:
        """Whether get_cm_event(0) would return an event."""
        return bool(self._events)

    @property
    def pending(self) -> int:
        """How many events wait."""
        return len(self._events)

    def peek(self) -> Event | None:
        """The next event, which stays in the channel until drop()."""
        return self._events[0] if self._events else None

    def drop(self, event: Event) -> None:
        """Remove the event that peek() returned. It was not delivered, so it needs no ack(). A second call
        does nothing.
        """
        with self.lock:
            if self._events and self._events[0] is event:
                event.id.seen = True
                if len(self._events) == 1:
                    self._drain()
                event.wait_no_more()
                self._events.popleft()

    def get_cm_event(self, timeout: float | None = None) -> Event:
        """Wait for the next event, and return it (rdma_get_cm_event(3)); acknowledge it with ack() or a
        `with` block.

        `timeout` is in seconds; None waits for ever, 0 does not wait. Raises TimeoutError at its end.
        """
        if self._beside is not None and timeout != 0:
            text = (
                "the channel shares the descriptor of a completion channel: wait for that, then use timeout 0"
            )
            raise VerbsError(EINVAL, text, "get_cm_event")
        until = after(timeout)
        poll = select.poll()
        while (event := self._pop()) is None:
            left = None if until is None else until - monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"get_cm_event: no event within {timeout} s")
            poll.register(self._fd, select.POLLIN)
            poll.poll(milliseconds(left))
        return event

    def withdraw(self, one: CmId) -> bool:
        """The peer has gone whose request made this id, which was not delivered. Returns whether nobody will
        see it.
        """
        with self.lock:
            self.take_of(one)
        return True

    def settle_dropped(self) -> None:
        """Count dropped events as acknowledged; call it under the lock."""
        while self.dropped:
            self.dropped.popleft().unacked -= 1

    def take_of(self, cm_id: CmId) -> list[Event]:
        """Remove and return the events of an id that were not delivered; call it under the lock."""
        mine = self.events_of(cm_id)
        if mine:
            for event in mine:
                event.wait_no_more()
            self._events = deque(event for event in self._events if event not in mine)
            self._quiet()
        return mine

    def events_of(self, cm_id: CmId) -> list[Event]:
        """The events of an id that were not delivered, which stay in the channel."""
        return [event for event in self._events if cm_id in (event.id, event.listen_id)]

    def has(self, cm_id: CmId) -> bool:
        """Whether an event of this id waits."""
        with self.lock:
            return any(event.id is cm_id for event in self._events)

    def close(self) -> None:
        """Close the channel (rdma_destroy_event_channel(3)). Raises VerbsError: EBUSY while ids report
        here.
        """
        with self.lock:
            if self._fd < 0:
                return
            users = list(self.ids)
            if users:
                text = f"{len(users)} ids report here, {users[0]!r} for one: destroy them first"
                raise VerbsError(EBUSY, text, "destroy_event_channel")
            self.drop_fd()

    def drop_fd(self) -> None:
        """Close the descriptor, even if ids report here."""
        self._fd = -1
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Self:
        self._need("__enter__")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except VerbsError:
            if kind is None:
                raise

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.drop_fd()
            warnings.warn("unclosed event channel", ResourceWarning, stacklevel=2, source=self)


def channels() -> Iterator[EventChannel]:
    """All open channels of this process."""
    return iter(list(_channels))


def check_timeout(timeout_ms: int, verb: str) -> None:
    """Raise EINVAL for a value that is not a time."""
    if timeout_ms < 0:
        raise VerbsError(EINVAL, f"timeout_ms is {timeout_ms}: give milliseconds from 0 on", verb)
