# SPDX-License-Identifier: Apache-2.0
"""rnic.capture: files in and out, batches cut into packets, lines for people."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packages import need_package
from rnic.capture import PcapError, PcapWriter, Record, parse_pcap, read_pcap, split_record, split_records
from rnic.capture.dissect import describe, dissect, dissect_file, main
from rnic.wire import (
    AETH,
    BTH,
    RETH,
    UDP,
    ImmDt,
    IPv4,
    LinkType,
    NakCode,
    NotRoCEError,
    Opcode,
    Packet,
    Transport,
    WireError,
    icrc,
)

VECTORS = Path(__file__).parent.parent / "vectors"
CAPTURES = sorted(VECTORS.glob("*.pcap"))

RECORDS = st.builds(
    Record,
    time_ns=st.integers(0, (1 << 32) * 1_000_000_000 - 1),
    data=st.binary(max_size=100),
    length=st.just(0),
    linktype=st.just(LinkType.RAW),
).map(lambda record: replace(record, length=len(record.data)))


def written(records: list[Record], linktype: int = LinkType.RAW) -> bytes:
    file = io.BytesIO()
    with PcapWriter(file, linktype) as writer:
        for record in records:
            writer.write(record.time_ns, record.data, record.length)
    return file.getvalue()


# -------------------------------------------------------------------------------- files


@given(st.lists(RECORDS, max_size=5))
def test_pcap_round_trip(records: list[Record]) -> None:
    assert parse_pcap(written(records)) == records


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_captures_are_read_whole(path: Path) -> None:
    records = list(read_pcap(path))
    assert records
    assert {record.linktype for record in records} == {LinkType.ETHERNET}
    assert path.stat().st_size == 24 + sum(16 + len(record.data) for record in records)
    assert [r.time_ns for r in records] == sorted(r.time_ns for r in records)


@pytest.mark.parametrize(("order", "magic", "unit"), [
    ("<", 0xA1B2C3D4, 1000), (">", 0xA1B2C3D4, 1000), ("<", 0xA1B23C4D, 1), (">", 0xA1B23C4D, 1),
])  # fmt: skip
def test_both_byte_orders_and_resolutions(order: str, magic: int, unit: int) -> None:
    data = pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, 101) + pack(order + "IIII", 5, 7, 3, 9) + b"abc"
    (record,) = parse_pcap(data)
    assert record == Record(5_000_000_000 + 7 * unit, b"abc", 9, LinkType.RAW)
    assert record.truncated


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = pack(order + "I", 12 + len(body))
    return pack(order + "I", kind) + size + body + size


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng(order: str) -> None:
    section = block(order, 0x0A0D0D0A, pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    ethernet = block(order, 1, pack(order + "HHI", 1, 0, 0))
    raw_ns = block(order, 1, pack(order + "HHIHHBxxx", 101, 0, 0, 9, 1, 9))
    unknown = block(order, 0xBAD, b"what")
    when = 5_000_000
    enhanced = block(order, 6, pack(order + "IIIII", 0, 0, when, 3, 3) + b"abc")
    in_ns = block(order, 6, pack(order + "IIIII", 1, 1, 2, 5, 9) + b"abcde")
    simple = block(order, 3, pack(order + "I", 4) + b"wxyz")
    found = parse_pcap(section + ethernet + raw_ns + unknown + enhanced + in_ns + simple + section)
    assert found == [
        Record(5_000_000_000, b"abc", 3, LinkType.ETHERNET),
        Record((1 << 32) + 2, b"abcde", 9, LinkType.RAW),
        Record(0, b"wxyz", 4, LinkType.ETHERNET),
    ]
    with pytest.raises(PcapError, match="interface"):
        parse_pcap(section + enhanced)


def test_a_pcapng_from_wireshark(tmp_path: Path) -> None:
    editcap = shutil.which("editcap")
    if editcap is None:
        need_package("wireshark-common")
    made = tmp_path / "rping.pcapng"
    subprocess.run(
        [editcap, "-F", "pcapng", VECTORS / "rxe-rping.pcap", made], check=True, capture_output=True
    )
    assert list(read_pcap(made)) == list(read_pcap(VECTORS / "rxe-rping.pcap"))


def test_a_broken_file_says_where() -> None:
    whole = written([Record(0, b"abcd", 4)])
    for n in range(len(whole)):
        if n == 24:
            assert parse_pcap(whole[:n]) == []
            continue
        with pytest.raises(PcapError, match="ends in a"):
            parse_pcap(whole[:n])
    with pytest.raises(PcapError, match="not a capture"):
        parse_pcap(b"#!/bin/sh")
    with pytest.raises(PcapError, match="record of"):
        parse_pcap(whole[:24] + pack("<IIII", 0, 0, 1 << 31, 4))


@given(st.binary(max_size=300), st.sampled_from([b"", written([]), b"\x0a\x0d\x0d\x0a"]))
def test_any_file_is_read_or_refused(data: bytes, start: bytes) -> None:
    try:
        for record in parse_pcap(start + data):
            assert describe(record)
    except PcapError:
        pass


def test_the_writer_closes_only_what_it_opened(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    with PcapWriter(path, LinkType.RAW, snaplen=2) as writer:
        writer.write(1, b"abc")
    writer.close()
    assert list(read_pcap(path)) == [Record(1, b"ab", 3, LinkType.RAW)]
    file = io.BytesIO()
    PcapWriter(file).close()
    assert not file.closed


# -------------------------------------------------------------------------------- UDP_SEGMENT


def send(psn: int, payload: bytes, opcode: Opcode = Opcode.RC_SEND_MIDDLE) -> Transport:
    return Transport(BTH(opcode, 0x11, psn), (), payload)


def batch(transports: list[Transport], family: int) -> tuple[bytes, list[bytes]]:
    """A datagram as loopback shows it, and the packets that a real device would have sent."""
    a, b = ("10.0.0.1", "10.0.0.2") if family == 4 else ("fe80::1", "fe80::2")
    packets = [Packet.build(a, b, transport, ident=i) for i, transport in enumerate(transports)]
    data = b"".join(packet.transport.emit() for packet in packets)
    ip, udp = packets[0].ip, replace(packets[0].udp, length=8 + len(data))
    if isinstance(ip, IPv4):
        whole = replace(ip, total_length=28 + len(data)).emit()
    else:
        whole = replace(ip, payload_length=8 + len(data)).emit()
    return whole + udp.emit() + data, [packet.emit() for packet in packets]


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("size", [0, 8, 256, 1024, 4096])
@pytest.mark.parametrize("last", [True, False])
def test_a_batch_is_cut_into_its_packets(family: int, size: int, last: bool) -> None:
    count = max(2, min(12, 60000 // (size + 16)))
    transports = [send(i, bytes([i]) * size) for i in range(count)]
    if last and size:
        transports.append(send(count, b"end", Opcode.RC_SEND_LAST))
    whole, packets = batch(transports, family)
    found = split_record(Record(7, whole, len(whole), LinkType.RAW))
    assert [record.data for record in found] == packets
    assert all(record.time_ns == 7 and record.length == len(record.data) for record in found)


def test_what_is_no_batch_is_left_alone() -> None:
    for path in CAPTURES:
        records = list(read_pcap(path))
        assert list(split_records(records)) == records
    whole, _ = batch([send(1, b"abcd"), send(2, b"efgh")], 4)
    broken = Record(0, whole[:-1] + b"\0", len(whole), LinkType.RAW)
    assert split_record(broken) == [broken]


# -------------------------------------------------------------------------------- lines


def frame(transport: Transport) -> Record:
    data = Packet.build("10.0.0.1", "10.0.0.2", transport).emit()
    return Record(1_500_000_000, data, len(data), LinkType.RAW)


def test_a_line_per_packet() -> None:
    ack = Transport(BTH(Opcode.RC_ACK, 0x11, 9), (AETH.nak(4, NakCode.PSN_SEQUENCE_ERROR),))
    write = Transport(
        BTH(Opcode.RC_WRITE_ONLY_WITH_IMM, 0x11, 9, ackreq=True), (RETH(0x1000, 1, 3), ImmDt(5)), b"abc"
    )
    first = replace(frame(ack), time_ns=1_000_000_000)
    assert list(dissect([first, frame(write)])) == [
        "    0.000000  10.0.0.1 → 10.0.0.2  RC_ACK                 QP 0x000011 PSN 9  "
        "NAK, PSN sequence error, MSN 4",
        "    0.500000  10.0.0.1 → 10.0.0.2  RC_WRITE_ONLY_WITH_IMM QP 0x000011 PSN 9  "
        "va 0x1000 rkey 0x00000001 length 3  imm 0x00000005  3 B  ack requested",
    ]


def test_what_is_wrong_is_said() -> None:
    good = frame(send(1, b"abcd"))
    bad = replace(good, data=good.data[:-1] + bytes([good.data[-1] ^ 1]))
    assert "should be" in describe(bad)
    assert describe(replace(good, data=good.data[:20])).endswith("[20 of 48 bytes captured]")
    assert describe(Record(0, b"", 0)).startswith("malformed: ")
    assert describe(Record(0, bytes(12) + b"\x08\x06", 14)) == "not RoCEv2: Ethertype 0x0806, not IP"


@given(st.binary(max_size=120), st.sampled_from(list(LinkType)))
def test_any_bytes_have_a_line(data: bytes, linktype: int) -> None:
    assert "\n" not in describe(Record(0, data, len(data), linktype))


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_golden_captures_have_no_complaint(path: Path) -> None:
    lines = list(dissect_file(path))
    packets = len(list(read_pcap(path)))
    assert len(lines) >= packets if path.name.startswith("siw") else len(lines) == packets
    assert not [line for line in lines if "malformed" in line or "should be" in line]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(VECTORS / "rxe-atomic-cas.pcap")]) == 0
    assert capsys.readouterr().out.count("RC_CMP_SWAP") == 5
    (tmp_path / "x").write_bytes(b"no capture")
    assert main([os.fspath(tmp_path / "x"), os.fspath(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.count("\n") == 2


def test_errors_have_one_base() -> None:
    assert issubclass(PcapError, WireError)
    assert issubclass(NotRoCEError, WireError)
    assert issubclass(WireError, ValueError)
    with pytest.raises(WireError):
        icrc(Packet.build("::1", "::1", send(1, b"")).ip, UDP(1), b"")
