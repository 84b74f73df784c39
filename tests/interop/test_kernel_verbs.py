# SPDX-License-Identifier: Apache-2.0
"""Every RC operation between rnic and the kernel, each end asking and answering, every byte checked."""

from __future__ import annotations

import struct

import pytest
from ends import ALL_ACCESS, End, KernelEnd, Path, Send
from link import Link, Wire
from program import (
    LENGTH,
    SOURCE,
    TARGET,
    MakePair,
    MiB,
    Pair,
    complete,
    guarded,
    noise,
    prepare_target,
    rdma,
    run_both,
    u64,
)

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("wire")]


def lengths(path_mtu: int) -> list[int]:
    """Message lengths around every border that the protocol has."""
    m = path_mtu
    return [0, 1, 2, 3, 4, 5, m - 1, m, m + 1, 2 * m, 2 * m + 1, 3 * m + 5, 65537, MiB]


# ---------------------------------------------------------------- WRITE


def test_write_puts_the_bytes_and_no_others(link: Link, pair: Pair) -> None:
    requester, responder = pair
    for length in lengths(link.path_mtus[-1]):
        data = noise(length, length)
        requester.store(SOURCE, data)
        prepare_target(responder, length)
        requester.post_send(rdma("RDMA_WRITE", responder, TARGET, [(SOURCE, length)], wr_id=length))
        assert complete(requester)[0].wr_id == length
        assert guarded(responder, length) == data, f"{length} bytes"


def test_write_gathers_from_several_places(pair: Pair) -> None:
    requester, responder = pair
    data = noise(10_000, 1)
    requester.store(SOURCE, data)
    pieces = [(0, 3), (3, 1), (4, 4995), (4999, 5001)]
    prepare_target(responder, len(data))
    sg = [(SOURCE + at, length) for at, length in pieces]
    requester.post_send(rdma("RDMA_WRITE", responder, TARGET, sg))
    complete(requester)
    assert guarded(responder, len(data)) == data


def test_write_with_immediate_tells_the_responder(link: Link, pair: Pair) -> None:
    requester, responder = pair
    for length in (0, 1, link.path_mtus[-1], 3 * link.path_mtus[-1] + 1):
        data = noise(length, length)
        requester.store(SOURCE, data)
        prepare_target(responder, length)
        responder.post_recv(77, [])
        requester.post_send(
            rdma(
                "RDMA_WRITE_WITH_IMM",
                responder,
                TARGET,
                [(SOURCE, length)],
                imm_data=0x01020300 + length % 256,
            )
        )
        complete(requester)
        (wc,) = complete(responder)
        assert (wc.wr_id, wc.opcode, wc.byte_len) == (77, "RECV_RDMA_WITH_IMM", length)
        assert wc.imm_data == 0x01020300 + length % 256
        assert guarded(responder, length) == data


def test_path_mtus_and_psn_wrap(link: Link, make_pair: MakePair) -> None:
    """At every path MTU: WRITE, READ and SEND of 64 packets, with first PSNs just below the wrap."""
    for path_mtu in link.path_mtus:
        options = {"psn": 0xFFFFFF - 31}
        requester, responder = make_pair(Path(path_mtu), requester=options, responder=options)
        length = 64 * path_mtu
        data = noise(length, path_mtu)
        requester.store(SOURCE, data)
        prepare_target(responder, length)
        requester.post_send(rdma("RDMA_WRITE", responder, TARGET, [(SOURCE, length)]))
        complete(requester)
        assert guarded(responder, length) == data

        prepare_target(requester, length)
        requester.post_send(rdma("RDMA_READ", responder, TARGET, [(TARGET, length)]))
        complete(requester)
        assert guarded(requester, length) == data

        prepare_target(responder, length)
        responder.post_recv(0, [(TARGET, length)])
        requester.post_send(Send(opcode="SEND", sg=[(SOURCE, length)]))
        complete(requester)
        complete(responder)
        assert guarded(responder, length) == data


# ---------------------------------------------------------------- READ


