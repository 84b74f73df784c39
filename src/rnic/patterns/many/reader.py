# SPDX-License-Identifier: Apache-2.0
"""The reader, for threads and for tasks: it takes records in order, and skips what the dead have claimed."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING

from rnic.enums import AccessFlags
from rnic.patterns.cursor import LiarError
from rnic.patterns.many.layout import (
    GONE,
    LENGTH,
    MOST,
    MOST_SLOTS,
    MOST_WRITERS,
    NUMBER,
    OWNER,
    RECORD,
    SLOTS,
    TAKEN,
    WAITING,
    Invitation,
    stride,
)
from rnic.patterns.revoking import take_back, take_back_async
from rnic.patterns.wait import left
from rnic.times import after

if TYPE_CHECKING:
    from collections.abc import Iterator

    import rnic
    from rnic import aio

__all__ = ["AsyncManyReader", "ManyReader"]

_ACCESS = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC
_SPINS = 100
_NAP = 0.25  # seconds of a sleep at most: a writer whose call ended early has perhaps not rung


class _Reader:
    """The end that has the ring.

    listener: of rnic.listen() or rnic.aio.listen(), at one address. slots: how many records the ring has.
    size: the longest record, in bytes.
    """

    def __init__(
        self, listener: rnic.Listener | aio.Listener, *, slots: int = 1024, size: int = 1024
    ) -> None:
        if not 2 <= slots <= MOST_SLOTS:
            raise ValueError(f"{slots} slots: give 2 to {MOST_SLOTS}")
        if not 1 <= size <= MOST:
            raise ValueError(f"records of {size} bytes: give 1 to {MOST}")
        self._slots, self._size, self._stride = slots, size, stride(size)
        self.mr = listener.alloc(SLOTS + slots * self._stride)
        """The memory, which writers use."""
        self._guard, self._fence = threading.Lock(), threading.Lock()
        self._inside = False
        self._next = self._last = 0
        self._writers: set[int] = set()
        self.skipped = 0
        """Records that were claimed by writers that have gone, and so never came."""
        words = self.mr.buf.cast("Q")
        for number in range(slots):
            words[self._at(number) // 8] = number << NUMBER

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._slots} slots, {self._next} taken, {self.writers} writers>"

    @property
    def writers(self) -> int:
        """How many there are."""
        return len(self._writers)

    def _at(self, number: int) -> int:
        return SLOTS + number % self._slots * self._stride

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._inside:
            raise RuntimeError("another thread or task reads here: a ring has one reader")
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def _sleeps(self, so: bool) -> None:
        self.mr.buf.cast("Q")[WAITING // 8] = so
        with self._fence:  # a barrier: it is there before the slot is looked at
            pass

    def _take(self, most: int | None) -> list[bytes]:
        """What is complete, in order."""
        if most is not None and most < 1:
            raise ValueError(f"at most {most} records: give 1 or more, or None")
        buf, found, begin = self.mr.buf, list[bytes](), self._next
        words = buf.cast("Q")
        try:
            while len(found) != most and self._next - begin < self._slots:
                at = self._at(self._next)
                length = words[(at + LENGTH) // 8]  # first: whoever has given one has claimed the slot before
                state = words[at // 8]
                if not length and state >> NUMBER == self._next:
                    break
                self._next += 1
                if length == GONE:
                    self.skipped += 1
                    continue
                self._check(state, length)
                found.append(bytes(buf[at + RECORD : at + RECORD + length - 1]))
        finally:
            self._free(words, begin)
        return found

    def _check(self, state: int, length: int) -> None:
        """Of a slot that was taken; when this raises, the next call goes on behind it."""
        number, writer = state >> NUMBER, state & OWNER
        if number != self._next - 1 or not writer:
            raise LiarError(f"the slot of record {self._next - 1} says {state:#x}, which no writer does")
        if length - 1 > self._size:
            raise LiarError(f"writer {writer} says that a record has {length - 1} bytes")

    def _free(self, words: memoryview, begin: int) -> None:
        """What was taken, for the next round."""
        with self._guard:
            for number in range(begin, self._next):
                words[self._at(number) // 8] = number << NUMBER | TAKEN
            with self._fence:  # a barrier: a claim without a length was never used
                pass
            for number in range(begin, self._next):
                words[(self._at(number) + LENGTH) // 8] = 0
            with self._fence:  # a barrier: a slot that can be claimed has no length
                pass
            for number in range(begin, self._next):
                words[self._at(number) // 8] = number + self._slots << NUMBER

    def _why(self) -> str:
        """Why nothing comes."""
        writer = self.mr.buf.cast("Q")[self._at(self._next) // 8] & OWNER
        return (
            f"get: writer {writer} does not complete its record" if writer else "get: no record came in time"
        )

    # ------------------------------------------------------------ writers

    def _join(self) -> int:
        with self._guard:
            for step in range(MOST_WRITERS):
                number = (self._last + step) % MOST_WRITERS + 1
                if number not in self._writers:
                    self._last = number
                    self._writers.add(number)
                    return number
        raise RuntimeError(f"no place: there are {MOST_WRITERS} writers")

    def _invitation(self, writer: int) -> bytes:
        return Invitation(writer, self._slots, self._size).pack()

    def _leave(self, writer: int) -> None:
        """Its requests are gone with it, so what it has claimed does not change any more."""
        words = self.mr.buf.cast("Q")
        with self._guard:
            for slot in range(self._slots):
                at = self._at(slot)
                if words[at // 8] & OWNER == writer and not words[(at + LENGTH) // 8]:
                    words[(at + LENGTH) // 8] = GONE
            self._writers.discard(writer)


class ManyReader(_Reader):
    """The reader, for threads: one takes the records, and each writer has one in serve()."""

    def __init__(
        self, listener: rnic.Listener | aio.Listener, *, slots: int = 1024, size: int = 1024
    ) -> None:
        super().__init__(listener, slots=slots, size=size)
        self._bell = threading.Condition()

    def serve(self, conn: rnic.Connection) -> None:
        """Let one writer in, and wait until its connection has ended; for rnic.Listener.serve().

        Raises what the connection raises when the writer dies. As long as a process of this host is stopped
        in the middle of a copy, the writer's claims are not skipped, and it does not return.
        """
        writer, region = self._join(), None
        try:
            region = conn.share(self.mr.buf, _ACCESS)
            conn.send(self._invitation(writer))
            for _ in conn:
                self._ring()
        finally:
            if region is not None:
                take_back(conn, region)
            self._leave(writer)
            self._ring()

    def _ring(self) -> None:
        with self._bell:
            self._bell.notify_all()

    def get(self, timeout: float | None = None) -> bytes:
        """The next record; waits for it.

        Raises TimeoutError, which names the writer that does not complete its record, if there is one.
        LiarError for a slot that no writer of this pattern leaves so; the next call goes on behind it.
        """
        return self.get_many(1, timeout)[0]

    def get_many(self, most: int | None = None, timeout: float | None = None) -> list[bytes]:
        """Wait for a record; returns it and those behind it, at most `most`. Raises as get()."""
        until = after(timeout)
        with self._alone():
            for _ in range(_SPINS):
                if found := self._take(most):
                    return found
            try:
                return self._wait(most, until)
            finally:
                self._sleeps(False)

    def _wait(self, most: int | None, until: float | None) -> list[bytes]:
        with self._bell:
            while True:
                self._sleeps(True)
                if found := self._take(most):
                    return found
                if left(until) == 0:
                    raise TimeoutError(self._why())
                self._bell.wait(_NAP if until is None else min(_NAP, until - monotonic()))


class AsyncManyReader(_Reader):
    """The same for tasks of asyncio; asyncio.timeout() limits its calls."""

    def __init__(
        self, listener: rnic.Listener | aio.Listener, *, slots: int = 1024, size: int = 1024
    ) -> None:
        super().__init__(listener, slots=slots, size=size)
        self._bell = asyncio.Event()

    async def serve(self, conn: aio.Connection) -> None:
        """Let one writer in, and wait until its connection has ended; for rnic.aio.Listener.serve()."""
        writer, region = self._join(), None
        try:
            region = await conn.share(self.mr.buf, _ACCESS)
            await conn.send(self._invitation(writer))
            async for _ in conn:
                self._bell.set()
        finally:
            if region is not None:
                await take_back_async(conn, region)
            self._leave(writer)
            self._bell.set()

    async def get(self) -> bytes:
        """The next record; waits for it. Raises LiarError as ManyReader.get()."""
        return (await self.get_many(1))[0]

    async def get_many(self, most: int | None = None) -> list[bytes]:
        """Wait for a record; returns it and those behind it, at most `most`."""
        with self._alone():
            await asyncio.sleep(0)  # other tasks run, however many records come
            try:
                while True:
                    self._bell.clear()
                    if found := self._take(most):
                        return found
                    self._sleeps(True)
                    if found := self._take(most):
                        return found
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_NAP):
                            await self._bell.wait()
            finally:
                self._sleeps(False)
