# SPDX-License-Identifier: Apache-2.0
"""CQ.poll() that has no memory for what it found: nothing is lost, whoever polls next is told."""

from __future__ import annotations

import gc
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


def flushed(qp: rnic.QP, posted: int) -> None:
    """So many completions, at once."""
    qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=0))
    for i in range(posted):
        qp.post_recv(RecvWR(i))
    qp.modify(QPAttr(qp_state=QPState.ERR))


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
        flushed(end.qp, POSTED)
        found, failed = taken(end.cq, at_once, scarcity)
        assert found == list(range(POSTED))
        assert failed > 0, "some poll had too little memory"


@pytest.mark.parametrize(("posted", "at_once"), [(40, 50), (100, 60), (200, 150)])
def test_a_finaliser_may_poll_while_kept_completions_are_told(
    posted: int, at_once: int, scarcity: ModuleType
) -> None:
    found: list[int] = []
    with End(cap=QPCap(max_recv_wr=posted)) as end:
        flushed(end.qp, posted)
        poll_once, failed = end.cq.poll, False
        scarcity.set_nomemory(0, 1)
        try:
            poll_once(at_once)
        except MemoryError:
            failed = True
        finally:
            scarcity.remove_mem_hooks()
        assert failed

        def poll(phase: str, _info: object) -> None:
            if phase == "start":
                gc.disable()
                found.extend(wc.wr_id for wc in end.cq.poll(at_once))

        before = gc.get_threshold()
        gc.callbacks.append(poll)
        gc.set_threshold(1)
        try:
            outer = end.cq.poll(at_once)
        finally:
            gc.callbacks.remove(poll)
            gc.set_threshold(*before)
            gc.enable()
        found += [wc.wr_id for wc in outer]
        while more := end.cq.poll(at_once):
            found += [wc.wr_id for wc in more]
        assert sorted(found) == list(range(posted))
