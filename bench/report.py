# SPDX-License-Identifier: Apache-2.0
"""From rounds of values to the table, latest.json and the results page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from figures import tables, targets
from procs import Values
from rich.console import Console
from rich.table import Table as RichTable
from tables import Row, Table, Target, Unit

import wire

Rounds = list[dict[str, Values]]
LOSS = (
    "requests_resent",
    "duplicate_requests",
    "out_of_sequence",
    "timeouts",
    "nak_seq_received",
    "tx_errors",
)


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
    if any("absent" in r.get(key, {}) for r in rounds):
        return "absent"
    return "failed" if any("failed" in r.get(key, {}) for r in rounds) else "-"


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


# ---------------------------------------------------------------- targets and notes


def judge(rounds: Rounds, target: Target) -> dict[str, Any]:
    if target.peer:
        found = ratio(rounds, target.key, target.peer, target.unit)
    else:
        found = spread(rounds, target.key, target.unit)
    if found is None:
        missing = target.key if spread(rounds, target.key, target.unit) is None else target.peer
        return {
            "target": target.text,
            "reached": None,
            "text": f"not known: {missing}: {why(rounds, missing)}",
        }
    reached = found.mid >= target.bound if target.is_floor else found.mid <= target.bound
    off = abs(found.mid / target.bound - 1)
    what = f"{found.text(2)} {'x' if target.peer else target.unit.text}"
    verdict = "reached" if reached else "NOT reached"
    side = ("above" if found.mid >= target.bound else "below") + " the bound"
    return {
        "target": target.text,
        "reached": reached,
        "text": f"{verdict}: {what}, {off:.0%} {side} of {target.bound:g}",
    }


def loss(rounds: Rounds) -> list[str]:
    """Per row of the limited buffers: what was sent again."""
    found = []
    for row in wire.LIMITED_ROWS:
        runs = [r[row.key] for r in rounds if "client" in r.get(row.key, {})]
        if not runs:
            continue
        ends = [run[end] for run in runs for end in ("client", "server")]
        counts = {name: sum(int(end.get(name, 0)) for end in ends) for name in LOSS}
        sent = sum(int(end.get("tx_packets", 0)) for end in ends)
        shown = ", ".join(f"{name} {count}" for name, count in counts.items())
        found.append(
            f"{row.title} (getsockopt: receive {runs[0]['rcvbuf']:,}, send {runs[0]['sndbuf']:,}): "
            f"{sent} packets, {shown}"
        )
    return found


def cpu(rounds: Rounds) -> list[str]:
    """Whose processor time serves READs: the server's engine, or its main thread."""
    found = []
    for row in wire.SERVED_ROWS:
        for name, key in ({"Python": row.key} | row.peers).items():
            runs = [r[key]["server"] for r in rounds if "server" in r.get(key, {})]
            if runs:
                main, engine = (
                    median(float(run[f"{who}_cpu_s"]) for run in runs) for who in ("main", "engine")
                )
                found.append(f"{row.title}, {name}: main thread {main:.3f} s, engine {engine:.3f} s")
    return found


def tails(rounds: Rounds) -> list[str]:
    found = []
    p99 = Unit("us", "p99_us")
    for row in wire.LATENCY_ROWS:
        for name, key in ({"rnic": row.key} | {n: k for n, k in row.peers.items() if n == "UDP"}).items():
            value = spread(rounds, key, p99)
            if value:
                found.append(f"{row.title}, {name}: {value.text(2)} us")
    return list(dict.fromkeys(found))


def failures(rounds: Rounds) -> list[str]:
    return [
        f"round {i}: {key}: {values['failed']}"
        for i, r in enumerate(rounds, 1)
        for key, values in r.items()
        if "failed" in values
    ]


def notes(rounds: Rounds) -> dict[str, list[str]]:
    return {
        "Failures": failures(rounds),
        "99th percentiles": tails(rounds),
        "Processor time of the process that serves READs": cpu(rounds),
        "Loss with limited buffers, all rounds (a duplicate was a probe: not lost)": loss(rounds),
    }


# ---------------------------------------------------------------- outputs


def measured(rounds: Rounds, keys: list[str]) -> bool:
    return any(key in r for r in rounds for key in keys)


def show(rounds: Rounds, console: Console) -> None:
    for table in tables():
        if not measured(rounds, [row.key for row in table.rows]):
            continue
        grid = RichTable(title=table.title, caption=table.note, title_justify="left", caption_justify="left")
        for column in ("", "rnic", *table.columns):
            grid.add_column(column, justify="right" if column else "left", overflow="fold")
        for line in lines(rounds, table):
            grid.add_row(*line)
        console.print(grid)
    for title, texts in notes(rounds).items():
        if texts:
            console.print(f"\n[bold]{title}[/bold]")
        for text in texts:
            console.print(f"  {text}", highlight=False)
    console.print("\n[bold]Targets[/bold]")
    for target in targets():
        if not measured(rounds, [target.key]):
            continue
        verdict = judge(rounds, target)
        colour = {True: "green", False: "red", None: "yellow"}[verdict["reached"]]
        console.print(f"  {target.text}: [{colour}]{verdict['text']}[/{colour}]", highlight=False)


def markdown(rounds: Rounds, machine: dict[str, Any]) -> str:
    out = [
        "# Figures",
        "",
        f"`{machine['command']}` measured this on {machine['date']}, in {machine['rounds']} alternating "
        "rounds: in each, every figure is taken once, so that what stands in a row met the same machine. A "
        "figure is the median over the rounds with the least and the most; a ratio is rnic's figure divided "
        "by the peer's in the same round. Everything goes through the loopback interface of a network "
        "namespace of its own"
        f"{'' if machine['namespace'] else ' (not in this run: no root)'}.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {machine[key]} |" for name, key in MACHINE.items()),
        "",
        "## Targets",
        "",
        "| target | |",
        "|---|---|",
    ]
    out += [f"| {target.text} | {judge(rounds, target)['text']} |" for target in targets()]
    for table in tables():
        out += ["", f"## {table.title}", "", table.note, ""]
        out.append("| | rnic | " + " | ".join(table.columns) + " |")
        out.append("|---|" + "---|" * (1 + len(table.columns)))
        out += ["| " + " | ".join(line) + " |" for line in lines(rounds, table)]
    for title, texts in notes(rounds).items():
        out += ["", f"## {title}", "", *(f"- {text}" for text in texts)] if texts else []
    limits = Path(__file__).resolve().parent / "limits.md"
    if limits.exists():
        out += ["", limits.read_text().rstrip()]
    return "\n".join(out) + "\n"


MACHINE = {
    "rnic": "rnic",
    "CPU": "cpu",
    "kernel": "kernel",
    "MTU": "mtu",
    "socket buffer granted": "buffers",
    "Python, compiler": "tools",
    "peers": "peers",
    "load before": "load",
    "seconds a figure": "seconds",
}


def write(where: Path, rounds: Rounds, machine: dict[str, Any]) -> None:
    where.mkdir(parents=True, exist_ok=True)
    everything = {
        "machine": machine,
        "targets": [judge(rounds, target) for target in targets()],
        "tables": [
            {"title": t.title, "columns": ["", "rnic", *t.columns], "rows": lines(rounds, t)}
            for t in tables()
        ],
        "rounds": rounds,
    }
    (where / "latest.json").write_text(json.dumps(everything, indent=1) + "\n")
    (where / "README.md").write_text(markdown(rounds, machine))
