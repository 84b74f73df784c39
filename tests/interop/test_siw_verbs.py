# SPDX-License-Identifier: Apache-2.0
"""Every operation of iWARP between rnic and siw, each end asking and answering, every byte checked."""

from __future__ import annotations

import pytest
from ends import Send
from link import SIW, Link, Wire
from program import SOURCE, TARGET, MiB, complete, guarded, noise, prepare_target, rdma, run_both
from siw_ends import CmEnd, JoinPair, asking_in_revision

pytestmark = [pytest.mark.interop, pytest.mark.siw, pytest.mark.usefixtures("wire")]

ENDS = ["rnic", "kernel"]


def lengths(mtu: int) -> list[int]:
    """Lengths around every border of the protocol: words, and FPDUs with and without options of TCP."""
    segments = [mtu - headers for headers in (40, 52, 60, 72)]
    borders = {
        segment - overhead + more for segment in segments for overhead in (20, 24) for more in (-1, 0, 1)
    }
    return [0, 1, 2, 3, 4, 5, *sorted(borders)[::3], 2 * mtu + 1, 65537, MiB]


every_way = pytest.mark.combinations(4, asks=ENDS, connects=ENDS, siw=list(SIW), crc=["on", "off"])


def flush(requester: CmEnd, responder: CmEnd) -> None:
    """Return when all that was sent before has arrived: a WRITE is complete when TCP has it."""
    responder.post_recv(999, [])
    requester.post_send(Send(opcode="SEND", sg=[(0, 0)], wr_id=998))
    complete(requester)
    complete(responder)


@every_way
def test_write(link: Link, join_pair: JoinPair, asks: str, connects: str, siw: str, crc: str) -> None:
    requester, responder = join_pair(asks, connects, siw, crc)
    for length in lengths(link.mtu):
        data = noise(length, length)
        requester.store(SOURCE, data)
        prepare_target(responder, length)
        requester.post_send(rdma("RDMA_WRITE", responder, TARGET, [(SOURCE, length)], wr_id=length))
        assert complete(requester)[0].wr_id == length
        flush(requester, responder)
        assert guarded(responder, length) == data, f"{length} bytes"


@every_way
def test_read(link: Link, join_pair: JoinPair, asks: str, connects: str, siw: str, crc: str) -> None:
    requester, responder = join_pair(asks, connects, siw, crc)
    for length in lengths(link.mtu):
        data = noise(length, length + 1)
        responder.store(SOURCE, data)
        prepare_target(requester, length)
        requester.post_send(rdma("RDMA_READ", responder, SOURCE, [(TARGET, length)], wr_id=length))
        assert complete(requester)[0].wr_id == length
        assert guarded(requester, length) == data, f"{length} bytes"


@every_way
def test_send(link: Link, join_pair: JoinPair, asks: str, connects: str, siw: str, crc: str) -> None:
    requester, responder = join_pair(asks, connects, siw, crc)
    for length in lengths(link.mtu):
        data = noise(length, length + 2)
        requester.store(SOURCE, data)
        prepare_target(responder, length)
        responder.post_recv(length + 1, [(TARGET, length)])
        requester.post_send(Send(opcode="SEND", sg=[(SOURCE, length)], wr_id=length))
        assert complete(requester)[0].wr_id == length
        (wc,) = complete(responder)
        assert (wc.wr_id, wc.opcode, wc.byte_len) == (length + 1, "RECV", length)
        assert guarded(responder, length) == data, f"{length} bytes"


@pytest.mark.parametrize("asks", ENDS)
def test_several_places(join_pair: JoinPair, asks: str) -> None:
    """They are gathered for a WRITE and for a SEND, and a SEND is scattered."""
    requester, responder = join_pair(asks, "rnic")
    data = noise(10_000, 1)
    requester.store(SOURCE, data)
    prepare_target(responder, len(data))
    sg = [(SOURCE + at, length) for at, length in ((0, 3), (3, 1), (4, 4995), (4999, 5001))]
    requester.post_send(rdma("RDMA_WRITE", responder, TARGET, sg))
    complete(requester)
    flush(requester, responder)
    assert guarded(responder, len(data)) == data
    places = [(TARGET, 7), (TARGET + 20_000, 93), (TARGET + 30_000, 9_900)]
    responder.post_recv(7, places)
    requester.post_send(Send(opcode="SEND", sg=sg))
    complete(requester)
    assert complete(responder)[0].byte_len == len(data)
    assert b"".join(responder.load(at, length) for at, length in places) == data


@pytest.mark.parametrize("asks", ENDS)
def test_more_reads_than_the_peer_serves(join_pair: JoinPair, asks: str) -> None:
    requester, responder = join_pair(asks, "kernel")
    sizes = [1 + (i * 7919) % 20_000 for i in range(100)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    data = noise(sum(sizes), 3)
    responder.store(SOURCE, data)
    prepare_target(requester, len(data))
    requester.post_send(
        *(
            rdma("RDMA_READ", responder, SOURCE + at, [(TARGET + at, size)], wr_id=i)
            for i, (at, size) in enumerate(zip(starts, sizes, strict=True))
        )
    )
    assert [wc.wr_id for wc in complete(requester, len(sizes))] == list(range(len(sizes)))
    assert guarded(requester, len(data)) == data


@pytest.mark.parametrize("asks", ENDS)
def test_inline_and_unsignaled(join_pair: JoinPair, asks: str) -> None:
    requester, responder = join_pair(asks, "rnic")
    for i in range(10):
        requester.store(SOURCE, bytes([i]) * 60)
        flags = ("SIGNALED", "INLINE") if i == 9 else ("INLINE",)
        at = TARGET + i * 60
        requester.post_send(
            rdma("RDMA_WRITE", responder, at, [(SOURCE, 60)], wr_id=i, send_flags=flags),
        )
        requester.store(SOURCE, b"\xff" * 60)
    assert [wc.wr_id for wc in complete(requester)] == [9]
    flush(requester, responder)
    assert responder.load(TARGET, 600) == b"".join(bytes([i]) * 60 for i in range(10))


@pytest.mark.combinations(3, seed=[1, 2, 3], connects=ENDS, siw=list(SIW), crc=["on", "off"])
def test_programs_of_both_ends(join_pair: JoinPair, seed: int, connects: str, siw: str, crc: str) -> None:
    run_both(*join_pair("rnic", connects, siw, crc), n=100, seed=seed, siw=True)


@pytest.mark.parametrize("crc", ["on", "off"])
def test_rnic_asks_in_revision_1(
    link: Link, join_pair: JoinPair, crc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNIC_MPA_CRC", crc)
    with asking_in_revision(link, 1):
        run_both(*join_pair("rnic", "rnic", crc=crc), n=100, seed=4, siw=True)


def test_tshark_reads_what_was_sent(wire: Wire) -> None:
    report = wire.check_iwarp()
    assert report.opcodes.keys() == {"WRITE", "READ_REQUEST", "READ_RESPONSE", "SEND"}
