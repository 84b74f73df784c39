# SPDX-License-Identifier: Apache-2.0
"""A folder, and what lies below it: no path leads out of it, and no symbolic link is followed.

Each part of a path is opened by itself, relative to the one before, with O_NOFOLLOW. So it makes no
difference what others do to the folder meanwhile.
"""

from __future__ import annotations

import os
import re
import stat
from collections import OrderedDict
from errno import EINVAL, ELOOP, ENOENT, ENOTDIR
from pathlib import Path

from rnic.endpoint.text import printable

__all__ = ["Named", "Parts", "Tree", "is_part", "part_name", "split"]

Parts = tuple[bytes, ...]
_MOST = 16  # descriptors of folders that are kept: a server has as many trees as clients
_WHY = {
    ENOENT: "there is no directory '{}'",
    ENOTDIR: "'{}' is not a directory",
    ELOOP: "'{}' is a symbolic link, which is not followed",
}
_ROOT = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC  # to pass a folder takes no right to list it
_FOLDER = _ROOT | os.O_NOFOLLOW
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_PART = re.compile(rb"\..*\.[0-9a-f]{12}\.rnic-part", re.DOTALL)


def part_name(name: bytes, token: bytes) -> bytes:
    """What a file is called until all of it is there; `token`: 12 hexadecimal digits."""
    return b"." + name[:200] + b"." + token + b".rnic-part"


def is_part(name: bytes) -> bool:
    """Whether part_name() makes such names."""
    return _PART.fullmatch(name) is not None


def split(path: bytes) -> Parts:
    """The parts of a path below a folder; a "/" in front makes no difference. ValueError for ".." and NUL."""
    parts = tuple(one for one in path.split(b"/") if one not in (b"", b"."))
    if b".." in parts or b"\0" in path:
        raise ValueError("the path leads out of the folder, or contains a NUL")
    return parts


class Tree:
    """An open folder. One thread at a time may use it."""

    def __init__(self, path: str | bytes) -> None:
        self._path = path
        self._folders: OrderedDict[Parts, int] = OrderedDict()
        self._root = -1
        self._begin()

    def _begin(self) -> None:
        self._root = os.open(self._path, _ROOT)

    def close(self) -> None:
        """Close all descriptors."""
        while self._folders:
            os.close(self._folders.popitem()[1])
        if self._root >= 0:
            root, self._root = self._root, -1
            os.close(root)

    def folder(self, parts: Parts) -> int:
        """A descriptor of a folder for what is in it, not for reading it; it stays the tree's, until the next
        call. OSError when there is none.
        """
        if not parts:
            return self._root
        if (found := self._folders.get(parts)) is not None:
            self._folders.move_to_end(parts)
            return found
        known = next((n for n in range(len(parts) - 1, 0, -1) if parts[:n] in self._folders), 0)
        fd = self._folders[parts[:known]] if known else self._root
        for number in range(known, len(parts)):
            fd = self._keep(parts[: number + 1], self._enter(parts[number], fd))
        return fd

    def _enter(self, name: bytes, parent: int) -> int:
        try:
            return os.open(name, _FOLDER, dir_fd=parent)
        except OSError as error:
            if (why := _WHY.get(error.errno or 0)) is None:
                raise
            if _is_link(name, parent):
                why = "'{}' is a symbolic link, which is not followed"
            raise OSError(error.errno, why.format(printable(name))) from None

    def _keep(self, parts: Parts, fd: int) -> int:
        self._folders[parts] = fd
        while len(self._folders) > _MOST:
            os.close(self._folders.popitem(last=False)[1])
        return fd

    def inside(self, parts: Parts) -> list[tuple[bytes, bool]]:
        """The names in a folder, in order; and whether each is plainly a regular file."""
        fd = os.open(b".", _LIST, dir_fd=self.folder(parts))
        try:
            with os.scandir(fd) as found:
                return sorted((os.fsencode(one.name), one.is_file(follow_symlinks=False)) for one in found)
        finally:
            os.close(fd)

    def make_folder(self, parts: Parts) -> bool:
        """Make a folder for its owner alone; False if it is there already. OSError if something else is."""
        if not parts:
            return False
        try:
            os.mkdir(parts[-1], 0o700, dir_fd=self.folder(parts[:-1]))
            return True
        except FileExistsError:
            self.folder(parts)
            return False

    def stat(self, parts: Parts) -> os.stat_result:
        """What is there; of a link, the link itself."""
        if not parts:
            return os.fstat(self._root)
        return os.stat(parts[-1], dir_fd=self.folder(parts[:-1]), follow_symlinks=False)

    def is_folder(self, parts: Parts) -> bool:
        """Whether a folder is there."""
        try:
            return stat.S_ISDIR(self.stat(parts).st_mode)
        except OSError:
            return False

    def open(self, parts: Parts) -> tuple[int, os.stat_result]:
        """A descriptor for reading a regular file, which the caller closes, and what fstat() says of it."""
        if not parts:
            raise OSError(EINVAL, "a directory")
        return _regular(os.open(parts[-1], _FILE, dir_fd=self.folder(parts[:-1])))

    def rest(self) -> None:
        """It is not used for a while."""


class Named(Tree):
    """What a user has named, a file or a folder, by any links; and what lies below it, as in a Tree.

    It has descriptors between its first use and rest() alone: a user may name thousands.
    """

    def _begin(self) -> None:
        """Not before it is used."""

    def folder(self, parts: Parts) -> int:
        """As Tree.folder()."""
        if self._root < 0:
            super()._begin()
        return super().folder(parts)

    def stat(self, parts: Parts) -> os.stat_result:
        """What is there: a link that was named is followed."""
        return super().stat(parts) if parts else Path(os.fsdecode(self._path)).stat()

    def open(self, parts: Parts) -> tuple[int, os.stat_result]:
        """As Tree.open(): a link that was named is followed."""
        return super().open(parts) if parts else _regular(os.open(self._path, _FILE & ~os.O_NOFOLLOW))

    def rest(self) -> None:
        """Give all descriptors back; they come again with its use."""
        self.close()


def _regular(fd: int) -> tuple[int, os.stat_result]:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise OSError(EINVAL, "not a regular file")
    return fd, status


def _is_link(name: bytes, parent: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return False
