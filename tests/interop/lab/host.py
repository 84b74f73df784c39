# SPDX-License-Identifier: Apache-2.0
"""What this machine must have for the lab, and running its commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NOT_RUN = 77  # the exit code of "the tests could not be run here", as automake and meson read it

PACKAGES = [
    *("qemu-system-x86", "busybox-static", "cpio", "kmod", "iproute2", "tcpdump", "tshark"),  # this machine
    *("gcc", "make", "xz-utils"),  # to build siw
    # the guest
    *("ibverbs-utils", "ibverbs-providers", "rdmacm-utils", "perftest", "python3", "python3-pyverbs"),
]


class CommandError(RuntimeError):
    """A command of this machine failed; the text shows it and what it printed."""


def sh(*cmd: object, cwd: object = None) -> str:
    """Run a command; its output (stdout and stderr) is the result, its failure a CommandError."""
    words = [str(c) for c in cmd]
    env = dict(os.environ, LC_ALL="C", DEBIAN_FRONTEND="noninteractive")
    run = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=None if cwd is None else str(cwd),
        env=env,
    )
    if run.returncode:
        raise CommandError(f"{' '.join(words)}: exit {run.returncode}\n{run.stdout}")
    return run.stdout


def log(text: str) -> None:
    print(f"interop: {text}", file=sys.stderr, flush=True)


def missing() -> str:
    """What keeps the lab from running on this machine, in one line; "" when nothing does."""
    lacks = []
    if os.geteuid() != 0:
        lacks.append("root (to make a tap device and to mount this machine in the guest)")
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except PermissionError:
        if os.geteuid() == 0:
            lacks.append("permission to open /dev/net/tun")
    except OSError as e:
        lacks.append(f"/dev/net/tun ({e.strerror})")
    if os.uname().machine != "x86_64":
        lacks.append("an x86-64 processor")
    packages = _not_installed()
    if packages and not shutil.which("apt-get"):
        lacks.append(f"the programs of Debian's packages {', '.join(packages)} (and there is no apt-get)")
    return "; ".join(lacks)


def install() -> None:
    """Install the Debian packages that this machine lacks."""
    packages = _not_installed()
    if packages:
        log(f"apt-get install {' '.join(packages)}")
        sh("apt-get", "update")
        sh("apt-get", "install", "-y", "--no-install-recommends", *packages)


def _not_installed() -> list[str]:
    if not shutil.which("dpkg-query"):
        return PACKAGES
    query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *PACKAGES]
    status = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    return [p for p in PACKAGES if f"{p} installed" not in status]
