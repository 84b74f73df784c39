# SPDX-License-Identifier: Apache-2.0
"""Samples of time in an HDR histogram of three significant digits: the buckets of samples.h, in ns."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from time import perf_counter_ns

from rnic.records import MutableRecord, field

SUB_BITS = 10
TOP_BIT = 36
STAMPS = 1000
BUCKETS = (TOP_BIT - SUB_BITS + 1) << SUB_BITS


def bucket_of(ns: int) -> int:
    """The bucket of a value; what is longer than 2**36 ns counts as that."""
    ns = min(ns, (1 << TOP_BIT) - 1)
    shift = max(ns, 1).bit_length() - 1 - SUB_BITS
    return ns if shift <= 0 else (shift << SUB_BITS) + (ns >> shift)


def value_of(bucket: int) -> float:
    """The middle of a bucket, ns."""
    if bucket < 2 << SUB_BITS:
        return bucket
    shift = (bucket >> SUB_BITS) - 1
    low = ((bucket & ((1 << SUB_BITS) - 1)) + (1 << SUB_BITS)) << shift
    return low + ((1 << shift) - 1) / 2


class Samples(MutableRecord):
    """Times in ns: all of them in buckets, and exact sums."""

    count: int = 0
    min: int = 0
    max: int = 0
    sum: float = 0.0
    squares: float = 0.0
    bucket: array[int] | list[int] = field(default_factory=lambda: array("Q", bytes(8 * BUCKETS)))

    def add(self, ns: int) -> None:
        """One more."""
        self.bucket[bucket_of(ns)] += 1
        self.min = ns if not self.count else min(self.min, ns)
        self.max = max(self.max, ns)
        self.count += 1
        self.sum += ns
        self.squares += ns * ns

    def percentiles(self, percents: Iterable[float]) -> list[float]:
        """For each the time in ns that so many of a hundred samples do not exceed, to 0.1 %."""
        seen = list(accumulate(self.bucket))
        return [self._reached(seen, percent) for percent in percents]

    def _reached(self, seen: list[int], percent: float) -> float:
        if percent in (0, 100):
            return self.max if percent else self.min
        wanted = max(1, math.ceil(round(self.count * percent / 100, 6)))
        return min(max(value_of(bisect_left(seen, wanted)), self.min), self.max)

    def steps(self) -> list[float]:
        """Percents, each half as far from 100 as the one before, while there are samples beyond; then 100."""
        return [0.0, *(100 - 100 / 2**step for step in range(1, self.count.bit_length())), 100.0]

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    @property
    def stdev(self) -> float:
        return math.sqrt(max(0.0, self.squares / self.count - self.mean**2)) if self.count else 0.0


def cost_of_timestamp() -> float:
    """In ns."""
    start = perf_counter_ns()
    for _ in range(STAMPS):
        end = perf_counter_ns()
    return (end - start) / STAMPS
