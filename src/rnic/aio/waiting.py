# SPDX-License-Identifier: Apache-2.0
"""Tasks that wait, woken in the order in which they came; and calls that never wait, and give way."""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

CALLS = 64
"""Calls that return at once before one of them lets the loop run..."""
SECONDS = 0.0005
"""...or so much time."""


class Waiter(NamedTuple):
    """What a task waits for."""

    is_so: Callable[[], bool]
    target: memoryview | None = None
    """Where it wants the message."""
    tag: int | None = None
    """The one that the message must have."""


class Queue:
    """Tasks that wait for something to be so, each for its own."""

    shared = False  # they wait for the same thing, and who is woken uses it up
    in_order = False  # it becomes so for one after the other

    def __init__(self) -> None:
        self._waiters: OrderedDict[asyncio.Future[None], Waiter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def target(self) -> memoryview | None:
        """The buffer of the first one that waits, and was not woken."""
        return next((waiter.target for one, waiter in self._waiters.items() if not one.done()), None)

    @property
    def tags(self) -> frozenset[int]:
        """Those that somebody asks for."""
        return frozenset(waiter.tag for waiter in self._waiters.values() if waiter.tag is not None)

    async def wait(
        self,
        is_so: Callable[[], bool],
        again: bool = False,
        target: memoryview | None = None,
        tag: int | None = None,
    ) -> None:
        """Until wake() finds it so; who is woken and cancelled lets the next one have it.

        `again`: it was woken for nothing, and keeps its place.  `target`, `tag`: as a Waiter has them.
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
        """Wake those for whom it is so now; in order, from the first to the first for whom it is not."""
        for future, waiter in self._waiters.items():
            now = waiter.is_so()
            if now and not future.done():
                future.set_result(None)
            if self.in_order and not now:
                return
            if self.shared and (now or waiter.tag is None):  # who asks for a tag may be the only one without
                return

    def wake_all(self, error: BaseException | None = None) -> None:
        """Wake all; with an error each raises it."""
        for future in self._waiters:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)


class OrderedQueue(Queue):
    """Tasks for which it becomes so in the order in which they came."""

    in_order = True


class SharedQueue(Queue):
    """Tasks that wait for the next of something: one is woken for each."""

    shared = True


class Turn:
    """What calls do of their own between two turns of the loop: it is bounded, in number and in time.

    A call that finds done what it asks for returns without waiting.  A task that makes one after the other
    would keep all other tasks, and every timer, from running.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._calls = 0
        self._until = 0.0

    async def take(self) -> None:
        """At the beginning of each call: waits for the loop's next turn when this one's share is used up."""
        if self.is_used_up():
            await self.give_way()

    def is_used_up(self) -> bool:
        """Take a share of this turn; True: there was none left."""
        self._count()
        return self._calls > CALLS or monotonic() > self._until

    async def give_way(self) -> None:
        """Wait for the loop's next turn, and take a share of it."""
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
    """The one of a loop: connections and listeners share it."""
    if (found := _turns.get(loop)) is None:
        found = _turns[loop] = Turn(loop)
    return found
