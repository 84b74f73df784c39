# SPDX-License-Identifier: Apache-2.0
"""Connections of iWARP between ids: events and what they say, and what iWARP has not or has otherwise."""

from __future__ import annotations

import socket
from errno import ECONNRESET, EINVAL, EISCONN, EOPNOTSUPP
from typing import Any

import pytest

import rnic
from rdmacm.ends import FAST, LOOPBACKS, WAIT, exchange, expect, other, resolve
from rdmacm.iwarp_peer import DEVICE, HERE, asked, joined, listening, param_of, parted, resolved, service_of
from rnic import QPCap, QPInitAttr, QPState, VerbsError
from rnic.enums import AccessFlags, QPType, StreamEnd
from rnic.enums import EventType as AsyncEventType
from rnic.mpa import PRIVATE_BYTES
from rnic.rdmacm import ConnParam, EventChannel, EventType, Option, PortSpace, create_id
from rnic.rdmacm.iwcm.line import Line
from rnic.verbs.qp import QPAttr

E_ = EventType


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
