# SPDX-License-Identifier: Apache-2.0
"""Whether a line has the same result by libibverbs and by Python, or a difference that is meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Difference(NamedTuple):
    """A difference that is meant."""

    words: tuple[str, ...]
    """The lines in which it may be."""
    is_it: Callable[[str, str], bool]
    """Of the results by C and by Python."""
    reason: str


def _inline_is_generous(c: str, python: str) -> bool:
    ours, theirs = c.split(), python.split()
    if len(ours) < 6 or len(ours) != len(theirs):
        return False
    inline = 5
    if int(ours[inline]) != max(64, int(theirs[inline])):
        return False
    ours[inline] = theirs[inline]
    return ours == theirs


MEANT = [
    Difference(
        ("qp", "qp?"),
        _inline_is_generous,
        "libibverbs grants 64 bytes inline, as drivers do; programs count on it",
    ),
    Difference(
        ("pd", "mr", "cq", "cq=", "srq", "srq=", "qp", "qp=", "ah", "send", "recv", "srecv"),
        lambda c, python: c == "E22" and python.startswith("V "),
        "Python refuses a value that has no meaning with ValueError, where libibverbs gives EINVAL",
    ),
    Difference(
        ("send",),
        lambda c, python: (c, python) == ("E22", "E95"),
        "Python says of an operation or a flag that the queue pair lacks it, which drivers call EINVAL",
    ),
]


def differs(line: str, c: str, python: str) -> bool:
    """Whether the results are different, and not meant to be."""
    word = line.split()[0]
    return c != python and not any(word in one.words and one.is_it(c, python) for one in MEANT)
