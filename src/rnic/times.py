# SPDX-License-Identifier: Apache-2.0
"""Times that a program may give, days and infinity too, as the system's calls take them."""

from __future__ import annotations

_LONGEST_MS = 1 << 30  # 12 days: poll(2) takes an int


def milliseconds(seconds: float | None) -> int | None:
    """A time for poll(2), rounded up; None is for ever.

    What is longer than 12 days is cut to that: whoever waits longer looks at the clock, and waits again.
    """
    if seconds is None:
        return None
    return -int(-max(0.0, min(seconds * 1000, _LONGEST_MS)) // 1)


def bounded(seconds: float | None) -> float | None:
    """A time for sockets and threads, of which those that are too long for them are for ever."""
    return None if seconds is None or seconds * 1000 > _LONGEST_MS else seconds
