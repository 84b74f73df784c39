# SPDX-License-Identifier: Apache-2.0
"""The senders that the grader is measured with, and what it says of each: `python tests/lab3/mutants.py`.

That runs them all, and writes the table in docs/lab3.md.  A test compares the table with a sample of runs;
with RNIC_SOAK=1 with all of them.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests")) if path not in sys.path]

from tools.mutants.py_changes import changes  # noqa: E402

from lab3.changes import CHANGES  # noqa: E402 - as a program
from lab3.equivalent import EQUIVALENT  # noqa: E402
from rnic.cli.lab3.grade import Report, grade  # noqa: E402
from rnic.cli.lab3.skeleton import solution  # noqa: E402

PAGE = ROOT / "docs" / "lab3.md"
BEGIN, END = "<!-- mutants: python tests/lab3/mutants.py -->\n", "<!-- end of mutants -->\n"
ENDLESS = {
    ("transfer", "DONE after each piece"),
    ("transfer", 'without `answer = ask(cm_id, struct.pack("!I4xQ", DONE, len(chunk)))`'),
}
"""They write an empty file without end, and take all the time that they get."""
SECONDS_ENDLESS = 10.0
SECONDS = 60.0  # for a sender and a file, on a machine that has other things to do


@dataclass(frozen=True)
class Mutant:
    """The solution with one change."""

    part: str
    """The function that is changed."""
    what: str
    text: str


def mutants() -> list[Mutant]:
    """All of them, without those that two ways lead to."""
    found: dict[str, Mutant] = {}
    for one in (*_by_hand(), *_by_rule()):
        found.setdefault(one.text, one)
    return list(found.values())


def _by_hand() -> Iterator[Mutant]:
    source = solution()
    for part, listed in CHANGES.items():
        for what, old, new in listed:
            before, found, after = source.rpartition(old)  # a docstring that has it, too, comes first
            assert found, (part, what)
            yield Mutant(part, what, before + new + after)


def _by_rule() -> Iterator[Mutant]:
    source = solution()
    parts = _parts(source)
    seen: Counter[str] = Counter()
    for change in changes("sender.py", source):
        old, new = " ".join(change.old.split()), change.new
        what = f"without `{old}`" if new == "pass" else f"`{old}` -> `{new}` in `{change.text}`"
        seen[what] += 1
        again = f", place {seen[what]}" if seen[what] > 1 else ""
        yield Mutant(parts.get(change.line, "module"), what + again, change.apply(source))


def _parts(source: str) -> dict[int, str]:
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return {line: one.name for one in functions for line in range(one.lineno, (one.end_lineno or 0) + 1)}


def judge(mutant: Mutant) -> Report | None:
    """The first run that fails, or None."""
    with tempfile.TemporaryDirectory(prefix="rnic-lab3-") as folder:
        script = Path(folder) / "sender.py"
        script.write_text(mutant.text)
        seconds = SECONDS_ENDLESS if (mutant.part, mutant.what) in ENDLESS else SECONDS
        return next((one for one in grade(script, seconds) if one.failed is not None), None)


def judged(several: Iterable[Mutant]) -> Iterator[tuple[Mutant, Report | None]]:
    """Four at a time: most of it is waiting."""
    several = list(several)
    with ThreadPoolExecutor(4) as pool:
        yield from zip(several, pool.map(judge, several), strict=True)


def row(mutant: Mutant, found: str) -> str:
    """A line of the table."""
    what = mutant.what.replace("|", "\\|")
    return f"| {mutant.part} | {what} | {found} |"


def verdict(mutant: Mutant, report: Report | None) -> str:
    """In the words of the table."""
    if report is None:
        return f"passes: {EQUIVALENT.get((mutant.part, mutant.what), 'NOT FOUND')}"
    assert report.failed is not None
    return f"{report.failed.name.lower()}, with {report.case.name}"


def recorded() -> list[str]:
    """The rows in docs/lab3.md."""
    text = PAGE.read_text()
    table = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    return re.findall(r"^\| .* \|$", table, re.MULTILINE)[1:]


def write(rows: list[str]) -> None:
    """The table into docs/lab3.md."""
    failed = sum("| passes: " not in one for one in rows)
    head = [
        f"Of {len(rows)} senders {failed} fail. The others pass, for the reason that the table gives.",
        "",
        "| part | change | the grader |",
        "|---|---|---|",
    ]
    text = PAGE.read_text()
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(text[:start] + "\n".join([*head, *rows]) + "\n" + text[stop:])


def main() -> None:
    rows = []
    for mutant, report in judged(mutants()):
        rows.append(row(mutant, verdict(mutant, report)))
        words = f"{report.detail}\n        {report.stderr.strip().rpartition(chr(10))[2]}" if report else ""
        print(f"{rows[-1]}\n        {words}", flush=True)
    write(rows)


if __name__ == "__main__":
    main()
