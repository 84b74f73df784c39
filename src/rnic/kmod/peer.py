# SPDX-License-Identifier: Apache-2.0
"""A module's peer: a program of the course, in a process that reaches the machine."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import threading

from rnic.kmod.errors import KmodError
from rnic.vm import Machine, namespace

TRANSPORTS = {"rxe": "roce", "siw": "iwarp"}  # what RNIC_TRANSPORT says for a device of the kernel


def _prepare(keeper: int) -> None:
    namespace.enter(keeper)
    namespace.die_with_parent()  # SIGKILL of the test leaves no peer


class Peer:
    """It runs until kill(), or until it ends; a context manager."""

    def __init__(self, name: str, machine: Machine, device: str, *words: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-u", *words],
            preexec_fn=functools.partial(_prepare, machine.keeper),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(os.environ, RNIC_TRANSPORT=TRANSPORTS[device], PYTHONDONTWRITEBYTECODE="1"),
        )
        self._printed: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def printed(self) -> str:
        """What it has printed until now."""
        with self._news:
            return "".join(self._printed)

    def expect(self, pattern: str, seconds: float) -> re.Match[str]:
        """The first match in what it prints, as soon as it is there."""

        def look() -> re.Match[str] | None:
            return re.search(pattern, "".join(self._printed), re.MULTILINE)

        with self._news:
            self._news.wait_for(lambda: look() is not None or self._ended, seconds)
            if found := look():
                return found
        raise KmodError(f"{self.name} did not say {pattern!r}\n{self.printed}")

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None, if it still runs then."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join()
        return code

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """It ends without a word."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._printed.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()
