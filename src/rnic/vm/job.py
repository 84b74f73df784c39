# SPDX-License-Identifier: Apache-2.0
"""A command that runs in a machine, as its client sees it."""

from __future__ import annotations

import base64
import re
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rnic.vm.client import Client
    from rnic.vm.lines import Message

CHUNK, WINDOW = 1 << 16, 1 << 20  # bytes of a message, and of input that may be under way


class Result(NamedTuple):
    """How a command has ended."""

    rc: int  # exit status; negative: the signal that ended it
    out: str  # stdout and stderr


class Hooks(NamedTuple):
    """Who takes what a command prints, in a thread; else it is kept, and stderr is stdout.

    What they raise ends the command, and wait() raises it.
    """

    output: Callable[[bytes], object] | None = None
    errors: Callable[[bytes], object] | None = None


class MachineError(RuntimeError):
    """A command failed in the machine, or the machine died; the text shows what was printed."""


class NoMachineError(MachineError):
    """None of that name runs."""


class HungError(MachineError):
    """A machine's keeper, process `pid`, does not answer."""

    def __init__(self, text: str, pid: int) -> None:
        super().__init__(text)
        self.pid = pid


class Job:
    """A command that runs in the machine."""

    def __init__(self, client: Client, number: int, command: str, hooks: Hooks) -> None:
        self.command = command
        self.rc: int | None = None
        self.number = number
        self._client, self._news = client, client.news
        self._printed = bytearray()
        keep = self._printed.extend
        self._takers = {"out": hooks.output or keep, "err": hooks.errors or keep}
        self._failure: Exception | None = None  # of a hook
        self._under_way = 0  # bytes of input that the command has not taken yet

    def __repr__(self) -> str:
        """Such as <Job 'sleep 3' in box: exit 0>."""
        ended = "runs" if self.rc is None else f"signal {-self.rc}" if self.rc < 0 else f"exit {self.rc}"
        return f"<Job {self.command!r} in {self._client.name}: {ended}>"

    @property
    def out(self) -> str:
        """What it has printed until now, stdout and stderr; nothing, if somebody else takes that."""
        return self._printed.decode(errors="replace")

    def wait(self, timeout: float | None = 60) -> Result:
        """The command's end.  One that takes longer than timeout seconds is killed and is an error."""
        if not self._wait_for(lambda: self.rc is not None, timeout):
            self.kill()
            self._wait_for(lambda: self.rc is not None, 10)
            raise MachineError(
                f"not finished after {timeout} s: {self.command}\n{self.out}{self._client.trouble()}"
            )
        assert self.rc is not None
        return Result(self.rc, self.out)

    def expect(self, pattern: str, timeout: float = 20) -> re.Match[str]:
        """The first match of pattern in the output, as soon as it is there."""
        if not self._wait_for(lambda: self.rc is not None or bool(re.search(pattern, self.out)), timeout):
            raise MachineError(
                f"no {pattern!r} after {timeout} s from: {self.command}\n{self.out}{self._client.trouble()}"
            )
        found = re.search(pattern, self.out)
        if not found:
            raise MachineError(f"no {pattern!r} from: {self.command}: exit {self.rc}\n{self.out}")
        return found

    def write(self, data: bytes, timeout: float | None = 60) -> None:
        """Give it input, if it was started with that; wait while it reads slowly."""
        for at in range(0, len(data), CHUNK):
            chunk = data[at : at + CHUNK]
            if not self._wait_for(lambda: self._under_way < WINDOW or self.rc is not None, timeout):
                raise MachineError(f"reads no input for {timeout} s: {self.command}")
            if self.rc is not None:
                return
            with self._news:
                self._under_way += len(chunk)
            self._client.send({"job": self.number, "in": base64.b64encode(chunk).decode()})

    def close_input(self) -> None:
        """Its input has ended."""
        self._client.send({"job": self.number, "in": ""})

    def resize(self, rows: int, columns: int) -> None:
        """Its terminal has another size."""
        self._client.send({"job": self.number, "size": [rows, columns]})

    def kill(self, sig: int = signal.SIGKILL) -> None:
        """Signal the command and all that it started."""
        self._client.send({"job": self.number, "signal": int(sig)})

    def take(self, message: Message) -> None:
        """What the command has printed; called by the client's reader."""
        for kind, take in self._takers.items():
            if kind in message:
                data = base64.b64decode(message[kind])
                self._hand_on(take, data)
                self._client.send({"job": self.number, "ack": len(data)})

    def _hand_on(self, take: Callable[[bytes], object], data: bytes) -> None:
        if self._failure is not None:
            return
        try:
            take(data)
        except Exception as error:
            self._failure = error
            self.kill(signal.SIGPIPE)  # as a command's whose output nobody takes; leaving ends it in any case

    def note(self, message: Message) -> None:
        """What else the agent says of it; `news` is held."""
        self._under_way -= message.get("took", 0)
        self.rc = message.get("rc")

    def _is_over(self) -> bool:
        return self._client.dead or self._failure is not None

    def _wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        with self._news:
            ended = self._news.wait_for(lambda: condition() or self._is_over(), timeout)
        if self._failure is not None:
            raise self._failure
        if self._client.dead and not condition():
            died = f"the machine died ({self._client.why}) during: {self.command}"
            raise MachineError(f"{died}\n{self.out}{self._client.last_words()}")
        return ended
