# SPDX-License-Identifier: Apache-2.0
"""What a listener lets in: peers that ask and say no more, and limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from errno import EINVAL, EMFILE, ETIMEDOUT
from time import monotonic_ns

import pytest

from rdmacm.ends import FAST, NO_ROOM, WAIT, exchange_of, expect, no_descriptors, resolve
from rdmacm.stranger import Calls, Stranger, agent_of, run_out
from rnic import VerbsError
from rnic.cm import Connection
from rnic.rdmacm import CmId, Event, EventChannel, EventType, create_id
from rnic.wire import Rej, RejReason, Rep
from waiting import until

PATIENT = {"local_cm_timeout": 20, "max_cm_retries": 15}


@contextmanager
def asked(patch: pytest.MonkeyPatch, **limits: object) -> Iterator[tuple[Stranger, CmId]]:
    """A listener with limits, and a stranger who can ask."""
    with EventChannel() as channel, create_id(channel, timing=FAST) as listener:
        listener.bind_addr(("127.0.0.1", 0))
        listener.listen(**limits)  # type: ignore[arg-type]
        agent = agent_of(listener)
        try:
            yield Stranger(Calls(agent, patch)), listener
        finally:
            for one in agent.ids - {listener}:
                one.destroy()
            run_out(agent)


def heard(listener: CmId, kind: EventType) -> Event:
    """The next event but those of the end of TIMEWAIT, which may come at any time."""
    while (event := expect(listener.channel, kind, EventType.TIMEWAIT_EXIT)).event is not kind:
        pass
    return event


def ask(stranger: Stranger, listener: CmId) -> CmId:
    """A request, and the id that it makes."""
    stranger.fresh()
    stranger.say(stranger.req(listener.get_src_port(), **PATIENT))
    return heard(listener, EventType.CONNECT_REQUEST).id


def admit(stranger: Stranger, listener: CmId) -> CmId:
    """A request that is accepted, and never confirmed."""
    one = ask(stranger, listener)
    one.create_qp()
    one.accept()
    stranger.expect(Rep)
    return one


def refused(stranger: Stranger, listener: CmId) -> None:
    stranger.fresh()
    stranger.say(stranger.req(listener.get_src_port(), **PATIENT))
    while (rej := stranger.expect(Rej)).remote_comm_id != stranger.comm_id:
        pass
    assert rej.reason == RejReason.NO_RESOURCES
    assert not listener.channel.has_events


def told(listener: CmId, one: CmId, kind: EventType) -> Event:
    event = heard(listener, kind)
    assert event.id is one
    return event


@pytest.mark.roce
def test_the_half_open_connection_that_waits_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(monkeypatch, max_half_open=2) as (stranger, listener):
        ids = [admit(stranger, listener) for _ in range(2)]
        assert not listener.channel.has_events
        ids.append(admit(stranger, listener))
        assert told(listener, ids[0], EventType.UNREACHABLE).status == -ETIMEDOUT
        ids.append(admit(stranger, listener))
        told(listener, ids[1], EventType.UNREACHABLE)
        stranger.say(stranger.rtu())
        told(listener, ids[3], EventType.ESTABLISHED)


@pytest.mark.roce
def test_established_connections_are_not_half_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(monkeypatch, max_half_open=1) as (stranger, listener):
        ids = []
        for _ in range(3):
            ids.append(admit(stranger, listener))
            stranger.say(stranger.rtu())
            told(listener, ids[-1], EventType.ESTABLISHED)


@pytest.mark.roce
def test_max_connections_refuses_the_next_one_until_one_is_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(monkeypatch, max_connections=2) as (stranger, listener):
        ids = [admit(stranger, listener) for _ in range(2)]
        refused(stranger, listener)
        ids[0].destroy()
        third = ask(stranger, listener)
        refused(stranger, listener)
        third.reject()


@pytest.mark.roce
def test_a_peer_that_keeps_us_waiting_gives_way_to_a_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(monkeypatch, max_connections=1) as (stranger, listener):
        slow = admit(stranger, listener)
        refused(stranger, listener)
        listener.admission._known[slow] -= 10**9  # a second passes
        ask(stranger, listener)
        told(listener, slow, EventType.UNREACHABLE)


@pytest.mark.roce
@pytest.mark.parametrize("accept", [False, True])
def test_a_handshake_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch, accept: bool) -> None:
    with asked(monkeypatch, handshake_timeout=60) as (stranger, listener):
        one = (admit if accept else ask)(stranger, listener)
        run_out(agent_of(listener))
        assert told(listener, one, EventType.UNREACHABLE).status == -ETIMEDOUT
        reason = stranger.expect(Rej).reason
        assert reason == (RejReason.TIMEOUT if accept else RejReason.NO_RESOURCES)


@pytest.mark.roce
def test_a_program_that_accepts_late_takes_no_time_from_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(monkeypatch, handshake_timeout=60, max_connections=1) as (stranger, listener):
        one = ask(stranger, listener)
        conn = exchange_of(one)
        assert isinstance(conn, Connection)
        conn.expire_at(monotonic_ns() + 10**9)  # 59 seconds pass
        listener.admission._known[one] -= 59 * 10**9
        accepted = monotonic_ns()
        one.create_qp()
        one.accept()
        assert conn._until is not None
        assert conn._until >= accepted + 60 * 10**9
        refused(stranger, listener)  # it has kept nobody waiting


@pytest.mark.roce
def test_a_request_that_nobody_takes_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(monkeypatch, handshake_timeout=60) as (stranger, listener):
        stranger.say(stranger.req(listener.get_src_port(), **PATIENT))
        agent = agent_of(listener)
        run_out(agent)
        assert stranger.expect(Rej).reason == RejReason.NO_RESOURCES
        assert not listener.channel.has_events
        assert agent.ids == {listener}


@pytest.mark.roce
@pytest.mark.parametrize("asks", [0, 14, 31])
def test_what_a_peer_asks_for_its_acks_is_within_reason(monkeypatch: pytest.MonkeyPatch, asks: int) -> None:
    """0 would be no timeout at all: the peer's death would never be noticed (IBA 9.9.2.1.2)."""
    with asked(monkeypatch) as (stranger, listener):
        stranger.fresh()
        req = stranger.req(listener.get_src_port(), **PATIENT)
        stranger.say(replace(req, primary=replace(req.primary, ack_timeout=asks)))
        one = heard(listener, EventType.CONNECT_REQUEST).id
        one.create_qp()
        one.accept()
        assert one.qp is not None
        timeout = one.qp.query()[0].timeout or 0
        assert 0 < timeout <= 21
        assert asks != 14 or timeout == 14


