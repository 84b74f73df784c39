# SPDX-License-Identifier: Apache-2.0
"""The receiver's thread that makes names: whole files, folders, and large files at their begin and end.

It is one thread, so names are made in the order of the records.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from errno import EISDIR, EPERM
from itertools import groupby
from threading import Event
from typing import cast

from rnic.files.options import LEFT, Options
from rnic.files.packs import Small
from rnic.files.records import (
    NO_DIGEST,
    Complaint,
    Done,
    Entry,
    Folder,
    Open,
    Opened,
    Status,
    Verdict,
    Would,
)
from rnic.files.tree import Parts
from rnic.files.writing import (
    DAMAGED,
    OVER_FOLDER,
    Partial,
    Target,
    dress_folder,
    exists,
    is_taken,
    open_folder,
    store,
    words,
)

__all__ = ["File", "Naming", "failed", "resume"]

_MOST_LOST = 10_000  # folders; what lies below more of them is told one by one


class File:
    """A large file that comes in: what is there of it, or why nothing will be."""

    def __init__(self, entry: Open) -> None:
        self.entry = entry
        self.partial: Partial | None = None
        self.why: str | None = None
        self.writes: set[asyncio.Future[None]] = set()
        self.broken = False
        """The sender was told that it cannot become whole."""
        self.answer: Opened | None = None
        """What an Open is answered that asks."""

    def drop(self, keep: bool = False) -> None:
        """Give back what is there."""
        if self.partial is not None:
            self.partial.drop(keep)


class Naming:
    """What is made below a target, by one thread."""

    def __init__(self, target: Target, options: Options, stop: Event) -> None:
        """`stop`: what takes long ends early."""
        self._target, self._options, self._stop = target, options, stop
        self.files: dict[int, File] = {}
        """The large ones that are open, by their numbers."""
        self._folders: dict[Parts, tuple[Folder, bool]] = {}
        """Those to be dressed, each once however often it comes; whether this copy has made it."""
        self._lost: set[bytes] = set()  # the paths of those that could not be made
        self._would_make: Parts = ()
        """In a dry run the last folder that would be made, with all that is in it: that comes next."""

    def enter(self, entries: list[Entry | Small]) -> list[Done | File | None]:
        """Store what is whole, and open what is not; how each has ended, None: well."""
        out: list[Done | File | None] = []
        for _, some in groupby(entries, type):
            first, *rest = some
            if isinstance(first, Small):
                out += self._enter_whole([first, *cast("list[Small]", rest)])
            elif isinstance(first, Open):
                out += [self._open(one) for one in (first, *cast("list[Open]", rest))]
            else:
                out += [self._enter_one(one) for one in (first, *cast("list[Folder | Would]", rest))]
        return out

    def _enter_whole(self, entries: list[Small]) -> list[Done | None]:
        """How each file has ended; None: well."""
        placed = [self._placed(one) for one in entries]
        files = [(where, one) for where, one in zip(placed, entries, strict=True) if isinstance(where, tuple)]
        ends = iter(store(self._target.tree, files, self._options.no_clobber))
        return [
            _ended(one, where if isinstance(where, str) else next(ends))
            for where, one in zip(placed, entries, strict=True)
        ]

    def _placed(self, entry: Small) -> Parts | str:
        """Where it goes, or why it cannot."""
        try:
            self._check_above(entry)
            parts = self._target.place(entry.path)
        except ValueError as error:
            return words(error)
        return DAMAGED if entry.content is None else parts or OVER_FOLDER

    def _enter_one(self, entry: Folder | Would) -> Done | None:
        """How the entry has ended; None: well."""
        try:
            self._check_above(entry)
            stored = self._put_in_place(entry)
            return None if stored else Done(entry.id, Status.SKIPPED, b"")
        except (OSError, ValueError) as error:
            if isinstance(entry, Folder) and len(self._lost) < _MOST_LOST:
                self._lost.add(entry.path)
            return failed(entry.id, words(error))

    def _check_above(self, entry: Entry | Small) -> None:
        """ValueError for what lies in a folder that could not be made."""
        if self._lost and entry.path.rpartition(b"/")[0] in self._lost:
            raise ValueError(LEFT)

    def _put_in_place(self, entry: Folder | Would) -> bool:
        """False: there is one, which was left."""
        parts, tree, options = self._target.place(entry.path), self._target.tree, self._options
        if options.dry_run:
            return self._try(entry, parts)
        if isinstance(entry, Folder):
            made = tree.make_folder(parts)
            if made or (parts != self._target.parts and not options.no_clobber):
                if not made:
                    open_folder(tree, parts)
                _, before = self._folders.get(parts, (entry, False))
                self._folders[parts] = entry, made or before
        return True

    def _try(self, entry: Folder | Would, parts: Parts) -> bool:
        """What a copy would say, as far as names tell."""
        tree = self._target.tree
        in_new = bool(self._would_make) and parts[: len(self._would_make)] == self._would_make
        there = not in_new and (not parts or exists(tree.folder(parts[:-1]), parts[-1]))
        if isinstance(entry, Would):
            if there and not self._options.no_clobber and tree.is_folder(parts):
                raise OSError(EISDIR, OVER_FOLDER)
            return not (there and self._options.no_clobber)
        if there:
            tree.folder(parts)
        elif not in_new:
            self._would_make = parts
        return True

    def _open(self, entry: Open) -> File:
        file = self.files[entry.id] = File(entry)
        verdict, have, known = Verdict.SEND, 0, NO_DIGEST
        try:
            self._check_above(entry)
            parts, tree = self._target.place(entry.path), self._target.tree
            if entry.asks and self._options.no_clobber and is_taken(tree, parts):
                verdict = Verdict.SKIP
            else:
                file.partial = Partial(tree, parts, entry)
                have, known = file.partial.have(self._stop) if entry.asks else (0, NO_DIGEST)
                if have:
                    verdict = Verdict.HAVE
                else:
                    file.partial.begin(0)
        except (OSError, ValueError) as error:
            file.why, verdict = words(error), Verdict.SKIP
        if entry.asks:
            if file.why:  # the sender need not send it
                with suppress(OSError):
                    file.drop()
            file.answer = Opened(entry.id, verdict, have, known)
        return file

    def end(self, file: File, why: str | None) -> Done:
        """All that will come of a large file has come; `why`: it cannot become whole."""
        number, partial = file.entry.id, file.partial
        why = file.why or (partial.failed if partial else None) or why
        try:
            if why is None and partial is not None:
                stored = partial.finish(self._options.no_clobber)
                return Done(number, Status.STORED if stored else Status.SKIPPED, b"")
            file.drop()
        except OSError as error:
            why = words(error)
        return failed(number, why or "")

    def dress_folders(self) -> list[Complaint]:
        """Modes and times of folders, when nothing is made in them any more: the innermost first."""
        out = []
        for parts, (entry, made) in reversed(self._folders.items()):
            try:
                dress_folder(self._target.tree, parts, entry.mode, entry.mtime)
            except OSError as error:
                if not made and error.errno == EPERM:
                    continue  # somebody else's, which was there
                out.append(
                    Complaint(entry.path, f"cannot set mode and time of a directory: {words(error)}".encode())
                )
        return out


def resume(file: File, offset: int) -> None:
    """The sender goes on at this offset."""
    assert file.partial is not None
    try:
        file.partial.begin(offset)
    except OSError as error:
        file.partial.failed = words(error)


def failed(number: int, why: str) -> Done:
    """A file has."""
    return Done(number, Status.LEFT if why == LEFT else Status.FAILED, why.encode(errors="replace"))


def _ended(entry: Entry | Small, end: bool | str) -> Done | None:
    """True: well; False: it was left; a text: why it was not stored."""
    if isinstance(end, str):
        return failed(entry.id, end)
    return None if end else Done(entry.id, Status.SKIPPED, b"")
