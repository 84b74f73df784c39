# SPDX-License-Identifier: Apache-2.0
"""The codecs of MPA, DDP and RDMAP: what two siw said, read at any cut and written again; bounds, words."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.capture import read_pcap
from rnic.capture.dissect import dissect
from rnic.capture.iwarp import Streams
from rnic.capture.mpa import MpaPair, Unit
from rnic.wire import (
    AtomicCode,
    AtomicRequest,
    AtomicResponse,
    Fpdu,
    Immediate,
    Marker,
    Message,
    MpaControl,
    MpaFrame,
    MpaHeader,
    NotRoCEError,
    QueueNumber,
    RdmapOpcode,
    ReadRequest,
    Segment,
    Tagged,
    TcpHeader,
    Terminate,
    TermLayer,
    Untagged,
    WireError,
    crc32c,
    fpdu_size,
    term_words,
    terminated,
)
from wire.tcp_streams import CLIENT, SERVER, Talk, bytes_of, marked, read

VECTORS = Path(__file__).parent.parent / "vectors"
SIW = sorted(path.name for path in VECTORS.glob("siw-*.pcap"))


@cache
def streams(name: str) -> list[tuple[bytes, bytes]]:
    return bytes_of(read_pcap(VECTORS / name))


def units(items: list[MpaFrame | Unit]) -> list[Unit]:
    return [item for item in items if isinstance(item, Unit)]


# ------------------------------------------------------------------ the golden captures


@pytest.mark.parametrize("name", SIW)
def test_every_byte_is_written_as_it_was(name: str) -> None:
    for pair in streams(name):
        for data, items in zip(pair, read(pair), strict=True):
            again = bytearray()
            for item in items:
                if isinstance(item, MpaFrame):
                    again += item.emit()
                    continue
                assert item.segment().emit() == item.fpdu.ulpdu
                assert item.fpdu.emit() == item.raw
                again += item.raw
            assert again == data


@pytest.mark.parametrize("name", SIW)
def test_a_stream_can_be_cut_behind_every_byte(name: str) -> None:
    for pair in streams(name):
        assert read(pair, range(max(map(len, pair)))) == read(pair)


@given(st.data())
def test_a_stream_can_be_cut_anywhere(data: st.DataObject) -> None:
    pair = data.draw(st.sampled_from([pair for name in SIW for pair in streams(name)]))
    assert read(pair, data.draw(st.lists(st.integers(0, len(pair[0])), max_size=20))) == read(pair)


def test_siw_asks_for_revision_2_without_crc_and_equals() -> None:
    for name in SIW:
        for pair in streams(name):
            request, reply = (items[0] for items in read(pair))
            assert isinstance(request, MpaFrame)
            assert isinstance(reply, MpaFrame)
            assert (request.is_reply, reply.is_reply) == (False, True)
            for frame in (request, reply):
                assert (frame.revision, frame.crc, frame.markers, frame.rejected) == (2, False, False, False)
                assert frame.control is not None
                assert not frame.control.peer_to_peer


def test_a_read_of_siw_is_answered_where_it_asked() -> None:
    ((client, server),) = (read(pair) for pair in streams("siw-rping.pcap"))
    asked = [unit.segment().message for unit in units(server)]
    requests = [message for message in asked if isinstance(message, ReadRequest)]
    answers = [unit.segment() for unit in units(client)]
    parts = [one for one in answers if one.header.opcode == RdmapOpcode.READ_RESPONSE]
    assert [message.size for message in requests] == [3000] * 3
    for request, index in zip(requests, range(0, len(parts), 3), strict=True):
        at = request.sink_offset
        for part in parts[index : index + 3]:
            assert isinstance(part.header, Tagged)
            assert (part.header.stag, part.header.offset) == (request.sink_stag, at)
            at += len(part.payload)
        assert at == request.sink_offset + request.size


# ------------------------------------------------------------------ headers


def bits(n: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << n) - 1)


CONTROLS = st.builds(
    MpaControl,
    peer_to_peer=st.booleans(),
    rtr_send=st.booleans(),
    rtr_write=st.booleans(),
    rtr_read=st.booleans(),
    ird=bits(14),
    ord=bits(14),
)
FRAMES = st.builds(
    MpaFrame,
    is_reply=st.booleans(),
    control=st.none() | CONTROLS,
    private_data=st.binary(max_size=508),
    crc=st.booleans(),
    markers=st.booleans(),
    rejected=st.booleans(),
    rfc7306=st.booleans(),
    revision=st.just(2),
)
TAGGED = st.builds(Tagged, last=st.booleans(), opcode=st.sampled_from([0, 2]), stag=bits(32), offset=bits(64))
UNTAGGED = st.builds(
    Untagged,
    last=st.booleans(),
    opcode=bits(4),
    invalidate=bits(32),
    queue=bits(32),
    msn=bits(32),
    offset=bits(32),
)
MESSAGES: dict[RdmapOpcode, st.SearchStrategy[Message]] = {
    RdmapOpcode.READ_REQUEST: st.builds(ReadRequest, bits(32), bits(64), bits(32), bits(32), bits(64)),
    RdmapOpcode.ATOMIC_REQUEST: st.builds(
        AtomicRequest, code=bits(4), request_id=bits(32), stag=bits(32), offset=bits(64), add_swap=bits(64)
    ),
    RdmapOpcode.ATOMIC_RESPONSE: st.builds(AtomicResponse, bits(32), bits(64)),
    RdmapOpcode.IMMEDIATE: st.builds(Immediate, bits(64)),
    RdmapOpcode.TERMINATE: st.builds(Terminate, layer=bits(4), etype=bits(4), code=bits(8)),
}
SEGMENTS = st.builds(Segment, TAGGED, st.none(), st.binary(max_size=100)) | st.one_of(
    st.builds(
        Segment.of,
        message,
        st.just(opcode),
        bits(32),
        st.just(b"") if opcode is not RdmapOpcode.TERMINATE else st.binary(max_size=40),
    )
    for opcode, message in MESSAGES.items()
)


@given(FRAMES)
def test_frames_are_read_as_they_were_written(frame: MpaFrame) -> None:
    assert MpaFrame.parse(frame.emit()) == frame
    assert str(frame)


@given(SEGMENTS)
def test_segments_are_read_as_they_were_written(segment: Segment) -> None:
    assert Segment.parse(segment.emit()) == segment
    assert str(segment)


@given(st.binary(max_size=2000), st.booleans())
def test_fpdus_are_read_as_they_were_written(data: bytes, crc: bool) -> None:
    fpdu = Fpdu.of(data, crc=crc)
    assert len(fpdu.emit()) == fpdu_size(len(data))
    assert len(fpdu.emit()) % 4 == 0
    assert Fpdu.parse(fpdu.emit()) == fpdu
    assert fpdu.crc == (fpdu.expected_crc() if crc else 0)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for parse in (MpaFrame.parse, Segment.parse, Fpdu.parse):
        try:
            found = parse(data)
        except WireError:
            continue
        assert str(found)
        assert found.emit() == data


@given(UNTAGGED)
def test_an_opcode_without_a_name_has_a_number(header: Untagged) -> None:
    segment = Segment(header)
    assert (f"opcode {header.opcode}" in str(segment)) == (header.opcode >= len(RdmapOpcode))


def test_a_request_byte_for_byte() -> None:
    control = MpaControl(ird=0x1234, ord=3, peer_to_peer=True, rtr_send=True, rtr_write=True)
    frame = MpaFrame(control=control, private_data=b"abc", markers=True, rfc7306=True)
    expected = b"MPA ID Req Frame" + bytes((0x80 | 0x40 | 0x10 | 1, 2, 0, 7, 0xD2, 0x34, 0x80, 3)) + b"abc"
    assert frame.emit() == expected
    assert str(frame) == (
        "MPA Request  revision 2  CRC  markers  RFC 7306  IRD 4660 ORD 3  peer-to-peer  RTR SEND  RTR WRITE  "
        "3 B private data"
    )
    refusal = MpaFrame(is_reply=True, rejected=True, revision=1, crc=False)
    assert refusal.emit() == b"MPA ID Rep Frame" + bytes((0x20, 1, 0, 0))


def test_in_revision_1_the_flag_of_revision_2_means_nothing() -> None:
    data = b"MPA ID Req Frame" + bytes((0x10, 1, 0, 2)) + b"ab"
    frame = MpaFrame.parse(data)
    assert (frame.control, frame.private_data) == (None, b"ab")
    assert frame.emit() == data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"MPA ID Req Fram", "needs 20 bytes"),
        (b"MPA ID Rej Frame" + bytes(4), "is not MPA's"),
        (b"MPA ID Req Frame" + bytes((0, 1, 2, 1)) + bytes(513), "512 are the most"),
        (b"MPA ID Req Frame" + bytes((0, 1, 0, 1)), "of 1 bytes, there are 0"),
        (b"MPA ID Req Frame" + bytes((0, 1, 0, 1)) + b"ab", "of 1 bytes, there are 2"),
        (b"MPA ID Req Frame" + bytes((0x10, 2, 0, 3)) + b"abc", "MpaControl needs 4 bytes"),
    ],
)
def test_a_frame_that_cannot_be(data: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        MpaFrame.parse(data)


def test_what_does_not_fit_is_not_written() -> None:
    with pytest.raises(WireError, match="513 bytes of private data"):
        MpaFrame(private_data=bytes(513)).emit()
    with pytest.raises(WireError, match="513 bytes"):
        MpaFrame(control=MpaControl(), private_data=bytes(509)).emit()
    with pytest.raises(WireError, match="ird"):
        MpaControl(ird=1 << 14).emit()
    with pytest.raises(WireError, match="padding"):
        Fpdu(b"abc").emit()
    with pytest.raises(WireError, match="has not 12"):
        Fpdu.parse(b"\0\1" + bytes(10))


def test_crc32c_is_that_of_iscsi() -> None:
    """RFC 3720, B.4."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(bytes(range(16, 32)), crc32c(bytes(range(16)))) == 0x46DD794E
    assert crc32c(b"123456789") == 0xE3069283


