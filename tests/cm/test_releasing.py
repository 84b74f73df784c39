# SPDX-License-Identifier: Apache-2.0
"""Connections end: released, let go, found stale, or their process has died."""

from __future__ import annotations

import pytest

from cm.fabric import (
    MS,
    SERVICE,
    WAIT,
    Fabric,
    Faults,
    a_req,
    accepted,
    accepting,
    call,
    confirming,
    connected,
    lost,
    server_and_client,
)
from rnic.cm import EventType, IbCm, State, iba_ns
from rnic.wire import Answered, Drep, Dreq, Rej, RejReason, parse_cm

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
