# SPDX-License-Identifier: Apache-2.0
"""The records that two ends of a copy exchange.

A message of the connection carries one or more records, one behind the other. A record is

    u8 kind, u32 length, then `length` bytes: fixed fields, and behind them at most three of any length

Numbers are little-endian. Where several fields of any length follow, the fixed ones end with their lengths,
but for the last one's. Paths are bytes with "/" between their parts. Digests are XXH3 of 128 bits, 16 bytes:
they find damage, and do not protect from an attacker.

    kind         from      fixed fields                                            behind them
    1  Hello     server    u16 version, u8 rights, 32s nonce
    2  Ask       client    u8 op, u8 flags, 32s nonce, 32s proof                   paths, each u16 and path
    3  Go        server    32s proof
    4  Refused   server                                                            text
    5  Total     sender    u64 files, u64 bytes
    6  Folder    sender    u64 id, u32 mode, i64 mtime (ns), u64 size (0)          path
    7  Pack      sender    u64 id, u32 entries, 16s digest, u16, u32               path, table, contents
    8  Would     sender    u64 id, u32 mode, i64 mtime, u64 size                   path
    9  Open      sender    u64 id, u32 mode, i64 mtime, u64 size, u8 asks          path
    10 Data      sender    u64 id, u64 offset, u32 length, u16 slot, 16s digest
    11 End       sender    u64 id, 16s digest
    12 Cancel    sender    u64 id                                                  text
    13 Complaint sender    u16                                                     path, text
    14 Finish    sender    u64 entries
    15 Opened    receiver  u64 id, u8 verdict, u64 offset, 16s digest
    16 Resume    sender    u64 id, u64 offset
    17 Free      receiver  u16 slot
    18 Done      receiver  u64 id, u8 status                                       text
    19 Finished  receiver
    20 Alive     both
    21 Stored    receiver  u64 id, u32 entries                                     (so many from this id on)
    22 Broken    receiver  u64 id

docs/files.md says when each is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum, IntFlag
from struct import Struct
from typing import Any, NamedTuple

from xxhash import xxh3_128

from rnic.files.state import CopyError

__all__ = ["decode", "digest", "encode"]

VERSION = 1
INLINE = 65536
"""A file of at most so many bytes travels in one record."""
PATH_MOST = 4096
MESSAGE_MOST = 3 << 19
PATHS_MOST = MESSAGE_MOST - 1024
NO_PROOF = bytes(32)
NO_DIGEST = bytes(16)


def digest(data: bytes | memoryview | bytearray) -> bytes:
    """16 bytes of XXH3; other threads run meanwhile."""
    return xxh3_128(data).digest()


class Right(IntFlag):
    """What a server says in its Hello."""

    READ = 1
    WRITE = 2
    SECRET = 4
    """The client has to prove that it knows the secret."""


class Op(IntEnum):
    """What a client asks for."""

    PUT = 1
    GET = 2


class Verdict(IntEnum):
    """What a receiver says to an Open that asks."""

    SEND = 0
    HAVE = 1
    """It has the first `offset` bytes, of this digest, from a copy that was interrupted."""
    SKIP = 2


class Status(IntEnum):
    """How a file ended."""

    STORED = 0
    SKIPPED = 1
    FAILED = 2
    LEFT = 3
    """Its directory could not be made, and a Done of that has said why."""


class Hello(NamedTuple):
    """The server's first word."""

    version: int
    rights: int
    nonce: bytes


class Ask(NamedTuple):
    """What the client wants."""

    op: int
    flags: int
    nonce: bytes
    proof: bytes
    paths: bytes


class Go(NamedTuple):
    """The server agrees, and proves that it knows the secret, too."""

    proof: bytes


class Refused(NamedTuple):
    """The server does not agree."""

    text: bytes


class Total(NamedTuple):
    """What there is to copy."""

    files: int
    size: int


class Folder(NamedTuple):
    """A directory; what is in it comes behind."""

    id: int
    mode: int
    mtime: int
    size: int
    path: bytes


class Pack(NamedTuple):
    """Whole files of one directory (packs.py)."""

    id: int
    entries: int
    digest: bytes
    """Of the contents."""
    folder: bytes
    table: bytes
    contents: bytes | memoryview


class Would(NamedTuple):
    """A file that would be copied."""

    id: int
    mode: int
    mtime: int
    size: int
    path: bytes


class Open(NamedTuple):
    """A file whose Data follow, if `asks` after an Opened."""

    id: int
    mode: int
    mtime: int
    size: int
    asks: int
    path: bytes


class Data(NamedTuple):
    """Bytes of an open file lie in a slot of the receiver's memory."""

    id: int
    offset: int
    length: int
    slot: int
    digest: bytes


class End(NamedTuple):
    """All Data of a file were sent; the digest is that of their records."""

    id: int
    digest: bytes


class Cancel(NamedTuple):
    """An open file is not wanted any more."""

    id: int
    text: bytes


class Complaint(NamedTuple):
    """Something cannot be sent."""

    path: bytes
    text: bytes


class Finish(NamedTuple):
    """Nothing follows."""

    entries: int


class Opened(NamedTuple):
    """The answer to an Open that asks."""

    id: int
    verdict: int
    offset: int
    digest: bytes


class Resume(NamedTuple):
    """The answer to a verdict of HAVE: where the Data begin, either there or at 0."""

    id: int
    offset: int


