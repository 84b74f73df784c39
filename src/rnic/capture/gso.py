# SPDX-License-Identifier: Apache-2.0
"""Undo UDP_SEGMENT in a capture.

A sender can hand a batch of packets to the kernel with UDP_SEGMENT. On the loopback device the batch is
captured as one datagram of up to 64 KiB, because loopback never cuts it. The capture does not say where to
cut, but the ICRC does: the packets of a batch have one size, except the last. Segment i carries the IPv4
identification of the first plus i.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rnic.capture.pcap import Record
from rnic.records import replace
from rnic.wire import ICRC_BYTES, ROCE_PORT, UDP, IPv4, IPv6, WireError, icrc
from rnic.wire.ip import internet_checksum, parse_ip, udp_checksum
from rnic.wire.link import link_bytes

_SMALLEST = 16  # BTH and ICRC
_LARGEST = 4096 + 40 + ICRC_BYTES  # the largest path MTU under the longest headers


def split_record(record: Record) -> list[Record]:
    """The packets of a captured datagram; [record] itself if it is one packet, is not RoCEv2, or fits no
    size.
    """
    try:
        frames = _split(record.data, record.linktype)
    except WireError:
        return [record]
    if len(frames) < 2:
        return [record]
    return [replace(record, data=frame, length=len(frame)) for frame in frames]


def split_records(records: Iterable[Record]) -> Iterator[Record]:
    """Apply `split_record()` to each record."""
    for record in records:
        yield from split_record(record)


def _split(frame: bytes, linktype: int) -> list[bytes]:
    start = link_bytes(linktype, frame)
    ip = parse_ip(frame[start:])
    datagram = frame[start + ip.SIZE : start + ip.length]
    udp = UDP.parse(datagram)
    data = datagram[UDP.SIZE :]
    if udp.dport != ROCE_PORT or _is_packet(ip, udp, data):
        return [frame]
    for size in range(_SMALLEST, min(_LARGEST, len(data) - 1) + 1, 4):
        if _is_packet(*_headers(ip, udp, data[:size], 0), data[:size]):
            segments = [data[at : at + size] for at in range(0, len(data), size)]
            made = [(*_headers(ip, udp, segment, i), segment) for i, segment in enumerate(segments)]
            if all(_is_packet(*one) for one in made):
                return [frame[:start] + ip.emit() + udp.emit() + segment for ip, udp, segment in made]
    return [frame]


def _is_packet(ip: IPv4 | IPv6, udp: UDP, data: bytes) -> bool:
    """Whether the UDP payload ends in its ICRC."""
    if len(data) < _SMALLEST:
        return False
    return icrc(ip, udp, data[:-ICRC_BYTES]) == int.from_bytes(data[-ICRC_BYTES:], "little")


def _headers(ip: IPv4 | IPv6, udp: UDP, data: bytes, index: int) -> tuple[IPv4 | IPv6, UDP]:
    """The headers that the kernel would give to segment i."""
    had_checksum = udp.checksum != 0
    udp = replace(udp, length=UDP.SIZE + len(data), checksum=0)
    if isinstance(ip, IPv4):
        ident = (ip.ident + index) & 0xFFFF
        ip = replace(ip, total_length=IPv4.SIZE + udp.length, ident=ident, checksum=0)
        ip = replace(ip, checksum=internet_checksum(ip.emit()))
    else:
        ip = replace(ip, payload_length=udp.length)
    if had_checksum:
        udp = replace(udp, checksum=udp_checksum(ip, udp, data))
    return ip, udp
