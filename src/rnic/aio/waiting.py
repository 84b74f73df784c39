# SPDX-License-Identifier: Apache-2.0
"""Queues that wake waiting tasks in order, and a limit for calls that return without waiting."""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

CALLS = 64
"""The number of calls that return at once before one of them lets the loop run."""
SECONDS = 0.0005
"""The time in seconds after which a call lets the loop run."""


class Waiter(NamedTuple):
    """The condition for which a task waits."""

    is_so: Callable[[], bool]
    target: memoryview | None = None
    """The task's buffer for the message."""
    tag: int | None = None
    """The tag that the message must have; None: any."""


class Queue:
    """Tasks that wait, each for a condition of its own."""

    shared = False  # all tasks wait for the same thing, and the task that is woken uses it up
    in_order = False  # the conditions become true in the order of the tasks

    def __init__(self) -> None:
        self._waiters: OrderedDict[asyncio.Future[None], Waiter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def target(self) -> memoryview | None:
        """The buffer of the first task that was not woken yet."""
        return next((waiter.target for one, waiter in self._waiters.items() if not one.done()), None)

    @property
    def tags(self) -> frozenset[int]:
        """The tags that tasks ask for."""
        return frozenset(waiter.tag for waiter in self._waiters.values() if waiter.tag is not None)

    async def wait(
        self,
        is_so: Callable[[], bool],
        again: bool = False,
        target: memoryview | None = None,
        tag: int | None = None,
    ) -> None:
        """Wait until wake() finds the condition true; a task that is cancelled wakes the next one.

        `again`: the task was woken in vain, and keeps its place in front.  `target`, `tag`: see Waiter.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[future] = Waiter(is_so, target, tag)
        if again:
            self._waiters.move_to_end(future, last=False)
        try:
            await future
        except BaseException:
            del self._waiters[future]
            self.wake()
            raise
        del self._waiters[future]

    def wake(self) -> None:
        """Wake the tasks whose conditions are true; an ordered queue stops at the first that is not."""
        for future, waiter in self._waiters.items():
            now = waiter.is_so()
            if now and not future.done():
                future.set_result(None)
            if self.in_order and not now:
                return
            if self.shared and (now or waiter.tag is None):  # a task with a tag does not stop others
                return

    def wake_all(self, error: BaseException | None = None) -> None:
        """Wake all tasks; with an error, each task raises it."""
        for future in self._waiters:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)


class OrderedQueue(Queue):
    """Tasks whose conditions become true in the order in which the tasks came."""

    in_order = True


class SharedQueue(Queue):
    """Tasks that wait for the next item of a kind: each item wakes one task."""

    shared = True


class Turn:
    """Bounds the calls that return without waiting in one turn of the loop, in number and in time.

    A call that has nothing to wait for returns at once.  A task that makes many such calls in a row would
    keep all other tasks and every timer from running.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._calls = 0
        self._until = 0.0

    async def take(self) -> None:
        """Begin a call: wait for the loop's next turn if this turn's share is used up."""
        if self.is_used_up():
            await self.give_way()

    def is_used_up(self) -> bool:
        """Count a call in this turn; return True if the turn's share is used up."""
        self._count()
        return self._calls > CALLS or monotonic() > self._until

    async def give_way(self) -> None:
        """Wait for the loop's next turn, and count the call there."""
        await asyncio.sleep(0)
        self._count()

    def _count(self) -> None:
        if self._calls == 0:
            self._begin()
        self._calls += 1

    def _begin(self) -> None:
        loop = self._loop()
        if loop is not None:
            self._until = monotonic() + SECONDS
            loop.call_soon(self._end)

    def _end(self) -> None:
        self._calls = 0


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = weakref.WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """Return the Turn of a loop, which all its connections and listeners share."""
    if (found := _turns.get(loop)) is None:
        found = _turns[loop] = Turn(loop)
    return found
