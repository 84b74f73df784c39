# SPDX-License-Identifier: Apache-2.0
"""The blocking wait in its three forms: how a thread or a task waits for completions.

    with Waiter(cq, How.EVENT) as waiter:
        for wc in waiter.wait(timeout=5.0):
            ...

The order of an event wait is: poll, ask for an event, poll again, sleep (ibv_get_cq_event(3)). Whoever asks
and sleeps without the second poll sleeps for ever if a completion came between the first poll and the asking.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextlib import contextmanager
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING

from rnic.records import Record
from rnic.times import after

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rnic._nic.nic import CQ, WC

__all__ = ["How", "WaitStatistics", "Waiter", "left"]

SPIN = 50e-6
_BATCH = 64


def left(until: float | None) -> float | None:
    """Seconds that are left until a time of monotonic(), at least 0; None: for ever."""
    if until is None:
        return None
    seconds = until - monotonic()
    return seconds if seconds > 0 else 0.0


class How(Enum):
    """What waits until a completion is there."""

    POLL = "poll"
    """A loop that polls: the shortest latency, and all of a processor."""
    EVENT = "event"
    """A sleep from which the completion queue's event wakes: some 10 us more, and no processor time."""
    ADAPTIVE = "adaptive"
    """Polls for `spin` seconds, then sleeps: short if the answer comes soon, and cheap if it does not."""


class WaitStatistics(Record):
    """What a Waiter has done."""

    polls: int
    """Calls of CQ.poll()."""
    empty: int
    """Those that found nothing."""
    sleeps: int
    """Sleeps until an event came, or until the timeout."""


class Waiter:
    """Waits for the completions of one completion queue.

    For EVENT and ADAPTIVE the queue needs a completion channel that no other queue uses, as
    `ctx.create_cq(n, ctx.create_comp_channel())` makes it. One thread, or one task, waits at a time.
    """

    def __init__(self, cq: CQ, how: How = How.ADAPTIVE, *, spin: float = SPIN) -> None:
        if not isinstance(how, How):
            raise TypeError(f"how is {how!r}: give How.POLL, How.EVENT or How.ADAPTIVE")
        if how is not How.POLL and cq.channel is None:
            cure = "create it with one: ctx.create_cq(n, ctx.create_comp_channel()), or wait by How.POLL"
            raise ValueError(f"How.{how.name} needs a completion channel, and the queue has none: {cure}")
        if not 0 <= spin < math.inf:
            raise ValueError(f"spin {spin}: give seconds from 0 on; How.POLL never sleeps")
        self.cq, self.how = cq, how
        self._spin = {How.POLL: math.inf, How.EVENT: 0.0, How.ADAPTIVE: spin}[how]
        self._polls = self._empty = self._sleeps = 0
        self._last: deque[list[WC]] = deque(maxlen=1)
        self._inside = False

    def statistics(self) -> WaitStatistics:
        """What it has done so far."""
        return WaitStatistics(self._polls, self._empty, self._sleeps)

    def poll(self, most: int = _BATCH) -> list[WC]:
        """The completions that are there, at most so many; none is no error."""
        self._polls += 1
        self._last.extend(map(self.cq.poll, (most,)))  # C calls C: no signal's handler between
        found = self._last[0]
        self._empty += not found
        return found

    @property
    def last(self) -> list[WC]:
        """What the last poll has found. Whoever takes out what it has dealt with finds here what an
        exception, such as Ctrl-C, has kept from it.
        """
        return self._last[0] if self._last else []

    def wait(
        self, most: int = _BATCH, timeout: float | None = None, *, spin: float | None = None
    ) -> list[WC]:
        """Wait for at least one completion; returns at most `most`, whatever their status.

        `timeout` is in seconds; None: for ever. spin: seconds that ADAPTIVE polls this time, instead of its
        own. Raises TimeoutError.
        """
        until = after(timeout)
        with self._alone():
            if found := self._look(most, until, self._spin_of(spin)):
                return found
            while not (found := self._armed(most)):
                self._sleep(until)
        return found

    async def wait_async(self, most: int = _BATCH) -> list[WC]:
        """The same for a task of asyncio, whose loop runs meanwhile; a poll that finds nothing lets it run.

        asyncio.timeout() limits it.
        """
        loop = asyncio.get_running_loop()
        with self._alone():
            ends = monotonic() + self._spin
            while not (found := self.poll(most)) and monotonic() < ends:
                await asyncio.sleep(0)
            if not found:
                found = await self._sleep_async(most, loop)
        return found

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._inside:
            raise RuntimeError("another thread or task waits here: give each completion queue one that waits")
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def _spin_of(self, spin: float | None) -> float:
        return self._spin if spin is None or self.how is not How.ADAPTIVE else spin

    def _look(self, most: int, until: float | None, spin: float) -> list[WC]:
        """Polls for so many seconds."""
        ends = monotonic() + spin
        while not (found := self.poll(most)):
            now = monotonic()
            if until is not None and now >= until:
                raise TimeoutError("no completion came in time")
            if now >= ends:
                break
        return found

    def _armed(self, most: int) -> list[WC]:
        """Asks for an event; then what is there already, which brings none."""
        self.cq.req_notify()
        return self.poll(most)

    def _sleep(self, until: float | None) -> None:
        self._sleeps += 1
        try:
            self._take(left(until))
        except TimeoutError:
            raise TimeoutError("no completion came in time") from None

    def _take(self, timeout: float | None) -> None:
        channel = self.cq.channel
        assert channel is not None
        found = channel.get_cq_event(timeout)
        found.ack_events()
        if found is not self.cq:
            raise RuntimeError("an event of another queue came: give each queue a channel of its own")

    async def _sleep_async(self, most: int, loop: asyncio.AbstractEventLoop) -> list[WC]:
        channel = self.cq.channel
        assert channel is not None
        woken = asyncio.Event()
        loop.add_reader(channel.fileno(), woken.set)
        try:
            while not (found := self._armed(most)):
                self._sleeps += 1
                await woken.wait()
                woken.clear()
                try:
                    self._take(0)
                except TimeoutError:  # another one was faster
                    continue
        finally:
            loop.remove_reader(channel.fileno())
        return found
