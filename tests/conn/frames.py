# SPDX-License-Identifier: Apache-2.0
"""SENDs of the endpoint protocol (docs/endpoint-protocol.md), for peers that say what they like."""

from __future__ import annotations

from struct import pack

MESSAGE, MORE, CREDIT, SHARE, WITHDRAW, RELEASE, GOODBYE, ABORT, ANNOUNCE, TAKEN, STOP = range(1, 12)
LAST, TAGGED = 1, 2


def frame(kind: int, number: int = 0, body: bytes = b"", flags: int = 0, refill: int = 0) -> bytes:
    """A header and a body."""
    return pack(">BBHI", kind, flags, refill, number) + body


def message(number: int, payload: bytes, total: int | None = None, last: int = LAST) -> bytes:
    """A whole message, or the first piece of one of `total` bytes."""
    return frame(MESSAGE, number, pack(">Q", len(payload) if total is None else total) + payload, last)


def more(number: int, payload: bytes, last: int = 0) -> bytes:
    """A further piece of a message."""
    return frame(MORE, number, payload, last)


def share(number: int = 1, addr: int = 0, length: int = 8, access: int = 2) -> bytes:
    """A region of the peer's."""
    return frame(SHARE, number, pack(">QQII", addr, length, 0xABCD, access))


def announce(number: int, total: int, addr: int = 0x1000, rkey: int = 7, tag: int = 0) -> bytes:
    """An announced message."""
    body = pack(">QQI4x", total, addr, rkey) + (pack(">Q", tag) if tag else b"")
    return frame(ANNOUNCE, number, body, TAGGED if tag else 0)


TALK = [
    frame(CREDIT, refill=2),
    frame(RELEASE, 1),
    message(0, b"hello"),
    share(1, addr=4096),
    message(1, bytes(range(48)), 120, last=0),
    more(1, bytes(range(48, 104))),
    more(1, bytes(range(104, 120)), last=LAST),
    frame(WITHDRAW, 1),
    message(2, b""),
    frame(GOODBYE, 3),
]
"""What an end may say, with a SEND of every type of version 1 but ABORT."""
