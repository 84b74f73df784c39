# SPDX-License-Identifier: Apache-2.0
"""TCP in a capture: the segments of each direction of a connection, put in their order."""

from __future__ import annotations

from rnic.wire import TCP

_HALF = 1 << 31
_MASK = (1 << 32) - 1
AHEAD_MOST = 4 << 20
"""Bytes that are kept for want of those before them. More: the capture has lost some."""


def distance(seq: int, base: int) -> int:
    """How far a sequence number is ahead of another one (RFC 9293, 3.4)."""
    return ((seq - base + _HALF) & _MASK) - _HALF


class Direction:
    """What one end has sent. Where the beginning was not captured, the first segment is taken for it."""

    def __init__(self) -> None:
        self._next: int | None = None
        self._ahead: dict[int, bytes] = {}
        self._waiting = 0  # bytes in it
        self.broken = False
        """Bytes are missing that will not come."""

    def take(self, segment: TCP) -> bytes:
        """The bytes that are in order now: perhaps more than this segment's, or none."""
        header, seq = segment.header, segment.header.seq
        if header.syn:
            self._next = (seq + 1) & _MASK
            self._ahead.clear()
            return b""
        if self._next is None:
            self._next = seq
        if self.broken or not segment.payload:
            return b""
        if len(segment.payload) > len(self._ahead.get(seq, b"")):
            self._waiting += len(segment.payload) - len(self._ahead.get(seq, b""))
            self._ahead[seq] = segment.payload
        taken = b"".join(iter(self._take_next, b""))
        if self._waiting > AHEAD_MOST:
            self.broken = True
            self._ahead.clear()
        return taken

    def _take_next(self) -> bytes:
        """The bytes of a segment that begins at the next one or before, and ends behind it."""
        assert self._next is not None
        for seq in list(self._ahead):
            known = -distance(seq, self._next)
            if known < 0:
                continue
            payload = self._ahead.pop(seq)
            self._waiting -= len(payload)
            if known < len(payload):
                self._next = (seq + len(payload)) & _MASK
                return payload[known:]
        return b""
