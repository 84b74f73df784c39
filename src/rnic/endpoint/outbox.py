# SPDX-License-Identifier: Apache-2.0
"""What waits to be sent, in order, and how a message is cut into SENDs."""

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
    """To name it to sent(); counts up."""
    header: bytes
    """What precedes the payload."""
    payload: memoryview = EMPTY
    """A piece of the message that send() was given, not a copy."""
    probe: bool = False
    """It is a zero-length WRITE, to learn whether the peer is there."""
    fence: bool = False
    """Post it with SendFlags.FENCE: READs and atomics before it must be over first."""
    ends: int | None = None
    """The handle of the message of which this is the last piece."""


class Message(MutableRecord):
    """A message that waits, or is being cut."""

    handle: int
    data: memoryview
    number: int | None = None  # on the wire; None as long as nothing of it was sent
    offset: int = 0  # bytes that were handed out
    tag: int = 0
    stopped: bool = False  # what was handed out is taken back


class Announcement(MutableRecord):
    """A message that stays where it is until the peer has it; nothing goes before that but a STOP."""

    handle: int
    total: int
    addr: int
    rkey: int
    tag: int
    number: int | None = None  # as of a Message
    stopped: bool = False
    said: bool = False  # the STOP was handed out


Item = Message | Announcement | Region | int | None
"""What waits: an int is the region to WITHDRAW, None the GOODBYE."""


Cut = tuple[Item, int, bool]
"""What the next SEND is of, bytes of a message that have gone with it, and whether nothing of it is left."""


class Outbox:
    """Messages, shares, withdrawals and the goodbye, in the order of the calls that put them here.

    look() says what comes next; go() makes it so.
    """

    def __init__(self, flow: Flow) -> None:
        self._queue: deque[Item] = deque()
        self._flow = flow  # counts the messages of which at least one piece was handed out
        self.taken = 0
        """The handle up to which announced messages were taken."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def ready(self) -> bool:
        """There is something that may go now."""
        if not self._queue:
            return False
        item = self._queue[0]
        return not isinstance(item, Announcement) or item.number is None or item.stopped > item.said

    @property
    def announced(self) -> Announcement | None:
        """What the peer has been told of, and has not taken."""
        item = self._queue[0] if self._queue else None
        return item if isinstance(item, Announcement) and item.number is not None else None

    @property
    def queued(self) -> int:
        """Bytes of messages that were not handed out yet."""
        return sum(_left(item) for item in self._messages())

    @property
    def messages(self) -> int:
        """Messages that were not handed out whole."""
        return sum(1 for _ in self._messages())

    def _messages(self) -> Iterator[Message | Announcement]:
        return (item for item in self._queue if isinstance(item, Message | Announcement))

    def add(self, item: Item) -> None:
        """Queue something; the second time changes nothing."""
        if not (self._queue and self._queue[-1] is item):
            self._queue.append(item)

    def cancel(self, handle: int) -> bool:
        """Take a message out again, unless a piece of it was handed out."""
        for index, item in enumerate(self._queue):
            if isinstance(item, Message | Announcement) and item.handle == handle and item.number is None:
                del self._queue[index]
                return True
        return False

    def stop(self, handle: int) -> None:
        """Take back a message of which a piece was handed out, or that was announced; the peer is told."""
        for item in self._messages():
            if item.handle == handle and item.number is not None:
                item.stopped = True
                if isinstance(item, Message):
                    item.data, item.offset = EMPTY, 0

    def detach(self, handle: int) -> None:
        """Let go of a message's buffer: what was not handed out of it is copied."""
        for item in self._messages():
            if isinstance(item, Message) and item.handle == handle:
                item.data = memoryview(bytes(item.data))

    def clear(self) -> None:
        """The connection has ended: let go of all buffers."""
        self._queue.clear()

    def look(self, number: int, refill: int, size: int, describe: bool) -> tuple[Outgoing, FrameType, Cut]:
        """The next SEND, of at most `size` bytes, which returns `refill` credits; one is `ready`.

        `describe`: the peer understands what array a region holds.
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
        """It was handed out; the second time changes nothing."""
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
        """The peer has it; again changes nothing."""
        self.taken = item.handle
        self.drop(item)

    def drop(self, item: Item) -> None:
        """The first one is done with; again changes nothing."""
        if self._queue and self._queue[0] is item:
            self._queue.popleft()


def _left(item: Message | Announcement) -> int:
    return item.total if isinstance(item, Announcement) else len(item.data) - item.offset
