# SPDX-License-Identifier: Apache-2.0
"""The start-up of MPA: what two ends agree on, what is refused, what comes wrong, late or not at all."""

from __future__ import annotations

from dataclasses import replace
from errno import ECONNRESET, EINVAL, EPROTO, ETIMEDOUT
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpa.ends import (
    DEPTHS,
    REPLY,
    REQUEST,
    UNTIL,
    Wire,
    asked,
    feed,
    initiator,
    joined,
    only,
    responder,
)
from rnic.capture import read_pcap
from rnic.capture.iwarp import Streams
from rnic.errors import VerbsError
from rnic.mpa import PRIVATE_BYTES, Depths, EventType, Options, Rtr, Startup, State, wishes
from rnic.wire import (
    Fpdu,
    MpaControl,
    MpaFrame,
    MpaHeader,
    Segment,
    Terminate,
    TermLayer,
    WireError,
    crc32c,
)

VECTORS = Path(__file__).parent.parent / "vectors"
DEFAULT = Options()
BOTH = list(product([True, False], repeat=2))
CUT = MpaHeader(key=b"MPA ID Req Frame", enhanced=True, private_size=3).emit() + bytes(3)


# ------------------------------------------------------------------ what is agreed


def test_two_ends_of_rnic() -> None:
    ours, theirs = joined(DEFAULT, DEFAULT)
    assert ours.depths == Depths(ird=16, ord=8)
    assert theirs.depths == DEPTHS
    for one in (ours, theirs):
        assert (one.crc, one.rtr, one.peer_to_peer, one.rfc7306) == (True, Rtr.WRITE, True, True)
        assert (one.markers_in, one.markers_out) == (False, False)


@pytest.mark.parametrize("piece", range(1, 45))
def test_frames_can_be_cut_anywhere(piece: int) -> None:
    joined(DEFAULT, DEFAULT, piece=piece)


@pytest.mark.parametrize(("ours", "theirs"), BOTH)
def test_crcs_are_used_if_either_end_wants_them(ours: bool, theirs: bool) -> None:
    for one in joined(Options(crc=ours), Options(crc=theirs)):
        assert one.crc == (ours or theirs)


def test_a_reply_tells_whether_crcs_are_used() -> None:
    """siw as the initiator goes by the reply alone."""
    for want, has in ((True, False), (False, True), (False, False)):
        one = asked(Options(crc=has), replace(REQUEST, crc=want))
        one.send_reply(DEPTHS, b"", 1)
        assert MpaFrame.parse(one.take_out()).crc == (want or has)


@pytest.mark.parametrize(("ours", "theirs"), BOTH)
def test_markers_go_to_whoever_wants_them(ours: bool, theirs: bool) -> None:
    a, b = joined(Options(markers=ours), Options(markers=theirs))
    assert (a.markers_in, a.markers_out) == (b.markers_out, b.markers_in) == (ours, theirs)


@pytest.mark.parametrize(("ours", "theirs"), BOTH)
def test_atomics_need_both_ends(ours: bool, theirs: bool) -> None:
    for one in joined(Options(rfc7306=ours), Options(rfc7306=theirs)):
        assert one.rfc7306 == (ours and theirs)


@pytest.mark.parametrize(("ours", "theirs"), BOTH)
def test_equals_need_both_ends(ours: bool, theirs: bool) -> None:
    for one in joined(Options(peer_to_peer=ours), Options(peer_to_peer=theirs)):
        assert one.peer_to_peer == (ours and theirs)
        assert one.rtr is (Rtr.WRITE if ours and theirs else Rtr.NONE)


@pytest.mark.parametrize(
    ("flags", "rtr"),
    [
        ({"rtr_send": True, "rtr_write": True, "rtr_read": True}, Rtr.WRITE),
        ({"rtr_send": True, "rtr_read": True}, Rtr.READ),
        ({"rtr_send": True}, Rtr.SEND),
        ({"rtr_read": True}, Rtr.READ),
        ({}, Rtr.WRITE),
    ],
)
def test_a_responder_chooses_the_message_that_siw_prefers(flags: dict[str, bool], rtr: Rtr) -> None:
    one = asked(None, replace(REQUEST, control=MpaControl(ird=4, ord=4, peer_to_peer=True, **flags)))
    agreed = one.send_reply(Depths(0, 0), b"", 1)
    assert agreed.rtr is rtr
    control = MpaFrame.parse(one.take_out()).control
    assert control is not None
    assert control.peer_to_peer
    assert (control.rtr_send, control.rtr_write, control.rtr_read) == tuple(
        rtr is one for one in (Rtr.SEND, Rtr.WRITE, Rtr.READ)
    )
    assert agreed.depths.ird == control.ird == (1 if rtr is Rtr.READ else 0)


