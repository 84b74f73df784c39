# SPDX-License-Identifier: Apache-2.0
"""A student's program in a process of its own, with a time limit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, NamedTuple, Self

from rnic.cli.child import scratch

ERROR_CHARACTERS = 4096
FILE_BYTES = 16 << 20  # what it may write to a file, so that one that prints without end fills no disk
END_SECONDS = 0.3  # how long a program may take to end by itself when its connection is gone
CLOSE_SECONDS = 10.0  # in which the device file of a program that has ended is closed; a moment will do

LOSSY = {"RNIC_FAULT": "loss=0.25,seed=3"}
"""Of a program that runs by itself, in the run with late SENDs: the RNIC sends from its memory once more."""
SLUGGISH = {"RNIC_FAULT": "delay=1,delay_s=2ms"}
"""Of one on iWARP: TCP takes long WRITEs piece by piece, and the RNIC reads their memory meanwhile."""
SLOW = Path(__file__).with_name("slow.py")
LIMITED = ["/bin/sh", "-c", f'ulimit -f {FILE_BYTES // 512}; exec "$@"', "sh"]
"""Ahead of a command: files have a limit from its begin on, which memory files of its devices look at."""


def runs_by_itself(script: Path) -> bool:
    """Whether it is a program, not a text for Python."""
    return script.suffix != ".py" and os.access(script, os.X_OK)


def command_of(script: Path, gate: int, late: bool) -> list[str]:
    """How to run it: Python on a slow RNIC, which waits at the gate, any other program as itself."""
    if runs_by_itself(script):
        return [str(script.resolve())]
    return [sys.executable, "-P", str(SLOW), str(gate), "late" if late else "held", str(script)]


def faults_of(script: Path, late: bool, is_iwarp: bool) -> dict[str, str]:
    """What slow.py does, as far as variables can: for any program but Python."""
    if not runs_by_itself(script):
        return {}
    return SLUGGISH if is_iwarp else LOSSY if late else {}


class Advice(NamedTuple):
    """What to do, by the names of the sender's language."""

    receive: str
    """Calls that post receives."""
    hash: str
    disconnect: str
    fail: str
    """How a sender without a key ends."""


PYTHON = Advice("post_recv()", "hashlib.sha256()", "disconnect() of the id", "sys.exit() and a text")
C = Advice(
    "rdma_post_recv() or ibv_post_recv()",
    "SHA-256, as sha256() of the exercise does",
    "rdma_disconnect()",
    "another exit code than 0",
)


class Surroundings(NamedTuple):
    """What a program finds around it."""

    variables: dict[str, str]
    abandoned: Callable[[], int]
    """How many connections programs have not ended when they closed their device file, or died."""
    has_open: Callable[[int], bool]
    """Whether a device file of this process is still open."""


PLAIN = Surroundings({}, lambda: 0, lambda _: False)
"""Of a program that brings rnic itself."""


class Child:
    """A running program; a context manager that ends it, and what it has started."""

    def __init__(
        self,
        script: Path,
        arguments: list[str],
        seconds: float,
        *,
        late: bool,
        is_iwarp: bool,
        around: Surroundings,
    ) -> None:
        self.seconds = seconds
        self.advice = C if runs_by_itself(script) else PYTHON
        self._tells_its_end = is_iwarp and not runs_by_itself(script)
        self._around, self._before = around, around.abandoned()
        self._deadline = time.monotonic() + seconds
        with ExitStack() as stack:
            self._out = stack.enter_context(scratch())
            self._err = stack.enter_context(scratch())
            self._gate, gate = (stack.enter_context(end) for end in socket.socketpair())
            self._process = subprocess.Popen(
                [*LIMITED, *command_of(script, gate.fileno(), late), *arguments],
                pass_fds=[gate.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                start_new_session=True,
                env={
                    **os.environ,
                    **around.variables,
                    **faults_of(script, late, is_iwarp),
                    "PYTHONUNBUFFERED": "1",
                    "RNIC_LOCAL": "off",
                },  # what goes by the wire can be late
            )
            gate.close()
            self._stack = stack.pop_all()

    def let_go(self) -> None:
        """The SEND that it is posting has been answered."""
        with suppress(ConnectionError):
            self._gate.send(b".")

    def open_gate(self) -> None:
        """None of its SENDs waits any more."""
        with suppress(OSError):  # the program has closed it
            self._gate.shutdown(socket.SHUT_WR)

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """Its exit code, negative for a signal."""
        return self._process.poll()

    def gone(self) -> str | None:
        """Why nothing more will come of it, or None."""
        if not self.running:
            return f"the sender ended with {self.how()}"
        if time.monotonic() > self._deadline:
            return f"the sender was still running after {self.seconds:g} s"
        return None

    @property
    def has_abandoned(self) -> bool:
        """Whether it went without ending its connection: that was done for it."""
        if self._tells_its_end:
            return not self._has_told()
        until = time.monotonic() + CLOSE_SECONDS
        while not self.running and self._around.has_open(self._process.pid) and time.monotonic() < until:
            time.sleep(0.01)
        return self._around.abandoned() > self._before

    def _has_told(self) -> bool:
        """Whether slow.py has said that the program ends its connection."""
        with suppress(BlockingIOError, ConnectionError):
            return bool(self._gate.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        return False

    def how(self) -> str:
        """How it ended."""
        status = self.status or 0
        return f"exit code {status}" if status >= 0 else signal.Signals(-status).name

    def wait(self, seconds: float) -> None:
        """Let it end by itself for so long."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def end(self, seconds: float = 0) -> None:
        """Let it end by itself for so long, then kill it and all that it has started."""
        self.wait(seconds)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def output(self) -> str:
        """What it has printed."""
        return _text(self._out)

    def errors(self) -> str:
        """The last of what it has written to stderr."""
        return _text(self._err)[-ERROR_CHARACTERS:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._stack.close()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
