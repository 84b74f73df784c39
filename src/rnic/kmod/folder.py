# SPDX-License-Identifier: Apache-2.0
"""A folder with the sources of kernel modules, as its Kbuild describes it."""

from __future__ import annotations

import re
from pathlib import Path

from rnic.kmod.errors import KmodError

_LINE = re.compile(r"^[ \t]*([\w-]+)[ \t]*[:+]?=[ \t]*([^#\n]*)", re.MULTILINE)
_MADE = re.compile(r"^#.*\brnic kmod new (\w+) --from (\w+)", re.MULTILINE)
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([\w.-]+)"', re.MULTILINE)


class Folder:
    """A folder of modules.

    modules    the name of each, and the files in C that it is made of
    made_from  the course's module that it was made from, if `rnic kmod new` has made it
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        lines = _kbuild(path).replace("\\\n", " ")
        words: dict[str, list[str]] = {}
        for name, objects in _LINE.findall(lines):
            words.setdefault(name, []).extend(objects.split())
        self.modules = {name: _sources(name, words) for name in map(_stem, words.get("obj-m", []))}
        if not self.modules:
            raise KmodError(f"{path} makes no module: its Kbuild has no line such as obj-m += hello.o")
        found = _MADE.search(lines)
        self._made, self.made_from = found.groups() if found else ("", "")

    def chosen(self, name: str = "") -> str:
        """The module that is meant: without a name the one that the folder was made for, or the only one."""
        name = name or (self._made if self._made in self.modules else "")
        names = ", ".join(self.modules)
        if name and name not in self.modules:
            raise KmodError(f"{self.path} has no module {name}; it has {names}")
        if not name and len(self.modules) > 1:
            raise KmodError(f"{self.path} has several modules, name one with --module: {names}")
        return name or next(iter(self.modules))

    def file(self, module: str) -> Path:
        """What the build makes of it."""
        return self.path / f"{module}.ko"

    def sources(self, module: str) -> list[Path]:
        """The files that it is built from and that are in this folder, included ones, too."""
        found: dict[Path, None] = {}
        left = [self.path / name for name in self.modules[module]]
        while left:
            path = left.pop(0)
            if path.is_file() and path not in found:
                found[path] = None
                left += [self.path / name for name in _INCLUDE.findall(path.read_text(errors="replace"))]
        return list(found)

    def is_built(self, module: str) -> bool:
        """Whether the file is there, and newer than all it is built from."""
        file = self.file(module)
        if not file.exists():
            return False
        made = file.stat().st_mtime
        kbuild = [path for name in ("Kbuild", "Makefile") if (path := self.path / name).exists()]
        return all(path.stat().st_mtime <= made for path in [*kbuild, *self.sources(module)])


def _kbuild(path: Path) -> str:
    if not path.is_dir():
        raise KmodError(f"{path}: no such folder; rnic kmod new makes one")
    for name in ("Kbuild", "Makefile"):
        if (file := path / name).is_file():
            return file.read_text(errors="replace")
    raise KmodError(f"{path} has no Kbuild, which says what to build; rnic kmod new makes a folder with one")


def _stem(name: str) -> str:
    return name.removesuffix(".o")


def _sources(module: str, words: dict[str, list[str]]) -> tuple[str, ...]:
    parts = words.get(f"{module}-y", []) + words.get(f"{module}-objs", [])
    return tuple(f"{_stem(part)}.c" for part in parts or [module])
