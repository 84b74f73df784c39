# SPDX-License-Identifier: Apache-2.0
"""Compiles the native loops, with the core of this tree in them, into build-bench/."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OUT = ROOT / "build-bench"
# What meson's buildtype=release and b_lto say, and -g, which costs nothing and lets a profile name its lines.
FLAGS = ["-std=gnu11", "-O3", "-flto=auto", "-g", "-D_GNU_SOURCE", "-pthread", '-DRNIC_VERSION="bench"']
# Of the whole program at once the compiler fears too much.
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wno-maybe-uninitialized"]


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
    """The programs "native", "udp" and "copy"; compiles only what has changed."""
    core = ROOT / "src" / "nic"
    headers = [*core.rglob("*.h"), HERE / "loops.h"]
    sources = sorted(core.rglob("*.c"))
    objects = [OUT / "core" / s.relative_to(core).with_suffix(".o") for s in sources]
    cc, include = compiler(), f"-I{core}"

    def compile_one(source: Path, made: Path) -> None:
        if older(made, [source, *headers]):
            made.parent.mkdir(parents=True, exist_ok=True)
            run([*cc, *FLAGS, include, "-c", str(source), "-o", str(made)])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sources, objects))
    programs = {name: OUT / name for name in ("native", "udp", "copy")}
    for name, made in programs.items():
        parts = objects if name == "native" else []
        if older(made, [HERE / f"{name}.c", *headers, *parts]):
            linked = [str(HERE / f"{name}.c"), *map(str, parts)]
            run([*cc, *FLAGS, *WARNINGS, include, *linked, "-o", str(made)])
    return programs


if __name__ == "__main__":
    for program in build().values():
        print(program)
