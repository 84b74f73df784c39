# SPDX-License-Identifier: Apache-2.0
"""What a measurement has started is gone when it is over, and no process that stays keeps the benchmark."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import procs
import pytest
from procs import BrokenError, finish, pair, process

from waiting import until


@pytest.fixture(autouse=True)
def early() -> Iterator[None]:
    """None of these waits for a `sleep 60` to end by itself."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 60


def lives(pid: int) -> bool:
    """And is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def number(child: Any) -> int:
    return int(child.stdout.readline())


def test_what_a_process_has_started_goes_with_it() -> None:
    with process(["sh", "-c", "sleep 60 & echo $!; wait"]) as child:
        started = number(child)
        assert lives(started)
    until(lambda: not lives(started), "the process that was started goes")


def test_it_goes_too_when_who_started_it_has_ended() -> None:
    with (
        pytest.raises(BrokenError, match="sh took longer than"),
        process(["sh", "-c", "sleep 60 & echo $!"]) as child,
    ):
        started = number(child)
        until(lambda: child.poll() is not None, "the shell ends")
        finish(child, 0.1)
    until(lambda: not lives(started), "the process that was started goes")


def test_who_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procs, "PARTING", 0.2)
    with process(["sh", "-c", "trap '' TERM; echo $$; while :; do sleep 1; done"]) as child:
        assert number(child) == child.pid
    assert child.returncode == -signal.SIGKILL


def test_who_is_out_of_reach_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procs, "PARTING", 0.2)
    with process(["sh", "-c", "setsid sh -c 'echo $$; exec sleep 60' & wait"]) as child:
        far = number(child)
    assert lives(far)
    os.kill(far, signal.SIGKILL)


SERVER = """
import socket, sys, time
print("waiting", file=sys.stderr, flush=True)
socket.socket(fileno=int(sys.argv[1])).send(b"!")
time.sleep(60)
"""
CLIENT = """
import socket, sys
socket.socket(fileno=int(sys.argv[1])).recv(1)
sys.exit("too late")
"""


def test_a_failure_is_told_in_the_words_of_both_ends() -> None:
    server, client = ([sys.executable, "-c", script, "FD"] for script in (SERVER, CLIENT))
    with pytest.raises(BrokenError, match="ended with 1: too late; the server: waiting"):
        pair(server, client)