def test_a_terminate_message_says_what_was_wrong() -> None:
    write = Tagged(opcode=RdmapOpcode.WRITE, stag=7, offset=8, last=True)
    control = Terminate(layer=TermLayer.DDP, etype=1, code=0, has_length=True, has_ddp=True)
    segment = Segment.of(control, RdmapOpcode.TERMINATE, 1, (100).to_bytes(2, "big") + write.emit())
    assert isinstance(segment.header, Untagged)
    assert segment.header.queue == QueueNumber.TERMINATE
    about = terminated(Segment.parse(segment.emit()))
    assert (about.length, about.header, about.request) == (100, write, None)
    assert "DDP: tagged buffer error: invalid STag  about WRITE" in str(segment)
    asked = ReadRequest(1, 2, 3, 4, 5)
    header = Untagged(opcode=RdmapOpcode.READ_REQUEST, queue=1, msn=1, last=True)
    more = Terminate(layer=0, etype=1, code=2, has_length=True, has_ddp=True, has_rdmap=True)
    payload = (46).to_bytes(2, "big") + header.emit() + asked.emit()
    assert terminated(Segment.of(more, RdmapOpcode.TERMINATE, 1, payload)).request == asked
    with pytest.raises(WireError, match="needs 28 bytes"):
        terminated(Segment.of(more, RdmapOpcode.TERMINATE, 1, payload[:-1]))
    assert "[ReadRequest needs 28" in str(Segment.of(more, RdmapOpcode.TERMINATE, 1, payload[:-1]))
    with pytest.raises(WireError, match="WRITE is not a Terminate"):
        terminated(Segment(write))


