# SPDX-License-Identifier: Apache-2.0
"""What the commands print fits terminals of 80 and of 44 columns, and nothing of it is lost."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from pathlib import Path

import pytest
from rich.console import Console

from cli.commands import SECONDS
from forked import Forked
from rnic.cli import screen
from rnic.cli.lab3.skeleton import solution

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TRANSIENT = re.compile(r"[^\n]*\r(?!\n)")  # progress, over which something else was written


def on_screen(columns: int, *args: object) -> list[str]:
    """The lines of a command at a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, columns, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = Forked(*map(str, args), stdout=theirs, stderr=theirs, env={**environ, "TERM": "xterm"})
    os.close(theirs)
    text, until = b"", time.monotonic() + SECONDS
    try:
        while select.select([ours], [], [], max(0, until - time.monotonic()))[0]:
            text += os.read(ours, 65536)
    except OSError:  # the command has ended
        pass
    finally:
        os.close(ours)
        command.kill()
    assert command.wait() in (0, -9), text.decode()
    return TRANSIENT.sub("", ESCAPES.sub("", text.decode())).replace("\r", "").split("\n")


def fits(lines: list[str], columns: int) -> str:
    """A single word may be longer: it is for copying.  Returns the words."""
    for line in lines:
        assert len(line) <= columns or " " not in line.strip(), line
        assert "\N{HORIZONTAL ELLIPSIS}" not in line
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("columns", [44, 80])
def test_devices_and_doctor(columns: int) -> None:
    assert "roce_lo" in fits(on_screen(columns, "devices"), columns)
    assert "between two processes of this user" in fits(on_screen(columns, "doctor"), columns)


@pytest.mark.parametrize("columns", [44, 80])
@pytest.mark.parametrize("option", [[], ["-v"]])
def test_info(columns: int, option: list[str]) -> None:
    words = fits(on_screen(columns, "info", "roce_lo", *option), columns)
    assert "state: PORT_ACTIVE (4)" in words


@pytest.mark.parametrize("columns", [44, 80])
def test_demo(columns: int) -> None:
    words = fits(on_screen(columns, "demo", "--size", "1M"), columns)
    for operation in ("SEND", "RDMA WRITE", "RDMA READ", "FETCH_AND_ADD", "CMP_AND_SWP"):
        assert operation in words


@pytest.mark.parametrize("columns", [44, 80])
@pytest.mark.parametrize("test", [["write", "lat"], ["read", "bw"], ["send", "rate"]])
def test_perf(columns: int, test: list[str]) -> None:
    words = fits(on_screen(columns, "perf", *test, "--local", "-n", 100), columns)
    assert "CPU server[%]" in words
    assert "#iterations 100 " in words or "#iterations BW" in words


@pytest.mark.one_in(2)
@pytest.mark.parametrize("columns", [44, 80])
def test_grade(columns: int, tmp_path: Path) -> None:
    script = tmp_path / "sender.py"
    script.write_text(solution())
    words = fits(on_screen(columns, "lab3", "grade", script), columns)
    assert "FAILED" not in words
    assert ("connects ok ok ok ok" in words) == (columns == 80)  # a table, where blocks have a line for each


def test_the_last_column_is_broken_between_words_before_rows_become_blocks() -> None:
    rows = [["short", "a text of many words that is wider than all of the terminal"], ["b", "c"]]
    seen = {}
    for columns in (40, 20):
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123
            console = Console(file=nowhere, width=columns, record=True, force_terminal=True)
            screen.table(console, ["name", "what it is"], rows)
        seen[columns] = [line.rstrip() for line in console.export_text().splitlines()]
    assert seen[40][2].split()[:3] == ["short", "a", "text"]
    assert " ".join(" ".join(seen[40][2:]).split()) == f"short {rows[0][1]} b c"
    assert seen[20][0] == "name        short"
    assert max(map(len, seen[40])) <= 40


def test_programs_get_long_lines() -> None:
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        console = Console(file=nowhere, width=20, record=True)
        screen.table(console, ["name", "value"], [["n" * 30, "v" * 30]])
    assert console.export_text().splitlines()[-1].split() == ["n" * 30, "v" * 30]


def test_long_words_stay_whole() -> None:
    assert screen.folded("a " + "b" * 50 + " c", 20, 2) == ["a", "  " + "b" * 50, "  c"]
    assert screen.folded("", 20) == [""]
