# SPDX-License-Identifier: Apache-2.0
"""What is measured: the client's plan counts, and a server that was given another one says so."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import rnic

Op = rnic.WROpcode
ALL_SIZES = tuple(1 << power for power in range(1, 24))
MAX_SIZE = 1 << 30
ATOMIC_SIZE = 8
WARM_UP = 10  # before measuring, a tenth of what is measured


@dataclass(frozen=True, slots=True)
class Test:
    """An operation, and what the peer has to do for it."""

    opcode: rnic.WROpcode
    receives: bool
    """It takes a receive of the peer."""
    bounces: bool
    """Latency is half of a round trip: the peer answers with the same operation."""


TESTS = {
    "send": Test(Op.SEND, receives=True, bounces=True),
    "write": Test(Op.RDMA_WRITE, receives=False, bounces=True),
    "write-imm": Test(Op.RDMA_WRITE_WITH_IMM, receives=True, bounces=True),
    "read": Test(Op.RDMA_READ, receives=False, bounces=False),
    "atomic-fadd": Test(Op.ATOMIC_FETCH_AND_ADD, receives=False, bounces=False),
    "atomic-cas": Test(Op.ATOMIC_CMP_AND_SWP, receives=False, bounces=False),
}
METRICS = ("bw", "lat", "rate")
ATOMICS = ("atomic-fadd", "atomic-cas")
DEFAULT_SIZES = {"bw": 65536, "lat": 2, "rate": 8}
DEFAULT_ITERATIONS = {"bw": 5000, "lat": 10000, "rate": 100000}
DEFAULT_INLINE = {"bw": 0, "lat": 64, "rate": 64}
DEFAULT_DEPTH = 128


@dataclass(frozen=True, slots=True)
class Plan:
    """A command line, complete."""

    test: str
    metric: str
    sizes: tuple[int, ...]
    iterations: int
    """Of each queue pair; 0: by time."""
    duration: float
    """Seconds; 0: by iterations."""
    qps: int
    depth: int
    mtu: int
    """Bytes; 0: what both ports have."""
    events: bool
    bidirectional: bool
    cm: bool
    inline: int
    loop: str

    def to_json(self) -> dict[str, Any]:
        """For the other end."""
        return asdict(self)

    @classmethod
    def of_json(cls, record: dict[str, Any]) -> Plan:
        """What the other end said; KeyError, TypeError or ValueError when that is no plan."""
        types = {"sizes": tuple, "duration": float, "test": str, "metric": str, "loop": str}
        values = {one.name: types.get(one.name, int)(record[one.name]) for one in fields(cls)}
        for name in ("events", "bidirectional", "cm"):
            values[name] = bool(values[name])
        plan = cls(**values)
        if not plan.is_sane():
            raise ValueError("it asks for what no client asks for")
        return plan

    def is_sane(self) -> bool:
        """Within what the command line lets through."""
        return (
            self.test in TESTS
            and self.metric in METRICS
            and self.loop in ("native", "python")
            and bool(self.sizes)
            and all(1 <= size <= MAX_SIZE for size in self.sizes)
            and 1 <= self.qps <= 1024
            and 1 <= self.depth <= 16384
            and (self.iterations > 0) != (self.duration > 0)
        )

    @property
    def what(self) -> Test:
        return TESTS[self.test]

    @property
    def is_latency(self) -> bool:
        return self.metric == "lat"

    @property
    def halves(self) -> bool:
        """A sample is a round trip, of which half is shown."""
        return self.is_latency and self.what.bounces

    def receives(self, client: bool) -> bool:
        """Whether that end takes messages."""
        return self.what.receives and (not client or self.is_latency or self.bidirectional)

    @property
    def group(self) -> int:
        """Operations of which the last is signaled; for rate they are also posted at once."""
        return max(1, min(32, self.depth // 2) if self.metric == "rate" else min(16, self.depth // 4))

    def loop_name(self, client: bool) -> str | None:
        """The loop that an end runs; None: it sleeps while the other one works on its memory."""
        if self.is_latency:
            if not self.what.bounces:
                return "LATENCY" if client else None
            return "PINGPONG" if self.what.receives else "MEMORY"
        if client or self.bidirectional:
            return "STREAM"
        return "SINK" if self.what.receives else None

    def run(self, loop: int, size: int, client: bool) -> dict[str, int]:
        """The fields of struct perf_plan for a message size."""
        inlined = size <= self.inline and self.what.opcode in (Op.SEND, Op.RDMA_WRITE, Op.RDMA_WRITE_WITH_IMM)
        return {
            "loop": loop,
            "opcode": int(self.what.opcode),
            "size": size,
            "inlined": inlined,
            "serving": not client,
            "both_ways": self.bidirectional,
            "group": self.group,
            "chained": self.metric == "rate",
            "warmup": max(1, self.iterations // WARM_UP) if self.iterations else 0,
            "warmup_ns": int(self.duration * 1e9 / WARM_UP),
            "iterations": self.iterations,
            "ns": int(self.duration * 1e9),
        }
