# SPDX-License-Identifier: Apache-2.0
"""Runs a module of rdma-core's tests: `python3 inside.py FOLDER MODULE DEVICE FILE` writes two lines to a
file for each test, before it and after it. It is for the system's Python, which has Debian's pyverbs, and
nothing of rnic's.
"""

from __future__ import annotations

import json
import sys
import unittest
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO


class Recorder(unittest.TextTestResult):
    """Writes what it hears of, so that a test that kills the process is known."""

    def __init__(self, *args: Any, file: TextIO) -> None:
        super().__init__(*args)
        self._file = file
        self._outcome, self._why = "", ""

    def _write(self, test: unittest.TestCase) -> None:
        name = test.id().split(".", 2)[-1]  # less the package and the module
        print(json.dumps([name, self._outcome, self._why]), file=self._file, flush=True)

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().startTest(test)
        self._outcome, self._why = "failed", "the test ended the process"
        self._write(test)
        self._outcome, self._why = "passed", ""

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802 - unittest's name
        super().addSkip(test, reason)
        self._outcome, self._why = "skipped", reason

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802 - unittest's name
        super().addError(test, err)
        self._outcome, self._why = "failed", f"{err[0].__name__}: {err[1]}"

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802 - unittest's name
        super().addFailure(test, err)
        self._outcome, self._why = "failed", f"{err[0].__name__}: {err[1]}"

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().stopTest(test)
        self._write(test)


def main(folder: str, module: str, device: str, out: str) -> None:
    sys.path[:0] = [folder, f"{folder}/tests"]
    sys.argv[1:] = ["--dev", device]
    import_module("args_parser").parser.parse_args()
    suite = unittest.defaultTestLoader.loadTestsFromModule(import_module(f"tests.{module}"))
    with Path(out).open("w") as file:
        unittest.TextTestRunner(verbosity=2, resultclass=lambda *args: Recorder(*args, file=file)).run(suite)


if __name__ == "__main__":
    main(*sys.argv[1:])
