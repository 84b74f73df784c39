# SPDX-License-Identifier: Apache-2.0
"""The kernel modules of examples/kernel: built once, loaded in a guest, and nothing left of them.

    box = Box(machine)
    with box.loaded("hello", whom="you"):
        ...

The guest reads the modules where they were built, since its root is this computer's.
"""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rnic.kmod.log import trouble
from rnic.vm import Machine, images, kernel

SOURCE = Path(__file__).resolve().parents[2] / "examples/kernel"
OUTPUT = {"*.ko", "*.o", "*.mod*", ".*.cmd", ".*.o.d", "Module.symvers", "modules.order", "__pycache__"}


@functools.cache
def built() -> Path:
    """The folder that has the modules, built without a warning; one for each process of tests."""
    folder = Path(tempfile.mkdtemp(prefix="rnic-modules-"))
    source = folder / "kernel"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns(*OUTPUT))
    _, headers = images.headers()
    kernel.build(headers, source, "W=1", "KCFLAGS=-Werror")
    return source


class Box:
    """A guest, with the words that the tests of modules need."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def load(self, name: str, **parameters: object) -> None:
        """Load a module with its parameters."""
        words = " ".join(shlex.quote(f"{key}={value}") for key, value in parameters.items())
        self.machine.check(f"insmod {built() / name}.ko {words}")

    def unload(self, *names: str) -> None:
        """Unload modules, which must not fail or hang."""
        self.machine.check(f"rmmod {' '.join(names)}", timeout=60)

    @contextmanager
    def loaded(self, name: str, **parameters: object) -> Iterator[None]:
        """Load a module, and unload it; then nothing is left of it."""
        with self.nothing_left():
            self.load(name, **parameters)
            try:
                yield
            finally:
                self.unload(name)

    @contextmanager
    def nothing_left(self) -> Iterator[None]:
        """At the end nothing of the RDMA devices is in use that was not before.

        The log begins anew; nothing in it may say that the kernel itself is in trouble.
        """
        self.machine.check("dmesg -C")
        before = self.resources()
        yield
        assert self.resources() == before
        assert not self.splat()

    def splat(self) -> str:
        """Where the kernel says in its log that something is wrong with it; "" if it does not."""
        return trouble(self.log())

    def log(self) -> str:
        """What the kernel has printed."""
        return self.machine.check("dmesg")

    def logged(self, text: str) -> None:
        """Wait until the kernel has printed a text."""
        self.machine.check(f"until dmesg | grep -qF {shlex.quote(text)}; do sleep .1; done")

    def resources(self) -> str:
        """What the kernel's resource tracker counts of each RDMA device, whose number may change."""
        return re.sub(r"(?m)^\d+: ", "", self.machine.check("rdma resource"))
