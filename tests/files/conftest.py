# SPDX-License-Identifier: Apache-2.0
"""Folders for both ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from files.ends import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
