# SPDX-License-Identifier: Apache-2.0
"""Queue pair 1 of many processes on one address: each CM message finds its process, or is refused."""

from __future__ import annotations

import os
import signal
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from rnic import GID, QPType
from rnic.capture import read_pcap
from rnic.wire import DETH, NotRoCEError, Packet, Transport
from transport.conftest import Start
from transport.datagrams import GSI_QKEY, QKEY
from transport.node import Node
from transport.plain import DEVICE, PEER, datagram, icrc_right, sealed
from waiting import until

pytestmark = pytest.mark.roce

VECTORS = Path(__file__).parents[1] / "vectors"
NOBODY = 65534
SERVICE = 0x0000000001061234
REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP, APR = range(0x10, 0x1B)
BY_ID = [MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REP, LAP, APR]


def mad(
    attribute: int, local: int = 0, remote: int = 0, service: int = 0, cls: int = 7, mark: int = 0
) -> bytes:
    """A MAD with what routing reads in its place, and a mark in its last bytes."""
    head = struct.pack("!BBBBHHQHHI", 1, cls, 2, 3, 0, 0, 0x1122334455667788, attribute, 0, 0)
    first, second = (remote, 0) if attribute == SIDR_REP else (local, remote)
    return (head + struct.pack("!IIQ", first, second, service)).ljust(252, b"\xee") + struct.pack("!I", mark)


def to_gsi(payload: bytes) -> bytes:
    return sealed(datagram(payload, 1, GSI_QKEY))


def open_gsi(node: Node, **more: object) -> int:
    """A context with a queue pair 1; the number of its slot."""
    assert node.call("dg_open", qp_type=QPType.GSI, qkey=GSI_QKEY, **more) == 1
    slot: int = node.call("dg_slot")
    return slot


def marks(node: Node, n: int = 1, timeout: float = 60.0) -> list[int]:
    return [int.from_bytes(got.payload[-4:], "big") for got in node.call("dg_take", n, "main", timeout)]


def mads_of(name: str) -> list[Transport]:
    found = []
    for record in read_pcap(VECTORS / name):
        try:
            packet = Packet.parse(record.data, record.linktype)
        except NotRoCEError:
            continue
        if packet.transport.bth.dqpn == 1:
            found.append(packet.transport)
    return found


@pytest.fixture
def peer(start: Start) -> Node:
    """A peer that is no rnic: a UDP socket."""
    node = start()
    node.call("plain_open")
    return node


# -- by communication id


@pytest.mark.wire
@pytest.mark.parametrize("order", [0, 1, 2])
def test_what_names_a_communication_id_reaches_its_process(start: Start, peer: Node, order: int) -> None:
    """Whoever gets the packet: with no queue pair 1 of its own, too."""
    nodes = [start(), start(), start()]
    bystander = nodes.pop(order)
    for node in sorted([*nodes, bystander], key=lambda node: node.pid):
        if node is bystander:
            node.call("dg_open")
        else:
            open_gsi(node)
    slots = [node.call("dg_slot") for node in nodes]
    assert slots[0] != slots[1]
    for node, slot in zip(nodes, slots, strict=True):
        for mark, attribute in enumerate(BY_ID):
            peer.call("plain_send", to_gsi(mad(attribute, 7, slot << 22 | 12345, mark=mark)))
            assert marks(node) == [mark]
    for node in nodes:
        assert node.call("dg_take", 1, "main", 0) == []
    for node in [*nodes, bystander]:
        assert node.call("dg_counters")["drop_bad_icrc"] == 0


@pytest.mark.wire
def test_for_a_slot_that_nobody_has_it_is_dropped(start: Start, peer: Node) -> None:
    node = start()
    slot = open_gsi(node)
    peer.call("plain_send", to_gsi(mad(RTU, 1, (slot ^ 1) << 22)))
    peer.call("plain_send", to_gsi(mad(RTU, 1, slot << 22, mark=3)))
    assert marks(node) == [3]
    assert node.call("dg_counters")["drop_no_slot"] == 1


@pytest.mark.wire
def test_whoever_disconnects_from_a_process_that_has_gone_gets_its_answer(start: Start, peer: Node) -> None:
    node = start()
    slot = open_gsi(node) ^ 1
    peer.call("plain_send", to_gsi(mad(DREQ, 7, slot << 22)))
    data = peer.call("plain_take")
    answer = Transport.parse(data).payload
    assert answer[:24] == mad(DREP)[:24]
    assert struct.unpack("!II", answer[24:32]) == (slot << 22, 7)
    assert icrc_right(data)
    assert node.call("dg_counters")["cm_refused"] == 0


