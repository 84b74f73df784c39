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
from errno import EBADF, EBUSY, EINVAL
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from rnic.errors import VerbsError
from rnic.rdmacm.names import ConnParam, EventType, UDParam
from rnic.wire import RejReason, SidrStatus
from rnic.wire.cm_names import name_of

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId


class Event:
    """Something that happened to an id (rdma_get_cm_event(3)); a context manager that acknowledges it."""

    __slots__ = ("__weakref__", "_delivered", "acked", "arg", "event", "id", "listen_id", "param", "status")

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
        self._delivered: EventChannel | None = None

    @property
    def owner(self) -> CmId:
        """The id that cannot be destroyed before this is acknowledged."""
        return self.listen_id or self.id

    def deliver(self, channel: EventChannel) -> None:
        """Count it, under the channel's lock: from now on it has to be acknowledged."""
        self._delivered = channel
        self.owner.unacked += 1

    def ack(self) -> None:
        """Acknowledge it (rdma_ack_cm_event(3)); the second time does nothing."""
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
        if self._delivered is not None and not self.acked:
            self.ack()
            warnings.warn(f"{self!r} was never acknowledged", ResourceWarning, stacklevel=2, source=self)

    def explain(self) -> str:
        """The event in words: why it was refused, or what failed."""
        if self.status > 0 or self.event is EventType.REJECTED:
            reasons = SidrStatus if self.event is EventType.UNREACHABLE else RejReason
            reason = name_of(reasons, self.status)
            return f"{self.event.name}: refused by the peer, reason {self.status} ({reason})"
        why = f": {os.strerror(-self.status)}" if self.status else ""
        return f"{self.event.name}{why}"

    def __repr__(self) -> str:
        status = f" status {self.status}" if self.status else ""
        return f"<Event {self.event.name} of {self.id!r}{status}>"


_channels: weakref.WeakSet[EventChannel] = weakref.WeakSet()


class EventChannel:
    """Where the events of ids arrive (rdma_create_event_channel(3)); a context manager."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.ids: weakref.WeakSet[CmId] = weakref.WeakSet()
        self._events: deque[Event] = deque()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        _channels.add(self)

    def fileno(self) -> int:
        """A file descriptor that is readable while events wait, for select, epoll and asyncio."""
        self._need("fileno")
        return self._fd

    def _need(self, verb: str) -> None:
        if self._fd < 0:
            raise VerbsError(EBADF, "the event channel is closed", verb)

    def put(self, event: Event) -> None:
        """Queue an event."""
        with self.lock:
            if self._fd < 0:
                return
            self._events.append(event)
            if event.event is EventType.CONNECT_REQUEST:
                event.owner.waiting += 1
            if len(self._events) == 1:
                os.eventfd_write(self._fd, 1)

    def wake(self) -> None:
        """Make the descriptor readable though there may be no event: who waits looks again."""
        with self.lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def _pop(self) -> Event | None:
        with self.lock:
            self._need("get_cm_event")
            if not self._events:
                return None
            event = self._events.popleft()
            event.deliver(self)
            if event.event is EventType.CONNECT_REQUEST:
                event.owner.waiting -= 1
            self._quiet()
            return event

    def _quiet(self) -> None:
        if not self._events:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._fd)

    def get_cm_event(self, timeout: float | None = None) -> Event:
        """Wait for an event (rdma_get_cm_event(3)); it has to be acknowledged.

        `timeout` is in seconds, None for ever, 0 not at all; TimeoutError at its end.
        """
        until = None if timeout is None else monotonic() + timeout
        poll = select.poll()
        while (event := self._pop()) is None:
            left = None if until is None else until - monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"get_cm_event: no event within {timeout} s")
            poll.register(self._fd, select.POLLIN)
            poll.poll(None if left is None else max(1, min(round(left * 1000), 1 << 30)))
        return event

    def take_request(self, cm_id: CmId) -> bool:
        """Take back the request that an id was made for, if nobody has got it yet."""
        with self.lock:
            found = next((one for one in self._events if one.id is cm_id and one.listen_id), None)
            if found is None:
                return False
            self._events.remove(found)
            found.owner.waiting -= 1
            self._quiet()
            return True

    def take_of(self, cm_id: CmId) -> list[Event]:
        """The events of an id that nobody has got yet, taken out; under the lock."""
        mine = [event for event in self._events if cm_id in (event.id, event.listen_id)]
        if mine:
            self._events = deque(event for event in self._events if event not in mine)
            self._quiet()
        return mine

    def has(self, cm_id: CmId) -> bool:
        """Whether an event of an id waits."""
        with self.lock:
            return any(event.id is cm_id for event in self._events)

    def close(self) -> None:
        """Give the descriptor back (rdma_destroy_event_channel(3)). EBUSY while ids report here."""
        with self.lock:
            if self._fd < 0:
                return
            users = list(self.ids)
            if users:
                text = f"{len(users)} ids report here, {users[0]!r} for one: destroy them first"
                raise VerbsError(EBUSY, text, "destroy_event_channel")
            self.drop_fd()

    def drop_fd(self) -> None:
        """Close the descriptor, whatever reports here."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

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
    """All that are open in this process."""
    return iter(list(_channels))


def check_timeout(timeout_ms: int, verb: str) -> None:
    """EINVAL for a time that is none."""
    if timeout_ms < 0:
        raise VerbsError(EINVAL, f"timeout_ms is {timeout_ms}", verb)
