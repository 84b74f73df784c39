# SPDX-License-Identifier: Apache-2.0
"""Calls that are repeated until they succeed, in a thread of their own.

While a process of this host is stopped in the middle of a copy, the device cannot close what it uses, and
says so (EBUSY) after a second each time. An event loop, an agent or a thread with a lock makes such a call
once; this thread repeats it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep

from rnic.log import Log
from rnic.threads import Thread

_log = Log("rnic.rdmacm")

PAUSE = 5.0  # seconds between two rounds at most, and while somebody is stopped
_FIRST = 0.02  # seconds until the first
LONG = 0.5  # seconds: a call that fails after these has waited for somebody who is stopped


class Again:
    """The calls to repeat, one for each object, and a thread that exists while there are any."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._calls: dict[object, Callable[[], bool]] = {}
        self._thread: threading.Thread | None = None
        self._held_up_until = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether some call has not succeeded yet."""
        return bool(self._calls)

    @property
    def is_held_up(self) -> bool:
        """Whether a process is stopped, so that one more call would also fail."""
        return self._held_up_until > 0 and monotonic() < self._held_up_until

    def attempt(self, what: object, call: Callable[[], bool]) -> bool:
        """Make the call, unless it would fail, and repeat it later until it succeeds. Returns whether it
        has.
        """
        if what not in self._calls and not self.is_held_up and self._try(call):
            return True
        if what not in self._calls:
            self.add(what, call)
        return False

    def add(self, what: object, call: Callable[[], bool]) -> None:
        """Repeat a call until it returns True, in any thread, also after an exception."""
        with self._lock, suppress(RuntimeError):  # no thread can be had: the next one tries to
            self._calls[what] = call
            if self._thread is None or not self._thread.is_alive():
                thread = Thread(target=self._run, name="rnic-again", daemon=True)
                thread.start()
                self._thread = thread

    def _try(self, call: Callable[[], bool]) -> bool:
        began = monotonic()
        done = call()
        ended = monotonic()
        self._held_up_until = 0 if done or ended - began < LONG else ended + 2 * PAUSE
        return done

    def _run(self) -> None:
        pause, goes_on = _FIRST, True
        while goes_on:
            sleep(PAUSE if self.is_held_up else min(pause, PAUSE))
            pause *= 2
            with suppress(MemoryError):  # the next round may have some
                self._round()
                goes_on = self._goes_on()

    def _goes_on(self) -> bool:
        with self._lock:
            if not self._calls:
                self._thread = None
            return bool(self._calls)

    def _round(self) -> None:
        """Make the calls up to the first that fails, which comes last in the next round."""
        with self._lock:
            calls = self._calls.copy()  # at once: finalisers, which may add some, run before it
        for what, call in calls.items():
            done = self._succeeds(call)
            with self._lock:
                if self._calls.get(what) is call:  # and no other one meanwhile
                    del self._calls[what]
                    if not done:
                        self._calls[what] = call
            if self.is_held_up:
                return

    def _succeeds(self, call: Callable[[], bool]) -> bool:
        try:
            return self._try(call)
        except MemoryError:
            return False
        except Exception as error:
            _log.error("%r is not tried again", call, error=error)
            return True

    def forked(self) -> None:
        """Forget everything: in a forked child the calls belong to the parent."""
        self.__init__()  # type: ignore[misc]


again = Again()
os.register_at_fork(after_in_child=again.forked)
