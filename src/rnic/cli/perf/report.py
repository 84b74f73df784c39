# SPDX-License-Identifier: Apache-2.0
"""What was measured: a record of each size (docs/perf.md), and the rows that perftest would print of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rnic.records
from rnic import __version__
from rnic.cli.params import printable
from rnic.cli.perf.plan import METRICS, TESTS, Plan
from rnic.cli.perf.samples import Samples

SCHEMA = 1  # of a record: larger when what a field means changes
MIB = 1 << 20  # perftest's MB
PERCENTILES = (50, 75, 90, 95, 99, 99.9, 99.99)
SHARED_MEMORY, UDP, TCP = "shared memory", "UDP", "TCP"
Record = dict[str, Any]

# ---------------------------------------------------------------------- records


NO_LATENCY: Record = dict.fromkeys(("latency_us", "latency_distribution", "latency_is", "timestamp"))


def latencies(plan: Plan, size: int, samples: Samples, ns: int) -> Record:
    """Of single operations: with it, what rate and bandwidth come to that way."""
    operations, unit = (2 * samples.count, 2000) if plan.halves else (samples.count, 1000)
    what = "half of a round trip" if plan.halves else "an operation to its completion"
    return rates(size, operations, ns, 0) | {
        "peak_bandwidth_bytes_per_s": None,
        "latency_us": in_us(samples, unit),
        "latency_distribution": distribution(samples, unit),
        "latency_is": f"{what}, from post to post",
    }


def in_us(samples: Samples, unit: int) -> dict[str, float]:
    """Percentiles, range, mean and standard deviation, in units of so many ns."""
    names = (f"p{percent:g}" for percent in PERCENTILES)
    values = dict(zip(names, samples.percentiles(PERCENTILES), strict=True))
    values |= {"min": samples.min, "max": samples.max, "mean": samples.mean, "stdev": samples.stdev}
    return {name: round(value / unit, 4) for name, value in values.items()}


def distribution(samples: Samples, unit: int) -> list[list[float]]:
    """[percent, latency], as an HDR histogram is drawn."""
    steps = samples.steps()
    return [
        [round(percent, 9), round(value / unit, 4)]
        for percent, value in zip(steps, samples.percentiles(steps), strict=True)
    ]


def rates(size: int, operations: int, ns: int, peak: float) -> Record:
    """Of a stream; a run that was too short for a peak has its average as peak."""
    rate = operations * 1e9 / max(ns, 1)
    return {
        "messages_per_s": rate,
        "bandwidth_bytes_per_s": rate * size,
        "peak_bandwidth_bytes_per_s": max(peak, rate) * size,
    }


def both(mine: Record, theirs: Record) -> Record:
    """The sum of what both ends streamed, as perftest prints it."""
    return {name: mine[name] + value for name, value in theirs.items()}


def setting(plan: Plan, size: int) -> Record:
    """What of the plan is the same wherever it is measured."""
    return {
        "schema": SCHEMA,
        "test": plan.test,
        "metric": plan.metric,
        "bytes": size,
        "loop": plan.loop,
        "queue_pairs": plan.qps,
        "tx_depth": 1 if plan.is_latency else plan.depth,
        "post_list": plan.post_list,
        "signal_every": 1 if plan.is_latency and not plan.halves else plan.group,
        "inline": plan.is_inline(size),
        "events": plan.events,
        "bidirectional": plan.bidirectional,
        "connected_by": "RDMA-CM" if plan.cm else "TCP",
    }


def transport(counted: dict[str, int], *, is_iwarp: bool = False) -> str:
    """How the packets went, told by what the device counted meanwhile."""
    if is_iwarp:
        return TCP
    near = counted.get("local_sent", 0) + counted.get("local_direct", 0)
    return SHARED_MEMORY if near > counted.get("tx_syscalls", 0) else UDP


def machine() -> Record:
    """What this end runs on."""
    return {
        "rnic": __version__,
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()}",
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
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


# ---------------------------------------------------------------------- for people


HANGING = 13  # columns of what stands before the texts of a heading


class Column(rnic.records.Record):
    """A column of perftest's tables, or one more behind them."""

    title: str
    format: str
    value: Callable[[Record], float]

    def head(self) -> str:
        return f"{self.title:<{self._width}}"

    def cell(self, record: Record) -> str:
        return f"{self.value(record):<{self._width}{self.format}}"

    @property
    def _width(self) -> int:
        return max(len(self.title), 8)


