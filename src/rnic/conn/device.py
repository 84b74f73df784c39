# SPDX-License-Identifier: Apache-2.0
"""Objects of the device that are given back: now, or later if the device cannot free them yet."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from rnic._nic.nic import MR, when_refused
from rnic.errors import VerbsError
from rnic.log import Log
from rnic.rdmacm.again import again

_log = Log("rnic.conn")
_TRIES = 3
LOOK_AGAIN = 0.25  # seconds until the next look whether what a stopped process holds has been given back


class Handle(Protocol):
    """An object of the device, such as a queue pair or a memory region."""

    @property
    def closed(self) -> bool:
        """The object has been given back."""

    def __exit__(self, kind: type[BaseException] | None, value: None, traceback: None, /) -> None:
        """Give the object back; when an exception is passed, as soon as nothing needs the object."""


def let_go(handle: Handle) -> None:
    """Give an object back now, or when its last user is gone."""
    if not _gone(handle):
        later(handle)


def let_go_memory(handle: Handle) -> bool:
    """Deregister memory; return False if that is done later, as a process was stopped while copying."""
    return handle.closed or again.attempt(handle, partial(_gone, handle))


def revoke_memory(mr: MR) -> None:
    """Deregister memory; VerbsError: EBUSY if a process was stopped while copying.

    Then it is done later: a further call says whether it has been.
    """
    if not let_go_memory(mr) and (again.is_held_up or not _gone(mr)):
        why = "a process that has been stopped is in the middle of reading or writing memory of this process"
        raise VerbsError(errno.EBUSY, why, "dereg_mr")


def part_with(mr: MR) -> None:
    """As let_go_memory(), but a region that operations or views use is deregistered with the last of them."""
    if mr.awaited:
        _gone(mr)
    else:
        let_go_memory(mr)


def later(handle: Handle) -> None:
    """Have another thread give an object back."""
    again.add(handle, partial(_gone, handle))


when_refused(later)


def _gone(handle: Handle) -> bool:
    handle.__exit__(VerbsError, None, None)
    if not handle.closed:
        _log.info("%r is given back later", handle)
    return handle.closed


def run_all(steps: deque[Callable[[], object]]) -> None:
    """Take every step in order; raise the last exception at the end, but only log a VerbsError.

    Each step must allow a repetition: one that is interrupted, by KeyboardInterrupt for example, is repeated
    up to three times.  Steps that were taken leave the deque.
    """
    raised: BaseException | None = None
    tries = 0
    while steps:
        try:
            steps[0]()
            steps.popleft()
            tries = 0
        except VerbsError as error:  # a repetition would fail, too
            _log.info("the device refuses: %s", error)
            steps.popleft()
        except BaseException as error:
            raised, tries = error, tries + 1
            if tries > _TRIES:
                steps.popleft()
                tries = 0
    if raised is not None:
        raise raised
