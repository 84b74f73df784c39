# SPDX-License-Identifier: Apache-2.0
"""Fixtures: what a process holds, and how much of a test is taken."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from waiting import until


@pytest.fixture
def soak() -> bool:
    """Take all of it, not a sample."""
    return bool(os.environ.get("RNIC_SOAK"))


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def native_threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def held() -> tuple[int, int, int]:
    return open_files(), native_threads(), threading.active_count()


@pytest.fixture
def balanced() -> Iterator[None]:
    """At the end the process holds no more descriptors and threads than before.

    It may hold fewer: what the test before it has closed may still be ending when this one begins.
    """
    gc.collect()
    before = held()
    yield
    gc.collect()
    until(
        lambda: all(now <= then for now, then in zip(held(), before, strict=True)), f"it holds {before} again"
    )
