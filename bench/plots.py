# SPDX-License-Identifier: Apache-2.0
"""Pictures of figures, by matplotlib."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

from procs import AbsentError
from stats import Rounds, spread
from tables import Unit


class Line(NamedTuple):
    """Figures over numbers."""

    label: str
    numbers: tuple[int, ...]
    keys: list[str]


class Panel(NamedTuple):
    """Lines of one unit."""

    title: str
    across: str
    unit: Unit
    lines: list[Line]


class Picture(NamedTuple):
    """A file with panels side by side."""

    file: str
    panels: list[Panel]
    logarithmic: bool = False


def draw(where: Path, rounds: Rounds, pictures: list[Picture]) -> None:
    """The files, or none: AbsentError where there is no matplotlib."""
    for picture in pictures:
        (where / picture.file).unlink(missing_ok=True)
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise AbsentError("sh bench/peers.sh (matplotlib from PyPI)") from None
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "rnic"
    pyplot = importlib.import_module("matplotlib.pyplot")
    for picture in pictures:
        figure, panels = pyplot.subplots(1, len(picture.panels), figsize=(9, 3.5), layout="constrained")
        for at, panel in zip(panels, picture.panels, strict=True):
            fill(at, rounds, panel, picture.logarithmic)
        figure.savefig(where / picture.file, metadata={"Date": None})
        pyplot.close(figure)


def fill(at: Any, rounds: Rounds, panel: Panel, logarithmic: bool) -> None:
    for line in panel.lines:
        add(at, rounds, line, panel.unit)
    at.set(title=panel.title, xlabel=panel.across, ylabel=panel.unit.text)
    if logarithmic:
        ticker = importlib.import_module("matplotlib.ticker")
        at.set(xscale="log", yscale="log")
        numbers = panel.lines[0].numbers
        at.set_xticks(numbers, [str(n) for n in numbers], minor=False)
        at.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        at.yaxis.set_major_formatter("{x:g}")
        at.minorticks_off()
    else:
        at.set_ylim(bottom=0)
    at.grid(alpha=0.3)
    at.legend()


def add(at: Any, rounds: Rounds, line: Line, unit: Unit) -> None:
    """Medians, with bars from the least to the most."""
    points = [
        (n, s) for n, key in zip(line.numbers, line.keys, strict=True) if (s := spread(rounds, key, unit))
    ]
    across, mid = [n for n, _ in points], [s.mid for _, s in points]
    bars = [[s.mid - s.low for _, s in points], [s.high - s.mid for _, s in points]]
    at.errorbar(across, mid, bars, marker="o", capsize=3, label=line.label)
