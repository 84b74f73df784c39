# SPDX-License-Identifier: Apache-2.0
"""Measures rnic and its peers side by side: `make bench`, or python bench/run.py.

Prints the tables, and writes bench/results: a file of JSON for each section, and README.md of all that are
there.  As root it works in a network namespace of its own, where no other process shares UDP 4791.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path

import facts
import report
from build import HERE, ROOT, build
from procs import AbsentError, BrokenError, Values
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from stats import Rounds
from tables import Measurements, Setting

sys.path.append(str(ROOT / "tests"))
import namespaces


def enter_namespace() -> bool:
    """This process, and those that it will start, go to a fresh network namespace; False: stays here."""
    if os.geteuid() != 0:
        return False
    try:
        namespaces.network_of_our_own()
    except OSError:
        return False
    return True


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run.py", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds (5)")
    parser.add_argument("--seconds", type=float, default=0.4, help="that a figure takes in a round (0.4)")
    parser.add_argument(
        "--mtu", type=int, default=4096, choices=[256, 512, 1024, 2048, 4096], help="path MTU (4096)"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="measurements whose name contains TEXT; writes nothing"
    )
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where results go")
    parser.add_argument("--here", action="store_true", help="stay in this network namespace")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--iwarp", action="store_true", help="iWARP alone")
    what.add_argument("--programs", action="store_true", help="existing programs alone, under `rnic run`")
    what.add_argument("--patterns", action="store_true", help="patterns and the tools made of them, alone")
    what.add_argument("--scaling", action="store_true", help="1 to 1,000 queue pairs, 1 to 8 processes")
    what.add_argument("--guest", action="store_true", help="beside rdma_rxe and siw in virtual machines")
    what.add_argument("--crowded", action="store_true", help="beside other work alone")
    what.add_argument("--instructions", action="store_true", help="counts of instructions alone")
    what.add_argument("--all", action="store_true", help="all of these, and the other tables")
    what.add_argument("--page", action="store_true", help="measure nothing: README.md of the files of JSON")
    return parser.parse_args()


def chosen(args: argparse.Namespace) -> list[str]:
    """Names of sections."""
    if args.all:
        return list(report.SECTIONS)
    one = [name for name in report.SECTIONS if getattr(args, name, False)]
    return one or ["latest", "iwarp", "programs"]


def measure_round(plan: Measurements, progress: Progress, title: str) -> dict[str, Values]:
    found: dict[str, Values] = {}
    task = progress.add_task(title, total=len(plan))
    for key, run in plan.items():
        progress.update(task, description=f"{title}: {key}")
        try:
            found[key] = run()
        except AbsentError as missing:
            found[key] = {"absent": str(missing)}
        except (BrokenError, OSError, ValueError, KeyError) as failure:
            found[key] = {"failed": f"{failure}"}
        progress.advance(task)
    progress.remove_task(task)
    return found


def measure(plan: Measurements, count: int, console: Console) -> tuple[Rounds, list[float]]:
    """Rounds, and how busy others were before each; every other round goes backwards."""
    rounds, before = [], []
    bar = Progress(
        TextColumn("{task.description:42}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
    )
    with bar as progress:
        for i in range(count):
            before.append(facts.busy())
            order = reversed(plan.items()) if i % 2 else plan.items()
            rounds.append(measure_round(dict(order), progress, f"round {i + 1} of {count}"))
    return rounds, before


def run_section(name: str, args: argparse.Namespace, namespace: bool, console: Console) -> None:
    section = report.SECTIONS[name]
    known = facts.machine(namespace, args.mtu, args.seconds)
    with ExitStack() as closing:
        plan = section.measurements(Setting(build(), args.seconds, args.mtu, closing))
        plan = {key: run for key, run in plan.items() if args.only in key}
        rounds, before = measure(plan, args.rounds, console)
    report.show(section, rounds, console)
    if not args.only:
        told = known | facts.calm(before) | {"rounds": len(rounds)}
        report.store(args.results, name, rounds, told)


def main() -> int:
    args = options()
    console = Console(width=None if sys.stdout.isatty() else 150)
    if not args.page:
        namespace = not args.here and enter_namespace()
        for name in chosen(args):
            run_section(name, args, namespace, console)
    if not args.only:
        console.print(f"\nwritten: {report.page(args.results)}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
