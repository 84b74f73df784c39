# SPDX-License-Identifier: Apache-2.0
"""Programs under `rnic run`, `rnic run` itself, or both, killed at any moment: nothing is left of them."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from chaos.left import on_the_machine
from packages import need
from ucma.under import HOST, Program, call, needs_libraries
from waiting import until

pytestmark = [pytest.mark.own_way, needs_libraries]

SEED = int(os.environ.get("RNIC_SEED", "1"))
KILLS = 60 if os.environ.get("RNIC_SOAK") else 1
MOST_SECONDS = 0.6  # from the start of a program to its death: in that time it connects, and pings
LAZY = 4  # descriptors: a peer's last ones are closed when the next peer comes
KINDS = ("program", "rnic run", "both")
_ports = count(7900 + os.getpid() % 1000 * 2)


def processes_of(folder: Path) -> dict[int, str]:
    """Those that `rnic run` has started, or is: their folder is in their environment."""
    found = {}
    for one in Path("/proc").iterdir():
        with suppress(OSError):
            if one.name.isdigit() and os.fsencode(folder) in (one / "environ").read_bytes():
                found[int(one.name)] = (one / "cmdline").read_bytes().decode(errors="replace")
    return found


def children_of(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def descriptors_of(*pids: int) -> int:
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)


def kill(kind: str, victim: Program, seconds: float) -> None:
    """Let it run for so long, and kill."""
    if kind != "rnic run":
        until(lambda: children_of(victim.process.pid) or victim.process.poll() is not None, "it has started")
    time.sleep(seconds)
    program = children_of(victim.process.pid)
    chosen = {"program": program, "rnic run": [victim.process.pid], "both": [victim.process.pid, *program]}
    for pid in chosen[kind]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    victim.wait()


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of `rnic run` are made that are killed."""
    folder = tmp_path / "killed"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return folder


def moments() -> Iterator[tuple[str, float]]:
    dice = random.Random(SEED)
    for i in range(KILLS):
        yield KINDS[(SEED + i) % len(KINDS)], dice.uniform(0, MOST_SECONDS)


def check(kind: str, seconds: float, runtime: Path, patch: pytest.MonkeyPatch) -> None:
    """Kill a client of a server that has served one already."""
    port = next(_ports)
    client = ["rping", "-c", "-a", HOST, "-p", port, "-C"]
    with Program("rping", "-s", "-P", "-a", HOST, "-p", port) as server:
        server.listens(port)
        call(*client, 1)
        ends = [server.process.pid, *children_of(server.process.pid)]
        had, descriptors = on_the_machine(), descriptors_of(*ends)
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))
        with Program(*client, 10**7, anew=True) as victim:  # its environment is looked at
            kill(kind, victim, seconds)
            until(lambda: not processes_of(runtime), f"no process is left, {kind} after {seconds:.2f} s")
        until(lambda: on_the_machine() <= had, f"no socket or file is left, {kind} after {seconds:.2f} s")
        assert kind != "program" or not list(runtime.iterdir())
        for folder in runtime.iterdir():
            os.utime(folder, (0, 0))
        assert call("echo", "ended") == "ended\n"
        assert not list(runtime.iterdir())  # this command has cleaned
        if server.process.poll() is None:  # rping ends itself if its caller dies before it is connected
            call(*client, 1)
            until(lambda: descriptors_of(*ends) <= descriptors + LAZY, "the peer closes what it had")


def test_nothing_is_left_of_what_was_killed(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("rping", "rdmacm-utils")
    for kind, seconds in moments():
        with monkeypatch.context() as patch:
            check(kind, seconds, runtime, patch)
