# SPDX-License-Identifier: Apache-2.0
"""Bytes that say whose they are: a message follows from its head, so that each byte of it can be checked."""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Self

_HEAD = struct.Struct("!4sBIIHII")
_CRC = struct.Struct("!I")  # of the head
MAGIC = b"chao"
LEAST = _HEAD.size + _CRC.size
"""Bytes of the shortest message: its head alone."""


class WrongBytes(Exception):  # noqa: N818
    """Bytes came that nobody sent, or not here, or not now."""


class Kind(IntEnum):
    """What a message asks for, or is."""

    ECHO = 1
    """Answer with as many bytes."""
    LOOK = 2
    """The slot holds this version now, and the word this value: compare."""
    FILL = 3
    """Put this version into the slot, for a READ."""
    BYE = 4
    """The last message."""
    ANSWER = 5
    SLOT = 6
    """What is in a slot, not a message."""


@dataclass(frozen=True)
class Head:
    """Who wrote the how-manieth message, and what it is about."""

    kind: Kind
    who: int
    seq: int
    slot: int = 0
    version: int = 0
    length: int = LEAST
    """Bytes of the message; with LOOK and FILL, of what is in the slot."""

    def whole(self, length: int | None = None) -> bytes:
        """The message, `length` bytes of it if that is not the length that the head tells."""
        head = _HEAD.pack(MAGIC, *astuple(self))
        head += _CRC.pack(zlib.crc32(head))
        filler = random.Random(self.who << 40 | self.seq << 8 | self.kind)
        return head + filler.randbytes((self.length if length is None else length) - LEAST)

    @classmethod
    def read(cls, data: bytes) -> Self:
        """The head of a message, every byte of which is as it was sent."""
        if len(data) < LEAST or data[: len(MAGIC)] != MAGIC:
            raise WrongBytes(f"{len(data)} bytes that are no message: {data[:32].hex()}")
        _, kind, *rest = _HEAD.unpack_from(data)
        if kind not in Kind.__members__.values():
            raise WrongBytes(f"{len(data)} bytes of no kind of message: {data[:32].hex()}")
        head = cls(Kind(kind), *rest)
        compare(data, head.whole(len(data)), f"{head}")
        return head


def in_slot(who: int, slot: int, version: int, length: int) -> bytes:
    """What is in a slot after its owner has written it `version` times."""
    return Head(Kind.SLOT, who, version << 4 | slot, slot, version, length).whole()


def claimed(found: bytes, who: int, slot: int, version: int) -> int:
    """How long the bytes in a slot say that they are; 0 when they are not of this version, or not whole."""
    magic, kind, by, _, where, which, length = _HEAD.unpack_from(found)
    whole = (magic, kind, by, where, which) == (MAGIC, Kind.SLOT, who, slot, version)
    return length if whole and LEAST <= length <= len(found) else 0


def compare(found: bytes | bytearray | memoryview, wanted: bytes, what: str) -> None:
    """WrongBytes that tells where the first differs, and whose the bytes are if they say so."""
    if found == wanted:
        return
    if len(found) != len(wanted):
        raise WrongBytes(f"{what}: {len(found)} bytes instead of {len(wanted)}")
    at = next(i for i in range(len(wanted)) if found[i] != wanted[i])
    near = bytes(found[at : at + 32]).hex()
    raise WrongBytes(f"{what}: byte {at} of {len(wanted)} is {found[at]:#x}, not {wanted[at]:#x}: {near}")
