# SPDX-License-Identifier: Apache-2.0
"""One small change of a source file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Change:
    """The characters from start to end of a file become `new`."""

    path: str
    """From the repository's root."""
    line: int
    start: int
    end: int
    old: str
    new: str
    text: str
    """The line as it was, without its indent."""

    def apply(self, source: str) -> str:
        assert source[self.start : self.end] == self.old, f"{self.path} is not the file that the change is of"
        return source[: self.start] + self.new + source[self.end :]

    def __str__(self) -> str:
        what = f"without: {self.old}" if self.new in ("", ";", "pass") else f"{self.old} -> {self.new}"
        return f"{self.path}:{self.line}: {' '.join(what.split())}   in: {self.text}"


def make(path: str, source: str, start: int, end: int, new: str) -> Change:
    line = source.count("\n", 0, start) + 1
    begin = source.rfind("\n", 0, start) + 1
    stop = source.find("\n", start)
    text = source[begin : stop if stop >= 0 else len(source)].strip()
    return Change(path, line, start, end, source[start:end], new, text)
