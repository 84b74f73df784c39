# SPDX-License-Identifier: Apache-2.0
"""Smaller programs that still fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from differential.program import ENDS, Program, Round, Step, fenced


def shrink(program: Program, fails: Callable[[Program], bool], trials: int = 200) -> Program:
    """Leaves out steps and requests while it still fails; what is left fails."""
    tried = 0
    while True:
        for candidate in smaller(program):
            if tried == trials:
                return program
            tried += 1
            if fails(candidate):
                program = candidate
                break
        else:
            return program


def smaller(program: Program) -> Iterator[Program]:
    """A program with one thing less: a step but the first, which connects, or a request."""
    steps = program.steps
    for i in range(1, len(steps)):
        yield replace(program, steps=steps[:i] + steps[i + 1 :])
    for i, step in enumerate(steps):
        if isinstance(step, Round):
            yield from (replace(program, steps=(*steps[:i], less, *steps[i + 1 :])) for less in fewer(step))


def fewer(step: Round) -> Iterator[Step]:
    """A round without one of its requests; the last is signaled, as it tells that all are complete."""
    for end in ENDS:
        work = step.work(end)
        for n in range(len(work)):
            left = [*work[:n], *work[n + 1 :]]
            if left:
                left[-1] = replace(left[-1], flags=tuple(sorted({*left[-1].flags, "SIGNALED"})))
            chain = fenced(left)
            yield replace(step, a=chain) if end == "a" else replace(step, b=chain)
