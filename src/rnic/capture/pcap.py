# SPDX-License-Identifier: Apache-2.0
"""Capture files: read pcap and pcapng, write pcap (draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng).

for record in read_pcap("rping.pcap"):
    print(Packet.parse(record.data, record.linktype))
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import BinaryIO, Self

import rnic.records
from rnic.wire import LinkType, WireError

_MAGIC_US = 0xA1B2C3D4  # timestamps in microseconds
_MAGIC_NS = 0xA1B23C4D  # timestamps in nanoseconds
_NG_SECTION = 0x0A0D0D0A
_NG_BYTE_ORDER = 0x1A2B3C4D
_NG_INTERFACE = 1
_NG_SIMPLE_PACKET = 3
_NG_ENHANCED_PACKET = 6
_NG_OPTION_TSRESOL = 9

# No frame of a sane capture is longer (libpcap's MAXIMUM_SNAPLEN); a length beyond it is corruption.
MAX_RECORD = 262144
# A pcapng block may hold names, secrets or comments beside packets.
_MAX_BLOCK = 16 << 20


class PcapError(WireError):
    """The file is not a capture, or it ends in the middle of a record."""


class Record(rnic.records.Record):
    """One captured frame."""

    time_ns: int  # since the epoch
    """When it was captured: nanoseconds since the epoch."""
    data: bytes  # as captured, maybe cut
    """Its bytes, as captured, maybe cut."""
    length: int  # of the frame when it was captured
    """Bytes of the frame when it was captured."""
    linktype: int = LinkType.ETHERNET
    """What the bytes begin with."""

    @property
    def truncated(self) -> bool:
        """Whether the capture has fewer bytes than the frame had."""
        return len(self.data) < self.length


def read_pcap(source: str | os.PathLike[str] | BinaryIO) -> Iterator[Record]:
    """The records of a pcap or pcapng file, one by one; a file that was opened here is closed at the end.

    Raises `PcapError` if the file is not a capture, or at the record where it is broken.
    """
    if isinstance(source, (str, os.PathLike)):
        with Path(source).open("rb") as file:
            yield from _read(file)
    else:
        yield from _read(source)


def _read(file: BinaryIO) -> Iterator[Record]:
    magic = _exactly(file, 4, "magic number")
    if int.from_bytes(magic, "big") == _NG_SECTION:
        yield from _read_ng(file)
        return
    for order in ("<", ">"):
        (value,) = Struct(order + "I").unpack(magic)
        if value in (_MAGIC_US, _MAGIC_NS):
            yield from _read_classic(file, order, 1000 if value == _MAGIC_US else 1)
            return
    raise PcapError(f"not a capture file: it starts with {magic.hex()}")


def _read_classic(file: BinaryIO, order: str, unit_ns: int) -> Iterator[Record]:
    (*_, network) = Struct(order + "HHiIII").unpack(_exactly(file, 20, "file header"))
    linktype = network & 0xFFFFFFF  # the upper bits tell of a frame check sequence
    header = Struct(order + "IIII")
    while first := file.read(1):
        seconds, fraction, captured, length = header.unpack(first + _exactly(file, 15, "record header"))
        if captured > MAX_RECORD:
            raise PcapError(f"a record of {captured} bytes; the most is {MAX_RECORD}")
        data = _exactly(file, captured, "record")
        yield Record(seconds * 1_000_000_000 + fraction * unit_ns, data, length, linktype)


def _read_ng(file: BinaryIO) -> Iterator[Record]:
    """The blocks of a pcapng file, after the first block's type."""
    order = "<"
    interfaces: list[tuple[int, int]] = []  # (link type, timestamp units per second)
    head = _NG_SECTION.to_bytes(4, "big")
    while head:
        is_section = int.from_bytes(head, "big") == _NG_SECTION
        size_bytes = _exactly(file, 4, "block length")
        start = b""
        if is_section:
            start = _exactly(file, 4, "byte order")
            order = "<" if int.from_bytes(start, "little") == _NG_BYTE_ORDER else ">"
            interfaces = []
        (kind,) = Struct(order + "I").unpack(head)
        (size,) = Struct(order + "I").unpack(size_bytes)
        if size % 4 or not 12 + len(start) <= size <= _MAX_BLOCK:
            raise PcapError(f"a block of {size} bytes")
        body = start + _exactly(file, size - 12 - len(start), "block")
        _exactly(file, 4, "block trailer")
        if not is_section:
            record = _ng_block(order, kind, body, interfaces)
            if record is not None:
                yield record
        head = file.read(4)
        if head and len(head) < 4:
            raise PcapError("the file ends in a block type")


