# SPDX-License-Identifier: Apache-2.0
"""Requests and replies that are refused, and the last words that are kept for those that come again."""

from __future__ import annotations

from cm.fabric import (
    MS,
    SERVICE,
    Fabric,
    Node,
    a_req,
    accepted,
    accepting,
    call,
    conn_of,
    connected,
    lost,
    server_and_client,
)
from rnic.cm import EventType, IbCm, State, iba_ns
from rnic.cm.ib_cm import ANSWERS_KEPT
from rnic.wire import Answered, Rej, RejReason, TransportType, parse_cm

# -------------------------------------------------------------------------------- refusing


def rejecting(**more: bytes) -> tuple[Fabric, Node, Node]:
    fabric = Fabric()
    server, client = fabric.node("server"), fabric.node("client")
    server.cm.listen(SERVICE, 0)
    server.on(
        EventType.REQ_RECEIVED,
        lambda e, now: conn_of(e).send_rej(RejReason.CONSUMER_DEFINED, now, **more),
    )
    return fabric, server, client


def test_a_server_refuses_with_reason_and_words() -> None:
    fabric, server, client = rejecting(private_data=b"no", ari=b"why")
    conn = call(fabric, client)
    fabric.run()
    assert fabric.names() == ["REQ", "REJ"]
    rej = client.events[0].message
    assert isinstance(rej, Rej)
    assert (rej.reason, rej.private_data[:3], rej.info) == (28, b"no\0", b"why")
    assert (rej.message, rej.local_comm_id) == (Answered.REQ, 0)
    assert conn.over
    assert len(server.cm.table) == len(client.cm.table) == 0


def test_a_refused_req_that_comes_again_gets_the_same_rej_and_no_second_event() -> None:
    fabric, server, client = rejecting()
    fabric.faults.lose = frozenset({("REJ", 0), ("REJ", 1)})
    call(fabric, client)
    fabric.run()
    assert fabric.names() == ["REQ", "REJ"] * 3
    assert server.seen() == ["REQ_RECEIVED"]
    assert client.seen() == ["REJ_RECEIVED"]


def test_a_new_req_with_a_used_id_is_a_new_request() -> None:
    """The answer that is kept is for the same bytes only."""
    fabric, server, _ = rejecting()
    for psn in (1, 2):
        req = a_req(local_comm_id=7, local_ca_guid=9, starting_psn=psn)
        server.cm.input(req.to_mad(5).emit(), "client", 0)
        fabric.settle()
    assert server.seen() == ["REQ_RECEIVED", "REQ_RECEIVED"]


def test_a_port_without_listener_is_an_invalid_service_id() -> None:
    fabric = Fabric()
    fabric.node("server")
    client = fabric.node("client")
    call(fabric, client)
    fabric.run()
    rej = client.events[0].message
    assert isinstance(rej, Rej)
    assert (rej.reason, rej.local_comm_id) == (RejReason.INVALID_SERVICE_ID, 0)


def test_a_port_of_its_own_without_listener_is_an_invalid_service_id() -> None:
    fabric = Fabric()
    client = fabric.node("client")
    for qpn in (1, 2):
        call(fabric, client, to="client", local_qpn=qpn)
    fabric.run()
    reasons = [event.message.reason for event in client.events if isinstance(event.message, Rej)]
    assert reasons == [RejReason.INVALID_SERVICE_ID] * 2


def test_peers_that_call_each_other_are_both_refused_as_unsupported() -> None:
    fabric = Fabric()
    one, two = fabric.node("one"), fabric.node("two")
    ends = [call(fabric, one, to="two", local_qpn=1), call(fabric, two, to="one", local_qpn=2)]
    fabric.run()
    for node in (one, two):
        rej = node.events[0].message
        assert isinstance(rej, Rej)
        assert rej.reason == RejReason.UNSUPPORTED
    assert all(conn.over for conn in ends)


def test_reliable_datagrams_are_an_invalid_transport() -> None:
    fabric, server, client = server_and_client()
    call(fabric, client, transport_type=TransportType.RD)
    fabric.run()
    rej = client.events[0].message
    assert isinstance(rej, Rej)
    assert rej.reason == RejReason.INVALID_TRANSPORT_TYPE
    assert not server.events


def test_a_client_refuses_a_rep() -> None:
    fabric = Fabric()
    server, client = fabric.node("server"), fabric.node("client")
    accepting(server)
    client.on(EventType.REP_RECEIVED, lambda e, now: conn_of(e).send_rej(RejReason.NO_RESOURCES, now))
    call(fabric, client)
    fabric.run()
    assert fabric.names() == ["REQ", "REP", "REJ"]
    rej = server.events[-1].message
    assert isinstance(rej, Rej)
    assert (rej.message, rej.reason) == (Answered.REP, RejReason.NO_RESOURCES)
    assert len(server.cm.table) == 0


