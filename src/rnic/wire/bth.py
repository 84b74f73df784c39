# SPDX-License-Identifier: Apache-2.0
"""The base transport header, 12 bytes at the start of every packet (IBA 9.2)."""

from __future__ import annotations

from struct import Struct
from typing import ClassVar

from rnic.records import Record
from rnic.wire.header import fit, need


class BTH(Record):
    """The fields of IBA 9.2; reserved bits are kept, so that what was parsed is emitted again."""

    opcode: int  # 8 bits; any value: `opcode_info()` judges
    dqpn: int  # destination QP number, 24 bits
    psn: int  # packet sequence number, 24 bits
    ackreq: bool = False  # the responder shall acknowledge this packet
    se: bool = False  # solicited event
    migreq: bool = True  # path migration state; 1: migrated, the usual value
    pad: int = 0  # bytes of padding after the payload, 0..3
    tver: int = 0  # transport header version
    pkey: int = 0xFFFF
    fecn: bool = False
    becn: bool = False
    resv6: int = 0  # the lower 6 bits of byte 4
    resv7: int = 0  # the lower 7 bits of byte 8

    SIZE: ClassVar[int] = 12
    _LAYOUT: ClassVar[Struct] = Struct(">BBHII")

    @classmethod
    def parse(cls, data: bytes) -> BTH:
        """Read the first 12 bytes of `data`, whatever they are. `WireError` when there are fewer."""
        need("BTH", data, cls.SIZE)
        opcode, flags, pkey, word1, word2 = cls._LAYOUT.unpack_from(data)
        return cls(
            opcode=opcode,
            se=bool(flags >> 7),
            migreq=bool(flags >> 6 & 1),
            pad=flags >> 4 & 3,
            tver=flags & 0xF,
            pkey=pkey,
            fecn=bool(word1 >> 31),
            becn=bool(word1 >> 30 & 1),
            resv6=word1 >> 24 & 0x3F,
            dqpn=word1 & 0xFFFFFF,
            ackreq=bool(word2 >> 31),
            resv7=word2 >> 24 & 0x7F,
            psn=word2 & 0xFFFFFF,
        )

    def emit(self) -> bytes:
        """The 12 bytes. `WireError` when a field does not fit."""
        return self._LAYOUT.pack(
            fit("opcode", self.opcode, 8),
            self.se << 7 | self.migreq << 6 | fit("pad", self.pad, 2) << 4 | fit("tver", self.tver, 4),
            fit("pkey", self.pkey, 16),
            self.fecn << 31
            | self.becn << 30
            | fit("resv6", self.resv6, 6) << 24
            | fit("dqpn", self.dqpn, 24),
            self.ackreq << 31 | fit("resv7", self.resv7, 7) << 24 | fit("psn", self.psn, 24),
        )
