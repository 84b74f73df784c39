# SPDX-License-Identifier: Apache-2.0
"""What this computer must have for a machine, and running its commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

TUN = Path("/dev/net/tun")
BUSYBOX = "busybox"
# Programs, and the Debian packages that have them.
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    BUSYBOX: "busybox-static",
    "modprobe": "kmod",
    "ip": "iproute2",
    "rdma": "iproute2",
    "/usr/bin/python3": "python3",  # runs the agent in the machine
}
FOR_SIW = {"gcc": "gcc", "make": "make", "xz": "xz-utils"}
# What users of RDMA look for in the machine, which has this computer's programs.
TOOLS = {
    "ibv_devinfo": "ibverbs-utils",
    "rping": "rdmacm-utils",
    "ib_write_bw": "perftest",
}


def search_path() -> str:
    """Where programs are; a user's PATH has no sbin."""
    return ":".join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


class CommandError(RuntimeError):
    """A command of this computer failed; the text shows it and what it printed."""


def sh(*cmd: object, cwd: object = None, look: Callable[[], None] = lambda: None) -> str:
    """Run a command; its output (stdout and stderr) is the result, its failure a CommandError.

    look  is called each second; what it raises ends the command
    """
    words = [str(c) for c in cmd]
    env = dict(os.environ, LC_ALL="C", DEBIAN_FRONTEND="noninteractive", PATH=search_path())
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=None if cwd is None else str(cwd),
        env=env,
    ) as process:
        try:
            printed = _output(process, look)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise CommandError(f"{' '.join(words)}: exit {process.returncode}\n{printed}")
    return printed


def _output(process: subprocess.Popen[str], look: Callable[[], None]) -> str:
    while True:
        try:
            return process.communicate(timeout=1)[0]
        except subprocess.TimeoutExpired:
            look()


def log(text: str) -> None:
    """A line for whoever waits."""
    print(f"rnic vm: {text}", file=sys.stderr, flush=True)


def found(program: str) -> bool:
    """Whether this computer has it."""
    return shutil.which(program, path=search_path()) is not None


def missing(*, siw: bool = False) -> str:
    """What keeps a machine from running on this computer, in one line; "" when nothing does."""
    lacks = []
    if os.uname().machine != "x86_64":
        lacks.append("an x86-64 processor")
    if why := _no_tun():
        lacks.append(f"{TUN} ({why})")
    packages = sorted({p for name, p in (PROGRAMS | FOR_SIW if siw else PROGRAMS).items() if not found(name)})
    if BUSYBOX not in packages and _is_dynamic(BUSYBOX):
        packages.append(PROGRAMS[BUSYBOX])
    if found("apt-get") and found("dpkg-deb"):
        if packages:
            lacks.append(f"Debian's {_list(packages)} (apt-get install {' '.join(packages)})")
    else:
        lacks.append(
            "apt-get and dpkg-deb (it is not Debian: the machine has Debian's kernel, fetched by apt-get)"
        )
        if packages:
            lacks.append(f"the programs of Debian's packages {', '.join(packages)}")
    return "; ".join(lacks)


def missing_tools() -> list[str]:
    """Debian packages with programs that the machine could have, and has not."""
    return [package for program, package in TOOLS.items() if not found(program)]


def _list(packages: list[str]) -> str:
    return f"package{'s' * (len(packages) > 1)} {', '.join(packages)}"


def _no_tun() -> str:
    try:
        os.close(os.open(TUN, os.O_RDWR))
    except PermissionError:
        return "no permission to open it; its mode should be 0666"
    except OSError as error:
        return f"{error.strerror}; as root: modprobe tun"
    return ""


def _is_dynamic(program: str) -> bool:
    """Whether it needs libraries, which the machine's first file system has not."""
    where = shutil.which(program, path=search_path())
    return where is not None and b"/ld-linux" in Path(where).read_bytes()
