# SPDX-License-Identifier: Apache-2.0
"""Connections from the first call to the end of TIMEWAIT."""

from __future__ import annotations

from errno import ECONNREFUSED, EINVAL

import pytest

import rnic
from rdmacm.ends import (
    FAST,
    LOOPBACKS,
    WAIT,
    exchange,
    expect,
    expect_timewait,
    ib_of,
    joined,
    listening,
    other,
    part,
    resolved,
    serve,
)
from rdmacm.stranger import agent_of, over_sockets, run_out
from rnic import MTU, SGE, Faults, QPState, QPType, VerbsError
from rnic.rdmacm import (
    ECE,
    ConnParam,
    EventChannel,
    EventType,
    IdState,
    Option,
    PortSpace,
    create_ep,
    create_id,
    get_devices,
    getaddrinfo,
)
from rnic.rdmacm.endpoint import AddrInfo
from rnic.rdmacm.ibcm import requests
from rnic.rdmacm.ibcm.connection import IbConnection
from rnic.verbs.qp import QPCap
from rnic.wire import Rej, RejReason, Req


@pytest.mark.parametrize("address", LOOPBACKS)
def test_two_processes_connect_talk_and_part(address: str) -> None:
    with other(serve, address) as peer:
        echo((address, peer.hear()))
        assert peer.hear() == "done"


def echo(to: tuple[str, int], loss: float = 0.0) -> None:
    with create_id(timing=FAST) as one:
        one.resolve_addr(None, to)
        if loss:
            assert one.verbs
            one.verbs.set_faults(Faults(seed=11, loss=loss))
        one.resolve_route()
        one.create_qp()
        data, back = bytearray(b"one message"), bytearray(64)
        with one.reg_msgs(data) as mr, one.reg_msgs(back) as back_mr:
            one.post_recv(back_mr)
            one.connect(ConnParam(private_data=b"hello"))
            assert one.event
            assert one.event.event is EventType.ESTABLISHED
            assert one.event.param
            assert one.event.param.private_data.startswith(b"welcome")
            one.post_send(mr)
            assert one.get_recv_comp(WAIT).byte_len == len(data)
            assert back[: len(data)] == data
            one.disconnect()
            expect_timewait(one.channel)
            one.destroy_qp()


def test_a_handshake_survives_the_loss_of_every_fifth_packet() -> None:
    with other(serve, "127.0.0.1", 0.2, 4) as peer:
        port = peer.hear()
        for _ in range(4):
            echo(("127.0.0.1", port), 0.2)
        assert peer.hear() == "done"


@pytest.mark.parametrize("address", LOOPBACKS)
def test_both_ends_in_one_process(address: str) -> None:
    with joined(address) as pair:
        assert pair.client.get_peer_addr() == pair.listener.get_local_addr()
        assert pair.server.get_peer_addr() == pair.client.get_local_addr()
        assert pair.server.get_dst_port() == pair.client.get_src_port()
        assert pair.request.listen_id is pair.listener
        assert pair.client.verbs in get_devices()
        assert pair.client.statistics().received["RTU"] == 1
        exchange(pair.client, pair.server)
        exchange(pair.server, pair.client)
        part(pair)
        assert pair.client.state is IdState.DISCONNECT


def test_either_end_may_disconnect_and_both_at_once() -> None:
    with joined() as pair:
        pair.server.disconnect()
        expect(pair.client.channel, EventType.DISCONNECTED)
        pair.client.disconnect()
        expect(pair.server.channel, EventType.DISCONNECTED)
    with joined() as pair:
        pair.server.disconnect()
        pair.client.disconnect()
        for end in (pair.client, pair.server):
            expect(end.channel, EventType.DISCONNECTED)
            expect_timewait(end.channel)


