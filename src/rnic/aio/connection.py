# SPDX-License-Identifier: Apache-2.0
"""Connections for asyncio."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from rnic._nic.nic import MR, Result
from rnic.aio.pump import Pump
from rnic.conn.arrays import Layout
from rnic.conn.core import Core
from rnic.conn.ending import GRACE
from rnic.conn.face import Face, room
from rnic.conn.messages import ANY, AnyTag, check_room, put
from rnic.conn.ops import COMPARE_SWAP, FETCH_ADD, READ, WRITE, BatchFace
from rnic.endpoint import EndpointError, Region
from rnic.enums import AccessFlags
from rnic.times import seconds

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from rnic.endpoint.buffers import AnyBuffer


class Connection(Face):
    """One end of a connection between two programs, in the event loop in which it was made.

    The loop makes progress for it, so it answers the peer also while no task waits. Several tasks may use it
    at the same time; messages go in the order of the calls. When the connection has ended, calls raise an
    EndpointError with the reason.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._pump = Pump(core)

    async def send(self, message: AnyBuffer, *, tag: int = 0) -> None:
        """Send a message of any size; returns when all of it is on its way, and the buffer may be changed.

        It waits while the peer accepts no messages. If the call is cancelled, the buffer is free, and the
        peer gets the whole message or nothing of it. close() tells whether everything has arrived in the
        peer's memory; only an answer tells that its program has taken it. `tag` is a number for
        recv(tag=...), 64 bits; ValueError if the peer's version of rnic is too old for tags.
        """
        core, pump = self._core, self._pump
        if pump.turn.is_used_up():
            await pump.turn.give_way()
        handle = core.machine.handle + 1
        try:
            if core.messages.send(message, tag):
                await pump.wait(pump.sends, lambda: core.messages.is_sent(handle))
                core.messages.raise_unsent(handle)
        except BaseException:
            core.machine.take_back(handle)
            pump.soon()
            raise

    async def post(self, message: AnyBuffer, *, tag: int = 0) -> None:
        """As send(), but without waiting for the peer: the message is queued, however long the queue is.

        Its buffer may not be changed before flush() has returned. If the connection ends before, the message
        is lost, and flush() and later calls raise the error.
        """
        await self._pump.turn.take()
        handle = self._core.machine.handle + 1
        try:
            if self._core.messages.send(message, tag):
                self._pump.run()
        except BaseException:
            self._core.machine.take_back(handle)
            self._pump.soon()
            raise

    @property
    def unsent(self) -> int:
        """The number of messages that are queued, or that the peer has been told of and has not fetched."""
        return self._core.machine.handle - self._core.machine.left

    async def flush(self) -> None:
        """Wait until all messages that post() has queued have left their buffers; if the connection ended
        before, it raises its error.
        """
        core, last = self._core, self._core.machine.handle
        await self._pump.turn.take()
        await self._pump.wait(self._pump.sends, lambda: core.messages.is_sent(last))
        core.messages.raise_unsent(last)

    @overload
    async def recv(self, *, tag: int | None = None) -> bytes: ...

    @overload
    async def recv(self, *, tag: AnyTag) -> tuple[bytes, int]: ...

    async def recv(self, *, tag: int | AnyTag | None = None) -> bytes | tuple[bytes, int]:
        """Wait for the next message, and return it; raises EOFError after the peer has closed its end.

        A call that raises, or is cancelled, takes no message. `tag`: take the next message that was sent with
        this tag. Other messages wait meanwhile, up to Config.max_backlog; beyond that the peer waits. With
        `tag=rnic.ANY` the call takes the next message of any tag, and returns the message and its tag.
        """
        core, pump, machine = self._core, self._pump, self._core.machine
        wanted = None if tag is ANY else tag
        if wanted is not None:
            core.messages.check_tag(wanted, "recv()")
        if pump.turn.is_used_up():
            await pump.turn.give_way()
        data: bytes
        try:
            if pump.messages or not self._is_here(wanted):
                await self._next_message(wanted)
            data, found = machine.hand, machine.tag
        except BaseException:
            self._call_others()
            raise
        machine.hand = None  # no call from here on, behind which an exception could come
        return (data, found) if tag is ANY else data

    def _is_here(self, tag: int | None) -> bool:
        """The message is in the machine's hand, perhaps after a look for a moment."""
        machine = self._core.machine
        if self._core.gone or self._pump.is_dropped:
            self._core.messages.raise_none(tag)
        if machine.take(tag):
            if machine.heard_goodbye:
                self._pump.soon()  # on_end() may wait for this one
            return True
        if self._pump.turn.may_look(self._pump):
            return machine.recv(tag, 0.0)
        machine.pump()
        return machine.take(tag)

    async def _next_message(self, tag: int | None, target: memoryview | None = None) -> None:
        """Wait for a message, which is in the machine's hand then."""
        core, pump, again = self._core, self._pump, False
        is_so: Callable[[], bool] = partial(core.messages.news, tag)
        if target is not None:
            room = len(target)
            is_so = lambda: core.machine.offered > room or core.messages.news(tag)  # noqa: E731
        while True:
            await pump.wait(pump.messages, is_so, again, target, tag)
            core.machine.note_wait()
            again = True
            if core.gone or pump.is_dropped:
                core.messages.raise_none(tag)
            if core.machine.take(tag):
                break
            if target is not None:
                check_room(core.machine.offered, target)
            core.messages.raise_none(tag)
        if pump.messages:
            pump.soon()  # there may be one for the next task

    def _call_others(self) -> None:
        """A call that waited for a message raises: the end, or what it leaves, concerns other tasks."""
        self._pump.messages.wake()
        self._pump.soon()  # their message may be here, or with the peer, and no event tells of it

    async def recv_into(self, buffer: AnyBuffer, *, tag: int | None = None) -> int:
        """Receive the next message into a buffer, as recv() does; returns the number of bytes.

        A message that the peer announces (Config.announce) goes straight into the buffer, unless the call
        asks for a `tag`. Raises ValueError if the buffer is too small; the message stays. After any exception
        the buffer may have been changed. After cancellation it may still be changed until a further message
        is received, or close() has returned.
        """
        core, pump, target = self._core, self._pump, room(buffer)
        if tag is not None:
            core.messages.check_tag(tag, "recv_into()")
        if pump.turn.is_used_up():
            await pump.turn.give_way()
        try:
            if pump.messages or not self._is_here(tag):
                await self._next_message(tag, target if tag is None else None)
            length = put(core.machine.hand, target)
            core.machine.hand = None
            return length
        except BaseException:
            self._call_others()
            raise
        finally:
            pump.aim_again()

    async def share(self, buffer: AnyBuffer, access: AccessFlags | None = None) -> Region:
        """Let the peer read, write and add to a buffer; the peer gets the Region from next_region().

        Returns the Region, for withdraw() and revoke(). `access` says what the peer may do; None: everything
        that Config.access allows (only reading, if the buffer is read-only).
        """
        await self._pump.turn.take()
        region = self._core.sharing.share(buffer, access)
        try:
            self._pump.run()
        except BaseException:  # the caller does not get it
            self._core.sharing.withdraw(region)
            raise
        return region

    async def withdraw(self, region: Region) -> None:
        """Stop sharing a region; returns when the peer can no longer use the buffer.

        If the call is cancelled, the withdrawal continues: the buffer is closed to the peer as soon as it
        confirms. If the peer never confirms, use revoke().
        """
        core, is_withdrawn = self._core, partial(self._core.sharing.is_withdrawn, region)
        core.sharing.withdraw(region)
        await self._pump.wait(self._pump.withdrawals, is_withdrawn)
        if not is_withdrawn():
            core.check()
        await self._pump.turn.take()  # at the end: a call that is cancelled has begun

    async def revoke(self, region: Region) -> None:
        """Stop sharing a region at once, without the peer's confirmation; on return the peer cannot use the
        buffer.

        A peer that still tries loses the connection. Raises VerbsError: EBUSY, after a second at most, if a
        process of this host is stopped in the middle of a copy. Then that is done later; a further call tells
        whether.
        """
        try:
            self._core.sharing.revoke(region)
        finally:
            self._pump.run()

    async def next_region(self) -> Region:
        """Wait for the next region that the peer shares, and return it; each region is returned once."""
        await self._pump.turn.take()
        try:
            while (region := self._core.sharing.next_region()) is None:
                await self._pump.wait(self._pump.regions, self._core.sharing.has_region)
            return region
        finally:
            self._pump.regions.wake()  # another one may be there, or the end

    async def next_withdrawn(self) -> Region:
        """Wait until the peer has withdrawn a region that next_region() returned, and return it; each is
        returned once.

        Regions to which the program keeps no reference are left out.
        """
        await self._pump.turn.take()
        try:
            while (region := self._core.sharing.next_withdrawn()) is None:
                await self._pump.wait(self._pump.withdrawn, self._core.sharing.has_withdrawn)
            return region
        finally:
            self._pump.withdrawn.wake()

    async def write(self, local: AnyBuffer | MR, remote: Region, offset: int = 0) -> None:
        """Write a whole buffer into the peer's region, from byte `offset` on; returns when the bytes are
        there.

        Raises ValueError if the region is too short, was withdrawn or does not grant REMOTE_WRITE. If the
        call is cancelled, the operation continues, and uses the buffer until close() or a later operation has
        returned; so it is for read(), fetch_add() and compare_swap().
        """
        await self._pump.turn.take()
        await self._run(self._core.rdma(WRITE, local, remote, offset))

    async def read(self, local: AnyBuffer | MR, remote: Region, offset: int = 0) -> None:
        """Fill a whole buffer from the peer's region, from byte `offset` on; returns when it is full.

        For a part of a buffer, give a slice of its memoryview. Raises ValueError if the region is too short,
        was withdrawn or does not grant REMOTE_READ.
        """
        await self._pump.turn.take()
        await self._run(self._core.rdma(READ, local, remote, offset))

    async def read_array(
        self,
        region: Region,
        *,
        shape: int | tuple[int, ...] | None = None,
        dtype: DTypeLike | None = None,
    ) -> NDArray[Any]:
        """Read the peer's region into a new array, with the region's shape and type, or with the given ones.

        With `dtype` alone, the length follows from the region's bytes, unless the region has more than one
        dimension. Raises ValueError if the region does not say what array it holds and `dtype` is not given,
        or if they do not fit its length; ImportError if NumPy is not installed.
        """
        array = Layout(region, shape, dtype, "read_array()").empty()
        for start, piece in self._pieces(array):
            await self.read(piece, region, start)
        return array

    async def fetch_add(self, remote: Region, n: int, offset: int = 0) -> int:
        """Add `n` to 8 bytes of the peer's region in one step; returns their old value.

        The 8 bytes are an unsigned number in the byte order of the peer's machine, which wraps at 2**64; a
        negative `n` subtracts. Their address, the region's and `offset`, is a multiple of 8. Raises
        ValueError if it is not, if they lie outside of the region, or if 8 bytes do not hold `n`.
        """
        await self._pump.turn.take()
        return await self._run(self._core.atomic(FETCH_ADD, remote, offset, n)) or 0

    async def compare_swap(self, remote: Region, compare: int, swap: int, offset: int = 0) -> int:
        """Replace 8 bytes of the peer's region by `swap` if they equal `compare`, in one step; returns their
        old value.

        They were replaced if that is `compare`. The numbers and the address are those of fetch_add().
        """
        await self._pump.turn.take()
        return await self._run(self._core.atomic(COMPARE_SWAP, remote, offset, compare, swap)) or 0

    async def _run(self, one: Result) -> int | None:
        if not self._core.machine.wait_done(one, 0.0):
            await self._pump.wait(self._pump.ops, lambda: one.done)
            if not one.done:  # nor will it be
                self._core.check()
        return one.result()

    def batch(self) -> Batch:
        """Start many operations and wait for all at the end of the block: `async with conn.batch() as b:
        b.read(...)`.
        """
        return Batch(self)

    async def close(self, timeout: float | None = 5.0, *, wait: bool = True) -> None:
        """Close the connection after everything was sent, and wait until all is in the peer's memory and the
        peer closes its end, too.

        Messages that the peer's program has not taken when it closes its end are dropped, without an error:
        let it answer what must not get lost, and wait for the answer before close().

        `wait=False`: return as soon as all is in the peer's memory. Its program can still receive it; what
        the peer sends from now on is lost, and it gets an error if it does.
        If that takes longer than `timeout` seconds, or the connection has failed, it raises EndpointError,
        once. In any case, also if the call is cancelled, everything is closed.
        """
        core = self._core
        seconds(timeout)
        if core.given_back:
            return
        known = core.is_known
        core.close(timeout)
        await self._finish(None if timeout is None else timeout + GRACE, wait)
        if core.error is not None and not known:
            raise core.error

    async def abort(self, text: str = "the program aborted the connection") -> None:
        """End the connection at once, and tell the peer why; messages on their way may be lost."""
        if not self._core.given_back:
            self._core.abort(text)
            await self._finish(GRACE)

    def drop(self, text: str = "the program aborted the connection") -> None:
        """As abort(), but without waiting, and from any thread.

        Tasks that wait in a call of the connection get its EndpointError.
        """
        if not self._core.given_back:
            self._pump.drop(text)

    def on_end(self, callback: Callable[[EndpointError | None], object]) -> None:
        """Have the loop call this once when the peer has closed its end, and all its messages were received
        (with None), or the connection has failed (with the error); not if this end closes or aborts it.

        It replaces an earlier callback.
        """
        self._pump.watch_end(callback)

    async def _finish(self, timeout: float | None, wait: bool = True) -> None:
        core = self._core
        self._pump.watch_end(None)
        try:
            async with asyncio.timeout(timeout):
                await self._pump.wait(self._pump.end, lambda: core.finished or (not wait and core.has_left))
        except TimeoutError:
            pass
        finally:
            self._pump.release()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Messages, until the peer closes its end."""
        while True:
            try:
                message = await self.recv()
            except EOFError:
                return
            yield message

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if (why := self._core.why_abort(value)) is None:
            await self.close()
        else:
            await self.abort(why)

    def __del__(self) -> None:
        pump: Pump | None = getattr(self, "_pump", None)
        if pump is not None and not pump.core.given_back and not pump.is_dropped:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            pump.forget()


class Batch(BatchFace):
    """The operations of an `async with conn.batch()` block; BatchFace has its calls. It waits at the end of
    the block.
    """

    def __init__(self, conn: Connection) -> None:
        super().__init__(conn._core, "async with")
        self._conn, self._pump = conn, conn._pump  # a connection that nobody has is given back

    async def __aenter__(self) -> Self:
        self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()
        if kind is None:
            await self._pump.turn.take()
            await self._pump.wait(self._pump.ops, self._chain.is_over)
            if not self._chain.is_over():  # nor will it be
                self._core.check()
            self.raise_failed()
