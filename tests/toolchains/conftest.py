# SPDX-License-Identifier: Apache-2.0
"""What `rnic run` makes for programs, here for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rnic.programs.surroundings import serve


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with serve() as (made, _):
        yield made
