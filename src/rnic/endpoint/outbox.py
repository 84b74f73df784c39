# SPDX-License-Identifier: Apache-2.0
"""What waits to be sent, in order, and how a message is cut into SENDs."""

from collections import deque
from dataclasses import dataclass

from rnic.endpoint.events import Region
from rnic.endpoint.frame import (
    HEADER_SIZE,
    MESSAGE_SIZE,
    FrameType,
    emit,
    message_header,
    more_header,
    share_frame,
)

__all__ = ["EMPTY", "Outbox", "Outgoing"]

EMPTY = memoryview(b"")


@dataclass(slots=True)
class Outgoing:
    """One work request for the driver to post, in the order in which they were handed out.

    A SEND of `header` and `payload`, one after the other; or, with `probe`, a zero-length RDMA WRITE, whose
    address and rkey may be anything, they are not looked at (IBA C9-88).
    """

    number: int
    """To name it to sent(); counts up."""
    header: bytes
    payload: memoryview = EMPTY
    """A piece of the message that send() was given, not a copy."""
    probe: bool = False
    fence: bool = False
    """Post it with SendFlags.FENCE: READs and atomics before it must be over first."""
    ends: int | None = None
    """The handle of the message of which this is the last piece."""


@dataclass(slots=True)
class _Message:
    """A message that waits, or is being cut."""

    handle: int
    data: memoryview
    number: int | None = None  # on the wire; None as long as nothing of it was sent
    offset: int = 0  # bytes that were handed out


class Outbox:
    """Messages, shares, withdrawals and the goodbye, in the order of the calls that put them here."""

    def __init__(self) -> None:
        self._queue: deque[_Message | Region | int | None] = deque()  # int: WITHDRAW that; None: GOODBYE
        self.begun = 0
        """Messages of which at least one piece was handed out."""
        self.queued = 0
        """Bytes of messages that were not handed out yet."""
        self.messages = 0
        """Messages that were not handed out whole."""

    def __len__(self) -> int:
        return len(self._queue)

    def add_message(self, handle: int, data: memoryview) -> None:
        """Queue a message."""
        self._queue.append(_Message(handle, data))
        self.queued += len(data)
        self.messages += 1

    def add_share(self, region: Region) -> None:
        """Queue a SHARE."""
        self._queue.append(region)

    def add_withdraw(self, region_id: int) -> None:
        """Queue a WITHDRAW."""
        self._queue.append(region_id)

    def add_goodbye(self) -> None:
        """Queue the GOODBYE."""
        self._queue.append(None)

    def cancel(self, handle: int) -> bool:
        """Take a message out again, unless a piece of it was handed out."""
        for index, item in enumerate(self._queue):
            if isinstance(item, _Message) and item.handle == handle and item.number is None:
                del self._queue[index]
                self.queued -= len(item.data)
                self.messages -= 1
                return True
        return False

    def detach(self, handle: int) -> None:
        """Let go of a message's buffer: what was not handed out of it is copied."""
        for item in self._queue:
            if isinstance(item, _Message) and item.handle == handle:
                item.data = memoryview(bytes(item.data))

    def clear(self) -> None:
        """The connection has ended: let go of all buffers."""
        self._queue.clear()
        self.queued = self.messages = 0

    def take(self, number: int, refill: int, size: int) -> tuple[Outgoing, FrameType]:
        """The next SEND, of at most `size` bytes, which returns `refill` credits; the queue is not empty."""
        item = self._queue[0]
        if isinstance(item, _Message):
            return self._cut(item, number, refill, size)
        self._queue.popleft()
        if isinstance(item, Region):
            return Outgoing(number, share_frame(refill, item)), FrameType.SHARE
        if item is not None:
            return Outgoing(number, emit(FrameType.WITHDRAW, refill, item)), FrameType.WITHDRAW
        return Outgoing(number, emit(FrameType.GOODBYE, refill, self.begun)), FrameType.GOODBYE

    def _cut(self, item: _Message, number: int, refill: int, size: int) -> tuple[Outgoing, FrameType]:
        total, start, first = len(item.data), item.offset, item.number is None
        end = min(total, start + size - (MESSAGE_SIZE if first else HEADER_SIZE))
        last = end == total
        if item.number is None:
            item.number = self.begun
            self.begun += 1
            header = message_header(refill, item.number, total, last)
        else:
            header = more_header(refill, item.number, last)
        item.offset = end
        self.queued -= end - start
        if last:
            self._queue.popleft()
            self.messages -= 1
        ends = item.handle if last else None
        kind = FrameType.MESSAGE if first else FrameType.MORE
        return Outgoing(number, header, item.data[start:end], ends=ends), kind
