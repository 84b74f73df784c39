# SPDX-License-Identifier: Apache-2.0
"""What a program file is: how it is linked, and whether libraries can be put under it."""

from __future__ import annotations

import os
import re
import stat
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

from rnic.records import Record

_PT_INTERP = 3
_CLASS_64, _LITTLE = 2, 1
_LIST_SECONDS = 10
_SHOWN = ("libibverbs.so.1", "librdmacm.so.1")


class Elf(Record):
    """The header of an ELF file, as far as it matters here."""

    bits: int
    machine: int
    """The number of the processor's kind, e_machine."""
    interpreter: str
    """The dynamic loader, "" if there is none: it is static, or a library."""


class Check(Record):
    """What `rnic run --check` says."""

    path: Path
    """The file that was looked at; of a script, its interpreter."""
    libraries: dict[str, str]
    """libibverbs and librdmacm, if the program is linked with them: name and file, "" if it is not found."""
    obstacles: list[str]
    """Why the program cannot run on rnic's devices."""


def read(path: Path) -> Elf | None:
    """Read a file's header; None if it is not an ELF file."""
    with path.open("rb") as file:
        head = file.read(64)
        if len(head) < 64 or not head.startswith(b"\x7fELF"):
            return None
        order = "<" if head[5] == _LITTLE else ">"
        is_64 = head[4] == _CLASS_64
        (machine,) = struct.unpack_from(order + "H", head, 18)
        (at,) = struct.unpack_from(order + ("Q" if is_64 else "I"), head, 32 if is_64 else 28)
        size, count = struct.unpack_from(order + "HH", head, 54 if is_64 else 42)
        file.seek(at)
        rows = file.read(size * count)
        found = _interpreter(rows, size, order, is_64=is_64)
        interpreter = ""
        if found is not None:
            file.seek(found[0])
            interpreter = file.read(found[1]).rstrip(b"\0").decode(errors="replace")
    return Elf(64 if is_64 else 32, machine, interpreter)


def _interpreter(rows: bytes, size: int, order: str, *, is_64: bool) -> tuple[int, int] | None:
    """Where the loader's name stands, and how long it is."""
    for at in range(0, len(rows) - size + 1, size or 1):
        (kind,) = struct.unpack_from(order + "I", rows, at)
        if kind == _PT_INTERP and is_64:
            place, _, _, length = struct.unpack_from(order + "QQQQ", rows, at + 8)
            return place, length
        if kind == _PT_INTERP:
            place, _, _, length = struct.unpack_from(order + "IIII", rows, at + 4)
            return place, length
    return None


def check(path: Path, library: Path, environment: dict[str, str]) -> Check:
    """Look at a program; `library` is one of those that are to be loaded into it.

    Raises OSError if a file cannot be read.
    """
    with path.open("rb") as file:
        first = file.readline(256)
    if first.startswith(b"#!") and (words := first[2:].decode(errors="replace").split()):
        return check(Path(words[0]), library, environment)
    elf, ours = read(path), read(library)
    if elf is None or ours is None:
        return Check(path, {}, ["it is no ELF file"])
    obstacles = list(_of_rights(path))
    if (elf.bits, elf.machine) != (ours.bits, ours.machine):
        obstacles.append("it is for another processor than rnic's libraries")
    elif not elf.interpreter:
        obstacles.append("it is linked statically: no library can be put under it")
    elif "musl" in elf.interpreter:
        obstacles.append(f"its C library is another one than that of rnic's libraries: {elf.interpreter}")
    return Check(path, {} if obstacles else _linked(path, elf.interpreter, environment), obstacles)


def _of_rights(path: Path) -> list[str]:
    """A program with more rights than its user ignores LD_PRELOAD and LD_LIBRARY_PATH (ld.so(8))."""
    about = path.stat()
    found = []
    if about.st_mode & stat.S_ISUID and about.st_uid != os.getuid():
        found.append("it is setuid, and so takes no libraries from its environment")
    if about.st_mode & stat.S_ISGID and about.st_gid != os.getgid():
        found.append("it is setgid, and so takes no libraries from its environment")
    with suppress(OSError):
        if os.getuid() and os.getxattr(path, "security.capability"):
            found.append("it has file capabilities, and so takes no libraries from its environment")
    return found


def _linked(path: Path, interpreter: str, environment: dict[str, str]) -> dict[str, str]:
    """What the dynamic loader finds for the libraries that matter; the program is not started."""
    words = [interpreter, "--list", str(path.resolve())]
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(words, env=environment, capture_output=True, timeout=_LIST_SECONDS, check=False)
        lines = re.findall(
            r"^\s*(\S+) => (not found|\S+)", said.stdout.decode(errors="replace"), re.MULTILINE
        )
        return {name: "" if where == "not found" else where for name, where in lines if name in _SHOWN}
    return {}