@pytest.mark.parametrize("rtr", [Rtr.SEND, Rtr.WRITE, Rtr.READ])
def test_an_initiator_sends_the_message_that_the_responder_wants(rtr: Rtr) -> None:
    one = initiator()
    flags = {f"rtr_{rtr.name.lower()}": True}
    assert not feed(one, replace(REPLY, control=MpaControl(ird=8, peer_to_peer=True, **flags)).emit())
    agreed = only(one).agreed
    assert agreed is not None
    assert agreed.rtr is rtr


def test_no_read_is_offered_by_who_may_have_none_outstanding() -> None:
    control = MpaFrame.parse(initiator(depths=Depths(3, 0)).take_out()).control
    assert control is not None
    assert (control.rtr_send, control.rtr_write, control.rtr_read) == (True, True, False)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((16, 8), (8, 16), (16, 8)),
        ((16, 8), (4, 16), (16, 4)),  # no more outstanding than the peer serves
        ((16, 8), (8, 20), (20, 8)),  # the peer asks for more, and this end can
        ((0, 0), (0, 0), (0, 0)),
        ((16, 8), (0x3FFF, 0x3FFF), (16, 8)),  # the peer does not say
        ((16, 8), (0x3FFF, 2), (16, 8)),
    ],
)
def test_an_initiator_takes_what_the_responder_grants(
    ours: tuple[int, int], theirs: tuple[int, int], expected: tuple[int, int]
) -> None:
    one = initiator(Options(most_ird=32), Depths(*ours))
    feed(one, replace(REPLY, control=MpaControl(ird=theirs[0], ord=theirs[1])).emit())
    agreed = only(one).agreed
    assert agreed is not None
    assert agreed.depths == Depths(*expected)


def test_a_responder_is_told_what_is_asked_of_it() -> None:
    assert wishes(REQUEST) == Depths(4, 4)
    assert wishes(replace(REQUEST, control=MpaControl(ird=3, ord=7))) == Depths(ird=7, ord=3)
    assert wishes(replace(REQUEST, control=MpaControl(ird=0x3FFF, ord=1))) is None
    assert wishes(replace(REQUEST, control=None)) is None


@pytest.mark.parametrize("markers", [False, True])
@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize(
    ("control", "code", "why"),
    [
        (MpaControl(ord=33), 6, "33 READs outstanding; this end serves 32"),
        (MpaControl(ird=9, peer_to_peer=True), 7, "RTR message"),
        (MpaControl(ird=9, peer_to_peer=True, rtr_read=True), 7, "RTR message"),
    ],
)
def test_a_reply_that_does_not_fit_is_answered_with_terminate(
    control: MpaControl, code: int, why: str, crc: bool, markers: bool
) -> None:
    one = initiator(Options(most_ird=32, crc=crc), Depths(1, 0))
    one.take_out()
    feed(one, replace(REPLY, control=control, crc=crc, markers=markers).emit())
    event = only(one)
    assert (event.type, event.error, one.state) == (EventType.FAILED, EPROTO, State.OVER)
    assert why in event.text
    out = one.take_out()
    assert out.startswith(bytes(4) if markers else b"\0")
    fpdu = Fpdu.parse(out[4:] if markers else out)
    assert fpdu.crc == (crc32c(out[:-4]) if crc else 0)
    segment = Segment.parse(fpdu.ulpdu)
    assert isinstance(segment.message, Terminate)
    assert (segment.message.layer, segment.message.etype, segment.message.code) == (TermLayer.LLP, 0, code)


# ------------------------------------------------------------------ revision 1


def test_revision_1_has_no_depths_and_no_equals() -> None:
    for options in ((Options(revision=1), DEFAULT), (Options(revision=1), Options(revision=1))):
        ours, theirs = joined(*options)
        assert ours.depths == DEPTHS == theirs.depths
        assert (ours.rtr, theirs.rtr, ours.crc, ours.rfc7306) == (Rtr.NONE, Rtr.NONE, True, True)


def test_a_reply_is_of_the_requests_revision() -> None:
    one = asked(None, MpaFrame(revision=1))
    one.send_reply(DEPTHS, bytes(512), 1)
    reply = MpaFrame.parse(one.take_out())
    assert (reply.revision, reply.control, len(reply.private_data)) == (1, None, 512)
    one = asked(None, MpaFrame(revision=2))  # which is not enhanced
    one.send_reply(DEPTHS, b"", 1)
    reply = MpaFrame.parse(one.take_out())
    assert (reply.revision, reply.control) == (2, None)


