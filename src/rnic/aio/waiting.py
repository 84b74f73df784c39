# SPDX-License-Identifier: Apache-2.0
"""Queues that wake waiting tasks in order, descriptors that tasks wait for, and a limit on calls in a row."""

from __future__ import annotations

import asyncio
import select
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from itertools import chain, islice
from time import monotonic
from typing import NamedTuple, Protocol, TypeAlias

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
    turn: int = 0
    """Tasks are woken in the order of these numbers."""


_Entry: TypeAlias = "tuple[asyncio.Future[None], Waiter]"
_Waiters: TypeAlias = "OrderedDict[asyncio.Future[None], Waiter]"


class Queue:
    """Tasks that wait, each for a condition of its own."""

    shared = False  # all tasks wait for the same thing, and the task that is woken uses it up
    in_order = False  # the conditions become true in the order of the tasks

    def __init__(self) -> None:
        self._waiters: _Waiters = OrderedDict()
        self.waiters = self._waiters.keys()
        """The tasks that wait, always as they are now."""
        self._turns = 0

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def target(self) -> memoryview | None:
        """The buffer of the first task that was not woken yet."""
        for one, waiter in self._waiters.items():
            if not one.done():
                return waiter.target
        return None

    async def wait(
        self,
        is_so: Callable[[], bool],
        again: bool = False,
        target: memoryview | None = None,
        tag: int | None = None,
        first: Callable[[], object] | None = None,
    ) -> None:
        """Wait until wake() finds the condition true; a task that is cancelled wakes the next one.

        `again`: the task was woken in vain, and keeps its place in front.  `target`, `tag`: see Waiter.
        `first` is called when the task is in the queue; it may wake the task, which then does not wait.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns += 1
        waiter = Waiter(is_so, target, tag, -self._turns if again else self._turns)
        try:
            self._add(future, waiter)
            if first is not None:
                first()
            await future
        except BaseException:
            self._drop(future)
            self.wake()
            raise
        self._drop(future)

    def _add(self, future: asyncio.Future[None], waiter: Waiter) -> None:
        _put(self._waiters, future, waiter)

    def _drop(self, future: asyncio.Future[None]) -> None:
        """Remove a task from the queue; again changes nothing."""
        self._waiters.pop(future, None)

    def _drop_late(self, future: asyncio.Future[None]) -> None:
        """Remove a task that has gone on, and is still here because an exception came between."""
        if future in self._waiters:
            self._drop(future)
            self.wake()

    def _wake(self, future: asyncio.Future[None]) -> None:
        """Wake a task.  One that was woken before goes on in the loop's next turn, or is dropped there."""
        if future.done():
            future.get_loop().call_soon(self._drop_late, future)
        else:
            future.set_result(None)

    def wake(self) -> bool:
        """Wake the tasks whose conditions are true, and return whether there are any.

        An ordered queue stops at the first task whose condition is not true; a shared one wakes one task.
        """
        found = False
        for future, waiter in self._waiters.items():
            now = waiter.is_so()
            if now and (self.shared or not future.done()):
                self._wake(future)
            found = found or now
            if self.shared or (self.in_order and not now):
                break
        return found

    def wake_all(self) -> None:
        """Wake all tasks."""
        for future in self._waiters:
            _go_on(future)


class OrderedQueue(Queue):
    """Tasks whose conditions become true in the order in which the tasks came."""

    in_order = True


class SharedQueue(Queue):
    """Tasks that wait for the next item of a kind: each item wakes one task."""

    shared = True


class Arrivals(Protocol):
    """The messages of a connection, as the tasks that wait for them see them."""

    def has_no_more(self, tag: int | None) -> bool:
        """Whether a task that finds no message with this tag learns why none comes."""

    def all_go_on(self) -> bool:
        """Whether every task can go on, also when another one has: it takes a message, or learns why not."""

    def first_tag(self, tags: Collection[int] | None) -> int | None:
        """The tag of the first message that is here, of those with these tags (None: of all)."""


