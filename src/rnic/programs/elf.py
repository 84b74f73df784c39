# SPDX-License-Identifier: Apache-2.0
"""What a program file is: how it is linked, and whether libraries can be put under it."""

from __future__ import annotations

import os
import re
import stat
import struct
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from errno import EACCES
from pathlib import Path
from typing import BinaryIO

from rnic.records import Record

SHELL = Path("/bin/sh")
_MAGIC = b"\x7fELF"
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_STRTAB, _DT_STRSZ = 5, 10
_CLASS_64, _LITTLE = 2, 1
_LIST_SECONDS = 10
_MOST_SCRIPTS = 5  # whose interpreters are scripts: the kernel starts no longer chain
_SANITIZERS = (b"__asan_init\0", b"__hwasan_init\0", b"__lsan_init\0", b"__msan_init\0", b"__tsan_init\0")
_VERBS = re.compile(r"libibverbs(-[0-9a-f]+)?\.so(\.|$)")  # src/preload/load.c; with a hash: of a wheel
_RDMACM = "librdmacm.so.1"
_FOUND = re.compile(r"^\s*(\S+) => (\S+)", re.MULTILINE)  # glibc: "libx.so.1 => not found", too
_LOADED = re.compile(r"^\s*(?:\S+ => )?(/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)
_LOST = re.compile(r"^Error loading shared library (\S+): ", re.MULTILINE)  # musl
_UNFIT = re.compile(r"^\S+: (\S+: version `\S+' not found \(required by \S+\))$", re.MULTILINE)
_WHEELS = "lib/python3*/*-packages/*.libs/libibverbs-*"  # where auditwheel puts what a wheel needs


class Elf(Record):
    """The header of an ELF file, as far as it matters here."""

    bits: int
    machine: int
    """The number of the processor's kind, e_machine."""
    interpreter: str
    """The dynamic loader, "" if there is none: it is static, or a library."""
    sanitized: bool
    """It is compiled with a sanitizer that has an allocator of its own, as of -fsanitize=address."""

    @property
    def libc(self) -> str:
        """The C library that the loader is a part of."""
        return "musl" if "musl" in self.interpreter else "glibc"


class _Part(Record):
    """A segment."""

    kind: int
    at: int  # bytes, in the file
    address: int
    length: int  # bytes, in the file


class Check(Record):
    """What `rnic run --check` says."""

    path: Path
    """The file that was looked at; of a script, its interpreter."""
    libraries: dict[str, str]
    """libibverbs and librdmacm, if the program is linked with them: name and file, "" if it is not found."""
    obstacles: list[str]
    """Why the program cannot run on rnic's devices."""
    others: list[str]
    """Files of another libibverbs, which the program or a Python package brings: rnic's is loaded ahead."""


def read(path: Path) -> Elf | None:
    """Read a file's header; None if it is not an ELF file."""
    with _opened(path) as file:
        head = file.read(64)
        if len(head) < 64 or not head.startswith(_MAGIC):
            return None
        order = "<" if head[5] == _LITTLE else ">"
        is_64 = head[4] == _CLASS_64
        (machine,) = struct.unpack_from(order + "H", head, 18)
        (at,) = struct.unpack_from(order + ("Q" if is_64 else "I"), head, 32 if is_64 else 28)
        size, count = struct.unpack_from(order + "HH", head, 54 if is_64 else 42)
        parts = list(_parts(_bytes(file, at, size * count), size, order, is_64=is_64))
        interpreter = b"".join(_bytes(file, one.at, one.length) for one in parts if one.kind == _PT_INTERP)
        names = _names(file, parts, order + ("QQ" if is_64 else "II"))
    return Elf(
        64 if is_64 else 32,
        machine,
        interpreter.rstrip(b"\0").decode(errors="replace"),
        any(name in names for name in _SANITIZERS),
    )


def _opened(path: Path) -> BinaryIO:
    """A file for reading; opening a FIFO would wait for whoever writes to it."""
    if path.exists() and not path.is_file():
        raise OSError(EACCES, os.strerror(EACCES), str(path))  # what exec(3) says of it
    return path.open("rb")


def _bytes(file: BinaryIO, at: int, length: int) -> bytes:
    """What is there of a part, whatever numbers the file has."""
    if max(at, length) > os.fstat(file.fileno()).st_size:
        return b""
    file.seek(at)
    return file.read(length)


def _parts(rows: bytes, size: int, order: str, *, is_64: bool) -> Iterator[_Part]:
    """The table of segments."""
    form = struct.Struct(order + ("I4xQQ8xQ" if is_64 else "III4xI"))
    for at in range(0, len(rows) - max(size, form.size) + 1, size or 1):
        yield _Part(*form.unpack_from(rows, at))


def _names(file: BinaryIO, parts: list[_Part], form: str) -> bytes:
    """The names of what the dynamic loader binds, each with a NUL behind it."""
    rows = b"".join(_bytes(file, one.at, one.length) for one in parts if one.kind == _PT_DYNAMIC)
    table = dict(struct.iter_unpack(form, rows[: len(rows) - len(rows) % struct.calcsize(form)]))
    address, length = table.get(_DT_STRTAB, 0), table.get(_DT_STRSZ, 0)
    for one in parts:
        if one.kind == _PT_LOAD and one.address <= address < one.address + one.length:
            return _bytes(file, one.at + address - one.address, length)
    return b""


def program_of(path: Path) -> Path:
    """The file that is started: of a script its interpreter, else the file itself."""
    for _ in range(_MOST_SCRIPTS):
        first = _first_line(path)
        words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
        if not words:
            return SHELL if _is_text(first) else path
        path = Path(words[0])
    return path


def is_text(path: Path) -> bool:
    """Whether a file that the kernel does not start is one for the shell, as env(1) and others take it."""
    return _is_text(_first_line(path))


def _first_line(path: Path) -> bytes:
    with _opened(path) as file:
        return file.readline(256)


def _is_text(first: bytes) -> bool:
    return not first.startswith(_MAGIC) and b"\0" not in first


def other_libc(elf: Elf, ours: Elf) -> str:
    """Why libraries that fit the program `ours` do not fit another one, because of its C library; else ""."""
    if not elf.interpreter or elf.libc == ours.libc:
        return ""
    return (
        f"its C library is {elf.libc}, and that of rnic's libraries is {ours.libc}: "
        f"install rnic for a Python whose C library is {elf.libc}"
    )


def check(path: Path, host: Path, environment: dict[str, str], library: Path) -> Check:
    """Look at a program.

    `host` is one that rnic's libraries fit, `environment` what the program gets, and `library` the libibverbs
    that it is to use. Raises OSError if a file cannot be read.
    """
    given, path = path, program_of(path)
    elf, ours = read(path), read(host)
    if elf is None or ours is None:
        return Check(path, {}, ["it is no ELF file"], [])
    obstacles = list(_of_rights(path))
    if (elf.bits, elf.machine) != (ours.bits, ours.machine):
        obstacles.append("it is for another processor than rnic's libraries")
    elif not elf.interpreter:
        obstacles.append("it is linked statically: no library can be put under it")
    elif text := other_libc(elf, ours):
        obstacles.append(text)
    if obstacles:
        return Check(path, {}, obstacles, [])
    return _linked(path, elf.interpreter, environment, library, _wheels(given, path))


def _wheels(*programs: Path) -> list[str]:
    """Files of libibverbs in packages of Python that are installed beside a program, as in a venv."""
    roots = dict.fromkeys(program.absolute().parent.parent for program in programs)
    return sorted(str(file) for root in roots for file in root.glob(_WHEELS))


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


def _linked(
    path: Path, interpreter: str, environment: dict[str, str], library: Path, wheels: list[str]
) -> Check:
    """What the dynamic loader finds for the libraries that matter; the program is not started."""
    without = {name: value for name, value in environment.items() if name != "LD_PRELOAD"}
    said = _listed(path, interpreter, without)  # with it, a library that is loaded ahead has no name there
    found = dict.fromkeys(_LOST.findall(said), "not") | dict(_FOUND.findall(said))  # "not": found nowhere
    libraries = {
        name: "" if where == "not" else where
        for name, where in found.items()
        if name == _RDMACM or _VERBS.match(name)
    }
    said = _listed(path, interpreter, environment)
    ahead = str(library) in _LOADED.findall(said)
    obstacles, others = _UNFIT.findall(said), wheels
    for name, where in libraries.items():
        if name == _RDMACM or (where and library.samefile(where)):
            continue
        if ahead and (where or name == library.name):
            libraries[name] = str(library)
            others = [where, *others] if where else others
        elif where:
            obstacles.append(f"it finds {where} first, and its loader does not load {library} ahead of it")
    return Check(path, libraries, obstacles, others)


def _listed(path: Path, interpreter: str, environment: dict[str, str]) -> str:
    """What the dynamic loader says that it would load; "" if it says nothing."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            [interpreter, "--list", str(path.resolve())],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LIST_SECONDS,
            check=False,
        ).stdout.decode(errors="replace")
    return ""
