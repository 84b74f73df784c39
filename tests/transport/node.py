# SPDX-License-Identifier: Apache-2.0
"""Processes with ends of connections in them, which a test leads by remote calls.

A Node is a process (not forked from the test's own: its devices and threads stay out of it) that holds a
transport.worker.Worker.  `node.call("method", ...)` runs a method there and returns its result; `begin()`
only starts it and `result()` waits.  Messages go through a socket pair; nothing waits for ever.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from forked import Forked
from waiting import until

PATIENCE = 180.0  # seconds that a single call may take on a machine that has other things to do
TESTS = Path(__file__).resolve().parents[1]


class NodeError(AssertionError):
    """A call raised in the node; the text is the node's own traceback."""


@dataclass(frozen=True)
class Setting:
    """What a node does before it opens anything."""

    netns: str | None = None
    """Path of the network namespace to enter; "new": make one, with its loopback up."""
    uid: int | None = None
    """Become this user."""
    env: dict[str, str] = field(default_factory=dict)


class Node:
    """A process of its own that does what it is called for."""

    def __init__(self, setting: Setting) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = self.started(
                theirs.fileno(), {**os.environ, "PYTHONPATH": str(TESTS), **setting.env}
            )
        self.way = Connection(ours.detach())
        self.begin("setup", setting.netns, setting.uid)
        self.result()

    def started(self, way: int, env: dict[str, str]) -> Forked | subprocess.Popen[bytes]:
        """The process, whose end of the way is this descriptor."""
        return Forked("3", stdout=1, stderr=2, env=env, module="transport.worker", way=way)

    @property
    def pid(self) -> int:
        return self.process.pid

    def begin(self, method: str, *args: object, **kwargs: object) -> None:
        """Start a method; result() has to follow."""
        self.way.send((method, args, kwargs))

    def result(self, timeout: float = PATIENCE) -> Any:
        """What the method that was begun returned, or said on its way."""
        if not self.way.poll(timeout):
            raise NodeError(f"process {self.pid} did not answer within {timeout} s")
        try:
            good, value = self.way.recv()
        except (EOFError, ConnectionError):
            raise NodeError(f"process {self.pid} is gone: {self.process.wait()}") from None
        if not good:
            raise NodeError(value)
        return value

    def call(self, method: str, *args: object, **kwargs: object) -> Any:
        """Run a method to its end."""
        self.begin(method, *args, **kwargs)
        return self.result()

    def tell(self, what: object) -> None:
        """Say something to the method that runs."""
        self.way.send(what)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The process stands still meanwhile."""
        self.signal(signal.SIGSTOP)
        try:
            until(self.is_stopped, "the process is stopped")
            yield
        finally:
            self.signal(signal.SIGCONT)

    def is_stopped(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def kill(self) -> None:
        """SIGKILL: no handler, no atexit.  Returns when the process has gone."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.returncode is None:
            self.kill()
        self.way.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
