# SPDX-License-Identifier: Apache-2.0
"""The format of a SEND: a header of 8 bytes and a body (docs/endpoint-protocol.md)."""

from enum import IntEnum
from struct import Struct, pack, unpack_from

from rnic.endpoint.errors import ProtocolError
from rnic.endpoint.events import Region
from rnic.endpoint.hello import REMOTE_ACCESS
from rnic.endpoint.text import clip
from rnic.enums import AccessFlags
from rnic.records import MutableRecord, Record

__all__ = [
    "DESCRIBED",
    "HEADER_SIZE",
    "LAST",
    "MAX_TEXT",
    "MESSAGE_SIZE",
    "TAGGED",
    "TAG_SIZE",
    "VERSION_1",
    "VERSION_2",
    "Dialect",
    "Frame",
    "FrameType",
    "Offer",
    "abort_frame",
    "emit",
    "message_header",
    "more_header",
    "offer_frame",
    "parse",
    "parse_message",
    "parse_offer",
    "parse_region",
    "share_frame",
]


class FrameType(IntEnum):
    """The type of a SEND, which is its first byte."""

    MESSAGE = 1
    """The first, or the only, fragment of a message."""
    MORE = 2
    """A further fragment of the message that was begun."""
    CREDIT = 3
    """Credits alone."""
    SHARE = 4
    """A region that the peer may use."""
    WITHDRAW = 5
    """A region that the peer may no longer use."""
    RELEASE = 6
    """A confirmation of withdrawals: no operation on those regions comes after it."""
    GOODBYE = 7
    """The end of the sender's messages, shares and withdrawals."""
    ABORT = 8
    """The connection is over, for the reason that the text gives."""
    ANNOUNCE = 9
    """A message that the receiver READs from where it lies."""
    TAKEN = 10
    """The confirmation that the announced message was READ, or is not wanted."""
    STOP = 11
    """The message that has begun, or was announced, is taken back."""


LAST = 1
"""Flag of MESSAGE and MORE: the message is complete."""
TAGGED = 2
"""Flag of MESSAGE and ANNOUNCE: the message has a tag."""
DESCRIBED = 4
"""Flag of SHARE: the region holds an array."""

_HEADER = Struct(">BBHI")
_TOTAL = Struct(">Q")
_TAG = Struct(">Q")
_REGION = Struct(">QQII")
_OFFER = Struct(">QQI4x")
_ARRAY = Struct(">BB6x")

HEADER_SIZE = _HEADER.size
MESSAGE_SIZE = _HEADER.size + _TOTAL.size
"""Bytes before the payload in a MESSAGE; in a MORE they are HEADER_SIZE."""
TAG_SIZE = _TAG.size
"""Bytes more in a MESSAGE with a tag."""
MAX_TEXT = 140
"""Bytes of text in an ABORT, if the receive buffers have room for so many: a REJ has no more either."""

# The number of bytes after the header; None: the handler checks the length.
_BODY: dict[FrameType, int | None] = {
    FrameType.MESSAGE: None,
    FrameType.MORE: None,
    FrameType.CREDIT: 0,
    FrameType.SHARE: None,
    FrameType.WITHDRAW: 0,
    FrameType.RELEASE: 0,
    FrameType.GOODBYE: 0,
    FrameType.ABORT: None,
    FrameType.ANNOUNCE: None,
    FrameType.TAKEN: 0,
    FrameType.STOP: 0,
}


class Dialect(Record):
    """The SENDs of a protocol version: the types by number, and the flags that each type may have."""

    types: dict[int, FrameType]
    flags: dict[FrameType, int]


_NEW = {FrameType.ANNOUNCE, FrameType.TAKEN, FrameType.STOP}
VERSION_1 = Dialect(
    {int(kind): kind for kind in FrameType if kind not in _NEW},
    {FrameType.MESSAGE: LAST, FrameType.MORE: LAST},
)
VERSION_2 = Dialect(
    {int(kind): kind for kind in FrameType},
    {
        FrameType.MESSAGE: LAST | TAGGED,
        FrameType.MORE: LAST,
        FrameType.ANNOUNCE: TAGGED,
        FrameType.SHARE: DESCRIBED,
    },
)


class Frame(MutableRecord):
    """One SEND, parsed."""

    type: FrameType
    flags: int
    """LAST, TAGGED, DESCRIBED, or nothing."""
    credits: int
    """Receives that the sender has posted anew, for the other end to use."""
    id: int
    """By type: a message's number, a region's id, a count of messages or withdrawals, or a Reason."""
    body: memoryview
    """The bytes after the header, as a view of the receive buffer."""


class Offer(Record):
    """A message that was announced."""

    number: int
    """The number of the message, modulo 2**32."""
    total: int
    """The length of the message in bytes."""
    addr: int
    """The address of the message in the peer's memory."""
    rkey: int
    """The key to READ the message with."""
    tag: int = 0
    """The sender's tag of the message."""


def parse(data: memoryview, dialect: Dialect = VERSION_2) -> Frame:
    """Parse one SEND; ProtocolError when its header or its length is wrong."""
    if len(data) < HEADER_SIZE:
        raise ProtocolError(f"a SEND of {len(data)} bytes has no room for the header of {HEADER_SIZE}")
    number, flags, refill, ident = _HEADER.unpack_from(data)
    kind = dialect.types.get(number)
    if kind is None:
        raise ProtocolError(f"there is no SEND of type {number}")
    body = data[HEADER_SIZE:]
    if flags and flags & ~dialect.flags.get(kind, 0):
        raise ProtocolError(f"{kind.name} has the flags {flags:#04x}")
    size = _BODY[kind]
    if size is not None and len(body) != size:
        raise ProtocolError(f"{kind.name} has {len(body)} bytes after its header, not {size}")
    return Frame(kind, flags, refill, ident, body)


