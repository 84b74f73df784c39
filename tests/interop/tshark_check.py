# SPDX-License-Identifier: Apache-2.0
"""tshark as a second reader: what it sees in a capture must equal what rnic.wire sees, without a complaint.

    check_capture("run.pcap").assert_clean()

The capture may come from tcpdump or tshark, from any one device, loopback included (where UDP_SEGMENT batches
are cut into their packets first), but with whole packets: `tcpdump -i DEV -s 0 -w FILE udp port 4791`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rnic.capture import PcapWriter, Record, read_pcap, split_records
from rnic.wire import (
    AETH,
    DETH,
    GSI_QPN,
    IETH,
    MAD,
    RETH,
    AethKind,
    AtomicAckETH,
    AtomicETH,
    CmAttr,
    CmMessage,
    Drep,
    Dreq,
    Ext,
    ImmDt,
    Mask,
    MgmtClass,
    NotRoCEError,
    Packet,
    Rej,
    Rep,
    Req,
    Rtu,
    WireError,
    parse_cm,
)
from rnic.wire.cm_names import name_of

_H = TypeVar("_H", bound=Ext)
_C = TypeVar("_C", bound=CmMessage)

WARN = 0x600000  # severities of _ws.expert: chat 0x200000, note 0x400000, warn 0x600000, error 0x800000

# The kernel's rxe sends UDP checksum 0 over IPv6 too: RFC 8200 does not allow that, tshark calls it an error.
RXE_IPV6_CHECKSUM = "Illegal checksum value (0)"

# A payload may look like any of these to tshark's heuristics, which then complain about what it never was.
_GUESSERS = (
    "fcoib",
    "infiniband.eoib",
    "infiniband_sdp",
    "iser",
    "lnet",
    "nvme-rdma",
    "rpcordma",
    "smb_direct",
    "smc",
)
_ETHERTYPE_GUESSER = "eth_over_ib"

_ICRC = "infiniband.invariant.crc"
EXPERT = ("_ws.expert.severity", "_ws.expert.message")
_BETWEEN = "\x1f"  # between the values of one field; commas are in messages


def _bits(value: int) -> int:
    """The ICRC is stored little-endian; tshark reads it the other way round."""
    return int.from_bytes(value.to_bytes(4, "little"), "big")


def _if_kind(packet: Packet, kind: AethKind) -> int | None:
    aeth = packet.header(AETH)
    return aeth.value if aeth is not None and aeth.kind is kind else None


def _of(cls: type[_H], read: Callable[[_H], int]) -> Callable[[Packet], int | None]:
    """Reads an extended header's field; None when the packet has no such header."""

    def from_packet(packet: Packet) -> int | None:
        header = packet.header(cls)
        return None if header is None else read(header)

    return from_packet


def _remote(read: Callable[[RETH | AtomicETH], int]) -> Callable[[Packet], int | None]:
    """The remote address: tshark shows RETH's and AtomicETH's under one name."""

    def from_packet(packet: Packet) -> int | None:
        header = packet.header(RETH) or packet.header(AtomicETH)
        return None if header is None else read(header)

    return from_packet


def _mad(packet: Packet) -> MAD | None:
    """The management datagram in a packet to queue pair 1."""
    if packet.bth.dqpn != GSI_QPN or packet.header(DETH) is None:
        return None
    return MAD.parse(packet.payload)


def _of_mad(read: Callable[[MAD], int]) -> Callable[[Packet], int | None]:
    """Reads a field of the common header."""

    def from_packet(packet: Packet) -> int | None:
        mad = _mad(packet)
        return None if mad is None else read(mad)

    return from_packet


def _of_cm(cls: type[_C], read: Callable[[_C], int]) -> Callable[[Packet], int | None]:
    """Reads a field of one of the communication manager's messages."""

    def from_packet(packet: Packet) -> int | None:
        mad = _mad(packet)
        message = None if mad is None or mad.mgmt_class != MgmtClass.CM else parse_cm(mad)
        return read(message) if isinstance(message, cls) else None

    return from_packet


