# SPDX-License-Identifier: Apache-2.0
"""Ways to the peer's memory: what patterns ask for, on a queue pair, on a connection, or on one of asyncio.

A pattern's calls are generators that yield what has to be done at the peer, and get the answer; so they are
written once. run() does it in a thread, run_async() in a task.
"""

from __future__ import annotations

from asyncio import sleep as sleep_async
from asyncio import timeout
from collections.abc import Generator, Sequence
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from rnic._nic.nic import SGE, RecvWR
from rnic.endpoint import Region
from rnic.enums import AccessFlags, WCOpcode
from rnic.errors import VerbsError
from rnic.patterns.chain import QueueError, SendQueue, Update
from rnic.patterns.wait import How, Waiter, left
from rnic.records import Record

if TYPE_CHECKING:
    import rnic
    from rnic._nic.nic import MR, WC
    from rnic.aio import Connection as AsyncConnection

__all__ = [
    "AsyncPort",
    "ConnectionPort",
    "Piece",
    "Port",
    "QueuePairPort",
    "Window",
    "run",
    "run_async",
]

T = TypeVar("T")
S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
_ACCESS = (
    AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
)
BELLS = 4  # receives for doorbells: of each wait the peer rings at most once
BELL = 0x6C6C6562  # "bell": immediate data on a queue pair, a message's tag on a connection


class Window(Record):
    """Memory of the peer that this end may use, on a queue pair; on a connection it is a Region."""

    addr: int
    """Its first byte, as the peer names it."""
    length: int
    """Its bytes."""
    rkey: int
    """Its key."""


class Piece(NamedTuple):
    """Bytes of the own memory that go to the peer's, or come from there."""

    offset: int
    length: int
    remote_offset: int


# ---------------------------------------------------------------- what a pattern asks for


class Write(NamedTuple):
    """WRITE these pieces, in this order; it need not be known when they are there. The answer is 0.

    The bytes are read until a later READ or atomic has been answered.
    """

    mr: MR
    remote: Window | Region
    pieces: Sequence[Piece]
    until: float | None = None


class Read(NamedTuple):
    """READ this piece; the answer is 0 when it is here."""

    mr: MR
    remote: Window | Region
    piece: Piece
    until: float | None


class FetchAdd(NamedTuple):
    """Add to 8 bytes of the peer's; the answer is their old value."""

    remote: Window | Region
    offset: int
    n: int
    until: float | None


class CompareSwap(NamedTuple):
    """Replace 8 bytes of the peer's that equal `compare`; the answer is their old value."""

    remote: Window | Region
    offset: int
    compare: int
    swap: int
    until: float | None


class Ring(NamedTuple):
    """Wake the peer if it sleeps; TimeoutError if it takes no doorbell."""

    until: float | None = None


class Sleep(NamedTuple):
    """Sleep until the peer rings; TimeoutError at `until`."""

    until: float | None


class Pause(NamedTuple):
    """Do nothing for a while."""

    seconds: float


class Look(NamedTuple):
    """Whether the peer is still there, which raises if it is not."""


Step = Write | Read | FetchAdd | CompareSwap | Ring | Sleep | Pause | Look
Steps = Generator[Step, int, T]


class Doer(Protocol[S_contra]):
    """What carries out steps in a thread."""

    def do(self, step: S_contra) -> Any:
        """Carry out a step."""

    def check(self) -> None:
        """Raise what has ended the way to the peer, if it has ended."""


class AsyncDoer(Protocol[S_contra]):
    """What carries out steps in a task."""

    async def do(self, step: S_contra) -> Any:
        """Carry out a step."""

    async def check(self) -> None:
        """Raise what has ended the way to the peer, if it has ended."""


class Port(Doer[Step], Protocol):
    """What a pattern needs of a thread's way to its peer."""

    def memory(self, nbytes: int) -> MR:
        """Memory that the peer may use, once it knows where it is."""

    def update(self, mr: MR, remote: Window | Region, word: Piece) -> Update | None:
        """What WRITEs bytes of `mr` to the same place there, and then this word, without a step; or None."""


