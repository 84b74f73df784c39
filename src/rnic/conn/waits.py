# SPDX-License-Identifier: Apache-2.0
"""How a call of a synchronous connection waits: it pumps, and sleeps in between."""

from __future__ import annotations

import select
from collections.abc import Callable
from time import monotonic

from rnic._nic.nic import Result
from rnic.conn.core import Core
from rnic.conn.face import Face
from rnic.times import after, milliseconds, seconds


def sleep(filenos: tuple[int, ...], until: float | None) -> None:
    """Sleep until one of the descriptors is readable, or until a time."""
    poll = select.poll()
    for fd in filenos:
        poll.register(fd, select.POLLIN)
    left = None if until is None else max(0.0, until - monotonic())
    poll.poll(milliseconds(left))


def earliest(*times: float | None) -> float | None:
    """The earliest of some times."""
    return min((one for one in times if one is not None), default=None)


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

    def _wait(
        self, is_so: Callable[[], bool], timeout: float | None, what: str, until: float | None = None
    ) -> None:
        """`until`: when the timeout is over, if it has begun already."""
        core, until = self._core, after(timeout) if until is None else until
        core.waiting = True
        try:
            while True:
                core.pump(monotonic())
                if is_so():
                    return
                if until is not None and monotonic() >= until:
                    core.ring()
                    raise TimeoutError(f"{what}: not within {timeout} s")
                if not core.busy and not core.look():
                    sleep((core.fileno(),), earliest(until, core.deadline()))
        finally:
            core.waiting = False

    def _finish(self, one: Result, timeout: float | None, what: str) -> int | None:
        """Wait for an operation; its result."""
        if not self._core.machine.run(one):
            self._wait(lambda: one.done, timeout, what)
        return one.result()
