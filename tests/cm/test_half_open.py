# SPDX-License-Identifier: Apache-2.0
"""What a peer may make a handshake, and the rest after a connection, take at most."""

from __future__ import annotations

from typing import Any

import pytest

from cm.fabric import (
    MS,
    SERVER_WAIT,
    SERVICE,
    Fabric,
    Node,
    a_rep,
    a_req,
    accepted,
    call,
    confirming,
    conn_of,
    connected,
    server_and_client,
)
from rnic.cm import EventType, State, iba_ns
from rnic.wire import Rej, RejReason

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


@pytest.mark.parametrize("retries", [0, 15])
def test_a_limit_that_is_moved_on_leaves_a_rep_all_its_time(retries: int) -> None:
    """It goes out just before the limit that there was for the program."""
    fabric, server, _ = half_open(accept=False, limit=SERVER_WAIT, max_cm_retries=retries)
    fabric.run(until=100_000 + SERVER_WAIT - 10)
    passive = accepted(server)
    passive.send_rep(a_rep(), fabric.now)
    passive.expire_at(fabric.now + 1000 * SERVER_WAIT)
    assert passive.deadline() == fabric.now + SERVER_WAIT
    fabric.run(until=fabric.now + SERVER_WAIT - 1)
    assert server.seen() == ["REQ_RECEIVED"]
    assert fabric.names().count("REP") == 1


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
