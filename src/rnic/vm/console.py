# SPDX-License-Identifier: Apache-2.0
"""The file that has what a machine's kernel and QEMU print, and reading it while it grows."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

LAST, MOST = 15, 60  # lines of an excerpt
_TROUBLE = re.compile(
    r"BUG:|Oops:|Kernel panic|general protection fault|Unable to handle|sysrq: Trigger|NMI:"
)
LIMIT = 4 << 20  # bytes; what is older than the last quarter of that goes then


class Console:
    """The keeper's end: append, and keep the file small."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, data: bytes) -> None:
        """Something was printed."""
        with self._path.open("ab") as file:
            file.write(data)
            long = file.tell() > LIMIT
        if long:
            self._shorten()

    def _shorten(self) -> None:
        kept = self._path.read_bytes()[-LIMIT // 4 :]
        self._path.write_bytes(kept[kept.find(b"\n") + 1 :])


def panic_in(path: Path) -> str:
    """Why the kernel panicked, if it did, as it says itself."""
    found = re.findall(r"Kernel panic - not syncing: .*", last_lines(path))
    return str(found[-1]) if found else ""


def excerpt(text: str) -> str:
    """Of what was printed, from where the trouble begins, or the last lines."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if _TROUBLE.search(line)), len(lines) - LAST)
    return "\n".join(lines[max(begin, 0) :][:MOST])


def last_lines(path: Path, count: int = 200) -> str:
    """Nothing, if there is no file any more."""
    try:
        lines = path.read_bytes().decode(errors="replace").replace("\r", "").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-count:])


class Follower:
    """A reader, to be closed: what has come since the last call, even if the file has been removed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: io.FileIO | None = None

    def more(self) -> bytes:
        """Nothing, if there has been no file."""
        if self._file is None:
            try:
                self._file = io.FileIO(self._path)
            except FileNotFoundError:
                return b""
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)  # it was shortened
        return self._file.readall()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()