def test_every_error_has_words_or_its_number() -> None:
    assert term_words(0, 2, 6) == "RDMAP: remote operation error: unexpected opcode"
    assert term_words(1, 2, 2) == "DDP: untagged buffer error: no receive is posted"
    assert term_words(2, 0, 2) == "LLP: MPA error: wrong CRC"
    assert term_words(9, 3, 77) == "layer 9: type 3: code 77"


# ------------------------------------------------------------------ streams that siw does not send


def conversation(*, markers: bool, crc: bool = True) -> tuple[bytes, bytes, list[bytes]]:
    """The streams of two ends, both of which want markers or not, and the segments of the initiator."""
    sizes = (0, 1, 2, 3, 450, 486, 487, 500, 1000, 5000)
    content = bytes(range(256)) * 20
    headers = [Tagged(stag=1, offset=n, last=True) for n in range(len(sizes))]
    plain = [Segment(head, None, content[:size]).emit() for head, size in zip(headers, sizes, strict=True)]
    framed = [Fpdu.of(one, crc=crc).emit() for one in plain]
    body = marked(framed) if markers else b"".join(framed)
    request = MpaFrame(markers=markers, crc=crc).emit()
    return request + body, MpaFrame(is_reply=True, markers=markers, crc=crc).emit(), plain


