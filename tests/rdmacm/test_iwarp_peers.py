# SPDX-License-Identifier: Apache-2.0
"""Peers who are not rnic call ids of iWARP: of other revisions and options, malformed, gone, hostile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from errno import ECONNRESET, EPROTO, ETIMEDOUT

import pytest

import rnic
from rdmacm.ends import FAST, HASTY, WAIT, expect
from rdmacm.iwarp_peer import (
    FIRST,
    REPLY,
    REQUEST,
    RTR,
    Stranger,
    calling,
    leave,
    listening,
    met,
    received,
    send,
    sent,
    service_of,
)
from rnic import QPState, VerbsError
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType, Timing
from rnic.rdmacm.iwcm.sockets import abort
from rnic.rdmacm.names import MAX_INIT_DEPTH, MAX_RESP_RES
from rnic.records import replace
from rnic.wire import MpaControl, MpaFrame, RdmapOpcode, Segment, Terminate, TermLayer
from waiting import until

E_ = EventType
ONE_WAY = replace(REQUEST, control=MpaControl(ird=4, ord=4))  # not a connection of equals


# ------------------------------------------------------------------ who calls us


def test_a_stranger_calls() -> None:
    agrees = ConnParam(b"welcome", responder_resources=3, initiator_depth=2)
    with met(agrees=agrees) as (stranger, server, request):
        assert isinstance(request.param, ConnParam)
        assert request.param.private_data == b"from a stranger"
        assert (request.param.responder_resources, request.param.initiator_depth) == (4, 4)
        answer = stranger.hear_frame()
        assert answer.private_data == b"welcome"
        assert answer.control == MpaControl(ird=3, ord=2, peer_to_peer=True, rtr_write=True)
        stranger.say(RTR)
        expect(server.channel, E_.ESTABLISHED)
        assert received(server, lambda: stranger.say(send(b"a message"))) == b"a message"
        sent(server, b"another", stranger)
        stranger.sock.shutdown(socket.SHUT_WR)
        assert expect(server.channel, E_.DISCONNECTED).status == 0
        assert stranger.is_over()


@pytest.mark.parametrize("how", ["closes", "resets", "is silent"])
def test_a_stranger_is_never_ready(how: str) -> None:
    """The connection of equals is one when the initiator's first message has come."""
    limit = 0.5 if how == "is silent" else WAIT
    with EventChannel() as channel, listening(channel, handshake_timeout=limit) as listener:
        with calling(listener.get_src_port()) as stranger:
            stranger.say(REQUEST)
            with expect(channel, E_.CONNECT_REQUEST).id as server:
                server.create_qp()
                server.accept()
                stranger.hear_frame()
                if how == "resets":
                    abort(stranger.sock)
                elif how == "closes":
                    stranger.sock.close()
                status = expect(channel, E_.UNREACHABLE).status
                assert status == (-ETIMEDOUT if how == "is silent" else -ECONNRESET)
                qp = server.qp
                assert qp is not None
                until(lambda: qp.state is QPState.ERR, "its work is flushed")


@pytest.mark.parametrize("first", [FIRST, ONE_WAY], ids=["revision 1", "revision 2"])
def test_a_stranger_who_is_to_speak_first(first: MpaFrame) -> None:
    with met(first) as (stranger, server, request):
        answer = stranger.hear_frame()
        assert answer.revision == first.revision
        assert (answer.control is None) == (first.control is None)
        assert isinstance(request.param, ConnParam)
        said = request.param.responder_resources, request.param.initiator_depth
        assert said == ((MAX_RESP_RES, MAX_INIT_DEPTH) if first is FIRST else (4, 4))
        expect(server.channel, E_.ESTABLISHED)
        assert received(server, lambda: stranger.say(send(b"I begin"))) == b"I begin"
        sent(server, b"so do I", stranger)


@pytest.mark.parametrize("first", [FIRST, ONE_WAY], ids=["revision 1", "revision 2"])
def test_a_stranger_who_waits_for_the_server_is_spoken_to_after_a_while(first: MpaFrame) -> None:
    with met(first) as (stranger, server, _):
        stranger.hear_frame()
        expect(server.channel, E_.ESTABLISHED)
        sent(server, b"well then", stranger)
        assert received(server, lambda: stranger.say(send(b"yes"))) == b"yes"


