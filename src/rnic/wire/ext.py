# SPDX-License-Identifier: Apache-2.0
"""The extended transport headers that follow the BTH (IBA 9.3); the opcode's row says which ones follow."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import ClassVar

from rnic.records import Record
from rnic.wire.error import WireError
from rnic.wire.header import FlatHeader, fit, need
from rnic.wire.opcode import CNP_RESERVED_BYTES, Mask, OpcodeInfo


class RETH(FlatHeader):
    """RDMA extended transport header (IBA 9.3.3): the remote buffer of a WRITE or READ."""

    va: int  # virtual address, 64 bits
    rkey: int
    length: int  # DMALen: bytes of the whole message

    SIZE: ClassVar[int] = 16
    LAYOUT: ClassVar[Struct] = Struct(">QII")


class AethKind(IntEnum):
    """Bits 6:5 of the syndrome (IBA 9.7.5.1.1)."""

    ACK = 0
    RNR_NAK = 1
    RESERVED = 2
    NAK = 3


class NakCode(IntEnum):
    """Bits 4:0 of a NAK's syndrome (IBA 9.7.5.1.1, table "NAK codes")."""

    PSN_SEQUENCE_ERROR = 0
    INVALID_REQUEST = 1
    REMOTE_ACCESS_ERROR = 2
    REMOTE_OPERATIONAL_ERROR = 3
    INVALID_RD_REQUEST = 4


_NAK_WORDS = {
    NakCode.PSN_SEQUENCE_ERROR: "PSN sequence error",
    NakCode.INVALID_REQUEST: "invalid request",
    NakCode.REMOTE_ACCESS_ERROR: "remote access error",
    NakCode.REMOTE_OPERATIONAL_ERROR: "remote operational error",
    NakCode.INVALID_RD_REQUEST: "invalid RD request",
}

CREDIT_INVALID = 0x1F  # an ACK that does not count credits (a QP with a shared receive queue)

# The wait that an RNR NAK asks for, in microseconds, by its 5-bit code (IBA 9.7.5.2.8, table "RNR NAK timer
# field").
RNR_TIMER_US: tuple[int, ...] = (
    655360, 10, 20, 30, 40, 60, 80, 120,
    160, 240, 320, 480, 640, 960, 1280, 1920,
    2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720,
    40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520,
)  # fmt: skip