# tshark's name of each field, and the same from our codec (None: the packet has no such field).
FIELDS: dict[str, Callable[[Packet], int | None]] = {
    "udp.srcport": lambda p: p.udp.sport,
    "udp.dstport": lambda p: p.udp.dport,
    "udp.length": lambda p: p.udp.length,
    "infiniband.bth.opcode": lambda p: p.bth.opcode,
    "infiniband.bth.se": lambda p: int(p.bth.se),
    "infiniband.bth.m": lambda p: int(p.bth.migreq),
    "infiniband.bth.padcnt": lambda p: p.bth.pad,
    "infiniband.bth.tver": lambda p: p.bth.tver,
    "infiniband.bth.p_key": lambda p: p.bth.pkey,
    "infiniband.bth.destqp": lambda p: p.bth.dqpn,
    "infiniband.bth.a": lambda p: int(p.bth.ackreq),
    "infiniband.bth.reserved7": lambda p: p.bth.resv7,
    "infiniband.bth.psn": lambda p: p.bth.psn,
    "infiniband.deth.q_key": _of(DETH, lambda h: h.qkey),
    "infiniband.deth.srcqp": _of(DETH, lambda h: h.sqpn),
    "infiniband.reth.va": _remote(lambda h: h.va),
    "infiniband.reth.r_key": _remote(lambda h: h.rkey),
    "infiniband.reth.dmalen": _of(RETH, lambda h: h.length),
    "infiniband.atomiceth.swapdt": _of(AtomicETH, lambda h: h.swap_add),
    "infiniband.atomiceth.cmpdt": _of(AtomicETH, lambda h: h.compare),
    "infiniband.aeth.syndrome": _of(AETH, lambda h: h.syndrome),
    "infiniband.aeth.syndrome.opcode": _of(AETH, lambda h: h.kind),
    "infiniband.aeth.syndrome.credit_count": lambda p: _if_kind(p, AethKind.ACK),
    "infiniband.aeth.syndrome.timer": lambda p: _if_kind(p, AethKind.RNR_NAK),
    "infiniband.aeth.syndrome.error_code": lambda p: _if_kind(p, AethKind.NAK),
    "infiniband.aeth.msn": _of(AETH, lambda h: h.msn),
    "infiniband.atomicacketh.origremdt": _of(AtomicAckETH, lambda h: h.orig),
    "infiniband.immdt": _of(ImmDt, lambda h: h.data),
    "infiniband.ieth": _of(IETH, lambda h: h.rkey),
    "infiniband.mad.mgmtclass": _of_mad(lambda m: m.mgmt_class),
    "infiniband.mad.classversion": _of_mad(lambda m: m.class_version),
    "infiniband.mad.method": _of_mad(lambda m: m.method),
    "infiniband.mad.status": _of_mad(lambda m: m.status),
    "infiniband.mad.transactionid": _of_mad(lambda m: m.tid),
    "infiniband.mad.attributeid": _of_mad(lambda m: m.attr_id),
    "infiniband.mad.attributemodifier": _of_mad(lambda m: m.attr_mod),
    "infiniband.cm.req": _of_cm(Req, lambda m: m.local_comm_id),
    "infiniband.cm.req.serviceid": _of_cm(Req, lambda m: m.service_id),
    "infiniband.cm.req.localqpn": _of_cm(Req, lambda m: m.local_qpn),
    "infiniband.cm.req.startpsn": _of_cm(Req, lambda m: m.starting_psn),
    "infiniband.cm.req.responderres": _of_cm(Req, lambda m: m.responder_resources),
    "infiniband.cm.req.initdepth": _of_cm(Req, lambda m: m.initiator_depth),
    "infiniband.cm.req.pppmtu": _of_cm(Req, lambda m: m.path_mtu),
    "infiniband.cm.req.prim_tfcclass": _of_cm(Req, lambda m: m.primary.traffic_class),
    "infiniband.cm.req.prim_localacktout": _of_cm(Req, lambda m: m.primary.ack_timeout),
    "infiniband.cm.rep": _of_cm(Rep, lambda m: m.local_comm_id),
    "infiniband.cm.rep.remotecommid": _of_cm(Rep, lambda m: m.remote_comm_id),
    "infiniband.cm.rep.localqpn": _of_cm(Rep, lambda m: m.local_qpn),
    "infiniband.cm.rep.startpsn": _of_cm(Rep, lambda m: m.starting_psn),
    "infiniband.cm.rtu.localcommid": _of_cm(Rtu, lambda m: m.local_comm_id),
    "infiniband.cm.rtu.remotecommid": _of_cm(Rtu, lambda m: m.remote_comm_id),
    "infiniband.cm.rej.localcommid": _of_cm(Rej, lambda m: m.local_comm_id),
    "infiniband.cm.rej.remotecommid": _of_cm(Rej, lambda m: m.remote_comm_id),
    "infiniband.cm.rej.reason": _of_cm(Rej, lambda m: m.reason),
    "infiniband.cm.dreq.localcommid": _of_cm(Dreq, lambda m: m.local_comm_id),
    "infiniband.cm.dreq.remotecommid": _of_cm(Dreq, lambda m: m.remote_comm_id),
    "infiniband.cm.drsp.localcommid": _of_cm(Drep, lambda m: m.local_comm_id),
    "infiniband.cm.drsp.remotecommid": _of_cm(Drep, lambda m: m.remote_comm_id),
    _ICRC: lambda p: _bits(p.transport.icrc),
}
_HEX_BYTES = {"infiniband.immdt", "infiniband.ieth"}  # shown as bytes, without 0x


