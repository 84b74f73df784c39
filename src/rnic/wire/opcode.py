# SPDX-License-Identifier: Apache-2.0
"""The BTH opcodes and their properties (IBA 9.2.1, table "OpCode field"; CNP: A17.9.3).

The values, masks and offsets equal `src/nic/wire/opcode.h`: a test compiles the C table and compares.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from rnic.records import Record
from rnic.wire.error import WireError


class Opcode(IntEnum):
    """The opcodes that rnic speaks: RC, UC, UD, XRC and the congestion notification packet."""

    RC_SEND_FIRST = 0x00
    RC_SEND_MIDDLE = 0x01
    RC_SEND_LAST = 0x02
    RC_SEND_LAST_WITH_IMM = 0x03
    RC_SEND_ONLY = 0x04
    RC_SEND_ONLY_WITH_IMM = 0x05
    RC_WRITE_FIRST = 0x06
    RC_WRITE_MIDDLE = 0x07
    RC_WRITE_LAST = 0x08
    RC_WRITE_LAST_WITH_IMM = 0x09
    RC_WRITE_ONLY = 0x0A
    RC_WRITE_ONLY_WITH_IMM = 0x0B
    RC_READ_REQUEST = 0x0C
    RC_READ_RESP_FIRST = 0x0D
    RC_READ_RESP_MIDDLE = 0x0E
    RC_READ_RESP_LAST = 0x0F
    RC_READ_RESP_ONLY = 0x10
    RC_ACK = 0x11
    RC_ATOMIC_ACK = 0x12
    RC_CMP_SWAP = 0x13
    RC_FETCH_ADD = 0x14
    RC_SEND_LAST_WITH_INV = 0x16
    RC_SEND_ONLY_WITH_INV = 0x17
    RC_FLUSH = 0x1C  # Annex A19, as is the next
    RC_ATOMIC_WRITE = 0x1D

    UC_SEND_FIRST = 0x20
    UC_SEND_MIDDLE = 0x21
    UC_SEND_LAST = 0x22
    UC_SEND_LAST_WITH_IMM = 0x23
    UC_SEND_ONLY = 0x24
    UC_SEND_ONLY_WITH_IMM = 0x25
    UC_WRITE_FIRST = 0x26
    UC_WRITE_MIDDLE = 0x27
    UC_WRITE_LAST = 0x28
    UC_WRITE_LAST_WITH_IMM = 0x29
    UC_WRITE_ONLY = 0x2A
    UC_WRITE_ONLY_WITH_IMM = 0x2B

    UD_SEND_ONLY = 0x64
    UD_SEND_ONLY_WITH_IMM = 0x65

    CNP = 0x81

    XRC_SEND_FIRST = 0xA0
    XRC_SEND_MIDDLE = 0xA1
    XRC_SEND_LAST = 0xA2
    XRC_SEND_LAST_WITH_IMM = 0xA3
    XRC_SEND_ONLY = 0xA4
    XRC_SEND_ONLY_WITH_IMM = 0xA5
    XRC_WRITE_FIRST = 0xA6
    XRC_WRITE_MIDDLE = 0xA7
    XRC_WRITE_LAST = 0xA8
    XRC_WRITE_LAST_WITH_IMM = 0xA9
    XRC_WRITE_ONLY = 0xAA
    XRC_WRITE_ONLY_WITH_IMM = 0xAB
    XRC_READ_REQUEST = 0xAC
    XRC_READ_RESP_FIRST = 0xAD
    XRC_READ_RESP_MIDDLE = 0xAE
    XRC_READ_RESP_LAST = 0xAF
    XRC_READ_RESP_ONLY = 0xB0
    XRC_ACK = 0xB1
    XRC_ATOMIC_ACK = 0xB2
    XRC_CMP_SWAP = 0xB3
    XRC_FETCH_ADD = 0xB4
    XRC_SEND_LAST_WITH_INV = 0xB6
    XRC_SEND_ONLY_WITH_INV = 0xB7


class Mask(IntFlag):
    """Properties of the packets with an opcode; the bits of `enum roce_opcode_mask`."""

    REQUEST = 1 << 0
    RESPONSE = 1 << 1
    SEND = 1 << 2
    WRITE = 1 << 3
    READ = 1 << 4
    ATOMIC = 1 << 5
    READ_RESP = 1 << 6
    ACK = 1 << 7
    FIRST = 1 << 8
    MIDDLE = 1 << 9
    LAST = 1 << 10
    PAYLOAD = 1 << 11
    IMM = 1 << 12
    INV = 1 << 13
    RETH = 1 << 14
    AETH = 1 << 15
    ATMETH = 1 << 16
    ATMACK = 1 << 17
    DETH = 1 << 18
    RC = 1 << 19
    UC = 1 << 20
    UD = 1 << 21
    CNP = 1 << 22
    USES_RQ = 1 << 23
    XRC = 1 << 24  # requests, all with an XRCETH
    XRC_BACK = 1 << 25  # and what comes back
    ATOMIC_WRITE = 1 << 28
    FLUSH = 1 << 29
    FETH = 1 << 30
    ONLY = FIRST | LAST


BTH_BYTES = 12
CNP_RESERVED_BYTES = 16

# The extended headers in the order in which they follow the BTH (IBA 9.3), with their sizes in bytes.
EXT_BYTES: dict[Mask, int] = {
    Mask.DETH: 8,
    Mask.XRC: 4,
    Mask.FETH: 4,
    Mask.RETH: 16,
    Mask.ATMETH: 28,
    Mask.AETH: 4,
    Mask.ATMACK: 8,
    Mask.IMM: 4,
    Mask.INV: 4,
    Mask.CNP: CNP_RESERVED_BYTES,
}


class OpcodeInfo(Record):
    """One row of the table."""

    opcode: Opcode
    mask: Mask
    header: int  # bytes from the BTH to the payload
    # Offsets from the BTH, in bytes; 0: the packet has no such header.
    reth: int
    aeth: int
    atomic_eth: int
    atomic_ack: int
    imm: int
    ieth: int
    deth: int
    xrceth: int
    feth: int

    @property
    def name(self) -> str:
        """The name in `Opcode`."""
        return self.opcode.name


def _place(name: str) -> Mask:
    """FIRST, MIDDLE, LAST or both, as the name says; requests and acknowledgements of one packet are ONLY."""
    for place in (Mask.FIRST, Mask.MIDDLE, Mask.LAST):
        if f"_{place.name}" in name:
            return place
    return Mask.ONLY


def _service(name: str, operation: str) -> Mask:
    """The bit of the service; of XRC the two directions are for queue pairs of two types."""
    answers = operation.startswith(("READ_RESP", "ACK", "ATOMIC_ACK"))
    return Mask.XRC_BACK if name == "XRC" and answers else Mask[name]


_KIND: dict[str, Mask] = {
    "SEND": Mask.REQUEST | Mask.SEND | Mask.PAYLOAD,
    "WRITE": Mask.REQUEST | Mask.WRITE | Mask.PAYLOAD,
    "READ_REQUEST": Mask.REQUEST | Mask.READ | Mask.RETH,
    "READ_RESP": Mask.RESPONSE | Mask.READ_RESP | Mask.PAYLOAD,
    "ACK": Mask.RESPONSE | Mask.ACK | Mask.AETH,
    "ATOMIC_ACK": Mask.RESPONSE | Mask.ACK | Mask.AETH | Mask.ATMACK,
    "CMP_SWAP": Mask.REQUEST | Mask.ATOMIC | Mask.ATMETH,
    "FETCH_ADD": Mask.REQUEST | Mask.ATOMIC | Mask.ATMETH,
    "FLUSH": Mask.REQUEST | Mask.FLUSH | Mask.FETH | Mask.RETH,
    "ATOMIC_WRITE": Mask.REQUEST | Mask.ATOMIC_WRITE | Mask.RETH | Mask.PAYLOAD,
}


def _row(opcode: Opcode) -> OpcodeInfo:
    """Derive the row from the name, by the rules of IBA 9.4; the C table spells it out."""
    service, _, operation = opcode.name.partition("_")
    mask = _service(service, operation) | _place(opcode.name)
    kind = next((kind for kind in _KIND if operation.startswith(kind)), None)
    if kind is not None:
        mask |= _KIND[kind]
    if "_WITH_IMM" in operation:
        mask |= Mask.IMM
    if "_WITH_INV" in operation:
        mask |= Mask.INV
    if Mask.UD in mask:
        mask |= Mask.DETH
    if Mask.WRITE in mask and Mask.FIRST in mask:
        mask |= Mask.RETH
    if Mask.READ_RESP in mask and Mask.MIDDLE not in mask:
        mask |= Mask.AETH
    if Mask.LAST in mask and (Mask.SEND in mask or (Mask.WRITE in mask and Mask.IMM in mask)):
        mask |= Mask.USES_RQ

    at = BTH_BYTES
    offset = dict.fromkeys(EXT_BYTES, 0)
    for header, size in EXT_BYTES.items():
        if header in mask:
            offset[header] = at
            at += size
    return OpcodeInfo(
        opcode=opcode,
        mask=mask,
        header=at,
        reth=offset[Mask.RETH],
        aeth=offset[Mask.AETH],
        atomic_eth=offset[Mask.ATMETH],
        atomic_ack=offset[Mask.ATMACK],
        imm=offset[Mask.IMM],
        ieth=offset[Mask.INV],
        deth=offset[Mask.DETH],
        xrceth=offset[Mask.XRC],
        feth=offset[Mask.FETH],
    )


TABLE: dict[int, OpcodeInfo] = {int(opcode): _row(opcode) for opcode in Opcode}


def opcode_info(opcode: int) -> OpcodeInfo:
    """The row of an opcode. `WireError` if the opcode is reserved, or belongs to a service that rnic does not
    have (RD).
    """
    row = TABLE.get(opcode)
    if row is None:
        raise WireError(f"opcode {opcode:#04x} is reserved or of a service that is not supported")
    return row
