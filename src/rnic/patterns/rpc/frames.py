# SPDX-License-Identifier: Apache-2.0
"""The frames of calls: from bytes, and to bytes."""

from __future__ import annotations

import struct
from typing import NamedTuple

from rnic.patterns.cursor import LiarError

__all__ = ["Call", "Cancel", "Failure", "Frame", "Reply", "parse"]

_CALL, _REPLY, _ERROR, _CANCEL = 0x11, 0x12, 0x13, 0x14
_HEADER = struct.Struct("<BBHI")
_CALL_HEADER = struct.Struct("<BBHIQ")
LONGEST_NAME = 255
_LONGEST_TEXT = 4096
OVERHEAD = _CALL_HEADER.size + LONGEST_NAME  # bytes by which a frame is longer than its body, at most


class Call(NamedTuple):
    """A client calls."""

    number: int
    left: int
    """Microseconds to the deadline; 0: there is none."""
    method: str
    body: bytes

    def pack(self) -> bytes:
        """The frame."""
        name = self.method.encode()
        return b"".join((_CALL_HEADER.pack(_CALL, len(name), 0, self.number, self.left), name, self.body))


class Reply(NamedTuple):
    """A call has succeeded."""

    number: int
    body: bytes

    def pack(self) -> bytes:
        """The frame."""
        return _HEADER.pack(_REPLY, 0, 0, self.number) + self.body


class Failure(NamedTuple):
    """A call has failed."""

    number: int
    status: int
    kind: str
    text: str

    def pack(self) -> bytes:
        """The frame; long texts are cut."""
        kind, text = _cut(self.kind, LONGEST_NAME), _cut(self.text, _LONGEST_TEXT)
        return _HEADER.pack(_ERROR, self.status, len(kind), self.number) + kind + text


class Cancel(NamedTuple):
    """A client does not wait for a call any more."""

    number: int

    def pack(self) -> bytes:
        """The frame."""
        return _HEADER.pack(_CANCEL, 0, 0, self.number)


Frame = Call | Reply | Failure | Cancel


def _cut(text: str, most: int) -> bytes:
    return text.encode(errors="replace")[:most].decode(errors="ignore").encode()


def parse(data: bytes) -> Frame:
    """The frame of a message; LiarError if it cannot be one."""
    if len(data) < _HEADER.size:
        raise LiarError(f"a message of {len(data)} bytes is no frame")
    kind, small, mid, number = _HEADER.unpack_from(data)
    if kind == _REPLY and not (small or mid):
        return Reply(number, data[_HEADER.size :])
    if kind == _CALL and not mid:
        return _call(number, small, data)
    if kind == _ERROR:
        return _failure(number, small, mid, data)
    if kind == _CANCEL and not (small or mid) and len(data) == _HEADER.size:
        return Cancel(number)
    raise LiarError(f"a message that begins with {data[:4].hex()} is no frame of this version")


def _call(number: int, length: int, data: bytes) -> Call:
    end = _CALL_HEADER.size + length
    if not length or len(data) < end:
        raise LiarError(f"a call of {len(data)} bytes, whose method's name has {length}")
    try:
        method = data[_CALL_HEADER.size : end].decode()
    except UnicodeDecodeError:
        raise LiarError("a method's name that is not UTF-8") from None
    return Call(number, _CALL_HEADER.unpack_from(data)[-1], method, data[end:])


def _failure(number: int, status: int, length: int, data: bytes) -> Failure:
    begin = _HEADER.size
    if length > LONGEST_NAME or not length <= len(data) - begin <= length + _LONGEST_TEXT:
        raise LiarError(f"an error of {len(data)} bytes, whose type's name has {length}")
    kind = data[begin : begin + length].decode(errors="replace")
    return Failure(number, status, kind, data[begin + length :].decode(errors="replace"))
