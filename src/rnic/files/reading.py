# SPDX-License-Identifier: Apache-2.0
"""The sender's side of the disk: what there is to send, packed, and chunks of large files.

Files are read, never mapped: a file that somebody shortens meanwhile gives fewer bytes, and no SIGBUS.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from errno import ENXIO
from threading import Event
from typing import NamedTuple

from rnic._disk import Found, disk
from rnic.endpoint.text import printable
from rnic.files import packs, records
from rnic.files.options import CHUNK, Options
from rnic.files.records import Complaint, Folder, Open, Record, Would, digest
from rnic.files.state import Outgoing, Told
from rnic.files.tree import Parts, Tree, is_part

__all__ = ["CHANGED", "Batch", "Large", "Source", "count", "extents", "pack", "prefix", "read_chunk"]

PACK = 1 << 20  # bytes of contents in one message, from which on it is full, at most
_ENTRIES = 1024  # likewise
_ROOM = records.MESSAGE_MOST - 16 * 1024
_HEAD = 64  # at least what a record has beside its fields of bytes
_TRIES = 3  # of a small file that changes while it is read
CHANGED = "the file changed while it was copied"


class Source(NamedTuple):
    """Something to send: where it is, what the receiver is told, and what the user calls it."""

    tree: Tree
    parts: Parts
    name: bytes
    shown: bytes


class Large(NamedTuple):
    """A file that does not fit a record; who gets it closes the descriptor."""

    entry: Open
    fd: int
    before: os.stat_result
    shown: bytes


class Batch(NamedTuple):
    """The records of a message, and what they tell of entries, by their numbers."""

    records: list[Record]
    entries: dict[int, Told]


class _Item(NamedTuple):
    """A record, and likewise."""

    record: Record
    entries: dict[int, Told]


class _Found(NamedTuple):
    tree: Tree
    parts: Parts
    path: bytes
    shown: bytes
    status: os.stat_result | None
    """None: of a file that will be opened, which tells it as well."""


def complaint(shown: bytes, error: OSError | str, what: str = "cannot open") -> Complaint:
    """In the words of cp. What is no path is told by its beginning."""
    shown = shown[: records.PATH_MOST]
    why = error if isinstance(error, str) else error.strerror
    return Complaint(shown, f"{what} '{printable(shown)}': {why}".encode())


def same(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether nobody has written to a file in between."""
    return (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)


def _walk(source: Source, options: Options, sizes: bool = False) -> Iterator[_Found | Complaint]:
    """Each folder before what is in it; `sizes`: with the status of each file."""
    stack = [(source.parts, source.name, source.shown, False)]
    while stack:
        parts, path, shown, plain = stack.pop()
        if plain and not sizes and len(path) <= records.PATH_MOST:
            yield _Found(source.tree, parts, path, shown, None)
            continue
        try:
            status = source.tree.stat(parts)
            if stat.S_ISDIR(status.st_mode):
                if not options.recursive:
                    yield Complaint(
                        shown, f"-r not specified; omitting directory '{printable(shown)}'".encode()
                    )
                    continue
                path_, shown_ = path + b"/", shown + b"/"
                stack += [
                    ((*parts, name), path_ + name, shown_ + name, plain)
                    for name, plain in reversed(source.tree.inside(parts))
                    if not is_part(name)  # somebody is copying it, or was
                ]
            elif not stat.S_ISREG(status.st_mode):
                link = stat.S_ISLNK(status.st_mode)
                why = "symbolic links are not copied" if link else "only files and directories are copied"
                yield complaint(shown, why, "omitting")
                continue
        except OSError as error:
            yield complaint(shown, error, "cannot stat")
            continue
        if len(path) > records.PATH_MOST:
            yield complaint(shown, f"a path of more than {records.PATH_MOST} bytes")
        else:
            yield _Found(source.tree, parts, path, shown, status)


def count(sources: list[Source], options: Options, stop: Event) -> tuple[int, int]:
    """Files and bytes that there are; fewer if it shall stop."""
    files = size = 0
    for source in sources:
        for one in _walk(source, options, sizes=True):
            if stop.is_set():
                break
            status = one.status if isinstance(one, _Found) else None
            if status is not None and stat.S_ISREG(status.st_mode):
                files, size = files + 1, size + status.st_size
        source.tree.rest()
    return files, size


def pack(
    sources: list[Source], options: Options, books: Outgoing, room: Callable[[], int]
) -> Iterator[Batch | Large]:
    """What to send: a message, of about room() bytes, or a large file."""
    batch = Batch([], {})
    size = 0
    for source in sources:
        for one in _contents(source, options, books, room):
            more = 0 if isinstance(one, Large) else _size(one.record)
            if batch.records and (isinstance(one, Large) or size + more > _ROOM):
                yield from _before(batch, one)
                batch, size = Batch([], {}), 0
            if isinstance(one, Large):
                yield one
                continue
            batch.records.append(one.record)
            batch.entries.update(one.entries)
            size += more
            if size >= room() or len(batch.records) + len(batch.entries) >= _ENTRIES:
                yield batch
                batch, size = Batch([], {}), 0
        source.tree.rest()
    if batch.records:
        yield batch


def _before(batch: Batch, one: _Item | Large) -> Iterator[Batch]:
    """What is sent before something else, which is not lost if this ends here."""
    try:
        yield batch
    except GeneratorExit:
        if isinstance(one, Large):
            os.close(one.fd)
        raise


