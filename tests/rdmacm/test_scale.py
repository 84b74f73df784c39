# SPDX-License-Identifier: Apache-2.0
"""Many connections between two processes: none is lost, none leaves anything behind."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack

import pytest

from forked import FORKS
from rdmacm.ends import IWARP, expect, listening, resolve
from rdmacm.load import HOST, Figures, Held, Shared, alive, cycles
from rnic.rdmacm import EventChannel, EventType, Timing, create_id
from rnic.rdmacm.registry import registry

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


@pytest.mark.one_in(2)
@pytest.mark.parametrize("window", [1, 64])
def test_connections_that_come_and_go_leave_nothing(window: int) -> None:
    with ProcessPoolExecutor(1, FORKS) as fresh:  # whose memory is not in pieces from other tests
        parts = [CYCLES // 5, CYCLES - CYCLES // 5]
        first, last, end = fresh.submit(cycles, parts, window).result()
    for early, late, over in zip(both(first), both(last), both(end), strict=True):
        if IWARP:  # where each connection has one, and some wait for the program to end them
            assert late.descriptors < early.descriptors + late.ids
            assert over.descriptors <= early.descriptors
        else:
            assert late.descriptors == early.descriptors
        assert late.threads == early.threads
        assert late.rss_kib < early.rss_kib + GROWTH_KIB
        assert late.timers <= 64 + 4 * late.exchanges
        assert (over.ids, over.exchanges) == (1, 0)


def both(figures: Figures) -> tuple[Held, Held]:
    return figures.caller, figures.server


def test_requests_wait_while_the_interpreter_is_busy() -> None:
    count = 700
    with ExitStack() as stack:
        ours, theirs = stack.enter_context(EventChannel()), stack.enter_context(EventChannel())
        listener = stack.enter_context(listening(theirs))
        # A REQ is sent again after five minutes: a slow machine has answered it by then.
        ids = [stack.enter_context(create_id(ours, timing=Timing(response_timeout=26))) for _ in range(count)]
        for one in ids:
            resolve(one, (HOST, listener.get_src_port()))
        shared = Shared(ids[0], 1)
        for one in ids:
            shared.equip(one, 0)
        with registry.lock:  # the agent waits for it, as for a program that holds the interpreter
            for one in ids:
                one.connect()
        for _ in ids:
            stack.enter_context(expect(theirs, EventType.CONNECT_REQUEST).id)
        assert ids[0].statistics().resent == 0
        stack.pop_all().close()
        shared.close()
