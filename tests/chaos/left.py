# SPDX-License-Identifier: Apache-2.0
"""What a run has left behind on the machine."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SHM = Path("/dev/shm")


def adopt() -> None:
    """Processes whose parent dies become this process' children."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Of all threads; what has ended but was not waited for is waited for, and does not count."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in found if not over(pid)]


def over(pid: int) -> bool:
    with suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return True


def command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return "gone"


def end(pids: list[int]) -> None:
    """Kill processes of ours, and wait for them."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def table(name: str) -> list[str]:
    return Path("/proc/self/net", name).read_text().splitlines()[1:]


def on_the_machine() -> set[str]:
    """Names and ports of rnic's in this network namespace, and files in shared memory."""
    found = {f"socket {line.split()[7]}" for line in table("unix") if "rnic/" in line}
    for name in ("udp", "udp6"):
        found |= {f"{name} port 4791, inode {line.split()[9]}" for line in table(name) if ":12B7 " in line}
    if SHM.is_dir():
        found |= {f"file {one}" for one in SHM.iterdir() if "rnic" in one.name}
    return found
