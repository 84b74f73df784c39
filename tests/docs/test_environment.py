# SPDX-License-Identifier: Apache-2.0
"""docs/start.md lists the environment variables, as C has them, and the commands; nobody else reads one."""

from __future__ import annotations

import re
from pathlib import Path

from docs.test_start import section
from rnic._nic import nic
from rnic.cli import environment

SOURCES = Path(__file__).parents[2] / "src"
READS = re.compile(r"(?:getenv\(|environ(?:\.get\(|\.setdefault\(|\[)|envvar=)\s*\"(RNIC_\w+)")


def listed() -> list[list[tuple[str, ...]]]:
    """The rows of each table of the page."""
    tables = re.findall(r"\|---\|---\|---\|---\|\n((?:\|.*\n)+)", section("Environment"))
    return [[tuple(row.strip("| ").split(" | ")) for row in table.splitlines()] for table in tables]


def test_the_page_lists_what_c_reads() -> None:
    assert listed()[0] == [(f"`{name}`", *words) for name, *words in nic.env_rows()]


def test_the_page_lists_what_commands_read() -> None:
    rows = [(f"`{one.name}`", one.values, one.otherwise, one.text) for one in environment.COMMANDS]
    assert listed()[1:] == [rows]


def test_nobody_reads_a_variable_by_himself() -> None:
    """But for RNIC_RUN, which nobody but `rnic run` sets: src/preload and base/tally.c read it."""
    files = [path for path in SOURCES.rglob("*") if path.suffix in (".c", ".h", ".py", ".pyx", ".pxi")]
    files = [path for path in files if path.parent.name != "preload" and path.name != "tally.c"]
    assert [f"{path.name}: {name}" for path in files for name in READS.findall(path.read_text())] == []