def _ng_block(order: str, kind: int, body: bytes, interfaces: list[tuple[int, int]]) -> Record | None:
    """The record of a packet block. An interface block is remembered; other blocks are skipped."""
    if kind == _NG_INTERFACE:
        (linktype,) = _unpack(order + "H", body, 0)
        interfaces.append((linktype, _ng_resolution(order, body[8:])))
        return None
    if kind == _NG_ENHANCED_PACKET:
        index, high, low, captured, length = _unpack(order + "IIIII", body, 0)
        at = 20
    elif kind == _NG_SIMPLE_PACKET:
        (length,) = _unpack(order + "I", body, 0)
        index, high, low, captured, at = 0, 0, 0, min(length, len(body) - 4), 4
    else:
        return None
    if index >= len(interfaces):
        raise PcapError(f"a packet of interface {index}, of {len(interfaces)}")
    if captured > len(body) - at:
        raise PcapError(f"a packet of {captured} bytes in a block that has room for {len(body) - at}")
    linktype, per_second = interfaces[index]
    time_ns = (high << 32 | low) * 1_000_000_000 // per_second
    return Record(time_ns, body[at : at + captured], length, linktype)


def _ng_resolution(order: str, options: bytes) -> int:
    """Timestamp units per second, from an interface's options (if_tsresol); microseconds by default."""
    at = 0
    while at + 4 <= len(options):
        code, size = _unpack(order + "HH", options, at)
        if code == 0:
            break
        if code == _NG_OPTION_TSRESOL and size == 1 and at + 4 < len(options):
            value = options[at + 4]
            return int(2 ** (value & 0x7F)) if value & 0x80 else int(10**value)
        at += 4 + size + -size % 4
    return 1_000_000


def _unpack(layout: str, data: bytes, at: int) -> tuple[int, ...]:
    struct = Struct(layout)
    if len(data) < at + struct.size:
        raise PcapError("a block is cut short")
    return struct.unpack_from(data, at)


def _exactly(file: BinaryIO, size: int, what: str) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise PcapError(f"the file ends in a {what}")
    return data


class PcapWriter:
    """Writes a pcap file with nanosecond timestamps; a context manager.

    `PcapWriter(path)` creates the file; given an open binary file, it writes there and leaves it open.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | BinaryIO,
        linktype: int = LinkType.ETHERNET,
        snaplen: int = MAX_RECORD,
    ) -> None:
        self._owned = isinstance(target, (str, os.PathLike))
        self._file: BinaryIO = (
            Path(target).open("wb")  # noqa: SIM115 - close() does
            if isinstance(target, (str, os.PathLike))
            else target
        )
        self._snaplen = snaplen
        self._file.write(Struct("<IHHiIII").pack(_MAGIC_NS, 2, 4, 0, 0, snaplen, linktype))

    def write(self, time_ns: int, data: bytes, length: int | None = None) -> None:
        """Append a frame; `length` is its original length, by default the length of `data`."""
        full = len(data) if length is None else length
        data = data[: self._snaplen]
        seconds, fraction = divmod(time_ns, 1_000_000_000)
        self._file.write(Struct("<IIII").pack(seconds, fraction, len(data), full) + data)

    def flush(self) -> None:
        """Pass the written bytes to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flush, and close the file if it was opened here. May be called again."""
        if self._file.closed:
            return
        if self._owned:
            self._file.close()
        else:
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def parse_pcap(data: bytes) -> list[Record]:
    """All records of a capture that is in memory."""
    return list(read_pcap(io.BytesIO(data)))
