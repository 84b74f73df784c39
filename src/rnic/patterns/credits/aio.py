# SPDX-License-Identifier: Apache-2.0
"""A channel of tasks of asyncio."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Self

from rnic.aio.waiting import OrderedQueue, Queue, SharedQueue, turn_of
from rnic.patterns.credits.ends import PARTING, Ends, Out

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from types import TracebackType

    from rnic._nic.nic import Result, SendWR
    from rnic.endpoint.buffers import AnyBuffer
    from rnic.patterns.cursor import LiarError

__all__ = ["AsyncChannel"]


class AsyncChannel(Ends):
    """As Channel, for asyncio: tasks of one loop may send and receive at the same time.

    From its first call on the loop answers the peer, until close() or abort(). Messages go in the
    order of the calls; asyncio.timeout() limits a call.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    async def send(self, message: AnyBuffer, *, begins: Callable[[], object] | None = None) -> None:
        """Send a message; returns when all of it was posted, and the buffer may be changed.

        Waits while the peer has no receive for it. After a cancellation the buffer is free, and the peer
        gets the whole message or nothing of it; begins is called, with nothing, when it is clear that it gets
        the message. Raises rnic.MessageTooLongError for one that the peer does
        not take.
        """
        loop = self._begin()
        await turn_of(loop).take()
        out = Out(message)
        try:
            if not self._send(out):
                await self._sends.wait(lambda: self._is_decided(out), first=self._turn)
                self._is_sent(out)
        except BaseException:
            loop.call_soon(self._turn)  # the peer learns that the rest does not come
            raise
        finally:
            if self._take_back(out) and begins is not None:
                begins()

    def _is_decided(self, out: Out) -> bool:
        try:
            return self._is_sent(out)
        except Exception:
            return True

    async def recv(self) -> bytes:
        """Wait for the next message; EOFError when the peer has closed its end."""
        loop, machine = self._begin(), self._machine
        await turn_of(loop).take()
        try:
            if self._receivers or not machine.take():
                again = False
                while not (again and self._has_next()):
                    await self._receivers.wait(self._has_news, again, first=self._turn)
                    again = True
            message: bytes = machine.hand
        finally:
            if self._receivers:
                loop.call_soon(self._turn)  # there may be one for the next task
        machine.hand = None
        return message

    def _has_news(self) -> bool:
        return self.is_waiting or self.error is not None or self._machine.heard_goodbye

    def leave(self, message: bytes) -> None:
        """Leave a message to the channel: it goes now, or when the channel posts next. Does not wait."""
        self._begin()
        self._send(Out(message))

    async def carry_out(self, wrs: Iterable[SendWR], *, behind: Callable[[], bytes] | None = None) -> None:
        """Carry out READs and WRITEs on the queue pair, in order, and wait until all have completed.

        behind: gives a message that is left to the channel as soon as the last of them is posted. A cancelled
        call ends when no request of it is under way any more, at most a second late: if some do not end by
        then, the channel is over. QueueError tells of one that failed, which ends the channel.
        """
        self._begin()
        async with self._carrying:
            if self.error is not None:
                raise self.error
            try:
                last: list[Result] = []
                for batch in self._batches(wrs):
                    posted = self._carry(batch)
                    await self._complete(last)
                    last = posted
                if behind is not None:
                    self._send(Out(behind()))
                await self._complete(last)
            except BaseException:
                await self._settle()
                raise

    async def _complete(self, results: list[Result]) -> None:
        await self._waits.wait(lambda: all(one.done for one in results), first=self._turn)
        for one in results:
            one.result()

    async def _settle(self) -> None:
        """Wait until no request is under way."""
        try:
            await self._for_a_moment(lambda: not self._machine.operates)
        finally:
            if self._machine.operates:
                self._kill(TimeoutError("a READ or WRITE does not end"))

    async def refuse(self, error: LiarError) -> None:
        """The peer has lied in what its messages say: tell it why, and end the channel."""
        self._begin()
        self._end(error, str(error))
        await self._for_a_moment(lambda: self._machine.may_leave)

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
        what = "close: the peer did not close its end in time"
        try:
            if self.error is None:
                async with asyncio.timeout(timeout):
                    await self._waits.wait(self._has_greeted, first=self._turn)
                    self._machine.close(None)
                    self._machine.hand = None
                    await self._waits.wait(self._has_closed, first=self._turn)
                if self.error is not None:
                    raise self.error
                await self._for_a_moment(lambda: self._machine.may_leave)
        except TimeoutError:
            self._end(TimeoutError(what), "the goodbyes were not said in time")
            await self._for_a_moment(lambda: self._machine.may_leave)
            raise TimeoutError(what) from None
        finally:
            self._stop()

    async def abort(self, text: str = "the program ended the channel") -> None:
        """End the channel at once, and tell the peer why, at most 140 bytes; messages may be lost."""
        if self._closed:
            return
        self._begin()
        try:
            self._abort(text)
            await self._for_a_moment(lambda: self._machine.may_leave)
        finally:
            self._stop()

    # ------------------------------------------------------------------------------------

    def _begin(self) -> asyncio.AbstractEventLoop:
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._sends, self._receivers, self._waits = OrderedQueue(), SharedQueue(), Queue()
            self._carrying = asyncio.Lock()
            self._soon: asyncio.Handle | None = None
            self._timer: asyncio.TimerHandle | None = None
            self._timer_at = 0.0
            for fd in self._filenos:
                loop.add_reader(fd, self._turn)
            self._turn()
        return loop

    def _turn(self) -> None:
        """Move what can be moved, and wake the tasks that can go on."""
        if self._closed:
            return
        machine, more = self._machine, False
        try:
            machine.want(bool(self._receivers) and machine.hand is None)
            if self._filenos:
                machine.quiet()
            more = self._move()
            if self._filenos and not machine.armed and not more:
                machine.arm()
                more = self._move()
        except Exception as error:
            self._kill(error)
        finally:
            for queue in (self._sends, self._receivers, self._waits):
                queue.wake()
            self._plan(more or not self._filenos)

    def _plan(self, soon: bool) -> None:
        """When the next turn is, if nothing comes."""
        assert self._loop is not None
        if self._soon is not None:
            self._soon.cancel()
        self._soon = self._loop.call_soon(self._turn) if soon else None
        due = self._machine.deadline()
        if due is not None and (self._timer is None or due < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_later(max(0.0, due - monotonic()), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._turn()

    async def _for_a_moment(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so, for a second at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PARTING):
                await self._waits.wait(is_so, first=self._turn)

    def _stop(self) -> None:
        """Leave the loop, give all back, and wake all tasks; several may ask for it."""
        if self._closed:
            return
        assert self._loop is not None
        for fd in self._filenos:
            self._loop.remove_reader(fd)
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        try:
            self._release()
        finally:
            for queue in (self._sends, self._receivers, self._waits):
                queue.wake_all()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort(f"the program failed with {kind.__name__}")