def parse_message(frame: Frame) -> tuple[int, int, memoryview]:
    """Return a MESSAGE's total length, its tag, and the payload of this fragment; or raise ProtocolError."""
    needed = _TOTAL.size + (_TAG.size if frame.flags & TAGGED else 0)
    if len(frame.body) < needed:
        raise ProtocolError(f"MESSAGE has {len(frame.body)} bytes after its header, {needed} are needed")
    (total,) = _TOTAL.unpack_from(frame.body)
    (tag,) = _TAG.unpack_from(frame.body, _TOTAL.size) if frame.flags & TAGGED else (0,)
    return total, tag, frame.body[needed:]


def parse_offer(frame: Frame) -> Offer:
    """Return the message that an ANNOUNCE offers; ProtocolError when there can be no such message."""
    tagged = frame.flags & TAGGED
    size = _OFFER.size + (_TAG.size if tagged else 0)
    if len(frame.body) != size:
        raise ProtocolError(f"ANNOUNCE has {len(frame.body)} bytes after its header, not {size}")
    total, addr, rkey = _OFFER.unpack_from(frame.body)
    (tag,) = _TAG.unpack_from(frame.body, _OFFER.size) if tagged else (0,)
    if not total or addr + total > 1 << 64:
        raise ProtocolError(f"ANNOUNCE of {total} bytes at {addr:#x}, which cannot be")
    return Offer(frame.id, total, addr, rkey, tag)


def parse_region(frame: Frame) -> Region:
    """Return the region that a SHARE names; ProtocolError when there can be no such region."""
    described = frame.flags & DESCRIBED
    if len(frame.body) < _REGION.size or not (described or len(frame.body) == _REGION.size):
        raise ProtocolError(f"SHARE has {len(frame.body)} bytes after its header, not {_REGION.size}")
    addr, length, rkey, access = _REGION.unpack_from(frame.body)
    if addr + length > 1 << 64:
        raise ProtocolError(f"region {frame.id} ends beyond the address space")
    if not access or access & ~REMOTE_ACCESS:
        raise ProtocolError(f"region {frame.id} is shared with the access {access:#x}")
    shape, dtype = _parse_array(frame.body[_REGION.size :]) if described else ((), "")
    return Region(frame.id, addr, length, rkey, AccessFlags(access), shape, dtype)


def _parse_array(body: memoryview) -> tuple[tuple[int, ...], str]:
    """Return the array's shape and type as the peer gives them, without a check that they fit the region."""
    dimensions, size = _ARRAY.unpack_from(body) if len(body) >= _ARRAY.size else (0, 0)
    at = _ARRAY.size + 8 * dimensions
    if not size or len(body) != at + size:
        raise ProtocolError(f"SHARE has {len(body)} bytes for the array of its region, which cannot be")
    text = bytes(body[at:])
    if not (text.isascii() and text.decode("ascii").isprintable()):
        raise ProtocolError("SHARE has a type of elements that nobody can read")
    return unpack_from(f">{dimensions}Q", body, _ARRAY.size), text.decode("ascii")


def emit(kind: FrameType, refill: int, ident: int = 0, flags: int = 0) -> bytes:
    """Return the header of a SEND; most types consist of it alone."""
    return _HEADER.pack(kind, flags, refill, ident & 0xFFFFFFFF)


def message_header(refill: int, number: int, total: int, last: bool, tag: int = 0) -> bytes:
    """Return the bytes before the first payload of a message."""
    flags = (LAST if last else 0) | (TAGGED if tag else 0)
    return emit(FrameType.MESSAGE, refill, number, flags) + _TOTAL.pack(total) + _tag(tag)


def _tag(tag: int) -> bytes:
    return _TAG.pack(tag) if tag else b""


def offer_frame(refill: int, offer: Offer) -> bytes:
    """Return an ANNOUNCE of the offer."""
    header = emit(FrameType.ANNOUNCE, refill, offer.number, TAGGED if offer.tag else 0)
    return header + _OFFER.pack(offer.total, offer.addr, offer.rkey) + _tag(offer.tag)


def more_header(refill: int, number: int, last: bool) -> bytes:
    """Return the bytes before a further payload of a message."""
    return emit(FrameType.MORE, refill, number, LAST if last else 0)


def share_frame(refill: int, region: Region, size: int) -> bytes:
    """Return a SHARE of at most `size` bytes; the array is left out if its description does not fit."""
    body = _REGION.pack(region.addr, region.length, region.rkey, region.access)
    array = _describe(region) if region.dtype else b""
    if HEADER_SIZE + len(body) + len(array) > size:
        array = b""
    return emit(FrameType.SHARE, refill, region.id, DESCRIBED if array else 0) + body + array


def _describe(region: Region) -> bytes:
    dtype = region.dtype.encode("ascii")
    if len(dtype) > 255 or len(region.shape) > 255:
        return b""
    return _ARRAY.pack(len(region.shape), len(dtype)) + pack(f">{len(region.shape)}Q", *region.shape) + dtype


def abort_frame(reason: int, text: str, size: int) -> bytes:
    """Return an ABORT of at most `size` bytes; a longer text is cut."""
    return emit(FrameType.ABORT, 0, reason) + clip(text, min(size - HEADER_SIZE, MAX_TEXT))
