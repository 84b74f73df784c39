# SPDX-License-Identifier: Apache-2.0
"""Connections between two managers: what programs see, and what is on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from cm.fabric import (
    MS,
    SERVICE,
    Fabric,
    Faults,
    Node,
    a_rep,
    a_req,
    accepted,
    accepting,
    call,
    confirming,
    conn_of,
    server_and_client,
)
from rnic.cm import Connection, EventType, IbCm, State, iba_ns
from rnic.cm.ib_cm import ANSWERS_KEPT
from rnic.wire import (
    MAD,
    Answered,
    CmAttr,
    CmMessage,
    Drep,
    Dreq,
    Lap,
    Mra,
    Rej,
    RejReason,
    Rep,
    Req,
    Rtu,
    TransportType,
    parse_cm,
)

WAIT = 2 * iba_ns(7) + iba_ns(12)  # what the client waits for an answer
SERVER_WAIT = iba_ns(12)


def lost(*what: tuple[str, int]) -> tuple[Fabric, Node, Node]:
    return server_and_client(Faults(lose=frozenset(what)))


def connected(fabric: Fabric, server: Node, client: Node, **changed: Any) -> tuple[Connection, Connection]:
    """Both ends, the active one first."""
    conn = call(fabric, client, **changed)
    fabric.run(until=fabric.now + 1000 * MS)
    assert conn.state is State.ESTABLISHED
    return conn, accepted(server, server.seen().count("REQ_RECEIVED") - 1)


# -------------------------------------------------------------------------------- setting up


def test_a_handshake_is_three_messages() -> None:
    fabric, server, client = server_and_client()
    active, passive = connected(fabric, server, client)
    assert fabric.names() == ["REQ", "REP", "RTU"]
    assert (client.seen(), server.seen()) == (["REP_RECEIVED"], ["REQ_RECEIVED", "RTU_RECEIVED"])
    assert (active.remote_comm_id, passive.remote_comm_id) == (passive.local_comm_id, active.local_comm_id)
    assert (active.remote_qpn, passive.remote_qpn) == (0x222, 0x111)
    assert (active.remote_ca_guid, passive.remote_ca_guid) == (server.cm.ca_guid, client.cm.ca_guid)
    assert passive.peer == "client"


def test_events_bring_the_message_with_private_data_and_ece() -> None:
    fabric = Fabric()
    server, client = fabric.node("server"), fabric.node("client")
    listener = server.cm.listen(SERVICE, 0)
    server.on(
        EventType.REQ_RECEIVED,
        lambda e, now: conn_of(e).send_rep(a_rep(private_data=b"yes", vendor_id=9), now, attr_mod=7),
    )
    client.on(EventType.REP_RECEIVED, lambda e, now: conn_of(e).send_rtu(now, b"good"))
    conn = client.cm.connection("server")
    conn.send_req(a_req(private_data=b"please", vendor_id=0x15B3), 0, attr_mod=5)
    fabric.run(until=WAIT)
    asked, confirmed = server.events
    assert asked.listener is listener
    assert isinstance(asked.message, Req)
    assert asked.message.private_data[:7] == b"please\0"
    assert (asked.message.vendor_id, asked.attr_mod) == (0x15B3, 5)
    assert isinstance(confirmed.message, Rtu)
    assert confirmed.message.private_data[:5] == b"good\0"
    replied = client.events[0]
    assert isinstance(replied.message, Rep)
    assert (replied.message.private_data[:4], replied.message.vendor_id, replied.attr_mod) == (b"yes\0", 9, 7)


def test_the_messages_of_a_connection_share_a_transaction_id() -> None:
    fabric, server, client = server_and_client()
    _, passive = connected(fabric, server, client)
    passive.send_dreq(fabric.now)
    fabric.run()
    req, rep, rtu, dreq, drep = fabric.tids
    assert req == rep == rtu
    assert dreq == drep != req


@pytest.mark.parametrize("count", [1, 3, 7])
def test_a_lost_req_is_sent_again(count: int) -> None:
    fabric, server, client = lost(*(("REQ", i) for i in range(count)))
    connected(fabric, server, client)
    assert fabric.names() == ["REQ"] * (count + 1) + ["REP", "RTU"]
    times = [time for time, _, _, name in fabric.trace if name == "REQ"]
    assert times == [i * WAIT for i in range(count + 1)]
    assert client.cm.statistics().resent == count


def test_nobody_answers() -> None:
    fabric = Fabric()
    client = fabric.node("client")
    conn = call(fabric, client, to="nowhere")
    fabric.run()
    assert client.seen() == ["REQ_ERROR"]
    assert fabric.trace[-1][0] == 8 * WAIT  # max_cm_retries 7: sent 8 times
    assert fabric.names() == ["REQ"] * 8 + ["REJ"]
    assert conn.over
    assert len(client.cm.table) == 0


def test_a_lost_rep_is_sent_again_when_the_req_comes_again_or_time_passes() -> None:
    fabric, server, client = lost(("REP", 0))
    connected(fabric, server, client)
    assert server.seen() == ["REQ_RECEIVED", "RTU_RECEIVED"]
    fabric, server, client = lost(("REP", 0))
    connected(fabric, server, client, remote_cm_timeout=8)  # the client repeats before the server does
    assert fabric.names() == ["REQ", "REP", "REQ", "REP", "RTU"]


def test_a_lost_rtu_is_sent_again_when_the_rep_comes_again() -> None:
    fabric, server, client = lost(("RTU", 0), ("RTU", 1))
    connected(fabric, server, client)
    assert fabric.names() == ["REQ", "REP", "RTU", "REP", "RTU", "REP", "RTU"]
    assert client.seen() == ["REP_RECEIVED"]
    assert server.seen() == ["REQ_RECEIVED", "RTU_RECEIVED"]


def test_data_before_the_rtu_establishes_the_connection() -> None:
    fabric, server, client = lost(*(("RTU", i) for i in range(20)))
    call(fabric, client)
    fabric.run(until=SERVER_WAIT // 2)
    passive = accepted(server)
    assert passive.state is State.REP_SENT
    passive.establish(fabric.now)
    passive.establish(fabric.now)  # a second datum
    fabric.run(until=1000 * MS)
    assert server.seen() == ["REQ_RECEIVED", "USER_ESTABLISHED"]
    assert fabric.names() == ["REQ", "REP", "RTU"]


def test_a_server_that_never_hears_an_rtu_gives_up_and_rests() -> None:
    fabric, server, client = lost(*(("RTU", i) for i in range(20)))
    active = call(fabric, client)
    fabric.run(until=8 * SERVER_WAIT + 10 * MS)
    assert server.seen() == ["REQ_RECEIVED", "REP_ERROR", "TIMEWAIT_EXIT"]
    assert fabric.names().count("REP") == 8
    assert client.seen()[:2] == ["REP_RECEIVED", "REJ_RECEIVED"]  # it is told
    fabric.run()
    assert active.over
    assert len(server.cm.table) == len(client.cm.table) == 0


# -------------------------------------------------------------------------------- more time


def test_an_mra_makes_the_client_wait_longer() -> None:
    fabric = Fabric()
    server, client = fabric.node("server"), fabric.node("client")
    server.cm.listen(SERVICE, 0)
    confirming(client)
    server.on(EventType.REQ_RECEIVED, lambda e, now: conn_of(e).send_mra(16, now, b"busy"))
    call(fabric, client)
    fabric.run(until=iba_ns(16) // 2)
    assert fabric.names() == ["REQ", "MRA"]
    assert client.seen() == ["MRA_RECEIVED"]
    accepted(server).send_rep(a_rep(), fabric.now)
    fabric.run(until=fabric.now + 1000 * MS)
    assert fabric.names() == ["REQ", "MRA", "REP", "RTU"]


def test_a_held_mra_answers_the_repeated_req_only() -> None:
    fabric = Fabric()
    server, client = fabric.node("server"), fabric.node("client")
    server.cm.listen(SERVICE, 0)
    server.on(EventType.REQ_RECEIVED, lambda e, now: conn_of(e).send_mra(16, now, held=True))
    call(fabric, client)
    fabric.run(until=WAIT // 2)
    assert fabric.names() == ["REQ"]
    fabric.run(until=WAIT + 50 * MS)
    assert fabric.names() == ["REQ", "REQ", "MRA"]
    assert client.seen() == ["MRA_RECEIVED"]


def test_a_client_may_ask_for_time_too() -> None:
    fabric = Fabric()
    server, client = fabric.node("server"), fabric.node("client")
    accepting(server)
    client.on(EventType.REP_RECEIVED, lambda e, now: conn_of(e).send_mra(16, now))
    active = call(fabric, client)
    fabric.run(until=iba_ns(16) // 2)
    assert fabric.names() == ["REQ", "REP", "MRA"]
    assert server.seen() == ["REQ_RECEIVED", "MRA_RECEIVED"]
    active.send_rtu(fabric.now)
    fabric.run(until=fabric.now + 1000 * MS)
    assert accepted(server).state is State.ESTABLISHED


def test_a_peer_that_asks_for_hours_gets_a_minute() -> None:
    fabric = Fabric()
    server, client = fabric.node("server"), fabric.node("client")
    server.cm.listen(SERVICE, 0)
    server.on(EventType.REQ_RECEIVED, lambda e, now: conn_of(e).send_mra(31, now))
    conn = call(fabric, client)
    fabric.run(until=MS)
    deadline = conn.deadline()
    assert deadline is not None
    assert deadline < 70 * 1000 * MS


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


# -------------------------------------------------------------------------------- duplicates


def test_a_network_that_says_everything_twice_changes_nothing() -> None:
    fabric, server, client = server_and_client(Faults(repeat=1.0))
    active, _ = connected(fabric, server, client)
    active.send_dreq(fabric.now)
    fabric.run()
    assert client.seen() == ["REP_RECEIVED", "DREP_RECEIVED", "TIMEWAIT_EXIT"]
    assert server.seen() == ["REQ_RECEIVED", "RTU_RECEIVED", "DREQ_RECEIVED", "TIMEWAIT_EXIT"]
    assert len(server.cm.table) == len(client.cm.table) == 0


def test_a_late_req_of_a_connection_in_timewait_is_stale() -> None:
    fabric, server, client = server_and_client()
    active, passive = connected(fabric, server, client)
    active.send_dreq(fabric.now)
    fabric.run(until=fabric.now + MS // 2)
    assert passive.state is State.TIMEWAIT
    req = a_req(local_comm_id=active.local_comm_id, local_ca_guid=client.cm.ca_guid)
    server.cm.input(req.to_mad(1).emit(), "client", fabric.now)
    (send,) = server.cm.take_sends()
    rej = parse_cm(send.mad)
    assert isinstance(rej, Rej)
    assert (rej.reason, rej.message) == (RejReason.STALE_CONN, Answered.REQ)


# -------------------------------------------------------------------------------- releasing


def test_either_end_may_disconnect() -> None:
    for which in (0, 1):
        fabric, server, client = server_and_client()
        ends = connected(fabric, server, client)
        ends[which].send_dreq(fabric.now, b"bye")
        fabric.run()
        assert fabric.names()[3:] == ["DREQ", "DREP"]
        asker, other = (client, server) if which == 0 else (server, client)
        assert asker.seen()[-2:] == ["DREP_RECEIVED", "TIMEWAIT_EXIT"]
        assert other.seen()[-2:] == ["DREQ_RECEIVED", "TIMEWAIT_EXIT"]
        dreq = other.events[-2].message
        assert isinstance(dreq, Dreq)
        assert dreq.private_data[:4] == b"bye\0"
        assert dreq.remote_qpn == ends[1 - which].local_qpn


def test_both_ends_may_disconnect_at_once() -> None:
    fabric, server, client = server_and_client()
    for conn in connected(fabric, server, client):
        conn.send_dreq(fabric.now)
    fabric.run()
    assert sorted(fabric.names()[3:]) == ["DREP", "DREP", "DREQ", "DREQ"]
    for node in (server, client):
        assert node.seen().count("TIMEWAIT_EXIT") == 1
        assert len(node.cm.table) == 0


@pytest.mark.parametrize("missing", [[("DREQ", 0)], [("DREP", 0)], [("DREP", 0), ("DREP", 1), ("DREQ", 2)]])
def test_a_lost_release_is_sent_again(missing: list[tuple[str, int]]) -> None:
    fabric, server, client = lost(*missing)
    active, _ = connected(fabric, server, client)
    active.send_dreq(fabric.now)
    fabric.run()
    assert client.seen()[-2:] == ["DREP_RECEIVED", "TIMEWAIT_EXIT"]
    assert server.seen().count("DREQ_RECEIVED") == 1


def test_a_dreq_is_answered_after_the_connection_is_gone() -> None:
    """TIMEWAIT is over long before the third DREQ comes; the kernel answers it as we do."""
    fabric, server, client = lost(*(("DREP", i) for i in range(3)))
    active, passive = connected(fabric, server, client)
    active.send_dreq(fabric.now)
    fabric.run(until=fabric.now + WAIT // 2)
    assert passive.over
    fabric.run()
    assert client.seen()[-2:] == ["DREP_RECEIVED", "TIMEWAIT_EXIT"]
    assert server.seen().count("DREQ_RECEIVED") == 1


def test_a_dreq_for_an_unknown_id_gets_a_drep_with_its_ids() -> None:
    cm = IbCm(1, 0xA0)
    cm.input(Dreq(local_comm_id=5, remote_comm_id=6).to_mad(9).emit(), "peer", 0)
    (send,) = cm.take_sends()
    assert send.mad.tid == 9
    assert parse_cm(send.mad) == Drep.parse(Drep(local_comm_id=6, remote_comm_id=5).emit())


def test_a_dreq_for_another_queue_pair_is_dropped() -> None:
    fabric, server, client = server_and_client()
    active, passive = connected(fabric, server, client)
    dreq = Dreq(local_comm_id=active.local_comm_id, remote_comm_id=passive.local_comm_id, remote_qpn=0x999)
    server.cm.input(dreq.to_mad(1).emit(), "client", fabric.now)
    fabric.run(until=fabric.now + MS)
    assert passive.state is State.ESTABLISHED
    assert server.cm.statistics().dropped["a DREQ for another queue pair"] == 1


def test_a_peer_that_never_confirms_a_release_is_waited_for_so_long() -> None:
    fabric, server, client = lost(*(("DREQ", i) for i in range(20)))
    active, _ = connected(fabric, server, client)
    start = fabric.now
    active.send_dreq(start)
    fabric.run()
    assert client.seen()[-2:] == ["DREQ_ERROR", "TIMEWAIT_EXIT"]
    assert fabric.names().count("DREQ") == 8
    assert fabric.now == start + 8 * WAIT + active._timewait_ns()


def test_a_dreq_establishes_and_releases_where_the_rtu_was_lost() -> None:
    fabric, server, client = lost(("RTU", 0))
    active = call(fabric, client)
    fabric.run(until=MS)
    active.send_dreq(fabric.now)
    fabric.run()
    assert server.seen() == ["REQ_RECEIVED", "DREQ_RECEIVED", "TIMEWAIT_EXIT"]
    assert client.seen()[-2:] == ["DREP_RECEIVED", "TIMEWAIT_EXIT"]


def test_timewait_lasts_as_long_as_a_packet_can_be_under_way() -> None:
    fabric, server, client = server_and_client()
    active, passive = connected(fabric, server, client)
    active.send_dreq(fabric.now)
    start = fabric.now
    fabric.run(until=start + MS // 2)
    assert active.deadline() == start + 2 * fabric.faults.delay + 2 * iba_ns(7) + iba_ns(5)
    assert passive.deadline() == start + fabric.faults.delay + iba_ns(8)  # the client's ACK timeout


# -------------------------------------------------------------------------------- letting go


def test_closing_tells_the_peer_and_no_one_else() -> None:
    fabric, server, client = server_and_client()
    active, _ = connected(fabric, server, client)
    client.events.clear()
    active.close(fabric.now)
    active.close(fabric.now)
    fabric.run()
    assert fabric.names()[3:] == ["DREQ", "DREP"]
    assert client.events == []
    assert server.seen()[-2:] == ["DREQ_RECEIVED", "TIMEWAIT_EXIT"]


def test_events_that_nobody_has_taken_yet_die_with_their_connection() -> None:
    fabric, server, client = server_and_client()
    active, passive = connected(fabric, server, client)
    passive.send_dreq(fabric.now)
    (send,) = server.cm.take_sends()
    client.cm.input(send.mad.emit(), "server", fabric.now)
    active.close(fabric.now)
    assert client.cm.take_events() == []
    assert active.state is State.TIMEWAIT


def test_both_ends_may_close_at_once() -> None:
    fabric, server, client = server_and_client()
    for conn in connected(fabric, server, client):
        conn.close(fabric.now)
    fabric.run()
    assert sorted(fabric.names()[3:]) == ["DREP", "DREP", "DREQ", "DREQ"]
    assert len(server.cm.table) == len(client.cm.table) == 0


def test_a_closed_listener_refuses_and_its_connections_live() -> None:
    fabric = Fabric()
    server, client = fabric.node("server"), fabric.node("client")
    listener = accepting(server)
    confirming(client)
    active, _ = connected(fabric, server, client)
    listener.close(fabric.now)
    again = call(fabric, client, local_qpn=0x333)
    fabric.run(until=fabric.now + 1000 * MS)
    assert active.state is State.ESTABLISHED
    assert again.over
    server.cm.listen(SERVICE, fabric.now)


# -------------------------------------------------------------------------------- stale connections


def test_a_queue_pair_that_calls_again_ends_its_old_connection() -> None:
    """The client's host was restarted: same GUID, same queue pair, other ids."""
    fabric, server, client = server_and_client()
    _, passive = connected(fabric, server, client)
    reborn = fabric.node("client", guid=client.cm.ca_guid)
    reborn.cm = IbCm(2, client.cm.ca_guid)
    confirming(reborn)
    first = call(fabric, reborn)
    fabric.run(until=fabric.now + MS)
    rej = reborn.events[0].message
    assert isinstance(rej, Rej)
    assert rej.reason == RejReason.STALE_CONN
    assert passive.state is State.TIMEWAIT  # its DREQ was answered, though nobody knew of the connection
    fabric.run()
    assert first.over
    assert reborn.seen() == ["REJ_RECEIVED", "TIMEWAIT_EXIT"]
    second = call(fabric, reborn)
    fabric.run(until=fabric.now + 1000 * MS)
    assert second.state is State.ESTABLISHED


