# SPDX-License-Identifier: Apache-2.0
"""docs/start.md: every program runs and prints what the page says, and the tables are complete."""

from __future__ import annotations

import builtins
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rnic
import rnic.endpoint
from rnic import WCStatus

PAGE = (Path(__file__).parents[2] / "docs/start.md").read_text()
PROGRAMS = re.findall(
    r"^```python\n(.*?)^```\n\n(\w+) prints:\n\n```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE
)


def section(title: str) -> str:
    """The text below a heading."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


def run(*args: str, cwd: Path) -> str:
    """Run the interpreter; what it printed."""
    command = [sys.executable, "-W", "error", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_program_says_what_it_prints() -> None:
    assert len(PROGRAMS) == PAGE.count("```python\n") > 0


@pytest.mark.parametrize("index", range(len(PROGRAMS)))
def test_program_prints_what_the_page_says(index: int, tmp_path: Path) -> None:
    program, runner, printed = PROGRAMS[index]
    file = tmp_path / "test_program.py"
    file.write_text(program)
    if runner == "pytest":
        (tmp_path / "pytest.ini").write_text("[pytest]\n")  # none of this repository's options
        out = run("-m", "pytest", "-q", str(file), cwd=tmp_path)
        assert out.splitlines()[-1].startswith(f"{printed.strip()} in ")
    else:
        assert run(str(file), cwd=tmp_path) == printed


def test_every_status_has_its_row_in_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", section("Completion statuses"), re.MULTILINE)
    assert rows == [status.name for status in WCStatus]


def test_errors_of_the_table_exist() -> None:
    names = re.findall(r"^\| `(\w+)`", section("Errors"), re.MULTILINE)
    known = {**vars(builtins), **vars(rnic), **vars(rnic.endpoint)}
    assert all(issubclass(known[name], Exception) for name in names)
    ours = {name for name in dir(rnic.endpoint) if name.endswith("Error")} | {"VerbsError", "PostError"}
    assert ours - {"EndpointError"} <= set(names)
