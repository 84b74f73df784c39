# SPDX-License-Identifier: Apache-2.0
"""Whole files of one directory, in one Pack: what its table says.

For each file 18 bytes, u32 mode, i64 mtime (ns), u32 size, u16 length of the name; then all names, one behind
the other. The contents lie behind the table in the same order. The first file has the number of the Pack, the
next ones have those that follow. A Pack has at most 256 files.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from rnic._disk import Found
from rnic.files.records import PATH_MOST, Pack, digest
from rnic.files.state import CopyError

__all__ = ["MOST", "Small", "pack", "unpack"]

MOST = 256
"""Files of a Pack."""
_FILE = Struct("<IqIH")


class Small(NamedTuple):
    """A whole file."""

    id: int
    mode: int
    mtime: int
    size: int
    path: bytes
    content: bytes | memoryview | None
    """None: it is damaged."""


def pack(number: int, folder: bytes, names: Sequence[bytes], files: Sequence[Found], contents: bytes) -> Pack:
    """Files of a directory whose path is `folder`; empty: they lie in none."""
    rows = [
        _FILE.pack(mode & 0o7777, mtime, size, len(name))
        for name, (size, mode, mtime) in zip(names, files, strict=True)
    ]
    return Pack(number, len(rows), digest(contents), folder, b"".join((*rows, *names)), contents)


def unpack(packed: Pack) -> list[Small]:
    """The files. CopyError where table and contents do not fit each other."""
    number, entries, wanted, folder, table, contents = packed
    at, start, out = entries * _FILE.size, 0, []
    if entries > MOST or len(folder) > PATH_MOST:  # a copy of it is in each path
        raise CopyError(
            f"the peer sent a Pack of {entries} files, in a folder with a path of {len(folder)} bytes"
        )
    if at > len(table):
        raise CopyError(f"the peer sent a Pack of {entries} files with a table of {len(table)} bytes")
    good, above = digest(contents) == wanted, folder + b"/" if folder else b""
    for mode, mtime, size, length in _FILE.iter_unpack(memoryview(table)[:at]):
        name, content = table[at : at + length], contents[start : start + size]
        at, start = at + length, start + size
        out.append(Small(number, mode, mtime, size, above + name, content if good else None))
        number += 1
    if at != len(table) or start != len(contents):
        raise CopyError(f"the peer sent a Pack whose table tells of {start} bytes, {len(contents)} have come")
    return out
