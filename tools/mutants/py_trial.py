# SPDX-License-Identifier: Apache-2.0
"""Trials of changed Python sources: a copy of the package made of links, but for the one file."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tools.mutants import py_changes
from tools.mutants.change import Change
from tools.mutants.outcome import Outcome, run
from tools.mutants.package import package_of_links

import rnic._nic.nic

# Tests that look at a room, those that take long behind; and those that meet it in use.
TESTS = {
    "endpoint": "endpoint: handshake document",
    "cm": "cm: timing borders states steps connection refusing releasing half_open forged answers sidr "
    "kernel conn_table loss",
}
IN_USE = {"endpoint": "conn: messages ends", "cm": "rdmacm: connect datagrams"}


def files(tests: str) -> list[str]:
    folder, names = tests.split(": ")
    return [f"tests/{folder}/test_{name}.py" for name in names.split()]


@dataclass
class PyTrials:
    """Of the package that is installed in this environment, as the sources are."""

    root: Path
    build: Path
    thorough: bool
    seconds: dict[str, float] = field(default_factory=dict)

    def sources(self, room: str) -> list[str]:
        return sorted(str(p.relative_to(self.root)) for p in (self.root / "src/rnic" / room).glob("*.py"))

    def changes(self, path: str) -> list[Change]:
        return list(py_changes.changes(path, (self.root / path).read_text()))

    def prepare(self, room: str) -> None:
        """Everything passes as it is, and in how many seconds."""
        began = time.monotonic()
        if not self._passes(TESTS[room], self._package("unchanged", {}), 300):
            sys.exit(f"the tests of {room} fail without any change, so they can tell nothing")
        self.seconds[room] = time.monotonic() - began

    def outcome(self, change: Change, worker: int) -> Outcome:
        room = Path(change.path).parent.name
        source = change.apply((self.root / change.path).read_text())
        package = self._package(f"worker{worker}", {change.path: source})
        tests = [TESTS[room], IN_USE[room]] if self.thorough else [TESTS[room]]
        passes = all(self._passes(names, package, 20 + 5 * self.seconds[room]) for names in tests)
        return Outcome.SURVIVED if passes else Outcome.KILLED

    def _package(self, name: str, changed: dict[str, str]) -> Path:
        return package_of_links(
            self.root, self.build / name / "python", Path(rnic._nic.nic.__file__), changed
        )

    def _passes(self, tests: str, package: Path, limit: float) -> bool:
        env = {
            **os.environ,
            "PYTHONPATH": f"{package}:{self.root}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "RNIC_LOCAL": "off",
        }
        plugin = ["-p", "no:cacheprovider", "-p", "tools.mutants.hasty"]
        return run(
            [sys.executable, "-m", "pytest", "-x", "-q", *plugin, *files(tests)],
            limit,
            env=env,
            cwd=self.root,
        )