class Free(NamedTuple):
    """A slot may be used again."""

    slot: int


class Done(NamedTuple):
    """How a file ended."""

    id: int
    status: int
    text: bytes


class Finished(NamedTuple):
    """All was stored."""


class Alive(NamedTuple):
    """This end is still at work."""


class Stored(NamedTuple):
    """The good end of small files and folders, so many with numbers from `id` on."""

    id: int
    entries: int


class Broken(NamedTuple):
    """An open file that cannot become whole: its Data are not wanted any more. Its Done will say why."""

    id: int


Entry = Folder | Would | Open
Record = (
    Hello
    | Ask
    | Go
    | Refused
    | Total
    | Entry
    | Pack
    | Data
    | End
    | Cancel
    | Complaint
    | Finish
    | Opened
    | Resume
    | Free
    | Done
    | Finished
    | Alive
    | Stored
    | Broken
)
_KINDS: tuple[tuple[type[Record], str], ...] = (
    (Hello, "HB32s"),
    (Ask, "BB32s32s"),
    (Go, "32s"),
    (Refused, ""),
    (Total, "QQ"),
    (Folder, "QIqQ"),
    (Pack, "QI16sHI"),
    (Would, "QIqQ"),
    (Open, "QIqQB"),
    (Data, "QQIH16s"),
    (End, "Q16s"),
    (Cancel, "Q"),
    (Complaint, "H"),
    (Finish, "Q"),
    (Opened, "QBQ16s"),
    (Resume, "QQ"),
    (Free, "H"),
    (Done, "QB"),
    (Finished, ""),
    (Alive, ""),
    (Stored, "QI"),
    (Broken, "Q"),
)
_HEAD = Struct("<BI")
_TAILS: dict[type[Record], int] = {
    Pack: 3,
    Complaint: 2,
    **dict.fromkeys((Ask, Refused, Folder, Would, Open, Cancel, Done), 1),
}
"""How many fields of any length a record has."""
_FORMS = {
    kind: (number, Struct(_HEAD.format + form), _TAILS.get(kind, 0))
    for number, (kind, form) in enumerate(_KINDS, 1)
}
"""Number, head with fixed fields, and fields of any length."""
_BY_NUMBER = {number: (kind, form, tails) for kind, (number, form, tails) in _FORMS.items()}


def encode(*records: Record) -> bytes:
    """One message."""
    out: list[bytes | memoryview] = []
    for one in records:
        number, form, tails = _FORMS[type(one)]
        fields: tuple[Any, ...] = one
        fixed = form.size - _HEAD.size
        if tails == 0:
            out.append(form.pack(number, fixed, *fields))
        else:
            behind = fields[-tails:]
            lengths = [len(field) for field in behind]
            out.append(form.pack(number, fixed + sum(lengths), *fields[:-tails], *lengths[:-1]))
            out += behind
    return b"".join(out)


def decode(message: bytes) -> Iterator[Record]:
    """The records of a message; CopyError where it is none."""
    at = 0
    while at < len(message):
        if len(message) - at < _HEAD.size:
            raise CopyError("the peer sent a message that ends within a record")
        number, length = _HEAD.unpack_from(message, at)
        end = at + _HEAD.size + length
        if end > len(message):
            left = len(message) - at - _HEAD.size
            raise CopyError(f"the peer sent a record of {length} bytes where {left} are left")
        yield _record(number, message, at, end)
        at = end


def _record(number: int, message: bytes, at: int, end: int) -> Record:
    found = _BY_NUMBER.get(number)
    if found is None:
        raise CopyError(f"the peer sent a record of kind {number}, which there is not")
    kind, form, tails = found
    behind = at + form.size
    if behind > end or (behind < end and not tails):
        raise CopyError(f"the peer sent a {kind.__name__} of {end - at - _HEAD.size} bytes")
    fields = form.unpack_from(message, at)[2:]
    if tails == 0:
        return kind._make(fields)
    fixed = len(fields) + 1 - tails
    middle: list[bytes] = []
    for length in fields[fixed:]:
        middle.append(message[behind : behind + length])
        behind += length
    if behind > end:
        raise CopyError(f"the peer sent a {kind.__name__} whose fields have more bytes than the record")
    last = memoryview(message)[behind:end] if kind is Pack else message[behind:end]
    return kind._make((*fields[:fixed], *middle, last))


_LENGTH = Struct("<H")


def pack_paths(paths: Sequence[bytes]) -> bytes:
    """The paths of an Ask; ValueError for one that is too long, or more than one Ask takes."""
    for one in paths:
        if len(one) > PATH_MOST:
            raise ValueError(f"a path of {len(one)} bytes, there is room for {PATH_MOST}")
    found = b"".join(_LENGTH.pack(len(one)) + one for one in paths)
    if len(found) > PATHS_MOST:
        raise ValueError(
            f"{len(paths)} paths of {len(found)} bytes, {PATHS_MOST} are the most: copy a directory"
        )
    return found


def unpack_paths(data: bytes) -> list[bytes]:
    """From pack_paths(); CopyError where that is impossible."""
    paths, at = [], 0
    while at < len(data):
        if len(data) - at < 2 or (length := _LENGTH.unpack_from(data, at)[0]) > len(data) - at - 2:
            raise CopyError("the peer sent a list of paths that ends within a path")
        paths.append(data[at + 2 : at + 2 + length])
        at += 2 + length
    return paths