def run(port: Doer[S], steps: Generator[S, Any, T]) -> T:
    """Carry out all steps in this thread, and return what the pattern says at the end."""
    try:
        step = next(steps)
        while True:
            try:
                answer = port.do(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except VerbsError:  # memory has gone with its connection, which says why
        port.check()
        raise
    finally:
        steps.close()


async def run_async(port: AsyncDoer[S], steps: Generator[S, Any, T]) -> T:
    """Carry out all steps in this task, and return what the pattern says at the end."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await port.do(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except VerbsError:  # memory has gone with its connection, which says why
        await port.check()
        raise
    finally:
        steps.close()


# ---------------------------------------------------------------- on a queue pair


class QueuePairPort:
    """A connected queue pair (RC) with a send_cq and a recv_cq of its own, which nobody else uses.

    The peer must have made its own port before this end rings: a doorbell takes a receive. close() gives back
    the memory; the queue pair stays the program's.
    """

    def __init__(self, qp: rnic.QP, how: How = How.ADAPTIVE) -> None:
        if qp.recv_cq is None or qp.pd is None:
            raise ValueError("the queue pair has no recv_cq, or no protection domain")
        if (inline := qp.cap.max_inline_data) < 8:  # words are changed while their WRITEs are on their way
            raise ValueError(f"max_inline_data is {inline}: create the queue pair with 8 or more")
        self.qp, self._pd = qp, qp.pd
        self.sends = SendQueue(qp, how)
        self._bells = Waiter(qp.recv_cq, how)
        self._receive = RecvWR()
        self._posted = 0
        self._memory: list[MR] = []
        self._word = self.memory(8)  # for the old values of atomics
        self._refill()

    def memory(self, nbytes: int) -> MR:
        """Memory of the queue pair's protection domain."""
        mr = self._pd.alloc_mr(nbytes, _ACCESS)
        self._memory.append(mr)
        return mr

    def update(self, mr: MR, remote: Window | Region, word: Piece) -> Update:
        """What WRITEs bytes of `mr` to the same place there, and then this word, without a step."""
        return Update(self.sends, mr, remote.addr, remote.rkey, word.offset, word.remote_offset)

    def window(self, mr: MR) -> Window:
        """What the peer must know of memory."""
        return Window(mr.addr, mr.length, mr.rkey)

    def close(self) -> None:
        """Give back the memory. Arrays and views of it must have gone."""
        while self._memory:
            self._memory[-1].close()
            self._memory.pop()

    def do(self, step: Step) -> int:
        """Carry out a step; raises TimeoutError, or QueueError when the queue pair has failed."""
        match step:
            case Write(mr, remote, pieces, until):
                with self.sends.chain(timeout=left(until)) as chain:
                    for offset, length, remote_offset in pieces:
                        chain.write(SGE(mr, offset, length), remote.addr + remote_offset, remote.rkey)
            case Read(mr, remote, (offset, length, remote_offset), until):
                with self.sends.chain(signaled=True, timeout=left(until)) as chain:
                    chain.read(SGE(mr, offset, length), remote.addr + remote_offset, remote.rkey)
                self.sends.wait(chain.ticket, left(until))
            case FetchAdd(remote, offset, n, until):
                with self.sends.chain(signaled=True, timeout=left(until)) as chain:
                    chain.fetch_add(SGE(self._word), n, remote.addr + offset, remote.rkey)
                return self._old(chain.ticket, until)
            case CompareSwap(remote, offset, compare, swap, until):
                with self.sends.chain(signaled=True, timeout=left(until)) as chain:
                    chain.compare_swap(SGE(self._word), compare, swap, remote.addr + offset, remote.rkey)
                return self._old(chain.ticket, until)
            case Ring(until):
                with self.sends.chain(timeout=left(until)) as chain:
                    chain.write_imm(BELL)
            case Sleep(until):
                self._take(self._bells.last)  # what an exception has kept from it
                self._take(self.sends.wait_for_peer(self._bells, left(until)))
            case Pause(seconds):
                sleep(seconds)
            case Look():
                self.check()
        return 0

    def check(self) -> None:
        """Raise what has ended the way to the peer, if it has ended."""
        self.sends.reclaim()
        self._take(self._bells.last)
        self._take(self._bells.poll())

    def _old(self, ticket: int, until: float | None) -> int:
        self.sends.wait(ticket, left(until))
        return int(self._word.buf.cast("Q")[0])

    def _take(self, found: list[WC]) -> None:
        for wc in found:
            if not wc.ok:
                raise QueueError(wc)
            if wc.opcode is not WCOpcode.RECV_RDMA_WITH_IMM:
                raise ConnectionError("the peer sent a message to a queue pair that takes doorbells alone")
        self._posted -= len(found)
        del found[:]
        self._refill()

    def _refill(self) -> None:
        while self._posted < BELLS:
            self.qp.post_recv(self._receive)
            self._posted += 1


# ---------------------------------------------------------------- on a connection


def _part(mr: MR, piece: Piece) -> memoryview:
    return mr.buf[piece.offset : piece.offset + piece.length]


def _region(remote: Window | Region) -> Region:
    if not isinstance(remote, Region):
        raise TypeError(f"a connection uses what next_region() returns, not {remote!r}")
    return remote


class ConnectionPort:
    """A connection of rnic.connect() or rnic.listen(); doorbells are messages of no bytes with the tag BELL.

    The peer learns of memory by conn.share(mr.buf) here and next_region() there. Other messages of the
    program may go by the same connection.
    """

    def __init__(self, conn: rnic.Connection) -> None:
        self.conn = conn

    def memory(self, nbytes: int) -> MR:
        """Memory of conn.alloc()."""
        return self.conn.alloc(nbytes)

    def update(self, *_: object) -> None:
        """A connection waits for its WRITEs, and takes steps alone."""

    def do(self, step: Step) -> int:
        """Carry out a step; raises TimeoutError, or what the connection raises."""
        conn = self.conn
        match step:
            case Write(mr, remote, pieces, until):
                with conn.batch(left(until)) as batch:
                    for piece in pieces:
                        batch.write(_part(mr, piece), _region(remote), piece.remote_offset)
            case Read(mr, remote, piece, until):
                conn.read(_part(mr, piece), _region(remote), piece.remote_offset, timeout=left(until))
            case FetchAdd(remote, offset, n, until):
                return conn.fetch_add(_region(remote), n, offset, timeout=left(until))
            case CompareSwap(remote, offset, compare, swap, until):
                return conn.compare_swap(_region(remote), compare, swap, offset, timeout=left(until))
            case Ring(until):
                conn.send(b"", tag=BELL, timeout=left(until))
            case Sleep(until):
                conn.recv(left(until), tag=BELL)
            case Pause(seconds):
                sleep(seconds)
            case Look():
                self.check()
        return 0

    def check(self) -> None:
        """Raise what has ended the way to the peer, if it has ended."""
        with suppress(TimeoutError):
            self.conn.recv(0, tag=BELL)


class AsyncPort:
    """A connection of rnic.aio; otherwise as ConnectionPort."""

    def __init__(self, conn: AsyncConnection) -> None:
        self.conn = conn

    def memory(self, nbytes: int) -> MR:
        """Memory of conn.alloc()."""
        return self.conn.alloc(nbytes)

    def update(self, *_: object) -> None:
        """A connection waits for its WRITEs, and takes steps alone."""

    async def do(self, step: Step) -> int:
        """Carry out a step; raises TimeoutError, or what the connection raises."""
        until: float | None = getattr(step, "until", None)
        async with timeout(left(until)):
            return await self._do(step)

    async def _do(self, step: Step) -> int:
        conn = self.conn
        match step:
            case Write(mr, remote, pieces):
                async with conn.batch() as batch:
                    for piece in pieces:
                        batch.write(_part(mr, piece), _region(remote), piece.remote_offset)
            case Read(mr, remote, piece, _):
                await conn.read(_part(mr, piece), _region(remote), piece.remote_offset)
            case FetchAdd(remote, offset, n, _):
                return await conn.fetch_add(_region(remote), n, offset)
            case CompareSwap(remote, offset, compare, swap, _):
                return await conn.compare_swap(_region(remote), compare, swap, offset)
            case Ring():
                await conn.send(b"", tag=BELL)
            case Sleep():
                await conn.recv(tag=BELL)
            case Pause(seconds):
                await sleep_async(seconds)
            case Look():
                await self.check()
        return 0

    async def check(self) -> None:
        """Raise what has ended the way to the peer, if it has ended."""
        with suppress(TimeoutError):
            async with timeout(0):
                await self.conn.recv(tag=BELL)
