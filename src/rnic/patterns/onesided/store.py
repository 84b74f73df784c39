# SPDX-License-Identifier: Apache-2.0
"""The clients of a store. They look up by READs: of a bucket's head, and of a block; table.py has the layout.

    get      READ head, READ block          and READ the other head, if the key is not in the first
    put      as get; COMPARE_SWAP on the bucket's lock, WRITE block and WRITE entry, FETCH_ADD on the lock
    delete   as put, without a block

The COMPARE_SWAP succeeds only if nobody has held the lock since the head was read. So what the client knows
of the bucket is right as long as it holds the lock, and a put with the expected version is a
compare-and-swap.

Each READ is checked: an entry's numbers cannot be out of bounds, a block's lengths and checksum are compared.
A block that does not fit its entry was written again meanwhile, and the client reads again. If the entry has
not changed by then, no client of this module has written it: HostileMemoryError. A client trusts no other one
with more than that: whoever may write can overwrite or delete everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from rnic.endpoint.buffers import flat
from rnic.patterns.onesided.guest import (
    TIMEOUT,
    WORD,
    Guest,
    HostileMemoryError,
    InTasks,
    InThreads,
    Patience,
    owner_of,
)
from rnic.patterns.onesided.table import (
    BLOCK_HEAD,
    HEAD,
    LARGEST_VALUE,
    USUAL,
    Bucket,
    Geometry,
    Key,
    Slot,
    pack_block,
    parse_block,
)
from rnic.patterns.ports import Piece, Steps, Write
from rnic.records import Record
from rnic.times import after

if TYPE_CHECKING:
    from rnic.endpoint.buffers import AnyBuffer
    from rnic.patterns.onesided.invitation import Invitation

__all__ = ["AsyncStore", "ConflictError", "Entry", "FullError", "Store", "StoreStatistics"]

_WORD_AT, _BLOCK_AT = 0, HEAD  # of own memory: what is written; behind them, what is read
_AGAIN = 3  # heads with the same entry, whose block does not fit it
_SIDES = 2


class ConflictError(RuntimeError):
    """The key has not the expected version; `version` is what it has, 0 if there is no such key."""

    def __init__(self, version: int) -> None:
        super().__init__(f"the key has version {version}" if version else "there is no such key")
        self.version = version


class FullError(RuntimeError):
    """Both buckets in which the key could be are full: serve more slots, or delete."""


class Entry(Record):
    """A value, and the version of its key: a number that no other put of that key has got."""

    value: bytes
    version: int


class StoreStatistics(Record):
    """What a client has done."""

    reads: int
    """READs."""
    torn: int
    """Blocks that were written again while they were read."""
    conflicts: int
    """Tries to take a lock that another client had, or had had meanwhile."""


class _Found(NamedTuple):
    """Where a key is, or else the two buckets where it is not."""

    buckets: tuple[Bucket, ...]
    side: int = 0
    slot: Slot | None = None
    value: bytes = b""

    @property
    def version(self) -> int:
        """For the program: the two buckets of a key count alone."""
        return 0 if self.slot is None else self.slot.version * _SIDES + self.side


class StoreSteps(Guest):
    """The calls, as steps for any port."""

    kind = 1

    def _measure(self, told: Invitation) -> int:
        self._geometry = found = Geometry(*told.sizes)
        if found.value_size > LARGEST_VALUE or found != Geometry.of(found.buckets * USUAL, found.value_size):
            raise ValueError(f"a store of sizes that cannot be: {found}")
        if found.length > told.length:
            raise ValueError(f"a store of {found.length} bytes in memory of {told.length}")
        self.value_size = found.value_size
        """The longest value, in bytes."""
        self._head_at = _BLOCK_AT + found.block
        self._read_at = self._head_at + HEAD
        self._reads = self._torn = self._conflicts = 0
        return self._read_at + found.block

    def statistics(self) -> StoreStatistics:
        """What this client has done so far."""
        return StoreStatistics(self._reads, self._torn, self._conflicts)

    # ------------------------------------------------------------ looking up

    def _head(self, bucket: int, until: float | None) -> Steps[Bucket]:
        self._reads += 1
        yield from self._fetch(self._head_at, HEAD, bucket * self._geometry.bucket, until)
        return Bucket.parse(bucket, self._buf[self._head_at : self._head_at + HEAD])

    def _block(self, bucket: int, slot: Slot, until: float | None) -> Steps[tuple[bytes, bytes] | None]:
        self._reads += 1
        length = self._geometry.to_read(slot.part)
        if length < BLOCK_HEAD.size:
            return None
        yield from self._fetch(self._read_at, length, self._geometry.place_of(bucket, slot.block), until)
        found = parse_block(self._buf[self._read_at : self._read_at + length], slot.version)
        return None if found is not None and len(found[1]) > self.value_size else found

    def _contents(
        self, number: int, wanted: Callable[[Slot], bool], until: float | None
    ) -> Steps[tuple[Bucket, list[tuple[Slot, bytes, bytes]]]]:
        """A bucket, and those of its entries that are wanted: all of one moment's head."""
        patience, last, again = Patience(until), None, 0
        while True:
            bucket = yield from self._head(number, until)
            found = []
            for slot in filter(wanted, bucket.slots):
                content = yield from self._block(number, slot, until)
                if content is None:
                    break
                found.append((slot, *content))
            else:
                return bucket, found
            again, last = (again + 1, slot) if slot == last else (1, slot)
            if again >= _AGAIN:
                raise HostileMemoryError(f"bucket {number} has an entry whose block is damaged: {slot}")
            self._torn += 1
            yield from patience.pause("the entry was written again each time that it was read")

    def _find(self, where: Key, until: float | None) -> Steps[_Found]:
        seen: list[Bucket] = []
        for side, number in enumerate(where.buckets):
            bucket, contents = yield from self._contents(number, lambda slot: slot.hash == where.hash, until)
            for slot, key, value in contents:
                if key == where.key:
                    return _Found((bucket,), side, slot, value)
            seen.append(bucket)
        return _Found(tuple(seen))

    def _get(self, key: bytes, until: float | None) -> Steps[Entry | None]:
        found = yield from self._find(Key.of(key, self._geometry), until)
        return None if found.slot is None else Entry(found.value, found.version)

    def _keys(self, until: float | None) -> Steps[list[bytes]]:
        keys = []
        for number in range(self._geometry.buckets):
            _, contents = yield from self._contents(number, bool, until)
            keys += [key for _, key, _ in contents]
        return keys

    # ------------------------------------------------------------ changing

    def _hold(self, buckets: tuple[Bucket, ...], until: float | None) -> Steps[bool]:
        """Take the locks of all these buckets, as they were read, or of none: so nobody waits in a circle."""
        for at, bucket in enumerate(buckets):  # in doubt until they are released, whatever ends this call
            free = not owner_of(bucket.lock)
            if not free or not (yield from self._try_lock(self._lock_of(bucket), bucket.lock, until)):
                yield from self._let_go(buckets[:at], until)
                return False
        return True

    def _let_go(self, buckets: tuple[Bucket, ...], until: float | None) -> Steps[None]:
        for bucket in buckets:
            yield from self._unlock(self._lock_of(bucket), until)

    def _lock_of(self, bucket: Bucket) -> int:
        return bucket.number * self._geometry.bucket

    def _change(
        self, key: bytes, value: memoryview | None, version: int | None, until: float | None
    ) -> Steps[int]:
        """Put a value, or delete (None); the new version, or 0 where nothing was to be deleted."""
        where, patience = Key.of(key, self._geometry), Patience(until)
        yield from self._settle(_WORD_AT, until)
        while True:
            found = yield from self._find(where, until)
            if version is not None and found.version != version:
                raise ConflictError(found.version)
            if value is None and found.slot is None:
                return 0
            if (
                value is not None
                and found.slot is None
                and not any(one.free_place() for one in found.buckets)
            ):
                raise FullError(f"no room for the key {key!r}: both its buckets are full")
            if (yield from self._hold(found.buckets, until)):
                break
            self._conflicts += 1
            owner = next((owner_of(one.lock) for one in found.buckets if owner_of(one.lock)), 0)
            yield from patience.pause(f"client {owner} is writing" if owner else "other clients were faster")
        new = yield from self._store(where, value, found, until)
        yield from self._let_go(found.buckets, until)
        return new

    def _store(self, where: Key, value: memoryview | None, found: _Found, until: float | None) -> Steps[int]:
        """Write the block and the entry into a bucket that is locked."""
        bucket = min(found.buckets, key=lambda one: len(one.slots))
        side = where.buckets.index(bucket.number)
        place = bucket.free_place() if found.slot is None else found.slot.place
        pieces = [Piece(_WORD_AT, 8, self._lock_of(bucket) + 8 * place)]
        word, version = 0, bucket.next_version
        if value is not None:
            block = bucket.free_block()
            length = pack_block(self._buf[_BLOCK_AT : self._head_at], version, where.key, value)
            word = Slot(place, version, self._geometry.part(length), block, where.hash).pack()
            pieces.insert(0, Piece(_BLOCK_AT, length, self._geometry.place_of(bucket.number, block)))
        WORD.pack_into(self._buf, _WORD_AT, word)
        yield Write(self._mr, self._remote, pieces, until)
        return version * _SIDES + side

    def _put(self, key: bytes, value: AnyBuffer, version: int | None, until: float | None) -> Steps[int]:
        data = flat(value, "put()")
        if len(data) > self.value_size:
            raise ValueError(f"a value of {len(data)} bytes: the store takes {self.value_size} at most")
        return (yield from self._change(key, data, version, until))

    def _update(
        self, key: bytes, change: Callable[[bytes | None], AnyBuffer], until: float | None
    ) -> Steps[int]:
        patience = Patience(until)
        while True:
            entry = yield from self._get(key, until)
            new = change(None if entry is None else entry.value)
            try:
                return (yield from self._put(key, new, 0 if entry is None else entry.version, until))
            except ConflictError:
                self._conflicts += 1
                yield from patience.pause("other clients were faster")


