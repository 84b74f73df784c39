# SPDX-License-Identifier: Apache-2.0
"""Many connections in one loop of asyncio at each end: busy ones, and one among a thousand idle ones."""

from __future__ import annotations

import sys
from functools import partial

from build import HERE
from procs import Values, pair
from tables import (
    MEDIAN,
    MEMORY,
    PROCESSOR,
    Measurements,
    Row,
    Setting,
    Table,
    Target,
    at_most,
)

FACES = {"aio": "rnic.aio", "streams": "asyncio streams"}
BUSY, MANY = 16, 1000
NONE = "without idle ones"


def run(s: Setting, face: str, **given: int) -> Values:
    program = [sys.executable, str(HERE / "idleend.py"), "FD"]
    options = [f"seconds={s.seconds}", *(f"{name}={value}" for name, value in given.items())]
    return pair([*program, "serve", face], [*program, "use", face, *options])


def measurements(s: Setting) -> Measurements:
    found: Measurements = {}
    for face in FACES:
        found[f"busy {face} {BUSY}"] = partial(run, s, face, idle=0, busy=BUSY, rest=0)
        found[f"idle {face} {MANY}"] = partial(run, s, face, idle=MANY)
    found["idle aio 0"] = partial(run, s, "aio", idle=0)
    return found


def tables() -> list[Table]:
    key, streams = f"idle aio {MANY}", {FACES["streams"]: f"idle streams {MANY}"}
    alone = {NONE: "idle aio 0"}
    together = f"rnic.aio, 8 B and their echoes by {BUSY} connections, each"
    return [
        Table(
            "Same host: many connections",
            f"One loop at each end has them: {BUSY} that are busy, or {MANY:,} idle ones and a busy one. "
            "A task waits on each. The processor time is that of both processes while all are idle, over ten "
            "seconds, in which each end probes each connection once. The memory is that of both processes.",
            (NONE, *streams),
            [
                Row(together, MEDIAN, f"busy aio {BUSY}", {FACES["streams"]: f"busy streams {BUSY}"}),
                Row(f"rnic.aio, 8 B and its echo beside {MANY:,} idle ones", MEDIAN, key, alone | streams),
                Row(f"processor time of {MANY:,} idle ones", PROCESSOR, key, alone | streams),
                Row("memory of an idle one", MEMORY, key, streams),
            ],
        )
    ]


def targets() -> list[Target]:
    what = f"rnic.aio: 8 B and its echo beside {MANY:,} idle connections, without them"
    return [at_most(1.1, what, MEDIAN, f"idle aio {MANY}", "idle aio 0")]
