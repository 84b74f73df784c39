# SPDX-License-Identifier: Apache-2.0
"""MPA: the frames of its start-up (RFC 5044, 7.1; RFC 6581), FPDUs and markers (RFC 5044, 4).

request = MpaFrame(control=MpaControl(ird=16, ord=16, peer_to_peer=True, rtr_write=True))
MpaFrame.parse(request.emit()) == request
Fpdu.of(segment.emit()).emit()
"""

from __future__ import annotations

from typing import ClassVar

from rnic.records import Record, replace
from rnic.wire.bits import BitStruct, at, bytes_at, flag_at
from rnic.wire.crc import crc32c
from rnic.wire.error import WireError
from rnic.wire.header import fit, need

KEY_REQUEST = b"MPA ID Req Frame"
KEY_REPLY = b"MPA ID Rep Frame"
KEY_BYTES = 16
MPA_PRIVATE_BYTES = 512
"""The most that a frame can carry, the word of IRD and ORD included."""
DEPTH_UNKNOWN = 0x3FFF
"""As IRD or ORD: the sender does not negotiate it (RFC 6581, 9.1)."""

CRC_BYTES = 4
LENGTH_BYTES = 2
MARKER_BYTES = 4
MARKER_EVERY = 512
"""Bytes from the beginning of one marker to that of the next; the first FPDU begins with one."""
FPDU_MOST = LENGTH_BYTES + 0xFFFF + 3 + CRC_BYTES
"""Bytes of an FPDU without markers."""


class MpaControl(BitStruct, kw_only=True):
    """IRD, ORD and the peer-to-peer mode (RFC 6581, 9.1): the first 4 bytes of an enhanced frame's private
    data.
    """

    SIZE: ClassVar[int] = 4

    peer_to_peer: bool = flag_at(0, 0)
    """Flag A: the initiator sends an RTR message, so that either end may then send first."""
    rtr_send: bool = flag_at(0, 1)
    """Flag B: a SEND of length 0 can be, or is, the RTR message."""
    ird: int = at(0, 14, bit=2)
    """READs and atomics that the sender serves at the same time."""
    rtr_write: bool = flag_at(2, 0)
    """Flag C: a WRITE of length 0 likewise."""
    rtr_read: bool = flag_at(2, 1)
    """Flag D: a READ of length 0 likewise."""
    ord: int = at(2, 14, bit=2)
    """READs and atomics that the sender may have outstanding."""


class MpaHeader(BitStruct, kw_only=True):
    """The 20 bytes that every frame of the start-up begins with."""

    SIZE: ClassVar[int] = 20

    key: bytes = bytes_at(0, KEY_BYTES)
    markers: bool = flag_at(16, 0)
    crc: bool = flag_at(16, 1)
    rejected: bool = flag_at(16, 2)
    enhanced: bool = flag_at(16, 3)
    rfc7306_too: bool = flag_at(16, 6)
    """In a reply, in place of the next."""
    rfc7306: bool = flag_at(16, 7)
    """In a request."""
    revision: int = at(17, 8, default=2)
    private_size: int = at(18, 16)

    def check(self) -> None:
        """Raise WireError if this cannot be a frame: its key, or its length."""
        if self.key not in (KEY_REQUEST, KEY_REPLY):
            raise WireError(f"the key {self.key!r} is not MPA's")
        if self.private_size > MPA_PRIVATE_BYTES:
            raise WireError(f"{self.private_size} bytes of private data; {MPA_PRIVATE_BYTES} are the most")


