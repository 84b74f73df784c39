# SPDX-License-Identifier: Apache-2.0
"""What is measured: the client's plan counts, and a server that was given another one says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import rnic
from rnic.cli.endpoint import MTUS
from rnic.cli.perf.native import PerfEnd
from rnic.records import Record, fields, values

Op = rnic.WROpcode
ALL_SIZES = tuple(1 << power for power in range(1, 24))
MAX_SIZE = 1 << 30
MAX_DEPTH = 16384
MAX_QPS = 1024
MAX_GROUP = PerfEnd.GROUP_MAX  # operations of which the last is signaled, as the compiled loops have it
MAX_INLINE = 4096
MAX_DURATION = 86400  # seconds
ATOMIC_SIZE = 8
WARM_UP = 0.05  # seconds before measuring, or a tenth of --duration: the scheduler finds each end a processor
LONGEST_WARM_UP = 1.0


class Test(Record):
    """An operation, and what the peer has to do for it."""

    title: str
    opcode: rnic.WROpcode
    receives: bool
    """It takes a receive of the peer."""
    bounces: bool
    """Latency is half of a round trip: the peer answers with the same operation."""

    @property
    def inlines(self) -> bool:
        """Its request carries the message, and so can carry it INLINE."""
        return self.opcode in (Op.SEND, Op.RDMA_WRITE, Op.RDMA_WRITE_WITH_IMM)


TESTS = {
    "send": Test("SEND", Op.SEND, receives=True, bounces=True),
    "write": Test("RDMA WRITE", Op.RDMA_WRITE, receives=False, bounces=True),
    "write-imm": Test("RDMA WRITE with immediate", Op.RDMA_WRITE_WITH_IMM, receives=True, bounces=True),
    "read": Test("RDMA READ", Op.RDMA_READ, receives=False, bounces=False),
    "atomic-fadd": Test("FETCH_AND_ADD", Op.ATOMIC_FETCH_AND_ADD, receives=False, bounces=False),
    "atomic-cas": Test("CMP_AND_SWP", Op.ATOMIC_CMP_AND_SWP, receives=False, bounces=False),
}
METRICS = {"bw": "bandwidth", "lat": "latency", "rate": "message rate"}
LOOPS = ("native", "python")
ATOMICS = ("atomic-fadd", "atomic-cas")
DEFAULT_SIZES = {"bw": 65536, "lat": 2, "rate": 8}
DEFAULT_ITERATIONS = {"bw": 5000, "lat": 10000, "rate": 100000}
DEFAULT_BYTES = 4 << 30  # no size moves more by default, but for
LEAST_ITERATIONS = 100
DEFAULT_INLINE = {"bw": 0, "lat": 64, "rate": 64}
DEFAULT_DEPTH = 128
DEFAULT_POST_LIST = {"bw": 1, "lat": 1, "rate": 32}
DEFAULT_CQ_MOD = 16


class Plan(Record):
    """A command line, complete."""

    test: str
    metric: str
    sizes: tuple[int, ...]
    """Bytes."""
    iterations: int
    """Of each queue pair; 0: by time, or as many as the size asks for."""
    duration: float
    """Seconds; 0: by iterations."""
    qps: int
    depth: int
    post_list: int
    """Operations that are posted by one call, of which the last is signaled."""
    cq_mod: int
    """Where they are posted one by one: one of so many is signaled."""
    mtu: int
    """Bytes; 0: what both ports have."""
    events: bool
    bidirectional: bool
    to_completion: bool
    """A latency is never a round trip."""
    cm: bool
    inline: int
    """Bytes that are sent INLINE at most."""
    loop: str

    def to_json(self) -> dict[str, Any]:
        """For the other end."""
        return values(self)

    @classmethod
    def of_json(cls, record: dict[str, Any]) -> Plan:
        """What the other end said; one of session.NONSENSE when that is no plan."""
        types: dict[str, Callable[[Any], Any]] = {
            "sizes": lambda sizes: tuple(map(int, sizes)),
            "duration": float,
            "test": str,
            "metric": str,
            "loop": str,
        }
        given = {one.name: types.get(one.name, int)(record[one.name]) for one in fields(cls)}
        for name in ("events", "bidirectional", "to_completion", "cm"):
            given[name] = bool(given[name])
        plan = cls(**given)
        if not plan.is_sane():
            raise ValueError("it asks for something that no client asks for")
        return plan

    def is_sane(self) -> bool:
        """Within what the command line lets through."""
        return (
            self.test in TESTS
            and self.metric in METRICS
            and self.loop in LOOPS
            and 1 <= len(self.sizes) <= len(ALL_SIZES)
            and all(1 <= size <= MAX_SIZE for size in self.sizes)
            and 1 <= self.qps <= MAX_QPS
            and 1 <= self.group <= min(self.depth, MAX_GROUP)
            and self.depth <= MAX_DEPTH
            and math.isfinite(self.duration)
            and self.duration <= MAX_DURATION
            and min(self.iterations, self.duration) == 0
            and self.mtu in (0, *MTUS)
            and 0 <= self.inline <= MAX_INLINE
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
        return self.is_latency and self.what.bounces and not self.to_completion

    def receives(self, client: bool) -> bool:
        """Whether that end takes messages."""
        return self.what.receives and (not client or self.halves or self.bidirectional)

    @property
    def group(self) -> int:
        """Operations of which the last is signaled."""
        return self.post_list if self.post_list > 1 else self.cq_mod

    def count(self, size: int) -> int:
        """Operations of each queue pair that are measured; 0: by time."""
        if self.duration:
            return 0
        few = max(LEAST_ITERATIONS, DEFAULT_BYTES // size)
        return self.iterations or min(DEFAULT_ITERATIONS[self.metric], few)

    def is_inline(self, size: int) -> bool:
        return self.what.inlines and size <= self.inline

    def loop_name(self, client: bool) -> str | None:
        """The loop that an end runs; None: it sleeps while the other one works on its memory."""
        if self.halves:
            return "PINGPONG" if self.what.receives else "MEMORY"
        if client or self.bidirectional:
            return "LATENCY" if self.is_latency else "STREAM"
        return "SINK" if self.what.receives else None

    def run(self, loop: int, size: int, client: bool) -> dict[str, int]:
        """The fields of struct perf_plan for a message size."""
        count = self.count(size)
        return {
            "loop": loop,
            "opcode": int(self.what.opcode),
            "size": size,
            "inlined": self.is_inline(size),
            "serving": not client,
            "both_ways": self.bidirectional,
            "group": self.group,
            "chained": self.post_list > 1,
            "warmup_ns": int(min(max(WARM_UP, self.duration / 10), LONGEST_WARM_UP) * 1e9),
            "iterations": count,
            "ns": int(self.duration * 1e9),
        }