def test_two_processes_shake_hands(start: Start) -> None:
    client, server = start(), start()
    client_id, server_id = open_gsi(client) << 22 | 1, open_gsi(server) << 22 | 2
    assert server.call("dg_listen", SERVICE) == ""
    to_one = {"qkey": GSI_QKEY}
    client.call("dg_send", DEVICE, 1, mad(REQ, client_id, 0, SERVICE, mark=1), **to_one)
    assert marks(server) == [1]
    server.call("dg_send", DEVICE, 1, mad(REP, server_id, client_id, mark=2), **to_one)
    assert marks(client) == [2]
    client.call("dg_send", DEVICE, 1, mad(RTU, client_id, server_id, mark=3), **to_one)
    (got,) = server.call("dg_take")
    assert got.payload == mad(RTU, client_id, server_id, mark=3)
    assert (got.src_qp, got.route.sgid) == (1, GID(DEVICE))


def test_a_process_shakes_hands_with_itself(start: Start) -> None:
    node = start()
    own = open_gsi(node) << 22 | 1
    node.call("dg_listen", SERVICE, DEVICE)
    node.call("dg_send", DEVICE, 1, mad(REQ, own, 0, SERVICE, mark=1), qkey=GSI_QKEY)
    assert marks(node) == [1]
    node.call("dg_send", DEVICE, 1, mad(REP, own, own, mark=2), qkey=GSI_QKEY)
    assert marks(node) == [2]


@pytest.mark.wire
def test_other_mads_and_other_keys(start: Start, peer: Node) -> None:
    node = start()
    open_gsi(node)
    peer.call("plain_send", to_gsi(mad(0x10, 1, 2, 3, cls=4, mark=1)))  # not the CM's class
    assert marks(node) == [1]
    peer.call("plain_send", sealed(datagram(mad(REQ), 1, QKEY)))
    peer.call("plain_send", to_gsi(mad(REQ)[:-4]))
    peer.call("plain_send", to_gsi(mad(0x10, cls=4, mark=2)))
    assert marks(node) == [2]
    counters = node.call("dg_counters")
    assert (counters["drop_bad_qkey"], counters["drop_malformed"], counters["cm_refused"]) == (1, 1, 0)


def test_there_is_one_queue_pair_1_in_a_context(start: Start) -> None:
    node = start()
    open_gsi(node)
    assert "already" in node.call("dg_refusal", qp_type=QPType.GSI, qkey=GSI_QKEY, beside="main")
    assert open_gsi(start()) >= 0
    assert "0x80010000" in node.call("dg_refusal", "x", qp_type=QPType.GSI, qkey=QKEY)


# -- by service


@pytest.mark.wire
def test_the_exact_address_goes_before_the_wildcard_wherever_they_are(start: Start, peer: Node) -> None:
    a, b, other = start(), start(), start()
    for node in (a, b, other):
        open_gsi(node)
    assert a.call("dg_listen", SERVICE) == ""
    peer.call("plain_send", to_gsi(mad(REQ, 1, 0, SERVICE, mark=1)))
    assert marks(a) == [1]
    assert b.call("dg_listen", SERVICE, DEVICE, reuse=True) == ""
    for mark in range(3):
        peer.call("plain_send", to_gsi(mad(SIDR_REQ, 1, 0, SERVICE, mark=mark)))
    assert sorted(marks(b, 3)) == [0, 1, 2]  # each may come by another process
    b.call("dg_unlisten", SERVICE)
    peer.call("plain_send", to_gsi(mad(REQ, 1, 0, SERVICE, mark=5)))
    assert marks(a) == [5]
    a.kill()
    peer.call("plain_send", to_gsi(mad(REQ, 1, 0, SERVICE)))
    assert peer.call("plain_take") is not None, "a dead listener's requests are refused"
    assert other.call("dg_take", 1, "main", 0) == []


