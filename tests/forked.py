# SPDX-License-Identifier: Apache-2.0
"""Commands of rnic, functions and nodes, in processes forked from one that has imported what they need.

Commands are processes of their own, as those that a shell starts, but begin in a tenth of the time.  A test
of what a process inherits beside environment, directory and streams (limits, ignored signals, descriptors),
or of how it begins, needs one with an interpreter of its own.  `rnic demo` measures for a moment only.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from atexit import register
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import IO, Any

FORKS = multiprocessing.get_context("forkserver")  # all have the environment of the first one
FORKS.set_forkserver_preload(["pytest", "conn.peers", "rdmacm.mortal"])
LARGEST = 1 << 17  # bytes of a request: arguments and environment


class Forked:
    """`rnic` with arguments: what tests need of subprocess.Popen. Its streams are pipes of text, or files.

    `module` is run instead of rnic. A descriptor `way` is number 3 in the process.
    """

    def __init__(
        self,
        *words: str,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        env: dict[str, str] | None = None,
        module: str = "rnic",
        way: int | None = None,
    ) -> None:
        self.returncode: int | None = None
        self.stdout, out = stream(stdout)
        self.stderr, err = stream(stderr)
        self._told, ending = os.pipe()
        what = {"module": module, "words": words, "env": env or {**os.environ}, "cwd": str(Path.cwd())}
        nothing = os.open(os.devnull, os.O_RDONLY)
        fds = [nothing, out, err, *([] if way is None else [way]), ending]
        socket.send_fds(source(), [json.dumps(what).encode()], fds)
        for fd in {nothing, ending, out, err} - {stdout, stderr}:
            os.close(fd)
        self.pid = self._number()

    def _number(self) -> int:
        """The next thing that is told: its process id, then how it ended."""
        told = os.read(self._told, 4)
        assert told, "the process that forks is gone"
        return int.from_bytes(told, "little", signed=True)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or minus the number of the signal that ended it."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._told, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired("rnic", timeout or 0)
            self.returncode = self._number()
            os.close(self._told)
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it has written to its pipes when it has ended."""
        found = ["", ""]

        def read(index: int, pipe: IO[str]) -> None:
            with pipe:
                found[index] = pipe.read()

        pipes = [(i, one) for i, one in enumerate((self.stdout, self.stderr)) if one and not one.closed]
        readers = [Thread(target=read, args=args, daemon=True) for args in pipes]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():  # somebody else has its streams
                raise subprocess.TimeoutExpired("rnic", timeout)
        return found[0], found[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def stream(wanted: int) -> tuple[IO[str] | None, int]:
    """Our side of a pipe, and the process's; of a descriptor that alone."""
    if wanted != subprocess.PIPE:
        return None, wanted
    ours, theirs = os.pipe()
    return open(ours), theirs  # noqa: PTH123 - a descriptor


@cache
def source() -> socket.socket:
    """The way to the process that forks, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno())]
        forks = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)

    def end() -> None:
        ours.close()
        forks.wait()

    register(end)
    return ours


# ------------------------------------------------------------------ in the process that forks


def prepare() -> None:
    """Import what commands import, but do nothing."""
    from rnic.cli import measure
    from rnic.cli.main import cli

    measure.SECONDS, measure.ROUNDS = 0.01, 50

    for module in ("importlib.metadata", "rich.console", "rich.progress", "rich.table", "transport.worker"):
        import_module(module)
    for command in cli.commands.values():
        command.load()  # type: ignore[attr-defined]


def serve(requests: socket.socket) -> tuple[list[int], dict[str, Any]] | None:
    """Fork for each request, and tell how each process ends, until the other side is gone.

    Returns in a forked process, too: its streams, and what to do.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data:
                    selector.unregister(key.fd)
                    tell_end(key.fd, *key.data)
                    continue
                request, fds, _, _ = socket.recv_fds(requests, LARGEST, 5)
                if not request:
                    return None
                *streams, ending = fds
                if not (pid := os.fork()):
                    return streams, json.loads(request)
                for fd in streams:
                    os.close(fd)
                tell(ending, pid)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, ending))


def tell(ending: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits for it
        os.write(ending, number.to_bytes(4, "little", signed=True))


def tell_end(pidfd: int, pid: int, ending: int) -> None:
    tell(ending, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os.close(ending)
    os.close(pidfd)


def become(streams: list[int], module: str, words: list[str], env: dict[str, str], cwd: str) -> None:
    """`python -m` with this module and these words, to the end of the process."""
    for number, fd in enumerate(streams):  # each is larger than its number
        os.dup2(fd, number)
    os.closerange(len(streams), 1 + max(map(int, os.listdir("/proc/self/fd"))))  # noqa: PTH208
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    prepare()
    gc.freeze()  # what is not looked at is not copied
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        child = serve(requests)
    if child:
        become(child[0], **child[1])


if __name__ == "__main__":
    main()
