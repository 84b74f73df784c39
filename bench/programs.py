# SPDX-License-Identifier: Apache-2.0
"""Existing programs: perftest under `rnic run`, beside `rnic perf` and UCX."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import outputs
import peers
from procs import Values, finish, free_port, process
from tables import (
    GBYTES,
    KIB,
    MEDIAN,
    MIB,
    SIZE_NAMES,
    Measurements,
    Row,
    Setting,
    Table,
    Target,
    Unit,
    at_least,
    at_most,
)

RNIC = str(Path(sys.executable).with_name("rnic"))
ON, OFF = "on", "off"  # RNIC_LOCAL
# (operation, metric, bytes): UCX's test
TESTS = {
    ("write", "lat", 8): "ucp_put_lat",
    ("send", "lat", 8): "tag_lat",
    ("read", "lat", 8): "ucp_get",
    ("write", "bw", 64 * KIB): "ucp_put_bw",
    ("write", "bw", MIB): "ucp_put_bw",
}
LATENCY, RATE = 1.2, 1.1  # how much more than `rnic perf` a program may take, on the same host and by UDP


def perftest(op: str, metric: str, size: int, local: str, seconds: float) -> Values:
    """Both ends under `rnic run`."""
    program = peers.need(f"ib_{op}_{metric}")

    def run(count: int) -> Values:
        port = free_port()
        both = [RNIC, "run", program, "-d", "roce_lo", "-p", str(port), "-s", str(size), "-n", str(count)]
        found = outputs.perftest(peers.serve(both, [*both, "127.0.0.1"], port, {"RNIC_LOCAL": local}))
        if metric == "lat":
            return found | {"took_s": count * found["mean_us"] * 1e-6 * (1 if op == "read" else 2)}
        return found | {"took_s": count * size / found["gbytes_per_s"] * 1e-9}

    return peers.counted(("perftest", op, metric, size, local), seconds, run)


def rnic_perf(op: str, metric: str, size: int, local: str, seconds: float) -> Values:
    shape = ["perf", op, metric, "--local", "--json", "-s", str(size), "-D", str(seconds)]
    with process([RNIC, *shape], env={"RNIC_LOCAL": local}) as both:
        said = json.loads(finish(both))
    found = {"gbytes_per_s": said["bandwidth_bytes_per_s"] / 1e9}
    if metric == "lat":
        found |= {"median_us": said["latency_us"]["p50"], "mean_us": said["latency_us"]["mean"]}
    return found


def name_of(op: str, metric: str, size: int, local: str) -> str:
    return f"{'local' if local == ON else 'udp'} {op} {metric} {size}"


def measurements(s: Setting) -> Measurements:
    found: Measurements = {}
    for (op, metric, size), ucx in TESTS.items():
        for local in (ON, OFF):
            name = name_of(op, metric, size, local)
            found[f"programs perftest {name}"] = partial(perftest, op, metric, size, local, s.seconds)
            found[f"programs rnic perf {name}"] = partial(rnic_perf, op, metric, size, local, s.seconds)
        found[f"programs ucx {op} {metric} {size}"] = partial(peers.ucx, peers.UCX_SHM, ucx, size, s.seconds)
    return found


def row(op: str, metric: str, size: int, local: str) -> Row:
    name = name_of(op, metric, size, local)
    beside = {"rnic perf": f"programs rnic perf {name}"}
    if local == ON:
        beside["UCX"] = f"programs ucx {op} {metric} {size}"
    unit: Unit = MEDIAN if metric == "lat" else GBYTES
    return Row(f"ib_{op}_{metric} {SIZE_NAMES[size]}", unit, f"programs perftest {name}", beside)


def tables() -> list[Table]:
    note = (
        "perftest under `rnic run`, as Debian has it; the column rnic is its figure. Beside it `rnic perf`, "
        "which measures the same in memory of alloc_mr. Latencies are medians, of a READ the whole time, "
        "else half a round trip."
    )
    return [
        Table(
            "Existing programs: same host",
            f"{note} UCX: ucx_perftest over posix and cma.",
            ("rnic perf", "UCX"),
            [row(*test, ON) for test in TESTS],
        ),
        Table("Existing programs: UDP", note, ("rnic perf",), [row(*test, OFF) for test in TESTS]),
    ]


def target(op: str, metric: str, size: int, local: str, bound: float) -> Target:
    name = name_of(op, metric, size, local)
    what = f"ib_{op}_{metric} {SIZE_NAMES[size]}, {'same host' if local == ON else 'UDP'}, rnic perf's"
    ours, other = f"programs perftest {name}", f"programs rnic perf {name}"
    if metric == "lat":
        return at_most(bound, what, MEDIAN, ours, other)
    return at_least(round(1 / bound, 2), what, GBYTES, ours, other)


def targets() -> list[Target]:
    return [target(*test, local, bound) for local, bound in ((ON, LATENCY), (OFF, RATE)) for test in TESTS]