@dataclass
class Report:
    """What was compared, and what was wrong with it."""

    frames: int = 0
    packets: int = 0  # RoCEv2 packets among them
    fields: int = 0  # compared, all packets together
    opcodes: set[str] = field(default_factory=set)
    mads: Counter[str] = field(default_factory=Counter)
    """The communication manager's messages among them, by kind."""
    problems: list[str] = field(default_factory=list)

    def count(self, packet: Packet) -> None:
        """One more RoCEv2 packet."""
        self.packets += 1
        self.opcodes.add(packet.info.name)
        if mad := _mad(packet):
            self.mads[name_of(CmAttr, mad.attr_id)] += 1

    def assert_clean(self, at_least: int = 1) -> Report:
        """AssertionError with the first problems, or when there were fewer RoCEv2 packets than asked for."""
        if self.problems:
            shown = "\n  ".join(self.problems[:20])
            raise AssertionError(f"{len(self.problems)} problems in {self.packets} packets:\n  {shown}")
        if self.packets < at_least:
            raise AssertionError(
                f"{self.packets} RoCEv2 packets in {self.frames} frames, expected {at_least}"
            )
        return self

    def __str__(self) -> str:
        return (
            f"{self.packets} packets, {self.fields} fields, {len(self.opcodes)} opcodes, "
            f"{self.mads.total()} MADs, {len(self.problems)} problems"
        )


def missing() -> str | None:
    """What this needs and the machine lacks, in one line; None when all is there."""
    if shutil.which("tshark") is None:
        return "no tshark: apt-get install tshark"
    return None


def check_capture(path: str | Path, allow: Sequence[str] = ()) -> Report:
    """Compare a pcap or pcapng file as tshark and as rnic.wire read it.

    A problem is: a packet that one of the two takes for RoCEv2 and the other does not, or that rnic.wire
    finds malformed or cut short; a field that differs; an ICRC that is not what the packet should have;
    an expert message of tshark of severity warning or above, unless one of `allow` is in it.
    """
    return check_records(list(read_pcap(path)), allow)


