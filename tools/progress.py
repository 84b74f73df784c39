# SPDX-License-Identifier: Apache-2.0
"""Run a command that builds, and show how far it is: `progress.py "building rnic" COMMAND...`.

On a terminal one line is drawn again and again: ninja's step, and the seconds since the start. Elsewhere the
title is one line, and the time that was needed another. What the command prints is shown when it fails.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

STEP = re.compile(r"\[(\d+)/(\d+)\] (.*)")  # as ninja prints it
LONG = 3.0  # seconds after which a step is a long one
LONG_STEP = "the longest step, the binding of Python and C, takes most of the time"
PLAIN_LINES = 40  # of a failure that names no step


class Progress:
    """The line on the terminal, or two lines where there is none."""

    def __init__(self, title: str, out: TextIO) -> None:
        self.title, self.out, self.terminal = title, out, out.isatty()
        self.step = ""
        self.started = self.stepped = time.monotonic()

    def begin(self) -> None:
        """The title, where no line can be drawn again."""
        if not self.terminal:
            print(self.title, file=self.out, flush=True)

    def take(self, line: str) -> None:
        """A line that the command printed."""
        if found := STEP.search(line):
            done, of, what = found.groups()
            self.step = f"[{done}/{of}] {what.split('/')[-1]}"
            self.stepped = time.monotonic()

    def draw(self) -> None:
        """The line once more, no longer than the terminal is wide."""
        if self.terminal:
            long = time.monotonic() - self.stepped > LONG
            line = f"{self.title}: {self.seconds()} s {LONG_STEP if self.step and long else self.step}"
            self.out.write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")
            self.out.flush()

    def end(self, *, failed: bool) -> None:
        """What is left on the terminal."""
        start = "\r\x1b[K" if self.terminal else ""
        print(f"{start}{self.title}: {'failed after ' if failed else ''}{self.seconds()} s", file=self.out)

    def seconds(self) -> int:
        """Since the start."""
        return round(time.monotonic() - self.started)


@contextmanager
def redrawn(progress: Progress) -> Iterator[None]:
    """The line goes on while a long step prints nothing."""
    over = threading.Event()

    def run() -> None:
        progress.draw()
        while not over.wait(0.2):
            progress.draw()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def complaint(lines: list[str]) -> list[str]:
    """What tells why a build failed: from ninja's first word of it, or the last lines."""
    for index, line in enumerate(lines):
        if "FAILED:" in line or "ERROR:" in line:
            return lines[index:]
    return lines[-PLAIN_LINES:]


def run(title: str, command: list[str], out: TextIO) -> int:
    """Run the command to its end; its exit code."""
    progress, lines = Progress(title, out), []
    progress.begin()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        with redrawn(progress):
            for line in process.stdout:
                lines.append(line)
                progress.take(line)
    progress.end(failed=process.returncode != 0)
    if process.returncode:
        sys.stderr.writelines(complaint(lines))
    return process.returncode


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1], sys.argv[2:], sys.stdout))
    except KeyboardInterrupt:
        sys.exit(130)
