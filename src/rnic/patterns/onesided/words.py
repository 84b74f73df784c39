# SPDX-License-Identifier: Apache-2.0
"""Locks and counters: words of 8 bytes in the server's memory, the locks first (guest.py), the counters
behind them.

A counter is changed by FETCH_ADD, and read by READ. The number that a lock gives is its count of releases,
which grows from holder to holder: whoever gives it along to a third party lets that party refuse a holder of
the past.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from operator import index
from typing import TYPE_CHECKING

from rnic.patterns.onesided.guest import COUNT, TIMEOUT, Guest, InTasks, InThreads, Patience, owner_of
from rnic.patterns.onesided.serving import Memory
from rnic.patterns.ports import FetchAdd, Steps, run, run_async
from rnic.times import after

if TYPE_CHECKING:
    from rnic._nic.nic import MR
    from rnic.patterns.onesided.invitation import Invitation

__all__ = ["AsyncWords", "WordMemory", "Words"]

_MOST = 1 << 24


class WordMemory(Memory):
    """The server's side: so many locks, none held, and so many counters, all 0. alloc: as StoreMemory's."""

    kind = 2

    def __init__(self, alloc: Callable[[int], MR], *, locks: int = 0, counters: int = 0) -> None:
        if min(locks, counters) < 0 or not 1 <= locks + counters <= _MOST:
            raise ValueError(f"{locks} locks and {counters} counters: give 1 to {_MOST} together")
        self._number_of_locks = locks
        super().__init__(alloc, 8 * (locks + counters), (locks, counters, 0))
        for at in range(locks + counters):
            self._words[at] = 0

    def _locks(self) -> Iterable[int]:
        return range(self._number_of_locks)


class WordSteps(Guest):
    """The calls, as steps for any port."""

    kind = 2

    def _measure(self, told: Invitation) -> int:
        self.locks, self.counters, _ = told.sizes
        if 8 * (self.locks + self.counters) > told.length:
            raise ValueError(f"{self.locks} locks and {self.counters} counters in {told.length} bytes")
        self._holders: dict[int, object] = {}
        """By a lock's offset, who has got it last."""
        return 8

    def _take(self, lock: int, until: float | None, holder: object = None) -> Steps[tuple[int, int]]:
        """Take a lock for a holder if it is free; its count, and the number of the client that has it now.

        Whoever waits does so between such calls, so that other threads or tasks can release theirs.
        """
        if not 0 <= lock < self.locks:
            raise IndexError(f"lock {lock} of {self.locks}")
        yield from self._settle(0, until)
        word = yield from self._look(0, 8 * lock, until)
        if owner_of(word) == self.number:
            raise ValueError("this client holds the lock already: release it first")
        if owner_of(word) or not (yield from self._try_lock(8 * lock, word, until)):
            return 0, owner_of(word)
        self._holders[8 * lock] = holder
        self._doubts.discard(8 * lock)  # it is the holder's now
        return word >> COUNT, self.number

    def _later(self, patience: Patience, holder: int) -> Steps[None]:
        why = f"client {holder} holds the lock" if holder else "other clients were faster"
        yield from patience.pause(why)

    def _add(self, counter: int, n: int, until: float | None) -> Steps[int]:
        n = index(n)
        old = yield FetchAdd(self._remote, self._place(counter), n % (1 << 64), until)
        return old

    def _value(self, counter: int, until: float | None) -> Steps[int]:
        return (yield from self._look(0, self._place(counter), until))

    def _place(self, counter: int) -> int:
        if not 0 <= counter < self.counters:
            raise IndexError(f"counter {counter} of {self.counters}")
        return 8 * (self.locks + counter)


class Words(WordSteps, InThreads):
    """A client of locks and counters, whose calls wait. Words.over(conn) makes it.

    All calls take a `timeout` in seconds, None: for ever; raise TimeoutError, IndexError, and what the
    connection raises.
    """

    @contextmanager
    def lock(self, lock: int, timeout: float | None = TIMEOUT) -> Iterator[int]:
        """Hold a lock for a block; gives a number that is larger than all holders' before.

        Not fair: of those who wait, chance decides. The lock belongs to the client, not to a thread: whoever
        asks for it twice gets ValueError. The release at the end of the block has the same timeout; if it
        fails, the next lock() of this client does it. If the client dies, the server takes the lock back; the
        next holder is not told that what the lock guards may be half changed.
        """
        until = after(timeout)
        patience = Patience(until)
        holder = object()
        try:
            while (found := self._run(self._take(lock, until, holder), until))[1] != self.number:
                run(self._port, self._later(patience, found[1]))
            yield found[0]
        finally:  # Ctrl-C may come behind _take() at once, and behind each call; up to add() there is none
            if 8 * lock in self._holders and self._holders[8 * lock] is holder:
                self._doubts.add(8 * lock)
                del self._holders[8 * lock]
                until = after(timeout)
                self._run(self._settle(0, until), until)

    def add(self, counter: int, n: int = 1, timeout: float | None = TIMEOUT) -> int:
        """Add to a counter, which wraps at 2**64; returns its old value. After TimeoutError it may have been
        done, or not.
        """
        until = after(timeout)
        return self._run(self._add(counter, n, until), until)

    def value(self, counter: int, timeout: float | None = TIMEOUT) -> int:
        """The value of a counter."""
        until = after(timeout)
        return self._run(self._value(counter, until), until)


class AsyncWords(WordSteps, InTasks):
    """A client of locks and counters for asyncio; as Words. `await AsyncWords.over(conn)` makes it."""

    @asynccontextmanager
    async def lock(self, lock: int, timeout: float | None = TIMEOUT) -> AsyncIterator[int]:
        """As Words.lock()."""
        until = after(timeout)
        patience = Patience(until)
        while (found := await self._run(self._take(lock, until), until))[1] != self.number:
            await run_async(self._port, self._later(patience, found[1]))
        try:
            yield found[0]
        finally:
            self._doubts.add(8 * lock)
            until = after(timeout)
            await self._run(self._settle(0, until), until)

    async def add(self, counter: int, n: int = 1, timeout: float | None = TIMEOUT) -> int:
        """As Words.add()."""
        until = after(timeout)
        return await self._run(self._add(counter, n, until), until)

    async def value(self, counter: int, timeout: float | None = TIMEOUT) -> int:
        """As Words.value()."""
        until = after(timeout)
        return await self._run(self._value(counter, until), until)
