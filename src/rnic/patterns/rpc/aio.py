# SPDX-License-Identifier: Apache-2.0
"""Calls from tasks of asyncio."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from rnic.endpoint.errors import ClosedError
from rnic.patterns.cursor import LiarError
from rnic.patterns.rpc.calls import Asking
from rnic.patterns.rpc.client import LIMIT, WINDOW
from rnic.patterns.rpc.errors import DeadlineError, as_exception
from rnic.patterns.rpc.frames import Reply
from rnic.times import seconds

if TYPE_CHECKING:
    from rnic.patterns.rpc.ways import AsyncMessages

    Waiter = asyncio.Future[bytes]

__all__ = ["AsyncClient"]

UNSENT = (ValueError, TypeError, RuntimeError)  # of send(): it is too long, or of no use here


class AsyncClient:
    """As Client, for asyncio: many tasks may call at the same time. An async context manager.

    The connection stays the program's, which closes it after close(), and which does not receive on it
    meanwhile.
    """

    def __init__(
        self, messages: AsyncMessages, *, limit: int = LIMIT, window: int = WINDOW, max_body: int = 16 << 20
    ) -> None:
        self._messages = messages
        self._asking: Asking[Waiter] = Asking(limit, window, max_body)
        self._error: BaseException | None = None
        self._reader: asyncio.Task[None] | None = None
        self._gate, self._room = asyncio.Lock(), asyncio.Event()
        self._cancels: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<AsyncClient: {self.outstanding} calls outstanding, by {self._messages!r}>"

    @property
    def outstanding(self) -> int:
        """Calls that the server has not answered, also those that were given up."""
        return len(self._asking)

    async def call(self, method: str, body: bytes = b"", timeout: float | None = None) -> bytes:
        """Call a method, and return the reply's body; `timeout` is the deadline, in seconds, at both ends.

        Waits while the limit is reached, or the window is full. If the task is cancelled, the server is
        told: an async handler is cancelled. Raises ValueError for a body or a name that is too long;
        RemoteError, if the handler raised; RefusedCallError; DeadlineError; or what the connection raises.
        """
        seconds(timeout)
        nbytes = self._asking.check(method, body)
        self._check()
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        try:
            async with asyncio.timeout(timeout) as limit:
                async with self._gate:  # the first one waits, and the others behind it
                    while not self._asking.has_room(nbytes):
                        self._room.clear()
                        await self._room.wait()
                        self._check()
                return await self._call(method, body, limit.when())
        except TimeoutError:
            if limit.expired():
                raise DeadlineError(f"{method}: no answer within {timeout} s") from None
            raise

    async def _call(self, method: str, body: bytes, when: float | None) -> bytes:
        self._check()
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        left = None if when is None else when - loop.time()
        number, frame = self._asking.begin(method, body, left, waiter)
        try:
            await self._messages.send(frame)
            return await waiter
        except UNSENT:
            self._asking.over_with(number)
            raise
        finally:
            if not waiter.done() or waiter.cancelled():
                waiter.cancel()
                self._give_up(number)
            else:
                waiter.exception()  # which nobody sees if the task was cancelled, too

    def _give_up(self, number: int) -> None:
        if self._error is None and (frame := self._asking.give_up(number)) is not None:
            task = asyncio.create_task(self._tell(frame))
            self._cancels.add(task)
            task.add_done_callback(self._cancels.discard)

    async def _tell(self, frame: bytes) -> None:
        with suppress(OSError):  # of which the reader learns
            await self._messages.send(frame)

    async def _read(self) -> None:
        """Takes the answers, for as long as there are any."""
        try:
            while True:
                message = await self._messages.recv()
                try:
                    self._take(message)
                except LiarError as error:
                    self._fail(error)
                    await self._messages.abort(str(error))
                    return
        except EOFError:
            self._fail(self._asking.over())
        except Exception as error:
            self._fail(error)

    def _take(self, message: bytes) -> None:
        waiter, answer = self._asking.answer(message)
        if waiter is not None and not waiter.done():
            if isinstance(answer, Reply):
                waiter.set_result(answer.body)
            else:
                waiter.set_exception(as_exception(answer.status, answer.kind, answer.text))
        self._room.set()

    def _fail(self, error: BaseException) -> None:
        """No answer comes any more."""
        self._error = self._error or error
        for waiter in self._asking.all_over():
            if not waiter.done():
                waiter.set_exception(error)
        self._room.set()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Take no answers any more: calls that wait raise ClosedError; the connection stays open."""
        self._fail(ClosedError("the client was closed"))
        tasks = [*self._cancels] if self._reader is None else [self._reader, *self._cancels]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
