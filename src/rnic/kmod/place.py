# SPDX-License-Identifier: Apache-2.0
"""Where modules are loaded: in a machine of `rnic vm`, or on this computer."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rnic.kmod.errors import KmodError
from rnic.vm import Machine, MachineError, Result, running
from rnic.vm.console import excerpt

DEFAULT = "box"
SECONDS = 60  # that a command may take, and no module's init or exit takes
BAD_PAGE, OOPSED, WARNED, LOCKED_UP = 1 << 5, 1 << 7, 1 << 9, 1 << 14  # bits of /proc/sys/kernel/tainted
Say = Callable[[str], object]


class Place(ABC):
    """Where modules are loaded."""

    name = "this computer"

    @abstractmethod
    def run(self, command: str, timeout: float = SECONDS) -> Result:
        """Run a shell command there."""

    @abstractmethod
    def path(self, file: Path) -> str:
        """Where a file of this computer is there."""

    def log(self) -> str:
        """What the kernel has printed."""
        return self.run("dmesg").out

    def check(self, command: str) -> str:
        """Run a shell command there that must succeed; its output."""
        rc, out = self.run(command)
        if rc:
            raise KmodError(f"{command}: exit {rc}\n{out}")
        return out

    def is_damaged(self) -> bool:
        """Whether its kernel has oopsed: what comes then cannot be relied on."""
        return bool(self.troubles() & (OOPSED | LOCKED_UP))

    def troubles(self) -> int:
        """What its kernel has had since it was booted, as bits."""
        return int(self.check("cat /proc/sys/kernel/tainted")) & (BAD_PAGE | OOPSED | WARNED | LOCKED_UP)


class Here(Place):
    """This computer; only root may load modules."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise KmodError("only root may use this computer's kernel: use sudo, or leave out --here")

    def run(self, command: str, timeout: float = SECONDS) -> Result:
        """By the shell, in English."""
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                env=dict(os.environ, LC_ALL="C", PATH=f"{os.environ['PATH']}:/usr/sbin:/sbin"),
            )
        except subprocess.TimeoutExpired:
            raise KmodError(f"not finished after {timeout} s: {command}") from None
        return Result(done.returncode, done.stdout.decode(errors="replace"))

    def path(self, file: Path) -> str:
        """The same."""
        return str(file)


class Box(Place):
    """A machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.name = machine.name

    def run(self, command: str, timeout: float = SECONDS) -> Result:
        """In the machine; one that dies is a MachineError."""
        return self.machine.run(command, timeout)

    def path(self, file: Path) -> str:
        """The root file system is there, but for what is in memory."""
        own = file.parts[1:2] in (("run",), ("dev",), ("proc",), ("sys",))
        return self.machine.put(file) if own else str(file)


def choose(name: str = "") -> str:
    """The machine that is meant: without a name "box", or the only one that runs."""
    found = running()
    if name or DEFAULT in found or not found:
        return name or DEFAULT
    if len(found) > 1:
        raise KmodError(f"several machines run, name one with -n NAME: {', '.join(found)}")
    return found[0]


@contextmanager
def attached(name: str) -> Iterator[Box]:
    """A machine that runs."""
    name = choose(name)
    if name not in running():
        raise KmodError(f"no machine {name} runs: rnic kmod load or rnic vm up {name} starts it")
    with Machine.attach(name) as machine:
        if machine.state == "dead":
            raise KmodError(f"{died(machine)}\nrnic kmod load or rnic vm up {name} starts it again")
        machine.wait_ready()
        yield Box(machine)


@contextmanager
def ready(name: str, say: Say) -> Iterator[Box]:
    """A machine that is well: started if it does not run, started again if it has died or oopsed."""
    name = choose(name)
    if name not in running():
        start(name, {"transport": "both"}, say)
        say(f"{name} is started, with rxe0 and siw0; rnic vm down {name} ends it")
    elif why := unwell(name):
        restart(name, say)
        say(f"{name} is started again: {why}")
    with attached(name) as box:
        yield box


def unwell(name: str) -> str:
    """Why a machine must be started again; "" if it need not."""
    with Machine.attach(name) as machine:
        if machine.dead:
            return machine.why or "it had died"
        try:
            machine.wait_ready()
            return "its kernel had oopsed" if Box(machine).is_damaged() else ""
        except MachineError:
            return "it did not answer"


def start(name: str, options: dict[str, Any], say: Say) -> None:
    """Start a machine that outlives this process."""
    say(f"starting {name}")
    with Machine(name, **options) as machine:
        machine.detach()


def restart(name: str, say: Say) -> None:
    """End a machine, and start one as it was."""
    with Machine.attach(name) as machine:
        options = machine.options
        machine.end()
    start(name, options, say)


def died(machine: Machine) -> str:
    """That it did, and the console from where the trouble begins."""
    return f"the machine {machine.name} died: {machine.why}\n{excerpt(machine.console())}"
