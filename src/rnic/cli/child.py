# SPDX-License-Identifier: Apache-2.0
"""The second process of a command, which the first one starts."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import IO, Any

from rnic.cli.params import printable
from rnic.cli.signals import spared


def start(*words: str, **more: Any) -> subprocess.Popen[bytes]:
    """Starts `rnic` with these arguments; Ctrl-C is left to the process that starts it."""
    with spared():
        return subprocess.Popen([sys.executable, "-m", "rnic", *words], stdin=subprocess.DEVNULL, **more)


def end(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Waits for it, as it ends by itself when its connection closes; kills it if it does not."""
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def scratch() -> IO[bytes]:
    """A file without a name, which needs no directory that can be written."""
    return os.fdopen(os.memfd_create("rnic"), "w+b")


def last_words(stderr: IO[bytes]) -> str:
    """The last line of a file that was the stderr of one that has ended: ": line", or nothing."""
    stderr.seek(0)
    lines = stderr.read().decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "").removeprefix("rnic: ")
    return f": {printable(last)}" if last else ""
