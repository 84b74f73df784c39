# SPDX-License-Identifier: Apache-2.0
"""The TCP header (RFC 9293, 3.1), for captures of iWARP."""

from __future__ import annotations

from typing import ClassVar

from rnic.records import Record
from rnic.wire.bits import BitStruct, at, flag_at
from rnic.wire.error import WireError
from rnic.wire.header import need


class TcpHeader(BitStruct, kw_only=True):
    """The 20 bytes in front of the options."""

    SIZE: ClassVar[int] = 20

    sport: int = at(0, 16)
    dport: int = at(2, 16)
    seq: int = at(4, 32)
    ack_number: int = at(8, 32)
    words: int = at(12, 4, default=5)
    """Of 4 bytes: the header with its options."""
    ack: bool = flag_at(13, 3)
    psh: bool = flag_at(13, 4)
    rst: bool = flag_at(13, 5)
    syn: bool = flag_at(13, 6)
    fin: bool = flag_at(13, 7)
    window: int = at(14, 16)
    checksum: int = at(16, 16)


class TCP(Record):
    """A segment of TCP."""

    header: TcpHeader
    options: bytes = b""
    payload: bytes = b""

    @classmethod
    def parse(cls, data: bytes) -> TCP:
        """Read a segment. `WireError` if it is cut short."""
        header = TcpHeader.parse(data)
        start = header.words * 4
        if start < TcpHeader.SIZE:
            raise WireError(f"a TCP header of {start} bytes")
        need("TCP header", data, start)
        return cls(header, bytes(data[TcpHeader.SIZE : start]), bytes(data[start:]))

    def emit(self) -> bytes:
        """The bytes. `WireError` if a field does not fit, or contradicts another one."""
        if self.header.words * 4 != TcpHeader.SIZE + len(self.options):
            raise WireError(
                f"a TCP header of {self.header.words} words with {len(self.options)} bytes of options"
            )
        return self.header.emit() + self.options + self.payload
