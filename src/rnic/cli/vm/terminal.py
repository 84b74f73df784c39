# SPDX-License-Identifier: Apache-2.0
"""A shell in a machine, on this process' terminal."""

from __future__ import annotations

import os
import select
import signal
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rnic.cli.vm import pipes
from rnic.vm import Job, Machine, MachineError

LEAVE = b"\x1d"  # Ctrl-], as telnet has it
SHELL = "exec $(command -v bash || echo sh)"


def shell(machine: Machine, cwd: str) -> int:
    """Until it ends, or Ctrl-] is pressed; the exit code."""
    ended, tell_end = os.pipe()
    rows, columns = _size()
    job = machine.spawn(
        SHELL,
        output=pipes.writer(1),
        cwd=[cwd, "/run"],
        env={"TERM": os.environ.get("TERM", "dumb")},
        tty=[rows, columns],
    )
    threading.Thread(target=_watch, args=(job, tell_end), daemon=True).start()
    before = signal.signal(signal.SIGWINCH, lambda *_: job.resize(*_size()))
    try:
        with _raw():
            pipes.tell_silence(machine, _say)
            left = _type_into(job, ended)
    finally:
        signal.signal(signal.SIGWINCH, before)
    return 0 if left else pipes.exit_code(job.wait(10).rc)


def _watch(job: Job, tell_end: int) -> None:
    with suppress(MachineError):  # who waits for the exit code is told, too
        job.wait(None)
    os.write(tell_end, b".")


def _type_into(job: Job, ended: int) -> bool:
    """What is typed goes there; whether the user has left."""
    while True:
        ready, _, _ = select.select([0, ended], [], [])
        if ended in ready:
            return False
        keys = os.read(0, 4096)
        if not keys or LEAVE in keys:
            job.kill(signal.SIGHUP)
            return True
        job.write(keys)


@contextmanager
def _raw() -> Iterator[None]:
    """The terminal passes on every key."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # what has been typed already counts
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _say(text: str, **_options: object) -> None:
    pipes.writer(2)(b"\r\n" + text.replace("\n", "\r\n").encode() + b"\r\n")


def _size() -> tuple[int, int]:
    columns, rows = os.get_terminal_size(0)
    return rows, columns
