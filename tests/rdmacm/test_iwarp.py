# SPDX-License-Identifier: Apache-2.0
"""Connections of iWARP between ids: events and what they say, refusals, disconnects, ends in every state."""

from __future__ import annotations

import gc
import os
import resource
import socket
import threading
from contextlib import ExitStack
from errno import ECONNREFUSED, ECONNRESET, EINVAL, EISCONN, EOPNOTSUPP, EPIPE, EPROTO, ETIMEDOUT
from typing import Any

import pytest

import rnic
from rdmacm.ends import (
    FAST,
    HASTY,
    LOOPBACKS,
    WAIT,
    descriptors,
    exchange,
    expect,
    other,
    resolve,
)
from rdmacm.iwarp_peer import DEVICE, HERE, asked, joined, listening, resolved, service_of
from rnic import QPCap, QPInitAttr, QPState, VerbsError
from rnic.enums import AccessFlags, QPType, StreamEnd
from rnic.enums import EventType as AsyncEventType
from rnic.mpa import PRIVATE_BYTES
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType, IdState, Option, PortSpace, create_id
from rnic.rdmacm.iwcm.line import Line
from rnic.rdmacm.iwcm.stream import status_of
from rnic.rdmacm.registry import registry
from rnic.verbs.qp import QPAttr
from waiting import until

E_ = EventType
SOAK = bool(os.environ.get("RNIC_SOAK"))


def param_of(event: Any) -> ConnParam:
    assert isinstance(event.param, ConnParam)
    return event.param


def parted(*ends: CmId) -> None:
    for end in ends:
        expect(end.channel, E_.DISCONNECTED)
        assert end.state is IdState.DISCONNECT
        assert end.qp is not None
        assert end.qp.state is QPState.ERR
        assert not end.channel.has_events  # and no TIMEWAIT_EXIT follows, as over siw


# ------------------------------------------------------------------ the handshake


@pytest.mark.parametrize("address", LOOPBACKS)
def test_a_connection_from_its_beginning_to_its_end(address: str) -> None:
    with resolved(address=address) as (ours, theirs, client):
        client.connect(ConnParam(b"let me in", responder_resources=3, initiator_depth=5))
        request = expect(theirs, E_.CONNECT_REQUEST)
        with request.id as server:
            assert param_of(request) == ConnParam(
                b"let me in",
                responder_resources=5,
                initiator_depth=3,
                flow_control=False,
                retry_count=0,
                rnr_retry_count=0,
            )
            assert server.get_peer_addr() == client.get_local_addr()
            assert server.get_local_addr() == client.get_peer_addr()
            server.create_qp()
            server.accept(ConnParam(b"come", responder_resources=4, initiator_depth=2))
            seen = [param_of(expect(channel, E_.ESTABLISHED)) for channel in (ours, theirs)]
            assert [one.private_data for one in seen] == [b"come", b""]
            assert [(one.responder_resources, one.initiator_depth) for one in seen] == [(3, 4), (4, 2)]
            for end in (client, server):
                assert end.qp is not None
                assert end.qp.state is QPState.RTS
                assert end.verbs is not None
                assert end.verbs.device.transport is rnic.Transport.IWARP
            exchange(client, server)
            exchange(server, client)
            assert client.statistics().sent == {"REQUEST": 1, "REPLY": 1}
            assert client.statistics().received == {"REQUEST": 1, "REPLY": 1}
            assert client.stream_end is None
            client.disconnect()
            parted(client, server)
            ends = [end.stream_end and end.stream_end.end for end in (client, server)]
            assert ends == [StreamEnd.CLOSED, StreamEnd.FIN]
            server.disconnect()  # to agree does nothing
            assert not theirs.has_events


def test_depths_are_those_that_both_can_do() -> None:
    with joined(ConnParam(responder_resources=7, initiator_depth=9)) as pair:
        for event, both in ((pair.told_client, (7, 9)), (pair.told_server, (9, 7))):
            assert (param_of(event).responder_resources, param_of(event).initiator_depth) == both
        assert pair.client.qp is not None
        attr = pair.client.qp.query()[0]
        assert (attr.max_dest_rd_atomic, attr.max_rd_atomic) == (7, 9)


