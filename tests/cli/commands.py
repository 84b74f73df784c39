# SPDX-License-Identifier: Apache-2.0
"""Running the command `rnic` as a user does: in processes of its own."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from forked import Forked

SECONDS = 300  # that only a command that hangs takes
ERASE = "\r\x1b[K"
LISTENING = r"listening on port (\d+)(?: of .+)?\n"


def begin(*words: str, stderr: int) -> subprocess.Popen[str]:
    """As a shell does."""
    return subprocess.Popen(
        [sys.executable, "-m", "rnic", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


@dataclass
class Result:
    """How a command ended."""

    status: int
    out: str
    err: str


class Command:
    """`rnic` with arguments, running; stderr is a pipe, or a terminal.

    anew: with an interpreter of its own, see tests/forked.py.
    """

    def __init__(self, *args: object, terminal: bool = False, anew: bool = False) -> None:
        self.client: list[str] = []  # "client:", and the command that a server says is its client
        self.screen = ""  # all that it has written to the terminal
        self._terminal, stderr = pty.openpty() if terminal else (-1, subprocess.PIPE)
        self.process = (begin if anew else Forked)(*map(str, args), stderr=stderr)
        if terminal:
            os.close(stderr)

    def listening(self) -> int:
        """The port that a server has taken; waits for it, and for what it says of its client."""
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        match = re.fullmatch(LISTENING, line)
        assert match, line + self.process.stderr.read()
        self.client = shlex.split(self.process.stderr.readline())
        return int(match[1])

    def shows(self, pattern: str, seconds: float = SECONDS) -> None:
        """Waits until that is on its terminal."""
        until = time.monotonic() + seconds
        while not re.search(pattern, self.screen):
            assert self._see(until), f"no {pattern}: {self.screen!r}"

    def _see(self, until: float) -> bool:
        """More of the screen; False when there is none to come, or it is too late."""
        ready, _, _ = select.select([self._terminal], [], [], max(0, until - time.monotonic()))
        try:
            more = os.read(self._terminal, 65536) if ready else b""
        except OSError:  # nobody has the other side any more
            more = b""
        self.screen += more.decode()
        return bool(more)

    def wait(self, seconds: float = SECONDS) -> Result:
        """stderr of a terminal is what it still shows in the end, as lines."""
        until = time.monotonic() + seconds
        while self._terminal >= 0 and self._see(until):
            pass
        out, err = self.process.communicate(timeout=max(0, until - time.monotonic()))
        if self._terminal >= 0:
            err = self.screen.rpartition(ERASE)[2].replace("\r\n", "\n")
        return Result(self.process.wait(), out, err)

    def close(self) -> None:
        """Kills it, if it still runs. What it has started may keep its streams."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=1)
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1


Start = Callable[..., Command]
