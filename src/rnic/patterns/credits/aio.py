# SPDX-License-Identifier: Apache-2.0
"""A channel of tasks of asyncio."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Self, TypeVar

from rnic.aio.waiting import OrderedQueue, Queue, SharedQueue, turn_of
from rnic.patterns.credits.ends import Ends, Out, Until
from rnic.patterns.wait import left
from rnic.times import after

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from types import TracebackType

    from rnic._nic.nic import SendWR
    from rnic.endpoint.buffers import AnyBuffer
    from rnic.patterns.credits.ends import Steps
    from rnic.patterns.cursor import LiarError

__all__ = ["AsyncChannel"]

T = TypeVar("T")


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
        the message. Raises rnic.MessageTooLongError for one that the peer does not take.
        """
        await self._run(self._sending(Out(message), begins))

    async def recv(self) -> bytes:
        """Wait for the next message; EOFError when the peer has closed its end."""
        return await self._run(self._receiving())

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
            await self._run(self._carrying_out(wrs, behind))

    async def refuse(self, error: LiarError) -> None:
        """The peer has lied in what its messages say: tell it why, and end the channel."""
        await self._run(self._end(error, str(error)))

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
        if not self._closed:
            await self._run(self._closing(), timeout)

    async def abort(self, text: str = "the program ended the channel") -> None:
        """End the channel at once, and tell the peer why, at most 140 bytes; messages may be lost."""
        if not self._closed:
            await self._run(self._aborting(text))

    # ------------------------------------------------------------------------------------

    async def _run(self, call: Steps[T], timeout: float | None = None) -> T:
        until, loop = after(timeout), self._begin()
        try:
            await turn_of(loop).take()
            step = next(call)
            while True:
                try:
                    await self._wait(step, until if step.seconds is None else after(step.seconds))
                except BaseException as error:
                    step = call.throw(error)
                else:
                    step = call.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            call.close()
            if not self._closed and self._receivers and self.is_waiting:  # for the next task
                loop.call_soon(self._turn)

    async def _wait(self, step: Until, until: float | None) -> None:
        def is_decided() -> bool:
            try:
                return step.is_so()
            except Exception:
                return True

        try:
            async with asyncio.timeout(left(until)):
                again = False
                while not again or not step.is_so():
                    await self._queues[step.among].wait(is_decided, again, first=self._turn)
                    again = True
        except TimeoutError:
            raise TimeoutError(f"{step.what} in time") from None

    def _begin(self) -> asyncio.AbstractEventLoop:
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._receivers = SharedQueue()
            self._queues = {"senders": OrderedQueue(), "receivers": self._receivers, "others": Queue()}
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
            for queue in self._queues.values():
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

    def _release(self) -> None:
        """Leave the loop, give all back, and wake all tasks."""
        if self._closed:
            return
        assert self._loop is not None
        for fd in self._filenos:
            self._loop.remove_reader(fd)
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        try:
            super()._release()
        finally:
            for queue in self._queues.values():
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
