# SPDX-License-Identifier: Apache-2.0
"""From rounds of values to what is shown, to a file of JSON for each section, to the page made of these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import craft
import crowded
import existing
import figures
import guest
import instructions
import iwarp
import scaling
from build import HERE
from plots import Picture, draw
from procs import AbsentError
from rich.console import Console
from rich.table import Table as RichTable
from stats import Rounds, failures, judge, lines, measured
from tables import Measurements, Setting, Table, Target


class Section(Protocol):
    """A module that measures: figures, iwarp, existing, craft, crowded, scaling, guest, instructions."""

    def measurements(self, s: Setting) -> Measurements: ...
    def tables(self) -> list[Table]: ...
    def targets(self) -> list[Target]: ...
    def notes(self, rounds: Rounds) -> dict[str, list[str]]: ...


# file of JSON: the section; in the order of the page
SECTIONS: dict[str, Section] = {
    "latest": figures,
    "iwarp": iwarp,
    "programs": existing,
    "patterns": craft,
    "crowded": crowded,
    "scaling": scaling,
    "guest": guest,
    "instructions": instructions,
}
PICTURES = {"patterns": craft.pictures, "scaling": scaling.pictures}
LIMITS = HERE / "limits.md"
MACHINE = {
    "rnic": "rnic",
    "CPU": "cpu",
    "kernel": "kernel",
    "governor": "governor",
    "MTU": "mtu",
    "socket buffer granted": "buffers",
    "Python, compiler": "tools",
    "peers": "peers",
    "load before": "load",
    "processors busy with other work, before each round": "busy",
    "seconds a figure": "seconds",
}
INTRODUCTION = (
    "In each round every figure is taken once, every other round in reverse order, so that what stands in a "
    "row met the same machine. A figure is the median over the rounds with the least and the most; a ratio "
    "is rnic's figure divided by the peer's in the same round. `make bench` writes this page: nothing on it "
    "is written by hand but [what limits](../limits.md), at its end."
)


def show(section: Section, rounds: Rounds, console: Console) -> None:
    for table in section.tables():
        if not measured(rounds, [row.key for row in table.rows]):
            continue
        grid = RichTable(title=table.title, caption=table.note, title_justify="left", caption_justify="left")
        for column in ("", "rnic", *table.columns):
            grid.add_column(column, justify="right" if column else "left", overflow="fold")
        for line in lines(rounds, table):
            grid.add_row(*line)
        console.print(grid)
    for title, texts in ({"Failures": failures(rounds)} | section.notes(rounds)).items():
        if texts:
            console.print(f"\n[bold]{title}[/bold]")
        for text in texts:
            console.print(f"  {text}", highlight=False)
    for target in section.targets():
        if measured(rounds, [target.key]):
            verdict = judge(rounds, target)
            colour = {True: "green", False: "red", None: "yellow"}[verdict["reached"]]
            console.print(f"{target.text}: [{colour}]{verdict['text']}[/{colour}]", highlight=False)


def store(where: Path, name: str, rounds: Rounds, machine: dict[str, Any]) -> None:
    section = SECTIONS[name]
    where.mkdir(parents=True, exist_ok=True)
    everything = {
        "machine": machine,
        "targets": [judge(rounds, target) for target in section.targets()],
        "tables": [
            {"title": t.title, "columns": ["", "rnic", *t.columns], "rows": lines(rounds, t)}
            for t in section.tables()
        ],
        "rounds": rounds,
    }
    (where / f"{name}.json").write_text(json.dumps(everything, indent=1) + "\n")


# ---------------------------------------------------------------- the page


def grid(head: list[str], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def about(machine: dict[str, Any]) -> list[str]:
    where = (
        "in a network namespace of its own" if machine["namespace"] else "no namespace of its own: no root"
    )
    said = f"`{machine['command']}`, {machine['date']}, {machine['rounds']} rounds, {where}."
    warning = ["", f"**Warning: {machine['warning']}**"] if machine.get("warning") else []
    rows = [[name, str(machine[key])] for name, key in MACHINE.items() if key in machine]
    return [said, *warning, "", *grid(["", ""], rows)]


def verdicts(found: dict[str, dict[str, Any]]) -> list[list[str]]:
    return [
        [target.text, judge(stored["rounds"], target)["text"]]
        for name, stored in found.items()
        for target in SECTIONS[name].targets()
    ]


def pictures(where: Path, rounds: Rounds, wanted: list[Picture]) -> str:
    try:
        draw(where, rounds, wanted)
    except AbsentError as missing:
        return f"No plots: absent: {missing}."
    return "\n".join(f"![{one.file}]({one.file})" for one in wanted)


def chapter(where: Path, name: str, stored: dict[str, Any]) -> list[str]:
    section, rounds = SECTIONS[name], stored["rounds"]
    out = []
    for table in section.tables():
        head = ["", "rnic", *table.columns]
        out += ["", f"## {table.title}", "", table.note, "", *grid(head, lines(rounds, table))]
    for title, texts in ({"Failures": failures(rounds)} | section.notes(rounds)).items():
        out += ["", f"## {title}", "", *(f"- {text}" for text in texts)] if texts else []
    if wanted := PICTURES.get(name):
        out += ["", pictures(where, rounds, wanted())]
    return [*out, "", "Measured by " + "\n".join(about(stored["machine"]))]


def page(where: Path) -> Path:
    """README.md of the sections whose files are there."""
    found = {
        name: json.loads(path.read_text()) for name in SECTIONS if (path := where / f"{name}.json").exists()
    }
    out = ["# Figures", "", INTRODUCTION, "", "## Targets", "", *grid(["target", ""], verdicts(found))]
    for name, stored in found.items():
        out += chapter(where, name, stored)
    if LIMITS.exists():
        out += ["", LIMITS.read_text().rstrip()]
    made = where / "README.md"
    made.write_text("\n".join(out) + "\n")
    return made
