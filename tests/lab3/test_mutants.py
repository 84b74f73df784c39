# SPDX-License-Identifier: Apache-2.0
"""The table of mutants in docs/lab3.md is that of this solution, and the grader still says what it has."""

from __future__ import annotations

import os
import random

import pytest

from lab3.equivalent import EQUIVALENT, OVER_IWARP
from lab3.mutants import ENDLESS, Mutant, judged, mutants, recorded, row, verdict
from rdmacm.ends import IWARP

SAMPLE = 6
SEED = int(os.environ.get("RNIC_LAB3_SEED", "1"))


@pytest.fixture(scope="module")
def found() -> dict[str, Mutant]:
    """Each mutant by the beginning of its row."""
    return {row(one, ""): one for one in mutants()}


def beginning(line: str) -> str:
    return line.rpartition("|")[0].rpartition(" | ")[0] + " |  |"


def expected(one: Mutant, line: str) -> str:
    other = OVER_IWARP.get((one.part, one.what)) if IWARP else None
    return row(one, other) if other else line


def test_table_has_every_mutant_of_this_solution(found: dict[str, Mutant]) -> None:
    assert [beginning(line) for line in recorded()] == list(found), "python tests/lab3/mutants.py"


def test_mutants_that_pass_have_a_reason_and_the_others_have_none() -> None:
    passed = [line for line in recorded() if " | passes: " in line]
    reasons = [row(Mutant(part, what, ""), f"passes: {why}") for (part, what), why in EQUIVALENT.items()]
    assert sorted(passed) == sorted(reasons)


def test_grader_says_of_mutants_what_the_table_has(found: dict[str, Mutant]) -> None:
    lines = recorded()
    if not os.environ.get("RNIC_SOAK"):
        endless = {row(Mutant(part, what, ""), "") for part, what in ENDLESS}
        soon = [line for line in lines if beginning(line) not in endless]
        lines = random.Random(SEED).sample(soon, SAMPLE)
    said = {
        row(one, verdict(one, report)) for one, report in judged(found[beginning(line)] for line in lines)
    }
    assert said == {expected(found[beginning(line)], line) for line in lines}
