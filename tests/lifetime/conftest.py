# SPDX-License-Identifier: Apache-2.0
"""Fixtures: what a process holds, and how much of a test is taken."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def soak() -> bool:
    """Take all of it, not a sample."""
    return bool(os.environ.get("RNIC_SOAK"))


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def native_threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


@pytest.fixture
def balanced() -> Iterator[None]:
    """At the end the process holds no more descriptors and threads than before."""
    gc.collect()
    before = open_files(), native_threads(), threading.active_count()
    yield
    gc.collect()
    assert (open_files(), native_threads(), threading.active_count()) == before


@pytest.fixture
def small_heap() -> Iterator[None]:
    """What other tests have left is not looked at by the collections here, of which there are thousands."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
