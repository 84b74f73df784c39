# SPDX-License-Identifier: Apache-2.0
"""The golden captures: what two kernels said to each other, read and written again by rnic.wire."""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
from collections import Counter
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from itertools import pairwise
from pathlib import Path
from struct import pack

import pytest

from packages import need_package
from rnic.capture import Record, read_pcap
from rnic.wire import (
    AETH,
    DETH,
    RETH,
    AethKind,
    AtomicAckETH,
    AtomicETH,
    ImmDt,
    IPv4,
    IPv6,
    Mask,
    NotRoCEError,
    Opcode,
    Packet,
)

VECTORS = Path(__file__).parent.parent / "vectors"
RXE = sorted(path.name for path in VECTORS.glob("rxe-*.pcap"))
SIW = sorted(path.name for path in VECTORS.glob("siw-*.pcap"))


def roce(name: str) -> list[tuple[Record, Packet]]:
    """The RoCEv2 packets of a capture; other protocols are passed over, a broken packet is an error."""
    found = []
    for record in read_pcap(VECTORS / name):
        try:
            found.append((record, Packet.parse(record.data, record.linktype)))
        except NotRoCEError:
            continue
    return found


def packets(name: str) -> list[Packet]:
    return [packet for _, packet in roce(name)]


def opcodes(name: str) -> list[int]:
    return [packet.bth.opcode for packet in packets(name)]


def test_all_captures_are_there() -> None:
    assert len(RXE) == 17
    assert len(SIW) == 5


@pytest.mark.parametrize("name", RXE)
def test_every_packet_is_emitted_as_it_was(name: str) -> None:
    found = roce(name)
    assert found
    for record, packet in found:
        assert not record.truncated
        assert packet.emit() == record.data


@pytest.mark.parametrize("name", RXE)
def test_every_icrc_is_ours(name: str) -> None:
    for packet in packets(name):
        assert packet.expected_icrc() == packet.transport.icrc


@pytest.mark.parametrize("name", RXE)
def test_sealing_changes_nothing_but_the_udp_checksum_over_ipv6(name: str) -> None:
    """Lengths, padding, IPv4 checksum and ICRC that rnic would fill in are the kernel's own."""
    for packet in packets(name):
        sealed = packet.sealed()
        if isinstance(packet.ip, IPv6):
            assert packet.udp.checksum == 0  # rxe sends none, though IPv6 asks for one
            sealed = replace(sealed, udp=replace(sealed.udp, checksum=0))
        assert sealed == packet


@pytest.mark.parametrize("name", RXE)
def test_a_flipped_bit_breaks_the_icrc(name: str) -> None:
    record, packet = roce(name)[0]
    start = len(packet.link) + packet.ip.SIZE + 8
    for at in (start + 1, start + 6, start + 11, len(record.data) - 5):  # in the BTH, then in what it carries
        broken = bytearray(record.data)
        broken[at] ^= 0x80
        if at == start + 1:
            broken[at] ^= 0x80 | 0x01  # not the pad count: that moves where the payload ends
        assert not Packet.parse(bytes(broken)).icrc_ok


def test_fields_that_change_on_the_way_do_not_break_the_icrc() -> None:
    for name in ("rxe-rc-pingpong.pcap", "rxe-rc-pingpong-ipv6.pcap"):
        packet = packets(name)[0]
        bth = replace(packet.bth, fecn=True, becn=True)
        moved = replace(packet, transport=replace(packet.transport, bth=bth))
        if isinstance(packet.ip, IPv4):
            moved = replace(moved, ip=replace(packet.ip, ttl=3, tos=0xB9, checksum=0))
        else:
            moved = replace(moved, ip=replace(packet.ip, hop_limit=3, traffic_class=0xB9, flow_label=0x12345))
        assert moved.icrc_ok


@pytest.mark.parametrize("name", SIW)
def test_iwarp_captures_are_not_roce(name: str) -> None:
    assert not roce(name)


@pytest.mark.parametrize("name", ["rxe-rc-pingpong.pcap", "rxe-rc-pingpong-ipv6.pcap"])
def test_rc_pingpong_is_three_packets_and_an_ack_each_way(name: str) -> None:
    once = [Opcode.RC_SEND_FIRST, Opcode.RC_SEND_MIDDLE, Opcode.RC_SEND_LAST, Opcode.RC_ACK]
    assert opcodes(name) == once * 10
    for packet in packets(name):
        if packet.bth.opcode == Opcode.RC_ACK:
            aeth = packet.header(AETH)
            assert aeth is not None
            assert aeth.kind is AethKind.ACK
    sizes = [len(packet.payload) for packet in packets(name)[:4]]
    assert sizes == [1024, 1024, 452, 0]


def test_uc_pingpong_has_no_acks() -> None:
    assert (
        opcodes("rxe-uc-pingpong.pcap")
        == [Opcode.UC_SEND_FIRST, Opcode.UC_SEND_MIDDLE, Opcode.UC_SEND_LAST] * 10
    )


