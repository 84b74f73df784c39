# SPDX-License-Identifier: Apache-2.0
"""What two ends say to each other: messages of their channel, checked."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from rnic.patterns.cursor import LiarError
from rnic.patterns.rendezvous.layout import Remote

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MOST_PIECES", "Kind", "Word", "pack", "pack_pieces", "parse", "parse_pieces"]

HEADER = struct.Struct("<BBHI")
_HELLO = struct.Struct("<4sHxxQ")
_TOTAL = struct.Struct("<Q")
_PIECE = struct.Struct("<QQI")
_MAGIC, _VERSION = b"rnRV", 1
MOST_PIECES = 256
LONGEST = HEADER.size + MOST_PIECES * _PIECE.size  # bytes of an OFFER, CLEAR or INVITE
_PROBE = 1
NONCE = 8


class Kind(IntEnum):
    """The first byte of a message."""

    HELLO = 1
    EAGER = 2
    OFFER = 3
    ASK = 4
    CLEAR = 5
    WRITTEN = 6
    DONE = 7
    MEASURE = 8
    MEASURED = 9
    INVITE = 10
    FILLED = 11


_BODIES = {
    Kind.WRITTEN: 0,
    Kind.DONE: 0,
    Kind.MEASURED: 0,
    Kind.MEASURE: NONCE,
    Kind.ASK: _TOTAL.size,
    Kind.FILLED: _TOTAL.size,
}
_BARE = frozenset({Kind.HELLO, Kind.MEASURE, Kind.MEASURED})  # their number is zero
_MAY_PROBE = frozenset({Kind.EAGER, Kind.OFFER, Kind.ASK})


class Word(NamedTuple):
    """A message that came."""

    kind: Kind
    number: int
    """Of the message that is sent, announced, moved or taken, or that is to be the next."""
    probe: bool
    """It is to be timed, and then forgotten."""
    body: bytes


def pack(kind: Kind, number: int = 0, body: bytes = b"", probe: bool = False) -> bytes:
    """A message."""
    return HEADER.pack(kind, probe * _PROBE, 0, number) + body


def parse(message: bytes) -> Word:
    """What a message says; LiarError."""
    if len(message) < HEADER.size:
        raise LiarError(f"the peer sent {len(message)} bytes, which are no header")
    number_of_kind, flags, zero, number = HEADER.unpack_from(message)
    if number_of_kind not in iter(Kind):
        raise LiarError(f"the peer sent kind {number_of_kind}, which is not known")
    kind, size = Kind(number_of_kind), len(message) - HEADER.size
    if flags & ~_PROBE or zero or (flags and kind not in _MAY_PROBE):
        raise LiarError(f"the peer sent {kind.name} with flags {flags:#x}, {zero:#x}")
    if number and kind in _BARE:
        raise LiarError(f"the peer sent {kind.name} with the number {number}")
    if size != _BODIES.get(kind, size):
        raise LiarError(f"the peer sent {kind.name} with {size} bytes: it has {_BODIES[kind]}")
    return Word(kind, number, bool(flags), message[HEADER.size :])


def pack_hello(longest: int) -> bytes:
    """HELLO of an end that takes messages of at most so many bytes."""
    return pack(Kind.HELLO, 0, _HELLO.pack(_MAGIC, _VERSION, longest))


def parse_hello(body: bytes) -> int:
    """The most bytes of a message that the peer takes."""
    if len(body) != _HELLO.size:
        raise LiarError(f"a HELLO of {len(body)} bytes: it has {_HELLO.size}")
    magic, version, longest = _HELLO.unpack(body)
    if (magic, version) != (_MAGIC, _VERSION):
        raise LiarError(f"the peer's HELLO is {magic!r} {version}: this end speaks {_MAGIC!r} {_VERSION}")
    return int(longest)


def pack_ask(total: int) -> bytes:
    """The body of ASK and FILLED."""
    return _TOTAL.pack(total)


def parse_ask(body: bytes) -> int:
    """The bytes of the message."""
    (total,) = _TOTAL.unpack(body)
    return int(total)


def pack_pieces(pieces: Sequence[Remote]) -> bytes:
    """The body of OFFER, CLEAR and INVITE."""
    return b"".join(_PIECE.pack(*piece) for piece in pieces)


def parse_pieces(body: bytes) -> list[Remote]:
    """The pieces of a message, in their order."""
    count, rest = divmod(len(body), _PIECE.size)
    if rest or not 1 <= count <= MOST_PIECES:
        raise LiarError(f"{len(body)} bytes that tell of pieces: {_PIECE.size} each, of 1 to {MOST_PIECES}")
    pieces = [Remote(*piece) for piece in _PIECE.iter_unpack(body)]
    if any(not length or addr + length > 1 << 64 for addr, length, _ in pieces):
        raise LiarError("a piece without bytes, or beyond the end of memory")
    return pieces
