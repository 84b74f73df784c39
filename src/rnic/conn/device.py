# SPDX-License-Identifier: Apache-2.0
"""Calls of the device whose outcome must be known, and objects that it does not take back yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from rnic._nic.nic import MR
from rnic.errors import VerbsError
from rnic.log import Log
from rnic.rdmacm.again import again

_log = Log("rnic.conn")
_TRIES = 3
A = TypeVar("A")
R = TypeVar("R")


class Handle(Protocol):
    """An object of the device."""

    @property
    def closed(self) -> bool:
        """It was given back."""

    def __exit__(self, kind: type[BaseException] | None, value: None, traceback: None, /) -> None:
        """Give it back; with an exception, as soon as nothing needs it."""


def at_once(call: Callable[[A], R], argument: A, kept: deque[R]) -> None:
    """Call something of the device; its result is in `kept` also when an exception comes right behind it.

    A signal's handler runs, and raises, between two steps of the interpreter.  Here there is none: C calls C.
    """
    kept.extend(map(call, (argument,)))


def let_go(handle: Handle) -> None:
    """Give it back: now, or with its last user."""
    if not _gone(handle):
        later(handle)


def let_go_memory(handle: Handle) -> bool:
    """Give it back; False: later, as a process is stopped in the middle of a copy."""
    return handle.closed or again.attempt(handle, partial(_gone, handle))


def part_with(mr: MR) -> None:
    """As let_go_memory(); a region that operations use, or somebody looks into, goes with the last."""
    if mr.awaited:
        _gone(mr)
    else:
        let_go_memory(mr)


def later(handle: Handle) -> None:
    """Have another thread give it back."""
    again.add(handle, partial(_gone, handle))


def _gone(handle: Handle) -> bool:
    handle.__exit__(VerbsError, None, None)
    if not handle.closed:
        _log.info("%r is given back later", handle)
    return handle.closed


def run_all(steps: deque[Callable[[], object]]) -> None:
    """Take every step, each of which can be taken again; what was raised comes at the end.

    A step that is interrupted, by KeyboardInterrupt for one, is taken once more.
    """
    raised: BaseException | None = None
    tries = 0
    while steps:
        try:
            steps[0]()
            steps.popleft()
            tries = 0
        except VerbsError as error:  # it is as it is
            _log.info("the device refuses: %s", error)
            steps.popleft()
        except BaseException as error:
            raised, tries = error, tries + 1
            if tries > _TRIES:
                steps.popleft()
                tries = 0
    if raised is not None:
        raise raised
