# SPDX-License-Identifier: Apache-2.0
"""The receiving end: it verifies what comes, stores it, and says how each file has ended.

Names are made in one thread (naming.py), in the order of the records; several verify and write chunks.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import groupby
from typing import Any

import rnic
from rnic.endpoint.text import printable
from rnic.enums import AccessFlags
from rnic.files import records
from rnic.files.naming import File, Naming, failed, resume
from rnic.files.options import CHUNK, SLOTS, Options, Report
from rnic.files.packs import Small, unpack
from rnic.files.records import (
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
from rnic.files.writing import DAMAGED, Partial, Target

__all__ = ["Receiver"]

MOST_TASKS = 8 * SLOTS
AHEAD = 3
"""Messages that are read before the names of an earlier one are made, at most."""
_AT_A_TIME = 64
_MOST_NAMED = 1024  # of a message: paths of Packs take more memory than their bytes


class Receiver:
    """Receives what a Sender sends, over one connection."""

    def __init__(self, talk: Talk, target: Target, options: Options, report: Report) -> None:
        self._talk, self._conn = talk, talk.conn
        self._options, self.report = options, report
        self._books = Incoming(SLOTS, CHUNK)
        self._stop = threading.Event()
        self._naming = Naming(target, options, self._stop)
        self._files = self._naming.files
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._memory: rnic.MR | None = None
        """The slots: from the first large file on."""
        self._entering: deque[asyncio.Task[None]] = deque()
        """Messages whose names are being made, and that are answered then."""

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
                    if len(named) > _MOST_NAMED:
                        await self._enter(named)
                        named = []
                    continue
                if isinstance(record, (Folder, Would, Open)):
                    self._check(record)
                    named.append(record)
                    continue
                await self._enter(named)
                await self._entered(0)
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
                await self._in_names(resume, self._files[number], offset)
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
        """Begin to store what is whole and to open what is not: a message is read while the names of the last
        ones are made.
        """
        if not entries:
            return
        ends = asyncio.get_running_loop().run_in_executor(self._names, self._naming.enter, entries)
        before = self._entering[-1] if self._entering else None
        self._entering.append(self._begin(self._tell(entries, ends, before)))
        await self._entered(AHEAD)

    async def _entered(self, most: int) -> None:
        """Wait until the names of all messages are made but for the last `most` of them."""
        while len(self._entering) > most:
            await self._entering.popleft()

    async def _tell(
        self,
        entries: list[Entry | Small],
        ends: asyncio.Future[list[Done | File | None]],
        before: asyncio.Task[None] | None,
    ) -> None:
        """Answer, in the order of the entries."""
        found_all = await ends
        if before is not None:
            await before
        out: list[Record] = []
        for good, some in groupby(zip(entries, found_all, strict=True), lambda one: one[1] is None):
            if good:
                stored = [entry for entry, _ in some]
                out.append(Stored(stored[0].id, len(stored)))
                self._count_stored(stored)
                continue
            for entry, found in some:
                if isinstance(found, Done):
                    self._count(entry, found)
                    out.append(found)
                elif found is not None:
                    out += self._answer(found)
        if out:
            await self._talk.send(*out)
        if self._memory is None and any(isinstance(one, Open) for one in entries):
            self._memory = self._conn.alloc(SLOTS * CHUNK)
            await self._conn.share(self._memory.buf, AccessFlags.REMOTE_WRITE)

    def _answer(self, file: File) -> list[Record]:
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
            done = failed(entry.id, file.why)
        self._count(entry, done)
        return [answer, done]

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

    async def _free(self, record: Data, file: File, write: asyncio.Future[None] | None) -> None:
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
        done = await self._in_names(self._naming.end, file, why)
        del self._files[number]
        self._count(file.entry, done)
        await self._talk.send(done)

    # ------------------------------------------------------------ the end

    def _count(self, entry: Entry | Small, done: Done) -> None:
        if done.status == Status.FAILED:
            self.report.failed(entry.path, f"cannot create '{printable(entry.path)}': {printable(done.text)}")
        elif done.status == Status.LEFT:
            self.report.left_out(entry.path)
        elif done.status == Status.SKIPPED:
            self.report.skipped(entry.path)
        else:
            self._count_stored([entry])
            return
        if not isinstance(entry, Open) or done.status == Status.SKIPPED:
            self.report.moved(entry.size)

    def _count_stored(self, entries: Iterable[Entry | Small]) -> None:
        moved = 0
        for one in entries:
            if not isinstance(one, Folder):
                self.report.copied(one.path, one.size)
                moved += 0 if isinstance(one, Open) else one.size
        self.report.moved(moved)

    async def _finish(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        complaints: list[Complaint] = await self._in_names(self._naming.dress_folders)
        for one in complaints:
            self.report.failed(one.path, printable(one.text))
        for at in range(0, len(complaints), _AT_A_TIME):  # a message is not for any number of paths
            await self._talk.send(*complaints[at : at + _AT_A_TIME])
        await self._talk.send(Finished())
        if not self._failed.done():
            self._failed.set_result(None)


def _put(partial: Partial, view: memoryview, record: Data) -> None:
    with view:
        partial.put(view, record.offset, record.digest)
