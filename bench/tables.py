# SPDX-License-Identifier: Apache-2.0
"""What tables and targets are made of, and how rnic's own loops are started.

A measurement runs once a round and gives named values.  A row of a table takes one value of rnic's
measurement and one of each peer's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from build import HERE
from procs import Values, pair

KIB, MIB = 1 << 10, 1 << 20
SIZE_NAMES = {
    8: "8 B",
    4 * KIB: "4 KiB",
    16 * KIB: "16 KiB",
    64 * KIB: "64 KiB",
    MIB: "1 MiB",
    16 * MIB: "16 MiB",
}
# size: (outstanding, in one post)
STREAMS = {4 * KIB: (128, 16), 64 * KIB: (32, 4), MIB: (8, 1)}
WIRE = ("env", "RNIC_LOCAL=off")  # before a command: packets, also to this host
OPS = {"write": "sleep", "send": "sink", "read": "sleep"}  # and what the target does meanwhile


@dataclass(frozen=True, slots=True)
class Unit:
    """How a value is shown; factor turns what was measured into it."""

    text: str
    value: str
    factor: float = 1.0
    digits: int = 2


GBYTES = Unit("GB/s", "gbytes_per_s")
MEDIAN = Unit("us", "median_us", 1.0, 3)
MEAN = Unit("us", "mean_us", 1.0, 3)
RATE = Unit("M/s", "messages_per_s", 1e-6, 3)
PROCESSOR = Unit("ms/s", "cpu_ms_per_s", 1.0, 1)
MEMORY = Unit("KiB", "kib_each", 1.0, 0)
FILES = Unit("files/s", "files_per_s", 1.0, 0)
PER_OP = Unit("us/op", "us_per_operation", 1.0, 3)


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    unit: Unit
    key: str  # rnic's measurement
    peers: dict[str, str] = field(default_factory=dict)  # column: measurement


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    note: str
    columns: tuple[str, ...]
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Target:
    """value(key) / value(peer), or value(key) alone, against a bound."""

    text: str
    key: str
    unit: Unit
    bound: float
    is_floor: bool
    peer: str = ""


def at_least(bound: float, what: str, unit: Unit, key: str, peer: str = "") -> Target:
    shown = f"{bound:g} x" if peer else f"{bound:g} {unit.text}"
    return Target(f"{what}: at least {shown}", key, unit, bound, True, peer)


def at_most(bound: float, what: str, unit: Unit, key: str, peer: str = "") -> Target:
    shown = f"{bound:g} x" if peer else f"{bound:g} {unit.text}"
    return Target(f"{what}: at most {shown}", key, unit, bound, False, peer)


@dataclass(frozen=True, slots=True)
class Setting:
    programs: dict[str, Path]  # as build() names them
    seconds: float
    mtu: int
    closing: ExitStack  # what a section opens for all of its rounds


Measurements = dict[str, Callable[[], Values]]


def shape(size: int) -> dict[str, int]:
    """The options of a stream of that size."""
    depth, chain = STREAMS[size]
    return {"size": size, "depth": depth, "chain": chain}


def words(s: Setting, options: dict[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in ({"seconds": s.seconds, "mtu": s.mtu} | options).items()]


def native_pair(s: Setting, server: str, test: str, **options: object) -> Values:
    """Two processes of native.c; a ping-pong also has the mean of half its round trips."""
    program, given = str(s.programs["native"]), words(s, options)
    found = pair([program, "FD", "serve", server, *given], [program, "FD", test, *given])
    if test.endswith("_pingpong"):
        found["mean_us"] = found["seconds"] / found["operations"] / 2 * 1e6
    return found


def python_end(*role: str) -> list[str]:
    return [sys.executable, str(HERE / "pyend.py"), "FD", *role]
