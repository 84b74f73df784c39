# SPDX-License-Identifier: Apache-2.0
"""A command in a machine whose input and output are this process' own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import click

from rnic.vm import Job, Machine
from rnic.vm.console import excerpt

CHUNK = 1 << 16
OWN_ERROR = 125  # of `rnic vm` itself, as env(1) and timeout(1)


def run(machine: Machine, command: str, cwd: str) -> int:
    """Run it; its exit code, or 128 and the number of the signal that ended it."""
    tell_silence(machine, click.echo)
    job = machine.spawn(
        command,
        cwd=[cwd, "/run"],
        output=writer(1),
        errors=writer(2),
        input=True,
    )
    if sys.stdin.isatty():
        job.close_input()
    else:
        threading.Thread(target=_feed, args=(job,), daemon=True).start()
    try:
        return exit_code(job.wait(None).rc)
    except BrokenPipeError:  # whoever read the output has seen enough
        return exit_code(-signal.SIGPIPE)


def exit_code(rc: int) -> int:
    """As a shell has it."""
    return rc if rc >= 0 else 128 - rc


def writer(fd: int) -> Callable[[bytes], None]:
    """What writes all of something to a descriptor."""

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(fd, data) :]

    return write


def tell_silence(machine: Machine, say: Callable[..., object]) -> None:
    """When the machine does not answer, say so at once; it may come back."""

    def look() -> None:
        if machine.state == "silent":
            say(
                f"rnic vm: {machine.why}; its console's last lines:\n{excerpt(machine.console())}\n"
                f"rnic vm: waiting; `rnic vm down {machine.name}` ends it",
                err=True,
            )

    machine.on_state(look)
    look()


def _feed(job: Job) -> None:
    """Give it all of stdin; of one that cannot be read, nothing."""
    with suppress(OSError):
        while data := os.read(0, CHUNK):
            job.write(data, None)
    job.close_input()
