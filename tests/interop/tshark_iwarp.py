# SPDX-License-Identifier: Apache-2.0
"""tshark as a second reader of iWARP: what it sees in a capture must equal what rnic.capture sees.

    check_iwarp(read_pcap("run.pcap")).assert_clean()

The capture has to have connections from their beginning, with whole packets: `tcpdump -s 0 -w FILE tcp`.
tshark takes TCP for MPA from the request frame on. Frames that it calls retransmissions it does not read.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tshark_check import EXPERT, complaints, run_tshark

from rnic.capture import PcapWriter, Record
from rnic.capture.iwarp import Streams, is_tcp
from rnic.capture.mpa import Unit
from rnic.wire import (
    AtomicCode,
    AtomicRequest,
    AtomicResponse,
    MpaFrame,
    RdmapOpcode,
    ReadRequest,
    Segment,
    Tagged,
    Terminate,
    TermLayer,
    Untagged,
)
from rnic.wire.rdmap import INVALIDATES

Value = int | str | None

# The CRC flag is one of reserved bits to tshark 4.0, and revision 2 is not RFC 5044's.
NEWER = ("Res field is NOT set to zero", "Rev field is NOT set to one")
# What TCP does where an end is slow.
SLOW = ("D-SACK Sequence", "TCP window specified by the receiver is now completely full", "TCP Zero Window")
RESET = "Connection reset (RST)"


def _frame(read: Callable[[MpaFrame], Value]) -> Callable[[MpaFrame | Unit], Value]:
    return lambda item: read(item) if isinstance(item, MpaFrame) else None


def _unit(read: Callable[[Unit], Value]) -> Callable[[MpaFrame | Unit], Value]:
    return lambda item: read(item) if isinstance(item, Unit) else None


def _header(kind: type[Tagged] | type[Untagged] | None, name: str) -> Callable[[MpaFrame | Unit], Value]:
    def read(unit: Unit) -> Value:
        header = unit.segment().header
        return int(getattr(header, name)) if kind is None or isinstance(header, kind) else None

    return _unit(read)


def _message(kind: type, read: Callable[[Segment], Value]) -> Callable[[MpaFrame | Unit], Value]:
    def of(unit: Unit) -> Value:
        segment = unit.segment()
        return read(segment) if isinstance(segment.message, kind) else None

    return _unit(of)


def _field(kind: type, name: str) -> Callable[[MpaFrame | Unit], Value]:
    return _message(kind, lambda segment: int(getattr(segment.message, name)))


def _operand(name: str, code: AtomicCode) -> Callable[[MpaFrame | Unit], Value]:
    """tshark has a name for the first operand of each operation."""

    def read(segment: Segment) -> Value:
        assert isinstance(segment.message, AtomicRequest)
        return int(getattr(segment.message, name)) if segment.message.code == code else None

    return _message(AtomicRequest, read)


def _term(name: str, layer: TermLayer, *etypes: int) -> Callable[[MpaFrame | Unit], Value]:
    """tshark has a name for the types of each layer, and for the codes of some types."""

    def read(segment: Segment) -> Value:
        found = segment.message
        assert isinstance(found, Terminate)
        is_it = found.layer == layer and (not etypes or found.etype in etypes)
        return int(getattr(found, name)) if is_it else None

    return _message(Terminate, read)


def _invalidated(unit: Unit) -> Value:
    header = unit.segment().header
    return header.invalidate if isinstance(header, Untagged) and header.opcode in INVALIDATES else None


def _private(frame: MpaFrame) -> Value:
    data = (frame.control.emit() if frame.control else b"") + frame.private_data
    return data.hex() if data else None


def _flags(frame: MpaFrame) -> int:
    return frame.emit()[16] & 0x1F


# tshark's name of each field, and the same from our codecs (None: the item has no such field).
FIELDS: dict[str, Callable[[MpaFrame | Unit], Value]] = {
    "iwarp_mpa.marker_flag": _frame(lambda f: int(f.markers)),
    "iwarp_mpa.crc_flag": _frame(lambda f: int(f.crc)),
    "iwarp_mpa.rej_flag": _frame(lambda f: int(f.rejected)),
    "iwarp_mpa.res": _frame(_flags),
    "iwarp_mpa.rev": _frame(lambda f: f.revision),
    "iwarp_mpa.pdlength": _frame(lambda f: len(f.emit()) - 20),
    "iwarp_mpa.privatedata": _frame(_private),
    "iwarp_mpa.ulpdulength": _unit(lambda u: len(u.fpdu.ulpdu)),
    "iwarp_mpa.pad": _unit(lambda u: u.fpdu.pad.hex() or None),
    "iwarp_ddp.tagged_flag": _header(None, "tagged"),
    "iwarp_ddp.last_flag": _header(None, "last"),
    "iwarp_ddp.dv": _header(None, "ddp_version"),
    "iwarp_ddp.stag": _header(Tagged, "stag"),
    "iwarp_ddp.tagged_offset": _header(Tagged, "offset"),
    "iwarp_ddp.qn": _header(Untagged, "queue"),
    "iwarp_ddp.msn": _header(Untagged, "msn"),
    "iwarp_ddp.mo": _header(Untagged, "offset"),
    "iwarp_rdma.version": _header(None, "rdmap_version"),
    "iwarp_rdma.opcode": _header(None, "opcode"),
    "iwarp_rdma.inval_stag": _unit(_invalidated),
    "iwarp_rdma.sinkstag": _field(ReadRequest, "sink_stag"),
    "iwarp_rdma.sinkto": _field(ReadRequest, "sink_offset"),
    "iwarp_rdma.rdmardsz": _field(ReadRequest, "size"),
    "iwarp_rdma.srcstag": _field(ReadRequest, "source_stag"),
    "iwarp_rdma.srcto": _field(ReadRequest, "source_offset"),
    "iwarp_rdma.atomic.opcode": _field(AtomicRequest, "code"),
    "iwarp_rdma.atomic.request_identifier": _field(AtomicRequest, "request_id"),
    "iwarp_rdma.atomic.remote_stag": _field(AtomicRequest, "stag"),
    "iwarp_rdma.atomic.remote_tagged_offset": _field(AtomicRequest, "offset"),
    "iwarp_rdma.atomic.add_data": _operand("add_swap", AtomicCode.FETCH_ADD),
    "iwarp_rdma.atomic.add_mask": _operand("add_swap_mask", AtomicCode.FETCH_ADD),
    "iwarp_rdma.atomic.swap_data": _operand("add_swap", AtomicCode.CMP_SWAP),
    "iwarp_rdma.atomic.swap_mask": _operand("add_swap_mask", AtomicCode.CMP_SWAP),
    "iwarp_rdma.atomic.compare_data": _field(AtomicRequest, "compare"),
    "iwarp_rdma.atomic.compare_mask": _field(AtomicRequest, "compare_mask"),
    "iwarp_rdma.atomic.original_request_identifier": _field(AtomicResponse, "request_id"),
    "iwarp_rdma.atomic.original_remote_data_value": _field(AtomicResponse, "original"),
    "iwarp_rdma.term_layer": _field(Terminate, "layer"),
    "iwarp_rdma.term_etype_rdma": _term("etype", TermLayer.RDMAP),
    "iwarp_rdma.term_etype_ddp": _term("etype", TermLayer.DDP),
    "iwarp_rdma.term_etype_llp": _term("etype", TermLayer.LLP),
    "iwarp_rdma.term_errcode_rdma": _term("code", TermLayer.RDMAP, 1, 2),
    "iwarp_rdma.term_errcode_ddp_tagged": _term("code", TermLayer.DDP, 1),
    "iwarp_rdma.term_errcode_ddp_untagged": _term("code", TermLayer.DDP, 2),
    "iwarp_rdma.term_errcode_llp": _term("code", TermLayer.LLP, 0),
    "iwarp_rdma.term_hdrct_m": _field(Terminate, "has_length"),
    "iwarp_rdma.hdrct_d": _field(Terminate, "has_ddp"),
    "iwarp_rdma.hdrct_r": _field(Terminate, "has_rdmap"),
}
_HEX = {"iwarp_mpa.privatedata", "iwarp_mpa.pad"}  # shown as bytes
_REPEATED = "tcp.analysis.retransmission"
_CRC = "iwarp_mpa.crc_check"
_STREAM, _FIN = "tcp.stream", "tcp.flags.fin"
_SOURCES = ("ip.src", "ipv6.src")


@dataclass
class Report:
    """What was compared, and what was wrong with it."""

    frames: int = 0
    units: int = 0
    opcodes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def assert_clean(self, at_least: int = 1) -> Report:
        """AssertionError with the first problems, or when there were fewer FPDUs than asked for."""
        if self.problems:
            shown = "\n  ".join(self.problems[:20])
            raise AssertionError(f"{len(self.problems)} problems in {self.units} FPDUs:\n  {shown}")
        if self.units < at_least:
            raise AssertionError(f"{self.units} FPDUs, expected {at_least}")
        return self


class _Ends:
    """Who may reset a stream: a port where nobody listens; an end that has not read all, when the other has
    ended it.
    """

    def __init__(self, careless: Collection[str]) -> None:
        self._careless = careless
        self._spoke: set[tuple[str, str]] = set()
        self._ended: set[tuple[str, str]] = set()

    def allowed(self, row: dict[str, list[str]]) -> tuple[str, ...]:
        stream, source = row[_STREAM][0], "".join(row[name][0] for name in _SOURCES if row[name])
        refuses = (stream, source) not in self._spoke
        self._spoke.add((stream, source))
        if _value(_FIN, row[_FIN][0]):
            self._ended.add((stream, source))
        others = {end for ended, end in self._ended if ended == stream} - {source}
        return (RESET,) if refuses or (source in self._careless and others) else ()


def check_iwarp(
    records: Iterable[Record], allow: Sequence[str] = (), careless: Collection[str] = ()
) -> Report:
    """Compare the records of a capture as tshark and as rnic.capture read them.

    A problem is: a field that differs, a wrong CRC, bytes that rnic.capture finds malformed, an expert
    message of tshark of severity warning or above, unless one of `allow` is in it. A connection may be
    refused by a reset. An end whose address is in `careless` may reset a stream that the other has ended.
    """
    records = list(records)
    report, streams, ends = Report(frames=len(records)), Streams(), _Ends(careless)
    with tempfile.TemporaryDirectory(prefix="rnic-tshark-") as directory:
        whole = Path(directory) / "whole.pcap"
        with PcapWriter(whole, records[0].linktype) as writer:
            for record in records:
                writer.write(record.time_ns, record.data, record.length)
        rows = list(run_tshark(whole, [*FIELDS, _CRC, _REPEATED, _STREAM, _FIN, *_SOURCES, *EXPERT]))
    if len(rows) != len(records):
        report.problems.append(f"tshark read {len(rows)} frames of {len(records)}")
    for number, (record, row) in enumerate(zip(records, rows, strict=False), 1):
        if is_tcp(record):
            found = _compare(streams, record, row, (*allow, *ends.allowed(row)), report)
            report.problems += (f"frame {number}: {what}" for what in found)
    return report


def _compare(
    streams: Streams, record: Record, row: dict[str, list[str]], allow: Sequence[str], report: Report
) -> Iterator[str]:
    seen = streams.take(record)
    if seen.error:
        yield f"malformed: {seen.error}"
    yield from complaints(row, (*allow, *NEWER, *SLOW))
    for item in seen.items:
        if isinstance(item, Unit):
            report.units += 1
            opcode = item.segment().header.opcode
            report.opcodes[RdmapOpcode(opcode).name if opcode < len(RdmapOpcode) else str(opcode)] += 1
            if not item.crc_ok or not item.markers_ok:
                yield f"CRC or markers are wrong: {item.segment()}"
    if row[_REPEATED]:
        return
    for name, ours in FIELDS.items():
        expected = [value for item in seen.items if (value := ours(item)) is not None]
        theirs = [_value(name, text) for text in row[name]]
        if theirs != expected:
            yield f"{name}: tshark has {theirs}, we have {expected}: {seen.lines()[0]}"


def _value(name: str, text: str) -> Value:
    if name in _HEX:
        return text.replace(":", "")
    if text in ("True", "False"):  # how newer versions show flags
        return int(text == "True")
    return int(text, 0)
