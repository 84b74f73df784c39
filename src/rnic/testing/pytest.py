# SPDX-License-Identifier: Apache-2.0
"""What the fixture `rnic_run` of the pytest plugin gives a test: programs under `rnic run`.

    def test_server_says_what_is_wrong(rnic_run: Run) -> None:
        server = rnic_run("./server", fail="create_cq=ENOMEM")
        assert server.wait() == 1
        assert "create_cq" in server.output

The other fixtures are `rnic_device`, a rnic.Context, and `rnic_pair`, a rnic.testing.Pair.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import Literal, Self

__all__ = ["Program", "Run"]

_NOT_STARTED = (125, 126, 127)  # exit codes of `rnic run` itself, and a program may have them, too
_ITS_WORDS = re.compile(r"^(rnic: |Usage: .* run )", re.MULTILINE)
_ITS_REPORT = re.compile(r"rnic: (--fail|--fault|.* (was ended by signal|ended with exit code)) ")
_LAST = 5  # lines of output that repr() shows
_LIMIT = 60.0  # seconds that a program has, where the test says nothing
_LOOK = 0.005  # seconds between two looks at its output
END = 5.0  # seconds to end by itself when it is told to


class Program:
    """A program under `rnic run`: a subprocess.Popen whose waits have a limit, and what it has printed."""

    def __init__(
        self,
        command: list[str],
        environment: Mapping[str, str],
        limit: float,
        *,
        cwd: str | os.PathLike[str] | None = None,
        stdin: str | bytes = b"",
    ) -> None:
        self.limit = limit
        """Seconds that a wait takes at most."""
        self._name = shlex.join(command)
        self._file = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in end()
        with tempfile.TemporaryFile() as given:
            given.write(stdin.encode() if isinstance(stdin, str) else stdin)
            given.seek(0)
            self.popen = subprocess.Popen(
                command,
                stdin=given,
                stdout=self._file,
                stderr=subprocess.STDOUT,
                env={**environment},
                cwd=cwd,
                start_new_session=True,
            )
        """The process of `rnic run`, whose exit code is the program's, and to which signals go."""

    def __repr__(self) -> str:
        code = "running" if self.returncode is None else f"exit code {self.returncode}"
        last = "\n".join(self.output.splitlines()[-_LAST:])
        return f"<Program {self._name}: {code}; its last words: {last!r}>"

    @property
    def output(self) -> str:
        """What the program has printed so far, on stdout and stderr."""
        with suppress(OSError):
            return os.pread(self._file.fileno(), os.fstat(self._file.fileno()).st_size, 0).decode(
                errors="replace"
            )
        return ""

    @property
    def report(self) -> str:
        """What `rnic run` has said at the end: how it ended; what came true of `fail` and `fault`."""
        return "\n".join(line for line in self.output.splitlines() if _ITS_REPORT.match(line))

    @property
    def returncode(self) -> int | None:
        """Its exit code, None while it runs; 128 and the signal's number, if a signal has ended it."""
        return self.popen.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return its exit code.

        Raises TimeoutError after the limit, and RuntimeError if `rnic run` could not start it.
        """
        try:
            code = self.popen.wait(self.limit if timeout is None else timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self._name} runs still; it has printed:\n{self.output}") from None
        if code in _NOT_STARTED and not self.report and _ITS_WORDS.search(self.output):
            raise RuntimeError(f"{self._name} was not started:\n{self.output}")
        return code

    def wait_for(self, pattern: str, timeout: float | None = None) -> re.Match[str]:
        """Wait until it has printed what the regular expression finds, and return the match.

        Raises TimeoutError after the limit, and RuntimeError if the program ends without it.
        """
        until = time.monotonic() + (self.limit if timeout is None else timeout)
        while True:
            ended = self.popen.poll() is not None
            if found := re.search(pattern, self.output, re.MULTILINE):
                return found
            if ended:
                raise RuntimeError(f"{self._name} has ended without {pattern!r}:\n{self.output}")
            if time.monotonic() > until:
                raise TimeoutError(f"{self._name} has not printed {pattern!r}:\n{self.output}")
            time.sleep(_LOOK)

    def send_signal(self, number: int) -> None:
        """Send a signal to the program."""
        self.popen.send_signal(number)

    def end(self) -> None:
        """End the program and what it has started, and forget its output."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.popen.wait(END)
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        self._file.close()


class Run:
    """Starts programs under `rnic run`, as the fixture `rnic_run` of a test, and ends them with it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._programs: list[Program] = []

    def report(self) -> str:
        """What became of each program, for the report of a test that fails."""
        return "\n".join(text for one in self._programs for text in (repr(one), one.report) if text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(
        self,
        *command: object,
        local: Literal["on", "off"] | bool | None = None,
        device: str | Iterable[str] | None = None,
        name: str | Iterable[str] | None = None,
        rate: str | None = None,
        limits: str | os.PathLike[str] | Mapping[str, int] | None = None,
        fault: str | Mapping[str, object] | None = None,
        fail: str | Iterable[str] | None = None,
        event: str | Iterable[str] | None = None,
        env: Mapping[str, object] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: str | bytes = b"",
        timeout: float = _LIMIT,
    ) -> Program:
        """Start a program and its arguments; the options are those of `rnic run`.

            rnic_run("./client", "127.0.0.1", fault={"loss": 0.01, "seed": 7}, event="port_down@1s")

        `fail`, `event` and `name` are a text, or several. `limits` is a TOML file, or a mapping such as
        {"max_qp": 4}. `env` has variables that the program gets beside those of the test, or, with None,
        does not get. `stdin` is what it reads, and `cwd` is its folder. `timeout` is the limit of its
        waits, in seconds.
        """
        words: list[str] = []
        if isinstance(local, bool):
            local = "on" if local else "off"
        _option(words, "--local", local)
        _option(words, "--device", ",".join(_several(device)) or None)
        _option(words, "--rate", rate)
        _option(words, "--limits", self._file_of(limits) if isinstance(limits, Mapping) else limits)
        if isinstance(fault, Mapping):
            fault = ",".join(f"{one}={value}" for one, value in fault.items())
        _option(words, "--fault", fault)
        for option, values in (("--name", name), ("--fail", fail), ("--event", event)):
            for value in _several(values):
                _option(words, option, value)
        words = [sys.executable, "-m", "rnic", "run", *words, "--", *map(str, command)]
        around: dict[str, object] = {**os.environ, **(env or {})}
        environment = {name: str(value) for name, value in around.items() if value is not None}
        program = Program(words, environment, timeout, cwd=cwd, stdin=stdin)
        self._stack.callback(program.end)
        self._programs.append(program)
        return program

    def _file_of(self, limits: Mapping[str, int]) -> str:
        """A TOML file with them, until the end of the test."""
        file = tempfile.NamedTemporaryFile("w", suffix=".toml")  # noqa: SIM115 - closed with the stack
        self._stack.enter_context(file)
        file.writelines(f"{name} = {value}\n" for name, value in limits.items())
        file.flush()
        return file.name


def _several(values: str | Iterable[str] | None) -> list[str]:
    if values is None:
        return []
    return [values] if isinstance(values, str) else list(values)


def _option(words: list[str], option: str, value: object) -> None:
    if value is not None:
        words += [option, str(value)]
