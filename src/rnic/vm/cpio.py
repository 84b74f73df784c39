# SPDX-License-Identifier: Apache-2.0
"""The archive that a kernel unpacks as its first file system.

It is Linux' "newc" (Documentation/driver-api/early-userspace/buffer-format.rst), and not compressed, as an
emulated processor unpacks slowly.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

FOLDER, FILE = 0o040755, 0o100755


class Archive:
    """One that is written to a file; all in it belongs to root, and can be read and run."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._inode = file, 0

    def folder(self, name: str) -> None:
        """Ahead of what is in it."""
        self._add(name, FOLDER, b"")

    def file(self, name: str, content: bytes) -> None:
        """A file with this content."""
        self._add(name, FILE, content)

    def copy(self, name: str, path: Path) -> None:
        """A file of this computer."""
        self.file(name, path.read_bytes())

    def end(self) -> None:
        """Nothing more comes."""
        self._add("TRAILER!!!", 0, b"")

    def _add(self, name: str, mode: int, content: bytes) -> None:
        self._inode += 1
        known = name.encode() + b"\0"
        # inode, mode, user, group, links, time, size, device, device of a special file, name's length, sum
        fields = (self._inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(known), 0)
        self._file.write(b"070701" + b"".join(b"%08X" % field for field in fields))
        self._write_padded(known, 110)
        self._write_padded(content, 0)

    def _write_padded(self, data: bytes, ahead: int) -> None:
        """To a multiple of four bytes, with what is ahead of it."""
        self._file.write(data + bytes(-(ahead + len(data)) % 4))
