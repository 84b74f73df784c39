# SPDX-License-Identifier: Apache-2.0
"""The IPv4, IPv6 and UDP headers of RoCEv2 (A17.3.1): no options, no extension headers, no fragments. The IP
headers of TCP's segments, in captures of iWARP, are the same.

`emit()` writes the fields as they are, so that it returns the parsed bytes; `Packet.sealed()` fills in
lengths and checksums.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from struct import Struct
from typing import ClassVar

from rnic.records import Record, replace
from rnic.wire.error import NotRoCEError, WireError
from rnic.wire.header import FlatHeader, fit, need

UDP_PROTOCOL = 17
TCP_PROTOCOL = 6
_PROTOCOLS = {UDP_PROTOCOL: "UDP", TCP_PROTOCOL: "TCP"}
ROCE_PORT = 4791


class IPv4(Record):
    """The IPv4 header of a UDP datagram, or of another protocol: 20 bytes (RFC 791)."""

    src: IPv4Address
    dst: IPv4Address
    ident: int = 0
    ttl: int = 64
    tos: int = 0
    flags: int = 2  # 3 bits: reserved, DF, MF
    total_length: int = 0
    checksum: int = 0
    protocol: int = UDP_PROTOCOL

    SIZE: ClassVar[int] = 20
    _LAYOUT: ClassVar[Struct] = Struct(">BBHHHBBH4s4s")

    @classmethod
    def parse(cls, data: bytes, protocol: int = UDP_PROTOCOL) -> IPv4:
        """Read the header at the start of `data`; checks that it carries the protocol, unfragmented."""
        need("IPv4 header", data, cls.SIZE)
        first, tos, total, ident, fragment, ttl, carried, checksum, src, dst = cls._LAYOUT.unpack_from(data)
        if first >> 4 != 4:
            raise WireError(f"IP version {first >> 4} where 4 is expected")
        if carried != protocol:
            raise NotRoCEError(f"IP protocol {carried}, not {_PROTOCOLS[protocol]}")
        if first & 0xF != 5:
            raise NotRoCEError(f"IPv4 header of {(first & 0xF) * 4} bytes; RoCEv2 has no options")
        if fragment & 0x3FFF:
            raise NotRoCEError("IPv4 fragment")
        if not cls.SIZE <= total <= len(data):
            raise WireError(f"IPv4 total length {total}, there are {len(data)} bytes")
        return cls(
            src=IPv4Address(src),
            dst=IPv4Address(dst),
            ident=ident,
            ttl=ttl,
            tos=tos,
            flags=fragment >> 13,
            total_length=total,
            checksum=checksum,
            protocol=protocol,
        )

    def emit(self) -> bytes:
        """The bytes. `WireError` when a field does not fit."""
        return self._LAYOUT.pack(
            0x45,
            fit("tos", self.tos, 8),
            fit("total length", self.total_length, 16),
            fit("ident", self.ident, 16),
            fit("flags", self.flags, 3) << 13,
            fit("ttl", self.ttl, 8),
            fit("protocol", self.protocol, 8),
            fit("checksum", self.checksum, 16),
            self.src.packed,
            self.dst.packed,
        )

    def invariant(self) -> IPv4:
        """The header for the ICRC: fields that routers change are all ones."""
        return replace(self, tos=0xFF, ttl=0xFF, checksum=0xFFFF)

    @property
    def length(self) -> int:
        """The number of bytes of header and contents."""
        return self.total_length


class IPv6(Record):
    """The IPv6 header of a UDP datagram, or of another protocol: 40 bytes (RFC 8200)."""

    src: IPv6Address
    dst: IPv6Address
    hop_limit: int = 64
    traffic_class: int = 0
    flow_label: int = 0
    payload_length: int = 0
    protocol: int = UDP_PROTOCOL

    SIZE: ClassVar[int] = 40
    _LAYOUT: ClassVar[Struct] = Struct(">IHBB16s16s")

    @classmethod
    def parse(cls, data: bytes, protocol: int = UDP_PROTOCOL) -> IPv6:
        """Read the header at the start of `data`; checks that the protocol follows at once."""
        need("IPv6 header", data, cls.SIZE)
        word, length, following, hop_limit, src, dst = cls._LAYOUT.unpack_from(data)
        if word >> 28 != 6:
            raise WireError(f"IP version {word >> 28} where 6 is expected")
        if following != protocol:
            raise NotRoCEError(f"IPv6 next header {following}, not {_PROTOCOLS[protocol]}")
        if cls.SIZE + length > len(data):
            raise WireError(f"IPv6 payload length {length}, there are {len(data) - cls.SIZE} bytes")
        return cls(
            src=IPv6Address(src),
            dst=IPv6Address(dst),
            hop_limit=hop_limit,
            traffic_class=word >> 20 & 0xFF,
            flow_label=word & 0xFFFFF,
            payload_length=length,
            protocol=protocol,
        )

    def emit(self) -> bytes:
        """The bytes. `WireError` when a field does not fit."""
        return self._LAYOUT.pack(
            6 << 28
            | fit("traffic class", self.traffic_class, 8) << 20
            | fit("flow label", self.flow_label, 20),
            fit("payload length", self.payload_length, 16),
            fit("next header", self.protocol, 8),
            fit("hop limit", self.hop_limit, 8),
            self.src.packed,
            self.dst.packed,
        )

    def invariant(self) -> IPv6:
        """The header for the ICRC: fields that routers change are all ones."""
        return replace(self, traffic_class=0xFF, flow_label=0xFFFFF, hop_limit=0xFF)

    @property
    def length(self) -> int:
        """The number of bytes of header and contents."""
        return self.SIZE + self.payload_length


class UDP(FlatHeader):
    """The UDP header: 8 bytes (RFC 768)."""

    sport: int
    dport: int = ROCE_PORT
    length: int = 0
    checksum: int = 0

    SIZE: ClassVar[int] = 8
    LAYOUT: ClassVar[Struct] = Struct(">HHHH")


def parse_ip(data: bytes, protocol: int = UDP_PROTOCOL) -> IPv4 | IPv6:
    """The IP header at the start of `data`, of the family that its version names.

    `NotRoCEError` if it carries another protocol.
    """
    need("IP header", data, 1)
    version = data[0] >> 4
    if version == 4:
        return IPv4.parse(data, protocol)
    if version == 6:
        return IPv6.parse(data, protocol)
    raise WireError(f"IP version {version}")


def internet_checksum(data: bytes) -> int:
    """The ones' complement sum of RFC 1071, complemented."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(Struct(f">{len(data) // 2}H").unpack(data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def udp_checksum(ip: IPv4 | IPv6, udp: UDP, data: bytes) -> int:
    """The checksum of a UDP datagram, never 0 (RFC 768; RFC 8200 s.8.1); the checksum in `udp` is ignored."""
    if isinstance(ip, IPv4):
        pseudo = ip.src.packed + ip.dst.packed + Struct(">BBH").pack(0, UDP_PROTOCOL, udp.length)
    else:
        pseudo = ip.src.packed + ip.dst.packed + Struct(">II").pack(udp.length, UDP_PROTOCOL)
    return internet_checksum(pseudo + replace(udp, checksum=0).emit() + data) or 0xFFFF
