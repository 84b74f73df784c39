# SPDX-License-Identifier: Apache-2.0
"""tshark reads the golden captures of siw, and every message that rnic.wire writes, as rnic.wire does."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rnic.capture import PcapWriter, Record, read_pcap
from rnic.wire import (
    AtomicCode,
    AtomicRequest,
    AtomicResponse,
    Fpdu,
    LinkType,
    MpaControl,
    MpaFrame,
    RdmapOpcode,
    ReadRequest,
    Segment,
    Tagged,
    Terminate,
    Untagged,
)
from wire.tcp_streams import CLIENT, SERVER, Talk, marked

TESTS = Path(__file__).parent.parent
sys.path.append(str(TESTS / "interop"))  # which is no package

import tshark_check  # noqa: E402
import tshark_iwarp  # noqa: E402

MISSING = tshark_check.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"not run: {MISSING}")
CAPTURES = sorted((TESTS / "vectors").glob("siw-*.pcap"))
O = RdmapOpcode  # noqa: E741 - it is one


@pytest.mark.one_in(2)
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_tshark_reads_the_golden_captures_as_we_do(path: Path) -> None:
    tshark_iwarp.check_iwarp(read_pcap(path), allow=["D-SACK"]).assert_clean()


def tagged(opcode: RdmapOpcode, payload: bytes) -> Segment:
    return Segment(
        Tagged(opcode=opcode, stag=0x89ABCDEF, offset=0x0123456789ABCDEF, last=True), None, payload
    )


def send(opcode: RdmapOpcode, payload: bytes) -> Segment:
    header = Untagged(opcode=opcode, invalidate=0x12345678, msn=0xFFFFFFFE, offset=0, last=True)
    return Segment(header if "INV" in opcode.name else replace(header, invalidate=0), None, payload)


MASK = (1 << 64) - 1
EVERY = [
    *(tagged(opcode, bytes(size)) for opcode in (O.WRITE, O.READ_RESPONSE) for size in (0, 1, 2, 3, 1000)),
    *(send(opcode, b"\xff" * 64) for opcode in (O.SEND, O.SEND_WITH_INV, O.SEND_WITH_SE, O.SEND_WITH_SE_INV)),
    Segment.of(
        ReadRequest(0x89ABCDEF, MASK - 1, 0xFFFFFFFF, 0xFEDCBA98, 0x0123456789ABCDEF), O.READ_REQUEST, 1
    ),
    *(
        Segment.of(
            AtomicRequest(
                code=code,
                request_id=0x80000001,
                stag=0x89ABCDEF,
                offset=MASK - 7,
                add_swap=1 << 63,
                compare=5,
            ),
            O.ATOMIC_REQUEST,
            2,
        )
        for code in AtomicCode
    ),
    Segment.of(AtomicResponse(0x80000001, MASK), O.ATOMIC_RESPONSE, 1),
]
CODES = {(0, 0): (0,), (0, 1): (*range(10), 255), (0, 2): (*range(10), 255), (1, 0): (0,), (1, 1): range(5)}
CODES |= {(1, 2): range(1, 7), (2, 0): range(1, 8)}
TERMS = [
    Segment.of(Terminate(layer=layer, etype=etype, code=code), O.TERMINATE, 1)
    for (layer, etype), codes in CODES.items()
    for code in codes
]


def talk(segments: list[Segment], family: int, *, crc: bool = True, markers: bool = False) -> list[Record]:
    """A connection in which each segment is an FPDU, and each FPDU a segment of TCP."""
    control = MpaControl(ird=0x3FFF, ord=16, peer_to_peer=True, rtr_write=True, rtr_read=True)
    made = Talk(family)
    made.say(CLIENT, MpaFrame(control=control, private_data=b"hello", crc=crc, markers=markers).emit())
    made.say(SERVER, MpaFrame(is_reply=True, control=control, crc=crc, markers=markers).emit())
    framed = [Fpdu.of(segment.emit(), crc=crc).emit() for segment in segments]
    if markers:
        ends = [len(marked(framed[: n + 1])) for n in range(len(framed))]
        stream = marked(framed)
        framed = [stream[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    made.say(CLIENT, *framed)
    made.end(CLIENT)
    return made.records


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("crc", [True, False])
def test_tshark_reads_every_message_that_we_write(family: int, crc: bool) -> None:
    report = tshark_iwarp.check_iwarp(talk(EVERY, family, crc=crc)).assert_clean(at_least=len(EVERY))
    assert {O[name] for name in report.opcodes} == set(O) - {O.TERMINATE, O.IMMEDIATE, O.IMMEDIATE_WITH_SE}


def test_tshark_reads_every_terminate_message() -> None:
    tshark_iwarp.check_iwarp(talk(TERMS, 4)).assert_clean(at_least=len(TERMS))


def test_tshark_reads_a_refusal() -> None:
    made = Talk()
    made.say(CLIENT, MpaFrame(control=MpaControl(ird=1, ord=1)).emit())
    made.say(SERVER, MpaFrame(is_reply=True, rejected=True, private_data=b"not today").emit())
    assert not tshark_iwarp.check_iwarp(made.records).problems


@pytest.mark.parametrize("markers", [False, True])
def test_tshark_computes_the_same_crcs(tmp_path: Path, markers: bool) -> None:
    sizes = (0, 1, 100, 446, 447, 448, 900, 1300)
    segments = [tagged(O.WRITE, bytes(size)) for size in sizes]
    records = talk(segments, 4, markers=markers)
    with PcapWriter(tmp_path / "crc.pcap", LinkType.RAW) as writer:
        for record in records:
            writer.write(record.time_ns, record.data, record.length)
    shown = subprocess.run(
        ["tshark", "-n", "-V", "-r", tmp_path / "crc.pcap"], capture_output=True, text=True, check=True
    ).stdout
    assert shown.count("(Good CRC32)") == len(segments)
    assert "(Bad CRC32" not in shown
    assert ("FPDU back pointer" in shown) == markers


@pytest.mark.one_in(2)
@pytest.mark.parametrize("careless", [[], ["10.0.0.2"], ["10.0.0.1"]])
@pytest.mark.parametrize("ended", [True, False])
def test_some_ends_may_reset_what_the_other_has_ended(careless: list[str], ended: bool) -> None:
    made = Talk()
    made.say(CLIENT, MpaFrame(control=MpaControl(ird=1, ord=1)).emit())
    made.say(SERVER, MpaFrame(is_reply=True, control=MpaControl(ird=1, ord=1)).emit())
    if ended:
        made.end(CLIENT)
    made.reset(SERVER)
    problems = tshark_iwarp.check_iwarp(made.records, careless=careless).problems
    assert bool(problems) == (not ended or "10.0.0.2" not in careless)


def test_a_port_where_nobody_listens_resets() -> None:
    made = Talk(answered=False)
    made.reset(SERVER)
    assert not tshark_iwarp.check_iwarp(made.records).problems


def test_what_is_wrong_is_found() -> None:
    records = talk(EVERY, 4)
    flipped = bytearray(records[4].data)
    flipped[-1] ^= 1
    records[4] = replace(records[4], data=bytes(flipped))
    (problem,) = tshark_iwarp.check_iwarp(records).problems
    assert problem.startswith("frame 5: CRC or markers are wrong")
    with pytest.raises(AssertionError, match="expected 100"):
        tshark_iwarp.check_iwarp(talk(EVERY, 4)).assert_clean(at_least=100)
