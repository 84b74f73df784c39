# SPDX-License-Identifier: Apache-2.0
"""A lock that processes take in turn. One that waits names the one that has it, and gives up in the end."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from rnic.vm.job import MachineError

SILENT = 1.0  # seconds of waiting of which nothing is said
LOOK = 0.05  # seconds between two attempts


def take(
    fd: int,
    path: Path,
    patience: float,
    say: Callable[[str], object],
    look: Callable[[], object] = lambda: None,
) -> None:
    """Lock an open file or folder, until its descriptor is closed; MachineError after patience seconds.

    say   is called once, and told which process has the lock
    look  is called at each attempt, and may raise what ends the waiting
    """
    began, told = time.monotonic(), False
    while not _is_taken(fd):
        waited = time.monotonic() - began
        if waited > patience:
            raise MachineError(
                f"{_holder(fd)} has held the lock on {path} for {patience:g} s: end it, and try again"
            )
        if waited > SILENT and not told:
            say(f"waiting for {_holder(fd)}, which holds the lock on {path}")
            told = True
        look()
        time.sleep(LOOK)


def _is_taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(fd: int) -> str:
    """In words. The kernel lists locks by device and inode; some file systems say another device there."""
    listed = Path("/proc/locks").read_text() if Path("/proc/locks").exists() else ""
    found = re.findall(rf"^\d+: FLOCK .* (\d+) \S+:{os.fstat(fd).st_ino} ", listed, re.MULTILINE)
    return f"process {found[0]}" if found else "another process"
