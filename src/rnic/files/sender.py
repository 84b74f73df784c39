# SPDX-License-Identifier: Apache-2.0
"""The sending end: small files packed in messages, large ones in chunks WRITTEN into the receiver's slots.

Reading and hashing run in threads, ahead of what is sent; what was read is sent in its order.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic
from typing import NamedTuple

import rnic
from rnic.endpoint.text import printable
from rnic.files import reading
from rnic.files.options import CHUNK, SLOTS, Options, Report
from rnic.files.reading import CHANGED, Batch, Large, Source
from rnic.files.records import (
    INLINE,
    Broken,
    Cancel,
    Complaint,
    Data,
    Done,
    End,
    Finish,
    Finished,
    Free,
    Opened,
    Record,
    Resume,
    Status,
    Stored,
    Total,
    Verdict,
)
from rnic.files.state import CopyError, Outgoing, Pace, Sum, Told
from rnic.files.talk import Talk, beside
from rnic.files.writing import RESUMABLE, words

__all__ = ["Sender"]

WORKERS = min(4, os.cpu_count() or 1)
BROKEN = "the receiver cannot store it"


class _File:
    """A large file that is on its way."""

    def __init__(self, item: Large) -> None:
        self.item = item
        self.total = Sum()
        self.why: str | None = None
        """Why it cannot be sent as a whole."""


class _Step(NamedTuple):
    """What is to be sent of a file next: a chunk, or its end."""

    file: _File
    chunk: asyncio.Task[Data | str] | None


class _Slots(NamedTuple):
    """Where chunks lie: here, and at the receiver."""

    memory: rnic.MR
    region: asyncio.Task[rnic.Region]


class Sender:
    """Sends sources over one connection."""

    def __init__(self, talk: Talk, sources: list[Source], options: Options, report: Report) -> None:
        self._talk, self._conn = talk, talk.conn
        self._sources, self._options, self.report = sources, options, report
        self._books = Outgoing(SLOTS)
        self._pace, self._flying = Pace(SLOTS * CHUNK), 0  # bytes
        self._slots: _Slots | None = None
        """From the first large file on."""
        self._room = asyncio.Event()
        self._stop = threading.Event()
        self._answer: asyncio.Future[Opened] | None = None
        self._sent: dict[int, float] = {}
        """When messages of small files were, by their first entries."""
        self._why: dict[int, str] = {}  # of the files that this end has cancelled
        self._steps: deque[_Step] = deque()
        self._open: set[_File] = set()
        self._coming: Future[Batch | Large | None] | None = None

    async def run(self) -> None:
        """Send everything, and wait until it is stored; CopyError or EndpointError when that fails."""
        try:
            with ExitStack() as stack:
                self._walker = stack.enter_context(ThreadPoolExecutor(1, "rnic-walk"))
                self._readers = stack.enter_context(ThreadPoolExecutor(WORKERS, "rnic-read"))
                stack.callback(self._stop.set)  # what takes long ends early, if a copy does
                async with self._talk.alive():
                    await beside(self._say(), self._listen())
        finally:
            await self._give_up()

    async def _give_up(self) -> None:
        """End what is left; the threads have ended by now."""
        chunks = [step.chunk for step in self._steps if step.chunk is not None]
        for one in chunks:
            one.cancel()
        if chunks:
            await asyncio.gather(*chunks, return_exceptions=True)
        if self._slots is not None:
            self._slots.region.cancel()
            await asyncio.gather(self._slots.region, return_exceptions=True)
        for file in list(self._open):
            self._close(file)
        coming = self._coming
        last = None if coming is None or coming.cancelled() or coming.exception() else coming.result()
        if isinstance(last, Large):
            os.close(last.fd)

    # ------------------------------------------------------------ what is said

    async def _say(self) -> None:
        loop = asyncio.get_running_loop()
        if self._options.total:
            found = await loop.run_in_executor(
                self._walker, reading.count, self._sources, self._options, self._stop
            )
            self.report.total(*found)
            await self._talk.send(Total(*found))
        items = reading.pack(self._sources, self._options, self._books, self._message)
        self._coming = self._walker.submit(next, items, None)
        while (item := await asyncio.wrap_future(self._coming)) is not None:
            self._coming = None
            if isinstance(item, Large):
                self._open.add(file := _File(item))
                self._coming = self._walker.submit(next, items, None)
                await self._large(file)
            else:
                self._coming = self._walker.submit(next, items, None)
                await self._send_batch(item)
        await self._advance(0)
        self._books.finishing = True
        await self._talk.send(Finish(self._books.entries))

    async def _send_batch(self, batch: Batch) -> None:
        for one in batch.records:
            if isinstance(one, Complaint):
                self.report.failed(one.path, printable(one.text))
        self._books.sent(batch.entries)
        if batch.entries:
            self._sent[next(iter(batch.entries))] = monotonic()
        await self._talk.send(*batch.records)

    async def _large(self, file: _File) -> None:
        """Begin to send a file; its last chunks, and its end, are sent with what comes behind it."""
        item, entry = file.item, file.item.entry
        self._books.sent({entry.id: Told(entry.path, entry.size)})
        start: int | None = 0
        if self._options.no_clobber or entry.size >= RESUMABLE:
            start = await self._ask(item)
        else:
            await self._talk.send(entry)
        if start is None:
            self._close(file)
            return
        self._share()
        pieces = reading.extents(item.fd, start, entry.size, self._step)
        while file.why is None:
            try:
                piece = next(pieces, None)
            except OSError as error:
                file.why = words(error)
                break
            if piece is None:
                break
            await self._advance(SLOTS - 1)
            chunk = asyncio.create_task(self._chunk(item, *piece))
            self._steps.append(_Step(file, chunk))
        self._steps.append(_Step(file, None))

    def _share(self) -> None:
        """Have the slots of both ends, which large files take; the peer makes its own meanwhile."""
        if self._slots is None:
            self._slots = _Slots(self._conn.alloc(SLOTS * CHUNK), asyncio.create_task(self._their_slots()))

    async def _their_slots(self) -> rnic.Region:
        region = await self._talk.next_region()
        if region.length < SLOTS * CHUNK:
            raise CopyError(f"the peer has {region.length} bytes of memory, {SLOTS * CHUNK} are needed")
        return region

    def _message(self) -> int:
        """Bytes of a message of small files."""
        return min(reading.PACK, self._pace.limit)

    def _step(self) -> int:
        """Bytes of the next chunk, at most."""
        return min(CHUNK, self._pace.limit)

    async def _advance(self, most: int) -> None:
        """Send what is next, until so many steps are left."""
        while len(self._steps) > most:
            file, chunk = self._steps[0]
            if chunk is None:
                await self._end(file)
            else:
                await self._send_chunk(file, chunk)
            self._steps.popleft()

    async def _send_chunk(self, file: _File, chunk: asyncio.Task[Data | str]) -> None:
        found = await chunk
        if isinstance(found, str):
            file.why = file.why or found
        elif file.why is None:
            file.total.add(found)
            self._books.use(found.slot, found.length)
            await self._talk.send(found)
        else:
            self._give_back(found.slot)

    async def _end(self, file: _File) -> None:
        entry = file.item.entry
        if file.why is None and not reading.same(file.item.before, os.fstat(file.item.fd)):
            file.why = CHANGED
        self._close(file)
        if file.why is None:
            await self._talk.send(End(entry.id, file.total.digest()))
        else:
            if file.why != BROKEN:
                self._why[entry.id] = file.why
            await self._talk.send(Cancel(entry.id, file.why.encode()))

    def _close(self, file: _File) -> None:
        if file in self._open:
            self._open.discard(file)
            os.close(file.item.fd)

    async def _ask(self, item: Large) -> int | None:
        """Where to begin; None: the receiver does not want the file."""
        entry, loop = item.entry, asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._books.asked.add(entry.id)
        await self._talk.send(entry._replace(asks=1))
        answer = await self._answer
        self._answer = None
        if answer.verdict == Verdict.SKIP:
            return None
        if answer.verdict == Verdict.SEND:
            return 0
        if answer.verdict != Verdict.HAVE or answer.offset > entry.size or answer.offset % CHUNK:
            raise CopyError("the peer has part of a file that there cannot be")
        mine = await loop.run_in_executor(self._readers, reading.prefix, item.fd, answer.offset, self._stop)
        start = answer.offset if mine == answer.digest else 0
        await self._talk.send(Resume(entry.id, start))
        self.report.moved(start)
        return start

    async def _chunk(self, item: Large, offset: int, length: int) -> Data | str:
        """Read a chunk, and WRITE it into a slot; a text: why it cannot be read."""
        while not self._books.free or 0 < self._flying > self._pace.limit - length:
            self._room.clear()
            await self._room.wait()
        assert self._slots is not None  # _large() has seen to that
        memory, region = self._slots
        slot = self._books.free.pop(0)
        self._flying += length
        try:
            with memory.buf[slot * CHUNK : slot * CHUNK + length] as view:
                found = await self._read(item.fd, view, offset)
                if isinstance(found, str):
                    self._give_back(slot)
                    return found
                theirs = await asyncio.shield(region)
                began = monotonic()
                await self._conn.write(view, theirs, slot * CHUNK)
                self._pace.took(monotonic() - began)
        finally:
            self._flying -= length
            self._room.set()
        return Data(item.entry.id, offset, length, slot, found)

    async def _read(self, fd: int, view: memoryview, offset: int) -> bytes | str:
        loop = asyncio.get_running_loop()
        reads = loop.run_in_executor(self._readers, reading.read_chunk, fd, view, offset)
        try:
            return await asyncio.shield(reads) or CHANGED
        except asyncio.CancelledError:
            await asyncio.wait([reads])  # it uses the view
            raise
        except OSError as error:
            return words(error)

    def _give_back(self, slot: int) -> None:
        self._books.free.append(slot)
        self._room.set()

    # ------------------------------------------------------------ what is heard

    async def _listen(self) -> None:
        while True:
            for record in await self._talk.hear():
                if isinstance(record, Finished):
                    self._books.finished()
                    return
                self._hear(record)

    def _hear(self, record: Record) -> None:
        match record:
            case Free(slot):
                self.report.moved(self._books.freed(slot))
                self._room.set()
            case Stored(number, entries):
                if (since := self._sent.pop(number, None)) is not None:
                    self._pace.took(monotonic() - since)
                self._stored(range(number, number + entries))
            case Done():
                self._done(record)
            case Opened():
                self._books.opened(record)
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(record)
            case Broken(number):
                self._broken(number)
            case Complaint(path, text):
                self.report.failed(path, printable(text))
            case _:
                raise CopyError(f"the peer sent a {type(record).__name__}, which is not its to send")

    def _broken(self, number: int) -> None:
        """No more of it is read; the peer knows why, and says so in the end."""
        self._books.check_open(number)
        for file in self._open:
            if file.item.entry.id == number:
                file.why = file.why or BROKEN

    def _done(self, record: Done) -> None:
        if record.status == Status.STORED:
            self._stored([record.id])
            return
        path, size, _ = self._books.done(record.id)
        if record.status == Status.FAILED:
            why = self._why.pop(record.id, None) or printable(record.text)
            self.report.failed(path, f"cannot copy '{printable(path)}': {why}")
        elif record.status == Status.LEFT:
            self._why.pop(record.id, None)
            self.report.left_out(path)
        else:
            self.report.skipped(path)
        if size <= INLINE or self._options.dry_run or record.status == Status.SKIPPED:
            self.report.moved(size)

    def _stored(self, numbers: Iterable[int]) -> None:
        moved = 0
        for number in numbers:
            path, size, folder = self._books.done(number)
            if not folder:
                self.report.copied(path, size)
                moved += size if size <= INLINE or self._options.dry_run else 0
        self.report.moved(moved)
