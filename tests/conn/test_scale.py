# SPDX-License-Identifier: Apache-2.0
"""Many endpoints between two processes: all of them work, none leaves anything behind."""

from __future__ import annotations

import os

import pytest

from conn.load import alive, cycles

SOAK = bool(os.environ.get("RNIC_SOAK"))
ALIVE = 1000 if SOAK else 150
CYCLES = 10_000 if SOAK else 300
GROWTH_KIB = 4096 if SOAK else 8192


def test_many_endpoints_at_once() -> None:
    connected, closed = alive(ALIVE)
    assert connected.caller.exchanges == connected.server.exchanges == ALIVE
    assert closed.caller.ids == 1
    assert closed.caller.descriptors <= connected.caller.descriptors - ALIVE
    assert closed.server.descriptors <= connected.server.descriptors - ALIVE


@pytest.mark.one_in(2)
@pytest.mark.parametrize("window", [1, 32])
def test_endpoints_that_come_and_go_leave_nothing(window: int) -> None:
    first, last = cycles([CYCLES // 5, CYCLES - CYCLES // 5], window)
    for early, late in ((first.caller, last.caller), (first.server, last.server)):
        assert (late.threads, late.ids) == (early.threads, early.ids)
        assert late.descriptors <= early.descriptors
        assert late.rss_kib < early.rss_kib + GROWTH_KIB
        assert late.timers <= 64 + 4 * late.exchanges
