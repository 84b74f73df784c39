# SPDX-License-Identifier: Apache-2.0
"""Samples of time in an HDR histogram of three significant digits: the buckets of perf.h, in nanoseconds."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field

SUB_BITS = 10
TOP_BIT = 36
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


@dataclass(slots=True)
class Samples:
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

    def percentile(self, percent: float) -> float:
        """The time in ns that so many of a hundred samples do not exceed, to 0.1 %."""
        wanted = max(1, math.ceil(self.count * percent / 100))
        seen = 0
        for bucket, count in enumerate(self.bucket):
            seen += count
            if seen >= wanted:
                return min(max(value_of(bucket), self.min), self.max)
        return self.max

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    @property
    def stdev(self) -> float:
        return math.sqrt(max(0.0, self.squares / self.count - self.mean**2)) if self.count else 0.0
