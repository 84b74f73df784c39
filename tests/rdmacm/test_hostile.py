# SPDX-License-Identifier: Apache-2.0
"""Datagrams that no honest peer sends: each costs its sender a connection at most, nobody else anything."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from ipaddress import IPv6Address
from typing import Any

import pytest

from rdmacm.ends import WAIT, Joined, exchange, expect, ib_of, joined, listening, resolve
from rdmacm.stranger import (
    FLOODER,
    THEM,
    THIRD,
    US,
    Calls,
    Stranger,
    agent_of,
    gid,
    over_sockets,
    packed,
    run_out,
)
from rnic import GID, VerbsError, open_device
from rnic.cm import IbCm
from rnic.cm.ib_cm import ANSWERS_KEPT
from rnic.rdmacm import CmId, EventChannel, EventType, Timing, create_id
from rnic.rdmacm.ibcm.gsi import AHS, Peer
from rnic.rdmacm.registry import registry
from rnic.wire import MAD, CmPath, IpCmHeader, Rej, RejReason, Rep, Req
from waiting import until

pytestmark = pytest.mark.roce

PATIENT = Timing(response_timeout=18)  # 1.1 s, given up after 17 s
AGAIN = 5.0  # seconds after which a request is said again
CALLS = 10  # minutes of them are a hang
RESERVED_QPNS = [0, 1, 0xFFFFFF]


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    with over_sockets() as found:
        yield found


@pytest.fixture
def listener() -> Iterator[CmId]:
    with EventChannel() as channel, listening(channel) as found:
        yield found


@pytest.fixture
def caller(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> Iterator[CmId]:
    """An id that has asked the stranger for a connection. Its address, of 127/8, is not taken for our own."""
    monkeypatch.setattr("rnic.rdmacm.routes.held_as", lambda ip: ip)
    with EventChannel() as channel, create_id(channel) as one:
        resolve(one, (THEM, 7471))
        one.create_qp()
        one.connect()
        stranger.expect(Req)
        yield one


def requested(listener: CmId, stranger: Stranger) -> CmId:
    """The id of a request, which is said again as any peer would say it: a busy machine loses datagrams."""
    request = stranger.req(listener.get_src_port())
    for _ in range(round(WAIT / AGAIN)):
        stranger.say(request)
        with suppress(TimeoutError), listener.channel.get_cm_event(AGAIN) as event:
            assert event.event is EventType.CONNECT_REQUEST, event
            return event.id
    raise AssertionError("the request is not told")


def still_serves(listener: CmId, stranger: Stranger) -> None:
    """A right request is accepted."""
    stranger.fresh()
    with requested(listener, stranger) as child:
        child.create_qp()
        child.accept()
        stranger.expect(Rep)
        stranger.say(stranger.rtu())
        expect(listener.channel, EventType.ESTABLISHED)


# ------------------------------------------------------------ several datagrams before the agent looks


def test_a_request_that_is_taken_back_before_it_was_seen(stranger: Stranger, listener: CmId) -> None:
    with registry.lock:
        stranger.say(stranger.req(listener.get_src_port()))
        stranger.say(stranger.gives_up())
    with expect(listener.channel, EventType.CONNECT_REQUEST).id as child:
        assert expect(listener.channel, EventType.REJECTED).id is child
        with pytest.raises(VerbsError, match="the connection has ended"):
            child.create_qp()
        with pytest.raises(VerbsError, match="no request waits"):
            child.accept()
    still_serves(listener, stranger)


@pytest.mark.parametrize("reason", [RejReason.CONSUMER_DEFINED, RejReason.STALE_CONN])
def test_an_answer_that_is_taken_back_before_it_was_seen(
    stranger: Stranger, caller: CmId, reason: RejReason
) -> None:
    with registry.lock:
        stranger.say(stranger.rep())
        stranger.say(stranger.reply(Rej, message=1, reason=reason))
    expect(caller.channel, EventType.ESTABLISHED)
    expect(caller.channel, EventType.REJECTED)


# ------------------------------------------------------------ several contexts: the kernel chooses one


CONTEXTS = 4  # each of which the kernel may give a datagram that names no process


def test_a_request_that_is_taken_back_by_who_has_heard_nothing(stranger: Stranger, listener: CmId) -> None:
    with ExitStack() as others:
        for _ in range(CONTEXTS):
            others.enter_context(open_device("roce_lo"))
            stranger.fresh()
            stranger.say(stranger.req(listener.get_src_port()))
            with expect(listener.channel, EventType.CONNECT_REQUEST).id as child:
                stranger.say(stranger.gives_up())
                assert expect(listener.channel, EventType.REJECTED).id is child


@pytest.mark.usefixtures("listener")
def test_what_names_nobody_finds_an_agent(stranger: Stranger) -> None:
    """An echo is the answer to such a message; the others have no queue pair 1."""
    with ExitStack() as stack:
        others = [stack.enter_context(open_device("roce_lo")) for _ in range(CONTEXTS)]
        for _ in range(5 * CONTEXTS):
            assert stranger.hear() is None
        counted = [one.counters() for one in others]
    assert any(one["forwarded_out"] for one in counted)
    assert not any(one["drop_bad_qpn"] for one in counted)


# ------------------------------------------------------------ fields of a request

PATH = CmPath(
    local_lid=0xFFFF,
    remote_lid=0xFFFF,
    local_gid=gid(THEM),
    remote_gid=gid(US),
    hop_limit=64,
    ack_timeout=8,
)
HEADER = IpCmHeader(ip_version=4, sport=1, src_field=gid(THEM), dst_field=gid(US))
NOT_UNICAST = ["::", "::ffff:0.0.0.0", "::ffff:239.1.2.3", "::ffff:255.255.255.255", "ff02::1"]
REFUSED: dict[str, tuple[dict[str, Any], RejReason]] = {
    **{f"from queue pair {qpn}": ({"local_qpn": qpn}, RejReason.UNSUPPORTED) for qpn in RESERVED_QPNS},
    **{f"MTU code {code}": ({"path_mtu": code}, RejReason.INVALID_MTU) for code in (0, *range(6, 16))},
    **{
        f"answer to {one}": (
            {"primary": replace(PATH, local_gid=IPv6Address(one))},
            RejReason.INVALID_GID,
        )
        for one in NOT_UNICAST
    },
    "answer to an IPv6 address": (
        {"primary": replace(PATH, local_gid=IPv6Address("fe80::1"))},
        RejReason.INVALID_GID,
    ),
    "for another address": ({"primary": replace(PATH, remote_gid=gid(THIRD))}, RejReason.INVALID_GID),
    "no annex": ({"private_data": b""}, RejReason.CONSUMER_DEFINED),
    "annex of a later format": (
        {"private_data": replace(HEADER, major=1).emit()},
        RejReason.CONSUMER_DEFINED,
    ),
    "annex of IP version 5": (
        {"private_data": replace(HEADER, ip_version=5).emit()},
        RejReason.CONSUMER_DEFINED,
    ),
    "RD": ({"transport_type": 2}, RejReason.INVALID_TRANSPORT_TYPE),
}


@pytest.mark.parametrize(("fields", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_request_is_refused_with_its_reason(
    stranger: Stranger, listener: CmId, fields: dict[str, Any], reason: RejReason
) -> None:
    stranger.say(stranger.req(listener.get_src_port(), **fields))
    assert stranger.expect(Rej).reason == reason
    still_serves(listener, stranger)


def test_a_refusal_says_what_would_do(stranger: Stranger, listener: CmId) -> None:
    stranger.say(stranger.req(listener.get_src_port(), path_mtu=9))
    assert stranger.expect(Rej).info == bytes([5]), "the port's MTU is 4096"
    stranger.fresh()
    wrong = replace(PATH, remote_gid=gid(THIRD))
    stranger.say(stranger.req(listener.get_src_port(), primary=wrong))
    assert stranger.expect(Rej).info == gid(US).packed


# ------------------------------------------------------------ fields of an answer


@pytest.mark.parametrize("qpn", RESERVED_QPNS)
def test_an_answer_from_a_queue_pair_that_cannot_be(stranger: Stranger, caller: CmId, qpn: int) -> None:
    stranger.say(stranger.rep(local_qpn=qpn))
    assert expect(caller.channel, EventType.CONNECT_ERROR).status < 0
    assert stranger.expect(Rej).reason == RejReason.UNSUPPORTED


@pytest.mark.parametrize("reason", [0, 10, 28, 0xFFFF])
def test_a_refusal_is_one_whatever_its_reason(stranger: Stranger, caller: CmId, reason: int) -> None:
    """Without a channel of its own the id would wait in connect(), and raise."""
    caller.sync = True
    stranger.say(stranger.reply(Rej, message=0, reason=reason))
    with pytest.raises(VerbsError, match="refused by the peer"):
        caller._complete("connect")


# ------------------------------------------------------------ somebody else


def test_nobody_else_can_end_a_connection(listener: CmId, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = Stranger(Calls(agent_of(listener), monkeypatch))  # all is heard, once
    stranger.say(stranger.req(listener.get_src_port()))
    with expect(listener.channel, EventType.CONNECT_REQUEST).id as child:
        child.create_qp()
        child.accept()
        stranger.expect(Rep)
        stranger.say(stranger.rtu())
        expect(listener.channel, EventType.ESTABLISHED)
        before = sum(child.statistics().dropped.values())
        stranger.say(stranger.gives_up(), THIRD)
        stranger.say(stranger.dreq(), THIRD)
        stranger.say(stranger.reply(Rej, message=2, reason=28), THIRD)
        stranger.say(replace(stranger.req(listener.get_src_port()), local_comm_id=77), THIRD)
        stranger.say(stranger.dreq())
        expect(listener.channel, EventType.DISCONNECTED)
        assert sum(child.statistics().dropped.values()) - before == 4


# ------------------------------------------------------------ floods


def test_a_flood_of_requests_is_bounded_by_the_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    with EventChannel() as channel, listening(channel, backlog=8) as listener:
        agent = agent_of(listener)
        stranger = Stranger(Calls(agent, monkeypatch))
        for _ in range(10_000):
            stranger.fresh()
            stranger.say(stranger.req(listener.get_src_port()))
        statistics = listener.statistics()
        assert (listener.waiting, statistics.exchanges) == (8, 8)
        assert (statistics.received["REQ"], statistics.sent["REJ"]) == (10_000, 9_992)
        assert len(ib_of(agent).cm._answers) == ANSWERS_KEPT
        assert len(ib_of(agent).cm._timers) <= 100
        with joined() as pair:  # another listener of the same device
            exchange(pair.client, pair.server)
        while listener.waiting:
            expect(channel, EventType.CONNECT_REQUEST).id.destroy()
        run_out(agent)
        assert statistics.exchanges - listener.statistics().exchanges == 8


def test_a_flood_from_many_addresses_keeps_few_address_handles(listener: CmId) -> None:
    agent = agent_of(listener)
    index = ib_of(agent).gsi.index_of(GID(US))
    assert index is not None
    nobody = Req(service_id=1, local_comm_id=1).to_mad(1).emit()
    for n in range(3 * AHS):
        with registry.lock:
            ib_of(agent).hear(nobody, Peer(GID(f"127.1.{n >> 8}.{n & 255}"), index))
    assert listener.statistics().sent["REJ"] == 3 * AHS
    assert len(ib_of(agent).gsi._ahs) == AHS


def joined_at_last(stack: ExitStack) -> Joined:
    """Calls again when a call was not heard: a busy machine drops most of what comes."""
    for _ in range(CALLS - 1):
        with suppress(AssertionError):
            return stack.enter_context(joined(timing=PATIENT))
    return stack.enter_context(joined(timing=PATIENT))


def test_a_flood_that_does_not_end_keeps_nobody_from_connecting(stranger: Stranger, listener: CmId) -> None:
    packets = []
    for _ in range(500):
        stranger.fresh()
        packets.append(packed(stranger.req(listener.get_src_port()).to_mad(stranger.tid).emit(), FLOODER))
    over = threading.Event()

    def heard() -> int:
        return listener.statistics().received.get("REQ", 0)

    def flood() -> None:
        """Three times what the listener takes: more than it can, and a call is heard one time in three."""
        sent = 0
        while not over.is_set():
            if sent > 3 * heard():
                over.wait(0.001)
                continue
            for packet in packets:
                stranger.wire.send_packet(packet, FLOODER)  # type: ignore[attr-defined] # they are sockets
            sent += len(packets)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        until(lambda: heard() > 100, "the flood is heard")
        with ExitStack() as stack:
            pair = joined_at_last(stack)
            exchange(pair.client, pair.server)
    finally:
        over.set()
        thread.join()


# ------------------------------------------------------------ mistakes of our own


def test_a_mistake_costs_one_datagram(
    listener: CmId, stranger: Stranger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent, take = agent_of(listener), IbCm.input

    def stumble(self: IbCm, data: bytes, source: object, now: int) -> None:
        if MAD.parse(data).tid == 0xBAD:
            raise RuntimeError("on purpose")
        take(self, data, source, now)

    monkeypatch.setattr(IbCm, "input", stumble)
    bad = stranger.req(listener.get_src_port()).to_mad(0xBAD).emit()
    for _ in range(3):
        stranger.send(bad)
    still_serves(listener, stranger)
    assert agent.mistakes == 3
    (record,) = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert bad.hex() in record.getMessage()
    assert "on purpose" in caplog.text
    assert sum("mistake" in reason for reason in listener.statistics().dropped) == 1
    caplog.clear()
