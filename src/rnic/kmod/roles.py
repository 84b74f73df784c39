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

from rnic.kmod import course, log, rogue
from rnic.kmod.peer import Peer
from rnic.kmod.place import Box
from rnic.kmod.steps import Step
from rnic.vm import Job

MANY = 400  # texts, of all lengths; so many lost pieces of memory are seen in the kernel's caches
ENDLESS = 1_000_000  # texts, which no command comes to the end of
LONGEST = 1024  # bytes of a text
MOST = 1 << 16  # bytes of a /proc file: one whose reading never ends has more
MOST_SHOWN = 1000  # of them
STILL = 2.0  # seconds in which a number does not change
LOOK = 0.1  # seconds between looks at a /proc file


class WrongError(Exception):
    """A step has failed: why, and what was printed of it."""

    def __init__(self, detail: str, printed: str = "") -> None:
        super().__init__(detail)
        self.printed = printed


class Role:
    """A module of which no more is known than that it loads and unloads, and whether it has a /proc file.

    parameters  what it is loaded with
    file        its /proc file, if it has one
    speaks      whether it has a peer, and is tested over each transport
    steps       what is tested between loading and unloading, and the methods that do it
    """

    parameters: tuple[str, ...] = ()
    file = ""
    speaks = False
    steps: ClassVar[dict[Step, str]] = {}

    def __init__(self, box: Box, module: str, device: str, seconds: float) -> None:
        self.box, self.device, self.seconds = box, device, seconds
        self.proc = self.file.format(module=module)

    def read_proc(self) -> None:
        """Its file can be read."""
        self.show()

    def show(self) -> str:
        """What its file says."""
        rc, out = self.box.run(f"head -c {MOST} {self.proc}", self.seconds)
        if rc:
            raise WrongError(f"cannot read {self.proc}: {out.strip()}")
        if len(out) >= MOST:
            raise WrongError(f"{self.proc} does not end: more than {MOST} bytes", log.tail(out[:MOST_SHOWN]))
        return out

    def field(self, name: str) -> str:
        """What stands behind a word of its file."""
        shown = self.show()
        found = re.search(rf"^{name} ?(.*)$", shown, re.MULTILINE)
        if not found:
            raise WrongError(f"{self.proc} has no line {name!r}", shown)
        return found[1]

    def number(self, name: str) -> int:
        """What stands there, which must be one."""
        said = self.field(name)
        if not re.fullmatch(r"-?[0-9]{1,20}", said):
            raise WrongError(f"{self.proc} says {name} {shown(said)}, which is no number")
        return int(said)

    def until_field(self, name: str, wanted: str) -> None:
        """It says that within the limit."""
        limit = time.monotonic() + self.seconds
        while (said := self.field(name)) != wanted:
            if time.monotonic() > limit:
                raise WrongError(f"{self.proc} says {name} {said} after {self.seconds:g} s, not {wanted}")
            time.sleep(LOOK)

    def until_more(self, name: str, before: int) -> None:
        """A number of its file has grown within the limit."""
        limit = time.monotonic() + self.seconds
        while self.number(name) <= before:
            if time.monotonic() > limit:
                raise WrongError(f"{self.proc} says {name} {before} still after {self.seconds:g} s")
            time.sleep(LOOK)

    def until_still(self, name: str) -> None:
        """A number of its file does not change any more."""
        limit = time.monotonic() + self.seconds
        before = ""
        while (now := self.field(name)) != before and time.monotonic() < limit:
            before = now
            time.sleep(STILL)

    def program(self, name: str, *words: str, fault: str = "") -> Peer:
        """Start a program of the course, or what it is with a fault (rogue.py)."""
        path = course.folder().path / name
        command = [rogue.__file__, str(path), fault] if fault else [str(path)]
        return Peer(name, self.box.machine, self.device, *command, *words)

    def keep_busy(self) -> None:
        """A connection is alive when the module is unloaded."""

    def close(self) -> None:
        """The peers end."""