class MpaFrame(Record):
    """A request or reply frame."""

    is_reply: bool = False
    control: MpaControl | None = None
    """Of an enhanced frame; None: of one without IRD and ORD."""
    private_data: bytes = b""
    """The program's own, without the control word."""
    crc: bool = True
    """The sender wants CRCs."""
    markers: bool = False
    """The sender wants markers in what it receives."""
    rejected: bool = False
    """In a reply: the connection is refused."""
    rfc7306: bool = False
    """The sender has atomics and immediate data. rnic's own: RFC 5044 reserves the bits. Others ignore
    them, or echo them as the kernel's siw does. So a reply has another bit than a request.
    """
    revision: int = 2
    resv: int = 0
    """Bits of the header that have no meaning here, where they lie."""

    @classmethod
    def parse(cls, data: bytes) -> MpaFrame:
        """Read a whole frame. `WireError` if it is malformed, cut short, or followed by more bytes."""
        header = MpaHeader.parse(data)
        header.check()
        private = bytes(data[MpaHeader.SIZE :])
        if len(private) != header.private_size:
            raise WireError(f"private data of {header.private_size} bytes, there are {len(private)}")
        control = None
        is_reply = header.key == KEY_REPLY
        other = (_REQUESTS if header.rfc7306 else 0) if is_reply else (_REPLYS if header.rfc7306_too else 0)
        bare = header.rejected and not private  # as siw refuses what it does not support
        if header.enhanced and header.revision > 1 and not bare:
            control, private = MpaControl.parse(private), private[MpaControl.SIZE :]
        return cls(
            is_reply=is_reply,
            control=control,
            private_data=private,
            crc=header.crc,
            markers=header.markers,
            rejected=header.rejected,
            rfc7306=header.rfc7306_too if is_reply else header.rfc7306,
            revision=header.revision,
            resv=header.resv | other | (_ENHANCED if header.enhanced and control is None else 0),
        )

    def emit(self) -> bytes:
        """The bytes. `WireError` if a field does not fit."""
        private = (self.control.emit() if self.control is not None else b"") + self.private_data
        if len(private) > MPA_PRIVATE_BYTES:
            raise WireError(f"{len(private)} bytes of private data; {MPA_PRIVATE_BYTES} are the most")
        header = MpaHeader(
            key=KEY_REPLY if self.is_reply else KEY_REQUEST,
            markers=self.markers,
            crc=self.crc,
            rejected=self.rejected,
            enhanced=self.control is not None or bool(self.resv & _ENHANCED),
            rfc7306_too=self.rfc7306 if self.is_reply else bool(self.resv & _REPLYS),
            rfc7306=bool(self.resv & _REQUESTS) if self.is_reply else self.rfc7306,
            revision=self.revision,
            private_size=len(private),
            resv=self.resv & ~(_ENHANCED | _REPLYS | _REQUESTS),
        )
        return header.emit() + private

    def __str__(self) -> str:
        """One line in words."""
        kind = "Reject" if self.rejected else "Reply" if self.is_reply else "Request"
        words = [f"MPA {kind}", f"revision {self.revision}", "CRC" if self.crc else "no CRC"]
        if self.markers:
            words.append("markers")
        if self.rfc7306:
            words.append("RFC 7306")
        if self.control is not None:
            words.append(f"IRD {self.control.ird} ORD {self.control.ord}")
            words += [text for name, text in _CONTROL_WORDS.items() if getattr(self.control, name)]
        if self.private_data:
            words.append(f"{len(self.private_data)} B private data")
        return "  ".join(words)


# In resv: flags where they mean nothing: of a revision that does not have it, of a request in a reply, and of
# a reply in a request.
_ENHANCED = MpaHeader(enhanced=True, revision=0).to_word()
_REQUESTS = MpaHeader(rfc7306=True, revision=0).to_word()
_REPLYS = MpaHeader(rfc7306_too=True, revision=0).to_word()
_CONTROL_WORDS = {
    "peer_to_peer": "peer-to-peer",
    "rtr_send": "RTR SEND",
    "rtr_write": "RTR WRITE",
    "rtr_read": "RTR READ",
}


class Fpdu(Record):
    """A framed unit: the length, a DDP segment, padding and a CRC; markers are taken out, or not put in."""

    ulpdu: bytes
    """The DDP segment."""
    crc: int = 0
    """As it is stored; 0 where CRCs are off."""
    pad: bytes = b""

    @classmethod
    def of(cls, ulpdu: bytes, *, crc: bool = True) -> Fpdu:
        """Frame a segment."""
        made = cls(ulpdu, 0, bytes(pad_of(len(ulpdu))))
        return replace(made, crc=made.expected_crc()) if crc else made

    @classmethod
    def parse(cls, data: bytes) -> Fpdu:
        """Read a whole FPDU. `WireError` if its length is another one."""
        need("FPDU", data, LENGTH_BYTES)
        length = int.from_bytes(data[:LENGTH_BYTES], "big")
        if len(data) != fpdu_size(length):
            raise WireError(f"an FPDU of a segment of {length} bytes has not {len(data)}")
        end = LENGTH_BYTES + length
        return cls(
            bytes(data[LENGTH_BYTES:end]),
            int.from_bytes(data[-CRC_BYTES:], "little"),
            bytes(data[end:-CRC_BYTES]),
        )

    def emit(self) -> bytes:
        """The bytes of the fields as they are."""
        return self.emit_covered() + fit("CRC", self.crc, 32).to_bytes(CRC_BYTES, "little")

    def emit_covered(self) -> bytes:
        """All bytes except the CRC."""
        if len(self.pad) != pad_of(len(self.ulpdu)):
            raise WireError(f"{len(self.pad)} bytes of padding behind {len(self.ulpdu)}")
        return fit("length", len(self.ulpdu), 16).to_bytes(LENGTH_BYTES, "big") + self.ulpdu + self.pad

    def expected_crc(self) -> int:
        """The CRC that it should carry, if it has no markers inside."""
        return crc32c(self.emit_covered())


def pad_of(length: int) -> int:
    """Bytes of padding behind a segment."""
    return -(LENGTH_BYTES + length) % 4


def fpdu_size(length: int) -> int:
    """Bytes of the FPDU of a segment, without markers."""
    return LENGTH_BYTES + length + pad_of(length) + CRC_BYTES


class Marker(BitStruct, kw_only=True):
    """A marker (RFC 5044, 4.3): how far back the FPDU begins that it stands in."""

    SIZE: ClassVar[int] = MARKER_BYTES

    pointer: int = at(2, 16)
    """Bytes from the length of its FPDU to the marker; 0: the FPDU follows."""
