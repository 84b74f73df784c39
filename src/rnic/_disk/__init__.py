# SPDX-License-Identifier: Apache-2.0
"""Many small files in one call, for rnic.files: disk.pyx has no Python between two of them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Found", "New"]


class Found(NamedTuple):
    """A file that was read."""

    size: int
    mode: int
    """With the file's type, as st_mode."""
    mtime: int
    """Nanoseconds."""


class New(NamedTuple):
    """A file to be stored."""

    name: bytes
    content: bytes | memoryview
    mode: int
    mtime: int
    """Nanoseconds."""
