# SPDX-License-Identifier: Apache-2.0
"""`rnic completion`: the Tab key in the shells themselves, where they are installed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from packages import lacking, need_package
from waiting import PATIENCE

FOLDER = str(Path(sys.executable).parent)
TAB = "\t"
COMMANDS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}
READY = {
    "bash": "source {}\n",
    "zsh": "unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -u -D; source {}\n",
}
Complete = Callable[[str, str], None]


def surroundings(folder: Path) -> dict[str, str]:
    path = f"{FOLDER}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(folder), "ZDOTDIR": str(folder), "TERM": "dumb", "LC_ALL": "C.UTF-8"}


class Shell:
    """One at a terminal."""

    def __init__(self, name: str, folder: Path) -> None:
        self.screen = ""
        self.terminal, theirs = pty.openpty()
        self.process = subprocess.Popen(
            COMMANDS[name],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            cwd=folder,
            env=surroundings(folder),
        )
        os.close(theirs)

    def type(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def shows(self, text: str) -> None:
        """Waits until that is on the screen."""
        limit = time.monotonic() + PATIENCE
        while text not in self.screen:
            ready, _, _ = select.select([self.terminal], [], [], max(0, limit - time.monotonic()))
            assert ready, f"no {text}: {self.screen!r}"
            self.screen += os.read(self.terminal, 65536).decode(errors="replace")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


@cache
def script_of(shell: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rnic", "completion", shell], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def at_a_terminal(name: str, script: Path) -> Iterator[Complete]:
    shell = Shell(name, script.parent)

    def complete(line: str, wanted: str) -> None:
        shell.type(line + TAB)
        shell.shows(wanted)

    try:
        shell.type(READY[name].format(script))
        shell.type("echo is-$((40 + 2))\n")
        shell.shows("is-42")
        yield complete
    finally:
        shell.end()


def by_asking(script: Path) -> Complete:
    """fish(1) tells what it would complete."""

    def complete(line: str, wanted: str) -> None:
        program = f"source {script}; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", program],
            capture_output=True,
            text=True,
            cwd=script.parent,
            env=surroundings(script.parent),
            timeout=PATIENCE,
        )
        assert wanted.split()[-1] in [row.split("\t")[0] for row in done.stdout.splitlines()], done

    return complete


@pytest.fixture(params=["bash", "zsh", "fish"])
def complete(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Complete]:
    """Presses Tab behind a line, and sees what is wanted."""
    if shutil.which(request.param) is None:
        need_package(request.param)
    script = tmp_path / "script"
    script.write_text(script_of(request.param))
    if request.param == "fish":
        yield by_asking(script)
    else:
        yield from at_a_terminal(request.param, script)


def test_a_command_is_completed(complete: Complete) -> None:
    complete("rnic ucm", "rnic ucmatose")


def test_a_subcommand_is_completed(complete: Complete) -> None:
    complete("rnic lab3 rec", "rnic lab3 receiver")


def test_an_option_is_completed(complete: Complete) -> None:
    complete("rnic perf --bidir", "rnic perf --bidirectional")


def test_a_device_is_completed(complete: Complete) -> None:
    complete("rnic info roce_l", "rnic info roce_lo")


def test_a_file_is_completed(complete: Complete, tmp_path: Path) -> None:
    (tmp_path / "picture.bin").touch()
    complete("rnic demo pict", "rnic demo picture.bin")


@pytest.mark.skipif(shutil.which("fish") is None, reason=lacking("fish"))
def test_fish_shows_a_help_with_a_comma_to_its_end(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(script_of("fish"))
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {script}; complete -C 'rnic per'"],
        capture_output=True,
        text=True,
        env=surroundings(tmp_path),
        timeout=PATIENCE,
    )
    assert done.stdout == "perf\tMeasure bandwidth, latency or message rate.\n"


def test_other_shells_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rnic", "completion", "tcsh"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 2
    assert "bash" in done.stderr
