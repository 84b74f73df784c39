# SPDX-License-Identifier: Apache-2.0
"""Three processes share an address, and one of them does nothing: the other two connect all the same.

With -s the times are shown; they are measured, not judged.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from statistics import median

import pytest

from rdmacm.ends import FAST, Other, other
from rdmacm.load import HOST, Caller, serve, stop
from rnic.rdmacm import create_id

CONNECTIONS = 20
LONG = 3600


def share(way: Connection) -> None:
    """Has the address, and queue pair 1; then its interpreter is busy, for as long as the process lives."""
    with create_id() as one:
        one.bind_addr((HOST, 0))
        way.send("ready")
        way.recv()
        way.send("busy")
        ctypes.PyDLL(None).sleep(LONG)  # which keeps the interpreter's lock


def keep_busy(idle: Other) -> None:
    idle.way.send("be busy")
    assert idle.hear() == "busy"


def suspend(idle: Other) -> None:
    os.kill(idle.process.pid, signal.SIGSTOP)


@pytest.mark.parametrize(
    ("what", "before"),
    [(keep_busy, False), (suspend, False), (suspend, True)],
    ids=["a busy interpreter", "stopped", "stopped before the others come"],
)
def test_a_process_that_does_nothing_keeps_nobody_from_connecting(
    what: Callable[[Other], None], before: bool
) -> None:
    with other(share) as idle:
        assert idle.hear() == "ready"
        if before:
            what(idle)
        with other(serve, 64) as server:
            caller = Caller(server.hear(), 1, FAST)
            if not before:
                what(idle)
            times = sorted(1000 / caller.cycle(1) for _ in range(CONNECTIONS))
            end = stop(caller, server)
    print(f"\n{what.__name__}, before the others came: {before}")
    print(f"connect and disconnect: median {median(times):.1f} ms, longest {times[-1]:.1f} ms; {end}")
