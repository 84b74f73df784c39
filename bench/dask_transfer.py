# SPDX-License-Identifier: Apache-2.0
"""Dask: arrays between two processes by rnic:// and by tcp://, in turns; `python bench/dask_transfer.py`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from contextlib import ExitStack
from functools import partial

from build import HERE
from procs import AbsentError, BrokenError, Values, one, pair
from stats import Rounds, judge, lines
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


def measure(plan: Measurements, rounds: int) -> Rounds:
    found: Rounds = []
    for _ in range(rounds):
        found.append({})
        for key, run_it in plan.items():
            try:
                found[-1][key] = run_it()
            except AbsentError as missing:
                found[-1][key] = {"absent": str(missing)}
            except BrokenError as failure:
                found[-1][key] = {"failed": str(failure)}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds (5)")
    parser.add_argument("--seconds", type=float, default=0.4, help="that a figure takes in a round (0.4)")
    args = parser.parse_args()
    with ExitStack() as closing:
        found = measure(measurements(Setting({}, args.seconds, 4096, closing)), args.rounds)
    for table in tables():
        print(f"{table.title}\n{table.note}")
        for line in lines(found, table):
            print("  " + " | ".join(line))
    verdicts = [judge(found, target) for target in targets()]
    for verdict in verdicts:
        print(f"{verdict['target']}: {verdict['text']}")
    return 0 if all(verdict["reached"] for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
