# SPDX-License-Identifier: Apache-2.0
"""Compiles the native programs into build-bench/: the core of this tree, and the loops of `rnic perf`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OUT = ROOT / "build-bench"
# What meson's buildtype=release and b_lto say, and -g, which costs nothing and lets a profile name its lines.
FLAGS = ["-std=gnu11", "-O3", "-flto=auto", "-g", "-D_GNU_SOURCE", "-pthread", '-DRNIC_VERSION="bench"']
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wshadow"]
FABRIC = ("talk", "fabric", "check")  # of tests/c: two ends of src/msg, and the network between


def compiler() -> list[str]:
    """The compiler with its own options, from CC or the first of cc, gcc, clang."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    sys.exit("bench: no C compiler: apt-get install gcc libc6-dev")


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench: {shlex.join(command)}\n{done.stderr}")


def older(made: Path, sources: list[Path]) -> bool:
    return not made.exists() or any(s.stat().st_mtime > made.stat().st_mtime for s in sources)


def build() -> dict[str, Path]:
    """The programs "native", "udp", "copy", "messages", the library "clock"; compiles what has changed."""
    src, tests = ROOT / "src", ROOT / "tests" / "c"
    core, loops = src / "nic", src / "rnic" / "_nic"
    headers = [*src.rglob("*.h"), *tests.glob("*.h"), HERE / "loops.h", HERE / "tcp.h"]
    cc, include = compiler(), [f"-I{folder}" for folder in (core, loops, src, tests)]

    def compile_one(source: Path) -> Path:
        made = OUT / source.relative_to(ROOT).with_suffix(".o")
        if older(made, [source, *headers]):
            made.parent.mkdir(parents=True, exist_ok=True)
            run([*cc, *FLAGS, *WARNINGS, *include, "-c", str(source), "-o", str(made)])
        return made

    def compile_all(sources: Iterable[Path]) -> list[Path]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(compile_one, sorted(sources)))

    device, samples = compile_all(core.rglob("*.c")), [compile_one(loops / "samples.c")]
    ends = compile_all([*(src / "msg").glob("*.c"), *(tests / f"{name}.c" for name in FABRIC)])
    parts = {
        "native": [*device, compile_one(loops / "perf.c"), *samples],
        "udp": samples,
        "copy": [],
        "messages": [*device, *ends],
    }
    programs = {name: OUT / name for name in parts}
    for name, made in programs.items():
        linked = [compile_one(HERE / f"{name}.c"), *parts[name]]
        if older(made, linked):  # -w: of the whole program at once the compiler fears too much
            run([*cc, *FLAGS, "-w", *map(str, linked), "-o", str(made)])
    clock, source = OUT / "clock.so", HERE / "clock.c"
    if older(clock, [source]):
        run([*cc, *FLAGS, *WARNINGS, "-shared", "-fPIC", str(source), "-o", str(clock)])
    return programs | {"clock": clock}


if __name__ == "__main__":
    for program in build().values():
        print(program)