class MessageQueue(Queue):
    """Tasks that wait for messages, some for one with a certain tag: each message wakes one task."""

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__()
        self._arrivals = arrivals
        # The tasks that wake() has to look at, in their order.
        self._untagged: _Waiters = OrderedDict()
        self._tagged: dict[int, _Waiters] = {}
        self.tags = self._tagged.keys()
        """The tags that tasks ask for, always as they are now."""
        self.asked = 0
        """Counts when a tag comes to these."""

    def _add(self, future: asyncio.Future[None], waiter: Waiter) -> None:
        _put(self._waiters, future, waiter)
        if waiter.tag is None:
            _put(self._untagged, future, waiter)
            return
        if waiter.tag not in self._tagged:
            self._tagged[waiter.tag] = OrderedDict()
            self.asked += 1
        _put(self._tagged[waiter.tag], future, waiter)

    def _drop(self, future: asyncio.Future[None]) -> None:
        self._forget(future)
        self._waiters.pop(future, None)  # last: until then an exception may come, and it is done again

    def _forget(self, future: asyncio.Future[None]) -> None:
        """Let wake() look at a task no more; the task keeps its place before those that come later."""
        self._untagged.pop(future, None)
        waiter = self._waiters.get(future)
        if waiter is not None and waiter.tag in self._tagged:
            self._tagged[waiter.tag].pop(future, None)
            if not self._tagged[waiter.tag]:
                del self._tagged[waiter.tag]

    def wake(self) -> bool:
        """Wake the task that takes the first message that one asks for, or all tasks if all can go on; return
        whether there is any.
        """
        if not self._tagged:
            takers = _first(self._untagged)
        elif not self._arrivals.has_no_more(0):  # nor with any other tag
            takers = self._takers()
        elif self._arrivals.all_go_on():
            return self._wake_each()
        else:  # the first that asks is told of what went wrong
            takers = _first(self._waiters)
        for future, waiter in takers:
            if waiter.is_so():
                self._wake(future)
                return True
            if waiter.tag is None:  # nothing may overtake it
                return False
        return False

    def _wake_each(self) -> bool:
        """Wake all tasks whose conditions are true, in the loop's next turn: a task that runs now, as it has
        just come, would overtake the others.

        Each of them calls wake() when it goes on, so those that are woken are not looked at again.
        """
        found = False
        tagged = (waiters.items() for waiters in self._tagged.values())
        for future, waiter in sorted(chain(self._untagged.items(), *tagged), key=_turn):
            if waiter.is_so():
                found = True
                future.get_loop().call_soon(_go_on, future)
                self._forget(future)
        return found

    def _takers(self) -> list[_Entry]:
        """The tasks that can take the first message that one asks for, in their order."""
        untagged = _first(self._untagged)
        tag = self._arrivals.first_tag(None if untagged else self.tags)
        tagged = [] if tag is None else _first(self._tagged.get(tag, {}))
        return sorted(untagged + tagged, key=_turn)


def _put(waiters: _Waiters, future: asyncio.Future[None], waiter: Waiter) -> None:
    """Add a task at the end, or in front."""
    waiters[future] = waiter
    if waiter.turn < 0:
        waiters.move_to_end(future, last=False)


def _go_on(future: asyncio.Future[None]) -> None:
    """Wake a task, unless it was woken or cancelled."""
    if not future.done():
        future.set_result(None)


def _first(waiters: Mapping[asyncio.Future[None], Waiter]) -> list[_Entry]:
    """The task that came first, if there is any."""
    return list(islice(waiters.items(), 1))


def _turn(one: _Entry) -> int:
    return one[1].turn


class Turn:
    """Bounds the calls that return without waiting between two turns of the loop, in number and in time.

    A call that has nothing to wait for returns at once.  A task that makes many such calls in a row would
    keep all other tasks and every timer from running.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._until = 0.0
        self._looked = 0
        self._turned = 0

    def may_look(self, connection: object) -> bool:
        """Whether a call may look for a message before it waits: only if no other connection's call has come
        since the last time.  A loop with several busy connections has better things to do.
        """
        last, self._looked = self._looked, id(connection)
        return last == self._looked

    async def take(self) -> None:
        """Begin a call: wait for the loop's next turn if this turn's share is used up."""
        if self.is_used_up():
            await self.give_way()

    def is_used_up(self) -> bool:
        """Count a call; return True if there were enough since the loop was seen to turn."""
        if self._calls == 0:
            self._until = monotonic() + SECONDS
        self._calls += 1
        return self._calls > CALLS or (self._calls > 1 and monotonic() > self._until)

    async def give_way(self) -> None:
        """Wait for the loop's next turn, and count the call there."""
        turned = self._turned
        await asyncio.sleep(0)
        if self._turned == turned:  # the first of those that gave way together
            self.has_come()
        self.is_used_up()

    def has_come(self) -> None:
        """The loop has turned."""
        self._calls = 0
        self._turned += 1


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = weakref.WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """Return the Turn of a loop, which all its connections and listeners share."""
    if (found := _turns.get(loop)) is None:
        found = _turns[loop] = Turn()
    return found


class Readable:
    """A descriptor that tasks wait for; one task is woken at a time, in the order in which they came."""

    def __init__(self, fileno: Callable[[], int]) -> None:
        self._fileno = fileno
        self._waiters = SharedQueue()

    async def wait(self, again: bool = False) -> None:
        """Wait until the descriptor is readable; `again`: the task was woken in vain, and keeps its place."""
        loop, fd = asyncio.get_running_loop(), self._fileno()
        if not self._waiters:
            loop.add_reader(fd, self._waiters.wake)
        try:
            await self._waiters.wait(lambda: _is_readable(fd), again)
        finally:
            if not self._waiters:
                loop.remove_reader(fd)

    def wake(self) -> None:
        """Wake the next task if the descriptor is readable."""
        self._waiters.wake()


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
