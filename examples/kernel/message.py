# SPDX-License-Identifier: Apache-2.0
"""What the modules and their peers say to each other: message.h, in Python."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

MAGIC = 0x726E6963
VERSION = 1
TEXT_MAX = 1024

_REQUEST = struct.Struct(">IHH")
_OFFER = struct.Struct(">IHHQQI4x")
_MESSAGE = struct.Struct(">III")
_REGION = struct.Struct(">QII")
MESSAGE_MAX = _MESSAGE.size + TEXT_MAX


class Service(IntEnum):
    """What a client wants of a server."""

    ECHO = 1
    MEMORY = 2


class Kind(IntEnum):
    """Of a message."""

    ASK = 1
    ANSWER = 2
    WRONG = 3
    LEND = 4


class Request(NamedTuple):
    """The private data of a connection request, and of a refusal."""

    service: int
    version: int = VERSION
    magic: int = MAGIC

    def pack(self) -> bytes:
        """As bytes."""
        return _REQUEST.pack(self.magic, self.version, self.service)

    @classmethod
    def unpack(cls, data: bytes) -> Request:
        """Of private data; ValueError if that is no request of this version."""
        if len(data) < _REQUEST.size:
            raise ValueError(f"a request has {_REQUEST.size} bytes, these are {len(data)}")
        magic, version, service = _REQUEST.unpack_from(data)
        _check(magic, version)
        return cls(service, version, magic)


class Offer(NamedTuple):
    """The private data of the answer that accepts a request."""

    depth: int
    addr: int = 0
    length: int = 0
    rkey: int = 0

    def pack(self) -> bytes:
        """As bytes."""
        return _OFFER.pack(MAGIC, VERSION, *self)

    @classmethod
    def unpack(cls, data: bytes) -> Offer:
        """Of private data; ValueError if that is no offer of this version."""
        if len(data) < _OFFER.size:
            raise ValueError(f"an offer has {_OFFER.size} bytes, these are {len(data)}")
        magic, version, *rest = _OFFER.unpack_from(data)
        _check(magic, version)
        return cls(*rest)


class Message(NamedTuple):
    """A message: its kind, the number of the question, and the text."""

    kind: int
    number: int
    text: bytes

    def pack(self) -> bytes:
        """As bytes; ValueError if the text is longer than TEXT_MAX."""
        if len(self.text) > TEXT_MAX:
            raise ValueError(f"a text of {len(self.text)} bytes is longer than {TEXT_MAX}")
        return _MESSAGE.pack(self.kind, self.number, len(self.text)) + self.text

    @classmethod
    def unpack(cls, data: bytes) -> Message:
        """Of received bytes; ValueError if these are not one message."""
        if len(data) < _MESSAGE.size:
            raise ValueError(f"a message has {_MESSAGE.size} bytes or more, these are {len(data)}")
        kind, number, length = _MESSAGE.unpack_from(data)
        text = data[_MESSAGE.size :]
        if length != len(text) or length > TEXT_MAX:
            raise ValueError(f"a message says {length} bytes of text, and has {len(text)}")
        return cls(kind, number, text)


def wrong(data: bytes, why: str) -> Message:
    """The answer to a message that is wrong: it has the message's number, or 0 if that has none."""
    number = _MESSAGE.unpack_from(data)[1] if len(data) >= _MESSAGE.size else 0
    return Message(Kind.WRONG, number, why.encode())


class Region(NamedTuple):
    """Memory that a client lends: the text of a message of kind LEND."""

    addr: int
    rkey: int
    length: int

    @classmethod
    def unpack(cls, text: bytes) -> Region:
        """Of a message's text; ValueError if that is not a region of TEXT_MAX bytes at most."""
        if len(text) != _REGION.size:
            raise ValueError(f"a region has {_REGION.size} bytes, these are {len(text)}")
        region = cls(*_REGION.unpack(text))
        if not 0 < region.length <= TEXT_MAX:
            raise ValueError(f"a region has 1 to {TEXT_MAX} bytes, not {region.length}")
        return region


def capitals(text: bytes) -> bytes:
    """The answer to a text: ASCII's letters as capitals; other bytes stay."""
    return text.upper()


def _check(magic: int, version: int) -> None:
    if magic != MAGIC:
        raise ValueError(f"magic {magic:#x} is not {MAGIC:#x}: this peer speaks something else")
    if version != VERSION:
        raise ValueError(f"version {version} is not {VERSION}")
