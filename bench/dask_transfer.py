# SPDX-License-Identifier: Apache-2.0
"""Dask: arrays between two processes by rnic:// and by tcp://."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial

from build import HERE
from procs import AbsentError, Values, one, pair
from tables import GBYTES, MIB, WIRE, Measurements, Row, Setting, Table, Target, at_least

SIZE = 256 * MIB
WHAT = {"comm": "comm: 256 MiB, confirmed", "cluster": "cluster: 256 MiB from worker to worker"}


def run(s: Setting, what: str, scheme: str, around: tuple[str, ...] = ()) -> Values:
    if importlib.util.find_spec("distributed") is None:
        raise AbsentError("distributed is not installed: pip install 'rnic[dask]'")
    program = [*around, sys.executable, str(HERE / "daskend.py")]
    options = [scheme, f"size={SIZE}", f"seconds={s.seconds}"]
    if what == "cluster":
        return one([*program, "cluster", *options])
    return pair([*program, "FD", "serve", scheme], [*program, "FD", "use", *options])


def measurements(s: Setting) -> Measurements:
    found: Measurements = {}
    for what in WHAT:
        found[f"dask rnic {what}"] = partial(run, s, what, "rnic")
        found[f"dask tcp {what}"] = partial(run, s, what, "tcp")
        found[f"dask wire {what}"] = partial(run, s, what, "rnic", WIRE)
    return found


def rows(way: str) -> list[Row]:
    return [
        Row(title, GBYTES, f"dask {way} {what}", {"tcp": f"dask tcp {what}"}) for what, title in WHAT.items()
    ]


def tables() -> list[Table]:
    about = "The median of the transfers of a round. tcp: Dask's own, over the loopback interface."
    return [
        Table("Same host: Dask", about, ("tcp",), rows("rnic")),
        Table("Network path: Dask", f"{about} rnic with RNIC_LOCAL=off.", ("tcp",), rows("wire")),
    ]


def targets() -> list[Target]:
    return [
        at_least(1.0, f"Dask, {title}, tcp", GBYTES, f"dask rnic {what}", f"dask tcp {what}")
        for what, title in WHAT.items()
    ]
