# SPDX-License-Identifier: Apache-2.0
"""`rnic lab3 grade`: a sender before the judge, with files of every awkward length, and the report."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from rnic.cli import screen
from rnic.cli.demo import say
from rnic.cli.lab3.cases import CASES, Case, Step
from rnic.cli.lab3.child import END_SECONDS, PLAIN, Child, Surroundings, runs_by_itself
from rnic.cli.lab3.judge import Judge
from rnic.programs import surroundings
from rnic.records import Record

NOT_JUDGED = (
    "memory of a message, or of a WRITE of less than 128 KiB, that is changed before the work has completed",
    "a WRITE behind DONE that has neither the first nor the last byte of a chunk",
)
"""Over iWARP, of an executable: its device copies short work at once, and DONE meets its receive at once."""


class Report(Record):
    """How a sender did with one file."""

    case: Case
    failed: Step | None
    detail: str
    """What was wrong, in words."""
    exit_code: int | None
    """Of the sender; negative: the signal that ended it."""
    stderr: str
    not_judged: tuple[str, ...] = ()
    """Mistakes that this run cannot find, in words."""

    def result(self, step: Step) -> str:
        """Of one step."""
        steps = self.case.steps
        if step not in steps:
            return "not asked for"
        if self.failed is None or steps.index(step) < steps.index(self.failed):
            return "passed"
        return "failed" if step is self.failed else "not reached"

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "case": self.case.name,
            "length": self.case.length,
            "passed": self.failed is None,
            "steps": {step.name.lower(): self.result(step) for step in self.case.steps},
            "detail": self.detail,
            "exit_code": self.exit_code,
            "stderr": self.stderr,
        }


def grade(script: Path, seconds: float, cases: Iterable[Case] = CASES) -> Iterator[Report]:
    """Run the script once for each case."""
    with tempfile.TemporaryDirectory(prefix="rnic-lab3-") as folder, _surroundings(script) as around:
        for case in cases:
            path = Path(folder) / "file"
            data = b"\xff" + os.urandom(case.length).replace(b"\0", b"\1")  # no text, no zero
            path.write_bytes(data[: case.length])
            yield _examine(script, path, case, seconds, around)


@contextmanager
def _surroundings(script: Path) -> Iterator[Surroundings]:
    """A program that runs by itself finds libibverbs and RDMA-CM, as under `rnic run`."""
    if not runs_by_itself(script):
        yield PLAIN
        return
    with surroundings.serve() as (folder, server):
        yield Surroundings(surroundings.variables(folder), lambda: server.abandoned, server.has_open)


def _examine(script: Path, path: Path, case: Case, seconds: float, around: Surroundings) -> Report:
    who = f"student-{secrets.token_hex(4)}"
    judge = Judge(path.read_bytes(), who, secrets.token_bytes(32), case)
    arguments = [judge.host, str(path), "--id", who, "--port", str(judge.port)]
    iwarp = judge.is_iwarp
    with Child(script, arguments, seconds, late=case.late, is_iwarp=iwarp, around=around) as child:
        wrong = judge.examine(child)
        child.end(END_SECONDS)
        errors = child.errors()
        failed = judge.step if wrong is not None else None
        not_judged = NOT_JUDGED if iwarp and runs_by_itself(script) else ()
        return Report(case, failed, wrong or "", child.status, errors, not_judged)


def show(reports: list[Report], console: Console) -> None:
    """A table of steps and files, then what was wrong."""
    headings = ["the sender", *(report.case.name.replace(" ", "\n") for report in reports)]
    rows = [(step.value, *(WORDS[report.result(step)] for report in reports)) for step in Step]
    screen.table(console, headings, rows, tight=True)
    for (failed, detail, words), cases in _failures(reports).items():
        say(console, f"{', '.join(cases)}: {failed}: {detail}")
        if words:
            say(console, f"    its last words: {words}")
    for mistake in {mistake: None for report in reports for mistake in report.not_judged}:
        say(console, f"not judged over iWARP, in a program that is not Python: {mistake}")
    good = sum(report.failed is None for report in reports)
    say(console, f"{good} of {len(reports)} runs passed")


def _failures(reports: list[Report]) -> dict[tuple[str, str, str], list[str]]:
    """The files that failed, by step, what was wrong, and what the sender said unless we had told it that."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for report in reports:
        if report.failed is not None:
            last = report.stderr.strip().rpartition("\n")[2]
            words = "".join(one if one.isprintable() else "?" for one in last)  # no orders to the terminal
            words = re.sub(" on QP 0x[0-9a-f]+", "", words)  # which differs with each run
            key = report.failed.name, report.detail, words if report.detail[:HEARD] not in words else ""
            found.setdefault(key, []).append(report.case.name)
    return found


HEARD = 100  # characters: of what it is refused for the sender hears the beginning
WORDS = {"passed": "[green]ok[/]", "failed": "[red]FAIL[/]", "not reached": "-", "not asked for": ""}
