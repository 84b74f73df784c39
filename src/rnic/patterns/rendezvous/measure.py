# SPDX-License-Identifier: Apache-2.0
"""From which length on it pays to announce a message: the threshold, measured on the connection."""

from __future__ import annotations

import os
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from rnic.patterns.cursor import LiarError
from rnic.patterns.rendezvous import words
from rnic.patterns.rendezvous.dealings import Dealings
from rnic.patterns.rendezvous.layout import Layout
from rnic.patterns.rendezvous.steps import Leave
from rnic.patterns.rendezvous.words import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from rnic.patterns.rendezvous.steps import Steps

__all__ = ["Measuring"]

_SIZES = [1 << power for power in range(10, 21)]  # bytes of probes
_ROUNDS = 5  # probes of each size, by each way


class Measuring(Dealings):
    """Dealings that can measure their threshold."""

    def measure(self, until: float | None) -> Steps[int]:
        """Find the threshold; the other end does the same, behind this one or ahead of it."""
        return (yield from self._while_open(self._measure(until)))

    def _measure(self, until: float | None) -> Steps[int]:
        yield from self._greet(until)
        yield from self.settle(until)
        mine = os.urandom(words.NONCE)
        yield Leave(words.pack(Kind.MEASURE, 0, mine))
        self._measuring = True
        while self._nonce is None:
            yield from self._hear(until)
        theirs, self._nonce = self._nonce, None
        if theirs == mine:
            raise LiarError("the peer's number for measuring is this end's")
        if mine > theirs:
            yield from self._probe(until)
        while not self._measured:
            yield from self._hear(until)
        if mine < theirs:
            yield from self._probe(until)
        self._measured = self._measuring = False
        assert self.chosen is not None
        return self.chosen

    def _probe(self, until: float | None) -> Steps[None]:
        """Time messages of growing lengths, until announced ones are faster twice."""
        takes = self._peer_takes()
        assert takes is not None
        assert self._longest is not None
        most = min(takes[1] - words.HEADER.size, self._longest)
        first = None  # the size from which on they were faster
        for size in _SIZES:
            if size > most:
                break
            source = Layout(bytearray(size), "measure()", False)
            eager = yield from self._time(partial(self._say_probe, source, until))
            announced = yield from self._time(partial(self._announce, source, True, until))
            if announced >= eager:
                first = None
            elif first is None:
                first = size
            else:
                break
        self.chosen = most + 1 if first is None else first
        yield Leave(words.pack(Kind.MEASURED))

    def _time(self, send: Callable[[], Steps[None]]) -> Steps[float]:
        """Seconds that a message takes until its answer is here: the median."""
        found = []
        for _ in range(_ROUNDS):
            begin = perf_counter()
            yield from send()
            found.append(perf_counter() - begin)
        return sorted(found)[_ROUNDS // 2]

    def _say_probe(self, source: Layout, until: float | None) -> Steps[None]:
        self._probing = yield from self._say(source, True, until)
        while self._probing is not None:
            yield from self._hear(until)
