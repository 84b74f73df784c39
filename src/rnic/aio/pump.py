# SPDX-License-Identifier: Apache-2.0
"""A connection in an event loop: pump it on news or at a deadline, and wake the tasks that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from time import monotonic
from weakref import WeakMethod

from rnic.aio.driver import driver_of
from rnic.aio.waiting import MessageQueue, OrderedQueue, Queue, SharedQueue, turn_of
from rnic.conn.core import Core
from rnic.conn.ending import GRACE
from rnic.endpoint import EndpointError
from rnic.rdmacm.again import again


def _weakly(method: Callable[[], object]) -> Callable[[], None]:
    """Call a method while its object exists: who keeps the handle of a timer is not kept by the timer."""
    found = WeakMethod(method)

    def call() -> None:
        if (method := found()) is not None:
            method()

    return call


def _leave(core: Core, loop: asyncio.AbstractEventLoop, until: float) -> bool:
    """Release a dropped connection whose loop has ended, or stands until a time; whether that is done."""
    if not core.given_back and loop.is_closed():
        core.pump(monotonic())
    if not core.given_back and (monotonic() >= until or (loop.is_closed() and core.finished)):
        core.release()
    return core.given_back


_FAILURES = 3
"""The number of pumps in a row that may raise before the connection is given up."""


class Pump:
    """Pumps a core in the running event loop."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._loop = asyncio.get_running_loop()
        self.turn = turn_of(self._loop)
        self.messages = MessageQueue(core.messages)
        self.regions, self.withdrawn = SharedQueue(), SharedQueue()
        self.sends, self.ops = OrderedQueue(), OrderedQueue()
        self.withdrawals, self.end = Queue(), Queue()
        self._queues = (
            self.messages,
            self.regions,
            self.withdrawn,
            self.sends,
            self.ops,
            self.withdrawals,
            self.end,
        )
        self._run_soon, self._run_in_time = _weakly(self.run), _weakly(self._on_time)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf  # the time of the timer, by monotonic()
        self._again: asyncio.Handle | None = None  # what is done in the loop's next turn
        self.is_dropped = False
        """drop() was called: the core is released when the peer has heard of it."""
        self._on_end: Callable[[EndpointError | None], object] | None = None
        self._failures = 0
        self._calm = False
        """The last pump has left nothing to do, and no time but the machine's deadline."""
        self._asked = (False, 0)
        self._target: memoryview | None = None
        self._filenos: tuple[int, ...] = (core.fileno(),)
        device = core.machine.device()
        self._driver = driver_of(self._loop, device) if device >= 0 else None
        try:
            if self._driver is not None:
                self._driver.add(self)
            for fd in self._filenos:
                self._loop.add_reader(fd, self.on_news)
            self.run()
        except BaseException:
            self._unwatch()
            raise

    def run(self) -> None:
        """Pump, and wake the tasks that can go on.

        After an exception the loop's next turn pumps again, so that no task hangs.
        """
        try:
            if not self._goes_on():
                self._see_to_all()
            self._failures = 0
        except BaseException as error:
            self._failed(error)
            raise

    def on_news(self) -> None:
        """Something has come: the loop calls."""
        self.turn.has_come()
        self.run()

    def _goes_on(self) -> bool:
        """Pump while nothing but messages and results come; False: there may be more to do."""
        core = self.core
        if not self._calm or core.gone or core.leaving != core.looked:
            return False
        if not self._has_asked() or core.channel.peek() is not None:
            return False
        if (due := core.machine.step_on()) is None:
            return False
        self._wake()
        self._set_timer(due)
        return True

    def _see_to_all(self) -> None:
        self._calm = False
        if not self.core.gone:
            self._ask()
        self.core.pump(monotonic())
        self._wake()
        self._tell_end()
        if self.is_dropped and self.core.finished:
            self.release()
        self._plan()

    def _wake(self) -> None:
        for queue in self._queues:
            if queue.waiters:
                queue.wake()

    def _asks(self) -> tuple[bool, int]:
        """Whether the peer's next message is wanted now, and which number of tags has been asked for."""
        any_one = self.core.machine.hand is None and bool(self.messages.waiters or self.sends.waiters)
        return any_one, self.messages.asked

    def _has_asked(self) -> bool:
        """The machine knows what the tasks wait for."""
        return self._asked == self._asks() and self.messages.target is self._target

    def _ask(self) -> None:
        """Tell the machine what the tasks wait for."""
        self._asked = self._asks()
        self.core.machine.want(self._asked[0], self.messages.tags)
        self._aim()

    def _aim(self) -> None:
        """An announced message goes to the buffer of the task that comes next."""
        if self.messages.target is not self._target:
            self._target = self.messages.target
            self.core.machine.aim(self._target)

    def aim_again(self) -> None:
        """A task's buffer is its own again."""
        if self._target is not None:
            self._target = None
            self.core.machine.aim(None)

    def _failed(self, error: BaseException) -> None:
        self._failures += 1
        self._calm = False
        try:
            if self._failures > _FAILURES:
                self._unwatch()
                self.core.give_up(error)
                for queue in self._queues:
                    queue.wake_all()
                self._tell_end()
        finally:
            self._plan()

    def watch_end(self, callback: Callable[[EndpointError | None], object] | None) -> None:
        """Call this in the loop, once, when the peer has left or the connection has failed; None: nothing."""
        self._on_end = callback
        self._tell_end()

    def _tell_end(self, again: bool = True) -> None:
        if self._on_end is None or not (self.core.eof or self.core.ended):
            return
        if self.core.messages.is_spent:
            error = None if self.core.eof else self.core.fault
            self.core.told |= error is not None
            self._loop.call_soon(self._on_end, error)
            self._on_end = None
        elif again:  # recv() pumps before it gives the last message out
            self._loop.call_soon(self._tell_end, False)

    def _plan(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self.core.released or not self._filenos:
            self._drop_timer()
        elif self.core.busy or self._failures:
            self._again = self._loop.call_soon(self._run_soon)
        else:
            core = self.core
            self._calm = core.due is None and core.machine.established and core.leaving == core.looked
            if (due := self.core.deadline()) is not None:
                self._set_timer(due)

    def _set_timer(self, due: float) -> None:
        """Set the timer, unless one runs earlier: each message puts off most deadlines."""
        if due < self._timer_at:
            self._drop_timer()
            self._timer = self._loop.call_later(max(0.0, due - monotonic()), self._run_in_time)
            self._timer_at = due

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, inf

    def _on_time(self) -> None:
        self._timer, self._timer_at = None, inf
        self.run()

    def soon(self) -> None:
        """Pump in the loop's next turn, as there is something to do that no event tells of."""
        if not self._loop.is_closed():  # a call may be given up later
            self._loop.call_soon(self.run)

    def wait(
        self,
        queue: Queue,
        is_so: Callable[[], bool],
        again: bool = False,
        target: memoryview | None = None,
        tag: int | None = None,
    ) -> Awaitable[None]:
        """Pump, and wait until `is_so()`; `again`: the task was woken before, but another one was faster.

        `target`, `tag`: the buffer for a message, and the tag that the message must have.
        """
        return queue.wait(is_so, again, target, tag, self.run)

    def drop(self, text: str) -> None:
        """Abort the connection and release it soon, from any thread."""
        self.is_dropped, self._on_end = True, None
        if not self._is_here():
            try:
                self._loop.call_soon_threadsafe(self.drop, text)
            except RuntimeError:  # the loop is closed
                self.core.end.forget()
            return
        try:
            self.core.abort(text)
            if not self.core.end.tells:
                self._loop.call_later(GRACE, self.release)
                again.add(self.core, partial(_leave, self.core, self._loop, monotonic() + 2 * GRACE))
                self.run()
        finally:
            if self.core.end.tells:
                self.release()

    def _is_here(self) -> bool:
        """Whether this is the thread of the loop, and the loop runs."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def release(self) -> None:
        """Leave the loop, give everything back, and wake all tasks that wait."""
        self._on_end = None
        try:
            self._unwatch()
        finally:
            try:
                self.core.release()
            finally:
                for queue in self._queues:
                    queue.wake_all()

    def _unwatch(self) -> None:
        filenos, self._filenos = self._filenos, ()
        self._calm = False
        if self._driver is not None:
            self._driver.remove(self)
        for fd in filenos:
            self._loop.remove_reader(fd)
        self._plan()

    def forget(self) -> None:
        """Release a connection that the program has dropped.  From any thread; the loop may be closed."""
        try:
            self._loop.call_soon_threadsafe(self.release)
        except RuntimeError:
            self.core.end.forget()