class Store(StoreSteps, InThreads):
    """A client of a store, whose calls wait. Store.over(conn) makes it.

    All calls take a `timeout` in seconds, None: for ever. They raise TimeoutError, which says who holds the
    lock; HostileMemoryError; ValueError for a key or value that is too long; and what the connection raises.
    After a TimeoutError of a put() or delete(), it may have been done, or not.
    """

    def get(self, key: bytes, timeout: float | None = TIMEOUT) -> bytes | None:
        """The value of a key; None: there is no such key."""
        entry = self.entry(key, timeout)
        return None if entry is None else entry.value

    def entry(self, key: bytes, timeout: float | None = TIMEOUT) -> Entry | None:
        """The value of a key with its version; None: there is no such key."""
        until = after(timeout)
        return self._run(self._get(key, until), until)

    def put(
        self, key: bytes, value: AnyBuffer, *, version: int | None = None, timeout: float | None = TIMEOUT
    ) -> int:
        """Set a value; when it returns, every client gets it. Returns its version.

        version: only if the key has this version now, 0: if there is no such key; else ConflictError. Raises
        FullError.
        """
        until = after(timeout)
        return self._run(self._put(key, value, version, until), until)

    def delete(self, key: bytes, *, version: int | None = None, timeout: float | None = TIMEOUT) -> bool:
        """Delete a key; whether there was one. version: as of put()."""
        until = after(timeout)
        return bool(self._run(self._change(key, None, version, until), until))

    def update(
        self, key: bytes, change: Callable[[bytes | None], AnyBuffer], timeout: float | None = TIMEOUT
    ) -> int:
        """Set the value that `change` makes of the present one (None: there is none), and no other meanwhile.

        `change` may be called more than once. Returns the version.
        """
        until = after(timeout)
        return self._run(self._update(key, change, until), until)

    def keys(self, timeout: float | None = TIMEOUT) -> list[bytes]:
        """All keys, in no order; those that are put or deleted meanwhile may be there, or not."""
        until = after(timeout)
        return self._run(self._keys(until), until)


