# SPDX-License-Identifier: Apache-2.0
"""What is on the wire; all numbers are unsigned, of 8 bytes and little-endian. The reader shares its memory:

    at  0  WAITING  1 while the reader sleeps, which a writer READs behind its records, and then rings
    at  8  TAIL     all records before this number are claimed, which writers WRITE; it may be behind
    at 64  slots

    at  0  in a slot: 65536 times the number of the record that it is for, plus the number of the writer that
           has claimed it, or 0, or 65535 while the reader empties the slot
    at  8  one more than the length of the record, when it is complete; ffffffffffffffff: its writer has gone
    at 16  the record

Record n is for slot n mod (number of slots). A slot is as long as the longest record and 16 bytes, rounded up
to a multiple of 8. The reader takes records in the order of their numbers, and then gives a slot to the
record one round later. A doorbell is a message of no bytes, with the tag of ports.BELL.

Each writer gets a message of 32 bytes:

    at  0  "rnic1mny"
    at  8  the writer's number, from 1 on    2 bytes
    at 10  0                                 2 bytes
    at 12  the number of slots               4 bytes
    at 16  the longest record, in bytes      4 bytes
    at 20  0                                12 bytes
"""

from __future__ import annotations

import struct

from rnic.records import Record

__all__ = [
    "LENGTH",
    "OWNER",
    "RECORD",
    "SLOTS",
    "STATE",
    "TAIL",
    "TAKEN",
    "WAITING",
    "WORD",
    "Invitation",
    "stride",
]

WAITING, TAIL, SLOTS = 0, 8, 64
STATE, LENGTH, RECORD = 0, 8, 16  # in a slot
NUMBER = 16  # bits below the number of a record
OWNER = (1 << NUMBER) - 1
TAKEN = OWNER  # no writer has this number
MOST_WRITERS = TAKEN - 1
LAST = 1 << 64 - NUMBER  # numbers are below
GONE = (1 << 64) - 1
MOST_SLOTS = 1 << 20
MOST = 16 << 20
"""The longest record that a ring can be made for, in bytes."""
WORD = struct.Struct("<Q")
_WELCOME = struct.Struct("<8sHHII12x")
_NAME = b"rnic1mny"


def stride(size: int) -> int:
    """Bytes from one slot to the next."""
    return RECORD + size + 7 & ~7


class Invitation(Record):
    """What the reader tells a writer."""

    writer: int
    slots: int
    size: int

    def pack(self) -> bytes:
        """As bytes."""
        return _WELCOME.pack(_NAME, self.writer, 0, self.slots, self.size)

    @classmethod
    def parse(cls, data: bytes, room: int) -> Invitation:
        """From bytes of a reader that shares so many bytes; ValueError says what is wrong."""
        if len(data) != _WELCOME.size or not data.startswith(_NAME):
            raise ValueError("the peer is no reader of this pattern: it sent no invitation")
        _, writer, _, slots, size = _WELCOME.unpack(data)
        if not writer or not 2 <= slots <= MOST_SLOTS or size > MOST:
            raise ValueError(f"the reader says: writer {writer}, {slots} slots for {size} bytes")
        if SLOTS + slots * stride(size) > room:
            raise ValueError(f"the reader shares {room} bytes, too few for {slots} slots of {stride(size)}")
        return cls(writer, slots, size)
