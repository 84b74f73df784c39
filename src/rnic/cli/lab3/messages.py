# SPDX-License-Identifier: Apache-2.0
"""The messages of lab 3: C structures in network byte order, one SEND each; docs/lab3.md shows them in C."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import ClassVar, Self

from rnic.cli.lab3.faults import Code, Fault
from rnic.records import Record, values

VERSION = 1
ID_BYTES, TEXT_BYTES = 64, 120
MESSAGE_BYTES = 128
"""The longest message: what a receive must have room for."""


class Type(IntEnum):
    """The first field of each message."""

    ANNOUNCE = 1
    REGION = 2
    DONE = 3
    VERDICT = 4
    ID = 5
    KEY = 6
    ERROR = 7


class Message(Record):
    """What all have in common: 32 bits of type, then fields in the order in which they are listed."""

    type: ClassVar[Type]
    fields: ClassVar[struct.Struct]

    def emit(self) -> bytes:
        """The bytes to send."""
        return self.fields.pack(self.type, *values(self).values())

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read what came; the length was checked."""
        return cls(*cls.fields.unpack(data)[1:])


class Announce(Message):
    """Sender: this many bytes will come, and they have this SHA-256."""

    type = Type.ANNOUNCE
    fields = struct.Struct("!IIQ32s")
    version: int
    length: int
    sha256: bytes


class Region(Message):
    """Receiver: write the next bytes here."""

    type = Type.REGION
    fields = struct.Struct("!IIQQ")
    rkey: int
    addr: int
    length: int


class Done(Message):
    """Sender: so many bytes are in the region."""

    type = Type.DONE
    fields = struct.Struct("!I4xQ")
    length: int


class Verdict(Message):
    """Receiver: 1, the file has the hash that was announced, or 0, it has not."""

    type = Type.VERDICT
    fields = struct.Struct("!II")
    good: int


def padded(text: str, size: int) -> bytes:
    """UTF-8, zeros behind it, cut where it would be too long."""
    return text.encode()[:size].decode(errors="ignore").encode().ljust(size, b"\0")


def unpadded(data: bytes, name: str) -> str:
    """The text in a field.  Fault when it is none, or holds what a terminal would obey."""
    raw = data.rstrip(b"\0")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not text.isprintable():
        raise Fault(Code.PROTOCOL, f"the {name} is no printable UTF-8 text: {raw!r}")
    return text


class Id(Message):
    """Sender: whose file it is; UTF-8, filled up with zeros."""

    type = Type.ID
    fields = struct.Struct(f"!I4x{ID_BYTES}s")
    id: bytes


class Key(Message):
    """Receiver: the secret key of that id; UTF-8, filled up with zeros."""

    type = Type.KEY
    fields = struct.Struct(f"!I4x{ID_BYTES}s")
    key: bytes


class Error(Message):
    """Receiver: why it will disconnect; UTF-8, filled up with zeros."""

    type = Type.ERROR
    fields = struct.Struct(f"!I4x{TEXT_BYTES}s")
    text: bytes


CLASSES: dict[int, type[Message]] = {
    one.type: one for one in (Announce, Region, Done, Verdict, Id, Key, Error)
}


def parse(data: bytes) -> Message:
    """A message as it came from the peer.  Fault when it is none of ours."""
    if len(data) < 4:
        raise Fault(Code.PROTOCOL, f"a message of {len(data)} bytes is too short to have a type")
    number = int.from_bytes(data[:4], "big")
    kind = CLASSES.get(number)
    if kind is None:
        raise Fault(
            Code.PROTOCOL,
            f"a message has the unknown type {number} (0x{number:x}): is it in network byte order?",
        )
    if len(data) != kind.fields.size:
        text = f"{kind.type.name} has {len(data)} bytes instead of {kind.fields.size}: check type and fields"
        raise Fault(Code.PROTOCOL, text)
    return kind.parse(data)
