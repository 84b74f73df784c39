# SPDX-License-Identifier: Apache-2.0
"""Threads that begin, or say why not."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from errno import EAGAIN
from typing import TYPE_CHECKING

from rnic.errors import VerbsError, exhausted

_run: Callable[[threading.Thread], None] = threading.Thread._bootstrap  # type: ignore[attr-defined] # CPython's
_LOOK = 0.05  # seconds, after which start() looks whether the new thread lives


class _Boot:
    """What a new thread runs; when it has gone, so has the thread, whether a line of it ran or not."""

    __slots__ = ("__weakref__", "_thread")

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def __call__(self) -> None:
        _run(self._thread)


class _Started(threading.Event):
    """The event that the new thread sets; waiting for it ends also if the thread has ended."""

    boot: weakref.ref[_Boot] | None = None

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None or self.boot is None:
            return super().wait(timeout)
        while not super().wait(_LOOK):
            if self.boot() is None and not self.is_set():
                raise RuntimeError("can't start new thread: no memory for it")
        return True


class Thread(threading.Thread):
    """A thread whose start() always returns: it raises RuntimeError if there is no memory to begin with.

    CPython's start() waits for ever if memory runs out in the new thread before run().
    """

    if TYPE_CHECKING:
        _started: _Started

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if there is no thread, or no memory for one."""
        if not self._started.is_set():
            self._started = _Started()
        try:
            super().start()
        except RuntimeError:
            threading._limbo.pop(self, None)  # type: ignore[attr-defined] # those that begin
            raise

    @property
    def _bootstrap(self) -> _Boot:
        boot = _Boot(self)
        self._started.boot = weakref.ref(boot)
        return boot


def begin(thread: Thread, verb: str) -> None:
    """Start a thread. Raises VerbsError: EAGAIN, with the limits, if no thread can be had."""
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise VerbsError(EAGAIN, f"no thread {thread.name}: {exhausted(error)}", verb) from error
