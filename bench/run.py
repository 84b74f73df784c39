# SPDX-License-Identifier: Apache-2.0
"""Measures rnic and its peers side by side: `make bench`, or python bench/run.py.

Prints the tables, and writes bench/results/latest.json and bench/results/README.md.  As root it works in a
network namespace of its own, where no other process shares UDP 4791.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.metadata
import os
import platform
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import peers
import report
from build import FLAGS, HERE, ROOT, build, compiler
from figures import measurements
from procs import AbsentError, BrokenError, Values
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from tables import Measurements, Setting

IN_NAMESPACE = "RNIC_BENCH_NAMESPACE"  # in the environment of the process inside
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
MOST_SECONDS = 280  # no round begins that would end later, once there are three


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        found = fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        flags: int = struct.unpack("16sH14x", found)[1]
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def enter_namespace() -> bool:
    """Starts this program again in a fresh network namespace; False: stays here."""
    inside, unshare = bool(os.environ.get(IN_NAMESPACE)), shutil.which("unshare")
    if inside:
        loopback_up()
    if inside or os.geteuid() != 0 or not unshare:
        return inside
    if subprocess.run([unshare, "--net", "true"], capture_output=True, check=False).returncode:
        return False
    os.environ[IN_NAMESPACE] = "1"
    return os.execv(unshare, [unshare, "--net", "--", sys.executable, str(HERE / "run.py"), *sys.argv[1:]])


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run.py", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds (5)")
    parser.add_argument("--seconds", type=float, default=0.4, help="that a figure takes in a round (0.4)")
    parser.add_argument(
        "--mtu", type=int, default=4096, choices=[256, 512, 1024, 2048, 4096], help="path MTU (4096)"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="measurements whose name contains TEXT; writes nothing"
    )
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where results go")
    parser.add_argument("--here", action="store_true", help="stay in this network namespace")
    return parser.parse_args()


def said(command: list[str]) -> str:
    if not shutil.which(command[0]):
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout.strip()


def cpu_name() -> str:
    rows = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    names = [value.strip() for name, _, value in rows if name.strip() == "model name"]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} processors"


def granted() -> str:
    """What the kernel gives a socket that asks for as much as rnic does, as getsockopt tells."""
    found = []
    for name in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.setsockopt(socket.SOL_SOCKET, name, 4 << 20)
            found.append(s.getsockopt(socket.SOL_SOCKET, name))
    return f"receive {found[0]:,} bytes, send {found[1]:,} bytes"


def machine(args: argparse.Namespace, namespace: bool) -> dict[str, Any]:
    changed = said(["git", "status", "--porcelain", "--", "src"])
    commit = said(["git", "rev-parse", "--short", "HEAD"]) + (" and changes to src" if changed else "")
    words = shlex.join(sys.argv[1:])
    cc = said([*compiler(), "--version"]).partition("\n")[0]
    return {
        "command": f'make bench ARGS="{words}"' if words else "make bench",
        "date": time.strftime("%Y-%m-%d"),
        "namespace": namespace,
        "rnic": f"{importlib.metadata.version('rnic')}, commit {commit}",
        "cpu": cpu_name(),
        "kernel": platform.release(),
        "mtu": f"loopback {Path('/sys/class/net/lo/mtu').read_text().strip()}, path MTU {args.mtu}",
        "buffers": granted(),
        "tools": f"{platform.python_version()}, {cc} {FLAGS[1]}",
        "peers": ", ".join(f"{name} {version}" for name, version in peers.versions().items()),
        "load": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "seconds": args.seconds,
    }


def measure_round(plan: Measurements, progress: Progress, title: str) -> dict[str, Values]:
    found: dict[str, Values] = {}
    task = progress.add_task(title, total=len(plan))
    for key, run in plan.items():
        progress.update(task, description=f"{title}: {key}")
        try:
            found[key] = run()
        except AbsentError as missing:
            found[key] = {"absent": str(missing)}
        except (BrokenError, OSError, ValueError, KeyError) as failure:
            found[key] = {"failed": f"{failure}"}
        progress.advance(task)
    progress.remove_task(task)
    return found


def measure(plan: Measurements, count: int, console: Console) -> report.Rounds:
    began, rounds = time.monotonic(), []
    bar = Progress(
        TextColumn("{task.description:42}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
    )
    with bar as progress:
        for i in range(count):
            rounds.append(measure_round(plan, progress, f"round {i + 1} of {count}"))
            took = time.monotonic() - began
            if i + 1 < count and i >= 2 and took * (i + 2) / (i + 1) > MOST_SECONDS:
                console.print(f"{i + 1} rounds took {took:.0f} s: that is all the time there is")
                break
    return rounds


def main() -> int:
    args = options()
    namespace = not args.here and enter_namespace()
    console = Console(width=None if sys.stdout.isatty() else 150)
    programs = build()
    plan = measurements(Setting(programs, args.seconds, args.mtu))
    facts = machine(args, namespace)
    if args.only:
        plan = {key: run for key, run in plan.items() if args.only in key}
    rounds = measure(plan, args.rounds, console)
    report.show(rounds, console)
    if not args.only:
        report.write(args.results, rounds, facts | {"rounds": len(rounds)})
        console.print(f"\nwritten: {args.results}/README.md and latest.json", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
