# SPDX-License-Identifier: Apache-2.0
"""The loops of `rnic perf` on a provider that writes down what it is asked: what options do to requests."""

from __future__ import annotations

import ctypes
import gc
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import pytest

import rnic
from api.recorder import Recorder, build
from cli import perf_ends
from rnic import SendFlags, VerbsError
from rnic.cli.perf.end import Loops
from rnic.cli.perf.interpreted import PythonEnd
from rnic.cli.perf.line import Line
from rnic.cli.perf.native import PerfEnd
from rnic.cli.perf.plan import LOOPS, Plan

COUNT = 100
ROOM = 4096
REMOTE = (0x10000, 7)


@pytest.fixture(scope="module")
def library(root: Path, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(root, tmp_path_factory.mktemp("recorder"))


@dataclass
class Bench:
    """A client's loops, what they do, and the server's side of the line."""

    loops: Loops
    plan: Plan
    recorder: Recorder
    far: socket.socket

    def run(self, loop: int, size: int) -> list[str]:
        """What the provider was asked meanwhile."""
        self.recorder.take()
        self.loops.run(self.plan.run(loop, size, True) | {"warmup_ns": 0})
        return self.recorder.take()

    def stream(self) -> list[str]:
        return self.run(self.loops.STREAM, self.plan.sizes[0])


@contextmanager
def bench(library: ctypes.CDLL, words: str, loop: str) -> Iterator[Bench]:
    """For a command line; of the provider every send completes at once."""
    plan = perf_ends.plan(f"{words} --loop {loop}")
    plan = replace(plan, iterations=COUNT, sizes=(min(plan.sizes[0], ROOM),))
    recorder = Recorder(library)
    memory = bytearray(2 * ROOM)
    with (
        perf_ends.lines() as (far, near),
        recorder.context as ctx,
        ctx.alloc_pd() as pd,
        ctx.create_comp_channel() as channel,
        ctx.create_cq(1024, channel if plan.events else None) as cq,
        pd.reg_mr(memory, rnic.AccessFlags.LOCAL_WRITE) as mr,
        pd.create_qp(rnic.QPInitAttr(cq, cq)) as qp,
    ):
        sleeps = channel if plan.events else None
        what = ([qp], cq, sleeps, mr, Line(near, "server"), ROOM, REMOTE)
        loops: Loops
        if loop == "python":
            loops = PythonEnd(*what, depth=plan.depth, rx_depth=0, yield_polls=32, quiet=5, allowance=0)
        else:
            loops = PerfEnd(
                *what, depth=plan.depth, rx_depth=0, yield_polls=32, quiet=5, allowance=0, tsc=False
            )
        yield Bench(loops, plan, recorder, far)
        loops.settle()
    del recorder.context, ctx, pd, channel, cq, mr, qp, sleeps, what, loops
    gc.collect()


def flags_of(asked: list[str]) -> list[SendFlags]:
    """Of the measured sends."""
    found = [re.search(r"^post_send .*flags=(\d+)", line) for line in asked]
    return [SendFlags(int(match[1])) for match in found if match][-COUNT:]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("words", "every"),
    [
        ("send bw", 16),
        ("send bw -Q 4", 4),
        ("read bw -Q 7 -t 10", 7),
        ("write bw -t 1", 1),
        ("send rate", 32),
        ("write rate -l 7", 7),
        ("send rate -l 1 -Q 5", 5),
    ],
)
def test_one_of_so_many_is_signaled_and_the_last(
    library: ctypes.CDLL, words: str, every: int, loop: str
) -> None:
    with bench(library, words, loop) as on:
        flags = flags_of(on.stream())
    signaled = [number for number, one in enumerate(flags, 1) if one & SendFlags.SIGNALED]
    assert signaled == sorted({*range(every, COUNT + 1, every), COUNT})


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("words", "most"),
    [("send bw", 128), ("send bw -t 5 -Q 1", 5), ("read bw -t 8 -l 3", 6), ("write rate", 128)],
)
def test_so_many_are_on_their_way_at_most(library: ctypes.CDLL, words: str, most: int, loop: str) -> None:
    with bench(library, words, loop) as on:
        asked = on.stream()
    runs = groupby(line.split()[0] for line in asked)
    assert max(len(list(run)) for verb, run in runs if verb == "post_send") == most


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("words", "chain"), [("send bw", 1), ("send bw -l 4", 4), ("write rate", 32), ("write rate -l 1", 1)]
)
def test_so_many_are_posted_by_a_call(library: ctypes.CDLL, words: str, chain: int, loop: str) -> None:
    with bench(library, words, loop) as on:
        on.recorder.fail("post_send", 12, "that was one too many", at=chain)
        on.stream()
        on.recorder.fail("post_send", 12, "that was one too many", at=chain - 1)
        with pytest.raises(VerbsError, match="one too many"):
            on.stream()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("words", "inline"),
    [
        ("send bw -s 64", False),
        ("send bw -s 64 -I 64", True),
        ("send bw -s 65 -I 64", False),
        ("write rate -s 64", True),
        ("write rate -s 64 -I 63", False),
        ("read rate -s 8", False),
    ],
)
def test_short_messages_go_inline(library: ctypes.CDLL, words: str, inline: bool, loop: str) -> None:
    with bench(library, words, loop) as on:
        flags = flags_of(on.stream())
    assert {bool(one & SendFlags.INLINE) for one in flags} == {inline}


@pytest.mark.parametrize("loop", LOOPS)
def test_events_are_slept_on(library: ctypes.CDLL, loop: str) -> None:
    """The queue is armed before a sleep, and polled once more; the line's word ends it."""
    with bench(library, "send bw -e", loop) as on:
        on.far.send(b"\n")
        on.recorder.cq_event()
        asked = on.run(on.loops.SINK, 8)
    nap = ["poll_cq 32", "req_notify_cq 0", "poll_cq 32"]
    assert [line for line in asked if not line.startswith("ack_cq_events")] == [*nap, "get_cq_event", *nap]


@pytest.mark.parametrize("loop", LOOPS)
def test_without_events_it_polls(library: ctypes.CDLL, loop: str) -> None:
    with bench(library, "send bw", loop) as on:
        on.far.send(b"\n")
        assert set(on.run(on.loops.SINK, 8)) == {"poll_cq 32"}
