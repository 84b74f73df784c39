# SPDX-License-Identifier: Apache-2.0
"""What a peer asks for is within reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cm.fabric import a_rep, a_req
from cm.test_states import PEER_GUID, PEER_ID, Bench
from rnic.cm import (
    LONGEST_ACK,
    Connection,
    EventType,
    IbCm,
    Resolution,
    State,
    ack_timeout,
    iba_ns,
    peer_ack_timeout,
)
from rnic.cm.timing import retries_within
from rnic.wire import Answered, Mra, Rej, RejReason, SidrReq


@pytest.mark.parametrize(("asked", "own", "code"), [(14, 18, 14), (20, 18, 20), (22, 18, 21), (31, 18, 21)])
def test_a_peers_ack_timeout_is_cut(asked: int, own: int, code: int) -> None:
    assert peer_ack_timeout(asked, own) == code


def test_no_timeout_at_all_is_replaced_by_our_own() -> None:
    assert peer_ack_timeout(0, 17) == 17
    assert peer_ack_timeout(0, ack_timeout(31, 16)) == LONGEST_ACK


def test_no_time_of_a_peer_is_longer_than_69_s() -> None:
    assert iba_ns(24) == iba_ns(31) == 4096 << 24


@pytest.mark.parametrize(
    ("delay", "life", "code"),
    [(15, 16, 17), (16, 16, 18), (17, 16, 18), (18, 16, 19), (19, 16, 19), (0, 0, 2), (0, 1, 2), (31, 16, 31),
     (15, 31, 31), (30, 29, 31), (31, 31, 31)],
)  # fmt: skip
def test_an_ack_timeout_is_the_way_twice_and_the_delay(delay: int, life: int, code: int) -> None:
    """As the kernel rounds the sum: one more than the larger code when the smaller is at least half of it."""
    assert ack_timeout(delay, life) == code


@pytest.mark.parametrize(
    ("wait", "asked", "given"),
    [
        (iba_ns(24), 15, 0),
        (iba_ns(24) // 2, 15, 1),
        (iba_ns(24) // 2 + 1, 15, 0),
        (iba_ns(20), 15, 15),
        (iba_ns(20), 16, 15),
        (iba_ns(12), 3, 3),
        (4 * iba_ns(24), 15, 0),
    ],
)
def test_so_often_is_a_message_repeated_for_a_peers_sake(wait: int, asked: int, given: int) -> None:
    assert retries_within(wait, asked) == given
    assert (given + 1) * wait <= iba_ns(24) or given == 0


# -------------------------------------------------------------------------------- when each timer is due

TRIP = 2 * iba_ns(7)  # of the active end
NEAR = 2 * iba_ns(6)  # of the passive one: the REQ's ACK timeout, less one


def passive(bench: Bench, **changed: Any) -> Connection:
    """Its end of a connection, by a REQ with an ACK timeout of 7, of whose answers none comes."""
    primary = replace(a_req().primary, ack_timeout=7)
    req = a_req(local_comm_id=PEER_ID, local_ca_guid=PEER_GUID, **({"primary": primary} | changed))
    bench.cm.listen(req.service_id, bench.now)
    bench.say(req)
    conn = bench.cm.table.find_remote(PEER_GUID, PEER_ID)
    assert conn is not None
    return conn


def replied(bench: Bench, **changed: Any) -> Connection:
    conn = passive(bench, **changed)
    conn.send_rep(a_rep(), bench.now)
    return conn


def heard_mra(bench: Bench, conn: Connection, about: Answered, code: int) -> Connection:
    bench.to_us(conn, Mra, message=about, service_timeout=code)
    return conn


def found_stale(bench: Bench) -> Connection:
    conn = bench.active()
    bench.to_us(conn, Rej, message=Answered.REQ, reason=RejReason.STALE_CONN)
    assert conn.state is State.TIMEWAIT
    return conn


def asked(bench: Bench) -> Resolution:
    one = bench.cm.resolution("peer")
    one.send_sidr_req(SidrReq(), bench.now, timeout_ns=5000, retries=2)
    return one


@pytest.mark.parametrize(
    ("make", "wait"),
    [
        (Bench.active, TRIP + iba_ns(12)),
        (lambda bench: heard_mra(bench, bench.active(), Answered.REQ, 14), TRIP + iba_ns(14)),
        (found_stale, TRIP + iba_ns(0)),
        (replied, iba_ns(12)),
        (lambda bench: replied(bench, local_cm_timeout=9), iba_ns(9)),
        (lambda bench: heard_mra(bench, replied(bench), Answered.REP, 14), NEAR + iba_ns(14)),
        (Bench.in_dreq_sent, TRIP + iba_ns(12)),
        (Bench.in_timewait, TRIP + iba_ns(5)),
        (asked, 5000),
    ],
    ids=[
        "REQ",
        "MRA of the REQ",
        "stale",
        "REP",
        "REP soon",
        "MRA of the REP",
        "DREQ",
        "TIMEWAIT",
        "SIDR_REQ",
    ],
)
def test_nothing_is_done_before_its_time_and_then_at_once(make: Any, wait: int) -> None:
    bench = Bench()
    one = make(bench)
    assert one.deadline() == bench.cm.deadline() == bench.now + wait
    bench.cm.take_sends()
    bench.cm.take_events()
    bench.cm.timer(bench.now + wait - 1)
    assert (bench.cm.take_sends(), bench.cm.take_events()) == ([], [])
    bench.cm.timer(bench.now + wait)
    if one.state is State.IDLE:
        (event,) = bench.cm.take_events()
        assert event.type is EventType.TIMEWAIT_EXIT
        return
    assert len(bench.cm.take_sends()) == 1
    assert one.deadline() == bench.now + 2 * wait


@pytest.mark.parametrize(("code", "life"), [(0, 0), (1, 0), (2, 1), (8, 7), (31, 30)])
def test_the_passive_end_takes_the_life_time_from_the_ack_timeout(code: int, life: int) -> None:
    conn = passive(Bench(), primary=replace(a_req().primary, ack_timeout=code))
    assert conn.packet_life_time == life


def test_a_limit_for_the_handshake_only_makes_a_timer_earlier() -> None:
    bench = Bench()
    conn = passive(bench)
    assert conn.deadline() is None
    conn.expire_at(500_000_000)
    assert conn.deadline() == 500_000_000
    conn.send_rep(a_rep(), bench.now)
    assert conn.deadline() == bench.now + iba_ns(12)
    conn.expire_at(2000)
    assert conn.deadline() == 2000


def test_what_is_due_at_the_same_time_is_done_in_the_order_of_the_requests() -> None:
    cm = IbCm(1, 0xA0)
    conns = [cm.connection("peer") for _ in range(20)]
    for conn in conns:
        conn.send_req(a_req(max_cm_retries=0), 0)
    due = cm.deadline()
    assert due is not None
    cm.timer(due)
    assert [event.source for event in cm.take_events()] == conns


@pytest.mark.parametrize(
    ("after", "wait", "due"),
    [
        (0, TRIP + iba_ns(12), TRIP + iba_ns(12)),  # not sooner than it is
        (0, TRIP + iba_ns(12) - 1, TRIP + iba_ns(12) - 1),
        (10, 5000, 5010),
        (TRIP + iba_ns(12) - 100, 5000, TRIP + iba_ns(12)),  # the next one is nearer than that
    ],
)
def test_who_hurries_repeats_sooner_and_never_later(after: int, wait: int, due: int) -> None:
    bench = Bench()
    conn = bench.active()
    conn.hurry(bench.now + after, wait)
    assert conn.deadline() == bench.cm.deadline() == bench.now + due
    bench.cm.timer(bench.now + due)
    assert conn.deadline() == bench.now + due + wait


@pytest.mark.parametrize("make", [Bench.passive, Bench.established, Bench.in_timewait])
def test_who_waits_for_no_answer_does_not_hurry(make: Any) -> None:
    bench = Bench()
    conn = make(bench)
    due = conn.deadline()
    conn.hurry(bench.now, 1)
    assert conn.deadline() == due
