# SPDX-License-Identifier: Apache-2.0
"""`rnic lab3 grade`: a sender before the judge, with files of every awkward length, and the report."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from rnic.cli.demo import say
from rnic.cli.lab3.child import END_SECONDS, Child, command_of
from rnic.cli.lab3.judge import HOST, Judge, Step
from rnic.records import Record

REGION = 64 << 10  # bytes
CASES = {
    "empty": 0,
    "1 byte": 1,
    "odd": 10007,  # no multiple of any MTU
    "1 region": REGION,
    "2.5 regions": 5 * REGION // 2 + 1,
}


class Report(Record):
    """How a sender did with one file."""

    case: str
    length: int
    failed: Step | None
    detail: str
    """What was wrong, in words."""
    exit_code: int | None
    """Of the sender; negative: the signal that ended it."""
    stderr: str

    def result(self, step: Step) -> str:
        """Of one step."""
        steps = list(Step)
        if self.failed is None or steps.index(step) < steps.index(self.failed):
            return "passed"
        return "failed" if step is self.failed else "not reached"

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "case": self.case,
            "length": self.length,
            "passed": self.failed is None,
            "steps": {step.name.lower(): self.result(step) for step in Step},
            "detail": self.detail,
            "exit_code": self.exit_code,
            "stderr": self.stderr,
        }


def grade(script: Path, seconds: float, cases: Mapping[str, int] = CASES) -> Iterator[Report]:
    """Run the script once for each file."""
    with tempfile.TemporaryDirectory(prefix="rnic-lab3-") as folder:
        for case, length in cases.items():
            path = Path(folder) / "file"
            path.write_bytes(os.urandom(length))
            yield _examine(script, path, case, seconds)


def _examine(script: Path, path: Path, case: str, seconds: float) -> Report:
    data, who = path.read_bytes(), f"student-{secrets.token_hex(4)}"
    judge = Judge(data, who, secrets.token_bytes(32), REGION)
    command = [*command_of(script), HOST, str(path), "--id", who, "--port", str(judge.port)]
    with Child(command, seconds) as child:
        wrong = judge.examine(child)
        child.end(END_SECONDS)
        errors = child.errors()
        failed = judge.step if wrong is not None else None
        return Report(case, len(data), failed, wrong or "", child.status, errors)


def show(reports: list[Report], console: Console) -> None:
    """A table of steps and files, then what was wrong."""
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, show_edge=False, pad_edge=False)
    table.add_column("the sender", no_wrap=True)
    for report in reports:
        table.add_column(report.case, no_wrap=True)
    for step in Step:
        table.add_row(step.value, *(WORDS[report.result(step)] for report in reports))
    console.print(table)
    for (failed, detail, words), cases in _failures(reports).items():
        say(console, f"{', '.join(cases)}: {failed}: {detail}")
        if words:
            say(console, f"    its last words: {words}")
    good = sum(report.failed is None for report in reports)
    say(console, f"{good} of {len(reports)} files passed")


def _failures(reports: list[Report]) -> dict[tuple[str, str, str], list[str]]:
    """The files that failed, by step, what was wrong, and what the sender said unless we had told it that."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for report in reports:
        if report.failed is not None:
            last = report.stderr.strip().rpartition("\n")[2]
            words = "".join(one if one.isprintable() else "?" for one in last)  # no orders to the terminal
            key = report.failed.name, report.detail, words if report.detail not in words else ""
            found.setdefault(key, []).append(report.case)
    return found


WORDS = {"passed": "[green]ok[/]", "failed": "[red]FAILED[/]", "not reached": "-"}
