# SPDX-License-Identifier: Apache-2.0
"""To wait for what no event tells."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

PATIENCE = 180.0  # seconds, on a machine that has other things to do
T = TypeVar("T")


def until(look: Callable[[], T], what: str) -> T:
    """Looks until it finds something that is true, and returns that; AssertionError when it never does."""
    limit = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < limit, f"in vain: {what}"
        time.sleep(0.001)
    return found


def times_out(call: Callable[[float], object], match: str) -> Any:
    """The error of a call that comes to its time limit, and then says this.

    A limit that is too short for a busy machine makes it say less: the call is repeated with a longer one.
    """
    limit = 0.05
    while True:
        try:
            call(limit)
        except TimeoutError as error:
            found = error
        else:
            raise AssertionError(f"it has not come to its limit of {limit} s")
        if re.search(match, str(found)):
            return found
        assert limit < PATIENCE, f"in vain: {match}; {found}"
        limit *= 2
