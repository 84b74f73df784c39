# SPDX-License-Identifier: Apache-2.0
"""Build the sdist, and from it a manylinux wheel for each Python that this machine has: `make wheels`.

Every Python needs a wheel of its own: with the stable ABI a post and its poll take half as long again.
auditwheel names the oldest glibc that has all symbols which the extension uses.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools import progress

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.13t", "3.14", "3.14t")  # t: free-threaded
# Where pyenv and uv keep what they installed.
ELSEWHERE = (".pyenv/versions/*/bin", ".local/share/uv/python/*/bin")
PROBE = """
import ensurepip, pathlib, sys, sysconfig, venv
free = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print("%d.%d%s" % (*sys.version_info[:2], free))
print((pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists())
"""


@dataclass(frozen=True)
class Found:
    """An interpreter that can build."""

    version: str
    program: Path


def folders() -> Iterator[Path]:
    """Where interpreters may be."""
    yield from map(Path, os.get_exec_path())
    for pattern in ELSEWHERE:
        yield from sorted(Path.home().glob(pattern), reverse=True)


def probe(program: Path) -> Found | None:
    """The interpreter, if it runs, and has headers and venv."""
    try:
        done = subprocess.run([program, "-c", PROBE], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return None
    answer = done.stdout.split()
    return Found(answer[0], program) if done.returncode == 0 and answer[1:] == ["True"] else None


def find(version: str) -> Found | None:
    """The first interpreter of that version."""
    for folder in folders():
        program = folder / f"python{version}"
        if program.exists() and (found := probe(program)) and found.version == version:
            return found
    return None


def run(title: str, command: list[str | Path]) -> None:
    """A step, on the line that shows how far it is; SystemExit when it fails."""
    if code := progress.run(title, [str(word) for word in command], sys.stdout):
        sys.exit(code)


def make_sdist(dist: Path) -> Path:
    """The sdist of what is committed."""
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if changed.returncode:
        sys.exit("wheels: the sdist is made of what git knows: this is no clone")
    if changed.stdout:
        print("wheels: changes that are not committed will not be in them")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # meson, ninja
    code = f"import mesonpy, os; os.chdir({str(ROOT)!r}); print(mesonpy.build_sdist({str(dist)!r}))"
    run("packing the sdist", [sys.executable, "-c", code])
    return max(dist.glob("rnic-*.tar.gz"), key=lambda file: file.stat().st_mtime)


def build(found: Found, sdist: Path, scratch: Path, *, offline: bool) -> Path:
    """A wheel as pip makes it, in an environment of its own; offline: in that of this process."""
    python: Path | str = sys.executable
    options = ["--no-build-isolation", "--no-index"]
    if not offline:
        subprocess.run([found.program, "-m", "venv", scratch / "venv"], check=True)
        python, options = scratch / "venv/bin/python", []
    options += ["-v", "--no-deps", "--disable-pip-version-check", "--wheel-dir", str(scratch)]
    run(f"building the wheel for {found.version}", [python, "-m", "pip", "wheel", *options, sdist])
    return next(scratch.glob("*.whl"))


def repair(wheel: Path, dist: Path) -> None:
    """The wheel under the tag that it deserves, in dist."""
    done = subprocess.run(
        [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", dist, wheel],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def interpreters(offline: bool) -> tuple[list[Found], list[str]]:
    """Those that there are, and the versions of which there is none."""
    if offline:
        own = probe(Path(sys.executable))
        return [own] if own else [], []
    every = {version: find(version) for version in VERSIONS}
    return [one for one in every.values() if one], [version for version, one in every.items() if not one]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="wheels", description=__doc__)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the files go (dist)")
    parser.add_argument("--offline", action="store_true", help="for this Python alone, with what it has")
    options = parser.parse_args()
    options.dist.mkdir(parents=True, exist_ok=True)
    found, missing = interpreters(options.offline)
    sdist = make_sdist(options.dist.resolve())
    for one in found:
        with tempfile.TemporaryDirectory() as scratch:
            repair(build(one, sdist, Path(scratch), offline=options.offline), options.dist)
    for file in sorted(options.dist.iterdir()):
        print(f"{file.name} ({file.stat().st_size >> 10} KiB)")
    if missing:
        print(f"not built: no Python {', '.join(missing)} with headers and venv is on this machine")


if __name__ == "__main__":
    main()
