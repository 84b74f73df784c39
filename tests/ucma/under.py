# SPDX-License-Identifier: Apache-2.0
"""Programs under `rnic run`, where the libraries and the programs are installed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

import pytest

from forked import Forked
from packages import need_package
from rnic.programs.surroundings import IBVERBS, PRELOAD, libraries, variables
from rnic.wire import PortSpace, service_id
from waiting import until

SECONDS = 300  # that only a program that hangs takes
SOCKETS = Path("/proc/thread-self/net/unix")
REFUSED = "REJECTED|UNREACHABLE|refused|CM event bl blka 8"  # the last of perftest
PINGED = "ping data: rdma-ping-"
TOO_LATE = rf"((server )?{PINGED}.*\n)*rdma_get_cm_event: Bad file descriptor\n((server )?{PINGED}.*\n)*"
"""What rping says, with exit code 255, if its thread looks for an event behind the end of main()."""
PAUSE = 0.1  # seconds between two calls
TRIES = 5
HOST = "127.0.0.1"
T = TypeVar("T")

needs_libraries = pytest.mark.skipif(
    not all((libraries() / name).exists() for name in (IBVERBS, PRELOAD)),
    reason=f"this build of rnic has no {IBVERBS}",
)


def compiled(name: str, folder: Path, *libraries: str) -> Path:
    """A program of this folder."""
    program = folder / name
    words: list[str | Path] = ["cc", Path(__file__).with_name(f"{name}.c"), "-o", program, *libraries]
    if not shutil.which("cc") or subprocess.run(words, capture_output=True, check=False).returncode:
        need_package("gcc", "librdmacm-dev")
    return program


def begin(words: list[str], said: int, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """A program that writes to a file."""
    return subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)


class Program:
    """A program under `rnic run`, or a command of rnic's; stdout and stderr are one text.

    With `within`, a folder of serve(), it is started in what `rnic run` would make for it.
    anew: `rnic` has an interpreter of its own, see tests/forked.py.
    """

    def __init__(
        self,
        *words: object,
        under: bool = True,
        options: tuple[str, ...] = (),
        within: Path | None = None,
        anew: bool = False,
    ) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the program
        run = ["run", *options, "--"] if under and not within else []
        command, said = [*run, *map(str, words)], self._said.fileno()
        self.process: subprocess.Popen[bytes] | Forked
        if within:
            self.process = begin(command, said, os.environ | variables(within))
        elif anew:
            self.process = begin([sys.executable, "-m", "rnic", *command], said)
        else:
            self.process = Forked(*command, stdout=said, stderr=said)

    @property
    def text(self) -> str:
        """What it has said."""
        self._said.seek(0)
        return self._said.read()

    def listens(self, port: int, ps: PortSpace = PortSpace.TCP) -> None:
        """Wait until an id of any process of this host has bound a port, which this one is about to do."""
        name = f"@rnic/1/listen/{service_id(ps, port):016x}/"

        def bound() -> bool:
            assert self.process.poll() is None, self.text
            return name in SOCKETS.read_text()

        until(bound, f"port {port} is bound")

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(SECONDS)

    def good(self) -> str:
        """What it has said, if it ended well."""
        assert not self.wait() or re.fullmatch(TOO_LATE, self.text), self.text
        return self.text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._said.close()


def call(
    *words: object, under: bool = True, within: Path | None = None, again: bool = True, anew: bool = False
) -> str:
    """What a client says that succeeds. It calls again if its server has bound the port, and does not listen
    yet; again=False: it calls once.
    """
    limit = time.monotonic() + SECONDS
    while True:
        with Program(*words, under=under, within=within, anew=anew) as client:
            status, text = client.wait(), client.text
        if not status or re.fullmatch(TOO_LATE, text):
            return text
        assert again, text
        assert re.search(REFUSED, text), text
        assert time.monotonic() < limit, text
        time.sleep(PAUSE)


def patient(run: Callable[[], T]) -> T:
    """Run a server and a client of perftest, both anew if the client was refused.

    It connects twice and does not wait for its server to listen once more: then the server waits for ever.
    """
    for left in reversed(range(TRIES)):
        try:
            return run()
        except AssertionError as error:
            if not left or not re.search(REFUSED, str(error)):
                raise
    raise AssertionError
