# SPDX-License-Identifier: Apache-2.0
"""A barrier and all-reduce for N members, in the server's memory:

    at  0  BROKEN   0, or the number of a member that has left, which the server writes
    at  8  ARRIVED  how many members have come to a barrier, ever
    at 64  N words: what each member gives: its bytes in the upper half, CRC32 of their type in the lower half
           N times the room, rounded up to 64: the members' contributions
           the same once more: the result

A barrier is a FETCH_ADD on ARRIVED, and READs of both words until ARRIVED is the next multiple of N.

An all-reduce: each member WRITEs its contribution; barrier; each READs its Nth of all contributions, reduces
them in the order of the members, and WRITEs its Nth of the result; barrier; each READs the result. So every
member moves three times the bytes, whatever N is, and all get the same bits. The second barrier of one is
behind all READs of contributions, the first of the next one behind all READs of the result: nothing is
overwritten early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from zlib import crc32

from rnic.endpoint.buffers import flat
from rnic.patterns.onesided.guest import TIMEOUT, WORD, Guest, InTasks, InThreads, Patience
from rnic.patterns.onesided.serving import Memory, NoPlaceError
from rnic.patterns.ports import FetchAdd, Piece, Steps, Write
from rnic.times import after

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rnic._nic.nic import MR
    from rnic.endpoint.buffers import AnyBuffer
    from rnic.patterns.onesided.invitation import Invitation

__all__ = ["AsyncGroup", "BrokenGroupError", "Group", "GroupMemory"]

BROKEN, ARRIVED, GIVEN = 0, 8, 64
_MEMBERS, _ROOM = 1 << 12, 1 << 28
_ITEM = 64  # the most bytes of an item

Operation = Callable[[Any, Any], Any]


class BrokenGroupError(ConnectionError):
    """A member has left, or a call of this member has failed on its way: the members are out of step for
    good.

    When all have left, the server's group is as new.
    """


def _up(length: int) -> int:
    return -(-length // 64) * 64


class GroupMemory(Memory):
    """The server's side of a group. alloc: as StoreMemory's. members: N. room: the most bytes of a
    contribution.
    """

    kind = 3

    def __init__(self, alloc: Callable[[int], MR], members: int, *, room: int = 0) -> None:
        if not 1 <= members <= _MEMBERS:
            raise ValueError(f"{members} members: give 1 to {_MEMBERS}")
        if not 0 <= room < _ROOM:
            raise ValueError(f"a room of {room} bytes: give 0 to {_ROOM - 1}")
        self.members = members
        super().__init__(alloc, GIVEN + _up(8 * members) + (members + 1) * _up(room), (members, room, 0))
        self._words[0] = self._words[1] = 0

    def _free(self) -> int:
        if self._words[BROKEN // 8]:
            raise NoPlaceError("no place: a member has left, and the others must leave, too")
        number = next((one for one in range(1, self.members + 1) if one not in self._numbers), 0)
        if not number:
            raise NoPlaceError(f"no place: the group has its {self.members} members")
        return number

    def _locks(self) -> Iterable[int]:
        return ()

    def _take_back(self, number: int) -> int:
        if self._numbers == {number}:
            self._words[0] = self._words[1] = 0
        elif not self._words[0]:
            self._words[0] = number
        return 0


class GroupSteps(Guest):
    """The calls, as steps for any port."""

    kind = 3

    def _measure(self, told: Invitation) -> int:
        self.members, self.room, _ = told.sizes
        given = _up(8 * self.members)
        self._given_at, self._result_at = GIVEN + given, GIVEN + given + self.members * _up(self.room)
        if not self.number <= self.members <= _MEMBERS:
            raise ValueError(f"member {told.number} of {self.members}: {_MEMBERS} are the most")
        if self._result_at + _up(self.room) > told.length:
            raise ValueError(f"{self.members} members with {self.room} bytes each in {told.length} bytes")
        self.rank = self.number - 1
        """This member's number, from 0 on."""
        self._why = ""
        self._own, self._parts = GIVEN + given, GIVEN + given + _up(self.room)
        return self._parts + _up(self.room) + self.members * _ITEM

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """Whatever ends a call early ends the group for this member."""
        if self._why:
            raise BrokenGroupError(self._why)
        self._why = "an earlier call of this member has failed on its way: leave, and join anew"
        yield
        self._why = ""

    def _meet(self, until: float | None) -> Steps[None]:
        n, patience = self.members, Patience(until)
        old = yield FetchAdd(self._remote, ARRIVED, 1, until)
        target = (old // n + 1) * n
        while True:
            yield from self._fetch(0, 16, 0, until)
            broken, arrived = self._word(BROKEN), self._word(ARRIVED)
            if arrived >= target:
                return
            if broken:
                raise BrokenGroupError(f"member {broken - 1} has left")
            yield from patience.pause(f"{target - arrived} of {n} members have not come")

    def _barrier(self, until: float | None) -> Steps[None]:
        with self._in_step():
            yield from self._meet(until)

    def _all_reduce(
        self, data: memoryview, item: int, kind: bytes, reduce: Operation, until: float | None
    ) -> Steps[bytes]:
        if len(data) > self.room:
            raise ValueError(f"{len(data)} bytes: the group has room for {self.room} of each member")
        if not 1 <= item <= _ITEM or len(data) % item:
            raise ValueError(
                f"items of {item} bytes in {len(data)} bytes: give 1 to {_ITEM}, and whole items"
            )
        mine = len(data) << 32 | crc32(kind)
        with self._in_step():
            yield from self._give(data, mine, until)
            yield from self._meet(until)
            fits = yield from self._all_give(mine, until)
            if fits:
                yield from self._reduce_part(len(data), item, reduce, until)
            yield from self._meet(until)
            if fits:
                yield from self._fetch(self._own, len(data), self._result_at, until)
        if not fits:
            raise ValueError("the members gave different numbers of bytes, or types")
        return bytes(self._buf[self._own : self._own + len(data)])

    def _give(self, data: memoryview, mine: int, until: float | None) -> Steps[None]:
        self._buf[self._own : self._own + len(data)] = data
        WORD.pack_into(self._buf, GIVEN, mine)
        contribution = Piece(self._own, len(data), self._given_at + self.rank * _up(self.room))
        pieces = [contribution] if len(data) else []
        pieces.append(Piece(GIVEN, 8, GIVEN + 8 * self.rank))
        yield Write(self._mr, self._remote, pieces, until)

    def _all_give(self, mine: int, until: float | None) -> Steps[bool]:
        """Whether all members give the same."""
        yield from self._fetch(GIVEN, 8 * self.members, GIVEN, until)
        return all(self._word(GIVEN + 8 * one) == mine for one in range(self.members))

    def _reduce_part(self, length: int, item: int, reduce: Operation, until: float | None) -> Steps[None]:
        items, n = length // item, self.members
        first, last = (items * at // n * item for at in (self.rank, self.rank + 1))
        part = last - first
        if not part:
            return
        for one in range(n):
            source = self._given_at + one * _up(self.room) + first
            yield from self._fetch(self._parts + one * part, part, source, until)
        so_far = bytes(self._buf[self._parts : self._parts + part])
        for one in range(1, n):
            at = self._parts + one * part
            so_far = bytes(memoryview(reduce(so_far, bytes(self._buf[at : at + part]))).cast("B"))
            if len(so_far) != part:
                raise ValueError(f"the operation made {len(so_far)} bytes of {part}")
        self._buf[self._own : self._own + part] = so_far
        yield Write(self._mr, self._remote, [Piece(self._own, part, self._result_at + first)], until)

    def _reduce_bytes(
        self, data: AnyBuffer, operation: Operation, item: int, until: float | None
    ) -> Steps[bytes]:
        return self._all_reduce(flat(data, "all_reduce()"), item, b"bytes %d" % item, operation, until)

    def _reduce_array(
        self, array: NDArray[Any], operation: Operation, until: float | None
    ) -> Steps[NDArray[Any]]:
        import numpy as np

        source = np.asarray(array, order="C")  # ascontiguousarray() would give one without dimensions one
        kind = source.dtype
        if kind.hasobject:
            raise TypeError("an array of Python objects has no bytes to send")
        _try_operation(operation, source.reshape(-1)[:1])

        def reduce(a: bytes, b: bytes) -> bytes:
            made = operation(np.frombuffer(a, kind), np.frombuffer(b, kind))
            return np.ascontiguousarray(made, kind).tobytes()

        data = flat(source.reshape(-1).view(np.uint8), "all_reduce_array()")
        found = yield from self._all_reduce(data, kind.itemsize, kind.str.encode(), reduce, until)
        return np.frombuffer(bytearray(found), kind).reshape(source.shape)


def _try_operation(operation: Operation, item: NDArray[Any]) -> None:
    """TypeError for what the operation cannot reduce: said before anything is sent, so the group goes on."""
    import numpy as np

    try:
        if item.dtype.kind in "SU":  # whose sums are longer
            raise TypeError("texts have no fixed size")
        with np.errstate(all="ignore"):
            operation(item, item)
    except TypeError as error:
        text = f"the operation cannot reduce an array of {item.dtype}: give an array of numbers ({error})"
        raise TypeError(text) from None


class Group(GroupSteps, InThreads):
    """A member of a group, whose calls wait. Group.over(conn) makes it. All members make the same calls in
    the same order.

    All calls take a `timeout` in seconds, None: for ever; raise TimeoutError, which says how many have not
    come; BrokenGroupError when a member has left; and what the connection raises. After such an error this
    member is out of step: its later calls raise BrokenGroupError.
    """

    def barrier(self, timeout: float | None = TIMEOUT) -> None:
        """Wait until all members have called it."""
        until = after(timeout)
        self._run(self._barrier(until), until)

    def all_reduce(
        self, data: AnyBuffer, operation: Operation, *, item: int = 1, timeout: float | None = TIMEOUT
    ) -> bytes:
        """Reduce the members' bytes, in the order of the members; all get the result.

        operation(a, b) makes of two pieces of bytes one that is as long. A piece has whole items, of `item`
        bytes each. Raises ValueError at all members if they did not give the same number of bytes.
        """
        until = after(timeout)
        return self._run(self._reduce_bytes(data, operation, item, until), until)

    def all_reduce_array(
        self, array: NDArray[Any], operation: Operation, timeout: float | None = TIMEOUT
    ) -> NDArray[Any]:
        """The same for NumPy arrays of one type and size: operation is np.add, np.maximum, or works as they
        do. Returns a new array.
        """
        until = after(timeout)
        return self._run(self._reduce_array(array, operation, until), until)


class AsyncGroup(GroupSteps, InTasks):
    """A member of a group for asyncio; as Group. `await AsyncGroup.over(conn)` makes it."""

    async def barrier(self, timeout: float | None = TIMEOUT) -> None:
        """As Group.barrier()."""
        until = after(timeout)
        await self._run(self._barrier(until), until)

    async def all_reduce(
        self, data: AnyBuffer, operation: Operation, *, item: int = 1, timeout: float | None = TIMEOUT
    ) -> bytes:
        """As Group.all_reduce()."""
        until = after(timeout)
        return await self._run(self._reduce_bytes(data, operation, item, until), until)

    async def all_reduce_array(
        self, array: NDArray[Any], operation: Operation, timeout: float | None = TIMEOUT
    ) -> NDArray[Any]:
        """As Group.all_reduce_array()."""
        until = after(timeout)
        return await self._run(self._reduce_array(array, operation, until), until)
