# SPDX-License-Identifier: Apache-2.0
"""Networks that lose, repeat and reorder: what must come of it, seed by seed; and hostile peers."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cm.fabric import (
    MS,
    SERVER_WAIT,
    SERVICE,
    WAIT,
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
from rnic.cm import Connection, EventType, IbCm, State
from rnic.errors import VerbsError
from rnic.wire import MESSAGES

SEEDS = 20_000 if os.environ.get("RNIC_SOAK") else 300
IN_TIME = 8 * WAIT + 8 * SERVER_WAIT + 100 * MS  # both ends' repetitions, and the way

# What a client can hear of a connection, in this order, and a server.
CLIENT: dict[tuple[str, ...], str] = {
    ("REQ_ERROR",): "failed",
    ("REJ_RECEIVED",): "failed",
    ("REP_RECEIVED",): "connected",
}
SERVER: dict[tuple[str, ...], str] = {
    (): "failed",
    ("REQ_RECEIVED", "RTU_RECEIVED"): "connected",
    ("REQ_RECEIVED", "REP_ERROR"): "failed",
    ("REQ_RECEIVED", "REJ_RECEIVED"): "failed",
}


def faults(seed: int, loss: float) -> Faults:
    return Faults(Random(seed), loss=loss, repeat=0.2, jitter=40 * MS)


def without_timewait(node: Node) -> tuple[str, ...]:
    return tuple(name for name in node.seen() if name != "TIMEWAIT_EXIT")


@pytest.mark.parametrize("loss", [0.0, 0.2, 0.5, 0.8])
def test_a_handshake_completes_or_fails_in_time(loss: float) -> None:
    connected = 0
    for seed in range(SEEDS):
        fabric, server, client = server_and_client(faults(seed, loss))
        conn = call(fabric, client)
        fabric.run(until=IN_TIME)
        outcome = CLIENT[without_timewait(client)[:1]]
        passive = SERVER[without_timewait(server)] if len(without_timewait(server)) != 1 else "waits"
        assert passive != "waits", f"seed {seed}: {server.seen()}"
        if outcome == passive == "connected":
            connected += 1
            assert conn.state is accepted(server).state is State.ESTABLISHED, f"seed {seed}"
        else:
            assert not (outcome == "failed" and passive == "connected"), f"seed {seed}"
    assert connected >= SEEDS * {0.0: 1, 0.2: 0.999, 0.5: 0.8, 0.8: 0.02}[loss]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("loss", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("who", ["client", "server", "both"])
def test_a_release_ends_in_time_and_leaves_nothing(who: str, loss: float) -> None:
    for seed in range(SEEDS // 3):
        fabric, server, client = server_and_client()
        active = call(fabric, client)
        fabric.run(until=MS)
        passive = accepted(server)
        fabric.faults = faults(seed, loss)
        start = fabric.now
        for name, conn in (("client", active), ("server", passive)):
            if who in (name, "both"):
                conn.send_dreq(fabric.now)
        fabric.run(until=start + 8 * WAIT + 400 * MS)
        asked = {"client": [client], "server": [server], "both": [client, server]}[who]
        for node in asked:
            assert node.seen()[-1] == "TIMEWAIT_EXIT", f"seed {seed}"
            assert len(node.cm.table) == 0, f"seed {seed}"
        for node in (client, server):
            assert node.seen().count("DREQ_RECEIVED") <= 1, f"seed {seed}"
            assert node.seen().count("TIMEWAIT_EXIT") <= 1, f"seed {seed}"


def test_many_connections_at_once_over_a_bad_network() -> None:
    fabric, server, client = server_and_client(faults(7, 0.2))
    qpns = iter(range(1000, 2000))
    server.on(
        EventType.REQ_RECEIVED,
        lambda event, now: conn_of(event).send_rep(a_rep(local_qpn=next(qpns)), now),
    )
    ends = [call(fabric, client, local_qpn=10 + number) for number in range(100)]
    fabric.run(until=IN_TIME)
    assert sum(conn.state is State.ESTABLISHED for conn in ends) >= 98
    for conn in ends:
        conn.close(fabric.now)
    fabric.run()
    assert len(client.cm.table) == 0


def test_both_ends_call_over_a_bad_network() -> None:
    for seed in range(SEEDS // 10):
        fabric = Fabric(faults(seed, 0.2))
        nodes = [fabric.node("one"), fabric.node("two")]
        for node in nodes:
            accepting(node, local_qpn=0x200 + seed)
            confirming(node)
        pairs = ((nodes[0], "two", 0x300), (nodes[1], "one", 0x400))
        ends = [call(fabric, node, to=to, local_qpn=qpn) for node, to, qpn in pairs]
        fabric.run(until=IN_TIME)
        for conn in ends:
            assert conn.state in (State.ESTABLISHED, State.IDLE, State.TIMEWAIT), f"seed {seed}"


# -------------------------------------------------------------------------------- hostile peers


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_no_bytes_and_no_order_of_calls_break_a_manager(data: st.DataObject) -> None:
    """Random datagrams, many of them about ids that exist, between random calls: nothing but VerbsError."""
    cm = IbCm(1, 0xA0, rng=Random(data.draw(st.integers(0, 99))))
    cm.listen(SERVICE, 0)
    conns: list[Connection] = []
    now = 0
    for _ in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.sampled_from([0, 1, WAIT, 10 * WAIT]))
        data.draw(st.sampled_from(STEPS))(cm, conns, data, now)
        conns += [event.source for event in cm.take_events() if isinstance(event.source, Connection)]
        cm.take_sends()
    for exchange in cm.table.exchanges():
        exchange.close(now)
    for _ in range(100):
        if (deadline := cm.deadline()) is not None:
            cm.timer(deadline)
    assert len(cm.table) == 0
    assert not cm.table._by_remote
    assert not cm.table._by_qpn
    assert not cm.table._asked


Step = Callable[[IbCm, list[Connection], st.DataObject, int], None]


def any_bytes(cm: IbCm, _conns: list[Connection], data: st.DataObject, now: int) -> None:
    cm.input(data.draw(st.binary(max_size=256)), "peer", now)


def a_message(cm: IbCm, _conns: list[Connection], data: st.DataObject, now: int) -> None:
    ids = st.sampled_from([*(one.local_comm_id for one in cm.table.exchanges()), 0, 5])
    cls = data.draw(st.sampled_from(sorted(MESSAGES.values(), key=lambda cls: cls.ATTR)))
    body = bytearray(cls().emit())
    body[0:4] = data.draw(ids).to_bytes(4, "big")
    body[4:8] = data.draw(ids).to_bytes(4, "big")
    body[8:12] = data.draw(st.binary(min_size=4, max_size=4))
    if data.draw(st.booleans()):
        body[8:16] = SERVICE.to_bytes(8, "big")
    cm.input(cls.parse(bytes(body)).to_mad(1).emit(), "peer", now)


def time_passes(cm: IbCm, _conns: list[Connection], _data: st.DataObject, now: int) -> None:
    cm.timer(now)


CALLS: list[Callable[[Connection, int], None]] = [
    lambda conn, now: conn.send_req(a_req(), now),
    lambda conn, now: conn.send_rep(a_rep(), now),
    lambda conn, now: conn.send_rtu(now),
    lambda conn, now: conn.send_mra(10, now),
    lambda conn, now: conn.send_rej(28, now),
    lambda conn, now: conn.send_dreq(now),
    lambda conn, now: conn.send_drep(now),
    lambda conn, now: conn.establish(now),
    lambda conn, now: conn.close(now),
]


def a_call(cm: IbCm, conns: list[Connection], data: st.DataObject, now: int) -> None:
    if not conns or data.draw(st.booleans()):
        conns.append(cm.connection("peer"))
    with suppress(VerbsError):
        data.draw(st.sampled_from(CALLS))(data.draw(st.sampled_from(conns)), now)


STEPS: list[Step] = [any_bytes, a_message, a_message, time_passes, a_call]


def test_refused_requests_are_remembered_within_bounds() -> None:
    cm = IbCm(1, 0xA0)
    cm.listen(SERVICE, 0)
    for number in range(3000):
        req = a_req(local_comm_id=number + 1, local_ca_guid=9, local_qpn=number)
        cm.input(req.to_mad(1).emit(), "peer", 0)
        for event in cm.take_events():
            event.source.close(0)
    assert len(cm._answers) <= 1024
    assert len(cm.table) == 0


def test_timers_of_exchanges_that_are_gone_do_not_pile_up() -> None:
    cm = IbCm(1, 0xA0)
    for _ in range(2000):
        conn = cm.connection("peer")
        conn.send_req(a_req(), 0)
        conn.close(0)
    assert len(cm._timers) < 200


def test_there_are_never_more_timers_than_what_is_alive_allows() -> None:
    cm = IbCm(1, 0xA0)
    conns = [cm.connection("peer") for _ in range(200)]

    def look() -> None:
        assert len(cm._timers) <= 64 + 4 * len(cm.table)

    for now in range(6):  # each arms its timer anew
        for conn in conns:
            if now == 0:
                conn.send_req(a_req(), now)
            else:
                conn.hurry(now, 10**6 - now)
            look()
    for conn in conns:
        conn.close(0)
        look()
    assert len(cm.table) == 0