def check_records(records: Iterable[Record], allow: Sequence[str] = ()) -> Report:
    """As `check_capture()`, from records in memory."""
    records = list(split_records(records))
    report = Report(frames=len(records))
    if not records:
        return report
    linktypes = {record.linktype for record in records}
    if len(linktypes) > 1:
        raise ValueError(
            f"one capture of several link types ({sorted(linktypes)}): capture one device at a time"
        )
    with tempfile.TemporaryDirectory(prefix="rnic-tshark-") as directory:
        whole = Path(directory) / "split.pcap"
        with PcapWriter(whole, linktypes.pop()) as writer:
            for record in records:
                writer.write(record.time_ns, record.data, record.length)
        rows = list(run_tshark(whole, [*FIELDS, *EXPERT]))
    if len(rows) != len(records):
        report.problems.append(f"tshark read {len(rows)} frames of {len(records)}")
    for number, (record, row) in enumerate(zip(records, rows, strict=False), 1):
        report.problems += (f"frame {number}: {what}" for what in _compare(record, row, allow, report))
    return report


def run_tshark(path: Path, names: Sequence[str]) -> Iterator[dict[str, list[str]]]:
    """A row per frame: the values of each field that is asked for."""
    command = [
        "tshark",
        "-n",
        "-r",
        str(path),
        "-T",
        "fields",
        "-E",
        "occurrence=a",
        "-E",
        f"aggregator={_BETWEEN}",
    ]
    command += ["-o", "tcp.try_heuristic_first:TRUE"]  # or a stream belongs to whom its port is known for
    command += ["--disable-heuristic", _ETHERTYPE_GUESSER]
    for name in _GUESSERS:
        command += ["--disable-protocol", name]
    for name in names:
        command += ["-e", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"tshark failed ({done.returncode}): {done.stderr.strip()}")
    for line in done.stdout.splitlines():
        values = (text.split(_BETWEEN) if text else [] for text in line.split("\t"))
        yield dict(zip(names, values, strict=True))


def _compare(
    record: Record, row: dict[str, list[str]], allow: Sequence[str], report: Report
) -> Iterator[str]:
    is_roce = bool(row["infiniband.bth.opcode"])
    try:
        packet = Packet.parse(record.data, record.linktype)
    except NotRoCEError as error:
        if is_roce:
            yield f"tshark sees RoCEv2, we do not: {error}"
        return
    except WireError as error:
        yield f"malformed: {error}" + (" (the capture is cut: tcpdump -s 0)" if record.truncated else "")
        return
    report.count(packet)
    yield from complaints(row, allow)
    if not is_roce:
        yield f"we see RoCEv2, tshark does not: {packet}"
        return
    for name, ours in FIELDS.items():
        if name == _ICRC and Mask.CNP in packet.info.mask:
            continue  # tshark 4.0 does not show a CNP's
        expected = ours(packet)
        theirs = {_number(name, text) for text in row[name]}
        report.fields += expected is not None
        if theirs != (set() if expected is None else {expected}):
            yield f"{name}: tshark has {_shown(theirs)}, we have {_shown({expected})}: {packet}"
    if not packet.icrc_ok:
        yield f"ICRC {packet.transport.icrc:#010x}, should be {packet.expected_icrc():#010x}: {packet}"
    if Mask.PAYLOAD not in packet.info.mask and packet.payload:
        yield f"{len(packet.payload)} bytes of payload where none belongs: {packet}"


def complaints(row: dict[str, list[str]], allow: Sequence[str]) -> Iterator[str]:
    """Expert messages of severity warning and above."""
    severities, messages = (row[name] for name in EXPERT)
    for severity, message in zip(severities, messages, strict=True):
        if int(severity) >= WARN and not any(text in message for text in allow):
            yield f"tshark complains: {message}"


def _number(name: str, text: str) -> int:
    if name in _HEX_BYTES:
        return int(re.sub("[^0-9a-fA-F]", "", text), 16)
    if text in ("True", "False"):  # how newer versions show flags
        return int(text == "True")
    return int(text, 0)


def _shown(values: set[int | None] | set[int]) -> str:
    return ", ".join("nothing" if value is None else f"{value:#x}" for value in values) or "nothing"
