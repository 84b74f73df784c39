# SPDX-License-Identifier: Apache-2.0
"""rdma-core's own Python tests, as Debian's package python3-pyverbs has them, under `rnic run`."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.table import Known

PYTHON = "/usr/bin/python3"  # the one that Debian's pyverbs is built for
PACKAGE = "python3-pyverbs"
TESTS = Path("usr/share/doc/rdma-core/tests")
INSIDE = Path(__file__).with_name("inside.py")
SECONDS = 600  # for a module, which only one that hangs takes


class MissingError(Exception):
    """What this machine lacks."""


@dataclass(frozen=True)
class Result:
    """What a test was."""

    module: str
    name: str
    outcome: str
    """"passed", "failed" or "skipped"."""
    why: str


def version() -> str:
    """The version of the package; MissingError if the tests cannot run here."""
    if shutil.which("dpkg-query") is None:
        raise MissingError(f"a Debian system, with {PACKAGE}")
    asked = ["dpkg-query", "-W", "-f", "${Version}", PACKAGE]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    works = subprocess.run([PYTHON, "-c", "import pyverbs.device"], capture_output=True, check=False)
    if found.returncode or works.returncode:
        raise MissingError(f"{PACKAGE}: apt-get install {PACKAGE}")
    if shutil.which("ip") is None:
        raise MissingError("ip, which the tests call: apt-get install iproute2")
    return found.stdout


def tests(download: bool) -> Path:
    """The folder with the package of tests, which is in a cache from then on."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = base / "rnic" / f"{PACKAGE}_{version()}"
    if not cache.is_dir():
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
            _unpack(Path("/") if _is_whole(Path("/")) else _fetched(Path(folder), download), Path(folder))
            Path(folder, "suite").rename(cache)
    return cache


def _is_whole(root: Path) -> bool:
    """Whether the package's documents were installed: small images leave them out."""
    return (root / TESTS / "run_tests.py").exists()


def _fetched(folder: Path, download: bool) -> Path:
    if not download:
        raise MissingError("the tests of rdma-core: `make pyverbs` fetches them")
    apt = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", f"{PACKAGE}={version()}"]
    try:
        subprocess.run(apt, cwd=folder, check=True)
        subprocess.run(["dpkg", "-x", next(folder.glob("*.deb")), folder], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingError(f"the tests of rdma-core, in {PACKAGE}: {error}") from None
    return folder


def _unpack(root: Path, folder: Path) -> None:
    """Copy the tests, and decompress what Debian has compressed."""
    made = folder / "suite" / "tests"
    shutil.copytree(root / TESTS, made)
    for file in made.glob("*.py.gz"):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()


def modules(folder: Path) -> list[str]:
    """The modules that have tests."""
    return sorted(file.stem for file in (folder / "tests").glob("test_*.py"))


def run(folder: Path, module: str, device: str) -> list[Result]:
    """What the tests of a module were."""
    with tempfile.TemporaryDirectory() as where:
        out = Path(where, "results")
        inside = [PYTHON, str(INSIDE), str(folder), module, device, str(out)]
        done = subprocess.run(
            [sys.executable, "-m", "rnic", "run", *inside],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
            env=os.environ | {"RNIC_VERBS_DEBUG": "1"},
        )
        results = list(_read(module, out)) if out.exists() else []
    if done.returncode and not any(one.outcome == "failed" for one in results):
        results.append(Result(module, "", "failed", f"exit code {done.returncode}: {done.stdout[-1000:]}"))
    return results


def _read(module: str, out: Path) -> Iterator[Result]:
    last = {name: (outcome, why) for name, outcome, why in map(json.loads, out.read_text().splitlines())}
    for name, (outcome, why) in last.items():
        yield Result(module, name, outcome, why)


def difference(result: Result, rows: list[Known]) -> str:
    """What is not as it is known; "": it is."""
    row = next((one for one in rows if one.is_about(result.module, result.name)), None)
    may_be = {"passed"} if row is None else row.outcomes
    return "" if result.outcome in may_be else f"{result.outcome}, not {' or '.join(sorted(may_be))}"