def test_ud_pingpong_names_its_sender() -> None:
    for packet in packets("rxe-ud-pingpong.pcap"):
        assert packet.bth.opcode == Opcode.UD_SEND_ONLY
        deth = packet.header(DETH)
        assert deth is not None
        assert (deth.qkey, deth.sqpn) == (0x11111111, 0x13)


def test_write_announces_the_whole_message_in_its_first_packet() -> None:
    found = packets("rxe-write-bw.pcap")
    assert [p.bth.opcode for p in found[:5]] == [Opcode.RC_WRITE_FIRST] + [Opcode.RC_WRITE_MIDDLE] * 3 + [
        Opcode.RC_WRITE_LAST
    ]
    reth = found[0].header(RETH)
    assert reth is not None
    assert reth.length == sum(len(packet.payload) for packet in found[:5]) == 5000


def test_read_uses_a_psn_per_response_packet() -> None:
    requests = [p for p in packets("rxe-read-bw.pcap") if p.bth.opcode == Opcode.RC_READ_REQUEST]
    assert [len(p.payload) for p in requests] == [0] * 5
    for one, following in pairwise(requests):
        assert (following.bth.psn - one.bth.psn) & 0xFFFFFF == 5  # 5000 bytes at path MTU 1024
    responses = [p for p in packets("rxe-read-bw.pcap") if Mask.READ_RESP in p.info.mask]
    assert [p.bth.psn for p in responses] == [requests[0].bth.psn + i for i in range(25)]


@pytest.mark.parametrize(
    ("name", "opcode"),
    [("rxe-atomic-bw.pcap", Opcode.RC_FETCH_ADD), ("rxe-atomic-cas.pcap", Opcode.RC_CMP_SWAP)],
)
def test_each_atomic_has_its_answer(name: str, opcode: Opcode) -> None:
    assert Counter(opcodes(name)) == {opcode: 5, Opcode.RC_ATOMIC_ACK: 5}
    asked = [p.bth.psn for p in packets(name) if p.header(AtomicETH)]
    answered = [p.bth.psn for p in packets(name) if p.header(AtomicAckETH)]
    assert asked == answered


def test_rcopy_writes_with_immediate() -> None:
    seen = set(opcodes("rxe-rcopy.pcap"))
    assert {Opcode.RC_WRITE_ONLY_WITH_IMM, Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_LAST_WITH_IMM} <= seen
    for packet in packets("rxe-rcopy.pcap"):
        assert (packet.header(ImmDt) is not None) == (Mask.IMM in packet.info.mask)


@pytest.mark.parametrize(
    "name", ["rxe-rping.pcap", "rxe-ucmatose.pcap", "rxe-rdma-server.pcap", "rxe-reject.pcap"]
)
def test_cm_datagrams_go_to_qp1(name: str) -> None:
    first = packets(name)[0]
    deth = first.header(DETH)
    assert deth is not None
    assert (first.bth.dqpn, deth.sqpn, deth.qkey) == (1, 1, 0x80010000)
    assert len(first.payload) == 256


def test_an_rxe_sender_counts_its_ip_identification() -> None:
    by_source: dict[object, list[int]] = {}
    for packet in packets("rxe-rc-pingpong.pcap"):
        assert isinstance(packet.ip, IPv4)
        assert (packet.ip.flags, packet.udp.checksum) == (2, 0)
        by_source.setdefault(packet.ip.src, []).append(packet.ip.ident)
    assert len(by_source) == 2
    for idents in by_source.values():
        # It jumps a little after a pause (the kernel's way of hiding how much a host sends).
        assert all(1 <= (b - a) & 0xFFFF < 16 for a, b in pairwise(idents))


def test_the_core_computes_the_same_icrcs(tmp_path: Path) -> None:
    """icrc.c over every packet of the captures, and the identification that it recovers from the ICRC."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        need_package("gcc")
    library, core = tmp_path / "icrc.so", VECTORS.parent.parent / "src/nic"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", f"-I{core}"]
    subprocess.run([compiler, *flags, core / "wire/icrc.c", "-o", library], check=True)
    c = ctypes.CDLL(str(library))
    c.icrc_compute.restype = ctypes.c_uint32

    def compute(packet: Packet, ident: int) -> int:
        covered = packet.transport.emit_covered()
        src, dst = (
            sockaddr(end, port) for end, port in ((packet.ip.src, packet.udp.sport), (packet.ip.dst, 4791))
        )
        return int(c.icrc_compute(src, dst, ctypes.c_uint16(ident), covered, ctypes.c_uint32(len(covered))))

    for name in RXE:
        for packet in packets(name):
            carried = packet.transport.icrc
            ident = packet.ip.ident if isinstance(packet.ip, IPv4) else 0
            assert compute(packet, ident) == carried
            length = ctypes.c_uint32(len(packet.transport.emit_covered()))
            assert c.icrc_recover_id(ctypes.c_uint32(carried ^ compute(packet, 0)), length) == ident


def sockaddr(address: IPv4Address | IPv6Address, port: int) -> bytes:
    """`struct sockaddr_in6`, IPv4 mapped."""
    packed = address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed
    return pack("=H", socket.AF_INET6) + pack(">HI", port, 0) + packed + pack("=I", 0)