def test_read_gets_the_bytes_and_touches_no_others(link: Link, pair: Pair) -> None:
    requester, responder = pair
    for length in lengths(link.path_mtus[-1]):
        data = noise(length, length + 1)
        responder.store(SOURCE, data)
        prepare_target(requester, length)
        requester.post_send(rdma("RDMA_READ", responder, SOURCE, [(TARGET, length)], wr_id=length))
        assert complete(requester)[0].wr_id == length
        assert guarded(requester, length) == data, f"{length} bytes"


def test_read_scatters_to_several_places(pair: Pair) -> None:
    requester, responder = pair
    data = noise(9_999, 2)
    responder.store(SOURCE, data)
    prepare_target(requester, 4 * 10_000)
    pieces = [(TARGET, 1), (TARGET + 10_000, 4000), (TARGET + 20_001, 3), (TARGET + 30_000, 5995)]
    requester.post_send(rdma("RDMA_READ", responder, SOURCE, pieces))
    complete(requester)
    assert b"".join(requester.load(at, length) for at, length in pieces) == data
    assert requester.load(TARGET + 1, 10) == b"\xee" * 10


def test_many_reads_at_once(pair: Pair) -> None:
    """More READs than may be outstanding, of mixed lengths, posted in one chain."""
    requester, responder = pair
    sizes = [1 + (i * 7919) % 20_000 for i in range(100)]
    data = noise(sum(sizes), 3)
    responder.store(SOURCE, data)
    prepare_target(requester, len(data))
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    requester.post_send(
        *(
            rdma("RDMA_READ", responder, SOURCE + at, [(TARGET + at, size)], wr_id=i)
            for i, (at, size) in enumerate(zip(starts, sizes, strict=True))
        )
    )
    assert [wc.wr_id for wc in complete(requester, len(sizes))] == list(range(len(sizes)))
    assert guarded(requester, len(data)) == data


# ---------------------------------------------------------------- SEND


def test_send_fills_the_receives_in_order(link: Link, pair: Pair) -> None:
    requester, responder = pair
    for length in lengths(link.path_mtus[-1]):
        data = noise(length, length + 2)
        requester.store(SOURCE, data)
        prepare_target(responder, length)
        responder.post_recv(length + 1, [(TARGET, length)])
        requester.post_send(Send(opcode="SEND", sg=[(SOURCE, length)], wr_id=length))
        assert complete(requester)[0].wr_id == length
        (wc,) = complete(responder)
        assert (wc.wr_id, wc.opcode, wc.byte_len, wc.imm_data) == (length + 1, "RECV", length, None)
        assert guarded(responder, length) == data, f"{length} bytes"


def test_send_with_immediate_into_scattered_receives(pair: Pair) -> None:
    requester, responder = pair
    data = noise(5000, 4)
    requester.store(SOURCE, data)
    for i in range(20):
        responder.post_recv(
            i, [(TARGET + i * 6000, 7), (TARGET + i * 6000 + 7, 93), (TARGET + i * 6000 + 100, 5500)]
        )
    requester.post_send(
        *(
            Send(opcode="SEND_WITH_IMM", sg=[(SOURCE, i * 250)], imm_data=0xCAFE0000 + i, wr_id=i)
            for i in range(20)
        )
    )
    complete(requester, 20)
    for i, wc in enumerate(complete(responder, 20)):
        assert (wc.wr_id, wc.byte_len, wc.imm_data) == (i, i * 250, 0xCAFE0000 + i)
        assert responder.load(TARGET + i * 6000, i * 250) == data[: i * 250]


def test_inline_data_may_be_overwritten_at_once(pair: Pair) -> None:
    requester, responder = pair
    for i in range(10):
        requester.store(SOURCE, bytes([i]) * 200)
        send = rdma(
            "RDMA_WRITE", responder, TARGET + i * 200, [(SOURCE, 200)], send_flags=("SIGNALED", "INLINE")
        )
        requester.post_send(send)
        requester.store(SOURCE, b"\xff" * 200)
    complete(requester, 10)
    assert responder.load(TARGET, 2000) == b"".join(bytes([i]) * 200 for i in range(10))


