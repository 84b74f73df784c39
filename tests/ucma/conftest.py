# SPDX-License-Identifier: Apache-2.0
"""A server, and a program's device file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rnic.ucma import Server
from ucma.client import Device


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """The socket of a server."""
    where = str(tmp_path / "ucma")
    with Server(where):
        yield where


@pytest.fixture
def device(path: str) -> Iterator[Device]:
    """An open device file."""
    with Device(path) as one:
        yield one