@pytest.mark.parametrize("first", [REQUEST, ONE_WAY], ids=["of equals", "one way"])
def test_what_comes_with_the_request_is_read_by_the_queue_pair(first: MpaFrame) -> None:
    with EventChannel() as channel, listening(channel) as listener:
        with calling(listener.get_src_port()) as stranger:
            rest = [RTR, send(b"in a hurry")] if first is REQUEST else [send(b"in a hurry")]
            stranger.say(first, *rest)
            with expect(channel, E_.CONNECT_REQUEST).id as server:
                server.create_qp()
                assert received(server, lambda: server.accept(None)) == b"in a hurry"


def test_a_stranger_who_wants_markers_gets_them() -> None:
    with met(replace(REQUEST, markers=True)) as (stranger, server, _):
        assert not stranger.hear_frame().markers  # this end wants none
        stranger.say(RTR)
        expect(server.channel, E_.ESTABLISHED)
        sent(server, bytes(range(256)) * 20, stranger)


@pytest.mark.parametrize(("ours", "theirs"), [(True, False), (False, True), (False, False)])
def test_crcs_are_used_if_either_end_wants_them(ours: bool, theirs: bool) -> None:
    with EventChannel() as channel, listening(channel) as listener:
        service = service_of(listener)
        service.options = replace(service.options, crc=ours)
        with calling(listener.get_src_port()) as stranger:
            stranger.say(replace(REQUEST, crc=theirs))
            with expect(channel, E_.CONNECT_REQUEST).id as server:
                server.create_qp()
                server.accept()
                assert stranger.hear_frame().crc == (ours or theirs)
                stranger.say(RTR, crc=ours or theirs)
                say = lambda: stranger.say(send(b"sure"), crc=ours or theirs)  # noqa: E731
                assert received(server, say) == b"sure"
                sent(server, b"good", stranger)


def test_atomics_are_not_for_strangers() -> None:
    with met() as (stranger, server, _):
        stranger.hear_frame()
        stranger.say(RTR)
        expect(server.channel, E_.ESTABLISHED)
        with server.reg_msgs(bytearray(8)) as mr:
            wr = rnic.SendWR(
                1, rnic.WROpcode.ATOMIC_FETCH_AND_ADD, rnic.SendFlags.SIGNALED, [rnic.SGE(mr)], rkey=1
            )
            assert server.qp is not None
            with pytest.raises(VerbsError, match="7306"):
                server.qp.post_send(wr)


# ------------------------------------------------------------------ requests that are none


BAD_REQUESTS = {
    "another protocol": b"GET / HTTP/1.1\r\n",
    "a reply": REPLY.emit(),
    "revision 0": replace(FIRST, revision=0).emit(),
    "revision 3": replace(REQUEST, revision=3).emit(),
    "a long one": REQUEST.emit()[:18] + b"\x02\x01" + bytes(513),
    "no control word": REQUEST.emit()[:18] + b"\x00\x03abc",
}


@pytest.mark.parametrize("what", BAD_REQUESTS)
def test_a_malformed_request_is_closed_without_a_word(what: str) -> None:
    with EventChannel() as channel, listening(channel) as listener:
        with calling(listener.get_src_port()) as stranger:
            stranger.sock.sendall(BAD_REQUESTS[what])
            assert stranger.is_over()
        assert listener.statistics().dropped == {"no request: Protocol error": 1}
        still_listens(listener)


def still_listens(listener: CmId) -> None:
    with calling(listener.get_src_port()) as stranger:
        stranger.say(REQUEST)
        expect(listener.channel, E_.CONNECT_REQUEST).id.destroy()
        assert stranger.hear_frame().rejected
        assert stranger.is_over()


