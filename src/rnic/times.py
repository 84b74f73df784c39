# SPDX-License-Identifier: Apache-2.0
"""Times that a program gives, including days and infinity, in the form of the system's calls."""

from __future__ import annotations

from time import monotonic

_LONGEST_MS = 1 << 30  # 12 days: poll(2) takes an int


def seconds(timeout: float | None, name: str = "timeout") -> float | None:
    """Check a time limit: a number of seconds, 0 not to wait, None to wait for ever; the error says what is
    wrong.
    """
    cure = "0 not to wait, or None to wait for ever"
    if timeout is not None and not hasattr(timeout, "__float__"):  # of a command line, for instance
        raise TypeError(f"{name} is {timeout!r}: give a number of seconds, {cure}")
    if timeout is not None and not timeout >= 0:  # nor is NaN
        raise ValueError(f"{name} is {timeout}: give seconds from 0 on, {cure}")
    return timeout


def after(timeout: float | None) -> float | None:
    """The time of monotonic() in this many seconds, None for never; raises as seconds() does."""
    checked = seconds(timeout)
    return None if checked is None else monotonic() + checked


def milliseconds(seconds: float | None) -> int | None:
    """A time for poll(2), rounded up; None means for ever.

    A time of more than 12 days is cut to 12 days: the caller looks at the clock, and waits again.
    """
    if seconds is None:
        return None
    return -int(-max(0.0, min(seconds * 1000, _LONGEST_MS)) // 1)


def bounded(seconds: float | None) -> float | None:
    """A time for sockets and threads; a time that is too long for them becomes for ever."""
    return None if seconds is None or seconds * 1000 > _LONGEST_MS else seconds


def earliest(*times: float | None) -> float | None:
    """The earliest of some times, without those that are None; None: there is none."""
    return min((one for one in times if one is not None), default=None)
