# SPDX-License-Identifier: Apache-2.0
"""rnic logs as with `logging`, whether or not the program has imported it."""

from __future__ import annotations

import io
import logging
import subprocess
import sys

import pytest

from rnic.log import WARNING, Log

PROGRAM = """
import sys
from rnic.log import DEBUG, WARNING, Log
log = Log("rnic.test")
log.debug("%s", 1)
log.info("%s", 2)
log.warning("%s and %r", 3, "four")
log.log(WARNING, "five")
try:
    raise OSError("six")
except OSError as error:
    log.log(DEBUG, "seven", error=error)
    log.error("eight %d", 9, error=error)
log.error("wrong %d", "ten") if "bad" in sys.argv else None
assert ("logging" in sys.modules) == ("set" in sys.argv)
"""


def told(*arguments: str) -> str:
    program = ("import logging" if "set" in arguments else "pass") + PROGRAM
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments], stderr=subprocess.PIPE, check=True, text=True
    )
    return ran.stderr


def test_without_logging_the_same_is_told() -> None:
    assert told() == told("set")
    assert "3 and 'four'\nfive\neight 9\nTraceback" in told()


def test_a_text_that_does_not_fit_its_values_raises_nothing() -> None:
    assert told("bad").startswith(told())


def test_the_program_may_import_logging_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log("rnic.test")
    with monkeypatch.context() as before:
        before.delitem(sys.modules, "logging")
        before.setattr(sys, "stderr", stderr := io.StringIO())
        log.warning("one")
        assert stderr.getvalue() == "one\n"
    with caplog.at_level(logging.DEBUG, "rnic.test"):
        log.debug("%d", 2)
        log.log(WARNING, "three")
    assert [(one.name, one.levelname, one.getMessage()) for one in caplog.records] == [
        ("rnic.test", "DEBUG", "2"),
        ("rnic.test", "WARNING", "three"),
    ]
    assert {one.filename for one in caplog.records} == {"test_log.py"}


@pytest.mark.parametrize("stderr", [None, "closed"])
def test_where_there_is_no_stderr_nothing_is_raised(
    monkeypatch: pytest.MonkeyPatch, stderr: str | None
) -> None:
    stream = io.StringIO()
    stream.close()
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "logging")
        without.setattr(sys, "stderr", stream if stderr else None)
        Log("rnic.test").error("one", error=OSError("two"))
