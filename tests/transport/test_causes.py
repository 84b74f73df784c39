# SPDX-License-Identifier: Apache-2.0
"""What exactly a peer of this host has refused, as WC.explain() says it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from rnic import MR, SGE, AccessFlags, RecvWR, WCStatus, WROpcode
from rnic.testing import ALL_ACCESS, Pair
from transport.scene import perform

pytestmark = pytest.mark.own_way

PAGE = 4096


def deregistered(pair: Pair) -> MR:
    with pair.b.pd.alloc_mr(PAGE, ALL_ACCESS) as mr:
        return mr


def without_right(pair: Pair) -> MR:
    return pair.b.memory(PAGE, AccessFlags.LOCAL_WRITE)


def whole(pair: Pair) -> MR:
    return pair.b.memory(PAGE, ALL_ACCESS)


@pytest.mark.parametrize(
    ("make", "offset", "words"),
    [
        (deregistered, 0, "is of a region that was deregistered "),
        (without_right, 0, "the region has no REMOTE_WRITE"),
        (whole, 3600, "RDMA_WRITE of 1,024 bytes at remote_addr "),
        (whole, 3600, "1,024 bytes from offset 3,600 of a region of 4,096"),
        (whole, -16, "1,024 bytes from 16 before the start of a region of 4,096"),
    ],
)
@pytest.mark.parametrize("local", [True, False])
def test_a_peer_of_this_host_says_what_it_has_refused(
    make: Callable[[Pair], MR], offset: int, words: str, local: bool
) -> None:
    with Pair(local=local) as pair:
        source, mr = pair.a.memory(PAGE), make(pair)
        there = mr.addr + offset, mr.rkey
        wc = perform(pair.a, WROpcode.RDMA_WRITE, [SGE(source, 0, 1024)], there)
        assert wc.status is WCStatus.REM_ACCESS_ERR
        assert "NAK remote access error" in wc.explain()
        assert (words in wc.explain()) == (local or words.startswith("RDMA_WRITE"))


def test_a_process_that_may_not_be_looked_into_tells_nothing_of_its_memory() -> None:
    prctl, set_dumpable = ctypes.CDLL(None).prctl, 4
    with Pair(local=True) as pair:
        source, mr = pair.a.memory(PAGE), without_right(pair)
        assert perform(pair.a, WROpcode.RDMA_READ, [SGE(source, 0, 8)], pair.b.memory(PAGE)).ok
        assert prctl(set_dumpable, 0, 0, 0, 0) == 0
        try:
            wc = perform(pair.a, WROpcode.RDMA_WRITE, [SGE(source, 0, 8)], mr)
        finally:
            prctl(set_dumpable, 1, 0, 0, 0)
        assert "NAK remote access error" in wc.explain()
        assert "REMOTE_WRITE" not in wc.explain()


def test_both_ends_say_that_a_receive_is_too_short() -> None:
    with Pair(local=True) as pair:
        source, target = pair.a.memory(PAGE), pair.b.memory(PAGE)
        pair.b.qp.post_recv(RecvWR(9, [SGE(target, 0, 1000)]))
        sent = perform(pair.a, WROpcode.SEND, [SGE(source, 0, 2000)], (0, 0))
        (received,) = pair.b.wait()
        assert (sent.status, received.status) == (WCStatus.REM_INV_REQ_ERR, WCStatus.LOC_LEN_ERR)
        for wc in (sent, received):
            assert "a message of 2,000 bytes or more, and a receive of 1,000" in wc.explain()


def test_an_explanation_outlives_its_queue_pair() -> None:
    with Pair(local=True) as pair:
        source, mr = pair.a.memory(PAGE), without_right(pair)
        wc = perform(pair.a, WROpcode.RDMA_WRITE, [SGE(source, 0, 8)], mr)
    assert "the region has no REMOTE_WRITE" in wc.explain()
