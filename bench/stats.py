# SPDX-License-Identifier: Apache-2.0
"""Of the values of several rounds: medians, spreads, ratios within a round; whether a target is reached."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from procs import Values
from tables import Row, Table, Target, Unit

Rounds = list[dict[str, Values]]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most over the rounds."""

    mid: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread | None:
        return cls(median(values), min(values), max(values)) if values else None

    def text(self, digits: int) -> str:
        return f"{self.mid:.{digits}f} ({self.low:.{digits}f}..{self.high:.{digits}f})"


def number(values: Values | None, unit: Unit) -> float | None:
    found = (values or {}).get(unit.value)
    return None if found is None else float(found) * unit.factor


def spread(rounds: Rounds, key: str, unit: Unit) -> Spread | None:
    return Spread.of([v for r in rounds if (v := number(r.get(key), unit)) is not None])


def ratio(rounds: Rounds, key: str, peer: str, unit: Unit) -> Spread | None:
    """Of the two in the same round."""
    found = []
    for r in rounds:
        mine, other = number(r.get(key), unit), number(r.get(peer), unit)
        if mine is not None and other:
            found.append(mine / other)
    return Spread.of(found)


def why(rounds: Rounds, key: str) -> str:
    """What stands where a figure is missing."""
    for r in rounds:
        values = r.get(key, {})
        if "absent" in values:
            return f"absent: {values['absent']}"
        if "failed" in values:
            return "failed"
    return "-"


def cell(rounds: Rounds, row: Row, column: str) -> str:
    peer = row.peers.get(column)
    if peer is None:
        return ""
    theirs = spread(rounds, peer, row.unit)
    if theirs is None:
        return why(rounds, peer)
    beside = ratio(rounds, row.key, peer, row.unit)
    compared = f": {beside.mid:.2f}x ({beside.low:.2f}..{beside.high:.2f})" if beside else ""
    return f"{theirs.mid:.{row.unit.digits}f}{compared}"


def lines(rounds: Rounds, table: Table) -> list[list[str]]:
    """Title, rnic's figure with its unit, then a cell for each peer: its figure, and rnic's divided by it."""
    found = []
    for row in table.rows:
        mine = spread(rounds, row.key, row.unit)
        shown = f"{mine.text(row.unit.digits)} {row.unit.text}" if mine else why(rounds, row.key)
        found.append([row.title, shown, *(cell(rounds, row, column) for column in table.columns)])
    return found


def measured(rounds: Rounds, keys: list[str]) -> bool:
    return any(key in r for r in rounds for key in keys)


def judge(rounds: Rounds, target: Target) -> dict[str, Any]:
    """Whether it is reached, None where it is not known, and in words by how much not."""
    if target.peer:
        found = ratio(rounds, target.key, target.peer, target.unit)
    else:
        found = spread(rounds, target.key, target.unit)
    if found is None:
        missing = target.key if spread(rounds, target.key, target.unit) is None else target.peer
        text = f"not known: {missing}: {why(rounds, missing)}"
        return {"target": target.text, "reached": None, "text": text}
    reached = found.mid >= target.bound if target.is_floor else found.mid <= target.bound
    what = f"{found.text(2)} {'x' if target.peer else target.unit.text}"
    off = abs(found.mid / target.bound - 1)
    missed = f", {off:.0%} {'below' if target.is_floor else 'above'}"
    text = f"reached: {what}" if reached else f"NOT reached: {what}{missed}"
    return {"target": target.text, "reached": reached, "text": text}


def failures(rounds: Rounds) -> list[str]:
    return [
        f"round {i}: {key}: {values['failed']}"
        for i, r in enumerate(rounds, 1)
        for key, values in r.items()
        if "failed" in values
    ]
