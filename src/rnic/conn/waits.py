# SPDX-License-Identifier: Apache-2.0
"""How a call of a synchronous connection waits: it pumps, and sleeps in between."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic

from rnic._nic.nic import Result
from rnic.conn.core import Core
from rnic.conn.face import Face
from rnic.times import earliest, milliseconds, seconds

LOOK = 0.25
"""Seconds.  Python does not hear of a signal that comes just ahead of a sleep, until that ends: in the thread
that runs the handlers it is short."""


def sleep(filenos: tuple[int, ...], until: float | None) -> None:
    """Sleep until one of the descriptors is readable, or until a time; the main thread may wake earlier."""
    poll = select.poll()
    for fd in filenos:
        poll.register(fd, select.POLLIN)
    left = None if until is None else max(0.0, until - monotonic())
    if threading.current_thread() is threading.main_thread():
        left = LOOK if left is None else min(left, LOOK)
    poll.poll(milliseconds(left))


class Waits(Face):
    """A connection of which one call runs at a time."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._inside: str | None = None  # the call that runs

    def _enter(self, what: str, timeout: float | None = None) -> None:
        """The caller sets _inside back in a `finally` that follows at once: no exception comes in between."""
        if self._inside is not None or self._core.machine.busy:
            other = f"{self._inside}()" if self._inside else "send() or recv()"
            raise RuntimeError(
                f"{what}() while {other} of this connection runs, in another thread or below a handler of a "
                "signal: use a connection for each thread, or rnic.aio; hang_up() may come from any thread"
            )
        if timeout is not None:
            seconds(timeout)
        self._inside = what

    def _until(
        self,
        wait: Callable[[float], bool],
        over: Callable[[], bool],
        timeout: float | None,
        what: str,
        tag: int | None = None,
    ) -> None:
        """Wait by a call of the machine; `over` tells of what the machine does not know.  `tag`: recv()'s."""
        core = self._core
        until = inf if timeout is None else monotonic() + timeout
        core.machine.want(tag is None, () if tag is None else (tag,))
        try:
            while not wait(until if core.due is None else min(until, core.due)):
                core.pump(monotonic())
                if over():
                    break
                self._check_time(until, timeout, what)
                if core.ended and not core.busy:  # the machine waits for nothing any more
                    sleep((core.fileno(),), earliest(until, core.deadline()))
        finally:
            core.machine.want(False)

    def _check_time(self, until: float, timeout: float | None, what: str) -> None:
        if monotonic() >= until:
            self._core.ring()
            raise TimeoutError(f"{what}: not within {timeout} s")

    def _wait(self, is_so: Callable[[], bool], timeout: float | None, what: str) -> None:
        """Wait for what the machine does not know of."""
        core, until = self._core, inf if timeout is None else monotonic() + timeout
        core.machine.want(True)
        try:
            while True:
                core.pump(monotonic())
                if is_so():
                    return
                self._check_time(until, timeout, what)
                if not core.busy and not core.machine.look():
                    sleep((core.fileno(),), earliest(until, core.deadline()))
        finally:
            core.machine.want(False)

    def _finish(self, one: Result, timeout: float | None, what: str) -> int | None:
        """Wait for an operation; its result."""
        machine = self._core.machine
        if not machine.wait_done(one, 0.0):
            self._until(partial(machine.wait_done, one), lambda: one.done, timeout, what)
        return one.result()