def test_what_is_agreed_reaches_the_queue_pairs() -> None:
    asked = ConnParam(b"a" * 56, 5, 3, retry_count=4, rnr_retry_count=2)
    agreed = ConnParam(b"b" * 196, 2, 4, rnr_retry_count=6)
    with joined(asked=asked, agreed=agreed) as pair:
        seen = pair.request.param
        assert isinstance(seen, ConnParam)
        assert (seen.responder_resources, seen.initiator_depth) == (3, 5)
        assert (seen.retry_count, seen.rnr_retry_count, seen.private_data) == (4, 2, b"a" * 56)
        answer = pair.accepted.param
        assert isinstance(answer, ConnParam)
        assert (answer.responder_resources, answer.initiator_depth) == (4, 2)
        assert answer.private_data == b"b" * 196
        assert pair.client.qp
        assert pair.server.qp
        active, passive = pair.client.qp.query()[0], pair.server.qp.query()[0]
        assert (active.max_dest_rd_atomic, active.max_rd_atomic) == (4, 2)
        assert (passive.max_dest_rd_atomic, passive.max_rd_atomic) == (2, 4)
        assert (active.retry_cnt, active.rnr_retry) == (4, 6)
        assert (passive.retry_cnt, passive.rnr_retry) == (4, 2)
        assert active.path_mtu == passive.path_mtu
        assert active.timeout
        exchange(pair.client, pair.server)


def test_what_cannot_be_asked_for_is_refused_in_words() -> None:
    with EventChannel() as channel, listening(channel) as listener, create_id(timing=FAST) as one:
        with pytest.raises(VerbsError, match=r"needs ROUTE_RESOLVED: call .*_addr\(\), then .*_route\(\) "):
            one.connect()
        with pytest.raises(VerbsError, match=r"needs ADDR_RESOLVED: call resolve_addr\(\) "):
            one.resolve_route()
        one.resolve_addr(None, ("127.0.0.1", listener.get_src_port()))
        with pytest.raises(VerbsError, match=r"needs ROUTE_RESOLVED: call resolve_route\(\) "):
            one.connect()
        one.resolve_route()
        with pytest.raises(VerbsError, match=r"accept\(\) needs CONNECT \["):
            one.accept()
        with pytest.raises(VerbsError, match="no queue pair"):
            one.connect()
        one.create_qp()
        with pytest.raises(VerbsError, match=r"57 bytes; connect\(\) can carry 56"):
            one.connect(ConnParam(b"x" * 57))
        with pytest.raises(VerbsError, match="responder_resources is 200"):
            one.connect(ConnParam(responder_resources=200))
        with pytest.raises(VerbsError, match="has a queue pair"):
            one.create_qp()
        assert one.state is IdState.ROUTE_RESOLVED


def test_reads_and_writes_go_through_short_words() -> None:
    with joined() as pair:
        memory, local = bytearray(b"there" * 10), bytearray(50)
        with (
            pair.server.reg_read(memory) as readable,
            pair.server.reg_write(memory) as writable,
            pair.client.reg_msgs(local) as mr,
        ):
            pair.client.post_read(mr, remote_addr=readable.addr, rkey=readable.rkey)
            assert pair.client.get_send_comp(WAIT).ok
            assert local == memory
            local[:5] = b"HERE!"
            pieces = (SGE(mr, 0, 3), SGE(mr, 3, 2))
            pair.client.post_write(*pieces, remote_addr=writable.addr, rkey=writable.rkey)
            assert pair.client.get_send_comp(WAIT).ok
            assert memory[:5] == b"HERE!"


def test_a_queue_pair_of_ones_own() -> None:
    """CONNECT_RESPONSE, init_qp_attr and establish() instead of what the id does alone."""
    with resolved() as (ours, theirs, one):
        one.create_qp()
        own, one.qp = one.qp, None
        assert own
        one.connect(ConnParam(qp_num=own.qp_num))
        with expect(theirs, EventType.CONNECT_REQUEST).id as server:
            server.create_qp()
            server.accept()
            expect(ours, EventType.CONNECT_RESPONSE)
            for state in (QPState.RTR, QPState.RTS):
                own.modify(one.init_qp_attr(state))
            one.establish()
            expect(theirs, EventType.ESTABLISHED)
            one.qp = own
            exchange(one, server)


