# SPDX-License-Identifier: Apache-2.0
"""The modules of the course: examples/kernel of rnic's sources, and this package's data when installed."""

from __future__ import annotations

import re
import shutil
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from rnic.kmod import skeleton
from rnic.kmod.errors import KmodError
from rnic.kmod.folder import Folder
from rnic.kmod.taken import is_taken

# What is copied beside a module's own sources: the programs that speak to it, and what these import.
PEERS = {
    "client": ("peer_listener.py", "serving.py", "living.py", "message.py", "program.py"),
    "listener": ("peer_client.py", "living.py", "message.py", "program.py"),
    "rw": ("peer_memory.py", "serving.py", "living.py", "message.py", "program.py"),
    "blockdev": ("peer_memory.py", "serving.py", "living.py", "message.py", "program.py"),
}
NEEDS = {"user": ("base",), "listener": ("agent",)}  # modules whose functions another one calls
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")


class Lesson(NamedTuple):
    """A module of the course."""

    name: str
    about: str  # in a line
    parts: int  # those that `rnic kmod new` leaves out


def folder() -> Folder:
    """Where the course's files are."""
    kbuild = resources.files("rnic.kmod").joinpath("course", "Kbuild")
    return Folder(Path(str(kbuild)).parent)


def lessons() -> list[Lesson]:
    """In the order of the course."""
    course = folder()
    return [_lesson(course, name) for name in course.modules]


def _lesson(course: Folder, name: str) -> Lesson:
    text = "".join(path.read_text() for path in _sources(course, name))
    found = re.search(rf"^ \* {name}: (.*?)\.?$", text, re.MULTILINE)
    return Lesson(name, found[1] if found else "", skeleton.count(text))


def _sources(course: Folder, name: str) -> list[Path]:
    """A module's, and those of the modules that it needs."""
    found = [path for module in (name, *NEEDS.get(name, ())) for path in course.sources(module)]
    return list(dict.fromkeys(found))


def _with(module: str) -> Folder:
    """The course's files, among which that module must be."""
    course = folder()
    if module not in course.modules:
        raise KmodError(f"the course has no module {module}; it has {', '.join(course.modules)}")
    return course


def copy(to: Path, module: str) -> Folder:
    """A module of it as it is, in a folder of its own."""
    course = _with(module)
    to.mkdir(parents=True)
    for path in _sources(course, module):
        shutil.copyfile(path, to / path.name)
    (to / "Kbuild").write_text(_kbuild(course, module, module))
    return Folder(to)


def new(name: str, made_from: str, where: Path) -> Folder:
    """Write a module as the course's one, with the parts to fill in left out, into a new folder."""
    course = _with(made_from)
    if not _NAME.fullmatch(name):
        raise KmodError(f"{name!r} is no name of a module: small letters, digits and _, a letter first")
    if name != made_from and name in {path.stem for path in _sources(course, made_from)}:
        raise KmodError(f"{made_from} is made of {name}.c among others: give the module another name")
    if is_taken(name):
        raise KmodError(f"the kernel has a module {name} of its own: give the module another name")
    if where.exists():
        raise KmodError(f"{where} exists already: give the module another name, or remove it")
    files = _files(course, name, made_from)
    where.mkdir(parents=True)
    for file, text in files.items():
        (where / file).write_text(text)
    return Folder(where)


def _files(course: Folder, name: str, made_from: str) -> dict[str, str]:
    """The texts of a new module's files, by name."""
    renamed = {f"{made_from}.c": f"{name}.c"}
    files = {"Kbuild": _kbuild(course, name, made_from)}
    for path in _sources(course, made_from):
        files[renamed.get(path.name, path.name)] = skeleton.without_parts(path.read_text())
    for other in ("Makefile", *PEERS.get(made_from, ())):
        if (path := course.path / other).exists():
            files[other] = path.read_text()
    return files


def _kbuild(course: Folder, name: str, made_from: str) -> str:
    lines = ["# SPDX-License-Identifier: GPL-2.0", f"# Made by: rnic kmod new {name} --from {made_from}"]
    lines += [f"obj-m += {one}.o" for one in (*NEEDS.get(made_from, ()), name)]
    sources = course.modules[made_from]
    if sources != (f"{made_from}.c",):
        lines.append(f"{name}-y := {' '.join(Path(source).stem + '.o' for source in sources)}")
    return "\n".join([*lines, ""])