def test_names_are_taken_as_the_kernel_takes_ports(start: Start) -> None:
    a, b = start(), start()
    open_gsi(a)
    open_gsi(b)
    taken = "EADDRINUSE"
    assert a.call("dg_listen", SERVICE) == ""
    assert [b.call("dg_listen", SERVICE, addr) for addr in (None, "0.0.0.0", DEVICE, "::1")] == [taken] * 4
    assert b.call("dg_listen", SERVICE + 1) == ""
    a.call("dg_unlisten", SERVICE)
    assert a.call("dg_listen", SERVICE, afonly=True) == ""
    assert b.call("dg_listen", SERVICE, "::1") == taken
    assert b.call("dg_listen", SERVICE, DEVICE) == ""
    assert a.call("dg_listen", SERVICE + 2, DEVICE) == ""
    assert b.call("dg_listen", SERVICE + 2) == taken
    assert b.call("dg_listen", SERVICE + 2, afonly=True) == ""
    assert a.call("dg_listen", SERVICE + 3, "10.9.8.7") == "EADDRNOTAVAIL"
    assert a.call("dg_listen", SERVICE + 4, DEVICE, hold=True) == ""
    assert [b.call("dg_listen", SERVICE + 4, addr) for addr in (None, DEVICE)] == [taken] * 2
    assert b.call("dg_listen", SERVICE + 4, DEVICE, hold=True) == taken
    a.call("dg_unlisten", SERVICE + 4)
    assert b.call("dg_listen", SERVICE + 4, DEVICE) == ""


@pytest.mark.wire
def test_requests_for_a_service_that_is_only_held_are_refused(start: Start, peer: Node) -> None:
    nodes = [start(), start()]
    for i, node in enumerate(nodes):
        open_gsi(node)
        assert node.call("dg_listen", SERVICE + i, DEVICE, hold=True) == ""
    for i, node in enumerate(nodes):
        peer.call("plain_send", to_gsi(mad(REQ, 1, 0, SERVICE + i)))
        assert peer.call("plain_take") is not None
        assert node.call("dg_take", 1, "main", 0) == []


@pytest.mark.wire
def test_the_ipv6_wildcard_alone_takes_no_ipv4(start: Start, peer: Node) -> None:
    node = start()
    open_gsi(node)
    node.call("dg_listen", SERVICE, afonly=True)
    peer.call("plain_send", to_gsi(mad(REQ, 1, 0, SERVICE)))
    assert peer.call("plain_take") is not None
    assert node.call("dg_take", 1, "main", 0) == []


@pytest.mark.wire
def test_a_stopped_listener_delays_nobody_else(start: Start, peer: Node) -> None:
    frozen, busy = start(), start()
    open_gsi(frozen)
    slot = open_gsi(busy)
    frozen.call("dg_listen", SERVICE)
    frozen.signal(signal.SIGSTOP)
    for _ in range(40):  # more than its socket holds
        peer.call("plain_send", to_gsi(mad(REQ, 1, 0, SERVICE)))
    peer.call("plain_send", to_gsi(mad(RTU, 1, slot << 22, mark=9)))
    frozen.signal(signal.SIGCONT)
    assert marks(busy) == [9]
    assert peer.call("plain_take", 0.2) is None, "a request that was lost is not refused"
    assert len(marks(frozen, 5)) == 5


@pytest.mark.wire
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("owner_listens", [True, False])
def test_users_share_an_address(start: Start, peer: Node, owner_listens: bool) -> None:
    owner, other = start(), start(uid=NOBODY)
    slots = {node: open_gsi(node) for node in (owner, other)}
    listener = owner if owner_listens else other
    assert listener.call("dg_listen", SERVICE) == ""
    assert (other if owner_listens else owner).call("dg_listen", SERVICE) == "EADDRINUSE"
    peer.call("plain_send", to_gsi(mad(REQ, 1, 0, SERVICE, mark=1)))
    assert marks(listener) == [1]
    for node, slot in slots.items():
        for _ in range(15):  # a datagram may be lost on a busy machine: the CM sends again, too
            peer.call("plain_send", to_gsi(mad(DREQ, 1, slot << 22, mark=2)))
            if found := marks(node, timeout=4.0):
                break
        assert found == [2]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_stranger_cannot_put_packets_into_a_listener(start: Start) -> None:
    """Only whoever owns the port may hand on what came to it."""
    node, stranger = start(), start(uid=NOBODY)
    open_gsi(node)
    node.call("dg_listen", SERVICE, DEVICE)
    stranger.call("forge_forward", SERVICE, DEVICE, to_gsi(mad(REQ, 1, 0, SERVICE, mark=1)), PEER)
    assert node.call("dg_take", 1, "main", 0.3) == []
    start_of_root = start()
    start_of_root.call("forge_forward", SERVICE, DEVICE, to_gsi(mad(REQ, 1, 0, SERVICE, mark=2)), PEER)
    assert marks(node) == [2]


