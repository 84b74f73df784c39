# SPDX-License-Identifier: Apache-2.0
"""What people see: lines and tables that fit their terminal.  Programs and files get lines of any length."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

import click
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

ANY_WIDTH = 10_000
NARROWEST = 20  # columns of a text that is broken between words


def width() -> int | None:
    """Return the columns of the terminal that stdout is; None: it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(text: str, hanging: int = 0) -> None:
    """Print a line, broken between words where it is too long; what follows is indented by `hanging`."""
    columns = width()
    click.echo(text if columns is None else "\n".join(folded(text, columns, hanging)))


def folded(text: str, columns: int, hanging: int = 0) -> list[str]:
    """Return lines of at most so many columns; a word that is longer stays whole, to be copied."""
    later = " " * (hanging if hanging <= columns // 2 else 4)
    options = {"break_long_words": False, "break_on_hyphens": False, "drop_whitespace": True}
    return textwrap.wrap(text, columns, subsequent_indent=later, **options) or [text]  # type: ignore[arg-type]


def table(
    console: Console,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: bool = False,
    tight: bool = False,
) -> None:
    """Print a table.  Where it has no room its last column is broken between words, or a block of lines
    stands for each row.

    `right` aligns all columns but the first, `tight` leaves one column between them.
    """
    known = list(rows)
    shown = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, show_edge=False, pad_edge=False)
    if tight:  # the lines of a terminal's table bring this one column
        shown.padding = (0, 0 if console.is_terminal else 1, 0, 0)
    for number, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if right and number else "left", no_wrap=True)
    for row in known:
        shown.add_row(*row)
    needed = Measurement.get(console, console.options.update(max_width=ANY_WIDTH), shown).maximum
    if not console.is_terminal or needed <= console.width:
        console.width = max(needed, console.width)
        console.print(shown)
        return
    last = [Text.from_markup(text).plain for text in (headings[-1], *(row[-1] for row in known))]
    longest = max(len(word) for text in last for word in ["", *text.split()])
    if needed - max(map(len, last)) + max(longest, NARROWEST) <= console.width:
        shown.columns[-1].no_wrap = False
        console.print(shown)
    else:
        console.print("\n\n".join(block(headings, row) for row in known))


def block(headings: Sequence[str], row: Sequence[str]) -> str:
    """Return a row as lines, each with its heading."""
    headings = [heading.replace("\n", " ") for heading in headings]
    most = max(map(len, headings))
    return "\n".join(f"{heading:<{most}}  {value}" for heading, value in zip(headings, row, strict=True))
