# SPDX-License-Identifier: Apache-2.0
"""A server's memory without a device: clients go on in any order, READs and WRITEs in pieces."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any, TypeVar

from rnic.patterns.ports import CompareSwap, FetchAdd, Pause, Read, Step, Steps, Window, Write

T = TypeVar("T")
PIECE = 16  # bytes that are moved in one step
LIMIT = 200_000  # steps that only a client that hangs takes


class Memory:
    """What looks like an MR."""

    def __init__(self, nbytes: int) -> None:
        self.buf = memoryview(bytearray(nbytes))
        self.addr, self.length, self.rkey = 0, nbytes, 1


class PretendPort:
    """A client's way to such memory; run() carries out each step at once."""

    def __init__(self, remote: Memory) -> None:
        self.remote = remote

    def memory(self, nbytes: int) -> Any:
        return Memory(nbytes)

    def do(self, step: Step) -> int:
        moving = self.carry(step)
        try:
            while True:
                next(moving)
        except StopIteration as end:
            return int(end.value)

    def check(self) -> None:
        """Nothing has ended."""

    def carry(self, step: Step) -> Generator[None, None, int]:
        """Carry out a step; others may go on at each yield. An access out of bounds fails the test."""
        there = self.remote.buf
        match step:
            case Write(mr, _, pieces):
                for offset, length, at in pieces:
                    assert 0 <= at <= at + length <= len(there)
                    for done in range(0, length, PIECE):
                        part = min(PIECE, length - done)
                        there[at + done : at + done + part] = mr.buf[offset + done : offset + done + part]
                        yield
            case Read(mr, _, (offset, length, at)):
                assert 0 <= at <= at + length <= len(there)
                assert 0 <= offset <= offset + length <= len(mr.buf)
                for done in range(0, length, PIECE):
                    part = min(PIECE, length - done)
                    mr.buf[offset + done : offset + done + part] = there[at + done : at + done + part]
                    yield
            case CompareSwap(_, offset, compare, swap):
                return self._atomic(offset, lambda old: swap if old == compare else old)
            case FetchAdd(_, offset, n):
                return self._atomic(offset, lambda old: (old + n) % (1 << 64))
            case Pause():
                yield
            case _:
                raise AssertionError(step)
        return 0

    def _atomic(self, offset: int, change: Any) -> int:
        assert offset % 8 == 0
        assert 0 <= offset <= len(self.remote.buf) - 8
        word = self.remote.buf[offset : offset + 8].cast("Q")
        old = word[0]
        word[0] = change(old)
        return old


def stepping(port: PretendPort, steps: Steps[T]) -> Generator[None, None, T]:
    """A call that goes on by a piece at each next()."""
    try:
        step = next(steps)
        while True:
            step = steps.send((yield from port.carry(step)))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def interleave(
    order: random.Random, tasks: dict[Any, Generator[None, None, None]], deaths: float = 0
) -> Generator[Any, None, None]:
    """Let tasks go on in random order, by a few pieces or by many, until all have ended; yields the name of
    one that was stopped for good, with this probability at each piece.
    """
    turn, pieces = None, 0
    for _ in range(LIMIT):
        if not tasks:
            return
        if not pieces or turn not in tasks:
            turn, pieces = order.choice(list(tasks)), order.choice((1, 2, 10, 200))
        pieces -= 1
        if order.random() < deaths:
            tasks.pop(turn).close()
            yield turn
            continue
        try:
            next(tasks[turn])
        except StopIteration:
            del tasks[turn]
    raise AssertionError(f"{sorted(tasks)} do not end")


def window(memory: Memory) -> Window:
    return Window(0, memory.length, 1)
