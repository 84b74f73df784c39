# SPDX-License-Identifier: Apache-2.0
"""Threads that begin, or say why not."""

from __future__ import annotations

import threading
from errno import EAGAIN

from rnic.errors import VerbsError, exhausted


class Thread(threading.Thread):
    """One whose start() ends in any case: RuntimeError when it has no memory to begin with.

    CPython's waits for ever where memory runs out in the new thread before run(): nobody tells it.
    """

    _began = True

    def start(self) -> None:
        """Begin. RuntimeError when there is no thread, or no memory for one."""
        super().start()
        if not self._began:
            raise RuntimeError("can't start new thread: no memory for it")

    def _bootstrap(self) -> None:
        try:
            super()._bootstrap()  # type: ignore[misc] # what the new thread does, in every CPython
        finally:
            started: threading.Event = self._started  # type: ignore[attr-defined]
            if not started.is_set():
                self._began, self._is_stopped = False, True
                started.set()


def begin(thread: Thread, verb: str) -> None:
    """Start it. EAGAIN when no thread can be had: the error names the limits."""
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise VerbsError(EAGAIN, f"no thread {thread.name}: {exhausted(error)}", verb) from error