@pytest.mark.wire
def test_a_listeners_name_is_free_at_once_when_it_is_killed_though_its_forked_child_lives(
    start: Start, peer: Node
) -> None:
    parent, other = start(), start()
    open_gsi(parent)
    parent.call("dg_open", "group")
    parent.call("dg_attach", "239.77.9.9", "group")
    open_gsi(other)
    assert parent.call("dg_listen", SERVICE) == ""
    child = parent.call("fork")
    try:
        parent.kill()
        assert other.call("dg_listen", SERVICE) == ""
        peer.call("plain_send", to_gsi(mad(REQ, 1, 0, SERVICE, mark=4)))
        assert marks(other) == [4]
    finally:
        os.kill(child, signal.SIGKILL)


# -- nobody listens


@pytest.mark.wire
def test_the_answer_to_the_kernels_request_is_the_kernels_rejection(start: Start, peer: Node) -> None:
    request, rejection = mads_of("rxe-reject.pcap")
    node = start()
    node.call("dg_open")  # no queue pair 1 anywhere on this host
    peer.call("plain_send", sealed(request))
    data = peer.call("plain_take")
    answer = Transport.parse(data)
    assert answer.payload == rejection.payload
    assert answer.ext == rejection.ext == (DETH(GSI_QKEY, 1),)
    assert replace(answer.bth, psn=0) == replace(rejection.bth, psn=0, migreq=True, ackreq=False)
    assert icrc_right(data)
    assert node.call("dg_counters")["cm_refused"] == 1


@pytest.mark.wire
def test_a_request_whose_addresses_were_changed_on_its_way_is_told_from_a_damaged_one(
    start: Start, peer: Node
) -> None:
    request, _ = mads_of("rxe-reject.pcap")
    sent_from, sent_to = (
        "10.1.2.3",
        "192.0.2.1",
    )  # as its sender knows them; what comes is from PEER to DEVICE
    data = bytearray(request.payload)
    data[80:112] = GID(sent_from).raw + GID(sent_to).raw  # primary local and remote port GID (IBA 12.6.5)
    translated = replace(request, payload=bytes(data), icrc=0)
    node = start()
    node.call("dg_open")
    peer.call("plain_send", sealed(translated, sent_from, sent_to))
    until(lambda: node.call("dg_counters")["drop_nat"] == 1, "it is known as translated")
    peer.call("plain_send", sealed(translated, "10.9.9.9", sent_to))
    until(lambda: node.call("dg_counters")["drop_bad_icrc"] == 1, "and this as damaged")
    assert node.call("dg_counters")["drop_nat"] == 1


@pytest.mark.wire
def test_a_datagram_service_that_nobody_offers_is_denied(start: Start, peer: Node) -> None:
    request, accepted = mads_of("rxe-udaddy.pcap")[:2]
    node = start()
    open_gsi(node)
    peer.call("plain_send", sealed(request))
    answer = Transport.parse(peer.call("plain_take")).payload
    assert answer[:28] == accepted.payload[:28], "the same header, and the same request"
    assert answer[28] == 1, "service ID not supported"
    assert answer[36:44] == accepted.payload[36:44] == request.payload[32:40]
    assert node.call("dg_take", 1, "main", 0) == []


@pytest.mark.wire
def test_a_harmed_request_is_not_answered(start: Start, peer: Node) -> None:
    node = start()
    open_gsi(node)
    bad = bytearray(to_gsi(mad(REQ, 1, 0, SERVICE)))
    bad[-6] ^= 1
    peer.call("plain_send", bytes(bad))
    assert peer.call("plain_take", 0.2) is None
    assert node.call("dg_counters")["drop_bad_icrc"] == 1


def test_the_answer_goes_to_the_queue_pair_that_asked(start: Start) -> None:
    client, server = start(), start()
    own = open_gsi(client) << 22 | 77
    server.call("dg_open")
    client.call("dg_send", DEVICE, 1, mad(REQ, own, 0, SERVICE), qkey=GSI_QKEY)
    (got,) = client.call("dg_take")
    assert struct.unpack_from("!HHIIIHH", got.payload, 16) == (REJ, 0, 0, 0, own, 0, 8)
