# SPDX-License-Identifier: Apache-2.0
"""The events that wait for the user, in order, and the memory that they take."""

from collections import deque
from collections.abc import Iterator

from rnic.endpoint.events import Event, MessageReceived

__all__ = ["Inbox", "copied"]

_EVENT_WEIGHT = 64
"""Bytes that each event counts in addition to its data, so that empty messages are bounded, too."""


class Inbox:
    """The events that the user has not taken yet.

    look() and look_taken() compute a change; put() and take() apply it, and calling them again changes
    nothing.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._taken = 0
        """The number of events that the user has taken."""
        self.weight = 0
        """The bytes of all events that wait, with an overhead for each."""

    def __len__(self) -> int:
        return len(self._events)

    @property
    def first(self) -> Event | None:
        """The event that is taken next; None: there is none."""
        return self._events[0] if self._events else None

    def find(self, tag: int) -> MessageReceived | None:
        """Return the first message with this tag; None when there is none."""
        for event in self._events:
            if isinstance(event, MessageReceived) and event.tag == tag:
                return event
        return None

    def tags(self) -> Iterator[int | None]:
        """Return the tags of the events, one for each; None: it is no message."""
        return map(_tag, self._events)

    def look_exchanged(self, found: MessageReceived, other: MessageReceived) -> int:
        """Return the weight after `other` has taken the place of `found`."""
        return self.weight - _weight(found) + _weight(other)

    def exchange(self, found: MessageReceived, other: MessageReceived, weight: int) -> None:
        """Remove `found` and put `other` in front; calling it again changes nothing."""
        left = [event for event in self._events if event is not found and event is not other]
        self._events = deque([other, *left])
        self.weight = weight

    def copy_messages(self) -> None:
        """Copy the messages that lie in the driver's memory; calling it again changes nothing."""
        self._events = deque(copied(one) if isinstance(one, MessageReceived) else one for one in self._events)

    def look(self, events: tuple[Event, ...]) -> tuple[int, int]:
        """Return how many events came before these, and the weight including these."""
        weight = self.weight
        for event in events:
            weight += _weight(event)
        return self._taken + len(self._events), weight

    def put(self, events: tuple[Event, ...], before: int, weight: int) -> None:
        """Append events, with the numbers that look() has returned; calling it again changes nothing."""
        for event in events:
            if self._taken + len(self._events) == before:
                self._events.append(event)
            before += 1
        self.weight = weight

    def look_taken(self, event: Event) -> tuple[int, int]:
        """Return how many events are taken when this one is, and the weight without it."""
        return self._taken + 1, self.weight - _weight(event)

    def take(self, event: Event, taken: int, weight: int) -> None:
        """Take an event, with the numbers that look_taken() has returned; again changes nothing."""
        if self._events and self._events[0] is event:
            self._events.popleft()
        self._taken, self.weight = taken, weight


def copied(message: MessageReceived) -> MessageReceived:
    """Return the message with bytes of its own, copied if they lie in other memory."""
    return message if isinstance(message.data, bytes) else MessageReceived(bytes(message.data), message.tag)


def _tag(event: Event) -> int | None:
    return event.tag if isinstance(event, MessageReceived) else None


def _weight(event: Event) -> int:
    return _EVENT_WEIGHT + (len(event.data) if isinstance(event, MessageReceived) else 0)
