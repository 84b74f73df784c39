# SPDX-License-Identifier: Apache-2.0
"""rnic.wire by itself: round trips, bounds, words; and the C opcode table, which says the same."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from packages import need_package
from rnic.wire import (
    AETH,
    BTH,
    DETH,
    FETH,
    IETH,
    RETH,
    RNR_TIMER_US,
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
    NotRoCEError,
    Opcode,
    OpcodeInfo,
    Packet,
    Transport,
    WireError,
    credit_count,
    ext_classes,
    opcode_info,
)

ROOT = Path(__file__).parent.parent.parent


def bits(n: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << n) - 1)


BTHS = st.builds(
    BTH,
    opcode=st.sampled_from(sorted(TABLE)),
    dqpn=bits(24),
    psn=bits(24),
    ackreq=st.booleans(),
    se=st.booleans(),
    migreq=st.booleans(),
    pad=bits(2),
    tver=bits(4),
    pkey=bits(16),
    fecn=st.booleans(),
    becn=st.booleans(),
    resv6=bits(6),
    resv7=bits(7),
)
EXTS: dict[type[Ext], st.SearchStrategy[Ext]] = {
    RETH: st.builds(RETH, va=bits(64), rkey=bits(32), length=bits(32)),
    AETH: st.builds(AETH, syndrome=bits(8), msn=bits(24)),
    AtomicETH: st.builds(AtomicETH, va=bits(64), rkey=bits(32), swap_add=bits(64), compare=bits(64)),
    AtomicAckETH: st.builds(AtomicAckETH, orig=bits(64)),
    ImmDt: st.builds(ImmDt, data=bits(32)),
    IETH: st.builds(IETH, rkey=bits(32)),
    XRCETH: st.builds(XRCETH, srqn=bits(24), resv=bits(8)),
    DETH: st.builds(DETH, qkey=bits(32), sqpn=bits(24), resv=bits(8)),
    FETH: st.builds(FETH, type=bits(4), level=bits(2), resv=bits(26)),
    CNPReserved: st.builds(CNPReserved, data=st.binary(min_size=16, max_size=16)),
}


@st.composite
def transports(draw: st.DrawFn) -> Transport:
    bth = draw(BTHS)
    ext = tuple(draw(EXTS[cls]) for cls in ext_classes(opcode_info(bth.opcode)))
    return Transport(bth, ext, draw(st.binary(max_size=300)), bytes(bth.pad), draw(bits(32)))


PACKETS = st.one_of(
    st.builds(
        Packet.build, st.ip_addresses(v=4), st.ip_addresses(v=4), transports(), sport=bits(16), ident=bits(16)
    ),
    st.builds(Packet.build, st.ip_addresses(v=6), st.ip_addresses(v=6), transports(), sport=bits(16)),
)


# -------------------------------------------------------------------------------- round trips


@given(BTHS)
def test_bth_round_trip(bth: BTH) -> None:
    assert BTH.parse(bth.emit()) == bth


@given(st.binary(min_size=12, max_size=12))
def test_any_twelve_bytes_are_a_bth_and_come_out_again(data: bytes) -> None:
    assert BTH.parse(data).emit() == data


@pytest.mark.parametrize("cls", EXTS, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_extended_header_round_trip(cls: type[Ext], data: st.DataObject) -> None:
    header = data.draw(EXTS[cls])
    assert len(header.emit()) == cls.SIZE
    assert cls.parse(header.emit()) == header
    raw = data.draw(st.binary(min_size=cls.SIZE, max_size=cls.SIZE))
    assert cls.parse(raw).emit() == raw


@given(transports())
def test_transport_round_trip(transport: Transport) -> None:
    assert Transport.parse(transport.emit()) == transport


@given(PACKETS)
def test_packet_round_trip(packet: Packet) -> None:
    frame = packet.emit()
    again = Packet.parse(frame, LinkType.RAW)
    assert again == packet
    assert again.emit() == frame
    assert again.icrc_ok
    assert len(again.payload + again.transport.padding) % 4 == 0
    assert str(again)


# -------------------------------------------------------------------------------- hostile bytes


@given(st.binary(max_size=200), st.sampled_from([*LinkType, 7]))
def test_any_bytes_parse_or_raise_wire_error(data: bytes, linktype: int) -> None:
    try:
        packet = Packet.parse(data, linktype)
    except WireError:
        return
    assert packet.emit() == data
    assert str(packet)


@given(st.binary(max_size=100))
def test_any_datagram_parses_or_raises_wire_error(data: bytes) -> None:
    try:
        transport = Transport.parse(data)
    except WireError:
        return
    assert transport.emit() == data
    assert str(transport)


@given(PACKETS, st.data())
def test_damaged_packets_parse_or_raise_wire_error(packet: Packet, data: st.DataObject) -> None:
    frame = bytearray(packet.emit())
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(bits(8))
    cut = bytes(frame[: data.draw(st.integers(0, len(frame)))])
    for one in (bytes(frame), cut):
        try:
            again = Packet.parse(one, LinkType.RAW)
        except WireError:
            continue
        assert again.emit() == one
        assert str(again)


@given(PACKETS, st.data())
def test_a_change_of_what_the_icrc_covers_shows(packet: Packet, data: st.DataObject) -> None:
    payload = packet.transport.payload
    assume(payload)
    at = data.draw(st.integers(0, len(payload) - 1))
    changed = payload[:at] + bytes([payload[at] ^ data.draw(st.integers(1, 255))]) + payload[at + 1 :]
    assert not replace(packet, transport=replace(packet.transport, payload=changed)).icrc_ok


@pytest.mark.parametrize("opcode", TABLE.values(), ids=lambda row: row.name)
def test_a_packet_that_is_cut_short_says_what_it_needs(opcode: OpcodeInfo) -> None:
    whole = Transport(
        BTH(opcode.opcode, 2, 3), tuple(cls.parse(bytes(64)) for cls in ext_classes(opcode))
    ).emit()
    assert len(whole) == opcode.header + 4
    for n in range(len(whole)):
        with pytest.raises(WireError, match="needs"):
            Transport.parse(whole[:n])


def test_reserved_opcodes_are_refused() -> None:
    for opcode in set(range(256)) - set(TABLE):
        with pytest.raises(WireError, match="opcode"):
            Transport.parse(bytes([opcode]) + bytes(60))


def test_padding_cannot_reach_into_the_headers() -> None:
    ack = Transport(BTH(Opcode.RC_ACK, 2, 3), (AETH.ack(1),)).emit()
    with pytest.raises(WireError, match="padding"):
        Transport.parse(ack[:1] + bytes([0x70]) + ack[2:])


def test_emit_refuses_what_does_not_fit() -> None:
    with pytest.raises(WireError, match="psn"):
        BTH(Opcode.RC_ACK, dqpn=1, psn=1 << 24).emit()
    with pytest.raises(WireError, match="rkey"):
        RETH(0, -1, 0).emit()
    with pytest.raises(WireError, match="RC_ACK has AETH"):
        Transport(BTH(Opcode.RC_ACK, 1, 1)).emit()
    with pytest.raises(WireError, match="pad count"):
        Transport(BTH(Opcode.RC_SEND_ONLY, 1, 1, pad=2)).emit()
    with pytest.raises(WireError, match="famil"):
        Packet.build("10.0.0.1", "::1", Transport(BTH(Opcode.RC_SEND_ONLY, 1, 1)))


def test_other_traffic_is_told_from_broken_packets() -> None:
    arp = bytes(12) + b"\x08\x06" + bytes(28)
    with pytest.raises(NotRoCEError, match="Ethertype"):
        Packet.parse(arp)
    frame = Packet.build("10.0.0.1", "10.0.0.2", Transport(BTH(Opcode.RC_SEND_ONLY, 1, 1))).emit()
    tcp = frame[:9] + b"\x06" + frame[10:]
    with pytest.raises(NotRoCEError, match="protocol 6"):
        Packet.parse(tcp, LinkType.RAW)
    dns = frame[:22] + b"\x00\x35" + frame[24:]
    with pytest.raises(NotRoCEError, match="port 53"):
        Packet.parse(dns, LinkType.RAW)
    fragment = frame[:6] + b"\x20\x00" + frame[8:]
    with pytest.raises(NotRoCEError, match="fragment"):
        Packet.parse(fragment, LinkType.RAW)
    with pytest.raises(WireError, match="total length") as caught:
        Packet.parse(frame[:-1], LinkType.RAW)
    assert not isinstance(caught.value, NotRoCEError)


@pytest.mark.parametrize(
    ("linktype", "header"),
    [
        (LinkType.ETHERNET, bytes(12) + b"\x08\x00"),
        (LinkType.ETHERNET, bytes(12) + b"\x81\x00\x00\x07\x08\x00"),
        (LinkType.ETHERNET, bytes(12) + b"\x88\xa8\x00\x07\x81\x00\x00\x07\x08\x00"),
        (LinkType.LINUX_SLL, bytes(14) + b"\x08\x00"),
        (LinkType.LINUX_SLL2, b"\x08\x00" + bytes(18)),
        (LinkType.NULL, b"\x02\0\0\0"),
        (LinkType.RAW, b""),
        (LinkType.IPV4, b""),
    ],
)
def test_link_headers_and_trailers_are_kept(linktype: LinkType, header: bytes) -> None:
    packet = Packet.build("10.0.0.1", "10.0.0.2", Transport(BTH(Opcode.RC_ACK, 1, 1), (AETH.ack(0),)))
    frame = header + packet.emit() + bytes(6)
    again = Packet.parse(frame, linktype)
    assert (again.link, again.trailer, again.transport) == (header, bytes(6), packet.transport)
    assert again.icrc_ok
    assert again.emit() == frame


# -------------------------------------------------------------------------------- words


def test_packets_read_well() -> None:
    def line(opcode: Opcode, *ext: Ext, payload: bytes = b"", **flags: bool) -> str:
        transport = Transport(BTH(opcode, 0x12, 7, **flags), ext, payload)
        return " ".join(str(Packet.build("10.0.0.1", "10.0.0.2", transport)).split())

    start = "10.0.0.1 → 10.0.0.2 "
    assert line(Opcode.RC_SEND_ONLY, payload=b"abc", ackreq=True, se=True) == (
        start + "RC_SEND_ONLY QP 0x000012 PSN 7 3 B ack requested, solicited"
    )
    assert line(Opcode.RC_READ_REQUEST, RETH(0x1000, 0xABC, 5000)) == (
        start + "RC_READ_REQUEST QP 0x000012 PSN 7 va 0x1000 rkey 0x00000abc length 5000"
    )
    assert line(Opcode.RC_ACK, AETH.rnr_nak(3, 12)).endswith("RNR NAK, wait 0.64 ms, MSN 3")
    assert line(Opcode.RC_SEND_ONLY_WITH_IMM, ImmDt(1)).endswith("imm 0x00000001")
    flush = line(Opcode.RC_FLUSH, FETH(3, 0), RETH(0x1000, 1, 64))
    assert "flush global, persistent of the range va 0x1000" in flush
    assert "flush type 4 of the region" in line(Opcode.RC_FLUSH, FETH(4, 1), RETH(0, 1, 0))
    assert line(Opcode.RC_ATOMIC_WRITE, RETH(8, 1, 8), payload=bytes(8)).endswith("length 8 8 B")
    assert line(Opcode.RC_SEND_ONLY_WITH_INV, IETH(1)).endswith("invalidate rkey 0x00000001")


def test_every_verdict_has_words() -> None:
    assert str(AETH.ack(1)) == "ACK"
    assert str(AETH.ack(1, 1)) == "ACK, 1 credit"
    assert str(AETH.ack(1, 13)) == "ACK, 96 credits"
    assert str(AETH.nak(1, NakCode.REMOTE_ACCESS_ERROR)) == "NAK, remote access error"
    assert {str(AETH(syndrome, 0)) for syndrome in (0x40, 0x65, 0x7F)} == {
        "reserved syndrome 0x40",
        "reserved syndrome 0x65",
        "reserved syndrome 0x7f",
    }
    for syndrome in range(256):
        assert str(AETH(syndrome, 0))


def test_credit_and_timer_codes() -> None:
    assert [credit_count(code) for code in (0, 1, 2, 3, 4, 5, 6, 7, 8, 30, 31)] == [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 32768, None,
    ]  # fmt: skip
    assert (len(RNR_TIMER_US), RNR_TIMER_US[0], RNR_TIMER_US[1], RNR_TIMER_US[31]) == (32, 655360, 10, 491520)
    assert list(RNR_TIMER_US[1:]) == sorted(RNR_TIMER_US[1:])


# -------------------------------------------------------------------------------- two tables


class CRow(ctypes.Structure):
    """`struct roce_opcode`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("mask", ctypes.c_uint32),
        ("header", ctypes.c_uint8),
        ("reth", ctypes.c_uint8),
        ("aeth", ctypes.c_uint8),
        ("atomic_eth", ctypes.c_uint8),
        ("atomic_ack", ctypes.c_uint8),
        ("imm", ctypes.c_uint8),
        ("ieth", ctypes.c_uint8),
        ("deth", ctypes.c_uint8),
        ("xrceth", ctypes.c_uint8),
        ("feth", ctypes.c_uint8),
    )


def test_the_c_table_says_the_same(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        need_package("gcc")
    library = tmp_path / "opcode.so"
    source = ROOT / "src/nic/wire/opcode.c"
    subprocess.run(
        [
            compiler,
            "-std=c11",
            "-D_GNU_SOURCE",
            "-shared",
            "-fPIC",
            f"-I{ROOT / 'src/nic'}",
            source,
            "-o",
            library,
        ],
        check=True,
    )
    lookup = ctypes.CDLL(str(library)).roce_opcode
    lookup.argtypes = [ctypes.c_uint8]
    lookup.restype = ctypes.POINTER(CRow)
    offsets = [field.name for field in fields(OpcodeInfo) if field.name not in ("opcode", "mask")]
    for opcode in range(256):
        found = lookup(opcode)
        assert bool(found) == (opcode in TABLE)
        if not found:
            continue
        c, python = found.contents, TABLE[opcode]
        assert c.name.decode() == python.name
        assert Mask(c.mask) == python.mask
        assert {name: getattr(c, name) for name in offsets} == {
            name: getattr(python, name) for name in offsets
        }