def test_unsignaled_requests_complete_in_silence(pair: Pair) -> None:
    requester, responder = pair
    requester.store(SOURCE, noise(1000, 5))
    requester.post_send(
        *(
            rdma("RDMA_WRITE", responder, TARGET + i, [(SOURCE + i, 1)], wr_id=i, send_flags=())
            for i in range(100)
        ),
        rdma("RDMA_WRITE", responder, TARGET + 100, [(SOURCE + 100, 900)], wr_id=100),
    )
    assert [wc.wr_id for wc in complete(requester)] == [100]
    assert responder.load(TARGET, 1000) == noise(1000, 5)


# ---------------------------------------------------------------- atomics


def test_fetch_and_add_runs_once_each(pair: Pair) -> None:
    requester, responder = pair
    start, step, n = 2**64 - 1000, 37, 100  # the sum wraps
    responder.store(TARGET, struct.pack("=Q", start))
    requester.post_send(
        *(
            rdma("ATOMIC_FETCH_AND_ADD", responder, TARGET, [(SOURCE + 8 * i, 8)], compare_add=step, wr_id=i)
            for i in range(n)
        )
    )
    wcs = complete(requester, n)
    assert {(wc.opcode, wc.byte_len) for wc in wcs} == {("FETCH_ADD", 8)}
    assert u64(responder, TARGET) == (start + n * step) % 2**64
    assert [u64(requester, SOURCE + 8 * i) for i in range(n)] == [
        (start + i * step) % 2**64 for i in range(n)
    ]


def test_compare_and_swap(pair: Pair) -> None:
    requester, responder = pair
    a, b, c = 0x0123456789ABCDEF, 0xFEDCBA9876543210, 0x1111111122222222
    responder.store(TARGET, struct.pack("=Q", a))
    for compare, swap, old, new in ((b, c, a, a), (a, b, a, b), (b, c, b, c)):
        requester.post_send(
            rdma("ATOMIC_CMP_AND_SWP", responder, TARGET, [(SOURCE, 8)], compare_add=compare, swap=swap)
        )
        assert complete(requester)[0].opcode == "COMP_SWAP"
        assert (u64(requester, SOURCE), u64(responder, TARGET)) == (old, new)


# ---------------------------------------------------------------- everything at once


@pytest.mark.parametrize("seed", range(3))
def test_all_operations_from_both_ends_at_once(pair: Pair, seed: int) -> None:
    run_both(*pair, n=100, seed=seed)


# ---------------------------------------------------------------- refusals


def refused(requester: End, status: str, *wrs: Send) -> None:
    """The first work request ends with this status, the next is flushed, and the QP is in error."""
    requester.post_send(*wrs, Send(opcode="SEND", sg=[(SOURCE, 1)], wr_id=999))
    wcs = requester.poll(2)
    assert [(wc.wr_id, wc.status) for wc in wcs] == [(wrs[0].wr_id, status), (999, "WR_FLUSH_ERR")]
    assert requester.state() == "ERR"


RDMA = [("RDMA_WRITE", 100), ("RDMA_READ", 100), ("ATOMIC_FETCH_AND_ADD", 8), ("ATOMIC_CMP_AND_SWP", 8)]


@pytest.mark.parametrize(("opcode", "length"), RDMA)
def test_wrong_key_is_refused(pair: Pair, opcode: str, length: int) -> None:
    requester, responder = pair
    remote = responder.address
    wrong = Send(opcode=opcode, sg=[(SOURCE, length)], remote_addr=remote.addr, rkey=remote.rkey ^ 1, wr_id=1)
    refused(requester, "REM_ACCESS_ERR", wrong)


@pytest.mark.parametrize(("opcode", "length"), RDMA)
def test_a_byte_outside_the_region_is_refused(pair: Pair, opcode: str, length: int) -> None:
    requester, responder = pair
    outside = LENGTH - length + (8 if opcode.startswith("ATOMIC") else 1)
    refused(requester, "REM_ACCESS_ERR", rdma(opcode, responder, outside, [(SOURCE, length)], wr_id=1))


@pytest.mark.parametrize(
    ("opcode", "length", "right"),
    [(opcode, length, f"REMOTE_{opcode.removeprefix('RDMA_').split('_')[0]}") for opcode, length in RDMA],
)
def test_access_that_was_not_granted_is_refused(
    make_pair: MakePair, opcode: str, length: int, right: str
) -> None:
    requester, responder = make_pair(responder={"access": [flag for flag in ALL_ACCESS if flag != right]})
    requester.post_send(rdma(opcode, responder, TARGET, [(SOURCE, length)], wr_id=1))
    (wc,) = requester.poll(1)
    # An invalid request, as the QP does not allow it; were it the region alone, an access error (IBA 11.6.2).
    assert wc.status == "REM_INV_REQ_ERR"
    assert requester.state() == "ERR"