def _size(one: Record) -> int:
    """Bytes of a record, about."""
    return _HEAD + sum(len(field) for field in one if isinstance(field, bytes))


def _contents(
    source: Source, options: Options, books: Outgoing, room: Callable[[], int]
) -> Iterator[_Item | Large]:
    """What to send of a source; plain files of one folder are read together."""
    plain: list[_Found] = []
    for found in _walk(source, options, sizes=options.dry_run):
        if plain and not _joins(found, plain):
            yield from _load_plain(plain, options, books, room)
            plain = []
        if isinstance(found, Complaint):
            yield _Item(found, {})
        elif found.status is None:
            plain.append(found)
        else:
            yield _load(found, options, books)
    yield from _load_plain(plain, options, books, room)


def _joins(found: _Found | Complaint, others: list[_Found]) -> bool:
    return (
        isinstance(found, _Found)
        and found.status is None
        and len(others) < packs.MOST
        and found.parts[:-1] == others[0].parts[:-1]
    )


def _load_plain(
    files: list[_Found], options: Options, books: Outgoing, room: Callable[[], int]
) -> Iterator[_Item | Large]:
    """Files of one folder: those that are read together, and behind them those that want a closer look."""
    while files:
        tree, folder = files[0].tree, files[0].parts[:-1]
        names = [one.parts[-1] for one in files]
        try:
            contents, ends = disk.load(tree.folder(folder), names, records.INLINE, room() + records.INLINE)
        except OSError as error:
            yield from (_Item(complaint(one.shown, error), {}) for one in files)
            return
        good = [end for end in ends if isinstance(end, Found)]
        if good:
            paths = [one.path for one, end in zip(files, ends, strict=False) if isinstance(end, Found)]
            yield _pack(paths, good, contents, books)
        for one, end in zip(files, ends, strict=False):
            if end == disk.SINGLE:
                yield _load(one, options, books)
            elif isinstance(end, int):
                yield _Item(complaint(one.shown, os.strerror(end)), {})
        files = files[len(ends) :]


def _pack(paths: list[bytes], files: list[Found], contents: bytes, books: Outgoing) -> _Item:
    """Files of one folder."""
    folder = paths[0].rpartition(b"/")[0]
    at = len(folder) + bool(folder)
    number = books.new_ids(len(files))
    told = {
        n: Told(path, found.size) for n, (path, found) in enumerate(zip(paths, files, strict=True), number)
    }
    return _Item(packs.pack(number, folder, [path[at:] for path in paths], files, contents), told)


def _load(found: _Found, options: Options, books: Outgoing) -> _Item | Large:
    status = found.status
    if status is not None:
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            number = books.new_id()
            folder = Folder(number, mode, status.st_mtime_ns, 0, found.path)
            return _Item(folder, {number: Told(found.path, 0, folder=True)})
        if options.dry_run:
            number, size = books.new_id(), status.st_size
            would = Would(number, mode, status.st_mtime_ns, size, found.path)
            return _Item(would, {number: Told(found.path, size)})
    try:
        fd, before = found.tree.open(found.parts)
    except OSError as error:
        return _Item(complaint(found.shown, error), {})
    keep = False
    try:
        for _ in range(_TRIES):
            if before.st_size > records.INLINE:
                keep = True
                return _large(found, fd, before, books)
            content = os.pread(fd, before.st_size + 1, 0)
            after = os.fstat(fd)
            if same(before, after) and len(content) == after.st_size:
                is_now = Found(after.st_size, after.st_mode, after.st_mtime_ns)
                return _pack([found.path], [is_now], content, books)
            before = after
        return _Item(complaint(found.shown, CHANGED, "cannot copy"), {})
    except OSError as error:
        return _Item(complaint(found.shown, error, "error reading"), {})
    finally:
        if not keep:
            os.close(fd)


def _large(found: _Found, fd: int, before: os.stat_result, books: Outgoing) -> Large:
    mode = stat.S_IMODE(before.st_mode)
    entry = Open(books.new_id(), mode, before.st_mtime_ns, before.st_size, 0, found.path)
    return Large(entry, fd, before, found.shown)


def extents(fd: int, start: int, size: int, step: Callable[[], int]) -> Iterator[tuple[int, int]]:
    """Offset and length of each chunk that holds data, without holes; step() is the most, a power of 2."""
    at = start
    while at < size:
        try:
            first = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == ENXIO:
                return
            raise
        end = min(os.lseek(fd, first, os.SEEK_HOLE), size)
        at = first
        while at < end:
            most = step()
            length = min(most - at % most, end - at)
            yield at, length
            at += length
        at = max(at, end)


def read_chunk(fd: int, view: memoryview, offset: int) -> bytes | None:
    """Fill a buffer; return its digest, or None where the file has become shorter."""
    done = 0
    while done < len(view):
        got = os.preadv(fd, [view[done:]], offset + done)
        if got == 0:
            return None
        done += got
    return digest(view)


def prefix(fd: int, length: int, stop: Event) -> bytes:
    """The digest of the digests of the first chunks, `length` bytes of them; none if it shall stop."""
    buffer = bytearray(CHUNK)
    out = []
    for offset in range(0, length, CHUNK):
        one = read_chunk(fd, memoryview(buffer), offset)
        if one is None or stop.is_set():
            return b""
        out.append(one)
    return digest(b"".join(out))
