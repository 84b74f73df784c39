# SPDX-License-Identifier: Apache-2.0
"""Messages that name an id, an address or a connection that is not theirs change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from cm.fabric import (
    MS,
    SERVER_WAIT,
    SERVICE,
    Fabric,
    Faults,
    a_rep,
    accepted,
    call,
    connected,
    lost,
    server_and_client,
)
from rnic.cm import Connection, EventType, IbCm, State
from rnic.wire import CmAttr, CmMessage, Drep, Dreq, Lap, Mra, Rej, RejReason, Rtu


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
