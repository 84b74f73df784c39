# SPDX-License-Identifier: Apache-2.0
"""What stands in one SEND: a header of 8 bytes, and a body after it (docs/endpoint-protocol.md)."""

from enum import IntEnum
from struct import Struct

from rnic.endpoint.errors import ProtocolError
from rnic.endpoint.events import Region
from rnic.endpoint.hello import REMOTE_ACCESS
from rnic.endpoint.text import clip
from rnic.enums import AccessFlags
from rnic.records import MutableRecord

__all__ = [
    "HEADER_SIZE",
    "LAST",
    "MAX_TEXT",
    "MESSAGE_SIZE",
    "Frame",
    "FrameType",
    "abort_frame",
    "emit",
    "message_header",
    "more_header",
    "parse",
    "parse_region",
    "parse_total",
    "share_frame",
]


class FrameType(IntEnum):
    """The first byte of a SEND."""

    MESSAGE = 1
    """The first, or the only, fragment of a message."""
    MORE = 2
    """A further fragment of the message that was begun."""
    CREDIT = 3
    """Nothing but credits."""
    SHARE = 4
    """A region that the peer may use."""
    WITHDRAW = 5
    """A region that the peer may no longer use."""
    RELEASE = 6
    """So many withdrawals were seen; no operation on these regions comes after this."""
    GOODBYE = 7
    """No more messages, shares or withdrawals."""
    ABORT = 8
    """The connection is over, for the reason that the text gives."""


LAST = 1
"""Flag of MESSAGE and MORE: the message is complete."""

_HEADER = Struct(">BBHI")
_TOTAL = Struct(">Q")
_REGION = Struct(">QQII")

HEADER_SIZE = _HEADER.size
MESSAGE_SIZE = _HEADER.size + _TOTAL.size
"""Bytes before the payload in a MESSAGE; in a MORE they are HEADER_SIZE."""
MAX_TEXT = 140
"""Bytes of text in an ABORT, if the receive buffers have room for so many: a REJ has no more either."""

# What follows the header: exactly so many bytes, or None: what the handler finds right.
_BODY: dict[FrameType, int | None] = {
    FrameType.MESSAGE: None,
    FrameType.MORE: None,
    FrameType.CREDIT: 0,
    FrameType.SHARE: _REGION.size,
    FrameType.WITHDRAW: 0,
    FrameType.RELEASE: 0,
    FrameType.GOODBYE: 0,
    FrameType.ABORT: None,
}
_TYPES = {int(kind): kind for kind in FrameType}
_FLAGS = {FrameType.MESSAGE: LAST, FrameType.MORE: LAST}


class Frame(MutableRecord):
    """One SEND, taken apart."""

    type: FrameType
    flags: int
    """LAST, or nothing."""
    credits: int
    """Receives that the sender has posted anew, for the other end to use."""
    id: int
    """Number of the message; id of the region; how many messages or withdrawals; or a Reason."""
    body: memoryview
    """What follows the header, in the receive buffer itself."""


def parse(data: memoryview) -> Frame:
    """Take apart one SEND; ProtocolError when header and length are not those of any."""
    if len(data) < HEADER_SIZE:
        raise ProtocolError(f"a SEND of {len(data)} bytes has no room for the header of {HEADER_SIZE}")
    number, flags, refill, ident = _HEADER.unpack_from(data)
    kind = _TYPES.get(number)
    if kind is None:
        raise ProtocolError(f"there is no SEND of type {number}")
    body = data[HEADER_SIZE:]
    if flags and flags & ~_FLAGS.get(kind, 0):
        raise ProtocolError(f"{kind.name} has the flags {flags:#04x}")
    size = _BODY[kind]
    if size is not None and len(body) != size:
        raise ProtocolError(f"{kind.name} has {len(body)} bytes after its header, not {size}")
    return Frame(kind, flags, refill, ident, body)


def parse_total(frame: Frame) -> tuple[int, memoryview]:
    """Of a MESSAGE: the length of the whole, and the payload of this fragment."""
    if len(frame.body) < _TOTAL.size:
        raise ProtocolError(f"MESSAGE has {len(frame.body)} bytes after its header, {_TOTAL.size} are needed")
    (total,) = _TOTAL.unpack_from(frame.body)
    return total, frame.body[_TOTAL.size :]


def parse_region(frame: Frame) -> Region:
    """Of a SHARE: the region; ProtocolError when there can be no such region."""
    addr, length, rkey, access = _REGION.unpack(frame.body)
    if addr + length > 1 << 64:
        raise ProtocolError(f"region {frame.id} ends beyond the address space")
    if not access or access & ~REMOTE_ACCESS:
        raise ProtocolError(f"region {frame.id} is shared with the access {access:#x}")
    return Region(frame.id, addr, length, rkey, AccessFlags(access))


def emit(kind: FrameType, refill: int, ident: int = 0, flags: int = 0) -> bytes:
    """A header; for most types that is all."""
    return _HEADER.pack(kind, flags, refill, ident & 0xFFFFFFFF)


def message_header(refill: int, number: int, total: int, last: bool) -> bytes:
    """What stands before the first payload of a message."""
    return emit(FrameType.MESSAGE, refill, number, LAST if last else 0) + _TOTAL.pack(total)


def more_header(refill: int, number: int, last: bool) -> bytes:
    """What stands before a further payload of a message."""
    return emit(FrameType.MORE, refill, number, LAST if last else 0)


def share_frame(refill: int, region: Region) -> bytes:
    """A SHARE."""
    body = _REGION.pack(region.addr, region.length, region.rkey, region.access)
    return emit(FrameType.SHARE, refill, region.id) + body


def abort_frame(reason: int, text: str, size: int) -> bytes:
    """An ABORT of at most `size` bytes."""
    return emit(FrameType.ABORT, 0, reason) + clip(text, min(size - HEADER_SIZE, MAX_TEXT))
