# SPDX-License-Identifier: Apache-2.0
"""What most programs use: rnic.connect and rnic.aio, beside what Python has by itself."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial

from build import HERE
from procs import Values, pair
from tables import MEDIAN, WIRE, Measurements, Row, Setting, Table, Target, at_most

MESSAGES = {"8 B": 8, "16 KB": 16_000, "500 KB": 500_000, "4 MB": 4_000_000}
ENDS = ("8 B", "4 MB")
FACES = {"sync": "rnic.connect", "aio": "rnic.aio"}
OTHERS = {"streams": "asyncio streams", "pipes": "multiprocessing"}
PEERS = {"sync": "pipes", "aio": "streams"}  # a face: what does the same


def run(s: Setting, what: str, face: str, size: int, around: tuple[str, ...] = ()) -> Values:
    program = [*around, sys.executable, str(HERE / "connend.py"), "FD"]
    options = [f"size={size}", f"seconds={s.seconds}"]
    return pair([*program, "serve", face], [*program, what, face, *options])


def measurements(s: Setting) -> Measurements:
    found: Measurements = {}
    for name, size in MESSAGES.items():
        for face in (*FACES, *OTHERS):
            found[f"connection {face} echo {name}"] = partial(run, s, "echo", face, size)
    for face in FACES:
        for name in ENDS:
            found[f"wire {face} echo {name}"] = partial(run, s, "echo", face, MESSAGES[name], WIRE)
        found[f"connection {face} add"] = partial(run, s, "add", face, 8)
        found[f"connection {face} count"] = partial(run, s, "count", face, 8)
        found[f"connection {face} read"] = partial(run, s, "read", face, 64)
    return found


def echo_rows(way: str, names: Iterable[str]) -> list[Row]:
    return [
        Row(
            f"{FACES[face]}, {name} and its echo",
            MEDIAN,
            f"{way} {face} echo {name}",
            {title: f"connection {other} echo {name}" for other, title in OTHERS.items()},
        )
        for face in FACES
        for name in names
    ]


def rows() -> list[Row]:
    found = echo_rows("connection", MESSAGES)
    for face, title in FACES.items():
        found.append(Row(f"{title}, fetch_add in a bytearray", MEDIAN, f"connection {face} add"))
        found.append(Row(f"{title}, fetch_add in memory of alloc()", MEDIAN, f"connection {face} count"))
        found.append(Row(f"{title}, READ of 64 B", MEDIAN, f"connection {face} read"))
    return found


def tables() -> list[Table]:
    return [
        Table(
            "Same host: connections",
            "Two processes, and each waits as its face does by default. The others go over TCP, which Python "
            "has by itself; their messages have a length before them.",
            tuple(OTHERS.values()),
            rows(),
        ),
        Table(
            "Network path: connections",
            "The same with RNIC_LOCAL=off.",
            tuple(OTHERS.values()),
            echo_rows("wire", ENDS),
        ),
    ]


def targets() -> list[Target]:
    found = []
    for face, other in PEERS.items():
        for name in ENDS:
            what, peer = f"{name} and its echo, {OTHERS[other]}'s", f"connection {other} echo {name}"
            key = f"{face} echo {name}"
            found.append(at_most(0.5, f"{FACES[face]}: {what}", MEDIAN, f"connection {key}", peer))
            found.append(at_most(1.0, f"network: {FACES[face]}: {what}", MEDIAN, f"wire {key}", peer))
    return [
        *found,
        at_most(3.0, "rnic.connect: 8 B and its echo", MEDIAN, "connection sync echo 8 B"),
        at_most(3.0, "rnic.connect: fetch_add in a bytearray", MEDIAN, "connection sync add"),
        at_most(3.0, "rnic.connect: fetch_add in memory of alloc()", MEDIAN, "connection sync count"),
        at_most(30.0, "rnic.aio: fetch_add in a bytearray", MEDIAN, "connection aio add"),
        at_most(30.0, "rnic.aio: fetch_add in memory of alloc()", MEDIAN, "connection aio count"),
        at_most(10.0, "rnic.connect: READ of 64 B", MEDIAN, "connection sync read"),
    ]
