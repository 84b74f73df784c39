# SPDX-License-Identifier: Apache-2.0
"""SIGINT, SIGTERM and SIGHUP end a command in order: files go, peers are told; the exit code is 128 + number.

Before a command works, and when it has ended, they end the process at once (src/_rnic_command.py).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

SIGINT = signal.SIGINT
ENDING = (SIGINT, signal.SIGTERM, signal.SIGHUP)
SOON = 0.001  # seconds


class Ended(SystemExit):
    """A signal has come that ends the command; wherever it is raised, nobody shows a traceback."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def begin() -> None:
    """Raise Ended when they come, from now on, unless they are ignored, as nohup(1) starts programs."""
    sys.unraisablehook = _once_more
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # of whoever ignores it the kernel keeps no exit code
    for one in ENDING:
        if signal.getsignal(one) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(one, _raise)


def end() -> None:
    """Let them end the process at once, from now on."""
    for one in ENDING:
        if signal.getsignal(one) is _raise:
            signal.signal(one, signal.SIG_DFL)


def run(main: Coroutine[Any, Any, None]) -> None:
    """asyncio.run() of a command that begin() has begun: a signal cancels `main`, and Ended follows.

    What is raised in a handler breaks off whichever task runs: its books are wrong then, and asyncio prints a
    traceback of it.
    """
    import asyncio  # most commands do without, and start faster

    ended: list[int] = []

    async def cancellable() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        for one in [one for one in ENDING if signal.getsignal(one) is _raise]:
            loop.add_signal_handler(one, cancel, loop, task, one)
        await main

    def cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None], number: int) -> None:
        for one in ENDING:
            if loop.remove_signal_handler(one):
                signal.signal(one, signal.SIG_DFL)  # a second one waits for nothing
        ended.append(number)
        task.cancel()

    try:
        asyncio.run(cancellable())
    except asyncio.CancelledError:
        if ended:
            raise Ended(ended[0]) from None
        raise


def spared() -> AbstractContextManager[None]:
    """Keep Ctrl-C from a process that is started meanwhile: it ends with the one that started it."""
    return _blocked(SIGINT)


def unbroken() -> AbstractContextManager[None]:
    """Let no signal break off what is done meanwhile: Ended is raised behind it."""
    return _blocked(*ENDING)


@contextmanager
def _blocked(*numbers: signal.Signals) -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _raise(number: int, _frame: FrameType | None) -> None:
    end()  # a second one waits for nothing
    raise Ended(number)


def _once_more(unraisable: Any) -> None:
    """Where nothing can be raised, as in a finaliser, Python says so and goes on: the signal comes again."""
    ended = unraisable.exc_value
    if not isinstance(ended, Ended):
        sys.__unraisablehook__(unraisable)
        return

    def again(_signal: int, frame: FrameType | None) -> None:
        if _is_within(frame, _once_more.__code__):  # nor can it be raised here
            signal.setitimer(signal.ITIMER_REAL, SOON)
        else:
            _raise(ended.number, frame)

    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, SOON)


def _is_within(frame: FrameType | None, code: CodeType) -> bool:
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None
