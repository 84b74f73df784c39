# SPDX-License-Identifier: Apache-2.0
"""A connection to a machine's keeper: states, and jobs."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rnic.vm import console
from rnic.vm.job import Hooks, HungError, Job, NoMachineError
from rnic.vm.lines import BrokenLineError, Message, decode, encode
from rnic.vm.paths import Folder

ANSWER = 5.0  # seconds that a keeper may take to answer


class Client:
    """What a program knows of a machine, and how it starts jobs there."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self.name = name
        self.facts: Message = {}
        self.state, self.why = "starting", ""
        self.failure = ""  # why there is no machine
        self.news = threading.Condition()
        self.on_state: Callable[[], None] = lambda: None
        self._last_words = ""
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count()
        self._socket = sock
        self._sending = threading.Lock()
        self._reader = threading.Thread(target=self._read, name=f"rnic vm {name}", daemon=True)
        self._reader.start()

    @property
    def dead(self) -> bool:
        """Whether no more can come of it."""
        return self.state in ("dead", "gone")

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Whether the condition came true before the machine died and the time was over."""
        with self.news:
            self.news.wait_for(lambda: condition() or self.dead, timeout)
            return condition()

    def start(self, command: str, hooks: Hooks, **options: Any) -> Job:
        """Options: those of "run" in agent.py."""
        job = Job(self, next(self._numbers), command, hooks)
        with self.news:
            self._jobs[job.number] = job
        self.send({"job": job.number, "run": command, **options})
        return job

    def send(self, message: Message) -> None:
        """To the keeper, or to the agent behind it."""
        with suppress(OSError), self._sending:  # of a keeper that has gone, the reader tells
            self._socket.sendall(encode(message))

    def last_words(self) -> str:
        """The last lines of the console of a machine that died."""
        return f"\n{self._last_words}" if self._last_words else ""

    def console(self) -> str:
        """The last lines that the machine's kernel and QEMU printed."""
        found = console.last_lines(Path(self.facts["console"])) if "console" in self.facts else ""
        return found or self._last_words

    def trouble(self) -> str:
        """In words, when the machine is silent."""
        return f"\n{self.why}; its console's last lines:\n{self.console()}" if self.state == "silent" else ""

    def close(self) -> None:
        """Leave: the keeper ends this client's jobs."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._reader:
            self._reader.join()
        self._socket.close()

    def _read(self) -> None:
        with (
            suppress(OSError, BrokenLineError),
            self._socket.makefile("rb") as lines,
        ):  # the last may be cut off
            for line in lines:
                self._hear(decode(line))
        self._set_state("gone", self.why if self.state == "dead" else "its keeper has gone")

    def _hear(self, message: Message) -> None:
        if "failed" in message:
            self.failure = message["failed"]
        if "state" in message:
            with self.news:
                self.facts = message["facts"]
            self._set_state(message["state"], message["why"])
        if "job" in message:
            job = self._jobs[message["job"]]
            if "rc" in message:
                del self._jobs[message["job"]]
            job.take(message)  # whoever takes the output may be slow
            with self.news:
                job.note(message)
                self.news.notify_all()

    def _set_state(self, state: str, why: str) -> None:
        with self.news:
            if state in ("dead", "silent", "gone"):  # there may soon be no file any more
                self._last_words = self.console()
            self.state, self.why = state, why
            self.news.notify_all()
        self.on_state()


def connect(folder: Folder) -> Client:
    """To the keeper of a machine that runs."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        with folder.address() as address:
            sock.connect(address)
    except OSError as error:
        sock.close()
        raise NoMachineError(f"no machine named {folder.name} runs ({error.strerror})") from None
    client = Client(sock, folder.name)
    if not client.wait_for(lambda: bool(client.facts), ANSWER):
        pid = keeper_of(sock)
        client.close()
        raise HungError(f"the keeper of {folder.name}, process {pid}, does not answer", pid)
    return client


def keeper_of(sock: socket.socket) -> int:
    """The process at the other end."""
    pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)
