# SPDX-License-Identifier: Apache-2.0
"""Ids, channels and endpoints over another connection service: a program of librdmacm sees no difference."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EADDRINUSE, EINVAL, EISCONN, EOPNOTSUPP, ETIMEDOUT
from typing import Any

import pytest

import rnic
from rdmacm.ends import WAIT, exchange, expect, joined, listening, part, resolve, resolved
from rdmacm.in_memory import NOBODY, PROGRAM, SHORTAGE, Memory
from rnic import QPCap, QPInitAttr, QPState, VerbsError
from rnic.enums import EventType as AsyncEventType
from rnic.enums import Transport
from rnic.rdmacm import (
    AddrInfo,
    CmId,
    ConnParam,
    EventChannel,
    EventType,
    IdState,
    PortSpace,
    create_ep,
    create_id,
)
from rnic.rdmacm.ibcm.gsi import Gsi
from rnic.rdmacm.registry import registry
from rnic.rdmacm.transports import SERVICES

pytestmark = pytest.mark.roce

E_ = EventType
HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Memory]]:
    """The services that were made. Queue pair 1 cannot be made."""
    made: list[Memory] = []

    def memory(agent: Any) -> Memory:
        made.append(Memory(agent))
        return made[-1]

    def no_gsi(*_: object) -> None:
        raise AssertionError("queue pair 1 is not for this service")

    monkeypatch.setitem(SERVICES, Transport.IB, memory)
    monkeypatch.setattr(Gsi, "__init__", no_gsi)
    yield made
    assert not any(one.listeners for one in made)


@contextmanager
def asked(**limits: Any) -> Iterator[tuple[EventChannel, CmId, EventChannel, CmId]]:
    """A request that waits for its answer: the caller and the new id, each with its channel."""
    with EventChannel() as theirs, create_id(theirs) as listener:
        listener.bind_addr((HERE, 0))
        listener.listen(**limits)
        with EventChannel() as ours, create_id(ours) as one:
            resolve(one, (HERE, listener.get_src_port()))
            one.create_qp()
            one.connect(ConnParam(private_data=b"let me in", initiator_depth=3))
            request = expect(theirs, E_.CONNECT_REQUEST)
            assert request.listen_id is listener
            with request.id as child:
                yield ours, one, theirs, child


def test_a_connection_from_its_beginning_to_its_end(in_memory: list[Memory]) -> None:
    with joined(asked=ConnParam(b"hello", initiator_depth=3), agreed=ConnParam(b"welcome")) as pair:
        assert (pair.request.event, pair.accepted.event) == (E_.CONNECT_REQUEST, E_.ESTABLISHED)
        assert isinstance(pair.request.param, ConnParam)
        assert isinstance(pair.accepted.param, ConnParam)
        assert pair.request.param.private_data == b"hello"
        assert pair.request.param.responder_resources == 3
        assert pair.accepted.param.private_data == b"welcome"
        assert pair.client.get_peer_addr() == pair.listener.get_local_addr()
        assert pair.server.get_peer_addr() == pair.client.get_local_addr()
        assert {pair.client.state, pair.server.state} == {IdState.CONNECT}
        exchange(pair.client, pair.server)
        part(pair)
        assert {pair.client.state, pair.server.state} == {IdState.DISCONNECT}
    (service,) = in_memory
    assert service.said > 4


def test_a_farewell_has_private_data() -> None:
    with joined() as pair:
        pair.client.disconnect(b"good night")
        event = expect(pair.server.channel, E_.DISCONNECTED)
        assert isinstance(event.param, ConnParam)
        assert event.param.private_data == b"good night"


def test_who_is_destroyed_disconnects() -> None:
    with joined() as pair:
        pair.server.destroy()
        expect(pair.client.channel, E_.DISCONNECTED)


def test_a_failed_queue_pair_ends_the_connection() -> None:
    with joined() as pair:
        pair.client.notify(AsyncEventType.QP_FATAL)
        for end in (pair.client, pair.server):
            expect(end.channel, E_.DISCONNECTED)


def test_the_program_refuses_with_its_reason() -> None:
    with asked() as (ours, _, _, child):
        child.reject(b"not today")
        event = expect(ours, E_.REJECTED)
        assert event.status == PROGRAM
        assert isinstance(event.param, ConnParam)
        assert event.param.private_data == b"not today"
        assert event.explain() == f"REJECTED: refused by the peer, reason {PROGRAM} (the program)"


def test_a_port_without_a_listener_is_named_so() -> None:
    with EventChannel() as channel, create_id(channel) as one:
        resolve(one, (HERE, 7))
        one.create_qp()
        one.connect()
        event = expect(channel, E_.REJECTED)
        assert event.status == NOBODY
        assert "REJECTED, reason 1: nobody" in event.explain()
        assert "port 7" in event.explain()


def test_a_request_that_waits_is_refused_when_its_listener_goes() -> None:
    with resolved() as (ours, theirs, one):
        one.create_qp()
        one.connect()
        assert theirs.has_events
        for listener in list(theirs.ids):
            listener.destroy()
        assert expect(ours, E_.REJECTED).status == PROGRAM


def test_a_backlog_and_limits_hold() -> None:
    with EventChannel() as theirs, create_id(theirs) as listener, EventChannel() as ours:
        listener.bind_addr((HERE, 0))
        listener.listen(1)
        with create_id(ours) as first, create_id(ours) as second:
            for one in (first, second):
                resolve(one, (HERE, listener.get_src_port()))
                one.create_qp()
                one.connect()
            event = expect(ours, E_.REJECTED)
            assert (event.id, event.status) == (second, SHORTAGE)


def test_an_accepted_peer_that_is_replaced_is_unreachable() -> None:
    with EventChannel() as theirs, create_id(theirs) as listener, EventChannel() as ours:
        listener.bind_addr((HERE, 0))
        listener.listen(max_half_open=1)
        callers, children = [create_id(ours) for _ in range(2)], []
        for one in callers:
            resolve(one, (HERE, listener.get_src_port()))
            one.connect(ConnParam(qp_num=0x77))  # and does not confirm, as it has no queue pair
            children.append(expect(theirs, E_.CONNECT_REQUEST).id)
            children[-1].create_qp()
        for child in children:
            child.accept()
        event = expect(theirs, E_.UNREACHABLE)
        assert (event.id, event.status) == (children[0], -ETIMEDOUT)
        for one in (*callers, *children):
            one.destroy()


def test_a_handshake_has_its_time() -> None:
    with asked(handshake_timeout=0.05) as (ours, _, theirs, child):
        event = expect(theirs, E_.UNREACHABLE)
        assert (event.id, event.status) == (child, -ETIMEDOUT)
        expect(ours, E_.REJECTED)
    with asked(handshake_timeout=math.inf):
        pass


def test_a_queue_pair_of_the_program() -> None:
    """CONNECT_RESPONSE, attributes from rdma_init_qp_attr(), rdma_establish()."""
    with resolved() as (ours, theirs, one):
        context = one.verbs
        assert context
        with context.alloc_pd() as pd, context.create_cq(4) as cq:
            with pd.create_qp(QPInitAttr(cq, cq, cap=QPCap())) as qp:
                qp.modify(one.init_qp_attr(QPState.INIT))
                with pytest.raises(VerbsError, match="needs what the peer answers"):
                    one.init_qp_attr(QPState.RTR)
                one.connect(ConnParam(qp_num=qp.qp_num))
                with expect(theirs, E_.CONNECT_REQUEST).id as child:
                    child.create_qp()
                    child.accept()
                    expect(ours, E_.CONNECT_RESPONSE)
                    for state in (QPState.RTR, QPState.RTS):
                        qp.modify(one.init_qp_attr(state))
                    one.establish()
                    expect(theirs, E_.ESTABLISHED)
                    with pytest.raises(VerbsError) as caught:
                        child.notify(AsyncEventType.COMM_EST)
                    assert caught.value.errno == EISCONN
                    one.disconnect()
                    expect(theirs, E_.DISCONNECTED)
                    with pytest.raises(VerbsError, match="the connection has ended: LEFT"):
                        child.init_qp_attr(QPState.RTS)


def test_endpoints_wait_for_their_events() -> None:
    with create_ep(AddrInfo(passive=True, src_addr=(HERE, 0)), cap=QPCap()) as listener:
        listener.listen()
        served: list[bytes] = []

        def serve() -> None:
            with listener.get_request() as child:
                assert child.event
                assert isinstance(child.event.param, ConnParam)
                served.append(child.event.param.private_data)
                child.accept()
                expect(child.channel, E_.DISCONNECTED)

        thread = threading.Thread(target=serve)
        thread.start()
        with create_ep(AddrInfo(dst_addr=(HERE, listener.get_src_port())), cap=QPCap()) as one:
            one.connect(ConnParam(private_data=b"from an endpoint"))
            one.disconnect()
        thread.join(WAIT)
        assert served == [b"from an endpoint"]
        with create_ep(AddrInfo(dst_addr=(HERE, 9)), cap=QPCap()) as one:
            with pytest.raises(VerbsError, match="REJECTED"):
                one.connect()


def test_calls_that_come_too_early_or_carry_too_much() -> None:
    with resolved() as (_, _, one):
        one.create_qp()
        with pytest.raises(VerbsError, match="needs CONNECT"):
            one.accept()
        with pytest.raises(VerbsError, match=r"connect\(\) can carry 64"):
            one.connect(ConnParam(private_data=bytes(65)))
    with asked() as (_, one, _, child):
        with pytest.raises(VerbsError, match="no request waits: the connection is in CALLING"):
            one.accept()
        child.create_qp()
        with pytest.raises(VerbsError, match=r"reject\(\) can carry 64"):
            child.reject(bytes(65))


def test_ports_are_the_services() -> None:
    with EventChannel() as channel, listening(channel) as listener, create_id() as one:
        with pytest.raises(VerbsError) as caught:
            one.bind_addr((HERE, listener.get_src_port()))
        assert caught.value.errno == EADDRINUSE


def test_what_a_service_lacks_is_refused_in_words() -> None:
    with EventChannel() as channel, create_id(channel, PortSpace.UDP) as one:
        with pytest.raises(VerbsError, match="the service in memory does not support datagram") as caught:
            one.resolve_addr(None, (HERE, 7))
        assert caught.value.errno == EOPNOTSUPP
        assert one.state is IdState.IDLE
        assert not channel.has_events
    with create_id(ps=PortSpace.UDP) as one:
        one.bind_addr((HERE, 0))
        for call, what in (
            (one.listen, "datagram services"),
            (lambda: one.join_multicast(("239.1.2.3", 0)), "multicast groups"),
            (one.statistics, "counters of messages"),
        ):
            with pytest.raises(VerbsError, match=f"does not support {what}") as caught:
                call()
            assert caught.value.errno == EOPNOTSUPP
        assert one.state is IdState.ADDR_BOUND


def test_a_transport_without_a_service_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(SERVICES, Transport.IB)
    with create_id() as one:
        with pytest.raises(VerbsError, match="no connection service supports") as caught:
            one.bind_addr((HERE, 0))
        assert caught.value.errno == EOPNOTSUPP
    assert not registry.agents()


def test_a_mistaken_order_is_einval() -> None:
    with resolved() as (_, _, one), pytest.raises(VerbsError) as caught:
        one.disconnect()
    assert caught.value.errno == EINVAL


def test_connections_of_rnic_go_over_it(in_memory: list[Memory]) -> None:
    with rnic.listen(HERE, 0) as server:

        def serve() -> None:
            with server.accept(WAIT) as conn:
                conn.send(conn.recv(WAIT))

        thread = threading.Thread(target=serve)
        thread.start()
        with rnic.connect(HERE, server.port, timeout=WAIT) as conn:
            conn.send(b"there and back")
            assert conn.recv(WAIT) == b"there and back"
        thread.join(WAIT)
    assert in_memory[0].said
