# SPDX-License-Identifier: Apache-2.0
"""The queue of what waits to be sent, and how a message is cut into SENDs."""

from collections import deque
from collections.abc import Iterator

from rnic.endpoint.buffers import EMPTY
from rnic.endpoint.events import Region
from rnic.endpoint.flow import Flow
from rnic.endpoint.frame import (
    HEADER_SIZE,
    MESSAGE_SIZE,
    TAG_SIZE,
    FrameType,
    Offer,
    emit,
    message_header,
    more_header,
    offer_frame,
    share_frame,
)
from rnic.records import MutableRecord

__all__ = ["Announcement", "Cut", "Message", "Outbox", "Outgoing"]


class Outgoing(MutableRecord):
    """One work request for the driver to post, in the order in which they were handed out.

    A SEND of `header` and `payload`, one after the other; or, with `probe`, a zero-length RDMA WRITE, whose
    address and rkey may be anything, they are not looked at (IBA C9-88).
    """

    number: int
    """The number that sent() gets when the work request has completed; counts up from 1."""
    header: bytes
    """The bytes before the payload."""
    payload: memoryview = EMPTY
    """A piece of the message that send() was given, not a copy."""
    probe: bool = False
    """The work request is a zero-length WRITE, to learn whether the peer is there."""
    fence: bool = False
    """Post with SendFlags.FENCE, so that earlier READs and atomics complete first."""
    ends: int | None = None
    """The handle of the message that ends with this SEND; None: no message ends here."""


class Message(MutableRecord):
    """A message that waits to be sent, or is being cut into SENDs."""

    handle: int
    data: memoryview
    number: int | None = None  # the number on the wire; None until the first piece is handed out
    offset: int = 0  # bytes that were handed out
    tag: int = 0
    stopped: bool = False  # a STOP is to tell the peer to drop the pieces that were handed out


class Announcement(MutableRecord):
    """A message that the peer READs from where it lies.  Until the peer has it, only a STOP may be sent."""

    handle: int
    total: int
    addr: int
    rkey: int
    tag: int
    number: int | None = None  # as of a Message
    stopped: bool = False
    said: bool = False  # the STOP was handed out


Item = Message | Announcement | Region | int | None
"""An entry of the queue: an int is the id of a region to WITHDRAW, None is the GOODBYE."""


Cut = tuple[Item, int, bool]
"""The entry that the next SEND belongs to, the bytes of it sent by then, and whether the entry is done."""


