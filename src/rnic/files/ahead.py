# SPDX-License-Identifier: Apache-2.0
"""What there is to send, read in a thread ahead of what is sent: it begins before there is a connection."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from rnic.files import reading
from rnic.files.options import Options
from rnic.files.reading import Large, Source
from rnic.files.records import Record

__all__ = ["Ahead"]

MOST = 16
"""Messages of small files that wait to be sent. Behind a large file, nothing is read before that is sent."""
Item = list[Record] | Large | None


class Ahead:
    """A context manager; at its end the thread has ended, too, and what nobody has taken is closed."""

    def __init__(self, sources: list[Source], options: Options) -> None:
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._thread = ThreadPoolExecutor(1, "rnic-walk")
        self._items = reading.pack(sources, options)
        self._coming: deque[Future[Item]] = deque()
        count = partial(reading.count_all, sources, options, self._stop)
        self._count = self._thread.submit(count) if options.total else None
        self._go_on()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stop.set()
        self._thread.shutdown(cancel_futures=True)
        for one in self._coming:
            item = None if one.cancelled() or one.exception() else one.result()
            if isinstance(item, Large):
                os.close(item.fd)

    async def total(self) -> tuple[int, int] | None:
        """How many files and bytes there are, if Options.total asks."""
        if self._count is None:
            return None
        return await asyncio.wrap_future(self._count)

    async def next(self) -> Item:
        """The records of a message, or a large file, whose descriptor the caller closes; None at the end."""
        item = await asyncio.wrap_future(self._coming[0])
        with self._lock:
            self._coming.popleft()
        self._go_on()
        return item

    def _go_on(self, _: object = None) -> None:
        """From the loop, and from the thread when an item is there."""
        with self._lock:
            if not self._wants_more():
                return
            self._coming.append(one := self._thread.submit(next, self._items, None))
        one.add_done_callback(self._go_on)

    def _wants_more(self) -> bool:
        if self._stop.is_set() or len(self._coming) >= MOST:
            return False
        if not self._coming:
            return True
        last = self._coming[-1]
        failed = not last.done() or last.cancelled() or last.exception() is not None
        return not failed and isinstance(last.result(), list)
