# SPDX-License-Identifier: Apache-2.0
"""The memory of a store: buckets, each with a head of 64 bytes and eight blocks.

    a bucket   at  0  its lock (guest.py)
               at  8  seven entries of 8 bytes, 0 if there is none
               at 64  eight blocks

    an entry   bits  0..12  a hash of the key, not the whole of it
               bits 13..15  the block
               bits 16..23  one less than the bytes to read, in 256ths of a block, rounded up
               bits 24..63  the version: what the lock's count was, and one more; never 0

    a block    at  0  the version                                   8 bytes
               at  8  CRC32 of the version and of all from byte 12  4 bytes
               at 12  length of the key                             2 bytes
               at 14  zero                                          2 bytes
               at 16  length of the value                           4 bytes
               at 20  the key, and the value

At most seven blocks are in use, so a writer, who holds the bucket's lock, writes into one that is not, and
then WRITEs the entry, of 8 bytes. So a reader needs no lock. A writer that dies has changed nothing or
everything. A block that is written again while it is read has another version, and a wrong checksum.

A key may be in two buckets, which its hash (BLAKE2b) gives. A new one goes into the bucket that has fewer;
its writer holds both locks, so nobody puts the same key into the other one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from rnic.patterns.onesided.guest import COUNT
from rnic.patterns.onesided.serving import Memory

if TYPE_CHECKING:
    from rnic._nic.nic import MR

__all__ = ["StoreMemory"]

HEAD = 64
ENTRIES = 7
BLOCKS = 8
LONGEST_KEY = 64
USUAL = 4  # entries of a bucket when the store has as many as it was made for
BLOCK_HEAD = struct.Struct("<QIHHI")
_VERSION = struct.Struct("<Q")
_SUMMED = 12
_HASH, _PARTS = 1 << 13, 256
VERSIONS = 1 << 40
LARGEST_VALUE = 1 << 24


class Geometry(NamedTuple):
    """How large a store's memory is, and where things are in it."""

    buckets: int
    block: int
    value_size: int

    @classmethod
    def of(cls, slots: int, value_size: int) -> Geometry:
        """For so many entries, and values of at most so many bytes."""
        block = -(-(BLOCK_HEAD.size + LONGEST_KEY + value_size) // 64) * 64
        return cls(max(2, -(-slots // USUAL)), block, value_size)

    @property
    def bucket(self) -> int:
        """Bytes of a bucket."""
        return HEAD + BLOCKS * self.block

    @property
    def length(self) -> int:
        """Bytes of all."""
        return self.buckets * self.bucket

    def place_of(self, bucket: int, block: int) -> int:
        """Where a block is."""
        return bucket * self.bucket + HEAD + block * self.block

    def part(self, length: int) -> int:
        """What an entry says of a block of which so many bytes are in use."""
        return -(-length * _PARTS // self.block) - 1

    def to_read(self, part: int) -> int:
        """Bytes to read of such a block."""
        return -(-(part + 1) * self.block // _PARTS)


class Key(NamedTuple):
    """Where a key can be."""

    key: bytes
    hash: int
    buckets: tuple[int, int]

    @classmethod
    def of(cls, key: bytes, geometry: Geometry) -> Key:
        """ValueError if no key is so short or long, TypeError for what is no bytes."""
        if not isinstance(key, bytes):
            cure = ": give key.encode()" if isinstance(key, str) else ""
            raise TypeError(f"a key is bytes, not {type(key).__name__}{cure}")
        if not 1 <= len(key) <= LONGEST_KEY:
            raise ValueError(f"a key of {len(key)} bytes: it has 1 to {LONGEST_KEY}")
        known = int.from_bytes(blake2b(key, digest_size=16).digest(), "little")
        known, small = divmod(known, _HASH)
        known, first = divmod(known, geometry.buckets)
        second = (first + 1 + known % (geometry.buckets - 1)) % geometry.buckets
        return cls(key, small, (first, second))


class Slot(NamedTuple):
    """An entry of a bucket, and its place: 1 to 7."""

    place: int
    version: int
    part: int
    block: int
    hash: int

    @classmethod
    def parse(cls, place: int, word: int) -> Slot:
        """From its 8 bytes: no number in it can be out of bounds."""
        return cls(place, word >> 24, word >> 16 & _PARTS - 1, word >> 13 & BLOCKS - 1, word & _HASH - 1)

    def pack(self) -> int:
        """As a number of 8 bytes."""
        return self.version << 24 | self.part << 16 | self.block << 13 | self.hash


class Bucket(NamedTuple):
    """The head of a bucket, as it was read."""

    number: int
    lock: int
    slots: tuple[Slot, ...]

    @classmethod
    def parse(cls, number: int, head: memoryview) -> Bucket:
        """From its 64 bytes."""
        lock, *words = struct.unpack("<8Q", head)
        return cls(number, lock, tuple(Slot.parse(at, word) for at, word in enumerate(words, 1) if word))

    @property
    def next_version(self) -> int:
        """Of the entry that its lock's next holder writes."""
        return (self.lock >> COUNT) % (VERSIONS - 1) + 1

    def free_place(self) -> int:
        """A place for an entry; 0: there is none."""
        used = {slot.place for slot in self.slots}
        return next((at for at in range(1, ENTRIES + 1) if at not in used), 0)

    def free_block(self) -> int:
        """A block that no entry names."""
        used = {slot.block for slot in self.slots}
        return next(at for at in range(BLOCKS) if at not in used)


def pack_block(into: memoryview, version: int, key: bytes, value: bytes | memoryview) -> int:
    """Write a block; the bytes that it takes."""
    middle = BLOCK_HEAD.size + len(key)
    end = middle + len(value)
    BLOCK_HEAD.pack_into(into, 0, version, 0, len(key), 0, len(value))
    into[BLOCK_HEAD.size : middle] = key
    into[middle:end] = value
    struct.pack_into("<I", into, 8, crc32(into[_SUMMED:end], crc32(into[:8])))
    return end


def parse_block(block: memoryview, version: int) -> tuple[bytes, bytes] | None:
    """Key and value of a block of this version; None: it has another, or is being written, or is damaged."""
    found, checksum, key, _, value = BLOCK_HEAD.unpack_from(block)
    end = BLOCK_HEAD.size + key + value
    if found != version or key > LONGEST_KEY or end > len(block):
        return None
    if crc32(block[_SUMMED:end], crc32(block[:8])) != checksum:
        return None
    middle = BLOCK_HEAD.size + key
    return bytes(block[BLOCK_HEAD.size : middle]), bytes(block[middle:end])


class StoreMemory(Memory):
    """The server's side of a store.

    alloc: where the memory comes from: alloc() of a listener at one address, or QueuePairPort.memory. slots:
    how many entries it is for. It takes more, until one finds both its buckets full. value_size: the longest
    value, in bytes. An entry's place costs about twice the longest value, and 200 bytes.
    """

    kind = 1

    def __init__(self, alloc: Callable[[int], MR], *, slots: int = 1024, value_size: int = 256) -> None:
        if not 1 <= slots < 1 << 31:
            raise ValueError(f"slots is {slots}: give 1 to 2**31 - 1")
        if not 0 <= value_size <= LARGEST_VALUE:
            raise ValueError(f"value_size is {value_size}: give 0 to {LARGEST_VALUE}")
        self.geometry = Geometry.of(slots, value_size)
        super().__init__(alloc, self.geometry.length, self.geometry[:3])
        for at in self._locks():
            self._words[at : at + HEAD // 8] = memoryview(bytes(HEAD)).cast("Q")

    def _locks(self) -> Iterable[int]:
        return range(0, self.geometry.length // 8, self.geometry.bucket // 8)
