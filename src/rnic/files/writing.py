# SPDX-License-Identifier: Apache-2.0
"""The receiver's side of the disk: files get a temporary name, and their own when all of them is there."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import stat
import time
from collections.abc import Iterable
from errno import EISDIR
from itertools import groupby
from threading import Event, Lock

from rnic._disk import New, disk
from rnic.files.options import CHUNK, SLOTS
from rnic.files.packs import Small
from rnic.files.reading import prefix
from rnic.files.records import NO_DIGEST, Open, digest
from rnic.files.tree import Parts, Tree, part_name

__all__ = [
    "DAMAGED",
    "OVER_FOLDER",
    "RESUMABLE",
    "Partial",
    "Target",
    "dress_folder",
    "exists",
    "is_taken",
    "open_folder",
    "store",
    "words",
]

RESUMABLE = 16 << 20
"""Of a file of at least so many bytes, what has come before an interruption is kept."""
DAMAGED = "the bytes that came do not have the digest that was sent"
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_STORE = stat.S_IWUSR | stat.S_IXUSR
OVER_FOLDER = "cannot overwrite the directory with a file"
_MODE = 0o777  # neither set-user-ID nor the like comes from a peer


class Target:
    """Where the first part of a path goes: into a folder that exists, or to a new name."""

    def __init__(self, tree: Tree, parts: Parts, names: Iterable[bytes] | None = None) -> None:
        """`names`: what was asked for, and so what the first part may be; None: anything."""
        self.tree, self.parts = tree, parts
        self.inside = tree.is_folder(parts)
        self._names = None if names is None else frozenset(names)
        self._above: tuple[bytes, Parts] | None = None
        """The folder of the last path, and where it is: mostly, the next path is in it, too."""

    def place(self, path: bytes) -> Parts:
        """The parts of what the sender calls `path`; ValueError for one that leads elsewhere."""
        above, _, name = path.rpartition(b"/")
        if above and name not in (b"", b".", b"..") and b"\0" not in name:
            if self._above is None or self._above[0] != above:
                self._above = above, self._place(above)
            return (*self._above[1], name)
        return self._place(path)

    def _place(self, path: bytes) -> Parts:
        first, *rest = path.split(b"/")
        for one in (first, *rest):
            if one in (b"", b"..") or b"\0" in one:
                raise ValueError("the path leads out of the folder, or contains a NUL")
        if b"." in rest:
            raise ValueError("the path contains a '.'")
        if self._names is not None and first not in self._names:
            raise ValueError("nobody has asked for it")
        start = (*self.parts, first) if self.inside and first != b"." else self.parts
        if not start and not rest and first != b".":
            raise ValueError("the path is that of the folder")
        return (*start, *rest)


def words(error: OSError | ValueError) -> str:
    """Why, without the number and the file."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


_ours, _numbers = os.urandom(4).hex().encode(), itertools.count()


def _new_token() -> bytes:
    """One that no other copy uses: this process's, and a number."""
    return b"%s%04x" % (_ours, next(_numbers) & 0xFFFF)


def exists(folder: int, name: bytes) -> bool:
    """Whether something has this name, be it a link to nowhere."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        return True
    except FileNotFoundError:
        return False


def open_folder(tree: Tree, parts: Parts) -> None:
    """Let its owner store in a folder that is there, until dress_folder()."""
    fd = tree.folder(parts)
    status = os.fstat(fd)
    if status.st_uid == os.geteuid() and status.st_mode & _STORE != _STORE:
        os.chmod(b".", stat.S_IMODE(status.st_mode) | _STORE, dir_fd=fd)


def is_taken(tree: Tree, parts: Parts) -> bool:
    """Whether something has a file's name already."""
    return bool(parts) and exists(tree.folder(parts[:-1]), parts[-1])


def dress_folder(tree: Tree, parts: Parts, mode: int, mtime: int) -> None:
    """Give a folder its mode and time."""
    fd = tree.folder(parts)
    os.utime(b".", ns=(time.time_ns(), mtime), dir_fd=fd)
    os.chmod(b".", mode & _MODE, dir_fd=fd)  # behind it "." may be out of reach


def _dress(fd: int, entry: Open) -> None:
    os.fchmod(fd, entry.mode & _MODE)
    os.utime(fd, ns=(time.time_ns(), entry.mtime))


def _rename(folder: int, temporary: bytes, name: bytes, no_clobber: bool) -> bool:
    """Give a file its name; False if the name is taken, and shall not be."""
    if no_clobber:
        try:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary, dir_fd=folder)
    else:
        try:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:
            raise OSError(EISDIR, OVER_FOLDER) from None
    return True


def store(tree: Tree, files: list[tuple[Parts, Small]], no_clobber: bool) -> list[bool | str]:
    """Store whole files. For each True; or False: there is one that shall be left; or why it cannot be."""
    out: list[bool | str] = []
    for folder, some in groupby(files, key=lambda one: one[0][:-1]):
        new = [New(parts[-1], entry.content or b"", entry.mode & _MODE, entry.mtime) for parts, entry in some]
        try:
            ends = disk.store(tree.folder(folder), part_name(new[0].name, _new_token()), new, not no_clobber)
        except OSError as error:
            out += [words(error)] * len(new)
        else:
            out += [True if end == 0 else _why(end) for end in ends]
    return out