def test_message_longer_than_the_receive_is_refused(link: Link, pair: Pair) -> None:
    requester, responder = pair
    length = link.path_mtus[-1] + 1
    responder.post_recv(5, [(TARGET, length - 1)])
    # An invalid request, says the specification (IBA 9.7.4.1); the kernel takes it for an error of its own.
    theirs, ours = ("REM_OP_ERR", "LOC_QP_OP_ERR"), ("REM_INV_REQ_ERR", "LOC_LEN_ERR")
    answer, cause = theirs if isinstance(responder, KernelEnd) else ours
    refused(requester, answer, Send(opcode="SEND", sg=[(SOURCE, length)], wr_id=1))
    (wc,) = responder.poll(1)
    assert (wc.wr_id, wc.status) == (5, cause)


def test_send_without_a_receive_ends_after_the_retries(link: Link, make_pair: MakePair) -> None:
    requester, _ = make_pair(Path(link.path_mtus[-1], rnr_retry=2))
    refused(requester, "RNR_RETRY_EXC_ERR", Send(opcode="SEND", sg=[(SOURCE, 1)], wr_id=1))


def test_send_waits_for_a_late_receive(pair: Pair) -> None:
    requester, responder = pair
    requester.store(SOURCE, b"late")
    requester.post_send(Send(opcode="SEND", sg=[(SOURCE, 4)]))
    assert requester.poll(1, timeout=0.2) == []
    responder.post_recv(1, [(TARGET, 4)])
    complete(requester)
    complete(responder)
    assert responder.load(TARGET, 4) == b"late"


LATE = 128 * 1024  # between two places


def behind(responder: End) -> list[Send]:
    """One of each that takes no receive; the kernel answers each with a NAK while it waits for one."""
    return [
        rdma("RDMA_WRITE", responder, TARGET, [(SOURCE, 5000)], wr_id=1),
        rdma("RDMA_READ", responder, TARGET, [(SOURCE + LATE, 5000)], wr_id=2),
        rdma(
            "ATOMIC_FETCH_AND_ADD", responder, TARGET + LATE, [(SOURCE + 2 * LATE, 8)], compare_add=5, wr_id=3
        ),
    ]


@pytest.mark.parametrize("seconds", [0.3, 3.0])
@pytest.mark.parametrize(("length", "follows"), [(4, True), (20_000, False), (20_000, True)])
def test_what_follows_a_message_waits_with_it_for_a_late_receive(
    pair: Pair, length: int, follows: bool, seconds: float
) -> None:
    requester, responder = pair
    data = noise(20_000, 6)
    requester.store(SOURCE, data)
    responder.store(TARGET + LATE, bytes(8))
    wrs = behind(responder) if follows else []
    requester.post_send(Send(opcode="SEND", sg=[(SOURCE, length)]), *wrs)
    assert requester.poll(1, timeout=seconds) == []
    assert requester.state() == "RTS"
    responder.post_recv(1, [(TARGET + 2 * LATE, length)])
    assert [wc.wr_id for wc in complete(requester, 1 + len(wrs))] == list(range(1 + len(wrs)))
    complete(responder)
    assert responder.load(TARGET + 2 * LATE, length) == data[:length]
    if follows:
        assert requester.load(SOURCE + LATE, 5000) == data[:5000]
        assert u64(responder, TARGET + LATE) == 5


def test_a_peer_that_is_gone_ends_in_retry_exceeded(link: Link, make_pair: MakePair) -> None:
    requester, responder = make_pair(Path(link.path_mtus[-1], timeout=10, retry_cnt=2))
    responder.close()
    refused(requester, "RETRY_EXC_ERR", rdma("RDMA_WRITE", responder, TARGET, [(SOURCE, 1)], wr_id=1))


# ---------------------------------------------------------------- on the wire


def test_tshark_reads_what_rnic_sent(wire: Wire) -> None:
    wire.check()