class Commanded(Role):
    """A module that takes commands by its /proc file, and has a peer on this computer."""

    speaks = True

    def __init__(self, box: Box, module: str, device: str, seconds: float) -> None:
        super().__init__(box, module, device, seconds)
        self._open = contextlib.ExitStack()
        self.server: Peer | None = None

    @property
    def peer_printed(self) -> str:
        """What its server has printed."""
        return self.server.printed if self.server else ""

    def end_of(self, job: Job, why: str) -> None:
        """A command that cannot succeed ends, and fails."""
        if not self.ends(job):
            job.kill()
            raise WrongError(f"{why}, and {self.seconds:g} s later the command still waits")
        if job.rc == 0:
            raise WrongError(f"{why}, and the command says that all is well")

    def ends(self, job: Job) -> bool:
        """Whether it does within the limit."""
        limit = time.monotonic() + self.seconds
        while job.rc is None and time.monotonic() < limit and not self.box.machine.dead:
            time.sleep(LOOK)
        if self.box.machine.dead:
            job.wait(0)  # which tells of the death
        return job.rc is not None

    def command(self, text: str) -> None:
        """Write a command, which must succeed."""
        job = self.start(text)
        if not self.ends(job):
            job.kill()
            raise WrongError(f"not finished after {self.seconds:g} s: {shown(text)}", self.peer_printed)
        if job.rc:
            why = job.out.strip().rpartition(": ")[2]
            raise WrongError(f"{shown(text)}: {why}", self.peer_printed)

    def start(self, text: str) -> Job:
        """Write a command; it returns when the module has done it."""
        one_write = f"dd of={self.proc} bs=64k status=none"  # the shell's echo does not say the errno
        return self.box.machine.spawn(f"printf %s {shlex.quote(text)} | {one_write}")

    def close(self) -> None:
        """Its servers end."""
        self._open.close()


class Client(Commanded):
    """Connects with a server, which is peer_listener.py. It does not probe it: failed work shows its end."""

    file = "/proc/rnic_client"
    parameters = ("probe=0",)
    server: Peer
    steps: ClassVar[dict[Step, str]] = {
        Step.PROC: "read_proc",
        Step.CONNECT: "connect",
        Step.MESSAGE: "send_texts",
        Step.HOSTILE: "meet_a_liar",
        Step.DEATH: "lose_the_server",
    }

    def connect(self) -> None:
        """With a new server, which stays."""
        self.connect_with()

    def connect_with(self, fault: str = "") -> None:
        """With a new server, which may have a fault."""
        self.close()
        self.server = self._open.enter_context(self.serve(fault))
        self.command(f"connect {self.box.machine.host_ip} {self.port}")
        if (state := self.field("state")) != "connected":
            raise WrongError(f"connect has returned, and {self.proc} says state {state}", self.server.printed)

    @contextmanager
    def serve(self, fault: str) -> Iterator[Peer]:
        """A server on this computer."""
        words = ("--bind", self.box.machine.host_ip, "--port", "0")
        with self.program("peer_listener.py", *words, fault=fault) as server:
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

    def meet_a_liar(self) -> None:
        """A server's answers have wrong numbers: the command fails, and the file tells how things are."""
        self.command("disconnect")
        self.connect_with("wrong-number")
        job = self.start("send is it you")
        self.end_of(job, "an answer with a wrong number has come")
        self.show()

    def lose_the_server(self) -> None:
        """It dies: the command for more texts fails, the module says so, and connects with another one.

        Nobody acknowledges the texts: of those that are acknowledged and never answered no work fails.
        """
        self.command("disconnect")
        self.connect()
        self.server.kill()
        self.end_of(self.start(f"texts {ENDLESS}"), "the server has died")
        self.until_field("state", "idle")
        self.connect()
        self.command("send still there")


def shown(text: str) -> str:
    """A text, or its beginning and its length."""
    return repr(text) if len(text) <= 40 else f"{text[:20]!r}... ({len(text)} bytes)"