class AsyncStore(StoreSteps, InTasks):
    """A client of a store for asyncio; as Store. `await AsyncStore.over(conn)` makes it."""

    async def get(self, key: bytes, timeout: float | None = TIMEOUT) -> bytes | None:
        """As Store.get()."""
        entry = await self.entry(key, timeout)
        return None if entry is None else entry.value

    async def entry(self, key: bytes, timeout: float | None = TIMEOUT) -> Entry | None:
        """As Store.entry()."""
        until = after(timeout)
        return await self._run(self._get(key, until), until)

    async def put(
        self, key: bytes, value: AnyBuffer, *, version: int | None = None, timeout: float | None = TIMEOUT
    ) -> int:
        """As Store.put()."""
        until = after(timeout)
        return await self._run(self._put(key, value, version, until), until)

    async def delete(
        self, key: bytes, *, version: int | None = None, timeout: float | None = TIMEOUT
    ) -> bool:
        """As Store.delete()."""
        until = after(timeout)
        return bool(await self._run(self._change(key, None, version, until), until))

    async def update(
        self, key: bytes, change: Callable[[bytes | None], AnyBuffer], timeout: float | None = TIMEOUT
    ) -> int:
        """As Store.update()."""
        until = after(timeout)
        return await self._run(self._update(key, change, until), until)

    async def keys(self, timeout: float | None = TIMEOUT) -> list[bytes]:
        """As Store.keys()."""
        until = after(timeout)
        return await self._run(self._keys(until), until)
