# SPDX-License-Identifier: Apache-2.0
"""What waits for the user, in order, and how much it weighs."""

from collections import deque

from rnic.endpoint.events import Event, MessageReceived

__all__ = ["Inbox", "copied"]

_EVENT_WEIGHT = 64
"""Bytes that an event counts beside its data, so that empty messages are bounded too."""


class Inbox:
    """Events that the user has not taken.

    look() and look_taken() say what putting or taking leads to; put() and take() make it so, and again change
    nothing more.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._taken = 0
        """Events that the user has taken."""
        self.weight = 0
        """Bytes of events that wait, each with an overhead."""

    def __len__(self) -> int:
        return len(self._events)

    @property
    def first(self) -> Event | None:
        """The one that is taken next."""
        return self._events[0] if self._events else None

    def find(self, tag: int) -> MessageReceived | None:
        """The first message with this tag."""
        for event in self._events:
            if isinstance(event, MessageReceived) and event.tag == tag:
                return event
        return None

    def look_exchanged(self, found: MessageReceived, other: MessageReceived) -> int:
        """The weight with the other message in place of the one that was found."""
        return self.weight - _weight(found) + _weight(other)

    def exchange(self, found: MessageReceived, other: MessageReceived, weight: int) -> None:
        """Make it so: the other one is the first; again changes nothing."""
        left = [event for event in self._events if event is not found and event is not other]
        self._events = deque([other, *left])
        self.weight = weight

    def copy_messages(self) -> None:
        """Messages that lie where the driver has put them get bytes of their own; again changes nothing."""
        self._events = deque(copied(one) if isinstance(one, MessageReceived) else one for one in self._events)

    def look(self, events: tuple[Event, ...]) -> tuple[int, int]:
        """How many events there were before these, and the weight with them."""
        weight = self.weight
        for event in events:
            weight += _weight(event)
        return self._taken + len(self._events), weight

    def put(self, events: tuple[Event, ...], before: int, weight: int) -> None:
        """Make it so that they are here."""
        for event in events:
            if self._taken + len(self._events) == before:
                self._events.append(event)
            before += 1
        self.weight = weight

    def look_taken(self, event: Event) -> tuple[int, int]:
        """How many are taken with it, and the weight without it."""
        return self._taken + 1, self.weight - _weight(event)

    def take(self, event: Event, taken: int, weight: int) -> None:
        """Make it so that it is taken."""
        if self._events and self._events[0] is event:
            self._events.popleft()
        self._taken, self.weight = taken, weight


def copied(message: MessageReceived) -> MessageReceived:
    """The same, with bytes of its own."""
    return message if isinstance(message.data, bytes) else MessageReceived(bytes(message.data), message.tag)


def _weight(event: Event) -> int:
    return _EVENT_WEIGHT + (len(event.data) if isinstance(event, MessageReceived) else 0)
