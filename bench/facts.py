# SPDX-License-Identifier: Apache-2.0
"""What is told of the machine beside the figures, and whether it had other work."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import peers
from build import FLAGS, ROOT, compiler

from rnic.cli.perf.report import cpu_model

CALM = 0.1  # part of all processors that may be busy before the page warns
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def said(command: list[str]) -> str:
    if not shutil.which(command[0]):
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout.strip()


def granted() -> str:
    """What the kernel gives a socket that asks for as much as rnic does, as getsockopt tells."""
    found = []
    for name in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.setsockopt(socket.SOL_SOCKET, name, 4 << 20)
            found.append(s.getsockopt(socket.SOL_SOCKET, name))
    return f"receive {found[0]:,} bytes, send {found[1]:,} bytes"


def ticks() -> tuple[int, int]:
    """Of all processors since boot: busy, and all."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def busy(seconds: float = 0.5) -> float:
    """The part of the processors that others use while we do nothing."""
    before = ticks()
    time.sleep(seconds)
    after = ticks()
    return (after[0] - before[0]) / max(1, after[1] - before[1])


def machine(namespace: bool, mtu: int, seconds: float) -> dict[str, Any]:
    changed = said(["git", "status", "--porcelain", "--", "src", "bench"])
    commit = said(["git", "rev-parse", "--short", "HEAD"]) + (" and changes to it" if changed else "")
    arguments = shlex.join(sys.argv[1:])
    cc = said([*compiler(), "--version"]).partition("\n")[0]
    return {
        "command": f'make bench ARGS="{arguments}"' if arguments else "make bench",
        "date": time.strftime("%Y-%m-%d"),
        "namespace": namespace,
        "rnic": f"{importlib.metadata.version('rnic')}, commit {commit}",
        "cpu": f"{cpu_model()}, {os.cpu_count()} processors",
        "kernel": platform.release(),
        "governor": GOVERNOR.read_text().strip() if GOVERNOR.exists() else "none that is told",
        "mtu": f"loopback {Path('/sys/class/net/lo/mtu').read_text().strip()}, path MTU {mtu}",
        "buffers": granted(),
        "tools": f"{platform.python_version()}, {cc} {FLAGS[1]}",
        "peers": ", ".join(f"{name} {version}" for name, version in peers.versions().items()),
        "load": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "seconds": seconds,
    }


def calm(before: list[float]) -> dict[str, Any]:
    """What is said of other work, seen before each round."""
    loud = sum(part > CALM for part in before)
    warning = f"other work kept the processors busy before {loud} of {len(before)} rounds" if loud else ""
    return {"busy": " ".join(f"{part:.0%}" for part in before), "warning": warning}
