# SPDX-License-Identifier: Apache-2.0
"""A file that appears whole, under its name, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self


def room_in(folder: Path) -> int:
    """Bytes that a new file can have."""
    return shutil.disk_usage(folder).free


class Incoming:
    """A temporary file in its folder; keep() gives it its name, leaving it without that removes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hasher = hashlib.sha256()
        self._temporary = folder / f".lab3-{secrets.token_hex(8)}.part"
        self._file = self._temporary.open("xb")

    def write(self, data: memoryview) -> None:
        """Append what has arrived."""
        self._file.write(data)
        self._hasher.update(data)

    def sha256(self) -> bytes:
        """Of all so far."""
        return self._hasher.digest()

    def keep(self) -> Path:
        """Give the file its name, which its hash tells: the same bytes are the same file."""
        self._file.close()
        path = self.folder / f"lab3-{self._hasher.hexdigest()[:16]}"
        return self._temporary.replace(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # what could not be written is not wanted any more
            self._file.close()
        self._temporary.unlink(missing_ok=True)
