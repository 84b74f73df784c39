# SPDX-License-Identifier: Apache-2.0
"""What `rnic run --explain` says of mistakes that beginners make: each line of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ibverbs.programs import DEVICE, OURS, compiled
from rnic._nic import nic
from ucma.under import Program, needs_libraries

pytestmark = [pytest.mark.own_way, needs_libraries]

PROGRAMS = Path(__file__).parent / "programs"
PAGE = Path(__file__).parents[2] / "docs/programs.md"


def table() -> dict[str, list[str]]:
    """The lines of each case, in the order of the alphabet."""
    cases: dict[str, list[str]] = {}
    for line in (PROGRAMS / "beginner.txt").read_text().splitlines():
        if line.startswith("["):
            lines = cases.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return {case: sorted(lines) for case, lines in cases.items()}


CASES = table()


@pytest.fixture(scope="module")
def beginner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beginner")
    return compiled(folder / "beginner", PROGRAMS / "beginner.c", *OURS, "-pthread")


def lines_of(text: str) -> list[str]:
    """Without the numbers that each run has of its own. The order of two threads' lines means nothing."""
    text = re.sub(r"0x[0-9a-f]+", "0x_", text)
    return sorted(re.sub(r"[\d,]+ m?s ago", "_ ago", text).splitlines())


def said(program: Path, case: str, *options: str, local: str = "on") -> list[str]:
    with Program(program, DEVICE, case, options=("--local", local, *options)) as running:
        assert running.wait() == 0, running.text
        return lines_of(running.text)


@pytest.mark.parametrize("case", CASES)
def test_each_mistake_is_said_with_its_cause_and_its_cure(beginner: Path, case: str) -> None:
    assert said(beginner, case, "--explain") == CASES[case]


def test_over_the_wire_the_cause_is_said_by_the_end_that_refuses(beginner: Path) -> None:
    cause = "1,024 bytes from offset 3,600 of a region of 4,096"
    lines = said(beginner, "beyond", "--explain", local="off")
    (refused,) = (line for line in lines if "has refused the WRITE" in line)
    (failed,) = (line for line in lines if "REM_ACCESS_ERR" in line)
    assert cause in refused
    assert cause not in failed
    assert len(lines) == len(CASES["beyond"])


def test_nothing_is_said_unasked(beginner: Path) -> None:
    assert said(beginner, "beyond") == []


def test_the_table_has_every_case_of_the_program(beginner: Path) -> None:
    with Program(beginner) as running:
        assert running.wait() == 2
        assert running.text.split() == list(CASES)


def test_the_page_has_every_vendor_err() -> None:
    rows = re.findall(r"^\| (\d+) \| 0x([0-9a-f]{2}) \| (.*)\. \|$", PAGE.read_text(), re.MULTILINE)
    texts = [text for _, text in nic.vendor_err_texts()]
    assert [(int(n), int(x, 16), text) for n, x, text in rows] == [
        (n, n, text[0].upper() + text[1:]) for n, text in enumerate(texts) if n
    ]
