# SPDX-License-Identifier: Apache-2.0
"""Ids of iWARP call peers who are not rnic: of other revisions and options, silent, malformed, gone."""

from __future__ import annotations

from errno import ECONNRESET, EPROTO, ETIMEDOUT
from time import monotonic_ns
from typing import Any

import pytest

from rdmacm.ends import expect
from rdmacm.iwarp_peer import (
    EQUALS,
    HERE,
    REPLY,
    REQUEST,
    answered,
    called,
    leave,
    resolved,
    sent,
    taken,
)
from rnic import QPState
from rnic.capture.mpa import Unit
from rnic.rdmacm import ConnParam, EventType, agent
from rnic.rdmacm.iwcm import stream
from rnic.records import replace
from rnic.verbs.qp import QP
from rnic.wire import DEPTH_UNKNOWN, MpaControl, MpaFrame, RdmapOpcode, Terminate
from rnic.wire.rdmap import INSUFFICIENT_IRD, NO_MATCHING_RTR
from waiting import until

E_ = EventType
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
