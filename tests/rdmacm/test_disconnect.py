# SPDX-License-Identifier: Apache-2.0
"""disconnect() in every state of a connection: it never fails, and the connection ends in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rdmacm.ends import FAST, expect, joined, part, resolve, resolved
from rdmacm.stranger import Calls, Stranger, agent_of, run_out
from rnic import QPState
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType, create_id
from rnic.rdmacm.registry import registry
from rnic.rdmacm.service import Phase
from rnic.wire import Drep, Dreq, Rej, Rep

OWN_QP = ConnParam(qp_num=0x321)
REFUSED_OR_NOT = (EventType.REJECTED, EventType.UNREACHABLE)
PATIENT = {"local_cm_timeout": 20, "max_cm_retries": 15}


@contextmanager
def asked(patch: pytest.MonkeyPatch) -> Iterator[tuple[Stranger, CmId]]:
    """The id of a stranger's request, with a queue pair."""
    with EventChannel() as channel, create_id(channel, timing=FAST) as listener:
        listener.bind_addr(("127.0.0.1", 0))
        listener.listen()
        agent = agent_of(listener)
        stranger = Stranger(Calls(agent, patch))
        stranger.say(stranger.req(listener.get_src_port(), **PATIENT))
        with expect(channel, EventType.CONNECT_REQUEST).id as one:
            one.create_qp()
            yield stranger, one
        run_out(agent)


def in_error(one: CmId) -> bool:
    assert one.qp is not None
    return one.qp.state is QPState.ERR


@pytest.mark.roce
def test_before_the_request_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(monkeypatch) as (stranger, one):
        one.disconnect()
        assert in_error(one)
        with pytest.raises(OSError, match="modify_qp"):
            one.accept()
        stranger.expect(Rej)


@pytest.mark.roce
def test_what_was_said_before_the_request_is_accepted_does_not_count() -> None:
    """A queue pair of the program's own is not in the way of accept() then."""
    with resolved() as (ours, theirs, client):
        client.create_qp()
        client.connect()
        with expect(theirs, EventType.CONNECT_REQUEST).id as server:
            server.disconnect()
            server.accept(OWN_QP)
            expect(ours, EventType.ESTABLISHED)
            expect(theirs, EventType.ESTABLISHED)
            with registry.lock:  # what follows from the event has been done
                assert server.conversation is not None
                assert server.conversation.phase is Phase.UP


@pytest.mark.roce
@pytest.mark.parametrize("data", [False, True])
def test_before_the_peer_confirms(monkeypatch: pytest.MonkeyPatch, data: bool) -> None:
    """The peer believes that it is connected as soon as it has the REP: it hears that that is over."""
    with asked(monkeypatch) as (stranger, one):
        one.accept()
        stranger.expect(Rep)
        one.disconnect()
        one.disconnect()
        assert in_error(one)
        assert not one.channel.has_events
        if data:  # the peer is the one that ends it, and its RTU was lost
            stranger.say(stranger.dreq())
            expect(one.channel, EventType.DISCONNECTED)
            stranger.expect(Drep)
            return
        stranger.say(stranger.rtu())
        expect(one.channel, EventType.ESTABLISHED)
        stranger.expect(Dreq)
        stranger.say(stranger.reply(Drep))
        expect(one.channel, EventType.DISCONNECTED)


@pytest.mark.roce
def test_a_peer_that_waits_for_our_confirmation_has_not_been_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an agent asks that is about to end."""
    with asked(monkeypatch) as (stranger, one):
        service = one.need_agent("accept").service
        one.accept()
        stranger.expect(Rep)
        stranger.say(stranger.rtu())
        expect(one.channel, EventType.ESTABLISHED)
        assert not service.is_parting
        stranger.say(stranger.dreq())
        expect(one.channel, EventType.DISCONNECTED)
        assert service.is_parting
        one.disconnect()
        stranger.expect(Drep)
        assert not service.is_parting


@pytest.mark.roce
def test_before_the_peer_answers() -> None:
    with EventChannel() as channel, create_id(channel, timing=FAST) as one, EventChannel() as theirs:
        with create_id(theirs) as listener:
            listener.bind_addr(("127.0.0.1", 0))
            listener.listen()
            resolve(one, ("127.0.0.1", listener.get_src_port()))
            one.create_qp()
            one.connect()
            one.disconnect()
            assert in_error(one)
            with expect(theirs, EventType.CONNECT_REQUEST).id as child:
                child.create_qp()
                child.accept()
                expect(channel, EventType.CONNECT_ERROR)
                expect(theirs, EventType.REJECTED)
                child.disconnect()  # of a connection that has failed: nothing follows
                one.disconnect()


@pytest.mark.parametrize("sync", [False, True])
def test_of_a_connection_that_was_refused_nothing_follows(sync: bool) -> None:
    with EventChannel() as theirs, create_id(theirs) as listener, create_id(timing=FAST) as one:
        listener.bind_addr(("127.0.0.1", 0))
        listener.listen()
        one.resolve_addr(None, ("127.0.0.1", listener.get_src_port()))
        one.resolve_route()
        one.create_qp()
        one.sync = False
        one.connect()
        with expect(theirs, EventType.CONNECT_REQUEST).id as child:
            child.reject()
        expect(one.channel, *REFUSED_OR_NOT)
        one.sync = sync
        one.disconnect()
        assert not one.channel.has_events


def test_twice_and_after_the_end() -> None:
    with joined() as pair:
        part(pair)
        for one in (pair.client, pair.server):
            one.disconnect()
            assert in_error(one)


@pytest.mark.roce
def test_the_passive_end_is_told_nothing_of_the_rtu() -> None:
    """As by the kernel: no depths, no private data."""
    with EventChannel() as ours, EventChannel() as theirs, create_id(theirs) as listener:
        listener.bind_addr(("127.0.0.1", 0))
        listener.listen()
        with create_id(ours, timing=FAST) as one:
            resolve(one, ("127.0.0.1", listener.get_src_port()))
            one.create_qp()
            one.connect()
            with expect(theirs, EventType.CONNECT_REQUEST).id as child:
                child.create_qp()
                child.accept()
                param = expect(theirs, EventType.ESTABLISHED).param
                assert isinstance(param, ConnParam)
                assert (param.private_data, param.responder_resources, param.initiator_depth) == (b"", 0, 0)
                assert not any((param.flow_control, param.retry_count, param.rnr_retry_count, param.qp_num))
                assert not param.srq


@pytest.mark.roce
def test_before_the_peer_answers_with_a_queue_pair_of_ones_own() -> None:
    """The program moves it from state to state: no library does, and so none can refuse for it."""
    with resolved() as (ours, theirs, client):
        client.connect(OWN_QP)
        with expect(theirs, EventType.CONNECT_REQUEST).id as server:
            client.disconnect()
            server.create_qp()
            server.accept()
            expect(theirs, EventType.ESTABLISHED)
            expect(theirs, EventType.DISCONNECTED)
            server.disconnect()
            expect(ours, EventType.DISCONNECTED)
