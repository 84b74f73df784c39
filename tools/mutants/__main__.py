# SPDX-License-Identifier: Apache-2.0
"""Draws mutants and tries them: python -m tools.mutants --help, or make mutants."""

from __future__ import annotations

import argparse
import os
import queue
import random
import shlex
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tools.mutants.c_trial import PROGRAMS, CTrials
from tools.mutants.change import Change
from tools.mutants.outcome import Outcome
from tools.mutants.py_trial import TESTS, PyTrials

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import namespaces  # noqa: E402 - tests are no package

Trials = CTrials | PyTrials


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--rooms", nargs="+", default=[*PROGRAMS, *TESTS], choices=[*PROGRAMS, *TESTS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=20, help="mutants of each room, 0: all")
    parser.add_argument("--only", default="", help="those whose file, line or change has this in it")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--thorough", action="store_true", help="ask tests that use the room, too")
    parser.add_argument("--build", type=Path, default=ROOT / "build-mutants")
    parser.add_argument("--flags", default="cc -O1", help="the C compiler and its flags")
    parser.add_argument("--target", type=float, default=0, help="percent of all; fewer killed is a failure")
    return parser.parse_args()


Survivor = dict[str, str | list[str]]


def known() -> list[Survivor]:
    """What known.toml has."""
    return list(tomllib.loads(Path(__file__).with_name("known.toml").read_text()).get("survivor", []))


def is_known(change: Change, survivors: list[Survivor]) -> bool:
    said = f"{change.old} -> {change.new}"
    return any(
        (entry["path"], entry["text"]) == (change.path, change.text) and said in entry.get("changes", [said])
        for entry in survivors
    )


def draw(trials: Trials, room: str, options: argparse.Namespace) -> list[Change]:
    """A sample of a room's changes, each as likely as any other."""
    found = [change for path in trials.sources(room) for change in trials.changes(path)]
    found = [change for change in found if options.only in str(change)]
    random.Random(f"{options.seed} {room}").shuffle(found)
    return found


def network_of_this_thread() -> None:
    """As root each worker has a network of its own; else all have this process' one, and take turns."""
    if os.geteuid() == 0:
        with suppress(OSError):
            namespaces.unshare()
            namespaces.loopback_up()


def outcomes(
    trials: Trials, drawn: list[Change], options: argparse.Namespace
) -> Iterator[tuple[Change, Outcome]]:
    """Tries them until the sample is full: what is no mutant does not count."""
    survivors = known()
    workers: queue.Queue[int] = queue.Queue()
    for n in range(options.jobs):
        workers.put(n)

    def attempt(change: Change) -> tuple[Change, Outcome]:
        if is_known(change, survivors):
            return change, Outcome.KNOWN
        worker = workers.get()
        try:
            return change, trials.outcome(change, worker)
        finally:
            workers.put(worker)

    counted, at = 0, 0
    with ThreadPoolExecutor(options.jobs, initializer=network_of_this_thread) as pool:
        while at < len(drawn) and (not options.sample or counted < options.sample):
            batch = drawn[at : at + (options.sample - counted if options.sample else len(drawn))]
            at += len(batch)
            for change, outcome in pool.map(attempt, batch):
                counted += outcome in (Outcome.KILLED, Outcome.SURVIVED)
                yield change, outcome


def share(found: Counter[Outcome]) -> float:
    """Of those that are killed, in percent."""
    tried = found[Outcome.KILLED] + found[Outcome.SURVIVED]
    return 100 * found[Outcome.KILLED] / tried if tried else 100.0


def room_of(trials: Trials, room: str, options: argparse.Namespace) -> Counter[Outcome]:
    """What became of a room's mutants."""
    trials.prepare(room)
    found: Counter[Outcome] = Counter()
    for change, outcome in outcomes(trials, draw(trials, room, options), options):
        found[outcome] += 1
        if outcome in (Outcome.KILLED, Outcome.SURVIVED):
            print(f"{outcome.value:8}  {change}", flush=True)
    tried = found[Outcome.KILLED] + found[Outcome.SURVIVED]
    print(
        f"{room}: {found[Outcome.KILLED]} of {tried} mutants killed ({share(found):.1f} %); beside them "
        f"{found[Outcome.KNOWN]} known to survive, {found[Outcome.SAME]} of the same machine code, "
        f"{found[Outcome.NONE]} that do not compile",
        flush=True,
    )
    return found


def main() -> int:
    options = arguments()
    if os.geteuid() != 0:
        options.jobs = 1
    c_trials = CTrials(ROOT, options.build, shlex.split(options.flags), options.thorough)
    py_trials = PyTrials(ROOT, options.build, options.thorough)
    found: Counter[Outcome] = Counter()
    for room in options.rooms:
        found += room_of(c_trials if room in PROGRAMS else py_trials, room, options)
    print(f"all: {share(found):.1f} % of the mutants killed")
    return int(share(found) < options.target)


if __name__ == "__main__":
    sys.exit(main())