def _why(end: int) -> bool | str:
    """In the words of store()."""
    return False if end == disk.TAKEN else OVER_FOLDER if end == EISDIR else os.strerror(end)


def _write(fd: int, data: bytes | memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def _unlink(folder: int, name: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


class Partial:
    """A large file that comes in chunks, from several threads at a time."""

    def __init__(self, tree: Tree, parts: Parts, entry: Open) -> None:
        """Open what an interrupted copy has left of the same file, or a new one."""
        if not parts or tree.is_folder(parts):
            raise OSError(EISDIR, OVER_FOLDER)
        self.entry, self._name = entry, parts[-1]
        self.failed: str | None = None
        """Why it can no more become whole."""
        self._folder = os.dup(tree.folder(parts[:-1]))
        self._fd = -1
        self._due: set[int] = set()  # where chunks begin that are not stored yet
        self._end = 0  # of the last of all
        self._writing = Lock()
        """The kernel lets one write to a file at a time; others would use a processor meanwhile."""
        try:
            self._open()
        except BaseException:
            self._close()
            raise

    def _open(self) -> None:
        same = b"%d %d %s" % (self.entry.size, self.entry.mtime, self._name)
        token = digest(same)[:6].hex().encode()
        self._temporary = self._common = part_name(self._name, token)
        try:
            self._fd = os.open(self._temporary, _NEW, 0o600, dir_fd=self._folder)
            self._lock()
        except FileExistsError:
            if not self._open_left():
                self._temporary = part_name(self._name, _new_token())
                self._fd = os.open(self._temporary, _NEW, 0o600, dir_fd=self._folder)

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:  # another copy is at it
            return False

    def _open_left(self) -> bool:
        """Whether what is there can be used: an own file, which nobody else writes, under this name still."""
        with contextlib.suppress(OSError):
            self._fd = os.open(self._temporary, _OLD, dir_fd=self._folder)
            status = os.fstat(self._fd)
            own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1
            if own and self._lock():
                now = os.stat(self._temporary, dir_fd=self._folder, follow_symlinks=False)
                if (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino):
                    return True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        return False

    def have(self, stop: Event) -> tuple[int, bytes]:
        """How many bytes are here from before, and their digest. Where a receiver was killed, the last chunks
        may have gaps, and do not count.
        """
        status = os.fstat(self._fd)
        gaps = 0 if status.st_mtime_ns == self.entry.mtime else SLOTS
        length = max(0, min(status.st_size, self.entry.size) // CHUNK - gaps) * CHUNK
        return length, prefix(self._fd, length, stop) if length else NO_DIGEST

    def begin(self, offset: int) -> None:
        """Keep so many bytes, and nothing behind them."""
        os.ftruncate(self._fd, offset)
        self._end = offset

    def expect(self, offset: int, length: int) -> None:
        """A chunk has come, which put() is going to store; chunks come in their order."""
        if self.failed is None:  # else nothing is kept, and a peer could send chunks without end
            self._due.add(offset)
        self._end = offset + length

    def put(self, view: memoryview, offset: int, wanted: bytes) -> None:
        """Store a chunk, if it is what was sent. From any thread; what goes wrong is in `failed`."""
        if self.failed is not None:
            return
        try:
            if digest(view) != wanted:
                self.failed = DAMAGED
            else:
                with self._writing:
                    _write(self._fd, view, offset)
                self._due.discard(offset)
        except OSError as error:
            self.failed = error.strerror or str(error)

    def finish(self, no_clobber: bool) -> bool:
        """Give the file its name; False if there is one that shall be left. OSError if it cannot be."""
        try:
            os.ftruncate(self._fd, self.entry.size)
            _dress(self._fd, self.entry)
            done = _rename(self._folder, self._temporary, self._name, no_clobber)
        except BaseException:
            self.drop()
            raise
        if self._temporary != self._common:
            self._clear()
        self._close()
        return done

    def _clear(self) -> None:
        """Remove what another copy of the same file has left, and nobody needs now."""
        os.close(self._fd)
        self._fd, self._temporary = -1, self._common
        if self._open_left():
            _unlink(self._folder, self._temporary)

    def _is_there(self) -> bool:
        """Whether another copy has stored the same file meanwhile."""
        try:
            status = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == (self.entry.size, self.entry.mtime)

    def drop(self, keep: bool = False) -> None:
        """Remove what has come; `keep`: leave it for a later copy, if it is large. No thread uses it now."""
        if self._folder < 0:
            return
        try:
            whole = min(self._due, default=self._end)
            keep = keep and self.failed is None and self.entry.size >= RESUMABLE and whole >= CHUNK
            if not keep or self._temporary != self._common or self._is_there():
                _unlink(self._folder, self._temporary)
            else:
                self._leave(whole)
        finally:
            self._close()

    def _leave(self, whole: int) -> None:
        """Nothing behind a gap; the file's own time says that there is none."""
        os.ftruncate(self._fd, whole)
        os.utime(self._fd, ns=(time.time_ns(), self.entry.mtime))

    def _close(self) -> None:
        for fd in (self._fd, self._folder):
            if fd >= 0:
                os.close(fd)
        self._fd = self._folder = -1
