# SPDX-License-Identifier: Apache-2.0
"""A whole RoCEv2 packet, from the link header to the ICRC (Annex A17, "RoCEv2 packet format").

`Transport` is the payload of a UDP datagram to port 4791; `Packet` adds the headers in front. Both are
immutable: `dataclasses.replace()` makes a changed copy, and `sealed()` corrects its lengths, checksums and
ICRC.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeVar

from rnic.records import Record, replace
from rnic.wire.bth import BTH
from rnic.wire.error import NotRoCEError, WireError
from rnic.wire.ext import (
    AETH,
    DETH,
    FETH,
    IETH,
    RETH,
    XRCETH,
    AtomicAckETH,
    AtomicETH,
    Ext,
    ImmDt,
    ext_classes,
    parse_ext,
)
from rnic.wire.header import fit, need
from rnic.wire.icrc import ICRC_BYTES, icrc
from rnic.wire.ip import ROCE_PORT, UDP, IPv4, IPv6, internet_checksum, parse_ip, udp_checksum
from rnic.wire.link import LinkType, link_bytes
from rnic.wire.opcode import BTH_BYTES, OpcodeInfo, opcode_info

_E = TypeVar("_E", bound=Ext)


class Transport(Record):
    """BTH, extended headers, payload, padding and ICRC."""

    bth: BTH
    ext: tuple[Ext, ...] = ()
    payload: bytes = b""
    padding: bytes = b""
    icrc: int = 0

    @classmethod
    def parse(cls, data: bytes) -> Transport:
        """Read a UDP payload. `WireError` if the opcode is not known, or something is cut short.

        The contents are not judged: a payload where none belongs, or a wrong ICRC, can be examined.
        """
        bth = BTH.parse(data)
        row = opcode_info(bth.opcode)
        need(f"{row.name} with {bth.pad} bytes of padding", data, row.header + bth.pad + ICRC_BYTES)
        end = len(data) - ICRC_BYTES
        return cls(
            bth=bth,
            ext=parse_ext(row, data[BTH_BYTES : row.header]),
            payload=bytes(data[row.header : end - bth.pad]),
            padding=bytes(data[end - bth.pad : end]),
            icrc=int.from_bytes(data[end:], "little"),
        )

    def emit(self) -> bytes:
        """The bytes of the fields as they are. `WireError` if they contradict one another or do not fit."""
        return self.emit_covered() + fit("ICRC", self.icrc, 32).to_bytes(ICRC_BYTES, "little")

    def emit_covered(self) -> bytes:
        """All bytes except the ICRC."""
        expected = ext_classes(self.info)
        if [type(header) for header in self.ext] != expected:
            names = ", ".join(cls.__name__ for cls in expected) or "no extended headers"
            raise WireError(f"{self.info.name} has {names}")
        if len(self.padding) != self.bth.pad:
            raise WireError(f"pad count {self.bth.pad}, but {len(self.padding)} bytes of padding")
        return b"".join(
            (self.bth.emit(), *(header.emit() for header in self.ext), self.payload, self.padding)
        )

    def padded(self) -> Transport:
        """A copy with the padding that makes the payload a multiple of four bytes (IBA 9.2.3)."""
        pad = -len(self.payload) % 4
        return replace(self, bth=replace(self.bth, pad=pad), padding=bytes(pad))

    @property
    def info(self) -> OpcodeInfo:
        """The row of the opcode. `WireError` if it is not known (the opcode of a parsed packet is)."""
        return opcode_info(self.bth.opcode)

    def header(self, cls: type[_E]) -> _E | None:
        """The extended header of that class, if the packet has it: `transport.header(RETH)`."""
        for header in self.ext:
            if isinstance(header, cls):
                return header
        return None

    def __str__(self) -> str:
        """One line in words, without addresses."""
        words = [f"{self.info.name:<22} QP {self.bth.dqpn:#08x} PSN {self.bth.psn}"]
        words += [_describe(header) for header in self.ext]
        if self.payload:
            words.append(f"{len(self.payload)} B")
        flags = [
            name
            for name, is_set in (
                ("ack requested", self.bth.ackreq),
                ("solicited", self.bth.se),
                ("FECN", self.bth.fecn),
                ("BECN", self.bth.becn),
            )
            if is_set
        ]
        return "  ".join(word for word in (*words, ", ".join(flags)) if word)


def _describe(header: Ext) -> str:
    match header:
        case RETH():
            return f"va {header.va:#x} rkey {header.rkey:#010x} length {header.length}"
        case AETH():
            return f"{header}, MSN {header.msn}"
        case AtomicETH():
            operands = f"swap/add {header.swap_add:#x} compare {header.compare:#x}"
            return f"va {header.va:#x} rkey {header.rkey:#010x} {operands}"
        case AtomicAckETH():
            return f"original {header.orig:#x}"
        case ImmDt():
            return f"imm {header.data:#010x}"
        case IETH():
            return f"invalidate rkey {header.rkey:#010x}"
        case XRCETH():
            return f"SRQ {header.srqn:#08x}"
        case DETH():
            return f"from QP {header.sqpn:#08x} Q_Key {header.qkey:#010x}"
        case FETH():
            return str(header)
        case _:
            return ""


_PROBE = struct.Struct("=BBHI")  # how it begins (src/nic/link/udp/steering.c)
_PROBE_OPCODE, _PROBE_MAGIC = 0xFF, 0x524E4943
_PROBES = {
    0: "asks for the process at place {place} of this address",
    1: "a process has come to this address",
    2: "a process misses packets of this address",
    3: "a process leaves this address",
}


def _refuse_probe(data: bytes) -> None:
    """NotRoCEError for a datagram by which processes of one host share the port."""
    if len(data) < _PROBE.size:
        return
    opcode, kind, place, magic = _PROBE.unpack_from(data)
    if opcode != _PROBE_OPCODE:
        return
    if magic == _PROBE_MAGIC:
        place = int.from_bytes(data[2:4], "big")
        raise NotRoCEError(f"rnic shares the port: {_PROBES.get(kind, 'unknown').format(place=place)}")
    if not any(data[1:]):
        raise NotRoCEError("rnic looks which IP headers the kernel makes")


class Packet(Record):
    """A RoCEv2 packet with the headers in front, captured or built."""

    ip: IPv4 | IPv6
    udp: UDP
    transport: Transport
    link: bytes = b""  # link header, as captured
    trailer: bytes = b""  # what the frame has after the IP packet (Ethernet's padding)

    @classmethod
    def parse(cls, frame: bytes, linktype: int = LinkType.ETHERNET) -> Packet:
        """Read a frame. `NotRoCEError` if it is another protocol, `WireError` if it is malformed."""
        start = link_bytes(linktype, frame)
        ip = parse_ip(frame[start:])
        data = frame[start : start + ip.length]
        udp = UDP.parse(data[ip.SIZE :])
        if udp.dport != ROCE_PORT:
            raise NotRoCEError(f"UDP port {udp.dport}, not {ROCE_PORT}")
        if udp.length != len(data) - ip.SIZE:
            raise WireError(f"UDP length {udp.length} in {len(data) - ip.SIZE} bytes of IP payload")
        _refuse_probe(data[ip.SIZE + UDP.SIZE :])
        return cls(
            ip=ip,
            udp=udp,
            transport=Transport.parse(data[ip.SIZE + UDP.SIZE :]),
            link=bytes(frame[:start]),
            trailer=bytes(frame[start + ip.length :]),
        )

    @classmethod
    def build(
        cls,
        src: str | IPv4Address | IPv6Address,
        dst: str | IPv4Address | IPv6Address,
        transport: Transport,
        *,
        sport: int = ROCE_PORT,
        ident: int = 0,
        link: bytes = b"",
    ) -> Packet:
        """A sealed packet between two addresses of one family; `ident` is the IPv4 identification."""
        a, b = ip_address(src), ip_address(dst)
        ip: IPv4 | IPv6
        if isinstance(a, IPv4Address) and isinstance(b, IPv4Address):
            ip = IPv4(a, b, ident=ident)
        elif isinstance(a, IPv6Address) and isinstance(b, IPv6Address):
            ip = IPv6(a, b)
        else:
            raise WireError(f"{src} and {dst} are of two address families")
        return cls(ip, UDP(sport), transport, link).sealed()

    def emit(self) -> bytes:
        """The frame with the fields as they are: for a parsed packet, the parsed bytes."""
        return b"".join((self.link, self.ip.emit(), self.udp.emit(), self.transport.emit(), self.trailer))

    def sealed(self) -> Packet:
        """A copy with correct padding, lengths, checksums and ICRC.

        The UDP checksum is 0 over IPv4, which means "none"; over IPv6 it is computed (RFC 8200 s.8.1).
        """
        transport = self.transport.padded()
        covered = transport.emit_covered()
        udp = replace(self.udp, length=UDP.SIZE + len(covered) + ICRC_BYTES, checksum=0)
        ip: IPv4 | IPv6
        if isinstance(self.ip, IPv4):
            ip = replace(self.ip, total_length=IPv4.SIZE + udp.length, checksum=0)
            ip = replace(ip, checksum=internet_checksum(ip.emit()))
        else:
            ip = replace(self.ip, payload_length=udp.length)
        transport = replace(transport, icrc=icrc(ip, udp, covered))
        if isinstance(ip, IPv6):
            udp = replace(udp, checksum=udp_checksum(ip, udp, transport.emit()))
        return replace(self, ip=ip, udp=udp, transport=transport)

    def expected_icrc(self) -> int:
        """The ICRC that the packet should carry; `packet.transport.icrc` is the ICRC that it carries."""
        return icrc(self.ip, self.udp, self.transport.emit_covered())

    @property
    def icrc_ok(self) -> bool:
        """Whether the packet carries the correct ICRC."""
        return self.expected_icrc() == self.transport.icrc

    @property
    def bth(self) -> BTH:
        """The base transport header."""
        return self.transport.bth

    @property
    def info(self) -> OpcodeInfo:
        """The row of the opcode."""
        return self.transport.info

    @property
    def payload(self) -> bytes:
        """The payload, without padding."""
        return self.transport.payload

    def header(self, cls: type[_E]) -> _E | None:
        """The extended header of that class, if the packet has it."""
        return self.transport.header(cls)

    def __str__(self) -> str:
        """One line in words."""
        return f"{self.ip.src} → {self.ip.dst}  {self.transport}"
