# SPDX-License-Identifier: Apache-2.0
"""What was measured: rows as perftest prints them, and records for programs."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from rnic.cli.perf.plan import Plan
from rnic.cli.perf.samples import Samples

MIB = 1 << 20  # perftest's MB
PERCENTILES = (50, 90, 99, 99.9, 99.99)
Record = dict[str, Any]

STREAM_HEAD = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
LATENCY_HEAD = (
    " #bytes     #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
    "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
)


def head(plan: Plan) -> str:
    """The line above the rows."""
    return LATENCY_HEAD if plan.is_latency else STREAM_HEAD


def row(record: Record) -> str:
    """A message size's line."""
    size, iterations = record["bytes"], record["iterations"]
    if "latency_us" in record:
        us = record["latency_us"]
        return (
            f" {size:<10d} {iterations:<14d} {us['min']:<14.2f} {us['max']:<12.2f} {us['p50']:<18.2f} "
            f"{us['mean']:<14.2f} {us['stdev']:<15.2f} {us['p99']:<22.2f} {us['p99.9']:<.2f}"
        )
    return (
        f" {size:<10d} {iterations:<14d} {record['peak_bandwidth_bytes_per_s'] / MIB:<18.2f} "
        f"{record['bandwidth_bytes_per_s'] / MIB:<20.2f} {record['messages_per_s'] / 1e6:<.6f}"
    )


def latency(plan: Plan, samples: Samples) -> dict[str, float]:
    """Microseconds; of a round trip the half."""
    unit = 2000.0 if plan.halves else 1000.0
    values = {f"p{percent:g}": samples.percentile(percent) for percent in PERCENTILES}
    values |= {"min": samples.min, "max": samples.max, "mean": samples.mean, "stdev": samples.stdev}
    return {name: round(value / unit, 4) for name, value in values.items()}


def rates(size: int, operations: int, ns: int, peak: float) -> Record:
    """Of a stream; a run that was too short for a peak has its average as peak."""
    rate = operations * 1e9 / max(ns, 1)
    return {
        "bandwidth_bytes_per_s": rate * size,
        "messages_per_s": rate,
        "peak_bandwidth_bytes_per_s": max(peak, rate) * size,
    }


def meaning(plan: Plan) -> str:
    """What a latency is the time of; of a stream, what a peak is."""
    if plan.halves:
        return "half of a round trip, from the post to the answer's arrival"
    if plan.is_latency:
        return "from the post to the completion"
    return "MB are 2^20 bytes; the peak is the best 10 ms"


def way(before: dict[str, int], after: dict[str, int]) -> str:
    """How the packets went, told by the device's counters."""

    def grew(name: str) -> int:
        return after.get(name, 0) - before.get(name, 0)

    near = grew("local_sent") + grew("local_direct")
    return "shared memory" if near > grew("tx_syscalls") else "wire"


def versions() -> Record:
    """What this end runs on."""
    try:
        rnic = metadata.version("rnic")
    except metadata.PackageNotFoundError:
        rnic = "unknown"
    return {
        "rnic": rnic,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu": cpu_model(),
    }


def cpu_model() -> str:
    """As the kernel names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
