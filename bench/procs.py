# SPDX-License-Identifier: Apache-2.0
"""Processes that measure: started, bounded in time, ended by their own ids.

python procs.py SERVER ... -- CLIENT ...  is pair(), where only the standard library is.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PATIENCE = 30.0  # seconds that any one measurement may take
PARTING = 3.0  # and to end when told to
Values = dict[str, Any]


class AbsentError(Exception):
    """A peer that this machine does not have."""


class BrokenError(Exception):
    """A measurement that failed, and why."""


@contextmanager
def process(
    command: list[str], *, env: dict[str, str] | None = None, fds: tuple[int, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone when the block is left, with those that it has started."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=fds,
        start_new_session=True,
        env=None if env is None else os.environ | env,
    )
    try:
        yield child
    finally:
        stop(child)


def stop(child: subprocess.Popen[str]) -> str:
    """Ends its process group; what it has said on its standard error.

    mpiexec, told so by SIGTERM, ends its ranks, which have sessions of their own.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            return child.communicate(timeout=PARTING)[1]
    for pipe in (child.stdout, child.stderr):  # somebody out of reach keeps them open
        if pipe:
            pipe.close()
    with suppress(subprocess.TimeoutExpired):
        child.wait(PARTING)
    return ""


def finish(child: subprocess.Popen[str], patience: float = PATIENCE) -> str:
    """What it printed; BrokenError when it failed or took too long."""
    name = Path(str(child.args[0] if isinstance(child.args, list) else child.args)).name
    try:
        out, err = child.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        raise BrokenError(f"{name} took longer than {patience:.0f} s") from None
    if child.returncode:
        why = (err.strip() or out.strip()).splitlines() or ["no message"]
        raise BrokenError(f"{name} ended with {child.returncode}: {why[-1][:200]}")
    return out


def one(command: list[str]) -> Values:
    """Runs a program that prints one line of JSON."""
    with process(command) as child:
        found: Values = json.loads(finish(child))
    return found


def pair(server: list[str], client: list[str]) -> Values:
    """Two processes joined by a stream socket, whose number replaces "FD"; the client prints JSON."""
    ends = socket.socketpair()
    numbers = [str(end.fileno()) for end in ends]
    commands = [
        [number if word == "FD" else word for word in words]
        for words, number in zip((server, client), numbers, strict=True)
    ]
    try:
        with (
            process(commands[0], fds=(ends[0].fileno(),)) as serving,
            process(commands[1], fds=(ends[1].fileno(),)) as measuring,
        ):
            for end in ends:
                end.close()
            try:
                found: Values = json.loads(finish(measuring))
            except BrokenError as failure:
                said = stop(serving).strip().splitlines()
                raise BrokenError(
                    f"{failure}; the server: {said[-1][:200] if said else 'no message'}"
                ) from None
            finish(serving, 5)
    finally:
        for end in ends:
            end.close()
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_listening(port: int, child: subprocess.Popen[str]) -> None:
    """Until somebody listens on the port; seen from outside, as a trial connection would be the client."""
    until = time.monotonic() + 10
    wanted = f":{port:04X}"
    while time.monotonic() < until:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            rows = [row.split() for row in Path(table).read_text().splitlines()[1:]]
            if any(row[1].endswith(wanted) and row[3] == "0A" for row in rows):
                return
        if child.poll() is not None:
            break
        time.sleep(0.01)
    raise BrokenError(f"nobody listens on port {port}")


def wait_bound(port: int, child: subprocess.Popen[str]) -> None:
    """Until somebody listens on the port of RDMA-CM's TCP port space: the name of its listener says so."""
    until = time.monotonic() + 10
    wanted = f"@rnic/1/listen/{0x106 << 16 | port:016x}/"
    while time.monotonic() < until and child.poll() is None:
        if wanted in Path("/proc/net/unix").read_text():
            return
        time.sleep(0.01)
    raise BrokenError(f"nobody listens on port {port} of RDMA-CM")


if __name__ == "__main__":
    both = sys.argv[1:]
    at = both.index("--")
    try:
        print(json.dumps(pair(both[:at], both[at + 1 :])))
    except BrokenError as failure:
        sys.exit(str(failure))
