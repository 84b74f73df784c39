# SPDX-License-Identifier: Apache-2.0
"""Tasks that wait until a descriptor is readable."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

from rnic.aio.waiting import SharedQueue


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
