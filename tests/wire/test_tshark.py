# SPDX-License-Identifier: Apache-2.0
"""tshark reads the golden captures and every kind of packet that rnic.wire writes as rnic.wire does."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from rnic.capture import Record, read_pcap
from rnic.wire import (
    AETH,
    BTH,
    DETH,
    IETH,
    RETH,
    TABLE,
    XRCETH,
    AtomicAckETH,
    AtomicETH,
    CNPReserved,
    Ext,
    ImmDt,
    LinkType,
    Mask,
    NakCode,
    Opcode,
    Packet,
    Transport,
    ext_classes,
)

TESTS = Path(__file__).parent.parent
CAPTURES = sorted((TESTS / "vectors").glob("rxe-*.pcap"))


def _load() -> ModuleType:
    """tests/interop is no package: its helper is loaded by its path."""
    name = "rnic_tshark_check"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, TESTS / "interop/tshark_check.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


tshark_check = _load()
MISSING = tshark_check.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"not run: {MISSING}")

XRC = Mask.XRC | Mask.XRC_BACK  # tshark knows their BTH alone

EXTS: dict[type[Ext], Ext] = {
    DETH: DETH(0x80010000, 0xABCDEF),
    XRCETH: XRCETH(0xC0FFEE),
    RETH: RETH(0x0123456789ABCDEF, 0xFEDCBA98, 0x01020304),
    AtomicETH: AtomicETH(0xFEDCBA9876543210, 0x89ABCDEF, 0x1112131415161718, 0x2122232425262728),
    AETH: AETH.ack(0xABCDEF, 13),
    AtomicAckETH: AtomicAckETH(0xFFEEDDCCBBAA9988),
    ImmDt: ImmDt(0xCAFEF00D),
    IETH: IETH(0xDEADBEEF),
    CNPReserved: CNPReserved(),
}


def record(transport: Transport, family: int = 4) -> Record:
    ends = ("10.0.0.1", "10.0.0.2") if family == 4 else ("fd00::1", "fd00::2")
    data = Packet.build(*ends, transport, sport=50000).emit()
    return Record(0, data, len(data), LinkType.RAW)


def one(opcode: Opcode, *ext: Ext, payload: bytes = b"", psn: int = 0x123456) -> Transport:
    return Transport(BTH(opcode, 0x654321, psn, ackreq=True, se=True), ext, payload)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_tshark_reads_the_golden_captures_as_we_do(path: Path) -> None:
    allow = [tshark_check.RXE_IPV6_CHECKSUM] if "ipv6" in path.name else []
    report = tshark_check.check_capture(path, allow).assert_clean()
    assert report.frames == len(list(read_pcap(path)))


@pytest.mark.parametrize("family", [4, 6])
def test_tshark_reads_every_opcode_that_we_write(family: int) -> None:
    content = bytes(range(256)) * 4
    records = []
    rows = [
        row for row in TABLE.values() if not row.mask & (XRC | Mask.FLUSH | Mask.ATOMIC_WRITE)
    ]  # not A19's
    for row in rows:
        ext = tuple(EXTS[cls] for cls in ext_classes(row))
        sizes = (0, 1, 2, 3, 1024) if Mask.PAYLOAD in row.mask else (0,)
        records += [record(one(row.opcode, *ext, payload=content[:size]), family) for size in sizes]
    report = tshark_check.check_records(records).assert_clean(at_least=len(records))
    assert report.opcodes == {row.name for row in rows}


def test_of_extended_reliable_connections_tshark_reads_the_bth() -> None:
    rows = [row for row in TABLE.values() if row.mask & XRC]
    records = [record(one(row.opcode, *(EXTS[cls] for cls in ext_classes(row)))) for row in rows]
    report = tshark_check.check_records(records)
    assert report.opcodes == {row.name for row in rows}
    assert not [what for what in report.problems if "infiniband.bth" in what]


def test_tshark_reads_every_verdict() -> None:
    verdicts = [AETH.ack(1, credit) for credit in range(32)] + [AETH.rnr_nak(2, timer) for timer in range(32)]
    verdicts += [AETH.nak(3, code) for code in NakCode]
    report = tshark_check.check_records(record(one(Opcode.RC_ACK, aeth)) for aeth in verdicts)
    report.assert_clean(at_least=len(verdicts))


def test_payloads_are_not_guessed_at() -> None:
    """What looks like an Ethertype, or like RPC over RDMA, is a payload like any other."""
    inner = record(one(Opcode.RC_SEND_ONLY)).data
    payloads = [b"\x08\x00\x00\x00" + inner[:30], b"\xff" * 64, bytes(64), b"\0\0\0\1" * 20]
    records = [record(one(Opcode.RC_SEND_ONLY, payload=payload)) for payload in payloads]
    tshark_check.check_records(records).assert_clean(at_least=len(records))


def test_what_is_wrong_is_found() -> None:
    good = record(one(Opcode.RC_SEND_ONLY, payload=b"abcd"))
    flipped = replace(good, data=good.data[:-1] + bytes([good.data[-1] ^ 1]))
    (problem,) = tshark_check.check_records([good, flipped]).problems
    assert problem.startswith("frame 2: ICRC")
    cut = replace(good, data=good.data[:30])
    (problem,) = tshark_check.check_records([cut]).problems
    assert "tcpdump -s 0" in problem
    v6 = next(path for path in CAPTURES if "pingpong-ipv6" in path.name)
    report = tshark_check.check_capture(v6)
    assert len(report.problems) == report.packets
    with pytest.raises(AssertionError, match="Illegal checksum"):
        report.assert_clean()
    with pytest.raises(AssertionError, match="expected 2"):
        tshark_check.check_records([good]).assert_clean(at_least=2)
    unexpected = record(one(Opcode.RC_READ_REQUEST, EXTS[RETH], payload=b"abcd"))
    assert any("payload" in what for what in tshark_check.check_records([unexpected]).problems)
    assert tshark_check.check_records([]).frames == 0
