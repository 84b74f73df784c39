# SPDX-License-Identifier: Apache-2.0
"""Existing programs: perftest under `rnic run`, beside `rnic perf` and UCX."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path

import outputs
import peers
from procs import Values, finish, free_port, process, wait_bound
from stats import Rounds
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
CONNECTING = {"cmtime": "rnic ucmatose", "ucmatose": "rnic ucmatose", "rping": "rnic rping"}
CONNECTIONS = 100
EACH = Unit("us", "us_each", 1.0, 0)
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


def client_of(server: list[str], client: list[str], port: int) -> tuple[str, float]:
    """What a client of RDMA-CM prints, and the seconds that it takes from its start to its end."""
    with process(server) as listening:
        wait_bound(port, listening)
        began = time.monotonic()
        with process(client) as asking:
            return finish(asking), time.monotonic() - began


def cmtime() -> Values:
    port = free_port()
    both = [RNIC, "run", peers.need("cmtime"), "-p", str(port)]
    said, _ = client_of(both, [*both, "-s", "127.0.0.1", "-c", str(CONNECTIONS)], port)
    return outputs.cmtime(said, CONNECTIONS)


def ucmatose(*program: str) -> Values:
    """A connection beside others: the time of many, less that of one."""
    took = []
    for count in (1, CONNECTIONS):
        port = free_port()
        both = [*program, "-p", str(port), "-C", "0", "-c", str(count)]
        took.append(client_of(both, [*both, "-s", "127.0.0.1"], port)[1])
    return {"us_each": (took[1] - took[0]) / (CONNECTIONS - 1) * 1e6}


def rping(*program: str) -> Values:
    """A command from its start to its end: Python starts, too, of `rnic run` or of `rnic rping`."""
    port = free_port()
    both = [*program, "-p", str(port), "-a", "127.0.0.1", "-C", "1"]
    return {"us_each": client_of([*both, "-s"], [*both, "-c"], port)[1] * 1e6}


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
    found["programs connections cmtime"] = cmtime
    found["programs connections ucmatose"] = lambda: ucmatose(RNIC, "run", peers.need("ucmatose"))
    found["programs connections rnic ucmatose"] = partial(ucmatose, RNIC, "ucmatose")
    found["programs connections rping"] = lambda: rping(RNIC, "run", peers.need("rping"))
    found["programs connections rnic rping"] = partial(rping, RNIC, "rping")
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
        Table(
            "Existing programs: connections",
            f"{CONNECTIONS} connections at once by RDMA-CM, on the same host, under `rnic run`, beside "
            "those of `rnic ucmatose`: what each takes of the whole time. rping: the whole command, which "
            "starts Python, opens devices, connects once, and sends a message there and back.",
            ("rnic ucmatose", "rnic rping"),
            [
                Row(name, EACH, f"programs connections {name}", {other: f"programs connections {other}"})
                for name, other in CONNECTING.items()
            ],
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
    found = [target(*test, local, bound) for local, bound in ((ON, LATENCY), (OFF, RATE)) for test in TESTS]
    for name, other in CONNECTING.items():
        what = f"a connection of {name}, {other}'s"
        found.append(
            at_most(2.0, what, EACH, f"programs connections {name}", f"programs connections {other}")
        )
    return found


def notes(rounds: Rounds) -> dict[str, list[str]]:
    del rounds
    return {}