def test_vendor_options_are_handed_over() -> None:
    with resolved() as (ours, theirs, one):
        one.create_qp()
        one.set_local_ece(ECE(0x1234, 0xABCD0001))
        one.connect()
        with expect(theirs, EventType.CONNECT_REQUEST).id as server:
            assert server.get_remote_ece() == ECE(0x1234, 0xABCD0001)
            server.set_local_ece(ECE(0x1234, 1))
            server.create_qp()
            server.accept()
            expect(ours, EventType.ESTABLISHED)
            assert one.get_remote_ece() == ECE(0x1234, 1)


def test_an_id_can_have_a_queue_pair_with_builders() -> None:
    with resolved() as (ours, theirs, one):
        assert one.verbs
        with one.verbs.create_cq(16) as cq:
            init = rnic.QPInitAttrEx(cq, cq, send_ops_flags=rnic.SendOpsFlags.SEND)
            qp = one.create_qp_ex(init)
            one.connect()
            with expect(theirs, EventType.CONNECT_REQUEST).id as server:
                server.create_qp()
                data = bytearray(64)
                with server.reg_msgs(data) as mr:
                    server.post_recv(mr)
                    server.accept()
                    expect(ours, EventType.ESTABLISHED)
                    with qp.wr_start():
                        qp.wr_send()
                        qp.wr_set_inline_data(b"built")
                    assert server.get_recv_comp(WAIT).byte_len == 5
                    assert data[:5] == b"built"
            one.destroy_qp()


def test_a_queue_pair_answers_for_options_that_the_program_does_not_speak_of() -> None:
    with resolved() as (ours, theirs, one):
        assert one.create_qp().query_ece().options == 0
        one.set_local_ece(ECE(0x1234, 3))
        one.connect()
        with expect(theirs, EventType.CONNECT_REQUEST).id as server:
            server.create_qp()
            server.accept()
            expect(ours, EventType.ESTABLISHED)
            assert server.get_remote_ece() == ECE(0x1234, 3)
            assert one.get_remote_ece() == ECE()  # the software RNIC accepts none


def test_a_timeout_is_an_option_of_queue_pairs_that_wait_for_answers() -> None:
    for ps, kind in (PortSpace.UDP, None), (PortSpace.IB, QPType.XRC_RECV):
        with (
            create_id(None, ps, qp_type=kind) as one,
            pytest.raises(VerbsError, match="no timeout") as caught,
        ):
            one.set_option(Option.ACK_TIMEOUT, 19)
        assert caught.value.errno == EINVAL
    with create_id(None, PortSpace.IB, qp_type=QPType.XRC_SEND) as one:
        one.set_option(Option.ACK_TIMEOUT, 19)


def test_options() -> None:
    with EventChannel() as ours, EventChannel() as theirs, listening(theirs) as listener:
        with create_id(ours, timing=FAST) as one:
            one.set_option(Option.ACK_TIMEOUT, 19)
            with pytest.raises(VerbsError, match="0 to 31"):
                one.set_option(Option.ACK_TIMEOUT, 32)
            one.resolve_addr(None, ("127.0.0.1", listener.get_src_port()))
            expect(ours, EventType.ADDR_RESOLVED)
            one.set_option(Option.TOS, 0x20)  # until the route is resolved, as programs do it
            one.resolve_route()
            expect(ours, EventType.ROUTE_RESOLVED)
            one.create_qp()
            one.connect()
            with expect(theirs, EventType.CONNECT_REQUEST).id as server:
                server.create_qp()
                server.accept()
                expect(ours, EventType.ESTABLISHED)
                assert one.qp
                assert server.qp
                assert one.qp.query()[0].timeout == server.qp.query()[0].timeout == 19
                ah_attr = server.qp.query()[0].ah_attr
                assert ah_attr
                assert ah_attr.traffic_class == 0x20


def test_endpoints() -> None:
    (passive,) = getaddrinfo("127.0.0.1", 0, AddrInfo(passive=True))
    with create_ep(passive, cap=QPCap(max_send_wr=8)) as listener:
        listener.listen()
        (active,) = getaddrinfo("127.0.0.1", listener.get_src_port())
        with create_ep(active, cap=QPCap(max_send_wr=8)) as client:
            client.sync = False
            client.connect(ConnParam(private_data=b"hi"))
            with listener.get_request() as server:
                assert server.event
                assert server.event.param
                assert server.event.param.private_data[:2] == b"hi"
                server.accept()
                expect(client.channel, EventType.ESTABLISHED)
                exchange(client, server)