@pytest.mark.parametrize("rejected", [True, False])
def test_a_peer_of_revision_1_is_asked_again(rejected: bool) -> None:
    one = initiator()
    feed(one, MpaFrame(is_reply=True, revision=1, rejected=rejected, private_data=b"old").emit())
    assert (only(one).type, one.state) == (EventType.OLD_PEER, State.OVER)
    again = initiator(Options(revision=1))
    feed(again, MpaFrame(is_reply=True, revision=1, private_data=b"old").emit())
    assert only(again).type is EventType.REPLY


def test_a_peer_that_closes_may_be_of_revision_1() -> None:
    """RFC 5044, 7.1.1: it closes a connection whose revision it does not know."""
    one = initiator()
    one.end(5)
    assert only(one).type is EventType.OLD_PEER
    one = initiator()
    feed(one, REPLY.emit()[:1])
    one.end(5)
    event = only(one)
    assert (event.type, event.error) == (EventType.REJECTED, ECONNRESET)
    one = initiator(Options(revision=1))
    one.end(5)
    assert only(one).type is EventType.REJECTED
    one = initiator()
    one.end(5, ETIMEDOUT)
    event = only(one)
    assert (event.type, event.error, event.text) == (EventType.REJECTED, ETIMEDOUT, "the connection was lost")


# ------------------------------------------------------------------ private data, refusals


@pytest.mark.parametrize("revision", [1, 2])
def test_private_data_of_every_length(revision: int) -> None:
    for size in range(PRIVATE_BYTES + 1):
        data = (bytes(range(256)) * 2)[:size]
        a, b = initiator(Options(revision=revision), private_data=data), responder()
        Wire(61).carry(a, b)
        request = only(b).frame
        assert request is not None
        assert request.private_data == data
        b.send_reply(DEPTHS, data, 1)
        Wire(61).carry(b, a)
        reply = only(a).frame
        assert reply is not None
        assert reply.private_data == data


def test_private_data_that_does_not_fit() -> None:
    one = Startup(DEFAULT)
    with pytest.raises(WireError):
        one.send_request(DEPTHS, bytes(PRIVATE_BYTES + 1), 0, UNTIL)
    assert (one.state, one.take_out()) == (State.IDLE, b"")
    one = asked()
    with pytest.raises(WireError):
        one.send_reply(DEPTHS, bytes(PRIVATE_BYTES + 1), 0)
    with pytest.raises(WireError):
        one.send_reject(bytes(PRIVATE_BYTES + 1), 0)
    assert (one.state, one.take_out()) == (State.REQ_RCVD, b"")


@pytest.mark.parametrize("revision", [1, 2])
def test_a_refusal_has_private_data(revision: int) -> None:
    a, b = initiator(Options(revision=revision)), responder()
    Wire().carry(a, b)
    b.take_events()
    b.send_reject(b"not today", 1)
    Wire(5).carry(b, a)
    event = only(a)
    assert (event.type, event.error, a.state, b.state) == (
        EventType.REJECTED,
        ECONNRESET,
        State.OVER,
        State.OVER,
    )
    assert event.frame is not None
    assert event.frame.private_data == b"not today"


def test_who_closes_refuses_what_waits() -> None:
    one = asked()
    one.close(5)
    assert MpaFrame.parse(one.take_out()).rejected
    one.close(6)
    assert one.take_out() == b""


def test_siw_refuses_without_the_word_of_revision_2() -> None:
    """It keeps the flag of the request that it does not support, and sends nothing behind."""
    one = initiator()
    feed(one, MpaHeader(key=b"MPA ID Rep Frame", rejected=True, enhanced=True).emit())
    assert only(one).type is EventType.REJECTED


# ------------------------------------------------------------------ what comes wrong


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n", "is not the key of a request"),
        (REPLY.emit(), "is not the key of a request"),
        (b"MPA ID Req Framf", "is not the key of a request"),
        (MpaHeader(key=b"MPA ID Req Frame", private_size=513).emit(), "512 are the most"),
        (MpaHeader(key=b"MPA ID Req Frame", revision=0).emit(), "revision 0"),
        (MpaHeader(key=b"MPA ID Req Frame", revision=3).emit(), "revision 3"),
        (CUT, "needs 4 bytes"),
        (MpaHeader(key=b"MPA ID Req Frame", enhanced=True).emit(), "needs 4 bytes"),
    ],
)
@pytest.mark.parametrize("piece", [1, 1000])
def test_a_request_that_cannot_be(data: bytes, why: str, piece: int) -> None:
    one = responder()
    rest = data
    while rest and (room := min(one.wanted, piece)):
        one.receive(rest[:room], 1)
        rest = rest[room:]
    event = only(one)
    assert (event.type, event.error, one.state) == (EventType.FAILED, EPROTO, State.OVER)
    assert why in event.text
    assert one.take_out() == b""


