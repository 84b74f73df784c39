# SPDX-License-Identifier: Apache-2.0
"""Calls at a time, most of which are not made in the end: who answers in time cancels them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

_FEW = 64


class Timer:
    """A call that is due."""

    __slots__ = ("call", "due", "owner")

    def __init__(self, owner: Timers, due: int, call: Callable[[int], None]) -> None:
        self.owner, self.due = owner, due
        self.call: Callable[[int], None] | None = call

    def cancel(self) -> None:
        """Do not make it; a second call does nothing."""
        if self.call is not None:
            self.call = None
            self.owner.tidy()


class Timers:
    """The timers of a service; under the registry's lock."""

    def __init__(self, mistake: Callable[[str, Exception], None]) -> None:
        self._mistake = mistake
        self._heap: list[tuple[int, int, Timer]] = []
        self._serial = count()
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def at(self, due: int, call: Callable[[int], None]) -> Timer:
        """Make a call at a time of monotonic_ns(), with the time then."""
        timer = Timer(self, due, call)
        heapq.heappush(self._heap, (due, next(self._serial), timer))
        return timer

    def tidy(self) -> None:
        """One more is cancelled. They go when they are the half, so that ended connections do not add up."""
        self._cancelled += 1
        if self._cancelled > max(_FEW, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def deadline(self) -> int | None:
        """When to call fire()."""
        while self._heap and self._heap[0][2].call is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def fire(self, now: int) -> None:
        """Make the calls that are due. One that lacks memory is made again by the next fire()."""
        while (due := self.deadline()) is not None and due <= now:
            timer = self._heap[0][2]
            call = timer.call
            assert call is not None
            try:
                call(now)
            except MemoryError:
                raise
            except Exception as error:
                self._mistake(f"a timer, {call!r},", error)
            timer.cancel()
