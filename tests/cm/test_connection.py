# SPDX-License-Identifier: Apache-2.0
"""Connections between two managers: what programs see, and what is on the wire."""

from __future__ import annotations

import pytest

from cm.fabric import (
    MS,
    SERVER_WAIT,
    SERVICE,
    WAIT,
    Fabric,
    a_rep,
    a_req,
    accepted,
    accepting,
    call,
    confirming,
    conn_of,
    connected,
    lost,
    server_and_client,
)
from rnic.cm import EventType, State, iba_ns
from rnic.wire import MAD, CmAttr, Lap, Rep, Req, Rtu

# -------------------------------------------------------------------------------- setting up


def test_a_handshake_is_three_messages() -> None:
    fabric, server, client = server_and_client()
    active, passive = connected(fabric, server, client)
    assert fabric.names() == ["REQ", "REP", "RTU"]
    assert (client.seen(), server.seen()) == (["REP_RECEIVED"], ["REQ_RECEIVED", "RTU_RECEIVED"])
    assert (active.remote_comm_id, passive.remote_comm_id) == (passive.local_comm_id, active.local_comm_id)
    assert (active.peer_id, passive.peer_id) == (passive.local_comm_id, active.local_comm_id)
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


def test_statistics_count_what_was_said() -> None:
    fabric, server, client = lost(("REQ", 0))
    connected(fabric, server, client)
    mine = client.cm.statistics()
    assert (mine.sent, mine.received, mine.resent, mine.exchanges) == ({"REQ": 2, "RTU": 1}, {"REP": 1}, 1, 1)
    server.cm.input(b"", "x", 0)
    server.cm.input(MAD(attr_id=99).emit(), "x", 0)
    assert server.cm.statistics().dropped == {"malformed": 2}
    assert server.cm.statistics().listeners == 1
