# SPDX-License-Identifier: Apache-2.0
"""Help texts as wide as the terminal, up to 80 columns: nothing is cut off, and no line is longer."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable

import click

WIDEST = 80
AS_IT_IS = "\b\n"  # what click begins a paragraph with whose lines stay
DEEPER = "    "
COLUMNS = re.compile(r"(?P<left>.*\S)(?P<gap> {2,})(?P<right>\S.*)")


class Formatter(click.HelpFormatter):
    """As click's, which has 50 columns at least and leaves lines of examples as they are."""

    def __init__(self) -> None:
        super().__init__(width=max(20, min(shutil.get_terminal_size().columns, WIDEST)))

    def write_text(self, text: str) -> None:
        """Paragraphs, and lines that are broken only where they are too long."""
        indent = " " * self.current_indent
        paragraphs = []
        for paragraph in text.split("\n\n"):
            if paragraph.startswith(AS_IT_IS):
                rows = paragraph.removeprefix(AS_IT_IS).split("\n")
                lines = [line for row in rows for line in fitting(row, self.width - self.current_indent)]
            else:
                lines = wrapped(" ".join(paragraph.split()), self.width - self.current_indent)
            paragraphs.append("\n".join(indent + line for line in lines))
        self.write("\n\n".join(paragraphs) + "\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Terms and what they mean: a third of the width is the terms' where that is little."""
        super().write_dl(rows, min(col_max, max(self.width // 3, 12)), col_spacing)


def wrapped(text: str, width: int, later: str = "") -> list[str]:
    """Lines of at most so many characters; all but the first begin with `later`."""
    return textwrap.wrap(text, width, subsequent_indent=later, break_on_hyphens=False)


def fitting(row: str, width: int) -> list[str]:
    """A line of an example or a table, as lines that fit: its last column goes below where it has no room."""
    if len(row) <= width:
        return [row]
    indent = " " * (len(row) - len(row.lstrip()))
    if len(indent) > width // 2:
        indent = DEEPER
    columns = COLUMNS.fullmatch(row)
    if columns is None:
        return wrapped(indent + row.lstrip(), width, indent or DEEPER)
    if columns.start("right") <= width // 2:
        return wrapped(row, width, " " * columns.start("right"))
    below = indent + DEEPER
    left = " ".join(columns["left"].split())
    return [*wrapped(indent + left, width, below), *wrapped(below + columns["right"], width, below)]
