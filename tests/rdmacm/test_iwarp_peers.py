# SPDX-License-Identifier: Apache-2.0
"""Ids of iWARP and peers who are not rnic: of other revisions and options, slow, malformed, gone, hostile."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from errno import ECONNRESET, EPROTO, ETIMEDOUT
from time import monotonic_ns
from typing import Any

import pytest

import rnic
from rdmacm.ends import FAST, HASTY, WAIT, expect
from rdmacm.iwarp_peer import (
    EQUALS,
    HERE,
    REPLY,
    REQUEST,
    Stranger,
    called,
    calling,
    listening,
    resolved,
    send,
    service_of,
    taken,
)
from rnic import QPState, VerbsError
from rnic.capture.mpa import Unit
from rnic.rdmacm import CmId, ConnParam, Event, EventChannel, EventType, Timing, agent
from rnic.rdmacm.iwcm import stream
from rnic.rdmacm.iwcm.sockets import abort
from rnic.rdmacm.names import MAX_INIT_DEPTH, MAX_RESP_RES
from rnic.records import replace
from rnic.verbs.qp import QP
from rnic.wire import (
    DEPTH_UNKNOWN,
    MpaControl,
    MpaFrame,
    RdmapOpcode,
    Segment,
    Tagged,
    Terminate,
    TermLayer,
)
from rnic.wire.rdmap import INSUFFICIENT_IRD, NO_MATCHING_RTR
from waiting import until

E_ = EventType
RTR = Segment(Tagged(opcode=RdmapOpcode.WRITE, last=True), None, b"")
FIRST = MpaFrame(control=None, private_data=b"an old one", revision=1)
ONE_WAY = replace(REQUEST, control=MpaControl(ird=4, ord=4))  # not a connection of equals


@contextmanager
def met(
    first: MpaFrame = REQUEST, agrees: ConnParam | None = None, timing: Timing = FAST
) -> Iterator[tuple[Stranger, CmId, Event]]:
    """A stranger who has asked and was accepted."""
    with EventChannel() as channel, listening(channel, timing=timing) as listener:
        with calling(listener.get_src_port()) as stranger:
            stranger.say(first)
            request = expect(channel, E_.CONNECT_REQUEST)
            with request.id as server:
                server.create_qp()
                server.accept(agrees)
                yield stranger, server, request


@contextmanager
def answered(*frames: MpaFrame | bytes) -> Iterator[tuple[CmId, Stranger, MpaFrame]]:
    """An id that calls a stranger, who has answered; and what it has asked."""
    with called() as (sock, port), resolved((HERE, port)) as (_, _, one):
        one.connect(ConnParam(b"hello", responder_resources=4, initiator_depth=4))
        with taken(sock) as stranger:
            asked = stranger.hear_frame()
            stranger.say(*frames)
            yield one, stranger, asked


def received(one: CmId, say: Callable[[], None]) -> bytes:
    """What comes into a receive of an id when somebody says something."""
    data = bytearray(16)
    with one.reg_msgs(data) as mr:
        one.post_recv(mr)
        say()
        done = one.get_recv_comp(WAIT)
        assert done.ok
        return bytes(data[: done.byte_len])


def sent(one: CmId, data: bytes, stranger: Stranger) -> None:
    with one.reg_msgs(bytearray(data)) as mr:
        one.post_send(mr)
        assert stranger.hear_segment().payload == data
        assert one.get_send_comp(WAIT).ok


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
    with EventChannel() as channel, listening(channel, handshake_timeout=0.5) as listener:
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


def leave(stranger: Stranger, how: str) -> None:
    if how == "reset":
        abort(stranger.sock)
    else:
        stranger.sock.close()


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


# ------------------------------------------------------------------ whom we call


FIRSTS = {"write": RdmapOpcode.WRITE, "read": RdmapOpcode.READ_REQUEST}


@pytest.mark.parametrize("rtr", ["send", "write", "read"])
def test_the_first_message_is_what_the_peer_has_chosen(rtr: str) -> None:
    control = MpaControl(ird=2, ord=9, peer_to_peer=True, **{f"rtr_{rtr}": True})
    with answered(replace(REPLY, control=control, private_data=b"come in")) as (one, stranger, asked):
        assert asked.private_data == b"hello"
        assert asked.control == EQUALS
        assert asked.rfc7306
        event = expect(one.channel, E_.ESTABLISHED)
        assert isinstance(event.param, ConnParam)
        assert event.param.private_data == b"come in"
        assert (event.param.responder_resources, event.param.initiator_depth) == (9, 2)
        first = stranger.hear()
        assert isinstance(first, Unit)
        if rtr == "send":
            assert first.fpdu.ulpdu == b""
        else:
            assert first.segment().header.opcode == FIRSTS[rtr]
        if rtr != "read":
            sent(one, b"my turn", stranger)


def test_a_peer_that_is_not_our_equal_hears_no_rtr_message() -> None:
    with answered(replace(REPLY, control=MpaControl(ird=4, ord=4))) as (one, stranger, _):
        expect(one.channel, E_.ESTABLISHED)
        sent(one, b"first", stranger)


def test_depths_that_the_peer_does_not_say_are_as_asked_for() -> None:
    control = MpaControl(ird=DEPTH_UNKNOWN, ord=DEPTH_UNKNOWN, peer_to_peer=True, rtr_write=True)
    with answered(replace(REPLY, control=control)) as (one, _, _):
        event = expect(one.channel, E_.ESTABLISHED)
        assert isinstance(event.param, ConnParam)
        assert (event.param.responder_resources, event.param.initiator_depth) == (4, 4)


def test_a_refusal_with_private_data() -> None:
    no = MpaFrame(is_reply=True, control=MpaControl(), rejected=True, private_data=b"not you")
    with answered(no) as (one, stranger, _):
        event = expect(one.channel, E_.REJECTED)
        assert isinstance(event.param, ConnParam)
        assert (event.status, event.param.private_data) == (-ECONNRESET, b"not you")
        assert stranger.is_over()


OLD = MpaFrame(is_reply=True, revision=1, private_data=b"of old")


@pytest.mark.parametrize("how", ["closed", "reset", "rejected", "answered"])
def test_a_peer_of_revision_1_is_asked_once_more(how: str) -> None:
    with called() as (sock, port), resolved((HERE, port)) as (_, _, one):
        one.connect(ConnParam(b"hello"))
        with taken(sock) as stranger:
            assert stranger.hear_frame().revision == 2
            if how == "rejected":
                stranger.say(replace(OLD, rejected=True, private_data=b""))
            elif how == "answered":
                stranger.say(OLD)
            else:
                leave(stranger, how)
            with taken(sock) as again:
                asked = again.hear_frame()
                assert (asked.revision, asked.control, asked.private_data) == (1, None, b"hello")
                again.say(OLD)
                event = expect(one.channel, E_.ESTABLISHED)
                assert isinstance(event.param, ConnParam)
                assert event.param.private_data == b"of old"
                sent(one, b"as you like", again)
        assert one.statistics().resent == 1


@pytest.mark.parametrize("how", ["closed", "reset", "rejected"])
def test_a_peer_that_refuses_both_revisions(how: str) -> None:
    with called() as (sock, port), resolved((HERE, port)) as (_, _, one):
        one.connect()
        for revision in (2, 1):
            with taken(sock) as stranger:
                assert stranger.hear_frame().revision == revision
                if how == "rejected":
                    stranger.say(replace(OLD, rejected=True))
                else:
                    leave(stranger, how)
                if revision == 1:
                    assert expect(one.channel, E_.REJECTED).status == -ECONNRESET
        assert not one.channel.has_events


def test_a_peer_of_revision_1_that_stops_to_listen() -> None:
    with called() as (sock, port), resolved((HERE, port)) as (_, _, one):
        one.connect()
        with taken(sock) as stranger:
            stranger.hear_frame()
            sock.close()
            leave(stranger, "closed")
            expect(one.channel, E_.REJECTED)


def test_a_peer_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.rdmacm.iwcm.connection.LONGEST", 14)
    with answered() as (one, stranger, _):
        event = expect(one.channel, E_.UNREACHABLE)
        assert event.status == -ETIMEDOUT
        assert stranger.is_over()


BAD_REPLIES = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n",
    "a request": REQUEST.emit(),
    "a later revision": replace(REPLY, revision=3).emit(),
    "a long one": REPLY.emit()[:18] + b"\x02\x01" + bytes(513),
    "no control word": REPLY.emit()[:16] + b"\x40\x02\x00\x03abc",
}


@pytest.mark.parametrize("what", BAD_REPLIES)
def test_a_malformed_reply_is_an_error(what: str) -> None:
    with answered(BAD_REPLIES[what]) as (one, stranger, _):
        event = expect(one.channel, E_.CONNECT_ERROR)
        assert event.status == -EPROTO
        assert event.explain().startswith(f"{HERE} port {one.get_dst_port()}: ")
        assert "does not speak iWARP (MPA)" in event.explain()
        assert stranger.is_over()
        assert not one.channel.has_events


@pytest.mark.parametrize(
    ("control", "code"),
    [
        (MpaControl(ird=4, ord=4, peer_to_peer=True), NO_MATCHING_RTR),
        (MpaControl(ird=4, ord=1000, peer_to_peer=True, rtr_write=True), INSUFFICIENT_IRD),
    ],
)
def test_a_reply_that_does_not_fit_is_terminated(control: MpaControl, code: int) -> None:
    with answered(replace(REPLY, control=control)) as (one, stranger, _):
        assert expect(one.channel, E_.CONNECT_ERROR).status == -EPROTO
        found = stranger.hear_segment()
        assert found.header.opcode == RdmapOpcode.TERMINATE
        assert isinstance(found.message, Terminate)
        assert found.message.code == code
        assert stranger.is_over()


def test_a_peer_that_goes_before_its_reply_was_told_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent looks at queue pairs when this one has failed, and nothing was told yet."""
    monkeypatch.setattr(agent, "_WATCH_NS", 1_000_000)
    rise = stream.to_rts

    def rise_and_fall(qp: QP, *args: Any, **options: Any) -> None:
        due = monotonic_ns() + 1_000_000
        rise(qp, *args, **options)
        until(lambda: qp.state is QPState.ERR and monotonic_ns() > due, "the peer has gone")

    monkeypatch.setattr(stream, "to_rts", rise_and_fall)
    with answered(REPLY) as (one, stranger, _):
        leave(stranger, "closed")
        expect(one.channel, E_.ESTABLISHED)
        expect(one.channel, E_.DISCONNECTED)


def test_a_peer_that_goes_at_once_was_there() -> None:
    with answered(REPLY) as (one, stranger, _):
        leave(stranger, "closed")
        expect(one.channel, E_.ESTABLISHED)
        expect(one.channel, E_.DISCONNECTED)
