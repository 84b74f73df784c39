# SPDX-License-Identifier: Apache-2.0
"""What `rnic kmod grade` and `rnic kmod test` print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from rnic.cli import screen
from rnic.cli.demo import say
from rnic.kmod.grade import NOT_JUDGED
from rnic.kmod.steps import Report

WORDS = {"passed": "[green]ok[/]", "failed": "[red]FAIL[/]", "not reached": "-"}
TRANSPORTS = {"rxe": "RoCE", "siw": "iWARP", "": "result"}


def show(reports: Sequence[Report], console: Console) -> None:
    """A table of steps and transports, then what was wrong."""
    headings = ["the module", *(TRANSPORTS[report.transport] for report in reports)]
    rows = [
        (step.value, *(WORDS[report.outcomes[step].result] for report in reports))
        for step in reports[0].steps
    ]
    screen.table(console, headings, rows, tight=True)
    show_failures(reports, console)
    for mistake in NOT_JUDGED:
        say(console, f"not judged: {mistake}")
    good = sum(outcome.result == "passed" for report in reports for outcome in report.outcomes.values())
    say(console, f"{good} of {sum(len(report.steps) for report in reports)} steps passed")


def show_failures(reports: Sequence[Report], console: Console) -> None:
    """Each once, with what was printed of it."""
    found: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for report in reports:
        for step, outcome in report.failures.items():
            _, names = found.setdefault((step.name, outcome.detail), (outcome.printed, []))
            names.append(TRANSPORTS[report.transport])
    for (name, detail), (printed, names) in found.items():
        where = f"{', '.join(names)}: " if names != ["result"] else ""
        say(console, f"{where}{name}: {detail}")
        for line in printed.splitlines():
            console.print(f"    {line}", markup=False, soft_wrap=True)


def as_dict(module: str, made_from: str, reports: Sequence[Report]) -> dict[str, Any]:
    """For programs."""
    return {
        "module": module,
        "from": made_from,
        "passed": all(report.passed for report in reports),
        "not_judged": list(NOT_JUDGED),
        "runs": [report.as_dict() for report in reports],
    }