def test_private_data_of_every_length_begins_at_its_first_byte() -> None:
    most = bytes(256) + bytes(range(256))
    for size in range(PRIVATE_BYTES + 1):
        data = most[:size]
        with asked(ConnParam(data)) as (client, server, request):
            assert param_of(request).private_data == data
            server.accept(ConnParam(data))
            assert param_of(expect(client.channel, E_.ESTABLISHED)).private_data == data
        with asked(ConnParam(data)) as (client, server, _):
            server.reject(data)
            event = expect(client.channel, E_.REJECTED)
            assert (event.status, param_of(event).private_data) == (-ECONNRESET, data)


def test_private_data_that_is_too_long_is_refused_at_once() -> None:
    too_long = bytes(PRIVATE_BYTES + 1)
    with resolved() as (_, _, client), pytest.raises(VerbsError, match="can carry 508") as caught:
        client.connect(ConnParam(too_long))
    assert caught.value.errno == EINVAL
    with asked() as (client, server, _):
        with pytest.raises(VerbsError, match="can carry 508"):
            server.accept(ConnParam(too_long))
        with pytest.raises(VerbsError, match="can carry 508"):
            server.reject(too_long)
        server.accept()
        expect(client.channel, E_.ESTABLISHED)
        with pytest.raises(VerbsError, match="can carry 0"):
            client.disconnect(b"farewell")


def test_two_processes() -> None:
    with other(serve_one) as peer, EventChannel() as channel:
        with create_id(channel, timing=FAST, device=DEVICE) as client:
            resolve(client, (HERE, peer.hear()))
            client.create_qp()
            data, back = bytearray(b"hello"), bytearray(5)
            with client.reg_msgs(data) as out, client.reg_msgs(back) as into:
                client.post_recv(into)
                client.connect()
                expect(channel, E_.ESTABLISHED)
                client.post_send(out)
                assert client.get_recv_comp(WAIT).byte_len == 5
                assert back == b"olleh"
                client.disconnect()
                parted(client)
                client.destroy_qp()
        assert peer.hear() == "done"


def serve_one(way: Any) -> None:
    with EventChannel() as channel, listening(channel) as listener:
        way.send(listener.get_src_port())
        with expect(channel, E_.CONNECT_REQUEST).id as server:
            server.create_qp()
            data = bytearray(5)
            with server.reg_msgs(data) as mr:
                server.post_recv(mr)
                server.accept()
                expect(channel, E_.ESTABLISHED)
                assert server.get_recv_comp(WAIT).ok
                data.reverse()
                server.post_send(mr)
                parted(server)
                server.destroy_qp()
    way.send("done")


def test_whoever_speaks_first() -> None:
    """A connection of equals: the server's first message waits for nothing of the client's program."""
    with joined() as pair:
        exchange(pair.server, pair.client)


def test_atomics_go_where_both_ends_have_rfc_7306() -> None:
    with joined() as pair:
        assert pair.client.qp is not None
        assert pair.server.pd is not None
        memory, result = bytearray((5).to_bytes(8, "little")), bytearray(8)
        access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_ATOMIC
        with pair.server.pd.reg_mr(memory, access) as target, pair.client.reg_msgs(result) as mr:
            wr = rnic.SendWR(
                1,
                rnic.WROpcode.ATOMIC_FETCH_AND_ADD,
                rnic.SendFlags.SIGNALED,
                [rnic.SGE(mr)],
                remote_addr=target.addr,
                rkey=target.rkey,
                compare_add=3,
            )
            pair.client.qp.post_send(wr)
            assert pair.client.get_send_comp(WAIT).ok
            assert int.from_bytes(result, "little") == 5
            assert int.from_bytes(memory, "little") == 8


# ------------------------------------------------------------------ refusals


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


# ------------------------------------------------------------------ the end


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


# ------------------------------------------------------------------ what is not, and what is otherwise


