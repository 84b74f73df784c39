# SPDX-License-Identifier: Apache-2.0
"""Where machines have their files: a folder each while they run, and what they boot from.

    $XDG_RUNTIME_DIR/rnic/vm/NAME    lock (held by the keeper), socket, console, network (its name and MTU)
    $XDG_CACHE_HOME/rnic/vm          the kernel, the first file system, siw

Without XDG_RUNTIME_DIR it is /run/user/UID or /tmp/rnic-UID; without XDG_CACHE_HOME, ~/.cache.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


def cache() -> Path:
    """Of what machines boot from."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "rnic/vm"


def useless(error: OSError, variable: str) -> str:
    """In words, why a folder is of no use, and what chooses another one."""
    if not error.strerror:  # it is in words
        return str(error)
    return f"{error.filename}: {error.strerror}; {variable} chooses another folder"


def machines() -> Path:
    """The folder of all machines of this user."""
    return _runtime() / "rnic/vm"


def _runtime() -> Path:
    if told := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(told)
    user = _user()
    usual = Path(f"/run/user/{user}")
    return usual if usual.is_dir() else _own_folder(Path(f"/tmp/rnic-{user}"))


def _user() -> int:
    """Whose processes these are: also of those that are root in a namespace of this user's."""
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= os.geteuid() < inside + count:
            return outside + os.geteuid() - inside
    return os.geteuid()


def _own_folder(path: Path) -> Path:
    """In a folder that all can write to: nobody else may have made it."""
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not this user's alone: set XDG_RUNTIME_DIR")
    return path


class Folder:
    """The folder of a machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path / "lock"
        self.socket = path / "socket"
        self.console = path / "console"
        self.network = path / "network"

    @classmethod
    def of(cls, name: str) -> Folder:
        """That of the machine with a name; ValueError, if it is none."""
        if not NAMES.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a machine: letters, digits, and . _ - behind the first")
        return cls(machines() / name)

    @property
    def name(self) -> str:
        """The machine's."""
        return self.path.name

    def claim(self) -> int | None:
        """The lock, for as long as its descriptor is open; None if a keeper has it."""
        while True:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # it has just been removed
                fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.fstat(fd).st_ino == self.lock.stat().st_ino:
                        return fd
                except BlockingIOError:
                    os.close(fd)
                    return None
                except FileNotFoundError:
                    pass
                os.close(fd)

    @contextmanager
    def address(self) -> Iterator[str]:
        """The socket's, for bind() and connect(), which take no long paths."""
        fd = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{fd}/{self.socket.name}"
        finally:
            os.close(fd)

    def remove(self) -> None:
        """With all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)


def folders() -> list[Folder]:
    """Those of machines that run; what a keeper that was killed has left goes."""
    found = []
    for path in _in(machines()):
        folder = Folder(path)
        lock = folder.claim()
        if lock is None:
            found.append(folder)
        else:
            folder.remove()
            os.close(lock)
    return found


def _in(top: Path) -> list[Path]:
    try:
        return sorted(top.iterdir()) if top.is_dir() else []
    except OSError as error:
        raise type(error)(useless(error, "XDG_RUNTIME_DIR")) from None