def test_a_rep_from_a_queue_pair_that_is_connected_ends_the_old_connection() -> None:
    fabric = Fabric()
    server, client = fabric.node("server"), fabric.node("client")
    accepting(server)  # always queue pair 0x222
    confirming(client)
    old, _ = connected(fabric, server, client)
    call(fabric, client, local_qpn=0x333)
    fabric.run(until=fabric.now + MS)
    assert old.state in (State.DREQ_SENT, State.TIMEWAIT)
    rej = server.events[3].message
    assert isinstance(rej, Rej)
    assert (rej.reason, rej.message) == (RejReason.STALE_CONN, Answered.REP)


def test_a_queue_pair_may_call_again_while_its_connection_is_in_timewait() -> None:
    fabric, server, client = server_and_client()
    active, passive = connected(fabric, server, client)
    active.send_dreq(fabric.now)
    fabric.run(until=fabric.now + MS // 2)
    assert passive.state is State.TIMEWAIT
    again = call(fabric, client)
    fabric.run(until=fabric.now + MS)
    assert again.state is State.ESTABLISHED


# -------------------------------------------------------------------------------- others


def test_a_manager_may_call_itself() -> None:
    fabric = Fabric()
    node = fabric.node("self")
    accepting(node)
    node.on(EventType.REP_RECEIVED, lambda e, now: conn_of(e).send_rtu(now))
    active = call(fabric, node, to="self")
    fabric.run(until=1000 * MS)
    assert active.state is State.ESTABLISHED
    active.send_dreq(fabric.now)
    fabric.run()
    assert node.seen().count("TIMEWAIT_EXIT") == 2
    assert len(node.cm.table) == 0


def test_an_alternate_path_is_answered_as_unsupported() -> None:
    fabric, server, client = server_and_client()
    active, passive = connected(fabric, server, client)
    lap = Lap(local_comm_id=active.local_comm_id, remote_comm_id=passive.local_comm_id)
    server.cm.input(lap.to_mad(77).emit(), "client", fabric.now)
    (send,) = server.cm.take_sends()
    assert (send.mad.attr_id, send.mad.tid, send.mad.data[9]) == (CmAttr.APR, 77, 2)


@pytest.mark.parametrize(
    "message",
    [
        Rtu(local_comm_id=1, remote_comm_id=2),
        Drep(local_comm_id=1, remote_comm_id=2),
        Mra(local_comm_id=1, remote_comm_id=2),
        Mra(local_comm_id=1, remote_comm_id=2, message=3),
        Rej(local_comm_id=1, remote_comm_id=2, reason=28),
        Rej(local_comm_id=1, remote_comm_id=2, reason=4),
        Lap(local_comm_id=1, remote_comm_id=2),
    ],
    ids=str,
)
def test_messages_for_unknown_ids_are_dropped_and_counted(message: CmMessage) -> None:
    cm = IbCm(1, 0xA0)
    cm.input(message.to_mad(1).emit(), "peer", 0)
    assert cm.take_sends() == []
    assert sum(cm.statistics().dropped.values()) == 1
    assert cm.statistics().received == {CmAttr(message.ATTR).name: 1}


def test_messages_that_name_only_one_id_rightly_are_dropped() -> None:
    fabric, server, client = server_and_client(Faults(lose=frozenset(("RTU", i) for i in range(20))))
    call(fabric, client)
    fabric.run(until=MS)
    passive = accepted(server)
    forged = Rtu(local_comm_id=0xBAD, remote_comm_id=passive.local_comm_id)
    server.cm.input(forged.to_mad(1).emit(), "mallory", fabric.now)
    assert passive.state is State.REP_SENT


def test_statistics_count_what_was_said() -> None:
    fabric, server, client = lost(("REQ", 0))
    connected(fabric, server, client)
    mine = client.cm.statistics()
    assert (mine.sent, mine.received, mine.resent, mine.exchanges) == ({"REQ": 2, "RTU": 1}, {"REP": 1}, 1, 1)
    server.cm.input(b"", "x", 0)
    server.cm.input(MAD(attr_id=99).emit(), "x", 0)
    assert server.cm.statistics().dropped == {"malformed": 2}
    assert server.cm.statistics().listeners == 1


# -------------------------------------------------------------------------------- processes that die


def test_what_a_peer_tells_of_itself_is_handed_out_and_its_death_ends_what_it_had_begun() -> None:
    fabric, server, client = server_and_client()
    accepting(fabric.node("other", guid=0xC0), local_qpn=0x333)
    conns = [call(fabric, client), call(fabric, client, "other", local_qpn=0x112)]
    assert [(one, one.peer_id) for one in client.cm.take_met()] == [(one, 0) for one in conns]
    fabric.run(until=MS)
    assert client.cm.take_met() == conns
    assert conns[0].peer_id == accepted(server).local_comm_id
    assert client.cm.take_met() == []
    for conn in conns:
        conn.process = object()
    process = conns[0].process
    for _ in range(2):
        client.cm.died(process, fabric.now)
        fabric.settle()
    assert [one.state for one in conns] == [State.TIMEWAIT, State.ESTABLISHED]
    (event,) = [one for one in client.events if one.type is EventType.DREQ_ERROR]
    assert (event.source, event.gone) == (conns[0], True)


def test_a_request_goes_out_again_when_whoever_had_the_service_dies() -> None:
    """The next who has it is asked; and when nobody has, that is the answer."""
    fabric, _, client = server_and_client(Faults(lose=frozenset({("REQ", 0), ("REQ", 1)})))
    fabric.node("other", guid=0xC0)
    first, second = call(fabric, client), call(fabric, client, "other", local_qpn=0x112)
    fabric.settle()
    first.process = second.process = process = object()
    client.cm.died(process, fabric.now)
    fabric.run(until=MS)
    assert first.state is State.ESTABLISHED
    assert second.over
    (event,) = [one for one in client.events if one.source is second]
    assert isinstance(event.message, Rej)
    assert event.message.reason == RejReason.INVALID_SERVICE_ID


# -------------------------------------------------------------------------------- what a handshake may take


def half_open(accept: bool, limit: int, **changed: Any) -> tuple[Fabric, Node, Node]:
    """A client that never confirms, and a server that gives a handshake so long."""
    fabric = Fabric()
    server, client = fabric.node("server"), fabric.node("client")

    def take(event: Any, now: int) -> None:
        conn_of(event).expire_at(now + limit)
        conn_of(event).send_mra(24, now, held=True)
        if accept:
            conn_of(event).send_rep(a_rep(), now)

    server.on(EventType.REQ_RECEIVED, take)
    server.cm.listen(SERVICE, 0)
    call(fabric, client, **changed)
    return fabric, server, client


@pytest.mark.parametrize("limit", [SERVER_WAIT // 2, 2 * SERVER_WAIT + 1])
def test_a_rep_without_rtu_is_given_up_at_the_limit(limit: int) -> None:
    fabric, server, _ = half_open(accept=True, limit=limit, max_cm_retries=15)
    fabric.run(until=100_000 + limit - 1)
    assert server.seen() == ["REQ_RECEIVED"]
    fabric.run(until=100_000 + limit)
    assert server.seen() == ["REQ_RECEIVED", "REP_ERROR"]
    assert accepted(server).state is State.TIMEWAIT
    assert fabric.names().count("REP") == 1 + limit // SERVER_WAIT
    assert fabric.trace[-1][1:] == ("server", "client", "REJ")


def test_a_request_that_nobody_accepts_is_refused_at_the_limit() -> None:
    fabric, server, client = half_open(accept=False, limit=3 * MS)
    fabric.run(until=100_000 + 3 * MS)
    assert server.seen() == ["REQ_RECEIVED", "REQ_ERROR"]
    assert accepted(server).over
    fabric.run(until=4 * MS)
    (rejected,) = [event.message for event in client.events if event.type is EventType.REJ_RECEIVED]
    assert isinstance(rejected, Rej)
    assert rejected.reason == RejReason.NO_RESOURCES


def test_an_established_connection_has_no_limit() -> None:
    fabric, server, client = half_open(accept=True, limit=50 * MS)
    confirming(client)
    fabric.run(until=1 * MS)
    passive = accepted(server)
    assert passive.state is State.ESTABLISHED
    assert passive.deadline() is None
    fabric.run(until=1000 * MS)
    passive.expire_at(fabric.now + 1)
    assert passive.deadline() is None
    fabric.run(until=2000 * MS)
    assert passive.state is State.ESTABLISHED


def test_an_mra_of_the_rep_does_not_move_the_limit() -> None:
    fabric, server, client = half_open(accept=True, limit=50 * MS)
    client.on(EventType.REP_RECEIVED, lambda e, now: conn_of(e).send_mra(31, now))
    fabric.run(until=100_000 + 50 * MS - 1)
    assert accepted(server).state is State.MRA_REP_RCVD
    fabric.run(until=100_000 + 50 * MS)
    assert server.seen()[-1] == "REP_ERROR"


def test_one_can_be_given_up_before_its_time() -> None:
    fabric, server, client = half_open(accept=True, limit=1000 * MS)
    client.on(EventType.REP_RECEIVED, lambda e, now: conn_of(e).send_rtu(now))
    fabric.faults.lose = frozenset({("RTU", 0)})
    fabric.run(until=1 * MS)
    accepted(server).give_up(fabric.now)
    fabric.run(until=2 * MS)
    assert server.seen()[-1] == "REP_ERROR"
    assert client.seen()[-1] == "REJ_RECEIVED"


@pytest.mark.parametrize(
    ("code", "retries", "messages"), [(20, 15, 16), (22, 15, 4), (24, 15, 1), (31, 15, 1)]
)
def test_a_rep_is_repeated_for_69_s_at_most(code: int, retries: int, messages: int) -> None:
    fabric, server, client = server_and_client()
    client.answers.clear()
    call(fabric, client, local_cm_timeout=code, max_cm_retries=retries)
    fabric.run()
    assert fabric.names().count("REP") == messages
    assert server.seen()[:2] == ["REQ_RECEIVED", "REP_ERROR"]
    (said,) = [when for when, who, _, what in fabric.trace if (who, what) == ("server", "REJ")]
    assert said <= iba_ns(24) + MS


@pytest.mark.parametrize("code", [22, 31])
def test_timewait_is_no_longer_than_a_peer_of_today_needs(code: int) -> None:
    fabric, server, client = server_and_client()
    primary = a_req().primary
    _, passive = connected(fabric, server, client, primary=type(primary)(
        local_gid=primary.local_gid, remote_gid=primary.remote_gid, ack_timeout=code))  # fmt: skip
    begun = fabric.now
    passive.send_dreq(begun)
    fabric.run(until=begun + MS)
    assert passive.state is State.TIMEWAIT
    deadline = passive.deadline()
    assert deadline is not None
    assert deadline <= begun + MS + iba_ns(21)


def test_a_peers_ack_delay_makes_timewait_no_longer_either() -> None:
    fabric, server, client = server_and_client()
    server.on(
        EventType.REQ_RECEIVED,
        lambda event, now: conn_of(event).send_rep(a_rep(target_ack_delay=31), now),
    )
    active, _ = connected(fabric, server, client)
    begun = fabric.now
    active.send_dreq(begun)
    fabric.run(until=begun + MS)
    assert active.state is State.TIMEWAIT
    deadline = active.deadline()
    assert deadline is not None
    assert deadline <= begun + MS + 2 * iba_ns(7) + iba_ns(21)


def test_another_address_that_names_a_connected_queue_pair_ends_nothing() -> None:
    """It is refused as stale (IBA 12.9.8.3.1); but anybody can name a queue pair, so the connection stays."""
    fabric, server, client = server_and_client()
    active, passive = connected(fabric, server, client)
    liar = fabric.node("liar", guid=client.cm.ca_guid)
    call(fabric, liar)
    fabric.run(until=fabric.now + 10 * MS)
    (rejected,) = [event.message for event in liar.events if event.type is EventType.REJ_RECEIVED]
    assert isinstance(rejected, Rej)
    assert rejected.reason == RejReason.STALE_CONN
    assert (active.state, passive.state) == (State.ESTABLISHED, State.ESTABLISHED)
    assert "DREQ" not in fabric.names()


def test_a_message_of_another_address_than_the_peers_changes_nothing() -> None:
    fabric, server, client = server_and_client()
    active, passive = connected(fabric, server, client)
    dreq = (
        Dreq(
            local_comm_id=active.local_comm_id,
            remote_comm_id=passive.local_comm_id,
            remote_qpn=passive.local_qpn,
        )
        .to_mad(1)
        .emit()
    )
    seen = server.seen()
    server.cm.input(dreq, "liar", fabric.now)
    fabric.settle()
    assert (passive.state, server.seen()) == (State.ESTABLISHED, seen)
    assert any("another address" in reason for reason in server.cm.statistics().dropped)
    server.cm.input(dreq, "client", fabric.now)
    fabric.settle()
    assert server.seen()[-1] == "DREQ_RECEIVED"


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


def forged(to: Connection, **changed: Any) -> bytes:
    """A REP to a connection, which its peer has not sent."""
    return a_rep(remote_comm_id=to.local_comm_id, **changed).to_mad(1).emit()


def test_a_rep_with_the_id_of_another_connection_is_dropped() -> None:
    fabric, server, client = server_and_client()
    active, _ = connected(fabric, server, client)
    calling = call(fabric, client, local_qpn=0x112)
    ids = {"local_comm_id": active.remote_comm_id, "local_ca_guid": server.cm.ca_guid, "local_qpn": 0x999}
    client.cm.input(forged(calling, **ids), "server", fabric.now)
    fabric.settle()
    assert (calling.state, active.state) == (State.REQ_SENT, State.ESTABLISHED)
    assert client.cm.statistics().dropped == {"a REP with the id of another connection": 1}


def test_a_rep_of_another_connection_than_the_one_before_is_not_answered() -> None:
    fabric, server, client = server_and_client()
    active, _ = connected(fabric, server, client)
    before = fabric.names().count("RTU")
    ids = {"local_comm_id": active.remote_comm_id + 1, "local_ca_guid": server.cm.ca_guid, "local_qpn": 0x999}
    client.cm.input(forged(active, **ids), "server", fabric.now)
    fabric.settle()
    assert fabric.names().count("RTU") == before
    assert client.cm.statistics().dropped


@pytest.mark.parametrize("early", [False, True], ids=["RTU", "data"])
def test_a_rep_to_the_end_that_sent_one_itself_is_not_answered(early: bool) -> None:
    fabric, server, client = lost(*(("RTU", i) for i in range(20 * early)))
    active = call(fabric, client)
    fabric.run(until=SERVER_WAIT // 2)
    passive = accepted(server)
    if early:
        passive.establish(fabric.now)
    assert passive.state is State.ESTABLISHED
    said = fabric.names()
    ids = {"local_comm_id": active.local_comm_id, "local_ca_guid": client.cm.ca_guid, "local_qpn": 0x111}
    server.cm.input(forged(passive, **ids), "client", fabric.now)
    fabric.settle()
    assert fabric.names() == said


def test_a_dreq_before_the_rep_is_dropped() -> None:
    fabric = Fabric()
    server, client = fabric.node("server"), fabric.node("client")
    server.cm.listen(SERVICE, 0)
    active = call(fabric, client)
    fabric.run(until=MS)
    passive = accepted(server)
    dreq = Dreq(local_comm_id=active.local_comm_id, remote_comm_id=passive.local_comm_id, remote_qpn=0x222)
    server.cm.input(dreq.to_mad(1).emit(), "client", fabric.now)
    fabric.settle()
    assert passive.state is State.REQ_RCVD
    assert server.seen() == ["REQ_RECEIVED"]
