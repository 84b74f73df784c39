# SPDX-License-Identifier: Apache-2.0
"""Unreliable datagrams between processes, over sockets: what arrives, what is dropped, and multicast."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from packages import need
from rnic import GID
from rnic.capture import read_pcap
from rnic.wire import DETH, ImmDt, NotRoCEError, Packet
from transport.conftest import Start
from transport.datagrams import QKEY
from transport.node import Node
from transport.plain import PEER, datagram, icrc_right, sealed

pytestmark = pytest.mark.roce

VECTORS = Path(__file__).parents[1] / "vectors"
GROUP, GROUP6, EVERYBODY = "239.77.1.2", "ff12::7701", 0xFFFFFF
ADDRESSES = ["127.0.0.1", "::1"]


def counted(node: Node, counter: str, least: int, name: str = "main") -> int:
    """The counter, once it has come so far or some seconds are over: nothing else tells of the last drop."""
    deadline = time.monotonic() + 60
    while (value := int(node.call("dg_counters", name)[counter])) < least and time.monotonic() < deadline:
        time.sleep(0.01)
    return value


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_datagram_reaches_another_process(start: Start, address: str) -> None:
    a, b = start(), start()
    from_qp, to_qp = a.call("dg_open", address=address), b.call("dg_open", address=address)
    for n in (0, 1, 1000, 4096):
        payload = os.urandom(n)
        assert (
            a.call("dg_send", address, to_qp, payload, imm_data=n, hop_limit=17, traffic_class=0x48)
            == "SUCCESS"
        )
        (got,) = b.call("dg_take")
        assert (got.payload, got.byte_len, got.imm_data, got.src_qp) == (payload, 40 + n, n, from_qp)
        assert got.route.sgid == got.route.dgid == GID(address)
        assert (got.route.hop_limit, got.route.traffic_class) == (17, 0x48)
    assert b.call("dg_counters")["drop_bad_icrc"] == 0


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_completion_leads_back_to_the_sender(start: Start, address: str) -> None:
    a, b = start(), start()
    a.call("dg_open", address=address)
    to_qp = b.call("dg_open", address=address)
    b.begin("dg_answer", b"pong")
    a.call("dg_send", address, to_qp, b"ping")
    assert b.result() == "SUCCESS"
    (got,) = a.call("dg_take")
    assert (got.payload, got.src_qp) == (b"pong", to_qp)


def test_it_works_within_a_process_and_within_a_context(start: Start) -> None:
    node = start()
    numbers = {
        "one": node.call("dg_open", "one"),
        "two": node.call("dg_open", "two"),
        "beside": node.call("dg_open", "beside", beside="one"),
    }
    for source, from_qp in numbers.items():
        for target, to_qp in numbers.items():
            node.call("dg_send", "127.0.0.1", to_qp, source.encode(), source)
            (got,) = node.call("dg_take", 1, target)
            assert (got.payload, got.src_qp) == (source.encode(), from_qp)


def test_another_q_key_is_dropped_and_counted(start: Start) -> None:
    a, b = start(), start()
    a.call("dg_open")
    to_qp = b.call("dg_open", qkey=QKEY + 1)
    assert a.call("dg_send", "127.0.0.1", to_qp, b"no") == "SUCCESS", "nobody tells a datagram's sender"
    assert a.call("dg_send", "127.0.0.1", to_qp, b"yes", qkey=QKEY + 1) == "SUCCESS"
    assert [got.payload for got in b.call("dg_take")] == [b"yes"]
    end = time.monotonic() + 60  # the first may have come to the other process, and be handed on
    while not (dropped := b.call("dg_counters")["drop_bad_qkey"]):
        assert time.monotonic() < end
    assert dropped == 1


def test_without_a_receive_it_is_dropped_and_a_small_one_ends_in_error(start: Start) -> None:
    a, b = start(), start()
    a.call("dg_open")
    nowhere, small = b.call("dg_open", "nowhere", receives=0), b.call("dg_open", "small", room=50)
    a.call("dg_send", "127.0.0.1", nowhere, b"lost")
    a.call("dg_send", "127.0.0.1", small, bytes(11))
    assert b.call("dg_take_status", "small") == "LOC_LEN_ERR"
    assert b.call("dg_state", "small") == "ERR"
    assert counted(b, "drop_no_receive", 1, "nowhere") == 1


def test_a_message_longer_than_the_mtu_fails_and_receiving_goes_on(start: Start) -> None:
    a, b = start(), start()
    from_qp, _ = a.call("dg_open"), b.call("dg_open")
    assert a.call("dg_too_long") == ("LOC_LEN_ERR", "SQE")
    assert b.call("dg_send", "127.0.0.1", from_qp, b"still here") == "SUCCESS"
    assert a.call("dg_take")[0].payload == b"still here"


# -- on the wire


def datagrams_of(name: str) -> list[Packet]:
    """The UD packets of a capture that are no MADs."""
    found = []
    for record in read_pcap(VECTORS / name):
        try:
            packet = Packet.parse(record.data, record.linktype)
        except NotRoCEError:
            continue
        if packet.transport.header(DETH) and packet.transport.bth.dqpn != 1:
            found.append(packet)
    return found


@pytest.mark.parametrize("capture", ["rxe-ud-pingpong.pcap", "rxe-udaddy.pcap"])
def test_what_is_sent_is_the_kernels_packet_byte_for_byte(start: Start, capture: str) -> None:
    golden = datagrams_of(capture)
    assert golden
    node = start()
    own = node.call("dg_open")
    node.call("plain_open")
    for nth, packet in enumerate(golden[:4]):
        theirs = packet.transport
        deth, imm = theirs.header(DETH), theirs.header(ImmDt)
        assert deth
        more = {"imm_data": imm.data} if imm else {}
        node.call("dg_send", PEER, theirs.bth.dqpn, theirs.payload, qkey=deth.qkey, **more)
        ext = tuple(replace(h, sqpn=own) if isinstance(h, DETH) else h for h in theirs.ext)
        bth = replace(theirs.bth, psn=nth, migreq=True)  # the kernel's migration state is another
        data = node.call("plain_take")
        assert data[:-4] == replace(theirs, bth=bth, ext=ext).emit_covered()
        assert icrc_right(data)


@pytest.mark.parametrize("capture", ["rxe-ud-pingpong.pcap", "rxe-udaddy.pcap"])
def test_the_kernels_packet_is_received_with_its_header(start: Start, capture: str) -> None:
    packet = datagrams_of(capture)[0]
    theirs = packet.transport
    deth = theirs.header(DETH)
    assert deth
    node = start()
    own = node.call("dg_open", qkey=deth.qkey)
    node.call("plain_open")
    node.call("plain_send", sealed(replace(theirs, bth=replace(theirs.bth, dqpn=own))))
    (got,) = node.call("dg_take")
    assert (got.payload, got.src_qp) == (theirs.payload, deth.sqpn)
    ip = packet.ip.emit()  # the same but for addresses, identification and so the checksum
    assert got.grh[:20] == bytes(20)
    assert got.grh[20:24] + got.grh[26:30] == ip[:4] + ip[6:10]
    assert got.route.sgid == GID(PEER)


def test_a_packet_that_was_harmed_is_dropped(start: Start) -> None:
    node = start()
    own = node.call("dg_open")
    node.call("plain_open")
    good = sealed(datagram(b"good", own, QKEY, 5))
    for at in (12, 20, 27):
        bad = bytearray(good)
        bad[at] ^= 0x10
        node.call("plain_send", bytes(bad))
    node.call("plain_send", good)
    assert [got.payload for got in node.call("dg_take")] == [b"good"]
    assert node.call("dg_counters")["drop_bad_icrc"] == 3


@pytest.mark.parametrize(
    ("idents", "refused"),
    [
        ([0, 63, 5, 0], []),  # rnic's: places in a batch
        ([40000, 40001, 3, 60000], []),  # the Linux kernel's: they count up and jump after a pause
        ([50, 63, 64, 65, 40000], []),  # the kernel's where they happen to begin like rnic's
        ([65530, 2, 70], []),
        ([5, 1, 900, 40000], []),
        ([5, 40000, 6, 40000, 7, 40000], [40000, 40000, 40000]),  # damage that looks like an identification
        ([5, 40000, 40001, 40002, 50000], [40000, 40001]),
    ],
)
def test_which_ip_identifications_a_source_may_have(
    start: Start, idents: list[int], refused: list[int]
) -> None:
    node = start()
    own = node.call("dg_open")
    node.call("plain_open")
    for ident in idents:
        node.call("plain_send", sealed(datagram(b"%d" % ident, own, QKEY, 5), ident=ident))
    taken = node.call("dg_take", len(idents) - len(refused))
    left = [int(got.payload) for got in taken]
    assert sorted(left + refused) == sorted(idents)
    assert counted(node, "drop_bad_icrc", len(refused)) == len(refused)


# -- multicast


def test_every_attached_queue_pair_gets_its_copy_but_the_sender(start: Start) -> None:
    a, b, c, outsider = start(), start(), start(), start()
    sender = a.call("dg_open")
    a.call("dg_open", "second", beside="main")
    a.call("dg_open", "other context")
    for node in (b, c, outsider):
        node.call("dg_open")
    b.call("dg_open", "other key", qkey=QKEY + 1)
    members = [(a, "main"), (a, "second"), (a, "other context"), (b, "main"), (c, "main"), (b, "other key")]
    for node, name in members:
        node.call("dg_attach", GROUP, name)
        node.call("dg_attach", GROUP, name)  # twice is as once
    a.call("dg_send", GROUP, EVERYBODY, b"to all")
    for node, name in members[1:5]:
        (got,) = node.call("dg_take", 1, name)
        assert (got.payload, got.src_qp) == (b"to all", sender)
        assert (got.route.sgid, got.route.dgid) == (GID("127.0.0.1"), GID(GROUP))
    assert a.call("dg_take", 1, "main", 0.2) == [], "the sender has a copy"
    assert outsider.call("dg_take", 1, "main", 0) == []
    assert counted(b, "drop_bad_qkey", 1, "other key") == 1
    for node, name in members[1:5]:
        assert node.call("dg_take", 1, name, 0) == [], "a second copy"

    c.call("dg_detach", GROUP)
    outsider.call("dg_send", GROUP, EVERYBODY, b"not a member")
    assert a.call("dg_take")[0].payload == b"not a member"
    assert b.call("dg_take")[0].payload == b"not a member"
    assert c.call("dg_take", 1, "main", 0.2) == []


def test_groups_are_apart_and_unicast_goes_on(start: Start) -> None:
    a, b = start(), start()
    a.call("dg_open")
    to_qp = b.call("dg_open")
    b.call("dg_attach", GROUP)
    a.call("dg_send", "239.77.1.3", EVERYBODY, b"another group")
    a.call("dg_send", GROUP, to_qp, b"a group's address, one queue pair's number")
    a.call("dg_send", "127.0.0.1", EVERYBODY, b"everybody's number, one address")
    a.call("dg_send", "127.0.0.1", to_qp, b"unicast")
    a.call("dg_send", GROUP, EVERYBODY, b"multicast")
    assert {got.payload for got in b.call("dg_take", 2)} == {b"unicast", b"multicast"}
    assert b.call("dg_take", 1, "main", 0.2) == []
    assert b.call("dg_counters")["drop_bad_qpn"] >= 1


def test_many_multicast_datagrams_in_one_go_all_arrive(start: Start) -> None:
    """As UDP_SEGMENT batches: the identification in the ICRC is the place in the batch."""
    a, b, c = start(), start(), start()
    for node in (a, b, c):
        node.call("dg_open")
    b.call("dg_attach", GROUP)
    c.call("dg_attach", GROUP)
    a.call("dg_burst", GROUP, EVERYBODY, 24, 100)
    for node in (b, c):
        assert [got.payload[0] for got in node.call("dg_take", 24)] == list(range(24))
        assert node.call("dg_counters")["drop_bad_icrc"] == 0


@pytest.fixture
def ethernet(private_namespace: str) -> str:
    """A network device with multicast and IPv6, in a namespace of its own; its address."""
    need("ip", "iproute2")
    enter = ["nsenter", f"--net={private_namespace}", "ip"]
    for words in (
        "link add rnic0 type veth peer name rnic1",
        "link set rnic0 up",
        "link set rnic1 up",
        "addr add fd77::1/64 dev rnic0 nodad",
        "addr add 10.77.0.1/24 dev rnic0",
    ):
        done = subprocess.run([*enter, *words.split()], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"ip {words}: {done.stderr.strip()}")
    return private_namespace


@pytest.mark.parametrize(
    ("address", "group"), [("fd77::1", GROUP6), ("fd77::1", "ff02::7702"), ("10.77.0.1", GROUP)]
)
def test_multicast_on_an_ethernet_device(start: Start, ethernet: str, address: str, group: str) -> None:
    nodes = [start(netns=ethernet) for _ in range(3)]
    sender = nodes[0].call("dg_open", address=address, device="roce_rnic0")
    for node in nodes[1:]:
        node.call("dg_open", address=address, device="roce_rnic0")
    for node in nodes:
        node.call("dg_attach", group)
    nodes[0].call("dg_send", group, EVERYBODY, b"to all", traffic_class=4)
    for node in nodes[1:]:
        (got,) = node.call("dg_take")
        assert (got.payload, got.src_qp, got.route.dgid) == (b"to all", sender, GID(group))
        assert (got.route.hop_limit, got.route.traffic_class) == (64, 4)
    assert nodes[0].call("dg_take", 1, "main", 0.2) == []


def test_a_group_that_the_host_has_no_way_to_is_told(start: Start) -> None:
    """Linux has no multicast route for the loopback interface's IPv6."""
    node = start()
    node.call("dg_open", address="::1")
    assert "no way for multicast" in node.call("dg_send_fails", GROUP6)


def test_only_a_group_can_be_joined_and_a_member_cannot_be_destroyed(start: Start) -> None:
    node = start()
    node.call("dg_open")
    assert "not a multicast address" in node.call("dg_words", "attach_mcast", "127.0.0.1")
    assert "not attached" in node.call("dg_words", "detach_mcast", GROUP)
    node.call("dg_attach", GROUP)
    assert "detach_mcast() first" in node.call("dg_words", "close")