@pytest.mark.parametrize(
    "data",
    [
        REQUEST.emit(),
        MpaHeader(key=b"MPA ID Rep Frame", revision=0).emit(),
        MpaHeader(key=b"MPA ID Rep Frame", revision=3).emit(),
        MpaFrame(is_reply=True, revision=2).emit(),  # without the word that was asked for
        MpaHeader(key=b"MPA ID Rep Frame", private_size=0xFFFF).emit(),
    ],
)
def test_a_reply_that_cannot_be(data: bytes) -> None:
    one = initiator()
    one.take_out()
    feed(one, data)
    event = only(one)
    assert (event.type, event.error, one.state) == (EventType.FAILED, EPROTO, State.OVER)
    one = initiator(Options(revision=1))
    feed(one, REPLY.emit())
    assert only(one).type is EventType.FAILED


@given(st.binary(max_size=700))
def test_any_bytes_end_in_an_event_or_in_nothing(data: bytes) -> None:
    for one in (initiator(), responder()):
        feed(one, data)
        assert len(one.take_events()) <= 1
        assert (one.state in (State.REQ_SENT, State.AWAIT_REQ)) == bool(one.wanted)


def test_what_follows_a_frame_is_not_read() -> None:
    one = responder()
    assert feed(one, REQUEST.emit() + b"an FPDU") == b"an FPDU"
    one.send_reply(DEPTHS, b"", 1)
    assert one.wanted == 0
    with pytest.raises(VerbsError, match="no byte is wanted"):
        one.receive(b"x", 1)
    one = responder()
    one.receive(REQUEST.emit() + b"more than is wanted", 1)
    assert only(one).type is EventType.FAILED
    one = initiator()
    assert feed(one, REPLY.emit() + b"an FPDU") == b"an FPDU"


# ------------------------------------------------------------------ time


@pytest.mark.parametrize("sent", [0, 1, 20, len(REQUEST.emit()) - 1])
def test_a_slow_initiator_is_given_up(sent: int) -> None:
    one = responder()
    feed(one, REQUEST.emit()[:sent], UNTIL - 1)
    one.timer(UNTIL - 1)
    assert not one.take_events()
    assert one.deadline == UNTIL
    one.timer(UNTIL)
    event = only(one)
    assert (event.type, event.error, event.text) == (
        EventType.FAILED,
        ETIMEDOUT,
        "no request has come in time",
    )
    assert one.take_out() == b""


def test_a_slow_responder_is_given_up() -> None:
    one = initiator()
    one.take_out()
    feed(one, REPLY.emit()[:-1], UNTIL - 1)
    one.timer(UNTIL)
    event = only(one)
    assert (event.type, event.error, event.text) == (EventType.FAILED, ETIMEDOUT, "no reply has come in time")


def test_a_slow_application_is_given_up_and_the_peer_told() -> None:
    one = asked()
    assert one.deadline is None
    one.expire_at(500)
    one.timer(499)
    assert not one.take_events()
    one.timer(500)
    event = only(one)
    assert (event.error, event.text) == (ETIMEDOUT, "the application has not answered in time")
    assert MpaFrame.parse(one.take_out()).rejected
    with pytest.raises(VerbsError) as caught:
        one.expire_at(600)
    assert caught.value.errno == EINVAL


def test_a_peer_that_goes_before_it_is_answered() -> None:
    one = asked()
    one.end(5)
    event = only(one)
    assert (event.type, event.error, one.state) == (EventType.FAILED, ECONNRESET, State.OVER)


# ------------------------------------------------------------------ golden


def test_the_frames_of_siw_are_taken_by_either_end() -> None:
    """rnic in the place of either kernel: its initiator takes siw's replies, its responder the requests."""
    taken = 0
    for path in sorted(VECTORS.glob("siw-*.pcap")):
        streams = Streams()
        items = [item for record in read_pcap(path) for item in streams.take(record).items]
        frames = [item for item in items if isinstance(item, MpaFrame)]
        for frame in frames:
            one = initiator(Options(crc=False)) if frame.is_reply else responder(Options(crc=False))
            assert not feed(one, frame.emit())
            event = only(one)
            assert event.frame == frame
            if event.type is EventType.REPLY:
                assert event.agreed is not None
                assert (event.agreed.crc, event.agreed.rtr, event.agreed.rfc7306) == (False, Rtr.NONE, False)
            else:
                agreed = one.send_reply(DEPTHS, b"", 1)
                assert (agreed.crc, agreed.rtr, agreed.rfc7306) == (False, Rtr.NONE, False)
            taken += 1
    assert taken == 14
