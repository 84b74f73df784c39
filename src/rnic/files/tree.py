# SPDX-License-Identifier: Apache-2.0
"""A folder, and what lies below it: no path leads out of it, and no symbolic link is followed.

Each part of a path is opened by itself, relative to the one before, with O_NOFOLLOW. So it makes no
difference what others do to the folder meanwhile.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from errno import EINVAL, ELOOP, ENOENT, ENOTDIR

from rnic.endpoint.text import printable

__all__ = ["Parts", "Tree", "split"]

Parts = tuple[bytes, ...]
_MOST = 64  # descriptors of folders that are kept
_WHY = {
    ENOENT: "there is no directory '{}'",
    ENOTDIR: "'{}' is not a directory",
    ELOOP: "'{}' is a symbolic link, which is not followed",
}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def split(path: bytes) -> Parts:
    """The parts of a path below a folder; a "/" in front makes no difference. ValueError for ".." and NUL."""
    parts = tuple(one for one in path.split(b"/") if one not in (b"", b"."))
    if b".." in parts or b"\0" in path:
        raise ValueError("the path leads out of the folder, or contains a NUL")
    return parts


class Tree:
    """An open folder. One thread at a time may use it."""

    def __init__(self, path: str | bytes) -> None:
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folders: OrderedDict[Parts, int] = OrderedDict()

    def close(self) -> None:
        """Close all descriptors."""
        while self._folders:
            os.close(self._folders.popitem()[1])
        if self._root >= 0:
            root, self._root = self._root, -1
            os.close(root)

    def folder(self, parts: Parts) -> int:
        """A descriptor of a folder, which stays the tree's, until the next call. OSError when there is
        none.
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
        fd = os.open(parts[-1], _FILE, dir_fd=self.folder(parts[:-1]))
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
