# SPDX-License-Identifier: Apache-2.0
"""A container of this program's own making: `python -m containers.box '{"namespaces": ["pid"]}' WHAT...`.

What probe.py has to do runs in it.  All is imported before: another user may not be allowed to read it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import namespaces as net
from containers import probe, seccomp

CLONE = {
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "mount": 0x00020000,
    "ipc": 0x08000000,
}
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
MS_REC, MS_PRIVATE, MS_NOSUID = 0x4000, 0x40000, 0x2
LIMITS = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK, "as": resource.RLIMIT_AS}


@dataclass(frozen=True)
class Box:
    """What a process is shut into."""

    namespaces: tuple[str, ...] = ()
    uid: int | None = None
    """Become this user first."""
    map: bool = True
    """With a user namespace: be root there; else be nobody whom it knows."""
    profile: str = ""
    """Of seccomp.PROFILES."""
    limits: tuple[tuple[str, int], ...] = ()

    def command(self, *what: str) -> list[str]:
        return [sys.executable, "-m", "containers.box", json.dumps(asdict(self)), *what]


def enter(box: Box) -> None:
    """Be in it; with a pid namespace, a child of this process is."""
    code = seccomp.program(box.profile) if box.profile else b""
    if box.uid is not None:
        os.setgroups([])
        os.setgid(box.uid)
        os.setuid(box.uid)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # which has gone with the user, and /proc/self with it
    uid, gid = os.geteuid(), os.getegid()
    flags = sum(CLONE[one] for one in box.namespaces)
    if flags:
        net.unshare(flags)
    if "user" in box.namespaces and box.map:
        with suppress(OSError):
            Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    with suppress(OSError):  # without a right to
        if "net" in box.namespaces:
            net.loopback_up()
    if "pid" in box.namespaces:
        as_first_process()
    if "mount" in box.namespaces:
        mounts("pid" in box.namespaces)
    for name, value in box.limits:
        resource.setrlimit(LIMITS[name], (value, value))
    if code:
        seccomp.confine(code)


def as_first_process() -> None:
    """A child is in the namespace; this one waits for it, and ends as it does."""
    child = os.fork()
    if child:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def mounts(pids: bool) -> None:
    """Of its own, with the /proc of its processes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
    if pids:
        libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID, None)  # not everybody may


def main() -> None:
    fields = json.loads(sys.argv[1])
    fields["limits"] = tuple((name, value) for name, value in fields["limits"])
    enter(Box(**fields))
    probe.main(sys.argv[2:])


if __name__ == "__main__":
    main()
