# SPDX-License-Identifier: Apache-2.0
"""Times that a program may give, days and infinity too, as the system's calls take them."""

from __future__ import annotations

from time import monotonic

_LONGEST_MS = 1 << 30  # 12 days: poll(2) takes an int


def seconds(timeout: float | None, name: str = "timeout") -> float | None:
    """A time that may be waited: a number of seconds, 0 not to wait, None for ever; else why it is none."""
    cure = "0 not to wait, or None to wait for ever"
    if timeout is not None and not hasattr(timeout, "__float__"):  # of a command line, for instance
        raise TypeError(f"{name} is {timeout!r}: give a number of seconds, {cure}")
    if timeout is not None and not timeout >= 0:  # nor is NaN
        raise ValueError(f"{name} is {timeout}: give seconds from 0 on, {cure}")
    return timeout


def after(timeout: float | None) -> float | None:
    """The time of monotonic() when so many seconds have passed, None for never; raises as seconds()."""
    checked = seconds(timeout)
    return None if checked is None else monotonic() + checked


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