class Listener(Role):
    """Serves clients, of which each is a peer_client.py."""

    file = "/proc/rnic_listener"
    speaks = True
    steps: ClassVar[dict[Step, str]] = {
        Step.PROC: "read_proc",
        Step.CONNECT: "serve_nothing",
        Step.MESSAGE: "serve_texts",
        Step.HOSTILE: "meet_strangers",
        Step.DEATH: "lose_the_client",
    }

    def __init__(self, box: Box, module: str, device: str, seconds: float) -> None:
        super().__init__(box, module, device, seconds)
        self._open = contextlib.ExitStack()

    def serve_nothing(self) -> None:
        """A client connects, and disconnects when the module has seen it connect.

        Not before: of a connection that ends at once siw tells the end before the beginning, and iw_cm stops
        the kernel at that (BUG in iwcm.c), whatever the module does.
        """
        with self.client("--count", "0", "--hold") as client:
            self.until_connected(client)
            client.expect("0 texts answered", self.seconds)
            client.interrupt()
            if code := self.code_of(client):
                raise WrongError(f"a client that asks nothing ends with {code}", log.tail(client.printed))
        self.until_field("agents", "0")

    def until_connected(self, client: Peer) -> None:
        """The file shows an agent that is connected, within the limit."""
        limit = time.monotonic() + self.seconds
        while " connected " not in self.show():
            if (code := client.wait(0)) is not None:
                raise WrongError(f"a client cannot connect, and ends with {code}", log.tail(client.printed))
            if time.monotonic() > limit:
                raise WrongError(f"{self.proc} shows no agent that is connected", self.show())
            time.sleep(LOOK)

    def serve_texts(self) -> None:
        """The client compares each answer with its text."""
        before = self.number("asks")
        for count, size in (1, 1), (20, 0), (20, LONGEST), (MANY, None):
            self.serve(count, size)
        asks = self.number("asks") - before
        if asks != MANY + 41:
            raise WrongError(f"{self.proc} says {asks} asks more after {MANY + 41} texts")

    def meet_strangers(self) -> None:
        """Who wants another service is refused, and messages that are no questions are no harm."""
        with self.client("--count", "0", fault="wrong-service") as stranger:
            if self.code_of(stranger) == 0:
                raise WrongError("a client that wants another service is not refused", stranger.printed)
        with self.client("--count", "1", fault="wrong-kind") as stranger:
            if self.code_of(stranger) == 0:
                raise WrongError("a message that is no question is answered as one", stranger.printed)
        self.until_field("agents", "0")
        self.serve(20, None)

    def lose_the_client(self) -> None:
        """It dies while answers are on their way: the module notices, and serves another one.

        Only a message that is not acknowledged shows the death over RoCE. So first all that the module sends
        is lost.
        """
        self.keep_busy()
        with self.silence():
            self.until_still("asks")
            self.busy.kill()
        self.until_field("agents", "0")
        self.serve(20, None)

    @contextmanager
    def silence(self) -> Iterator[None]:
        """What the machine sends is lost."""
        self.box.check("tc qdisc replace dev eth0 root netem loss 100%")
        try:
            yield
        finally:
            self.box.run("tc qdisc delete dev eth0 root")

    def keep_busy(self) -> None:
        """A client whose texts do not end."""
        before = self.number("asks")
        self.busy = self._open.enter_context(self.client("--count", str(ENDLESS), "--size", "10"))
        self.until_more("asks", before)

    def serve(self, count: int, size: int | None) -> None:
        """A client with so many texts of that size, or of different ones, which must end well."""
        words = ["--count", str(count), *(["--size", str(size)] if size is not None else [])]
        with self.client(*words) as client:
            if code := self.code_of(client):
                raise WrongError(f"a client with {count} texts ends with {code}", log.tail(client.printed))
        self.until_field("agents", "0")

    def code_of(self, client: Peer) -> int:
        """Its exit code."""
        code = client.wait(self.seconds)
        if code is None:
            raise WrongError(f"a client still waits after {self.seconds:g} s", log.tail(client.printed))
        return code

    def client(self, *words: str, fault: str = "") -> Peer:
        """On this computer."""
        return self.program("peer_client.py", self.box.machine.ip, *words, fault=fault)

    def close(self) -> None:
        """Its clients end."""
        self._open.close()


class WithFile(Role):
    """A module with a /proc file."""

    steps: ClassVar[dict[Step, str]] = {Step.PROC: "read_proc"}


class Procfile(WithFile):
    """Lines in a file."""

    file = "/proc/{module}"


class Devices(WithFile):
    """The RDMA devices."""

    file = "/proc/rdma_devices"
