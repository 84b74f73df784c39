# SPDX-License-Identifier: Apache-2.0
"""Connections of iWARP end: disconnects, queue pairs that fail, peers that die; and nothing is left."""

from __future__ import annotations

import gc
import os
import threading
from errno import ECONNRESET, EPIPE, EPROTO, ETIMEDOUT
from typing import Any

import pytest

import rnic
from rdmacm.ends import FAST, WAIT, descriptors, expect, other, resolve
from rdmacm.iwarp_peer import DEVICE, HERE, asked, joined, listening, parted, resolved, service_of
from rnic import QPCap, QPState
from rnic.enums import StreamEnd
from rnic.rdmacm import EventChannel, EventType, IdState, create_id
from rnic.rdmacm.iwcm.stream import status_of
from rnic.rdmacm.registry import registry
from rnic.verbs.qp import QPAttr
from waiting import until

E_ = EventType
SOAK = bool(os.environ.get("RNIC_SOAK"))


@pytest.mark.parametrize(
    ("end", "error", "status"),
    [
        (StreamEnd.FIN, 0, 0),
        (StreamEnd.CLOSED, 0, 0),
        (StreamEnd.LOST, 0, -ECONNRESET),
        (StreamEnd.LOST, EPIPE, -ECONNRESET),
        (StreamEnd.LOST, ETIMEDOUT, -ETIMEDOUT),
        (StreamEnd.TERMINATED, 0, -EPROTO),
        (StreamEnd.REFUSED, 0, -EPROTO),
    ],
)
def test_how_a_stream_has_ended_is_a_status(end: StreamEnd, error: int, status: int) -> None:
    assert status_of(rnic.StreamEvent(1, end, 0, 0, 0, error)) == status


@pytest.mark.parametrize("first", ["client", "server", "both"])
def test_either_end_may_disconnect_and_both_at_once(first: str) -> None:
    with joined() as pair:
        for name in ("client", "server"):
            if first in (name, "both"):
                getattr(pair, name).disconnect()
        parted(pair.client, pair.server)


def test_what_is_posted_is_sent_before_the_end() -> None:
    with joined() as pair:
        data, into = bytearray(os.urandom(1 << 20)), bytearray(1 << 20)
        with pair.client.reg_msgs(data) as out, pair.server.reg_msgs(into) as mr:
            pair.server.post_recv(mr)
            pair.client.post_send(out)
            pair.client.disconnect()
            assert pair.server.get_recv_comp(WAIT).ok
            assert pair.client.get_send_comp(WAIT).ok
            assert into == data
            parted(pair.client, pair.server)


def test_whoever_is_destroyed_disconnects() -> None:
    with joined() as pair:
        pair.server.destroy()
        parted(pair.client)


def test_a_disconnect_in_the_handshake_comes_about_when_that_has_ended() -> None:
    with asked() as (client, server, _):
        client.disconnect()
        server.accept()
        expect(client.channel, E_.ESTABLISHED)
        expect(server.channel, E_.ESTABLISHED)
        parted(client, server)


def test_a_queue_pair_that_fails_ends_the_connection() -> None:
    """A SEND that meets no receive: Terminate, as iWARP has no RNR."""
    with joined() as pair:
        with pair.client.reg_msgs(bytearray(8)) as mr:
            pair.client.post_send(mr)
            for end in (pair.client, pair.server):
                event = expect(end.channel, E_.DISCONNECTED)
                assert event.status < 0
                assert end.state is IdState.DISCONNECT
            assert pair.client.qp is not None
            until(lambda: pair.client.qp is not None and pair.client.qp.state is QPState.ERR, "it is in ERR")


def test_a_queue_pair_that_the_program_moves_to_err_ends_the_connection() -> None:
    with joined() as pair:
        assert pair.client.qp is not None
        pair.client.qp.modify(QPAttr(qp_state=QPState.ERR))
        for end in (pair.client, pair.server):
            expect(end.channel, E_.DISCONNECTED)


