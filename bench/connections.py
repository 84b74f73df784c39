# SPDX-License-Identifier: Apache-2.0
"""What most programs use: rnic.connect and rnic.aio, beside what Python has by itself."""

from __future__ import annotations

import sys
from functools import partial

from build import HERE
from procs import Values, pair
from tables import MEDIAN, Measurements, Row, Setting, Table, Target, at_most

MESSAGES = {"8 B": 8, "16 KB": 16000, "4 MB": 4_000_000}
FACES = {"sync": "rnic.connect", "aio": "rnic.aio"}
OTHERS = {"streams": "asyncio streams", "pipes": "multiprocessing"}
PEERS = {"sync": "pipes", "aio": "streams"}  # a face: what does the same


def run(s: Setting, what: str, face: str, size: int) -> Values:
    program = [sys.executable, str(HERE / "connend.py"), "FD"]
    options = [f"size={size}", f"seconds={s.seconds}"]
    return pair([*program, "serve", face], [*program, what, face, *options])


def measurements(s: Setting) -> Measurements:
    found: Measurements = {}
    for name, size in MESSAGES.items():
        for face in (*FACES, *OTHERS):
            found[f"connection {face} echo {name}"] = partial(run, s, "echo", face, size)
    for face in FACES:
        found[f"connection {face} add"] = partial(run, s, "add", face, 8)
        found[f"connection {face} read"] = partial(run, s, "read", face, 64)
    return found


def rows() -> list[Row]:
    found = [
        Row(
            f"{FACES[face]}, {name} and its echo",
            MEDIAN,
            f"connection {face} echo {name}",
            {title: f"connection {other} echo {name}" for other, title in OTHERS.items()},
        )
        for face in FACES
        for name in MESSAGES
    ]
    for face, title in FACES.items():
        found.append(Row(f"{title}, fetch_add", MEDIAN, f"connection {face} add"))
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
        )
    ]


def targets() -> list[Target]:
    found = []
    for face, other in PEERS.items():
        for name in ("8 B", "4 MB"):
            key, peer = f"connection {face} echo {name}", f"connection {other} echo {name}"
            found.append(
                at_most(0.5, f"{FACES[face]}: {name} and its echo, {OTHERS[other]}'s", MEDIAN, key, peer)
            )
    return [
        *found,
        at_most(3.0, "rnic.connect: 8 B and its echo", MEDIAN, "connection sync echo 8 B"),
        at_most(3.0, "rnic.connect: fetch_add", MEDIAN, "connection sync add"),
        at_most(30.0, "rnic.aio: fetch_add", MEDIAN, "connection aio add"),
        at_most(10.0, "rnic.connect: READ of 64 B", MEDIAN, "connection sync read"),
    ]
