# SPDX-License-Identifier: Apache-2.0
"""Captures of TCP connections that are made up, and the bytes of those that were captured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from itertools import pairwise

from rnic.capture import Record
from rnic.capture.iwarp import is_tcp
from rnic.capture.mpa import MpaPair, Unit
from rnic.capture.tcp import Direction
from rnic.wire import (
    MARKER_BYTES,
    MARKER_EVERY,
    TCP,
    TCP_PROTOCOL,
    IPv4,
    IPv6,
    LinkType,
    Marker,
    MpaFrame,
    TcpHeader,
    crc32c,
)
from rnic.wire.ip import internet_checksum, parse_ip
from rnic.wire.link import link_bytes
from rnic.wire.mpa import CRC_BYTES

CLIENT, SERVER = 40000, 7471
WINDOW = 0xFFFF


class Talk:
    """Makes the records of one connection: say() for each segment of it."""

    def __init__(self, family: int = 4, first: int = 0x10000, *, answered: bool = True) -> None:
        self.family, self.records = family, list[Record]()
        self.seq = {CLIENT: first, SERVER: first}
        self._segment(CLIENT, syn=True)
        if answered:
            self._segment(SERVER, syn=True, ack=True)

    def say(self, port: int, *pieces: bytes) -> None:
        for piece in pieces:
            self._segment(port, piece, ack=True, psh=True)

    def again(self) -> None:
        """The last segment is sent once more."""
        self.records.append(replace(self.records[-1], time_ns=self.records[-1].time_ns + 1))

    def end(self, port: int) -> None:
        self._segment(port, fin=True, ack=True)

    def reset(self, port: int) -> None:
        self._segment(port, rst=True, ack=True)

    def _segment(self, port: int, payload: bytes = b"", **flags: bool) -> None:
        other = SERVER if port == CLIENT else CLIENT
        header = TcpHeader(
            sport=port,
            dport=other,
            seq=self.seq[port] & 0xFFFFFFFF,
            ack_number=self.seq[other] & 0xFFFFFFFF,
            window=WINDOW,
            **flags,
        )
        data = self._packet(port == CLIENT, TCP(header, b"", payload))
        self.seq[port] += len(payload) + header.syn + header.fin
        self.records.append(Record(len(self.records) * 1000, data, len(data), LinkType.RAW))

    def _packet(self, forward: bool, segment: TCP) -> bytes:
        data = segment.emit()
        if self.family == 6:
            v6 = (IPv6Address("fd00::1"), IPv6Address("fd00::2"))[:: 1 if forward else -1]
            return IPv6(*v6, payload_length=len(data), protocol=TCP_PROTOCOL).emit() + data
        v4 = (IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2"))[:: 1 if forward else -1]
        ip = IPv4(*v4, total_length=20 + len(data), protocol=TCP_PROTOCOL)
        return replace(ip, checksum=internet_checksum(ip.emit())).emit() + data


def bytes_of(records: Iterable[Record]) -> list[tuple[bytes, bytes]]:
    """What the two ends of each connection have sent, the one that called first."""
    found: dict[tuple[str, int, str, int], tuple[Direction, bytearray]] = {}
    order: list[tuple[str, int, str, int]] = []
    for record in records:
        if not is_tcp(record):
            continue
        start = link_bytes(record.linktype, record.data)
        ip = parse_ip(record.data[start:], TCP_PROTOCOL)
        segment = TCP.parse(record.data[start + ip.SIZE : start + ip.length])
        key = str(ip.src), segment.header.sport, str(ip.dst), segment.header.dport
        if segment.header.syn and not segment.header.ack:
            order.append(key)
        direction, data = found.setdefault(key, (Direction(), bytearray()))
        data += direction.take(segment)
    return [(bytes(found[key][1]), bytes(found[key[2:] + key[:2]][1])) for key in order]


def read(streams: tuple[bytes, bytes], cut: Sequence[int] = ()) -> list[list[MpaFrame | Unit]]:
    """What two streams are, each fed in pieces that end at these places."""
    pair, found = MpaPair(), list[list[MpaFrame | Unit]]()
    readers = (pair.initiator, pair.responder)
    for reader, data in zip(readers, streams, strict=True):
        ends = [0, *(at for at in sorted(set(cut)) if 0 < at < len(data)), len(data)]
        items: list[MpaFrame | Unit] = []
        for begin, end in pairwise(ends):
            items += reader.feed(data[begin:end])
        found.append(items)
    for reader, items in zip(readers, found, strict=True):
        items += reader.feed(b"")  # the first one had to wait for the other's frame
        assert reader.at_rest
    return found


def marked(plain: Sequence[bytes]) -> bytes:
    """A stream of FPDUs with markers; the CRC of each is made anew, as it covers them."""
    stream = bytearray()
    for fpdu in plain:
        begin = len(stream)
        lead = MARKER_BYTES if begin % MARKER_EVERY == 0 else 0
        for byte in (*fpdu[:-CRC_BYTES], None):  # None: the CRC
            if len(stream) % MARKER_EVERY == 0:
                stream += Marker(pointer=max(len(stream) - begin - lead, 0)).emit()
            if byte is not None:
                stream.append(byte)
        stream += crc32c(memoryview(stream)[begin:]).to_bytes(CRC_BYTES, "little")
    return bytes(stream)
