# SPDX-License-Identifier: Apache-2.0
"""What goes between a publisher and its subscribers; all numbers are unsigned and little-endian.

The publisher shares its *ring* with each subscriber, to READ: a board of 64 bytes, and behind it the slots.

    at  0  HEAD    messages published so far; the first one has the number 0       8 bytes
    at  8  ENDED   1 when none follows, else 0                                     8 bytes
    at 32  the notice of the end, as it is sent                                   32 bytes
    at 64  slots, 32 bytes and the longest message each, rounded up to a multiple of 64

Message n lies in slot n mod (number of slots), from its publication on until n + slots is being published:

    at  0  "rps1"
    at  4  CRC32 of all from byte 8 to the end of the message      4 bytes
    at  8  the publisher's epoch, a random number                  8 bytes
    at 16  the message's number                                    8 bytes
    at 24  the message's length                                    4 bytes
    at 28  0                                                       4 bytes
    at 32  the message

A datagram is the beginning of a slot: all of the message; or, of one that is longer than a datagram can be,
the first 32 bytes alone, which announce it. The notice of the end is such an announcement, too: its number is
HEAD, its length ffffffff.

What a subscriber is told by the connection, the *welcome*, is a message of 72 bytes:

    at  0  "rnic1pub"
    at  8  the epoch                                        8 bytes
    at 16  the number of slots                              4 bytes
    at 20  the longest message                              4 bytes
    at 24  the Q_Key of the group                           4 bytes
    at 28  the number of the publisher's queue pair         4 bytes
    at 32  the group, a GID                                16 bytes
    at 48  where its datagrams come from, a GID            16 bytes
    at 64  0                                                8 bytes
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING
from zlib import crc32

from rnic import GID
from rnic.records import Record

if TYPE_CHECKING:
    from rnic._nic.nic import MR

__all__ = ["BOARD", "END", "HEADER", "NOTICE", "SLOTS", "Welcome", "read_head", "stride", "write_slot"]

HEAD, ENDED, NOTICE, SLOTS = 0, 8, 32, 64
BOARD = struct.Struct("<QQ")
HEADER = struct.Struct("<4sIQQII")
END = 0xFFFFFFFF
MAGIC = b"rps1"
_CRC = struct.Struct("<I")
_COVERED = 8  # where what the CRC covers begins
_WELCOME = struct.Struct("<8sQIIII16s16s8x")
_NAME = b"rnic1pub"
MOST_SLOTS = 1 << 20
MOST = 16 << 20
"""The longest message that a ring can be made for, in bytes."""


def stride(longest: int) -> int:
    """Bytes from one slot to the next."""
    return HEADER.size + longest + 63 & ~63


def write_slot(buf: memoryview, at: int, epoch: int, number: int, message: memoryview) -> None:
    """Lay a message there; who READs it meanwhile finds a wrong CRC, or the message that was there before."""
    end = at + HEADER.size + len(message)
    HEADER.pack_into(buf, at, MAGIC, 0, epoch, number, len(message), 0)
    buf[at + HEADER.size : end] = message
    _CRC.pack_into(buf, at + 4, crc32(buf[at + _COVERED : end]))


def write_notice(mr: MR, epoch: int, head: int) -> None:
    """The notice of the end, and that this is the end."""
    HEADER.pack_into(mr.buf, NOTICE, MAGIC, 0, epoch, head, END, 0)
    mr.buf.cast("Q")[ENDED // 8] = 1


def is_whole(slot: bytes, crc: int, length: int) -> bool:
    """Whether a slot that says so of its message has it."""
    return crc32(memoryview(slot)[_COVERED : HEADER.size + length]) == crc


def read_head(raw: bytes) -> tuple[int, int, int, int] | None:
    """CRC, epoch, number and length of what a slot or a datagram says; None: it is none."""
    if len(raw) < HEADER.size:
        return None
    magic, crc, epoch, number, length, _ = HEADER.unpack_from(raw)
    return (crc, epoch, number, length) if magic == MAGIC else None


class Welcome(Record):
    """What a publisher tells a subscriber."""

    epoch: int
    slots: int
    longest: int
    qkey: int
    qp_num: int
    group: GID
    source: GID

    def pack(self) -> bytes:
        """As bytes."""
        numbers = self.epoch, self.slots, self.longest, self.qkey, self.qp_num
        return _WELCOME.pack(_NAME, *numbers, self.group.raw, self.source.raw)

    @classmethod
    def parse(cls, data: bytes, room: int) -> Welcome:
        """From bytes of a publisher that shares so many bytes; ValueError says what is wrong."""
        if len(data) != _WELCOME.size or not data.startswith(_NAME):
            raise ValueError("the peer is no publisher: it sent no welcome")
        _, epoch, slots, longest, qkey, qp_num, group, source = _WELCOME.unpack(data)
        if not 2 <= slots <= MOST_SLOTS or longest > MOST:
            raise ValueError(f"the publisher says that it has {slots} slots for messages of {longest} bytes")
        if SLOTS + slots * stride(longest) > room:
            raise ValueError(
                f"the publisher shares {room} bytes, too few for {slots} slots of {stride(longest)}"
            )
        if not GID(group).ip.is_multicast:
            raise ValueError(f"the publisher says that its group is {GID(group).ip}, which is none")
        return cls(epoch, slots, longest, qkey, qp_num, GID(group), GID(source))