def test_what_iwarp_has_not_is_refused_in_words() -> None:
    with create_id(ps=PortSpace.UDP, device=DEVICE) as one:
        with pytest.raises(VerbsError, match="iWARP does not support port space UDP") as caught:
            one.resolve_addr(None, (HERE, 7))
        assert caught.value.errno == EOPNOTSUPP
        with pytest.raises(VerbsError, match="iWARP does not support datagrams") as caught:
            one.bind_addr((HERE, 0))
        assert caught.value.errno == EOPNOTSUPP
    with create_id(ps=PortSpace.IB, qp_type=QPType.XRC_RECV, device=DEVICE) as one:
        with pytest.raises(VerbsError, match="port space IB with XRC_RECV queue pairs") as caught:
            one.bind_addr((HERE, 0))
        assert caught.value.errno == EOPNOTSUPP


def test_a_queue_pair_of_the_program() -> None:
    """The service moves it to RTS, as the kernel does: there is no CONNECT_RESPONSE."""
    with EventChannel() as theirs, listening(theirs) as listener, EventChannel() as ours:
        with create_id(ours, timing=FAST, device=DEVICE) as one:
            resolve(one, (HERE, listener.get_src_port()))
            assert one.verbs is not None
            with one.verbs.alloc_pd() as pd, one.verbs.create_cq(4) as cq:
                with pd.create_qp(QPInitAttr(cq, cq, cap=QPCap())) as qp:
                    with pytest.raises(VerbsError, match="it is connected from INIT or RTR"):
                        one.connect(ConnParam(qp_num=qp.qp_num))
                    with pytest.raises(VerbsError, match="no open queue pair of this process with number"):
                        one.connect(ConnParam(qp_num=0x1234))
                    qp.modify(one.init_qp_attr(QPState.INIT))
                    qp.modify(one.init_qp_attr(QPState.RTR))
                    assert one.init_qp_attr(QPState.RTS) == QPAttr()
                    one.connect(ConnParam(qp_num=qp.qp_num))
                    with expect(theirs, E_.CONNECT_REQUEST).id as child:
                        child.create_qp()
                        child.accept()
                        expect(ours, E_.ESTABLISHED)
                        expect(theirs, E_.ESTABLISHED)
                        assert qp.state is QPState.RTS
                        with pytest.raises(VerbsError, match="no message to confirm"):
                            one.establish()
                        with pytest.raises(VerbsError) as caught:
                            child.notify(AsyncEventType.COMM_EST)
                        assert caught.value.errno == EISCONN
                        one.disconnect()
                        expect(theirs, E_.DISCONNECTED)
                        expect(ours, E_.DISCONNECTED)


def test_a_program_may_post_behind_accept() -> None:
    """The queue pair sends when the initiator is ready."""
    with asked() as (client, server, _):
        server.accept()
        with server.reg_msgs(bytearray(8)) as out, client.reg_msgs(bytearray(8)) as into:
            client.post_recv(into)
            server.post_send(out)
            assert client.get_recv_comp(WAIT).ok
            expect(server.channel, E_.ESTABLISHED)
            expect(client.channel, E_.ESTABLISHED)


def test_a_queue_pair_that_is_not_ready_is_no_reason_to_hang() -> None:
    with asked() as (client, server, _):
        assert server.qp is not None
        server.qp.modify(QPAttr(qp_state=QPState.ERR))
        with pytest.raises(VerbsError, match="it is connected from INIT or RTR"):
            server.accept()
        expect(client.channel, E_.REJECTED)
    with asked() as (client, server, _):
        assert client.qp is not None
        client.qp.modify(QPAttr(qp_state=QPState.ERR))
        server.accept()
        assert expect(client.channel, E_.CONNECT_ERROR).status == -EINVAL
        expect(server.channel, E_.UNREACHABLE)


def test_options_are_the_sockets() -> None:
    with EventChannel() as theirs, listening(theirs) as listener, EventChannel() as ours:
        with create_id(ours, timing=FAST, device=DEVICE) as one:
            one.set_option(Option.TOS, 0x28)
            one.set_option(Option.ACK_TIMEOUT, 18)
            resolve(one, (HERE, listener.get_src_port()))
            one.create_qp()
            one.connect(ConnParam(retry_count=1))
            line = next(each for each in service_of(one)._watched.values() if isinstance(each, Line))
            assert line.sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0x28
            assert line.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2147
            assert line.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            expect(theirs, E_.CONNECT_REQUEST).id.destroy()
            expect(ours, E_.REJECTED)
