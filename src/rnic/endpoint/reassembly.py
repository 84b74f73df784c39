# SPDX-License-Identifier: Apache-2.0
"""Fragments become messages again."""

from io import BytesIO

from rnic.endpoint.errors import ProtocolError, Reason
from rnic.endpoint.frame import LAST, Frame, parse_total

__all__ = ["Assembler"]


class Assembler:
    """The message that is coming in, and what may come next.

    Memory grows with what has arrived, never with what a header claims.
    """

    def __init__(self, max_message: int) -> None:
        self.max_message = max_message
        self.complete = 0
        """Messages that were handed out: the number of the one that comes next."""
        self._total: int | None = None  # bytes of the message that has begun, None between messages
        self._data = BytesIO()  # its getvalue() hands out the very bytes that were written: no second copy

    @property
    def partial(self) -> bool:
        """A message has begun and is not complete."""
        return self._total is not None

    @property
    def buffered(self) -> int:
        """Bytes of it that are here."""
        return self._data.tell()

    def first(self, frame: Frame) -> bytes | None:
        """A MESSAGE: the message, if it is complete."""
        total, payload = parse_total(frame)
        if self._total is not None:
            raise ProtocolError(f"MESSAGE {frame.id} came before message {self.complete} was complete")
        if total > self.max_message:
            raise ProtocolError(
                f"message {frame.id} of {total} bytes is longer than {self.max_message}, the most we take",
                Reason.TOO_LONG,
            )
        self._total = total
        return self._add(frame, payload)

    def more(self, frame: Frame) -> bytes | None:
        """A MORE: the message, if it is complete."""
        if self._total is None:
            raise ProtocolError(f"MORE of message {frame.id}, which was not begun")
        if not frame.body:
            raise ProtocolError(f"MORE of message {frame.id} is empty")
        return self._add(frame, frame.body)

    def _add(self, frame: Frame, payload: memoryview) -> bytes | None:
        number, total = self.complete & 0xFFFFFFFF, self._total or 0
        if frame.id != number:
            raise ProtocolError(f"{frame.type.name} of message {frame.id}, where {number} is due")
        if total and not payload:
            raise ProtocolError(f"{frame.type.name} of message {number} is empty, the message is not")
        there = self._data.tell() + len(payload)
        if there > total:
            raise ProtocolError(f"message {number} has {total} bytes, and a fragment goes to {there}")
        if bool(frame.flags & LAST) != (there == total):
            word = "says LAST" if frame.flags & LAST else "does not say LAST"
            raise ProtocolError(f"{frame.type.name} of message {number} {word} at {there} of {total} bytes")
        if there == len(payload) == total:
            data = bytes(payload)
        else:
            self._data.write(payload)
            if there < total:
                return None
            data = self._data.getvalue()
            self._data = BytesIO()
        self._total = None
        self.complete += 1
        return data

    def drop(self) -> None:
        """Forget what is incomplete: the connection has ended."""
        self._total = None
        self._data = BytesIO()