@pytest.mark.parametrize("markers", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3, 509, 1 << 20])
def test_fpdus_with_and_without_markers(markers: bool, step: int) -> None:
    ours, theirs, plain = conversation(markers=markers)
    found = units(read((ours, theirs), range(0, len(ours), step))[0])
    assert [unit.fpdu.ulpdu for unit in found] == plain
    assert all(unit.crc_ok and unit.markers_ok for unit in found)
    assert b"".join(unit.raw for unit in found) == ours[20:]
    assert any(unit.markers for unit in found) == markers
    if markers:
        assert found[0].markers == ((-4, Marker()),)


def test_a_flipped_bit_is_found() -> None:
    ours, theirs, _ = conversation(markers=True)
    for at in (24, 26, 600, len(ours) - 5):
        broken = bytearray(ours)
        broken[at + 4] ^= 1
        try:
            found = units(read((bytes(broken), theirs))[0])
        except (WireError, AssertionError):  # its length is another one
            continue
        assert not all(unit.crc_ok for unit in found)


def test_without_crc_the_field_means_nothing() -> None:
    ours, theirs, _ = conversation(markers=False, crc=False)
    broken = ours[:-1] + b"x"
    assert all(unit.crc_ok for unit in units(read((broken, theirs))[0]))


def test_what_is_no_mpa_is_said_at_its_first_byte() -> None:
    reader = MpaPair().initiator
    assert reader.feed(b"MPA ID Re") == []
    with pytest.raises(WireError, match="begins with no frame"):
        reader.feed(b"x")
    with pytest.raises(WireError, match="512 are the most"):
        MpaPair().responder.feed(MpaHeader(key=b"MPA ID Rep Frame", private_size=513).emit())


# ------------------------------------------------------------------ captures


@pytest.mark.parametrize("family", [4, 6])
def test_a_capture_with_every_disorder(family: int) -> None:
    """Segments that come twice, late, overlapping, and around the wrap of sequence numbers."""
    ours, theirs, plain = conversation(markers=False)
    talk = Talk(family, first=0xFFFFFF00)
    talk.say(CLIENT, ours[:20])
    talk.say(SERVER, theirs)
    talk.again()
    begin = len(talk.records)
    talk.say(CLIENT, *(ours[at : at + 700] for at in range(20, len(ours), 700)))
    talk.end(CLIENT)
    talk.records[begin + 1 : begin + 5] = reversed(talk.records[begin + 1 : begin + 5])
    talk.again()
    seen = [Streams.take(streams, record) for streams in [Streams()] for record in talk.records]
    found = [item for one in seen for item in one.items if isinstance(item, Unit)]
    assert [unit.fpdu.ulpdu for unit in found] == plain
    assert not any(one.error for one in seen)
    assert "TCP  FIN" in seen[-1].lines()[0]


def test_overlapping_segments_give_each_byte_once() -> None:
    ours, theirs, plain = conversation(markers=False)
    talk = Talk()
    talk.say(CLIENT, ours[:20])
    talk.say(SERVER, theirs)
    for at in range(20, len(ours), 500):
        talk.seq[CLIENT] = 0x10001 + max(at - 300, 20)
        talk.say(CLIENT, ours[max(at - 300, 20) : at + 500])
    streams = Streams()
    found = [item for record in talk.records for item in streams.take(record).items]
    assert [unit.fpdu.ulpdu for unit in found if isinstance(unit, Unit)] == plain


def test_what_was_not_captured_ends_the_reading_in_words() -> None:
    ours, theirs, _ = conversation(markers=False)
    talk = Talk()
    talk.say(CLIENT, ours[:20])
    talk.say(SERVER, theirs)
    talk.seq[CLIENT] += 4
    talk.say(CLIENT, *(bytes(60000) for _ in range(80)))
    streams = Streams()
    errors = [seen.error for record in talk.records if (seen := streams.take(record)).error]
    assert errors in ([], ["bytes of this connection were not captured"])


