# SPDX-License-Identifier: Apache-2.0
"""Connections of iWARP that do not come about: nobody listens, there is no room, or no answer."""

from __future__ import annotations

import resource
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from errno import ECONNREFUSED, ECONNRESET, ETIMEDOUT

import pytest

from rdmacm.ends import FAST, HASTY, expect, resolve
from rdmacm.iwarp_peer import (
    DEVICE,
    HERE,
    REQUEST,
    Stranger,
    asked,
    calling,
    listening,
    resolved,
    service_of,
)
from rnic import VerbsError
from rnic.rdmacm import CmId, EventChannel, EventType, create_id
from rnic.rdmacm.iwcm.line import Line
from waiting import until

E_ = EventType


def test_a_port_where_nobody_listens() -> None:
    with resolved((HERE, 9)) as (ours, _, client):
        client.connect()
        event = expect(ours, E_.REJECTED)
        assert event.status == -ECONNREFUSED
        assert event.explain() == (
            f"{HERE} port 9: nobody listens there (REJECTED, reason -111: TCP says that the port is closed)"
        )
    with create_id(timing=FAST, device=DEVICE) as client:
        client.resolve_addr(None, (HERE, 9))
        client.resolve_route()
        client.create_qp()
        with pytest.raises(VerbsError) as caught:
            client.connect()
        assert caught.value.errno == ECONNREFUSED


def test_a_port_that_is_bound_and_does_not_listen_is_one_of_nobody() -> None:
    with create_id(device=DEVICE) as one:
        one.bind_addr((HERE, 0))
        with resolved((HERE, one.get_src_port())) as (ours, _, client):
            client.connect()
            assert expect(ours, E_.REJECTED).status == -ECONNREFUSED


def test_a_refusal_is_explained() -> None:
    with asked() as (client, server, _):
        server.reject()
        event = expect(client.channel, E_.REJECTED)
        assert event.explain() == (
            "REJECTED: refused by the peer, reason -104 (its program does not want it, or there is no room "
            "for one more: iWARP does not say which)"
        )
        with pytest.raises(VerbsError, match="nothing to refuse: the connection is in OVER"):
            server.reject()


@contextmanager
def refused(channel: EventChannel, listener: CmId) -> Iterator[tuple[Stranger, Line]]:
    """A stranger who has got a refusal, and the line of it at the other end."""
    with calling(listener.get_src_port()) as stranger:
        stranger.say(REQUEST)
        with expect(channel, E_.CONNECT_REQUEST).id as request:
            request.reject(b"why")
        answer = stranger.hear_frame()
        assert answer.rejected
        assert answer.private_data == b"why"
        yield stranger, service_of(listener)._leaving[-1]


def test_the_end_of_the_stream_does_not_come_with_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else siw takes it for a lost connection."""
    monkeypatch.setattr("rnic.rdmacm.iwcm.line._LEAVE_NS", 1 << 60)
    with EventChannel() as channel, listening(channel) as listener:
        with refused(channel, listener) as (stranger, line):
            assert select.select([stranger.sock], [], [], 0)[0] == []
            assert not line.is_done
        until(lambda: line.is_done, "the stream ends when the peer has closed it")


@pytest.mark.parametrize("limit", ["line._LEAVE_NS", "manager._MOST_LEAVING"])
def test_a_refused_peer_that_stays_is_left(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """After a time, or when there are more of them."""
    monkeypatch.setattr("rnic.rdmacm.iwcm.line._LEAVE_NS", 1 << 60)
    monkeypatch.setattr(f"rnic.rdmacm.iwcm.{limit}", 0)
    with EventChannel() as channel, listening(channel) as listener:
        with calling(listener.get_src_port()) as stranger:
            stranger.say(REQUEST)
            expect(channel, E_.CONNECT_REQUEST).id.destroy()
            assert stranger.hear_frame().rejected
            assert stranger.is_over()


def test_requests_that_wait_leave_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (36, 4096))
    with EventChannel() as channel, listening(channel) as listener, ExitStack() as stack:
        for number in range(10):
            ours = stack.enter_context(EventChannel())
            one = stack.enter_context(create_id(ours, timing=FAST, device=DEVICE))
            resolve(one, (HERE, listener.get_src_port()))
            one.create_qp()
            one.connect()
            if number < 9:
                until(lambda: listener.waiting == number + 1, "the request is there")  # noqa: B023
            else:
                expect(ours, E_.REJECTED)
        while listener.waiting:
            expect(channel, E_.CONNECT_REQUEST).id.destroy()


def test_a_backlog_is_kept() -> None:
    with resolved(backlog=1) as (ours, theirs, first), EventChannel() as channel:
        first.connect()
        until(lambda: theirs.pending == 1, "the first request is there")
        with create_id(channel, timing=FAST, device=DEVICE) as second:
            assert first.remote is not None
            resolve(second, (HERE, first.remote.port))
            second.create_qp()
            second.connect()
            assert expect(channel, E_.REJECTED).status == -ECONNRESET
        expect(theirs, E_.CONNECT_REQUEST).id.destroy()
        expect(ours, E_.REJECTED)


def test_max_connections_are_kept_until_one_is_destroyed() -> None:
    with EventChannel() as theirs, listening(theirs, max_connections=1) as listener, EventChannel() as ours:

        def called(answer: EventType) -> None:
            resolve(one, (HERE, listener.get_src_port()))
            one.create_qp()
            one.connect()
            if answer is E_.ESTABLISHED:
                servers.append(expect(theirs, E_.CONNECT_REQUEST).id)
                servers[-1].create_qp()
                servers[-1].accept()
                expect(theirs, E_.ESTABLISHED)
            assert expect(ours, answer).status == (-ECONNRESET if answer is E_.REJECTED else 0)

        servers: list[CmId] = []
        with create_id(ours, timing=FAST, device=DEVICE) as one:
            called(E_.ESTABLISHED)
        with create_id(ours, timing=FAST, device=DEVICE) as one:
            called(E_.REJECTED)
        servers[0].destroy()
        with create_id(ours, timing=FAST, device=DEVICE) as one:
            called(E_.ESTABLISHED)
        servers[1].destroy()


def test_a_program_that_does_not_answer_in_time_is_told_and_so_is_the_peer() -> None:
    with asked(handshake_timeout=0.1) as (client, server, _):
        assert expect(server.channel, E_.UNREACHABLE).status == -ETIMEDOUT
        assert expect(client.channel, E_.REJECTED).status == -ECONNRESET
        with pytest.raises(VerbsError, match="no request waits"):
            server.accept()


def test_a_host_that_does_not_answer() -> None:
    """Its TCP takes no connection: the queue of those that were made is full."""
    with socket.socket() as stuck:
        stuck.bind((HERE, 0))
        stuck.listen(0)
        fillers = [socket.socket() for _ in range(8)]
        for one in fillers:
            one.setblocking(False)
            one.connect_ex(stuck.getsockname())
        with resolved(stuck.getsockname(), timing=HASTY) as (ours, _, client):
            client.connect()
            event = expect(ours, E_.UNREACHABLE)
            assert event.status == -ETIMEDOUT
            assert "TCP gets no answer" in event.explain()
        for one in fillers:
            one.close()