class Outbox:
    """Messages, shares, withdrawals and the goodbye, in the order of the calls that put them here.

    look() returns the next SEND; go() notes that it was handed out.
    """

    def __init__(self, flow: Flow) -> None:
        self._queue: deque[Item] = deque()
        self._flow = flow  # counts the messages of which at least one piece was handed out
        self.taken = 0
        """The handle up to which the peer has taken announced messages."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def ready(self) -> bool:
        """Whether a SEND may go now."""
        if not self._queue:
            return False
        item = self._queue[0]
        return not isinstance(item, Announcement) or item.number is None or item.stopped > item.said

    @property
    def announced(self) -> Announcement | None:
        """The message that was announced to the peer and is not taken yet; None: there is none."""
        item = self._queue[0] if self._queue else None
        return item if isinstance(item, Announcement) and item.number is not None else None

    @property
    def queued(self) -> int:
        """The bytes of messages that were not handed out yet."""
        return sum(_left(item) for item in self._messages())

    @property
    def messages(self) -> int:
        """The number of messages that were not handed out whole."""
        return sum(1 for _ in self._messages())

    def _messages(self) -> Iterator[Message | Announcement]:
        return (item for item in self._queue if isinstance(item, Message | Announcement))

    def add(self, item: Item) -> None:
        """Append an entry to the queue; calling it again changes nothing."""
        if not (self._queue and self._queue[-1] is item):
            self._queue.append(item)

    def cancel(self, handle: int) -> bool:
        """Remove a message from the queue; return False if a piece of it was handed out."""
        for index, item in enumerate(self._queue):
            if isinstance(item, Message | Announcement) and item.handle == handle and item.number is None:
                del self._queue[index]
                return True
        return False

    def stop(self, handle: int) -> None:
        """Take back a message that was announced or partly handed out; a STOP will tell the peer."""
        for item in self._messages():
            if item.handle == handle and item.number is not None:
                item.stopped = True
                if isinstance(item, Message):
                    item.data, item.offset = EMPTY, 0

    def detach(self, handle: int) -> None:
        """Go on with a copy of a message, so that its buffer is free."""
        for item in self._messages():
            if isinstance(item, Message) and item.handle == handle:
                item.data = memoryview(bytes(item.data))

    def clear(self) -> None:
        """Drop all entries and their buffers, as the connection has ended."""
        self._queue.clear()

    def look(self, number: int, refill: int, size: int, describe: bool) -> tuple[Outgoing, FrameType, Cut]:
        """Return the next SEND, of at most `size` bytes, which returns `refill` credits.  Only when `ready`.

        `describe`: the peer understands a SHARE that describes the array in the region.
        """
        item = self._queue[0]
        if isinstance(item, Message | Announcement) and item.stopped:
            assert item.number is not None
            return (
                Outgoing(number, emit(FrameType.STOP, refill, item.number)),
                FrameType.STOP,
                (item, 0, True),
            )
        if isinstance(item, Message):
            return self._cut(item, number, refill, size)
        if isinstance(item, Announcement):
            offer = Offer(self._flow.begun & 0xFFFFFFFF, item.total, item.addr, item.rkey, item.tag)
            return Outgoing(number, offer_frame(refill, offer)), FrameType.ANNOUNCE, (item, 0, False)
        if isinstance(item, Region):
            return (
                Outgoing(number, share_frame(refill, item, size if describe else 0)),
                FrameType.SHARE,
                (item, 0, True),
            )
        if item is not None:
            return (
                Outgoing(number, emit(FrameType.WITHDRAW, refill, item)),
                FrameType.WITHDRAW,
                (item, 0, True),
            )
        return (
            Outgoing(number, emit(FrameType.GOODBYE, refill, self._flow.begun)),
            FrameType.GOODBYE,
            (item, 0, True),
        )

    def _cut(self, item: Message, number: int, refill: int, size: int) -> tuple[Outgoing, FrameType, Cut]:
        total, start, first = len(item.data), item.offset, item.number is None
        before = HEADER_SIZE if not first else MESSAGE_SIZE + (TAG_SIZE if item.tag else 0)
        end = min(total, start + size - before)
        last = end == total
        if item.number is None:
            header = message_header(refill, self._flow.begun, total, last, item.tag)
        else:
            header = more_header(refill, item.number, last)
        out = Outgoing(number, header, item.data[start:end], ends=item.handle if last else None)
        return out, FrameType.MESSAGE if first else FrameType.MORE, (item, end, last)

    def go(self, cut: Cut) -> None:
        """Note that a SEND was handed out; calling it again changes nothing."""
        item, offset, last = cut
        if isinstance(item, Message | Announcement):
            if item.number is None:
                item.number = self._flow.begun
            self._flow.begun = item.number + 1
        if isinstance(item, Message):
            item.offset = offset
        if isinstance(item, Announcement):
            item.said = item.stopped
        elif last:
            self.drop(item)

    def take(self, item: Announcement) -> None:
        """Note that the peer has taken an announced message; calling it again changes nothing."""
        self.taken = item.handle
        self.drop(item)

    def drop(self, item: Item) -> None:
        """Remove `item` if it is the first entry; calling it again changes nothing."""
        if self._queue and self._queue[0] is item:
            self._queue.popleft()


def _left(item: Message | Announcement) -> int:
    return item.total if isinstance(item, Announcement) else len(item.data) - item.offset
