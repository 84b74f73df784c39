# SPDX-License-Identifier: Apache-2.0
"""To wait for what no event tells."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = float(__import__("os").environ.get("RNIC_WAIT", 60))  # seconds, on a machine that has other things to do
T = TypeVar("T")


def until(look: Callable[[], T], what: str) -> T:
    """Looks until it finds something that is true, and returns that; AssertionError when it never does."""
    limit = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < limit, f"in vain: {what}"
        time.sleep(0.001)
    return found