@pytest.mark.parametrize(
    "limits",
    [
        {"max_connections": 0},
        {"max_half_open": 0},
        {"handshake_timeout": 0},
        {"handshake_timeout": -1},
        {"handshake_timeout": math.nan},
        {"handshake_timeout": 1e300},
    ],
)
def test_limits_that_are_none_are_refused(limits: dict[str, float]) -> None:
    with create_id() as listener:
        with pytest.raises(VerbsError, match=next(iter(limits))) as caught:
            listener.listen(**limits)  # type: ignore[arg-type]
        assert caught.value.errno == EINVAL


@pytest.mark.parametrize("limit", [math.inf, 3e6])
def test_a_handshake_may_take_for_ever(limit: float) -> None:
    with EventChannel() as channel, create_id(channel) as listener, EventChannel() as ours:
        listener.bind_addr(("127.0.0.1", 0))
        listener.listen(handshake_timeout=limit)
        with create_id(ours, timing=FAST) as one:
            resolve(one, ("127.0.0.1", listener.get_src_port()))
            one.create_qp()
            one.connect()
            with channel.get_cm_event(WAIT) as request:
                child = request.id
            with child:
                child.create_qp()
                child.accept()
                expect(ours, EventType.ESTABLISHED)
                expect(channel, EventType.ESTABLISHED)


def test_a_request_without_a_descriptor_for_its_channel_is_refused_alone() -> None:
    with create_id(timing=FAST) as listener, EventChannel() as ours, create_id(ours, timing=FAST) as one:
        listener.bind_addr(("127.0.0.1", 0))
        listener.listen()
        resolve(one, ("127.0.0.1", listener.get_src_port()))
        one.create_qp()
        one.connect()
        until(lambda: listener.waiting == 1, "the request is there")
        with no_descriptors(), pytest.raises(VerbsError, match=r"RLIMIT_NOFILE is \d+ \(ulimit -n") as caught:
            listener.get_request()
        assert caught.value.errno == EMFILE
        assert expect(ours, EventType.REJECTED).status == NO_ROOM
        assert agent_of(listener).ids == {listener, one}
