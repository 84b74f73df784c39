# SPDX-License-Identifier: Apache-2.0
"""Where results go: rows or JSON on stdout, and a picture."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rnic.cli import screen
from rnic.cli.perf import plot, report


class Output:
    """Shows each record when it comes."""

    def __init__(self, as_json: bool, picture: str | None) -> None:
        self.as_json = as_json
        self.picture = None if picture is None else plot.checked(Path(picture))
        self.records: list[report.Record] = []
        self._heading = ""

    def show(self, record: report.Record) -> None:
        """One size."""
        self.records.append(record)
        if self.as_json:
            click.echo(json.dumps(record))
            return
        if (heading := report.heading(record)) != self._heading:
            self._heading = heading
            for line in heading.splitlines():
                screen.say(line, report.HANGING)
            if not self._narrow(record):
                click.echo(report.head(record))
        click.echo(self._row(record))

    @staticmethod
    def _narrow(record: report.Record) -> bool:
        """Has the terminal no room for a table?"""
        columns = screen.width()
        return columns is not None and columns < len(report.head(record))

    def _row(self, record: report.Record) -> str:
        """A line of the table, or a block of lines."""
        if not self._narrow(record):
            return report.row(record)
        titles, cells = zip(*report.pairs(record), strict=True)
        return "\n" + screen.block(titles, cells)

    def finish(self) -> None:
        """All sizes have been shown."""
        if self.picture is not None:
            plot.draw(self.records, self.picture)
