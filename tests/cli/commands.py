# SPDX-License-Identifier: Apache-2.0
"""Running the command `rnic` as a user does: in processes of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

SECONDS = 60


@dataclass
class Result:
ERASE = "\r\x1b[K"
    """How a command ended."""

    status: int
    out: str
    err: str


class Command:
    """`rnic` with arguments, running."""

    def __init__(self, *args: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rnic", *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def listening(self) -> int:
        """The TCP port that a server started with -p 0 has taken; waits for it."""
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        match = re.fullmatch(r"listening on port (\d+)\n", line)
        assert match, line + self.process.stderr.read()
        return int(match[1])

    def wait(self, seconds: float = SECONDS) -> Result:
        out, err = self.process.communicate(timeout=seconds)
        return Result(self.process.returncode, out, err)


Start = Callable[..., Command]
