# SPDX-License-Identifier: Apache-2.0
"""RDMAP's messages (RFC 5040, 4; RFC 7306): opcodes, the headers in a segment's payload, Terminate."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import ClassVar

from rnic.wire.bits import BitStruct, at, flag_at
from rnic.wire.header import FlatHeader


class RdmapOpcode(IntEnum):
    """What a segment is of (RFC 5040, 4.3; RFC 7306, 7)."""

    WRITE = 0
    READ_REQUEST = 1
    READ_RESPONSE = 2
    SEND = 3
    SEND_WITH_INV = 4
    SEND_WITH_SE = 5
    SEND_WITH_SE_INV = 6
    TERMINATE = 7
    IMMEDIATE = 8
    IMMEDIATE_WITH_SE = 9
    ATOMIC_REQUEST = 10
    ATOMIC_RESPONSE = 11


INVALIDATES = (RdmapOpcode.SEND_WITH_INV, RdmapOpcode.SEND_WITH_SE_INV)


class QueueNumber(IntEnum):
    """The untagged queues (RFC 5040, 4.1; RFC 7306, 6)."""

    SEND = 0
    """SENDs and immediate data."""
    REQUEST = 1
    """READ requests and atomic requests."""
    TERMINATE = 2
    ATOMIC_RESPONSE = 3


class ReadRequest(FlatHeader):
    """A READ request (RFC 5040, 4.4): where the answer goes, and what is asked for."""

    sink_stag: int
    sink_offset: int
    size: int
    source_stag: int
    source_offset: int

    SIZE: ClassVar[int] = 28
    LAYOUT: ClassVar[Struct] = Struct(">IQIIQ")


class AtomicCode(IntEnum):
    """The operation of an atomic request (RFC 7306, 5.1)."""

    FETCH_ADD = 0
    CMP_SWAP = 2


class AtomicRequest(BitStruct, kw_only=True):
    """An atomic request (RFC 7306, 5.2.1)."""

    SIZE: ClassVar[int] = 52

    code: int = at(3, 4, bit=4)
    request_id: int = at(4, 32)
    stag: int = at(8, 32)
    offset: int = at(12, 64)
    add_swap: int = at(20, 64)
    add_swap_mask: int = at(28, 64, default=(1 << 64) - 1)
    compare: int = at(36, 64)
    compare_mask: int = at(44, 64, default=(1 << 64) - 1)


class AtomicResponse(FlatHeader):
    """An atomic response (RFC 7306, 5.2.2): what was there before."""

    request_id: int
    original: int

    SIZE: ClassVar[int] = 12
    LAYOUT: ClassVar[Struct] = Struct(">IQ")


class Immediate(FlatHeader):
    """Immediate data (RFC 7306, 6.3): a message of its own, behind the WRITE or SEND that it goes with."""

    data: int

    SIZE: ClassVar[int] = 8
    LAYOUT: ClassVar[Struct] = Struct(">Q")


# ------------------------------------------------------------------ Terminate


class TermLayer(IntEnum):
    """The layer that has found the error (RFC 5040, 4.8)."""

    RDMAP = 0
    DDP = 1
    LLP = 2
    """MPA."""


class Terminate(BitStruct, kw_only=True):
    """A Terminate message's control field (RFC 5040, 4.8); what it says of the segment follows."""

    SIZE: ClassVar[int] = 4

    layer: int = at(0, 4)
    etype: int = at(0, 4, bit=4)
    code: int = at(1, 8)
    has_length: bool = flag_at(2, 0)
    """The length of the segment follows, 2 bytes,"""
    has_ddp: bool = flag_at(2, 1)
    """and its DDP header,"""
    has_rdmap: bool = flag_at(2, 2)
    """and the READ request in it."""

    def __str__(self) -> str:
        """The error in words."""
        return term_words(self.layer, self.etype, self.code)


_CATASTROPHIC = "local catastrophic error"
_RDMAP_CODES = {
    0: "invalid STag",
    1: "base or bounds violation",
    2: "access rights violation",
    3: "STag of another stream",
    4: "tagged offset wraps",
    5: "invalid RDMAP version",
    6: "unexpected opcode",
    7: "catastrophic error of the stream",
    8: "catastrophic error",
    9: "STag cannot be invalidated",
    0xFF: "unspecified",
}
_TERMS: dict[tuple[int, int], tuple[str, dict[int, str]]] = {
    (TermLayer.RDMAP, 0): (_CATASTROPHIC, {}),
    (TermLayer.RDMAP, 1): ("remote protection error", _RDMAP_CODES),
    (TermLayer.RDMAP, 2): ("remote operation error", _RDMAP_CODES),
    (TermLayer.DDP, 0): (_CATASTROPHIC, {}),
    (TermLayer.DDP, 1): (
        "tagged buffer error",
        {
            0: "invalid STag",
            1: "base or bounds violation",
            2: "STag of another stream",
            3: "tagged offset wraps",
            4: "invalid DDP version",
        },
    ),
    (TermLayer.DDP, 2): (
        "untagged buffer error",
        {
            1: "invalid queue number",
            2: "no receive is posted",
            3: "message number out of range",
            4: "invalid message offset",
            5: "message is longer than the receive",
            6: "invalid DDP version",
        },
    ),
    (TermLayer.LLP, 0): (
        "MPA error",
        {
            1: "TCP connection closed or lost",
            2: "wrong CRC",
            3: "marker and length do not agree",
            4: "invalid request or reply frame",
            5: _CATASTROPHIC,
            6: "insufficient IRD",
            7: "no matching RTR message",
        },
    ),
}
INSUFFICIENT_IRD = 6
NO_MATCHING_RTR = 7
"""Codes of MPA errors that end a start-up (RFC 6581, 8)."""


def term_words(layer: int, etype: int, code: int) -> str:
    """What a Terminate message says: "DDP: tagged buffer error: invalid STag"."""
    name = TermLayer(layer).name if layer in TermLayer._value2member_map_ else f"layer {layer}"
    kind, codes = _TERMS.get((layer, etype), (f"type {etype}", {}))
    return f"{name}: {kind}: {codes.get(code, f'code {code}')}"
