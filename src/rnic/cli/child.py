# SPDX-License-Identifier: Apache-2.0
"""A second process that a command starts."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import IO, Any

from rnic.cli.params import printable
from rnic.cli.signals import spared


def start(*words: str, **more: Any) -> subprocess.Popen[bytes]:
    """Start `rnic` with these arguments; Ctrl-C goes only to the starting process."""
    with spared():
        return subprocess.Popen([sys.executable, "-m", "rnic", *words], stdin=subprocess.DEVNULL, **more)


def end(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the process, which ends by itself when its connection closes; kill it if it does not."""
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def scratch() -> IO[bytes]:
    """A file without a name, which needs no writable directory."""
    return os.fdopen(os.memfd_create("rnic"), "w+b")


def last_words(stderr: IO[bytes]) -> str:
    """The last line of a file that was the stderr of an ended process: ": line", or nothing."""
    stderr.seek(0)
    lines = stderr.read().decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "").removeprefix("rnic: ")
    return f": {printable(last)}" if last else ""
