# SPDX-License-Identifier: Apache-2.0
"""Medians, ratios and verdicts of the benchmark, and its page made of stored rounds."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
import report
import stats
from stats import Rounds, Spread
from tables import GBYTES, MEDIAN, Setting, at_least, at_most

FAST = at_most(0.5, "message", MEDIAN, "mine", "theirs")


def rounds(mine: list[float], theirs: list[float]) -> Rounds:
    pairs = zip(mine, theirs, strict=True)
    return [{"mine": {"median_us": m}, "theirs": {"median_us": t}} for m, t in pairs]


def test_a_ratio_is_of_the_same_round() -> None:
    """The machine was slow in the second round; the ratio does not know."""
    found = stats.ratio(rounds([1, 9, 3], [2, 18, 4]), "mine", "theirs", MEDIAN)
    assert found == Spread(0.5, 0.5, 0.75)


@pytest.mark.parametrize(
    ("mine", "reached", "text"),
    [
        ([1.0, 1.0], True, "reached: 0.50 (0.50..0.50) x"),
        ([1.5, 1.5], False, "NOT reached: 0.75 (0.75..0.75) x, 50% above"),
    ],
)
def test_a_verdict_says_by_how_much(mine: list[float], reached: bool, text: str) -> None:
    verdict = stats.judge(rounds(mine, [2.0, 2.0]), FAST)
    assert (verdict["reached"], verdict["text"]) == (reached, text)


def test_a_floor_is_missed_from_below() -> None:
    found = [{"mine": {"gbytes_per_s": 3.0}}]
    verdict = stats.judge(found, at_least(4.0, "stream", GBYTES, "mine"))
    assert verdict["text"] == "NOT reached: 3.00 (3.00..3.00) GB/s, 25% below"


def test_what_is_absent_is_named_and_has_no_figure() -> None:
    found: Rounds = [{"mine": {"median_us": 1.0}, "theirs": {"absent": "apt-get install it"}}]
    verdict = stats.judge(found, FAST)
    assert (verdict["reached"], verdict["text"]) == (None, "not known: theirs: absent: apt-get install it")


MACHINE = {"command": "make bench", "date": "2026-01-01", "rounds": 1, "namespace": True, "cpu": "some"}


def test_the_page_is_made_of_stored_rounds_alone(tmp_path: Path) -> None:
    stored = {"machine": MACHINE | {"warning": "other work"}, "rounds": [ROUND]}
    (tmp_path / "latest.json").write_text(json.dumps(stored))
    text = report.page(tmp_path).read_text()
    assert "**Warning: other work**" in text
    assert "| WRITE 8 B, median | 0.200 (0.200..0.200) us | 0.100: 2.00x (2.00..2.00) |  |" in text
    assert "at most 1.3 x | NOT reached: 2.00 (2.00..2.00) x, 54% above |" in text
    assert "absent: apt-get install libfabric-bin" in text
    assert "rdma_rxe" not in text.replace(report.LIMITS.read_text(), "")  # that section was not measured


ROUND = {
    "local write latency": {"median_us": 0.2},
    "local ucx write latency": {"median_us": 0.1},
    "local libfabric send latency": {"absent": "apt-get install libfabric-bin"},
}


@pytest.mark.parametrize("name", report.SECTIONS)
def test_tables_and_targets_name_what_is_measured(name: str) -> None:
    section = report.SECTIONS[name]
    programs = {program: Path(program) for program in ("native", "udp", "copy")}
    known = set(section.measurements(Setting(programs, 0.1, 4096, ExitStack())))
    rows = [row for table in section.tables() for row in table.rows]
    asked = {key for row in rows for key in (row.key, *row.peers.values())}
    asked |= {key for target in section.targets() for key in (target.key, target.peer) if key}
    assert asked <= known


@pytest.mark.parametrize("name", report.SECTIONS)
def test_every_peer_has_its_column(name: str) -> None:
    for table in report.SECTIONS[name].tables():
        assert all(set(row.peers) <= set(table.columns) for row in table.rows)
