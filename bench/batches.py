# SPDX-License-Identifier: Apache-2.0
"""How long an operation takes from Python: rnic and mpi4py are timed by the same lines.

An operation is too short to be timed alone; the figure is the median over batches.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
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


def show(found: dict[str, float], size: int) -> None:
    """The line that the caller's process prints."""
    print(json.dumps(found | {"gbytes_per_s": size / found["median_us"] / 1e3}), flush=True)