def test_a_call_without_a_channel_raises_what_the_event_says() -> None:
    with create_id(timing=FAST) as free:
        free.bind_addr(("127.0.0.1", 0))
        with create_id(timing=FAST) as one:
            one.resolve_addr(None, ("127.0.0.1", free.get_src_port()))
            one.resolve_route()
            one.create_qp()
            with pytest.raises(VerbsError) as caught:
                one.connect()
            assert caught.value.errno == ECONNREFUSED
            assert one.event
            assert one.event.status in (5, 8), "bound, but nobody listens; a process that calls itself: 5"


def test_port_spaces_go_with_their_services() -> None:
    with pytest.raises(VerbsError, match="UDP does not go with"):
        create_id(ps=PortSpace.UDP, qp_type=2)  # type: ignore[arg-type] # RC
    with create_id(ps=PortSpace.IPOIB) as one:
        one.resolve_addr(None, ("127.0.0.1", 7))
        with pytest.raises(VerbsError, match="InfiniBand"):
            one.create_qp()
    with create_id(ps=PortSpace.IB) as one:
        with pytest.raises(VerbsError) as caught:
            one.create_qp()
        assert caught.value.errno == EINVAL


# ------------------------------------------------------------------ path MTUs that differ


@pytest.mark.parametrize("named", [MTU.MTU_1024, MTU.MTU_256, None, MTU.MTU_4096])
def test_a_path_mtu_that_is_too_large_for_the_peer_is_lowered(
    monkeypatch: pytest.MonkeyPatch, named: MTU | None
) -> None:
    """A peer that names what it can do, one that names nothing, and one that names what was refused."""
    limit = named if named is not None and named < MTU.MTU_4096 else MTU.MTU_512
    asked: list[int] = []

    def objection(_agent: object, req: Req, _index: int) -> tuple[RejReason, bytes] | None:
        asked.append(req.path_mtu)
        return (RejReason.INVALID_MTU, bytes([named] if named else [])) if req.path_mtu > limit else None

    monkeypatch.setattr(requests, "_objection", objection)
    with joined() as pair:
        assert pair.client.qp
        assert pair.server.qp
        assert pair.client.qp.query()[0].path_mtu == pair.server.qp.query()[0].path_mtu == limit
        assert asked[-1] == limit
        assert asked == sorted(set(asked), reverse=True)
        exchange(pair.client, pair.server)
        part(pair)


def test_a_peer_that_refuses_every_path_mtu_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_objection", lambda *_: (RejReason.INVALID_MTU, b"\x09"))
    with resolved() as (ours, _, client):
        client.create_qp()
        client.connect()
        assert expect(ours, EventType.REJECTED).status == RejReason.INVALID_MTU


def test_a_smaller_path_mtu_that_cannot_be_asked_for_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong, an event tells of the end."""

    def fails(*_: object) -> bool:
        raise VerbsError(EINVAL, "on purpose", "connect")

    monkeypatch.setattr(requests, "_objection", lambda *_: (RejReason.INVALID_MTU, b""))
    monkeypatch.setattr(IbConnection, "_call_again", fails)
    with resolved() as (ours, _, client):
        client.create_qp()
        client.connect()
        assert expect(ours, EventType.REJECTED).status == RejReason.INVALID_MTU


def test_a_request_that_a_mistake_meets_leaves_no_id(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> object:
        raise ValueError("on purpose")

    monkeypatch.setattr(requests, "timeout_of", fails)
    with EventChannel() as channel, listening(channel) as listener:
        with over_sockets() as stranger:
            agent = agent_of(listener)
            stranger.say(stranger.req(listener.get_src_port()))
            stranger.expect(Rej)
            assert agent.ids == {listener}
            run_out(agent)
            assert len(ib_of(agent).cm.table) == 0
    assert "on purpose" in caplog.text
    caplog.clear()