def test_other_connections_are_no_iwarp() -> None:
    talk = Talk()
    talk.say(CLIENT, b"GET / HTTP/1.1\r\n\r\n")
    streams = Streams()
    seen = [streams.take(record) for record in talk.records]
    assert not any(one.is_iwarp or one.error for one in seen)
    assert list(dissect(talk.records))[-1].endswith("10.0.0.1:40000 → 10.0.0.2:7471  TCP  ACK  18 B")


def test_ports_that_are_used_again_are_another_connection() -> None:
    ours, theirs, plain = conversation(markers=False)
    records = []
    for first in (0x10000, 0x50000):
        talk = Talk(first=first)
        talk.say(CLIENT, ours[:20])
        talk.say(SERVER, theirs)
        talk.say(CLIENT, ours[20:])
        records += talk.records
    streams = Streams()
    found = [item for record in records for item in streams.take(record).items]
    assert sum(isinstance(item, Unit) for item in found) == 2 * len(plain)


def test_lines_for_people() -> None:
    lines = list(dissect(read_pcap(VECTORS / "siw-rdma-server.pcap")))
    assert len(lines) == 12
    assert "MPA Request  revision 2  no CRC  IRD 128 ORD 128" in lines[3]
    assert "10.77.255.8:46422 → 10.77.255.9:7471  SEND" in lines[7]
    assert lines[7].endswith("queue 0 MSN 1 MO 0  16 B  last")
    ours, theirs, _ = conversation(markers=True)
    talk = Talk(6)
    talk.say(CLIENT, ours[:20])
    talk.say(SERVER, theirs)
    talk.say(CLIENT, ours[20:-1] + bytes([ours[-1] ^ 1]))
    lines = list(dissect(talk.records))
    assert "[fd00::1]:40000 → [fd00::2]:7471  WRITE" in lines[-1]
    assert "should be" in lines[-1]
    assert "markers" in lines[-1]
    cut = replace(talk.records[2], length=4000)
    assert "bytes captured" in next(iter(dissect([cut])))


def test_a_tcp_header_that_cannot_be() -> None:
    talk = Talk()
    record = talk.records[0]
    for words, why in ((4, "TCP header of 16 bytes"), (15, "TCP header needs 60 bytes")):
        broken = bytearray(record.data)
        broken[20 + 12] = words << 4
        with pytest.raises(WireError, match=why):
            Streams().take(replace(record, data=bytes(broken)))
    with pytest.raises(NotRoCEError):
        Streams().take(replace(record, data=record.data[:9] + bytes([17]) + record.data[10:]))
    assert TcpHeader().words == 5


def test_immediate_data_and_atomics_in_words() -> None:
    add = AtomicRequest(code=AtomicCode.FETCH_ADD, request_id=1, stag=2, offset=3, add_swap=4)
    assert "FETCH_ADD STag 0x00000002 TO 0x3 add/swap 0x4" in str(
        Segment.of(add, RdmapOpcode.ATOMIC_REQUEST, 1)
    )
    assert "code 9" in str(Segment.of(replace(add, code=9), RdmapOpcode.ATOMIC_REQUEST, 1))
    assert "original 0x7 id 1" in str(Segment.of(AtomicResponse(1, 7), RdmapOpcode.ATOMIC_RESPONSE, 1))
    assert "imm 0xcafe" in str(Segment.of(Immediate(0xCAFE), RdmapOpcode.IMMEDIATE, 1))


def test_an_echoed_flag_of_a_request_says_nothing_in_a_reply() -> None:
    asked = MpaFrame(control=MpaControl(ird=1, ord=1), rfc7306=True)
    echo = bytearray(asked.emit())
    echo[:16] = b"MPA ID Rep Frame"  # as siw answers: with the flags that it was asked with
    answer = MpaFrame.parse(bytes(echo))
    assert answer.is_reply
    assert not answer.rfc7306
    assert answer.emit() == bytes(echo)
    assert MpaFrame.parse(replace(answer, rfc7306=True).emit()).rfc7306
    assert not replace(asked, rfc7306=False).emit()[16] & 0x03