@pytest.mark.parametrize("cut", [0, 1, 19, 25])
def test_a_request_that_does_not_come_in_time(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.rdmacm.iwcm.arrivals.REQUEST_NS", 50_000_000)
    with EventChannel() as channel, listening(channel) as listener:
        with calling(listener.get_src_port()) as stranger:
            stranger.sock.sendall(REQUEST.emit()[:cut])
            assert stranger.is_over()
        assert listener.statistics().dropped == {"no request: Connection timed out": 1}
        assert len(service_of(listener).timers) == 0
        monkeypatch.undo()
        still_listens(listener)


@pytest.mark.parametrize("how", ["closed", "reset"])
@pytest.mark.parametrize("cut", [0, 7])
def test_a_stranger_who_goes_without_a_request(how: str, cut: int) -> None:
    with EventChannel() as channel, listening(channel) as listener:
        with calling(listener.get_src_port()) as stranger:
            stranger.sock.sendall(REQUEST.emit()[:cut])
            leave(stranger, how)
        until(lambda: listener.statistics().dropped, "its end is seen")
        still_listens(listener)


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_a_stranger_who_does_not_wait_for_the_answer(how: str) -> None:
    with EventChannel() as channel, listening(channel) as listener:
        with calling(listener.get_src_port()) as stranger:
            stranger.say(REQUEST)
            with expect(channel, E_.CONNECT_REQUEST).id as server:
                server.create_qp()
                leave(stranger, how)
                assert expect(channel, E_.UNREACHABLE).status == -ECONNRESET
                with pytest.raises(VerbsError, match="no request waits"):
                    server.accept()
        still_listens(listener)


def test_connections_without_requests_keep_nobody_out() -> None:
    with (
        EventChannel() as channel,
        listening(channel, max_half_open=4) as listener,
        ExitStack() as every,
    ):
        crowd = [every.enter_context(calling(listener.get_src_port())) for _ in range(6)]
        for each in crowd[:2]:
            assert each.is_over()
        crowd[2].say(REQUEST)
        expect(channel, E_.CONNECT_REQUEST).id.destroy()
        assert crowd[2].hear_frame().rejected
        still_listens(listener)


# ------------------------------------------------------------------ ends of streams


@contextmanager
def up(timing: Timing = FAST) -> Iterator[tuple[Stranger, CmId]]:
    with met(timing=timing) as (stranger, server, _):
        stranger.hear_frame()
        stranger.say(RTR)
        expect(server.channel, E_.ESTABLISHED)
        yield stranger, server


@pytest.mark.parametrize("how", ["closed", "reset"])
@pytest.mark.parametrize("cut", [0, 1, 9, 25])
def test_a_stranger_who_goes_in_the_middle_of_a_message(how: str, cut: int) -> None:
    with up() as (stranger, server):
        data = Segment.emit(send(b"a message"))
        stranger.sock.sendall((len(data).to_bytes(2, "big") + data)[:cut])
        leave(stranger, how)
        in_order = how == "closed" and not cut
        assert expect(server.channel, E_.DISCONNECTED).status == (0 if in_order else -ECONNRESET)
        assert server.qp is not None
        assert server.qp.state is QPState.ERR


def test_a_message_with_a_wrong_crc_ends_the_connection() -> None:
    with up() as (stranger, server):
        stranger.say(send(b"wrong"), crc=False)
        found = stranger.hear_segment()
        assert found.header.opcode == RdmapOpcode.TERMINATE
        assert isinstance(found.message, Terminate)
        assert found.message.layer == TermLayer.LLP
        assert expect(server.channel, E_.DISCONNECTED).status == -EPROTO
        assert stranger.is_over()


def test_a_terminate_message_ends_the_connection() -> None:
    with up() as (stranger, server):
        stranger.say(
            Segment.of(Terminate(layer=TermLayer.RDMAP, etype=0, code=0), RdmapOpcode.TERMINATE, msn=1)
        )
        assert expect(server.channel, E_.DISCONNECTED).status == -EPROTO
        assert stranger.is_over()


def test_a_connection_that_the_peer_has_ended_can_be_disconnected_synchronously() -> None:
    with up() as (stranger, server):
        server.migrate_id(None)
        stranger.say(
            Segment.of(Terminate(layer=TermLayer.RDMAP, etype=0, code=0), RdmapOpcode.TERMINATE, msn=1)
        )
        until(lambda: server.channel.has_events, "the end is told")
        server.disconnect()
        assert server.event is not None
        assert (server.event.event, server.event.status) == (E_.DISCONNECTED, -EPROTO)
        server.disconnect()  # and nothing is waited for


def test_a_stranger_who_never_closes_is_left_alone() -> None:
    with up(HASTY) as (stranger, server):
        server.disconnect()
        assert stranger.is_over()
        assert expect(server.channel, E_.DISCONNECTED).status == -ETIMEDOUT
