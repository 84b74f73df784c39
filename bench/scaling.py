# SPDX-License-Identifier: Apache-2.0
"""How the figures change with the number of queue pairs, and of pairs of processes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from plots import Line, Panel, Picture
from procs import Values
from stats import Rounds
from tables import GBYTES, KIB, RATE, Measurements, Row, Setting, Table, Target, Unit, native_pair

PATHS = {"same host": 1, "network": 0}
QPS = (1, 10, 100, 1000)
PROCESSES = (1, 2, 4, 8)
# figure: (its unit, the stream)
SHAPES: dict[str, tuple[Unit, dict[str, int]]] = {
    "8-byte WRITEs": (RATE, {"size": 8, "inline": 1, "depth": 512, "chain": 8}),
    "64 KiB WRITEs": (GBYTES, {"size": 64 * KIB, "depth": 32, "chain": 1}),
}
# what grows: (its numbers, the key of one, the plot)
AXES = {
    "queue pairs": (QPS, "qps {} {} {}", "scaling-qps.svg"),
    "pairs of processes": (PROCESSES, "pairs {} {} {}", "scaling-processes.svg"),
}
STARTING = 0.25  # seconds that a process may take until it measures, for each of them


def together(s: Setting, count: int, local: int, shape: dict[str, int]) -> Values:
    """As many pairs at a time, which all begin at one moment; the sum."""
    at = time.monotonic_ns() + int(STARTING * count * 1e9)
    with ThreadPoolExecutor(count) as pool:
        jobs = [
            pool.submit(native_pair, s, "sleep", "write", local=local, at=at, **shape) for _ in range(count)
        ]
        found = [job.result() for job in jobs]
    return {unit.value: sum(one[unit.value] for one in found) for unit in (RATE, GBYTES)}


def measurements(s: Setting) -> Measurements:
    found: Measurements = {}
    for path, local in PATHS.items():
        for name, (_, shape) in SHAPES.items():
            for n in QPS:
                found[f"qps {n} {path} {name}"] = partial(
                    native_pair, s, "sleep", "write", local=local, qps=n, **shape
                )
            for n in PROCESSES:
                found[f"pairs {n} {path} {name}"] = partial(together, s, n, local, shape)
    return found


def rows(axis: str) -> list[Row]:
    numbers, key, _ = AXES[axis]
    return [
        Row(
            f"{name}, {path}, {n:,}",
            unit,
            key.format(n, path, name),
            {"the first": key.format(numbers[0], path, name)},
        )
        for name, (unit, _) in SHAPES.items()
        for path in PATHS
        for n in numbers
    ]


def tables() -> list[Table]:
    return [
        Table(
            "Scaling: queue pairs",
            "One process to another; requests take turns among the queue pairs, all told 512 of 8 bytes "
            "outstanding, in chains of 8, or 32 of 64 KiB.",
            ("the first",),
            rows("queue pairs"),
        ),
        Table(
            "Scaling: processes",
            "Pairs of processes that all measure at the same time, each with a device and one queue pair; "
            "the sum. The targets sleep.",
            ("the first",),
            rows("pairs of processes"),
        ),
    ]


def targets() -> list[Target]:
    return []


def notes(rounds: Rounds) -> dict[str, list[str]]:  # noqa: ARG001
    return {}


def pictures() -> list[Picture]:
    return [
        Picture(
            file,
            [
                Panel(
                    name,
                    axis,
                    unit,
                    [Line(path, numbers, [key.format(n, path, name) for n in numbers]) for path in PATHS],
                )
                for name, (unit, _) in SHAPES.items()
            ],
            logarithmic=True,
        )
        for axis, (numbers, key, file) in AXES.items()
    ]
