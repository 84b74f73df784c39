# SPDX-License-Identifier: Apache-2.0
"""The critical section in which a queue pair's builders make work requests (ibv_wr_post(3))."""

import errno
import threading
from time import monotonic

from rnic._nic.nic import SendWR
from rnic.errors import VerbsError
from rnic.times import after

__all__ = ["Section"]

_LOOK = 0.25  # seconds between two looks whether the thread that is inside still lives


class Section:
    """Lets one thread at a time build requests; holds its requests and its first error.

    If a thread ends without complete or abort, its requests are dropped and the next thread may begin.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handing_over = threading.Lock()
        self._owner: threading.Thread | None = None
        self.requests: list[SendWR] = []
        self.error: VerbsError | None = None

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is building requests."""
        return self._owner is threading.current_thread()

    def enter(self, timeout: float | None) -> None:
        """Wait until no other thread is building requests. Raises TimeoutError after `timeout` seconds."""
        if self.is_mine:
            cure = "end it with wr_complete() or wr_abort(), or use `with qp.wr_start():`, which does so"
            raise VerbsError(errno.EINVAL, f"this thread has begun already: {cure}", "wr_start")
        ends = after(timeout)
        deadline = float("inf") if ends is None else ends
        while not self._lock.acquire(timeout=max(0.0, min(_LOOK, deadline - monotonic()))):
            owner = self._owner
            if owner is not None and not owner.is_alive():
                self._put_out(owner)
            elif monotonic() >= deadline:
                raise TimeoutError(f"wr_start: {owner} has not called wr_complete() or wr_abort() in time")
        self._owner = threading.current_thread()

    def leave(self) -> None:
        """Drop the requests, and let the next thread begin."""
        self.requests, self.error = [], None
        self._owner = None
        self._lock.release()

    def _put_out(self, dead: threading.Thread) -> None:
        with self._handing_over:
            if self._owner is dead:
                self.leave()

    def need(self, verb: str) -> None:
        """Raise EINVAL unless the calling thread is building requests."""
        if not self.is_mine:
            raise VerbsError(errno.EINVAL, "call wr_start() first, in this thread", verb)

    def fail(self, number: int, text: str) -> None:
        """Record an error; wr_complete() raises the first one."""
        if self.error is None:
            self.error = VerbsError(number, f"{text}; nothing is posted", "wr_complete")
