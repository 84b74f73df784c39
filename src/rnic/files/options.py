# SPDX-License-Identifier: Apache-2.0
"""What is asked of a copy, and who hears how it goes."""

from __future__ import annotations

from rnic.records import Record

__all__ = ["CHUNK", "PORT", "SLOTS", "Options", "Report"]

PORT = 7474
CHUNK = 4 << 20
"""Bytes of a large file that travel in one WRITE, at most."""
SLOTS = 8
"""Chunks that may be on their way at a time: the receiver has memory for so many."""


class Options(Record):
    """What is asked of a copy; the flags of an ASK are these fields in this order."""

    recursive: bool = False
    """Copy directories and what is in them."""
    no_clobber: bool = False
    """Leave files that exist as they are."""
    dry_run: bool = False
    """Say what would be copied; change nothing."""
    total: bool = False
    """Count files and bytes before the copy begins."""
    into: bool = False
    """The destination must be a directory that exists."""

    @property
    def flags(self) -> int:
        """As a number for the wire."""
        return sum(1 << bit for bit, name in enumerate(_NAMES) if getattr(self, name))

    @classmethod
    def of(cls, flags: int) -> Options:
        """From that number; ValueError for flags that there are not."""
        if flags >> len(_NAMES):
            raise ValueError(f"flags {flags:#x}")
        return cls(**{name: bool(flags >> bit & 1) for bit, name in enumerate(_NAMES)})


LEFT = "its directory could not be made"
"""The text of what was left out."""
_MOST = 10_000
_NAMES = ("recursive", "no_clobber", "dry_run", "total", "into")


class Report:
    """Hears how a copy goes; this one counts. Paths are those that the receiver was told."""

    def __init__(self) -> None:
        self.files = self.bytes = self.skips = self.failed_count = self.left_count = 0
        self.failures: list[tuple[str, str]] = []
        """Path and text of what has failed, of so many at most that a peer cannot use up the memory."""

    def copied(self, path: bytes, size: int) -> None:  # noqa: ARG002 - for those who show it
        """A file is there, under its name (or would be, in a dry run)."""
        self.files += 1
        self.bytes += size

    def skipped(self, path: bytes) -> None:  # noqa: ARG002 - likewise
        """A file was there already, and was left (no_clobber)."""
        self.skips += 1

    def failed(self, path: bytes, text: str) -> None:
        """A file was not copied; the text says why, and names it."""
        self.failed_count += 1
        if len(self.failures) < _MOST:
            self.failures.append((path.decode(errors="replace"), text))

    def left_out(self, path: bytes) -> None:
        """A file or directory was left out: failed() has told that the one above could not be made."""
        self.left_count += 1
        Report.failed(self, path, LEFT)

    def moved(self, count: int) -> None:
        """So many more bytes of file contents have been taken care of."""

    def total(self, files: int, size: int) -> None:
        """What there is to copy (Options.total)."""
