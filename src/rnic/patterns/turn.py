# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: threads wait for each other, and the handler of a signal is told that it may not.

A handler runs in the middle of a call of its own thread. There a lock that is reentrant would let it into
half of a call, and one that is not would wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import get_ident
from typing import TypeVar

__all__ = ["Turn"]

T = TypeVar("T")


class Turn:
    """One call at a time.

    An exception of a handler may come at each call and each loop, but not between the other lines. So the
    lock is reentrant: release() tells whether this thread has it. What comes in between the lock and the
    mark is let in: there the call has not begun, or is over.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.RLock()
        self._holder = 0  # the thread that is in a call

    def run(self, call: Callable[[], T], wait: float | None = None, busy: Exception | None = None) -> T:
        """Make a call when other threads have made theirs, and return what it returns.

        Raises `busy` after `wait` seconds; RuntimeError in the middle of a call of this thread.
        """
        me, most = get_ident(), -1.0 if wait is None else min(wait, threading.TIMEOUT_MAX)
        if self._holder == me:
            raise RuntimeError(
                f"this thread is in the middle of a call of this {self._what}: let the signal's handler set "
                "a flag, and call when the other call has returned, or from another thread"
            )
        try:
            if not self._lock.acquire(timeout=most):
                raise busy or TimeoutError
            self._holder = me
            return call()
        finally:
            if self._holder == me:
                self._holder = 0
            try:  # noqa: SIM105 - a signal's handler may run behind suppress()
                self._lock.release()
            except RuntimeError:  # another thread has it
                pass
