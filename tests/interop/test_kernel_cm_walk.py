# SPDX-License-Identifier: Apache-2.0
"""Every call of RDMA-CM in every state, and random walks of calls, by ends of the kernel and of rnic.

tests/rdmacm/kernel_calls.json is what two ends of the kernel's have answered; tests/rdmacm/differences.py
says where rnic answers otherwise, and why. A failure of a walk names its seed:
`SEED=... WALKS=1 make interop ARGS='-k cm_walk'` runs that again. RNIC_RECORD=1 makes a new record.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from cm_ends import PORT, KernelSeat
from link import Link, Wire
from sampling import soak

from rdmacm import kernel_calls
from rdmacm.seat import Seat
from rdmacm.walk import Conversation, Talk, compare, route, tries

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("wire")]
CALLS, WALKS = 12, int(os.environ.get("WALKS") or 3)
FIRST = int(os.environ.get("SEED") or 1)
RECORDS = bool(os.environ.get("RNIC_RECORD"))
PAIRS = [("kernel", "rnic"), ("rnic", "kernel")]

MakeSeat = Callable[[str], Any]


@pytest.fixture
def make_seat(link: Link) -> MakeSeat:
    """make_seat("kernel" or "rnic")."""
    import rnic.enums
    import rnic.rdmacm

    if not hasattr(link, "cm"):
        script = Path(__file__).with_name("guest_cm.py").resolve()
        link.cm = link.guest.spawn(f"python3 -u '{script}' {PORT}")
        link.cm.expect("ready", timeout=120)

    def make(kind: str) -> Any:
        if kind == "kernel" or link.reference:
            return KernelSeat(link.guest.ip)
        return Seat(rnic.rdmacm, rnic.enums, link.host_ip["ipv4"])

    return make


def hold(make_seat: MakeSeat, pair: tuple[str, str], state: str, words: list[str]) -> Talk:
    with ExitStack() as stack:
        active, passive = (stack.enter_context(closing(make_seat(kind))) for kind in pair)
        return Conversation(active, passive).hold(state, words)


def chosen(config: pytest.Config, seed: int) -> list[tuple[str, str]]:
    every = list(tries())
    return every if soak(config) or RECORDS else random.Random(seed).sample(every, CALLS)


def test_the_kernel_answers_as_recorded(
    request: pytest.FixtureRequest, link: Link, make_seat: MakeSeat
) -> None:
    record: kernel_calls.Record = {}
    for state, word in chosen(request.config, link.mtu):
        record.setdefault(state, {})[word] = hold(make_seat, ("kernel", "kernel"), state, [word])
    if RECORDS:
        kernel_calls.save(record)
    known = kernel_calls.load()
    for state, talks in record.items():
        assert talks == {word: known[state][word] for word in talks}


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_call_is_answered_as_the_kernel_answers_it(
    request: pytest.FixtureRequest, link: Link, make_seat: MakeSeat, pair: tuple[str, str]
) -> None:
    known = kernel_calls.load()
    for state, word in chosen(request.config, link.mtu + len(pair[0])):
        talk = hold(make_seat, pair, state, [word])
        assert not list(compare(state, [word], known[state][word], talk))


def test_random_walks_go_where_the_kernels_go(
    request: pytest.FixtureRequest, link: Link, make_seat: MakeSeat
) -> None:
    walks = WALKS if not soak(request.config) else 100 * WALKS
    for seed in range(FIRST + link.mtu, FIRST + link.mtu + walks):
        state, words = route(seed)
        kernel = hold(make_seat, ("kernel", "kernel"), state, words)
        for pair in [*PAIRS, ("rnic", "rnic")]:
            said = list(compare(state, words, kernel, hold(make_seat, pair, state, words)))
            assert not said, f"SEED={seed - link.mtu} {pair}\n{said[0]}"


def test_tshark_reads_what_rnic_sent(wire: Wire) -> None:
    wire.check()
