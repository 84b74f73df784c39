# SPDX-License-Identifier: Apache-2.0
"""A kernel module as programs see it: made, built, loaded, unloaded, graded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rnic.kmod import build, course, loading, place
from rnic.kmod.errors import KmodError
from rnic.kmod.folder import Folder
from rnic.kmod.grade import DEVICES, SECONDS, grade
from rnic.kmod.machines import Machines
from rnic.kmod.place import Place, Say
from rnic.kmod.steps import Report

Where = str | os.PathLike[str]
_LITTLE = "only compile, load and unload are tested"


def _silent(_: str) -> None:
    """Say nothing."""


class Module:
    """A kernel module's sources: a folder with a Kbuild, and the module of it that is meant.

        module = Module.new("mine", made_from="hello")
        print(module.load("whom=you"))          # in a machine of rnic.vm
        print(module.unload())
        print([report.passed for report in module.grade()])

    folder  where the sources are, and where they are built
    name    the module; "": the one that the folder was made for, or the only one

    Where these methods take `machine`, it is the name of a machine; "": "box", or the only one that runs.
    `here` means this computer instead, as root. `say` is called with a line when something takes long.
    What cannot be done is a KmodError, or a MachineError of rnic.vm.
    """

    def __init__(self, folder: Where = ".", name: str = "") -> None:
        self._folder = Folder(Path(folder))
        self._name = self._folder.chosen(name) if name else ""

    @classmethod
    def new(cls, name: str, made_from: str = "hello", folder: Where = "") -> Module:
        """Write a module as the course's one, without the parts to fill in, into a new folder ("": name)."""
        return cls(course.new(name, made_from, Path(folder or name)).path)

    @classmethod
    def of_course(cls, name: str, folder: Where) -> Module:
        """Copy a module of the course, which is complete, into a new folder."""
        return cls(course.copy(Path(folder), name).path)

    def __repr__(self) -> str:
        return f"Module({str(self.path)!r}, {self._name!r})"

    @property
    def name(self) -> str:
        """The module's; KmodError, if the folder has several and none is named."""
        return self._folder.chosen(self._name)

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder.path

    @property
    def files(self) -> list[Path]:
        """What a build makes: all modules of the folder."""
        return [self._folder.file(one) for one in self._folder.modules]

    @property
    def made_from(self) -> str:
        """The module of the course that it is tested as; "" if there is none such."""
        found = self._folder.made_from or self.name
        return found if found in course.folder().modules else ""

    @property
    def is_built(self) -> bool:
        """Whether its file is there, and newer than its sources."""
        return self._folder.is_built(self.name)

    def build(self, *, here: bool = False) -> str:
        """Build all modules of the folder, for the kernel of machines; the compiler's warnings."""
        built = build.build(self._folder, build.for_here() if here else build.for_machine())
        if built.errors:
            raise KmodError(f"{self.path} does not build\n{built.errors}")
        return built.warnings

    def load(self, *parameters: str, machine: str = "", here: bool = False, say: Say = _silent) -> str:
        """Load it, with parameters such as "whom=you", and what it needs; what the kernel said.

        It is built if its sources have changed. A machine that does not run is started, and one that has
        died or whose kernel has oopsed is started again; it runs on.
        """
        name = self.name  # whatever is wrong with it is told before a machine starts
        with _opened(machine, here=here, say=say, start=True) as there:
            if not self.is_built and (warnings := self.build(here=here)):
                say(f"{name} compiles with warnings\n{warnings}")
            return loading.load(there, self._folder, name, parameters)

    def unload(self, *, machine: str = "", here: bool = False, say: Say = _silent) -> str:
        """Unload it, and the modules of the folder that it needed; what the kernel said."""
        name = self.name
        with _opened(machine, here=here, say=say) as there:
            return loading.unload(there, self._folder, name)

    def grade(
        self,
        *,
        machine: str = "",
        transports: tuple[str, ...] = DEVICES,
        seconds: float = SECONDS,
        say: Say = _silent,
    ) -> list[Report]:
        """Build it anew, load it and use it as what it was made from; a report for each transport.

        machine     the name of one, as for load(); "": a fresh one, which ends then
        transports  "rxe" and "siw"; a module that speaks with nobody has one report, of transport ""
        seconds     that each wait may take
        """
        if wrong := [one for one in transports if one not in DEVICES]:
            raise ValueError(f"{wrong[0]!r} is no transport of a module: {', '.join(DEVICES)}")
        if not self.made_from:
            say(f"{self.name} is not made from a module of the course: {_LITTLE}")
        with Machines(machine, say) as machines:
            return list(grade(self._folder, self.name, machines, seconds, transports))


@contextmanager
def _opened(machine: str, *, here: bool, say: Say, start: bool = False) -> Iterator[Place]:
    """Where modules are loaded; a machine in which one does not end is started again."""
    if here:
        yield place.Here()
        return
    with place.ready(machine, say) if start else place.attached(machine) as box:
        try:
            yield box
        except loading.StuckError:
            place.restart(box.name, say)
            raise
