# SPDX-License-Identifier: Apache-2.0
"""Compiles the native programs into build-bench/: the core of this tree, and the loops of `rnic perf`."""

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
    core, loops = ROOT / "src" / "nic", ROOT / "src" / "rnic" / "_nic"
    headers = [*core.rglob("*.h"), *loops.glob("*.h"), HERE / "loops.h", HERE / "tcp.h"]
    cc, include = compiler(), [f"-I{core}", f"-I{loops}"]

    def compile_one(source: Path) -> Path:
        made = OUT / source.relative_to(ROOT).with_suffix(".o")
        if older(made, [source, *headers]):
            made.parent.mkdir(parents=True, exist_ok=True)
            run([*cc, *FLAGS, *include, "-c", str(source), "-o", str(made)])
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        device = list(pool.map(compile_one, sorted(core.rglob("*.c"))))
    samples = [compile_one(loops / "samples.c")]
    parts = {"native": [*device, compile_one(loops / "perf.c"), *samples], "udp": samples, "copy": []}
    programs = {name: OUT / name for name in parts}
    for name, made in programs.items():
        if older(made, [HERE / f"{name}.c", *headers, *parts[name]]):
            linked = [str(HERE / f"{name}.c"), *map(str, parts[name])]
            run([*cc, *FLAGS, *WARNINGS, *include, *linked, "-o", str(made)])
    return programs


if __name__ == "__main__":
    for program in build().values():
        print(program)