def test_a_rep_for_a_client_that_is_gone_is_refused() -> None:
    fabric, server, client = lost(("REJ", 0))
    client.on(EventType.REP_RECEIVED, lambda e, now: conn_of(e).close(now))
    call(fabric, client)
    fabric.run()
    assert fabric.names() == ["REQ", "REP", "REJ", "REP", "REJ"]
    rej = server.events[-1].message
    assert isinstance(rej, Rej)
    assert rej.reason == RejReason.INVALID_COMM_ID
    assert len(server.cm.table) == 0


def test_a_server_that_takes_its_rep_back_is_heard_even_when_the_rep_was_lost() -> None:
    fabric, server, client = lost(("REP", 0))
    conn = call(fabric, client)
    fabric.run(until=MS)
    accepted(server).send_rej(RejReason.NO_RESOURCES, fabric.now)
    fabric.run()
    assert client.seen() == ["REJ_RECEIVED"]
    assert conn.over
    assert server.seen() == ["REQ_RECEIVED", "TIMEWAIT_EXIT"]


def test_a_rej_that_is_lost_after_the_rep_is_said_again() -> None:
    fabric, server, client = lost(("REP", 0), ("REJ", 0))
    call(fabric, client)
    fabric.run(until=MS)
    accepted(server).send_rej(RejReason.NO_RESOURCES, fabric.now)
    fabric.run()
    assert client.seen() == ["REJ_RECEIVED"]
    rej = client.events[0].message
    assert isinstance(rej, Rej)
    assert rej.reason == RejReason.NO_RESOURCES


def test_a_rej_releases_an_established_connection() -> None:
    fabric, server, client = server_and_client()
    active, passive = connected(fabric, server, client)
    rej = Rej(
        local_comm_id=passive.local_comm_id, remote_comm_id=active.local_comm_id,
        message=Answered.OTHER, reason=RejReason.NO_RESOURCES,
    )  # fmt: skip
    client.cm.input(rej.to_mad(1).emit(), "server", fabric.now)
    fabric.settle()
    assert active.state is State.TIMEWAIT
    assert client.seen()[-1] == "REJ_RECEIVED"


def test_a_client_that_gives_up_tells_a_server_that_waits_for_its_program() -> None:
    fabric = Fabric()
    server, client = fabric.node("server"), fabric.node("client")
    server.cm.listen(SERVICE, 0)
    call(fabric, client, max_cm_retries=1)
    fabric.run()
    assert client.seen() == ["REQ_ERROR"]
    assert server.seen() == ["REQ_RECEIVED", "REJ_RECEIVED"]  # found by GUID and id: it never gave its own
    rej = server.events[-1].message
    assert isinstance(rej, Rej)
    assert (rej.reason, rej.info) == (RejReason.TIMEOUT, client.cm.ca_guid.to_bytes(8, "big"))
    assert accepted(server).over


def test_a_req_of_another_class_version_is_refused() -> None:
    cm = IbCm(1, 0xA0)
    mad = a_req(local_comm_id=7).to_mad(3)
    cm.input(bytes([*mad.emit()[:2], 1, *mad.emit()[3:]]), "peer", 0)
    (send,) = cm.take_sends()
    rej = parse_cm(send.mad)
    assert isinstance(rej, Rej)
    assert (rej.reason, rej.remote_comm_id, send.dest) == (RejReason.INVALID_CLASS_VERSION, 7, "peer")


# -------------------------------------------------------------------------------- last words


def test_a_last_word_is_kept_for_69_s() -> None:
    fabric = Fabric()
    server = fabric.node("server")
    server.on(EventType.REQ_RECEIVED, lambda e, now: conn_of(e).send_rej(RejReason.CONSUMER_DEFINED, now))
    server.cm.listen(SERVICE, 0)
    req = a_req(local_comm_id=7, local_ca_guid=9).to_mad(5).emit()
    for now, events in (0, 1), (1, 1), (iba_ns(24), 1), (iba_ns(24) + 1, 2):
        server.cm.input(req, "client", now)
        fabric.settle()
        assert len(server.events) == events, now
    assert fabric.names() == ["REJ"] * 4


def test_so_many_last_words_are_kept_and_no_more() -> None:
    """A flood of requests that are refused makes nobody hold more than that; the oldest goes."""
    fabric = Fabric()
    server = fabric.node("server")
    server.on(EventType.REQ_RECEIVED, lambda e, now: conn_of(e).send_rej(RejReason.CONSUMER_DEFINED, now))
    server.cm.listen(SERVICE, 0)
    reqs = [
        a_req(local_comm_id=n, local_qpn=n, local_ca_guid=9).to_mad(n) for n in range(1, ANSWERS_KEPT + 2)
    ]
    for req in reqs:
        server.cm.input(req.emit(), "client", 0)
        fabric.settle()
    server.cm.input(reqs[1].emit(), "client", 1)
    fabric.settle()
    assert len(server.events) == len(reqs)
    server.cm.input(reqs[0].emit(), "client", 1)
    fabric.settle()
    assert len(server.events) == len(reqs) + 1
