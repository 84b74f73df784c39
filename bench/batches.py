# SPDX-License-Identifier: Apache-2.0
"""How long an operation takes from Python: rnic and mpi4py are timed by the same lines.

An operation is too short to be timed alone; the figure is the median over batches.  each() does so all the
same, where the longest ones count too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

BATCH_SECONDS = 0.002
FIRST = 200


def measure(run: Callable[[int], None], tell: Callable[[int], None], seconds: float) -> dict[str, float]:
    """Batches of run(n) for so long; before each, tell(n) lets the other end know, and tell(0) at the end."""

    def batch(count: int) -> float:
        tell(count)
        began = time.perf_counter()
        run(count)
        return time.perf_counter() - began

    batch(FIRST)
    count = max(1, int(FIRST * BATCH_SECONDS / batch(FIRST)))
    until = time.perf_counter() + seconds
    took: list[float] = []
    while time.perf_counter() < until or len(took) < 3:
        took.append(batch(count))
    tell(0)
    return {
        "operations": count * len(took),
        "median_us": median(took) / count * 1e6,
        "mean_us": sum(took) / count / len(took) * 1e6,
    }


def switches(pids: Iterable[int]) -> int:
    """Context switches of the processes' threads so far, voluntary and involuntary."""
    return sum(
        int(line.split()[1])
        for pid in pids
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if "ctxt_switches" in line
    )


def each(run: Callable[[Iterable[object]], None], seconds: float, ends: tuple[int, ...]) -> dict[str, float]:
    """run() does an operation for each turn that it is given; `ends`: the processes whose switches count."""
    clock, times = time.perf_counter, [0.0]

    def turns(seconds: float) -> Iterator[None]:
        times[:] = [clock()]
        while times[-1] < times[0] + seconds:
            yield
            times.append(clock())

    run(turns(seconds / 8))
    before = switches(ends)
    run(turns(seconds))
    switched = switches(ends) - before
    took = sorted(end - begin for begin, end in pairwise(times))
    return {
        "operations": len(took),
        "median_us": median(took) * 1e6,
        "p99_us": took[int(len(took) * 0.99)] * 1e6,
        "mean_us": (times[-1] - times[0]) / len(took) * 1e6,
        "switches": switched / len(took),
    }


def show(found: dict[str, float], size: int) -> None:
    """The line that the caller's process prints."""
    print(json.dumps(found | {"gbytes_per_s": size / found["median_us"] / 1e3}), flush=True)