@pytest.mark.parametrize("stop_at", ["request", "connected"])
def test_the_peer_is_killed(stop_at: str) -> None:
    with EventChannel() as channel, listening(channel) as listener:
        with other(call_and_hold, listener.get_src_port(), stop_at) as peer:
            with expect(channel, E_.CONNECT_REQUEST).id as server:
                server.create_qp()
                if stop_at == "connected":
                    server.accept()
                    expect(channel, E_.ESTABLISHED)
                assert peer.hear() == stop_at
                peer.kill()
                event = expect(channel, E_.DISCONNECTED, E_.UNREACHABLE)
                assert event.event is (E_.DISCONNECTED if stop_at == "connected" else E_.UNREACHABLE)


def call_and_hold(way: Any, port: int, stop_at: str) -> None:
    with EventChannel() as channel, create_id(channel, timing=FAST, device=DEVICE) as one:
        resolve(one, (HERE, port))
        one.create_qp()
        one.connect()
        if stop_at == "connected":
            expect(channel, E_.ESTABLISHED)
        way.send(stop_at)
        threading.Event().wait()


def test_a_request_that_nobody_has_seen_goes_with_its_peer() -> None:
    with resolved() as (_, theirs, client):
        client.connect()
        until(lambda: theirs.pending == 1, "the request is there")
        client.destroy()
        until(lambda: theirs.pending == 0, "the request is withdrawn")


@pytest.mark.parametrize(
    "state", ["new", "bound", "resolved", "calling", "asked", "seen", "up", "leaving", "over"]
)
def test_an_id_may_be_destroyed_in_any_state(state: str) -> None:
    before = descriptors()
    if state in ("new", "bound"):
        with create_id(device=DEVICE) as one:
            if state == "bound":
                one.bind_addr((HERE, 0))
    else:
        with resolved() as (_, theirs, client):
            if state != "resolved":
                client.connect()
            if state in ("asked", "seen", "up", "leaving", "over"):
                until(lambda: theirs.pending == 1, "the request is there")
            if state in ("seen", "up", "leaving", "over"):
                server = expect(theirs, E_.CONNECT_REQUEST).id
                if state != "seen":
                    server.create_qp()
                    server.accept()
                    expect(client.channel, E_.ESTABLISHED)
                    expect(theirs, E_.ESTABLISHED)
                if state in ("leaving", "over"):
                    server.disconnect()
                if state == "over":
                    parted(client, server)
                server.destroy()
            client.destroy()
            assert client.state is IdState.DESTROYING
    until(lambda: not registry.agents(), "the agents end")
    until(lambda: descriptors() <= before, "all descriptors are given back")


def test_connections_that_come_and_go_leave_nothing() -> None:
    rounds = 10_000 if SOAK else 100
    with EventChannel() as theirs, listening(theirs) as listener, EventChannel() as ours:
        service = service_of(listener)
        held = 0
        for number in range(rounds):
            with create_id(ours, timing=FAST, device=DEVICE) as client:
                resolve(client, (HERE, listener.get_src_port()))
                client.create_qp(cap=QPCap(max_send_wr=1, max_recv_wr=1))
                client.connect()
                with expect(theirs, E_.CONNECT_REQUEST).id as server:
                    server.create_qp(cap=QPCap(max_send_wr=1, max_recv_wr=1))
                    server.accept()
                    expect(ours, E_.ESTABLISHED)
                    expect(theirs, E_.ESTABLISHED)
                    (client, server)[number % 2].disconnect()
                    expect(ours, E_.DISCONNECTED)
                    expect(theirs, E_.DISCONNECTED)
            if number == 20:
                gc.collect()
                held = len(gc.get_objects())
        assert not service.streams
        assert len(service.timers) == 0
        gc.collect()
        assert len(gc.get_objects()) < held + 200
