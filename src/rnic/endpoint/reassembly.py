# SPDX-License-Identifier: Apache-2.0
"""Put the fragments of messages together again."""

from collections.abc import Set
from io import BytesIO
from typing import NamedTuple

from rnic.endpoint.errors import ProtocolError, Reason
from rnic.endpoint.flow import Flow
from rnic.endpoint.frame import LAST, Frame, parse_message

__all__ = ["Assembler", "Progress"]


class Progress(NamedTuple):
    """The state of the assembler after a fragment."""

    total: int | None
    """The length in bytes of the message that has begun; None between messages."""
    there: int
    """The number of bytes of that message that are here."""
    complete: int
    """The number of messages that are complete."""
    tag: int
    """The tag of the message that has begun, or is complete now."""


class Assembler:
    """The message that is coming in, and the check of each fragment.

    first() and more() check a fragment, and return the new state and the message that it completes, or None.
    go() applies the state.  Memory grows with the bytes that arrive, never with what a header claims.
    """

    def __init__(self, max_message: int, flow: Flow) -> None:
        self.max_message = max_message
        self._flow = flow  # counts messages
        self.buffered = 0
        """The bytes of the unfinished message that are here."""
        self._total: int | None = None
        self._tag = 0
        self._data = BytesIO()  # getvalue() returns the bytes that were written, without a second copy
        self._keeps = True

    def is_of(self, tags: Set[int]) -> bool:
        """Whether a message has begun that has one of these tags."""
        return self._total is not None and self._tag in tags

    @property
    def partial(self) -> bool:
        """A message has begun and is not complete."""
        return self._total is not None

    def first(self, frame: Frame) -> tuple[Progress, bytes | None]:
        """Check a MESSAGE; return the new state, and the message if it is complete; else ProtocolError."""
        total, tag, payload = parse_message(frame)
        if self._total is not None:
            raise ProtocolError(f"MESSAGE {frame.id} came before message {self._flow.complete} was complete")
        if total > self.max_message:
            raise ProtocolError(
                f"message {frame.id} of {total} bytes is longer than {self.max_message}, the most we take",
                Reason.TOO_LONG,
            )
        return self._look(frame, total, tag, payload)

    def more(self, frame: Frame) -> tuple[Progress, bytes | None]:
        """Check a MORE; return the new state, and the message if it is complete; else ProtocolError."""
        if self._total is None:
            raise ProtocolError(f"MORE of message {frame.id}, which was not begun")
        if not frame.body:
            raise ProtocolError(f"MORE of message {frame.id} is empty")
        return self._look(frame, self._total, self._tag, frame.body)

    def _look(self, frame: Frame, total: int, tag: int, payload: memoryview) -> tuple[Progress, bytes | None]:
        number = self._flow.complete & 0xFFFFFFFF
        if frame.id != number:
            raise ProtocolError(f"{frame.type.name} of message {frame.id}, where {number} is due")
        if total and not payload:
            raise ProtocolError(f"{frame.type.name} of message {number} is empty, the message is not")
        there = self.buffered + len(payload)
        if there > total:
            raise ProtocolError(f"message {number} has {total} bytes, and a fragment goes to {there}")
        if bool(frame.flags & LAST) != (there == total):
            word = "says LAST" if frame.flags & LAST else "does not say LAST"
            raise ProtocolError(f"{frame.type.name} of message {number} {word} at {there} of {total} bytes")
        if there == len(payload) == total:
            return Progress(None, 0, self._flow.complete + 1, tag), bytes(payload)
        if self._keeps:
            self._keep(number, total, payload)
        if there < total:
            return Progress(total, there, self._flow.complete, tag), None
        return Progress(None, 0, self._flow.complete + 1, tag), self._data.getvalue()

    def _keep(self, number: int, total: int, payload: memoryview) -> None:
        self._data.seek(self.buffered)  # without go() after it, a repeated call writes the same bytes again
        try:
            self._data.write(payload)
        except MemoryError:  # the fragments that came before are lost, too
            raise ProtocolError(
                f"there is no memory for message {number} of {total} bytes", Reason.TOO_LONG
            ) from None

    def look_stopped(self) -> Progress:
        """Return the state after the peer has taken back the message that has begun."""
        return Progress(None, 0, self._flow.complete + 1, 0)

    def go(self, progress: Progress) -> None:
        """Apply a state that first(), more() or look_stopped() has returned; again changes nothing."""
        if progress.total is None and self.buffered:
            self._data = BytesIO()
        self._total, self.buffered, self._tag = progress.total, progress.there, progress.tag
        self._flow.complete = progress.complete

    def take_over(self, total: int, data: bytes, tag: int) -> None:
        """Go on with a message of `total` bytes that begins with `data`; calling it again changes nothing."""
        self._data = BytesIO()
        if self._keeps:
            self._data.write(data)
        self._total, self.buffered, self._tag = total, len(data), tag

    def discard(self) -> None:
        """From now on check and count fragments, but keep none: messages are no longer wanted."""
        self._keeps = False
        self._data = BytesIO()

    def drop(self) -> None:
        """Forget the incomplete message, as the connection has ended."""
        self._total, self.buffered = None, 0
        self._data = BytesIO()
