# SPDX-License-Identifier: Apache-2.0
"""The grader: a sender that is right passes, and each wrong one fails at exactly the step that is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.commands import Command
from lab3.senders import RIGHT, WRONG
from rnic.cli.lab3.grade import CASES, Report, grade
from rnic.cli.lab3.judge import Step

# Files of a kind that each sender is tried with.
ENOUGH = len(CASES) if os.environ.get("RNIC_SOAK") else 1
Start = Callable[..., Command]


def reports(path: Path, text: str, seconds: float, *cases: str) -> dict[str, Report]:
    script = path / "sender.py"
    script.write_text(text)
    return {one.case: one for one in grade(script, seconds, {case: CASES[case] for case in cases})}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_sender_fails_at_its_step(name: str, tmp_path: Path) -> None:
    wrong = WRONG[name]
    fails, passes = wrong.cases[-ENOUGH:], wrong.passes[:ENOUGH]
    found = reports(tmp_path, wrong.text, wrong.seconds, *fails, *passes)
    for case in fails:
        assert found[case].failed is wrong.step, found[case]
        assert wrong.says in found[case].detail, found[case]
        steps = list(found[case].as_dict()["steps"].values())
        at = list(Step).index(wrong.step)
        assert steps == ["passed"] * at + ["failed"] + ["not reached"] * (len(steps) - at - 1)
    for case in passes:
        assert found[case].failed is None, found[case]


@pytest.mark.parametrize("name", RIGHT)
def test_right_sender_passes_with_every_file(name: str, tmp_path: Path) -> None:
    found = reports(tmp_path, RIGHT[name], 20, *CASES)
    assert {case: (one.failed, one.detail) for case, one in found.items()} == dict.fromkeys(CASES, (None, ""))


def test_solution_passes_on_the_command_line(rnic: Start, tmp_path: Path) -> None:
    script = tmp_path / "sender.py"
    script.write_text(RIGHT["solution"])
    result = rnic("lab3", "grade", script).wait()
    assert (result.status, result.err) == (0, "")
    assert result.out.endswith("5 of 5 files passed\n")
    assert "FAILED" not in result.out


def test_skeleton_fails_at_its_first_gap(rnic: Start, tmp_path: Path) -> None:
    script = tmp_path / "sender.py"
    script.write_text(rnic("lab3", "--skeleton").wait().out)
    result = rnic("lab3", "grade", script, "--json").wait()
    assert result.status == 1
    report = json.loads(result.out)
    assert report["passed"] is False
    assert [case["steps"]["connect"] for case in report["cases"]] == ["failed"] * len(CASES)
    assert "NotImplementedError: TODO 1" in report["cases"][0]["stderr"]


def test_sender_that_is_no_python_runs_by_itself(rnic: Start, tmp_path: Path) -> None:
    script = tmp_path / "sender"
    script.write_text("#!/bin/sh\necho no compiler >&2\nexit 3\n")
    script.chmod(0o755)
    result = rnic("lab3", "grade", script).wait()
    assert result.status == 1
    assert "no request to connect came: the sender ended with exit code 3" in result.out
    assert "its last words: no compiler" in result.out
