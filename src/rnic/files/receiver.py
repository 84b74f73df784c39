# SPDX-License-Identifier: Apache-2.0
"""The receiving end: it verifies what comes, stores it, and says how each file has ended.

Names are made in one thread, in the order of the records; several verify and write chunks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from errno import EISDIR, EPERM
from itertools import groupby
from typing import Any, cast

import rnic
from rnic.endpoint.text import printable
from rnic.enums import AccessFlags
from rnic.files import records
from rnic.files.options import CHUNK, LEFT, SLOTS, Options, Report
from rnic.files.packs import Small, unpack
from rnic.files.records import (
    NO_DIGEST,
    Broken,
    Cancel,
    Complaint,
    Data,
    Done,
    End,
    Entry,
    Finish,
    Finished,
    Folder,
    Free,
    Open,
    Opened,
    Pack,
    Record,
    Resume,
    Status,
    Stored,
    Total,
    Verdict,
    Would,
)
from rnic.files.sender import WORKERS
from rnic.files.state import CopyError, Incoming
from rnic.files.talk import Talk, beside
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

__all__ = ["Receiver"]

MOST_TASKS = 8 * SLOTS
_AT_A_TIME = 64
_MOST_LOST = 10_000  # folders; what lies below more of them is told one by one


class _File:
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


class Receiver:
    """Receives what a Sender sends, over one connection."""

    def __init__(self, talk: Talk, target: Target, options: Options, report: Report) -> None:
        self._talk, self._conn = talk, talk.conn
        self._target, self._options, self.report = target, options, report
        self._books = Incoming(SLOTS, CHUNK)
        self._stop = threading.Event()
        self._files: dict[int, _File] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._folders: dict[Parts, tuple[Folder, bool]] = {}
        """Those to be dressed, each once however often it comes; whether this copy has made it."""
        self._lost: set[bytes] = set()  # the paths of those that could not be made
        self._would_make: set[Parts] = set()  # and in a dry run: would make
        self._memory: rnic.MR | None = None
        """The slots: from the first large file on."""
        self._entering: asyncio.Task[None] | None = None
        """The last entries whose names are being made."""

    async def run(self) -> None:
        """Receive everything; CopyError or EndpointError when the sender fails."""
        try:
            with ExitStack() as stack:
                self._names = stack.enter_context(ThreadPoolExecutor(1, "rnic-names"))
                self._writers = stack.enter_context(ThreadPoolExecutor(WORKERS, "rnic-write"))
                stack.callback(self._stop.set)  # what takes long ends early, if a copy does
                async with self._talk.alive():
                    await beside(self._listen(), self._watch())
        finally:
            for task in self._tasks:
                task.cancel()
            for file in self._files.values():  # no thread writes to them any more
                file.drop(keep=True)

    async def _watch(self) -> None:
        """Raise what a task has raised."""
        await self._failed

    def _begin(self, what: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _in_names(self, what: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._names, what, *args)

    # ------------------------------------------------------------ what is heard

    async def _listen(self) -> None:
        while True:
            named: list[Entry | Small] = []
            while len(self._tasks) > MOST_TASKS:  # the peer does not take what they say
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for record in await self._talk.hear():
                if isinstance(record, Pack):
                    named += self._unpack(record)
                    continue
                if isinstance(record, (Folder, Would, Open)):
                    self._check(record)
                    named.append(record)
                    continue
                await self._enter(named)
                await self._entered()
                named = []
                if isinstance(record, Finish):
                    self._books.finish(record.entries)
                    await self._finish()
                    return
                await self._hear(record)
            await self._enter(named)

    async def _hear(self, record: Record) -> None:
        match record:
            case Data():
                self._data(record)
            case End(number, wanted):
                total = self._books.end(number)
                self._begin(self._end(number, None if wanted == total.digest() else DAMAGED))
            case Cancel(number, text):
                self._books.end(number)
                self._begin(self._end(number, printable(text)))
            case Resume(number, offset):
                self._books.resume(number, offset)
                await self._in_names(self._resume, self._files[number], offset)
                self.report.moved(offset)
            case Complaint(path, text):
                self.report.failed(path, printable(text))
            case Total(files, size):
                self.report.total(files, size)
            case _:
                raise CopyError(f"the peer sent a {type(record).__name__}, which is not its to send")

    def _unpack(self, record: Pack) -> list[Small]:
        """The files of a Pack, which may be sent."""
        self._books.entry(record.id, record.entries)
        files = unpack(record)
        for one in files:
            if one.size > records.INLINE:
                raise CopyError(f"the peer sent a file of {one.size} bytes in a Pack")
        self._check_entries(files)
        if self._options.dry_run:
            raise CopyError("the peer sent contents in a dry run")
        if not self._options.recursive and any(b"/" in one.path for one in files):
            raise CopyError("the peer sent a directory, which was not asked for")
        return files

    def _check(self, record: Entry) -> None:
        self._books.entry(record.id)
        self._check_entries([record])
        if self._options.dry_run != isinstance(record, Would) and not isinstance(record, Folder):
            raise CopyError("the peer sent contents in a dry run, or none in a copy")
        if not self._options.recursive and (isinstance(record, Folder) or b"/" in record.path):
            raise CopyError("the peer sent a directory, which was not asked for")
        if isinstance(record, Open):
            self._books.begin(record)

    def _check_entries(self, entries: Sequence[Entry | Small]) -> None:
        for one in entries:
            if len(one.path) > records.PATH_MOST:
                raise CopyError(f"the peer sent a path of {len(one.path)} bytes")
            if not -(1 << 62) < one.mtime < 1 << 62 or one.size >= 1 << 62:
                raise CopyError("the peer sent a time or size that no file has")

    # ------------------------------------------------------------ names

    async def _enter(self, entries: list[Entry | Small]) -> None:
        """Begin to store what is whole and to open what is not. What was begun before is done afterwards, so
        that a message is read while the names of the last one are made, and no more wait.
        """
        if not entries:
            return
        if self._memory is None and any(isinstance(one, Open) for one in entries):
            self._memory = self._conn.alloc(SLOTS * CHUNK)
            await self._conn.share(self._memory.buf, AccessFlags.REMOTE_WRITE)
        ends = asyncio.get_running_loop().run_in_executor(self._names, self._enter_all, entries)
        before, self._entering = self._entering, self._begin(self._tell(entries, ends, self._entering))
        if before is not None:
            await before

    async def _entered(self) -> None:
        """All that was begun is done."""
        if self._entering is not None:
            await self._entering
            self._entering = None

    async def _tell(
        self,
        entries: list[Entry | Small],
        ends: asyncio.Future[list[Done | _File | None]],
        before: asyncio.Task[None] | None,
    ) -> None:
        """Answer, in the order of the entries."""
        found_all = await ends
        if before is not None:
            await before
        out: list[Record] = []
        stored = 0  # in a row, of which one record tells
        for entry, found in zip(entries, found_all, strict=True):
            if found is None:
                self._count_stored(entry)
                stored += 1
                continue
            if stored:
                out.append(Stored(entry.id - stored, stored))
                stored = 0
            if isinstance(found, Done):
                self._count(entry, found)
                out.append(found)
            else:
                out += self._answer(found)
        if stored:
            out.append(Stored(entries[-1].id + 1 - stored, stored))
        if out:
            await self._talk.send(*out)

    def _answer(self, file: _File) -> list[Record]:
        """What is said to an Open: nothing, if it has not asked."""
        entry, answer = file.entry, file.answer
        if answer is None:
            return []
        if answer.verdict == Verdict.HAVE:
            self._books.asked[entry.id] = answer.offset
        if answer.verdict != Verdict.SKIP:
            return [answer]
        self._books.end(entry.id)
        del self._files[entry.id]
        done = Done(entry.id, Status.SKIPPED, b"")
        if file.why:
            done = _failed(entry.id, file.why)
        self._count(entry, done)
        return [answer, done]

    def _enter_all(self, entries: list[Entry | Small]) -> list[Done | _File | None]:
        out: list[Done | _File | None] = []
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
            return _failed(entry.id, words(error))

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
        there = parts[:-1] not in self._would_make and (
            not parts or exists(tree.folder(parts[:-1]), parts[-1])
        )
        if isinstance(entry, Would):
            if there and not self._options.no_clobber and tree.is_folder(parts):
                raise OSError(EISDIR, OVER_FOLDER)
            return not (there and self._options.no_clobber)
        if there:
            tree.folder(parts)
        else:
            self._would_make.add(parts)
        return True

    def _open(self, entry: Open) -> _File:
        file = self._files[entry.id] = _File(entry)
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

    def _resume(self, file: _File, offset: int) -> None:
        assert file.partial is not None
        try:
            file.partial.begin(offset)
        except OSError as error:
            file.partial.failed = words(error)

    # ------------------------------------------------------------ chunks

    def _data(self, record: Data) -> None:
        self._books.data(record)
        file = self._files[record.id]
        if file.partial is None:
            self._begin(self._free(record, file, None))
            return
        file.partial.expect(record.offset, record.length)
        assert self._memory is not None  # it is open
        view = self._memory.buf[record.slot * CHUNK : record.slot * CHUNK + record.length]
        loop = asyncio.get_running_loop()
        write = loop.run_in_executor(self._writers, _put, file.partial, view, record)
        file.writes.add(write)
        self._begin(self._free(record, file, write))

    async def _free(self, record: Data, file: _File, write: asyncio.Future[None] | None) -> None:
        if write is not None:
            await asyncio.shield(write)
            file.writes.discard(write)
        self._books.freed(record.slot)
        self.report.moved(record.length)
        out: list[Record] = [Free(record.slot)]
        lost = file.partial is None or file.partial.failed is not None
        if lost and not file.broken and record.id in self._files:  # its Done is the last word
            file.broken = True
            out.append(Broken(record.id))
        await self._talk.send(*out)

    async def _end(self, number: int, why: str | None) -> None:
        """A file ends; `why`: it cannot become whole."""
        file = self._files[number]
        for write in list(file.writes):
            await asyncio.shield(write)
        done = await self._in_names(self._close, file, why)
        del self._files[number]
        self._count(file.entry, done)
        await self._talk.send(done)

    def _close(self, file: _File, why: str | None) -> Done:
        number, partial = file.entry.id, file.partial
        why = file.why or (partial.failed if partial else None) or why
        try:
            if why is None and partial is not None:
                stored = partial.finish(self._options.no_clobber)
                return Done(number, Status.STORED if stored else Status.SKIPPED, b"")
            file.drop()
        except OSError as error:
            why = words(error)
        return _failed(number, why or "")

    # ------------------------------------------------------------ the end

    def _count(self, entry: Entry | Small, done: Done) -> None:
        if done.status == Status.FAILED:
            self.report.failed(entry.path, f"cannot create '{printable(entry.path)}': {printable(done.text)}")
        elif done.status == Status.LEFT:
            self.report.left_out(entry.path)
        elif done.status == Status.SKIPPED:
            self.report.skipped(entry.path)
        else:
            self._count_stored(entry)
            return
        if not isinstance(entry, Open) or done.status == Status.SKIPPED:
            self.report.moved(entry.size)

    def _count_stored(self, entry: Entry | Small) -> None:
        if not isinstance(entry, Folder):
            self.report.copied(entry.path, entry.size)
            if not isinstance(entry, Open):
                self.report.moved(entry.size)

    async def _finish(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        complaints: list[Complaint] = await self._in_names(self._dress_folders)
        for one in complaints:
            self.report.failed(one.path, printable(one.text))
        for at in range(0, len(complaints), _AT_A_TIME):  # a message is not for any number of paths
            await self._talk.send(*complaints[at : at + _AT_A_TIME])
        await self._talk.send(Finished())
        if not self._failed.done():
            self._failed.set_result(None)

    def _dress_folders(self) -> list[Complaint]:
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


def _failed(number: int, why: str) -> Done:
    return Done(number, Status.LEFT if why == LEFT else Status.FAILED, why.encode(errors="replace"))


def _ended(entry: Entry | Small, end: bool | str) -> Done | None:
    """True: well; False: it was left; a text: why it was not stored."""
    if isinstance(end, str):
        return _failed(entry.id, end)
    return None if end else Done(entry.id, Status.SKIPPED, b"")


def _put(partial: Partial, view: memoryview, record: Data) -> None:
    with view:
        partial.put(view, record.offset, record.digest)
