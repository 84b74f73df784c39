# SPDX-License-Identifier: Apache-2.0
"""How the modules of each kind are tested while they are loaded: by their /proc file, and with their peer."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from rnic.kmod import course
from rnic.kmod.peer import Peer
from rnic.kmod.place import Box
from rnic.kmod.steps import Step
from rnic.vm import Job

MANY = 400  # texts, of all lengths; so many lost pieces of memory are seen in the kernel's caches
ENDLESS = 1_000_000  # texts, amid which the peer dies
LONGEST = 1024  # bytes of a text
LOOK = 0.1  # seconds between looks at a /proc file


class WrongError(Exception):
    """A step has failed: why, and what was printed of it."""

    def __init__(self, detail: str, printed: str = "") -> None:
        super().__init__(detail)
        self.printed = printed


class Role:
    """A module of which no more is known than that it loads and unloads, and whether it has a /proc file.

    parameters  what it is loaded with
    proc        its file, if it has one
    speaks      whether it has a peer, and is tested over each transport
    steps       what is tested between loading and unloading, and the methods that do it
    """

    parameters: tuple[str, ...] = ()
    proc = ""
    speaks = False
    steps: ClassVar[dict[Step, str]] = {}

    def __init__(self, box: Box, device: str, seconds: float) -> None:
        self.box, self.device, self.seconds = box, device, seconds

    def read_proc(self) -> None:
        """Its file can be read."""
        self.show()

    def show(self) -> str:
        """What its file says."""
        rc, out = self.box.run(f"cat {self.proc}", self.seconds)
        if rc:
            raise WrongError(f"cannot read {self.proc}: {out.strip()}")
        return out

    def field(self, name: str) -> str:
        """What stands behind a word of its file."""
        shown = self.show()
        found = re.search(rf"^{name} ?(.*)$", shown, re.MULTILINE)
        if not found:
            raise WrongError(f"{self.proc} has no line {name!r}", shown)
        return found[1]

    def until_field(self, name: str, wanted: str) -> None:
        """It says that within the limit."""
        limit = time.monotonic() + self.seconds
        while (said := self.field(name)) != wanted:
            if time.monotonic() > limit:
                raise WrongError(f"{self.proc} says {name} {said} after {self.seconds:g} s, not {wanted}")
            time.sleep(LOOK)

    def program(self, name: str, *words: str) -> Peer:
        """Start a program of the course."""
        return Peer(course.folder().path / name, self.box.machine.name, self.device, *words)

    def close(self) -> None:
        """The peers end."""


class Client(Role):
    """Connects with a server, which is peer_listener.py."""

    proc = "/proc/rnic_client"
    speaks = True
    steps: ClassVar[dict[Step, str]] = {
        Step.PROC: "read_proc",
        Step.CONNECT: "connect",
        Step.MESSAGE: "send_texts",
        Step.DEATH: "lose_the_server",
    }

    def __init__(self, box: Box, device: str, seconds: float) -> None:
        super().__init__(box, device, seconds)
        self._open = contextlib.ExitStack()

    def connect(self) -> None:
        """To a server that is left open."""
        self.server = self._open.enter_context(self.serve())
        self.command(f"connect {self.box.machine.host_ip} {self.port}")
        if (state := self.field("state")) != "connected":
            raise WrongError(f"connect has returned, and {self.proc} says state {state}", self.server.printed)

    @contextmanager
    def serve(self) -> Iterator[Peer]:
        """A server on this computer."""
        with self.program("peer_listener.py", "--bind", self.box.machine.host_ip, "--port", "0") as server:
            self.port = server.expect(r"listening on port (\d+)", self.seconds)[1]
            yield server

    def send_texts(self) -> None:
        """Texts of several lengths one by one, then many; the server has answered all when it says so."""
        texts = ["a", "Hello, world! 123", "x" * 100, "y" * LONGEST]
        for text in texts:
            self.command(f"send {text}")
            if (answer := self.field("answer")) != text.upper():
                raise WrongError(f"the answer to {shown(text)} is {shown(answer)}")
        self.command(f"texts {MANY}")
        count = len(texts) + MANY
        for name in ("sent", "received"):
            if (said := self.field(name)) != str(count):
                raise WrongError(f"{self.proc} says {name} {said} after {count} texts")
        self.command("disconnect")
        pattern = r"(\d+) texts answered, (\d+) messages wrong"
        answered, wrong = self.server.expect(pattern, self.seconds).groups()
        if (answered, wrong) != (str(count), "0"):
            raise WrongError(f"the server has answered {answered} texts of {count}, and {wrong} were wrong")

    def lose_the_server(self) -> None:
        """It dies amid many texts: the command fails, the module says so, and connects with another one."""
        self.again()
        job = self.start(f"texts {ENDLESS}")
        before = int(self.field("received"))
        limit = time.monotonic() + self.seconds
        while int(self.field("received")) == before and time.monotonic() < limit:
            time.sleep(LOOK)
        self.server.kill()
        self.end_of(job)
        self.until_field("state", "idle")
        self.again()
        self.command("send still there")

    def again(self) -> None:
        """A new server, and connected with it."""
        self.command("disconnect")
        self._open.close()
        self.connect()

    def end_of(self, job: Job) -> None:
        """A command that cannot succeed ends."""
        if not self.ends(job):
            job.kill()
            raise WrongError(f"{self.seconds:g} s after the server's end a command still waits for it")
        if job.rc == 0:
            raise WrongError("the server has died amid texts, and the command says that all is well")

    def ends(self, job: Job) -> bool:
        """Whether it does within the limit."""
        limit = time.monotonic() + self.seconds
        while job.rc is None and time.monotonic() < limit:
            time.sleep(LOOK)
        return job.rc is not None

    def command(self, text: str) -> None:
        """Write a command, which must succeed."""
        job = self.start(text)
        if not self.ends(job):
            job.kill()
            raise WrongError(f"not finished after {self.seconds:g} s: {shown(text)}", self.server.printed)
        if job.rc:
            why = job.out.strip().rpartition(": ")[2]
            raise WrongError(f"{shown(text)}: {why}", self.server.printed)

    def start(self, text: str) -> Job:
        """Write a command; it returns when the module has done it."""
        one_write = f"dd of={self.proc} bs=64k status=none"  # the shell's echo does not say the errno
        return self.box.machine.spawn(f"printf %s {shlex.quote(text)} | {one_write}")

    def close(self) -> None:
        """Its servers end."""
        self._open.close()


def shown(text: str) -> str:
    """A text, or its beginning and its length."""
    return repr(text) if len(text) <= 40 else f"{text[:20]!r}... ({len(text)} bytes)"


class WithFile(Role):
    """A module with a /proc file."""

    steps: ClassVar[dict[Step, str]] = {Step.PROC: "read_proc"}


class Procfile(WithFile):
    """Lines in a file."""

    proc = "/proc/procfile"


class Devices(WithFile):
    """The RDMA devices."""

    proc = "/proc/rdma_devices"


class Rw(WithFile):
    """READs and WRITEs on a peer's memory."""

    proc = "/proc/rnic_rw"


_ROLES = {"client": Client, "procfile": Procfile, "devices": Devices, "rw": Rw}


def role_of(made_from: str) -> type[Role]:
    """By the module of the course that it is, or was made from."""
    return _ROLES.get(made_from, Role)
