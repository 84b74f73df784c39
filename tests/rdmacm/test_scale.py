# SPDX-License-Identifier: Apache-2.0
"""Many connections between two processes: none is lost, none leaves anything behind."""

from __future__ import annotations

import os

import pytest

from rdmacm.load import Figures, Held, alive, cycles

SOAK = bool(os.environ.get("RNIC_SOAK"))
ALIVE = 1000 if SOAK else 300
CYCLES = 10_000 if SOAK else 400
GROWTH_KIB = 2048 if SOAK else 6144  # a manager keeps its last 1024 answers, some 2 MB


def test_a_burst_of_requests_is_lost_on_no_way_to_the_listener() -> None:
    """All of them call before any is answered; a unix socket between the processes holds ten."""
    connected, released = alive(ALIVE)
    for held in (connected.caller, connected.server):
        assert held.ids == ALIVE + 1
        assert held.exchanges == ALIVE
    for figures in (connected, released):
        assert figures.caller.lost == figures.server.lost == 0
    for held in (released.caller, released.server):
        assert (held.ids, held.exchanges) == (1, 0)


@pytest.mark.parametrize("window", [1, 64])
def test_connections_that_come_and_go_leave_nothing(window: int) -> None:
    first, last, end = cycles([CYCLES // 5, CYCLES - CYCLES // 5], window)
    for early, late, over in zip(both(first), both(last), both(end), strict=True):
        assert late.descriptors == early.descriptors
        assert late.threads == early.threads
        assert late.rss_kib < early.rss_kib + GROWTH_KIB
        assert late.timers <= 64 + 4 * late.exchanges
        assert (over.ids, over.exchanges) == (1, 0)


def both(figures: Figures) -> tuple[Held, Held]:
    return figures.caller, figures.server