def credit_count(code: int) -> int | None:
    """The number of receive credits for a 5-bit code (IBA 9.7.7.2, table "end-to-end flow control credit").

    None: the responder does not count them.
    """
    if fit("credit code", code, 5) == CREDIT_INVALID:
        return None
    if code < 2:
        return code
    return (2 + code % 2) << (code // 2 - 1)  # 2 3 4 6 8 12 16 24 ...


class AETH(Record):
    """ACK extended transport header (IBA 9.3.5): the verdict on a request."""

    syndrome: int
    msn: int  # message sequence number: messages completed, 24 bits

    SIZE: ClassVar[int] = 4
    _LAYOUT: ClassVar[Struct] = Struct(">I")

    @classmethod
    def parse(cls, data: bytes) -> AETH:
        """Read the header at the start of `data`. `WireError` when it is cut short."""
        need("AETH", data, cls.SIZE)
        (word,) = cls._LAYOUT.unpack_from(data)
        return cls(syndrome=word >> 24, msn=word & 0xFFFFFF)

    def emit(self) -> bytes:
        """The bytes. `WireError` when a field does not fit."""
        return self._LAYOUT.pack(fit("syndrome", self.syndrome, 8) << 24 | fit("msn", self.msn, 24))

    @classmethod
    def ack(cls, msn: int, credit: int = CREDIT_INVALID) -> AETH:
        """A positive acknowledgement; `credit` is the 5-bit code, not a count."""
        return cls(fit("credit code", credit, 5), msn)

    @classmethod
    def rnr_nak(cls, msn: int, timer: int) -> AETH:
        """Receiver not ready; `timer` is the 5-bit code (see `RNR_TIMER_US`)."""
        return cls(AethKind.RNR_NAK << 5 | fit("RNR timer", timer, 5), msn)

    @classmethod
    def nak(cls, msn: int, code: NakCode) -> AETH:
        """A negative acknowledgement."""
        return cls(AethKind.NAK << 5 | code, msn)

    @property
    def kind(self) -> AethKind:
        """Bits 6:5 of the syndrome."""
        return AethKind(self.syndrome >> 5 & 3)

    @property
    def value(self) -> int:
        """Bits 4:0: credit code, RNR timer code or NAK code, by `kind`."""
        return self.syndrome & 0x1F

    def __str__(self) -> str:
        """The verdict in words: "ACK, 24 credits", "RNR NAK, wait 0.64 ms", "NAK, remote access error"."""
        if self.kind is AethKind.ACK:
            count = credit_count(self.value)
            return "ACK" if count is None else f"ACK, {count} credit{'' if count == 1 else 's'}"
        if self.kind is AethKind.RNR_NAK:
            return f"RNR NAK, wait {RNR_TIMER_US[self.value] / 1000:g} ms"
        if self.kind is AethKind.NAK and self.value < len(NakCode):
            return f"NAK, {_NAK_WORDS[NakCode(self.value)]}"
        return f"reserved syndrome {self.syndrome:#04x}"


class AtomicETH(FlatHeader):
    """Atomic extended transport header (IBA 9.3.4)."""

    va: int
    rkey: int
    swap_add: int  # what COMPARE SWAP stores, what FETCH ADD adds
    compare: int  # COMPARE SWAP only

    SIZE: ClassVar[int] = 28
    LAYOUT: ClassVar[Struct] = Struct(">QIQQ")


class AtomicAckETH(FlatHeader):
    """Atomic ACK extended transport header (IBA 9.3.5.3): the remote value before the operation."""

    orig: int

    SIZE: ClassVar[int] = 8
    LAYOUT: ClassVar[Struct] = Struct(">Q")


class ImmDt(FlatHeader):
    """Immediate data (IBA 9.3.6): four bytes in network order, as a number."""

    data: int

    SIZE: ClassVar[int] = 4
    LAYOUT: ClassVar[Struct] = Struct(">I")


class IETH(FlatHeader):
    """Invalidate extended transport header (IBA 9.3.7): the R_Key that the receiver invalidates."""

    rkey: int

    SIZE: ClassVar[int] = 4
    LAYOUT: ClassVar[Struct] = Struct(">I")


class DETH(Record):
    """Datagram extended transport header (IBA 9.3.2)."""

    qkey: int
    sqpn: int  # source QP number, 24 bits
    resv: int = 0

    SIZE: ClassVar[int] = 8
    _LAYOUT: ClassVar[Struct] = Struct(">II")

    @classmethod
    def parse(cls, data: bytes) -> DETH:
        """Read the header at the start of `data`. `WireError` when it is cut short."""
        need("DETH", data, cls.SIZE)
        qkey, word = cls._LAYOUT.unpack_from(data)
        return cls(qkey=qkey, sqpn=word & 0xFFFFFF, resv=word >> 24)

    def emit(self) -> bytes:
        """The bytes. `WireError` when a field does not fit."""
        return self._LAYOUT.pack(
            fit("qkey", self.qkey, 32), fit("resv", self.resv, 8) << 24 | fit("sqpn", self.sqpn, 24)
        )


class XRCETH(Record):
    """XRC extended transport header (IBA A14.3.1): the number of the shared receive queue."""

    srqn: int  # its number, 24 bits
    resv: int = 0

    SIZE: ClassVar[int] = 4
    _LAYOUT: ClassVar[Struct] = Struct(">I")

    @classmethod
    def parse(cls, data: bytes) -> XRCETH:
        """Read the header at the start of `data`. `WireError` when it is cut short."""
        need("XRCETH", data, cls.SIZE)
        (word,) = cls._LAYOUT.unpack_from(data)
        return cls(srqn=word & 0xFFFFFF, resv=word >> 24)

    def emit(self) -> bytes:
        """The bytes. `WireError` when a field does not fit."""
        return self._LAYOUT.pack(fit("resv", self.resv, 8) << 24 | fit("srqn", self.srqn, 24))


class FETH(Record):
    """Flush extended transport header (IBA A19.4.3): the kind of a FLUSH, and the bytes that it covers."""

    type: int  # placement type, 4 bits: 1 global visibility, 2 persistence
    level: int  # selectivity level, 2 bits: 0 the range of the RETH, 1 the whole memory region
    resv: int = 0  # 26 bits

    SIZE: ClassVar[int] = 4
    _LAYOUT: ClassVar[Struct] = Struct(">I")

    @classmethod
    def parse(cls, data: bytes) -> FETH:
        """Read the header at the start of `data`. `WireError` when it is cut short."""
        need("FETH", data, cls.SIZE)
        (word,) = cls._LAYOUT.unpack_from(data)
        return cls(type=word & 0xF, level=word >> 4 & 3, resv=word >> 6)

    def emit(self) -> bytes:
        """The bytes. `WireError` when a field does not fit."""
        high = fit("resv", self.resv, 26) << 6 | fit("level", self.level, 2) << 4
        return self._LAYOUT.pack(high | fit("type", self.type, 4))

    def __str__(self) -> str:
        """In words: "flush global, persistent of the range"."""
        types = [name for bit, name in ((1, "global"), (2, "persistent")) if self.type & bit]
        what = {0: "the range", 1: "the region"}.get(self.level, f"level {self.level}")
        return f"flush {', '.join(types) or f'type {self.type}'} of {what}"


class CNPReserved(Record):
    """The 16 bytes that follow the BTH of a congestion notification packet (A17.9.3); zero when sent."""

    data: bytes = bytes(CNP_RESERVED_BYTES)

    SIZE: ClassVar[int] = CNP_RESERVED_BYTES

    @classmethod
    def parse(cls, data: bytes) -> CNPReserved:
        """Read the bytes at the start of `data`. `WireError` when they are cut short."""
        need("CNP", data, cls.SIZE)
        return cls(bytes(data[: cls.SIZE]))

    def emit(self) -> bytes:
        """The bytes. `WireError` when a field does not fit."""
        if len(self.data) != self.SIZE:
            raise WireError(f"the reserved bytes of a CNP are {self.SIZE}, not {len(self.data)}")
        return self.data


Ext = RETH | AETH | AtomicETH | AtomicAckETH | ImmDt | IETH | DETH | XRCETH | FETH | CNPReserved

# In the order of the wire, the same as `opcode.EXT_BYTES`.
CLASSES: dict[Mask, type[Ext]] = {
    Mask.DETH: DETH,
    Mask.XRC: XRCETH,
    Mask.FETH: FETH,
    Mask.RETH: RETH,
    Mask.ATMETH: AtomicETH,
    Mask.AETH: AETH,
    Mask.ATMACK: AtomicAckETH,
    Mask.IMM: ImmDt,
    Mask.INV: IETH,
    Mask.CNP: CNPReserved,
}


def ext_classes(row: OpcodeInfo) -> list[type[Ext]]:
    """The extended headers of an opcode, in their order."""
    return [cls for mask, cls in CLASSES.items() if mask in row.mask]


def parse_ext(row: OpcodeInfo, data: bytes) -> tuple[Ext, ...]:
    """Read the extended headers of `row` from the start of `data`. `WireError` when they are cut short."""
    found: list[Ext] = []
    at = 0
    for cls in ext_classes(row):
        found.append(cls.parse(data[at : at + cls.SIZE]))
        at += cls.SIZE
    return tuple(found)
