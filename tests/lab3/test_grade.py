# SPDX-License-Identifier: Apache-2.0
"""The grader: a sender that is right passes, and each wrong one fails at exactly the step that is wrong."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from cli.commands import Command
from lab3.senders import (
    CASES,
    CHAIN,
    DONE_BEHIND_WRITE,
    END,
    HOSTILE,
    POLLS,
    SMALL_WRITES,
    WRONG,
    Wrong,
    but,
    patiently,
)
from rnic.cli.lab3.cases import Step
from rnic.cli.lab3.grade import Report, grade
from rnic.cli.lab3.skeleton import solution

# Files of a kind that each sender is tried with.
ENOUGH = len(CASES) if os.environ.get("RNIC_SOAK") else 1
TRIED = list(WRONG)[:: 1 if os.environ.get("RNIC_SOAK") else 3]
Start = Callable[..., Command]
Graded = dict[str, Future[dict[str, Report]]]


def reports(path: Path, text: str, seconds: float, *cases: str) -> dict[str, Report]:
    script = path / "sender.py"
    script.write_text(text)
    return {one.case.name: one for one in grade(script, seconds, [CASES[case] for case in cases])}


def is_right(wrong: Wrong, case: str, report: Report) -> bool:
    if case in wrong.passes:
        return report.failed is None
    return report.failed is wrong.step and wrong.says in report.detail


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Graded:
    """All wrong senders, several at a time: most of it is waiting."""

    def one(name: str, folder: Path) -> dict[str, Report]:
        wrong = WRONG[name]
        cases = *wrong.cases[-ENOUGH:], *wrong.passes[: ENOUGH - 1]
        return patiently(
            lambda seconds: reports(folder, wrong.text, seconds, *cases),
            wrong.seconds,
            lambda found: all(is_right(wrong, case, report) for case, report in found.items()),
        )

    with ThreadPoolExecutor(4) as pool:
        return {name: pool.submit(one, name, tmp_path_factory.mktemp("wrong")) for name in TRIED}


@pytest.mark.parametrize("name", TRIED)
def test_wrong_sender_fails_at_its_step(name: str, graded: Graded) -> None:
    wrong, found = WRONG[name], graded[name].result()
    for report in (found[case] for case in wrong.cases if case in found):
        assert report.failed is wrong.step, report
        assert wrong.says in report.detail, report
        steps = list(report.as_dict()["steps"].values())
        at = list(Step).index(wrong.step)
        assert steps == ["passed"] * at + ["failed"] + ["not reached"] * (len(steps) - at - 1)
    for report in (found[case] for case in wrong.passes if case in found):
        assert report.failed is None, report


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("text", "case"),
    [
        (DONE_BEHIND_WRITE, "2.5 regions"),
        (CHAIN, "2.5 regions"),
        (POLLS, "2.5 regions"),
        (SMALL_WRITES, "many WRITEs"),
    ],
    ids=["does not wait for the WRITE", "posts a chain", "polls", "makes small WRITEs"],
)
def test_sender_that_is_right_in_its_own_way_passes(text: str, case: str, tmp_path: Path) -> None:
    found = reports(tmp_path, text, 60, "empty", "1 region", case, "bad verdict")
    assert [(one.failed, one.detail) for one in found.values()] == [(None, "")] * 4


def test_no_sender_keeps_the_grader(tmp_path_factory: pytest.TempPathFactory) -> None:
    """That this ends is what it tests."""

    def one(name: str) -> Report:
        return reports(tmp_path_factory.mktemp("hostile"), but(HOSTILE[name]), 1, "1 byte")["1 byte"]

    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(HOSTILE, pool.map(one, HOSTILE), strict=True))
    assert not [name for name, report in found.items() if report.failed is None or report.exit_code is None]


def test_script_without_its_suffix_passes(tmp_path: Path) -> None:
    script = tmp_path / "sender"
    script.write_text(solution().replace("#!/usr/bin/env python3", f"#!{sys.executable}", 1))
    script.chmod(0o755)
    assert [one.detail for one in grade(script, 60)] == [""] * len(CASES)


def test_solution_passes_with_every_file(rnic: Start, tmp_path: Path) -> None:
    script = tmp_path / "sender.py"
    script.write_text(solution())
    result = rnic("lab3", "grade", script).wait()
    assert (result.status, result.err) == (0, "")
    assert result.out.endswith("9 of 9 runs passed\n")
    assert "FAIL" not in result.out


def test_sender_that_prints_without_end_fills_no_disk(tmp_path: Path) -> None:
    endless = but((END, "    while True:\n        print('x' * 65536)\n"))
    report = reports(tmp_path, endless, 20, "odd")["odd"]
    assert report.failed is Step.EXIT or report.failed is Step.DISCONNECT, report
    assert report.stderr or report.exit_code


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


def test_page_has_every_run_and_every_step() -> None:
    page = (Path(__file__).parents[2] / "docs/lab3.md").read_text()
    tables = page[page.index("## The grader") : page.index("## What the grader finds")]
    names = re.findall(r"^\| ([^|]+) \|", tables, re.MULTILINE)
    assert names == ["run", *CASES, "step", *(step.name.lower() for step in Step)]
