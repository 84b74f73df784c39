# SPDX-License-Identifier: Apache-2.0
"""DDP segments (RFC 5041, 4) with RDMAP's control field (RFC 5040, 4.1): what an FPDU carries.

segment = Segment.parse(fpdu.ulpdu)
segment.header.opcode, segment.message, segment.payload
segment.emit() == fpdu.ulpdu
"""

from __future__ import annotations

from typing import ClassVar

from rnic.records import Record
from rnic.wire.bits import BitStruct, at, flag_at
from rnic.wire.error import WireError
from rnic.wire.header import need
from rnic.wire.rdmap import (
    INVALIDATES,
    AtomicCode,
    AtomicRequest,
    AtomicResponse,
    Immediate,
    QueueNumber,
    RdmapOpcode,
    ReadRequest,
    Terminate,
)

DDP_VERSION = 1
RDMAP_VERSION = 1


class Tagged(BitStruct, kw_only=True):
    """The header of a segment that says where it goes: of a WRITE or a READ response."""

    SIZE: ClassVar[int] = 14

    tagged: bool = flag_at(0, 0, default=True)
    last: bool = flag_at(0, 1)
    """It is the last one of its message."""
    ddp_version: int = at(0, 2, bit=6, default=DDP_VERSION)
    rdmap_version: int = at(1, 2, default=RDMAP_VERSION)
    opcode: int = at(1, 4, bit=4)
    stag: int = at(2, 32)
    offset: int = at(6, 64)


class Untagged(BitStruct, kw_only=True):
    """The header of a segment that goes to the next buffer of a queue."""

    SIZE: ClassVar[int] = 18

    tagged: bool = flag_at(0, 0)
    last: bool = flag_at(0, 1)
    ddp_version: int = at(0, 2, bit=6, default=DDP_VERSION)
    rdmap_version: int = at(1, 2, default=RDMAP_VERSION)
    opcode: int = at(1, 4, bit=4)
    invalidate: int = at(2, 32)
    """Of a SEND that invalidates an STag: which."""
    queue: int = at(6, 32)
    msn: int = at(10, 32)
    """The number of its message in the queue, from 1 on."""
    offset: int = at(14, 32)
    """Where in the message it begins."""


DdpHeader = Tagged | Untagged
Message = ReadRequest | AtomicRequest | AtomicResponse | Immediate | Terminate

_MESSAGES: dict[int, type[Message]] = {
    RdmapOpcode.READ_REQUEST: ReadRequest,
    RdmapOpcode.ATOMIC_REQUEST: AtomicRequest,
    RdmapOpcode.ATOMIC_RESPONSE: AtomicResponse,
    RdmapOpcode.IMMEDIATE: Immediate,
    RdmapOpcode.IMMEDIATE_WITH_SE: Immediate,
    RdmapOpcode.TERMINATE: Terminate,
}
_QUEUES: dict[int, QueueNumber] = {
    RdmapOpcode.READ_REQUEST: QueueNumber.REQUEST,
    RdmapOpcode.ATOMIC_REQUEST: QueueNumber.REQUEST,
    RdmapOpcode.ATOMIC_RESPONSE: QueueNumber.ATOMIC_RESPONSE,
    RdmapOpcode.TERMINATE: QueueNumber.TERMINATE,
}


def parse_ddp(data: bytes) -> DdpHeader:
    """The header at the start of `data`. `WireError` if it is cut short."""
    need("DDP header", data, 1)
    return Tagged.parse(data) if data[0] & 0x80 else Untagged.parse(data)


class Segment(Record):
    """A segment: its header, RDMAP's message header if it has one, and the payload."""

    header: DdpHeader
    message: Message | None = None
    payload: bytes = b""
    """Of a Terminate: what it says of the segment, see terminated()."""

    @classmethod
    def parse(cls, data: bytes) -> Segment:
        """Read a segment. `WireError` if it is cut short; the contents are not judged."""
        header = parse_ddp(data)
        rest = bytes(data[header.SIZE :])
        kind = None if isinstance(header, Tagged) else _MESSAGES.get(header.opcode)
        if kind is None:
            return cls(header, None, rest)
        return cls(header, kind.parse(rest), rest[kind.SIZE :])

    @classmethod
    def of(cls, message: Message, opcode: RdmapOpcode, msn: int, payload: bytes = b"") -> Segment:
        """An untagged message that is complete in one segment."""
        queue = _QUEUES.get(opcode, QueueNumber.SEND)
        return cls(Untagged(last=True, opcode=opcode, queue=queue, msn=msn), message, payload)

    def emit(self) -> bytes:
        """The bytes. `WireError` if a field does not fit."""
        message = self.message.emit() if self.message is not None else b""
        return self.header.emit() + message + self.payload

    def __str__(self) -> str:
        """One line in words."""
        header = self.header
        words = [f"{_name(header.opcode):<22}"]
        if isinstance(header, Tagged):
            words.append(_place(header.stag, header.offset))
        else:
            words.append(f"queue {header.queue} MSN {header.msn} MO {header.offset}")
            if header.opcode in INVALIDATES:
                words.append(f"invalidate STag {header.invalidate:#010x}")
        if self.message is not None:
            words.append(_describe(self.message))
        if isinstance(self.message, Terminate):
            words.append(_terminated_words(self))
        elif self.payload:
            words.append(f"{len(self.payload)} B")
        return "  ".join(word for word in (*words, "last" if header.last else "") if word)


def _name(opcode: int) -> str:
    return RdmapOpcode(opcode).name if opcode < len(RdmapOpcode) else f"opcode {opcode}"


def _place(stag: int, offset: int) -> str:
    return f"STag {stag:#010x} TO {offset:#x}"


def _describe(message: Message) -> str:
    match message:
        case ReadRequest():
            source = _place(message.source_stag, message.source_offset)
            return f"{message.size} B of {source} to {_place(message.sink_stag, message.sink_offset)}"
        case AtomicRequest():
            known = message.code in (AtomicCode.FETCH_ADD, AtomicCode.CMP_SWAP)
            name = AtomicCode(message.code).name if known else f"code {message.code}"
            operands = f"add/swap {message.add_swap:#x} compare {message.compare:#x}"
            return f"{name} {_place(message.stag, message.offset)} {operands} id {message.request_id}"
        case AtomicResponse():
            return f"original {message.original:#x} id {message.request_id}"
        case Immediate():
            return f"imm {message.data:#x}"
        case _:
            return str(message)


# ------------------------------------------------------------------ what a Terminate message is about


class Terminated(Record):
    """The segment that a Terminate message is about, as far as it says."""

    length: int | None = None
    """Bytes of the segment."""
    header: DdpHeader | None = None
    request: ReadRequest | None = None
    """The READ request in it."""


def terminated(segment: Segment) -> Terminated:
    """What a Terminate message says of the segment that was wrong. `WireError` if that is cut short, or it is
    another message."""
    control, rest = segment.message, segment.payload
    if not isinstance(control, Terminate):
        raise WireError(f"{_name(segment.header.opcode)} is not a Terminate message")
    length, header, request = None, None, None
    if control.has_length:
        need("length of the terminated segment", rest, 2)
        length, rest = int.from_bytes(rest[:2], "big"), rest[2:]
    if control.has_ddp:
        header = parse_ddp(rest)
        rest = rest[header.SIZE :]
    if control.has_rdmap:
        request = ReadRequest.parse(rest)
    return Terminated(length, header, request)


def _terminated_words(segment: Segment) -> str:
    try:
        about = terminated(segment)
    except WireError as error:
        return f"[{error}]"
    return f"about {_name(about.header.opcode)}" if about.header is not None else ""
