# SPDX-License-Identifier: Apache-2.0
"""The examples' parameter server and key-value store, beside the same by sockets and by shared memory."""

from __future__ import annotations

import sys
from functools import partial

from build import HERE
from procs import Values, pair
from tables import (
    GBYTES,
    MEDIAN,
    WIRE,
    Measurements,
    Row,
    Setting,
    Table,
    Target,
    at_least,
    at_most,
)

TRAINING = {
    "moving": "eight workers READ and WRITE 4 MiB each",
    "adding": "the same, and the server adds what was written",
}
STORING = {"get": "get of 64 B", "put": "put of 64 B"}
SOCKETS = {"sockets": "sockets"}
COLUMNS = SOCKETS | {"shared": "shared_memory"}


def run(s: Setting, what: str, how: str, around: tuple[str, ...] = ()) -> Values:
    program = [*around, sys.executable, str(HERE / "applicationend.py"), "FD"]
    return pair([*program, "serve", what, how], [*program, "use", what, how, f"seconds={s.seconds}"])


def measurements(s: Setting) -> Measurements:
    found: Measurements = {}
    for what in (*TRAINING, *STORING):
        found[f"pattern rnic {what}"] = partial(run, s, what, "rnic")
        found[f"pattern wire {what}"] = partial(run, s, what, "rnic", WIRE)
        found[f"pattern sockets {what}"] = partial(run, s, what, "sockets")
    for what in TRAINING:
        found[f"pattern shared {what}"] = partial(run, s, what, "shared")
    return found


def rows(way: str, columns: dict[str, str]) -> list[Row]:
    def row(what: str, title: str) -> Row:
        peers = {
            name: f"pattern {how} {what}"
            for how, name in columns.items()
            if how == "sockets" or what in TRAINING
        }
        return Row(title, GBYTES if what in TRAINING else MEDIAN, f"pattern {way} {what}", peers)

    return [row(what, title) for what, title in (TRAINING | STORING).items()]


def tables() -> list[Table]:
    about = (
        "examples/parameter_server.py and examples/key_value.py. GB/s: of all workers, both ways. "
        "Sockets: TCP, a thread of the server for each connection."
    )
    return [
        Table(
            "Same host: programs",
            f"{about} shared_memory: multiprocessing's, with copies in and out, and messages by pipes.",
            tuple(COLUMNS.values()),
            rows("rnic", COLUMNS),
        ),
        Table(
            "Network path: programs",
            f"{about} rnic with RNIC_LOCAL=off.",
            ("sockets",),
            rows("wire", SOCKETS),
        ),
    ]


def targets() -> list[Target]:
    moving, what = "pattern rnic moving", f"parameter server: {TRAINING['moving']}"
    found = [
        at_least(3.0, f"{what}, sockets", GBYTES, moving, "pattern sockets moving"),
        at_least(0.5, f"{what}, shared_memory", GBYTES, moving, "pattern shared moving"),
        at_most(10.0, f"key-value store: {STORING['get']}", MEDIAN, "pattern rnic get"),
    ]
    for name, title in TRAINING.items():
        key, peer = f"pattern wire {name}", f"pattern sockets {name}"
        found.append(at_least(1.0, f"network: {title}, sockets", GBYTES, key, peer))
    for name, title in STORING.items():
        key, peer = f"pattern wire {name}", f"pattern sockets {name}"
        found.append(at_most(1.0, f"network: {title}, sockets", MEDIAN, key, peer))
    return found
