# SPDX-License-Identifier: Apache-2.0
"""Numbers, sizes and texts: how they are read from the command line, and how they are shown."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

PRINTED = 200  # characters of a text of another program's
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Failure(click.ClickException):
    """The command cannot go on: `rnic: <text>` on stderr, exit code 1."""


def number(low: int, high: int | None = None) -> Callable[[str], int]:
    """What reads an integer from low to high as C's strtol(.., 0) does (0x.. is hexadecimal)."""

    def convert(text: str) -> int:
        try:
            value = int(str(text), 0)
        except ValueError:
            raise click.BadParameter(f"{text!r} is not a number") from None
        if value < low or (high is not None and value > high):
            limits = f"from {low} to {high}" if high is not None else f"{low} or more"
            raise click.BadParameter(f"{value} is not {limits}")
        return value

    convert.__name__ = "number"
    return convert


def size(high: int | None = None) -> Callable[[str], int]:
    """What reads a number of bytes: 4096, 64K, 256M, 1G (powers of 1024; B or iB may follow the letter)."""

    def convert(text: str) -> int:
        match = re.fullmatch(r"(0x[0-9a-f]+|\d+)([kmgt]?)(?:i?b)?", str(text).strip(), re.IGNORECASE)
        if match is None:
            raise click.BadParameter(f"{text!r} is not a size such as 4096, 64K or 256M")
        value = int(match[1], 16 if match[1][:2].lower() == "0x" else 10) * UNITS[match[2].upper()]
        if high is not None and value > high:
            raise click.BadParameter(f"{value} bytes are more than {high}")
        return value

    convert.__name__ = "size"
    return convert


class RegularFile(click.Path):
    """A file that can be read, and has an end: no directory, FIFO or device."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, readable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        mode = path.stat().st_mode
        kind = next((word for test, word in _KINDS if test(mode)), None)
        if kind is not None:
            self.fail(f"{str(path)!r} is {kind}: a regular file is needed", param, ctx)
        return path


_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
)


def printable(text: object) -> str:
    """The text of another program, short and harmless to a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text)[:PRINTED])


def show_size(length: int) -> str:
    """4096 -> "4 KiB"; what is no whole number of a unit stays in bytes."""
    for unit, factor in reversed(UNITS.items()):
        if unit and length >= factor and length % factor == 0:
            return f"{length // factor} {unit}iB"
    return f"{length} B"


def show_rate(bytes_per_second: float) -> str:
    """Three digits and a decimal unit: 1234567890.0 -> "1.23 GB/s"."""
    for unit, factor in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_second >= factor:
            return f"{bytes_per_second / factor:.3g} {unit}"
    return f"{bytes_per_second:.3g} B/s"


def show_time(seconds: float) -> str:
    """Three digits and a unit: 0.0000123 -> "12.3 us"."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
