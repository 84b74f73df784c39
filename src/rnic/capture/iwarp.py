# SPDX-License-Identifier: Apache-2.0
"""iWARP in a capture: connections of TCP that begin with MPA's start-up, and what their segments complete.

streams = Streams()
for record in read_pcap("rping.pcap"):
    for seen in streams.take(record): print(seen)
"""

from __future__ import annotations

from rnic.capture.mpa import MpaPair, MpaReader, Unit
from rnic.capture.pcap import Record
from rnic.capture.tcp import Direction
from rnic.records import Record as _Record
from rnic.wire import TCP, TCP_PROTOCOL, MpaFrame, WireError
from rnic.wire.ip import IPv4, IPv6, parse_ip
from rnic.wire.link import link_bytes

_End = tuple[IPv4 | IPv6, int]


class Seen(_Record):
    """What a captured TCP segment has shown."""

    source: str
    """Address and port."""
    target: str
    segment: TCP
    items: tuple[MpaFrame | Unit, ...] = ()
    """What is complete with it."""
    error: str = ""
    """Why the bytes are no MPA, or no more."""
    is_iwarp: bool = False
    """Its connection began with MPA's start-up."""

    def lines(self) -> list[str]:
        """Its items in words, or the segment itself."""
        ends = f"{self.source} → {self.target}"
        said = [_describe(item) for item in self.items] or [_describe_segment(self.segment)]
        if self.error:
            said.append(f"[{self.error}]")
        return [f"{ends}  {line}" for line in said]


class _Flow:
    """A connection: who has begun it is known by its first bytes."""

    def __init__(self) -> None:
        self.pair = MpaPair()
        self.directions: dict[str, Direction] = {}
        self.readers: dict[str, MpaReader] = {}
        self.error = ""

    def take(self, source: str, target: str, segment: TCP) -> tuple[tuple[MpaFrame | Unit, ...], str]:
        direction = self.directions.setdefault(source, Direction())
        data = direction.take(segment)
        if self.error or not data:
            return (), ""
        found: list[MpaFrame | Unit] = []
        try:
            self._begin(source, target)
            if direction.broken:
                raise WireError("bytes of this connection were not captured")
            found += self.readers[source].feed(data)
            found += self.readers[target].feed(b"")  # how it is framed may be known now
        except WireError as error:
            self.error = str(error)
        return tuple(found), self.error

    def _begin(self, source: str, target: str) -> None:
        if not self.readers:
            self.readers = {source: self.pair.initiator, target: self.pair.responder}


class Streams:
    """The connections of a capture."""

    def __init__(self) -> None:
        self._flows: dict[frozenset[str], _Flow] = {}

    def take(self, record: Record) -> Seen:
        """What a record shows. NotRoCEError if it is no TCP, WireError if it is malformed."""
        start = link_bytes(record.linktype, record.data)
        ip = parse_ip(record.data[start:], TCP_PROTOCOL)
        if record.truncated:
            raise WireError(f"{len(record.data)} of {record.length} bytes captured")
        segment = TCP.parse(record.data[start + ip.SIZE : start + ip.length])
        source, target = _place(ip.src, segment.header.sport), _place(ip.dst, segment.header.dport)
        key = frozenset((source, target))
        if segment.header.syn and not segment.header.ack:
            self._flows.pop(key, None)  # the ports are used again
        flow = self._flows.setdefault(key, _Flow())
        items, error = flow.take(source, target, segment)
        is_iwarp = any(reader.frame is not None for reader in flow.readers.values())
        return Seen(source, target, segment, items, error if is_iwarp else "", is_iwarp)


def is_tcp(record: Record) -> bool:
    """Whether a record is a packet of TCP."""
    try:
        parse_ip(record.data[link_bytes(record.linktype, record.data) :], TCP_PROTOCOL)
    except WireError:
        return False
    return True


def _place(ip: object, port: int) -> str:
    text = str(ip)
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"


def _describe(item: MpaFrame | Unit) -> str:
    if isinstance(item, MpaFrame):
        return str(item)
    try:
        line = str(item.segment())
    except WireError as error:
        line = f"malformed: {error}"
    if item.markers:
        line += f"  {len(item.markers)} markers" + ("" if item.markers_ok else " [wrong]")
    if not item.crc_ok:
        line += f"  [CRC {item.fpdu.crc:#010x}, should be {item.expected_crc():#010x}]"
    return line


def _describe_segment(segment: TCP) -> str:
    header = segment.header
    flags = [name for name in ("syn", "fin", "rst") if getattr(header, name)]
    words = ["TCP", ", ".join(flags).upper() or "ACK"]
    if segment.payload:
        words.append(f"{len(segment.payload)} B")
    return "  ".join(words)
