# SPDX-License-Identifier: Apache-2.0
"""A channel of tasks of asyncio."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from rnic.enums import QPState
from rnic.patterns.chain import LIFE, QueueError
from rnic.patterns.credits.ends import PARTING, Ends

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from types import TracebackType

    from rnic._nic.nic import WC, SendWR
    from rnic.endpoint.buffers import AnyBuffer
    from rnic.patterns.cursor import LiarError

__all__ = ["AsyncChannel"]


class AsyncChannel(Ends):
    """As Channel, for asyncio: tasks of one loop may send and receive at the same time.

    From its first call on a task of its own answers the peer, until close() or abort(). Messages go in the
    order of the calls; asyncio.timeout() limits a call.
    """

    _pump: asyncio.Task[None] | None = None
    _stopping: asyncio.Task[None] | None = None

    async def send(self, message: AnyBuffer, *, begins: Callable[[], object] | None = None) -> None:
        """Send a message; returns when all of it was posted, and the buffer may be changed.

        Waits while the peer has no receive for it. After a cancellation the buffer is free, and the peer
        gets the whole message or nothing of it; begins is called, with nothing, when it is clear that it gets
        the message. Raises rnic.MessageTooLongError for one that the peer does
        not take.
        """
        self._begin()
        flow = self._flow
        handle = flow.queue(message, begins)
        try:
            await self._go()
            await self._until(lambda: flow.is_sent(handle))
        except BaseException:
            flow.take_back(handle)
            raise

    async def recv(self) -> bytes:
        """Wait for the next message; EOFError when the peer has closed its end."""
        self._begin()
        flow = self._flow
        flow.wanted += 1
        try:
            while (message := flow.take()) is None:
                await self._go()  # receives that were kept back
                if (message := flow.take()) is not None:  # it came while that waited
                    break
                await self._change()
        finally:
            flow.wanted -= 1
        return message

    def leave(self, message: bytes) -> None:
        """Leave a message to the channel: it goes now, or when the channel posts next. Does not wait."""
        self._begin()
        if self._posting.locked():
            self._flow.queue(message)
        else:
            self._leave(message)

    async def carry_out(self, wrs: Iterable[SendWR], *, behind: Callable[[], bytes] | None = None) -> None:
        """Carry out READs and WRITEs on the queue pair, in order, and wait until all have completed.

        behind: gives a message that is left to the channel as soon as the last of them is posted. A cancelled
        call ends when no request of it is under way any more, at most a second late: if some do not end by
        then, the channel is over. QueueError tells of one that failed, which ends the channel.
        """
        self._begin()
        batches = self._batches(wrs)
        batch = next(batches, [])
        while batch:
            following = next(batches, [])
            async with self._posting:
                await self._carry(batch, None if following else behind)
            batch = following

    async def _carry(self, batch: list[SendWR], behind: Callable[[], bytes] | None) -> None:
        if self.error is not None:
            raise self.error
        sends = self._sends
        try:
            if (ticket := sends.posted + len(batch) - sends.depth) > sends.reached:
                await self._ended(ticket)
            ticket = sends.post(batch, signaled=True, timeout=0)
            if behind is not None:
                self._leave(behind())
            await self._ended(ticket)
        except QueueError as error:
            raise self._blame(error) from None

    async def _ended(self, ticket: int) -> None:
        """Wait for a ticket; also if the call is cancelled meanwhile, or the channel is over."""
        waiting = asyncio.ensure_future(self._sends.wait_async(ticket))
        try:
            while not waiting.done() and self.error is None:
                news = asyncio.get_running_loop().create_future()
                self._news.append(news)
                await asyncio.wait([waiting, news], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._settle(waiting)
        if self.error is not None:
            raise self.error

    async def _settle(self, waiting: asyncio.Future[None]) -> None:
        """Until what was posted is not under way any more; raises QueueError."""
        try:
            if self._qp.state is not QPState.ERR:
                await asyncio.wait([waiting], timeout=PARTING)
        finally:
            if not waiting.done():
                waiting.cancel()
                self._kill(TimeoutError("a READ or WRITE does not end"))
        if waiting.done():
            waiting.result()

    async def refuse(self, error: LiarError) -> None:
        """The peer has lied in what its messages say: tell it why, and end the channel."""
        self._begin()
        self._fail(error)
        await self._part()
        self._wake()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Messages, until the peer closes its end."""
        while True:
            try:
                message = await self.recv()
            except EOFError:
                return
            yield message

    async def close(self, timeout: float | None = 5.0) -> None:
        """Say that no message follows, and wait until the peer says so, too; messages that come are dropped.

        Then all has arrived. Raises TimeoutError if the peer did not close its end in time, or what has
        ended the channel. In any case the queue pair is then in ERR, and the channel's memory is given
        back.
        """
        if self._closed:
            return
        self._begin()
        flow, known = self._flow, self._flow.error
        try:
            flow.drop()
            flow.end()
            if known is None:
                async with asyncio.timeout(timeout):
                    await self._go()
                    await self._until(lambda: flow.finished)
                await self._last()
        except TimeoutError:
            raise TimeoutError("close: the peer did not close its end in time") from None
        finally:
            await self._stop()

    async def abort(self, text: str = "the program ended the channel") -> None:
        """End the channel at once, and tell the peer why, at most 248 bytes; messages may be lost."""
        if self._closed:
            return
        self._begin()
        self._abort(text)
        try:
            await self._part()
        finally:
            await self._stop()

    # ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._check_open()
        if self._pump is None and self._stopping is None:
            self._posting = asyncio.Lock()
            self._news: list[asyncio.Future[None]] = []
            self._pump = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Takes what comes, and posts what may go, until the channel is over."""
        try:
            while self._flow.error is None:
                await self._go()
                self._arrived(await self._come())
                self._wake()
        except Exception as error:
            self._fail(error)
            self._wake()
            await self._part()
        finally:
            self._wake()

    async def _come(self) -> list[WC]:
        """What comes; each second without anything, ask the peer's device for a sign of life."""
        while True:
            try:
                async with asyncio.timeout(LIFE):
                    return await self._receipts.wait_async()
            except TimeoutError:
                if not self._posting.locked():  # else what is under way asks
                    self._sends.look()

    def _wake(self) -> None:
        for one in self._news:
            if not one.done():
                one.set_result(None)
        self._news.clear()

    async def _change(self) -> None:
        """Until something has come."""
        news = asyncio.get_running_loop().create_future()
        self._news.append(news)
        await news

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if self._flow.error is not None:
                raise self._flow.error
            await self._change()

    async def _go(self) -> None:
        """Post all that may go now."""
        async with self._posting:
            posted = False
            try:
                while True:
                    while ticket := self._blocking:
                        await self._sends.wait_async(ticket)
                    if not self._post_next():
                        break
                    posted = True
            except QueueError as error:
                self._fail(error)
                raise
            finally:
                if posted:
                    self._wake()

    async def _part(self) -> None:
        """Send the ABORT, if there may be one."""
        try:
            async with asyncio.timeout(PARTING), self._posting:
                if not self._blocking and self._post_next():
                    await self._sends.wait_async(self._sends.posted)
        except (ConnectionError, OSError, TimeoutError):
            pass  # the peer learns of the end without a reason

    async def _last(self) -> None:
        """Until the peer has what was sent last; it may have gone by now, as it has all."""
        with suppress(QueueError, TimeoutError):
            async with asyncio.timeout(PARTING), self._posting:
                await self._sends.wait_async(self._sends.posted)

    async def _stop(self) -> None:
        """Several may ask for it at a time."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._let_go())
        await asyncio.shield(self._stopping)

    async def _let_go(self) -> None:
        pump, self._pump = self._pump, None
        assert pump is not None
        pump.cancel()
        try:
            await asyncio.wait([pump])
        finally:
            self._wake()
            self._release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort(f"the program failed with {kind.__name__}")
