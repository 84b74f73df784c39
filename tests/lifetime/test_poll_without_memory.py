# SPDX-License-Identifier: Apache-2.0
"""CQ.poll() that has no memory for what it found: nothing is lost, whoever polls next is told."""

from __future__ import annotations

from types import ModuleType

import pytest

import rnic
from rnic import QPAttr, QPCap, QPState, RecvWR
from rnic.testing.pair import End

POSTED, ATTEMPTS = 200, 100  # more completions than poll() keeps on its stack; its allocations, and some


@pytest.fixture
def scarcity() -> ModuleType:
    """CPython's own: set_nomemory(n, n + 1) fails the n-th allocation from there on."""
    return pytest.importorskip("_testcapi", reason="this Python has no test module of its own (_testcapi)")


def taken(cq: rnic.CQ, n: int, scarcity: ModuleType) -> tuple[list[int], int]:
    """Polls until nothing is left; each allocation fails once. What came, and how many polls failed."""
    found: list[int] = []
    failed = 0
    for attempt in range(ATTEMPTS):
        got: list[rnic.WC] = []
        scarcity.set_nomemory(attempt, attempt + 1)
        try:
            got = cq.poll(n)
        except MemoryError:
            failed += 1
        finally:
            scarcity.remove_mem_hooks()
        found += [wc.wr_id for wc in got]
    while got := cq.poll(n):
        found += [wc.wr_id for wc in got]
    return found, failed


@pytest.mark.parametrize("at_once", [1, 2, 7, 64, 150, 1000])
def test_no_completion_is_lost_for_want_of_memory(at_once: int, scarcity: ModuleType) -> None:
    with End(cap=QPCap(max_recv_wr=POSTED)) as end:
        end.qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=0))
        for i in range(POSTED):
            end.qp.post_recv(RecvWR(i))
        end.qp.modify(QPAttr(qp_state=QPState.ERR))
        found, failed = taken(end.cq, at_once, scarcity)
        assert found == list(range(POSTED))
        assert failed > 0, "some poll had too little memory"