def of_latency(title: str, name: str) -> Column:
    """Of a latency's figure."""
    return Column(title, ".2f", lambda record: record["latency_us"][name])


def of_rate(title: str, name: str, unit: float, form: str = ".2f") -> Column:
    """Of a field, in larger units."""
    return Column(title, form, lambda record: record[name] / unit)


def of_cpu(side: str) -> Column:
    """Of an end's use of processors."""
    return Column(f"CPU {side}[%]", ".0f", lambda record: record["cpu"][side]["percent"])


BEGIN = (
    Column("#bytes", "d", lambda record: record["bytes"]),
    Column("#iterations", "d", lambda record: record["iterations"]),
)
END = (of_cpu("client"), of_cpu("server"))
STREAM_COLUMNS = (
    *BEGIN,
    of_rate("BW peak[MB/sec]", "peak_bandwidth_bytes_per_s", MIB),
    of_rate("BW average[MB/sec]", "bandwidth_bytes_per_s", MIB),
    of_rate("MsgRate[Mpps]", "messages_per_s", 1e6, ".6f"),
    *END,
)
LATENCY_COLUMNS = (
    *BEGIN,
    of_latency("t_min[usec]", "min"),
    of_latency("t_max[usec]", "max"),
    of_latency("t_typical[usec]", "p50"),
    of_latency("t_avg[usec]", "mean"),
    of_latency("t_stdev[usec]", "stdev"),
    of_latency("99%[usec]", "p99"),
    of_latency("99.9%[usec]", "p99.9"),
    of_latency("99.99%[usec]", "p99.99"),
    *END,
)


def columns(record: Record) -> tuple[Column, ...]:
    """Those of its table."""
    return LATENCY_COLUMNS if record["metric"] == "lat" else STREAM_COLUMNS


def head(record: Record) -> str:
    """The line above the rows."""
    return " " + " ".join(column.head() for column in columns(record)).rstrip()


def row(record: Record) -> str:
    """A message size's line."""
    return " " + " ".join(column.cell(record) for column in columns(record)).rstrip()


def pairs(record: Record) -> list[tuple[str, str]]:
    """The same as titles and values, for a terminal that has no room for a line."""
    return [(f" {column.title}", column.cell(record).rstrip()) for column in columns(record)]


def title(record: Record) -> str:
    """What was measured, in a few words."""
    return f"{TESTS[record['test']].title} {METRICS[record['metric']]}"


def mtu(record: Record) -> str:
    """Of packets; iWARP has none."""
    return "" if record["mtu"] is None else f"; MTU {record['mtu']} bytes"


def heading(record: Record) -> str:
    """What was measured, where and how: the lines above a table."""
    client, server = record["client"], record["server"]
    devices = dict.fromkeys((client["device"], server["device"]))
    return "\n".join(
        f" {name:<{HANGING - 1}}{printable(text)}"  # much of it is the other end's
        for name, text in (
            ("measured", f"{title(record)}: {meaning(record)}"),
            ("transport", f"{record['transport']}; device {', '.join(devices)}{mtu(record)}"),
            (
                "queue pairs",
                f"{record['queue_pairs']} RC, connected by {record['connected_by']}; {posting(record)}",
            ),
            ("loop", f"{record['loop']}, {'sleeping on events' if record['events'] else 'polling'}"),
            ("client", described(client)),
            ("server", "as the client" if described(server) == described(client) else described(server)),
        )
    )


def meaning(record: Record) -> str:
    """What the figures are."""
    if record["latency_us"] is None:
        ways = "both ways added; " if record["bidirectional"] else ""
        return f"{ways}MB are 2^20 bytes, the peak is the best 10 ms"
    stamp = record["timestamp"]
    return f"{record['latency_is']}; one timestamp each ({stamp['source']}, {stamp['ns']:.0f} ns)"


def posting(record: Record) -> str:
    """How operations are posted."""
    if record["metric"] == "lat":
        return "one operation at a time"
    depth = f"at most {record['tx_depth']} operations on their way"
    if record["post_list"] > 1:
        return f"{depth}, in chains of {record['post_list']}"
    return f"{depth}, one of {record['signal_every']} signaled"


def described(machine: Record) -> str:
    """An end's programs and processor."""
    return (
        f"rnic {machine['rnic']}, Python {machine['python']}, {machine['kernel']}, "
        f"{machine['cpu']} ({machine['cpus']} in use)"
    )
