# SPDX-License-Identifier: Apache-2.0
"""Calls that tasks of asyncio answer."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from rnic.endpoint.errors import MessageTooLongError
from rnic.patterns.cursor import LiarError
from rnic.patterns.rpc.calls import Asked, Order
from rnic.patterns.rpc.errors import ClientStalledError, Status
from rnic.patterns.rpc.frames import Failure, Reply
from rnic.patterns.rpc.server import LEAVING, is_async, too_long
from rnic.patterns.rpc.ways import handlers_of
from rnic.times import seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from concurrent.futures import Executor

    from rnic.patterns.rpc.ways import AsyncMessages, Body

__all__ = ["AsyncServer"]


class AsyncServer:
    """Answers calls by async functions, each in a task of its own, and by plain ones.

    handlers: by the names of methods, functions that take the body and return the reply's body. An
    exception goes to the client, as RemoteError. An async one is cancelled at the call's deadline, when the
    client cancels the call, and when the client has gone. A plain one runs in the `executor`; without one
    in the thread of the loop, which then waits for it. limit: calls of one client that can wait for their
    answers. max_body: bytes of the longest body, of all bodies of one client that wait, and of the longest
    reply. reply_timeout: seconds that a client may take no answer, after which it loses the connection.
    """

    def __init__(
        self,
        handlers: Mapping[str, Callable[[bytes], Body | Awaitable[Body]]],
        *,
        limit: int = 256,
        max_body: int = 16 << 20,
        reply_timeout: float | None = 30.0,
        executor: Executor | None = None,
    ) -> None:
        self._handlers: dict[str, Callable[[bytes], Any]] = handlers_of(handlers)
        self._new_table = partial(Asked, frozenset(handlers), limit, max_body)
        self._new_table()  # says what is wrong with the limits
        self._reply_timeout = seconds(reply_timeout, "reply_timeout")
        self._executor = executor
        self._leaving: str | None = None
        self._closed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<AsyncServer of {', '.join(sorted(self._handlers))}>"

    async def serve(self, messages: AsyncMessages) -> None:
        """Answer the calls of one client, until it closes its end; or after close(), until none waits.

        It is an agent for rnic.aio.Listener.serve(). Raises LiarError if the client breaks the protocol,
        ClientStalledError when it takes no answers, in both cases after the connection was aborted; or what
        the connection raises. Calls that are not done by then are cancelled.
        """
        try:
            await _Session(self, messages).run()
        except EOFError:
            return
        except (LiarError, ClientStalledError) as error:
            await messages.abort(str(error))
            raise

    def close(self, text: str = LEAVING) -> None:
        """Take no calls any more, of any client, and tell all clients: calls that came before are answered,
        later ones are refused with this text (RefusedCallError, Status.LEAVING). serve() returns when the
        answers went. The thread of the loop calls it.
        """
        self._leaving = text
        self._closed.set()

    async def _carry_out(self, order: Order) -> object:
        handler = self._handlers[order.method]
        if is_async(handler):
            return await handler(order.body)
        if self._executor is None:
            return handler(order.body)
        return await asyncio.get_running_loop().run_in_executor(self._executor, handler, order.body)


class _Session:
    """One client of an AsyncServer."""

    def __init__(self, server: AsyncServer, messages: AsyncMessages) -> None:
        self._server, self._messages, self._asked = server, messages, server._new_table()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[int, asyncio.Task[Any]] = {}  # whose handlers can be cancelled, by number
        self._going: set[int] = set()  # whose answers are being sent
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Until the client closes its end, which raises EOFError, or the server has answered all."""
        own = {asyncio.create_task(self._read()), asyncio.create_task(self._leave())}
        try:
            await self._over
        finally:
            left = own | self._tasks
            for task in left:
                task.cancel()
            await asyncio.wait(left)

    async def _leave(self) -> None:
        await self._server._closed.wait()
        try:
            await self._send(Failure(0, Status.LEAVING, "", self._server._leaving or ""))
            while self._tasks:
                await asyncio.wait(self._tasks)
        except Exception as error:
            self._fail(error)
        if not self._over.done():
            self._over.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    async def _read(self) -> None:
        try:
            while True:
                message = await self._messages.recv()
                found = self._asked.message(message, monotonic(), self._server._leaving)
                if isinstance(found, Failure):
                    await self._refuse(found)
                elif found is not None:
                    self._begin(found)
        except Exception as error:
            self._fail(error)

    def _begin(self, order: Order) -> None:
        """A call, or one that was cancelled."""
        if order.cancelled:
            if (running := self._running.get(order.number)) is not None:
                running.cancel()
            return
        task = asyncio.create_task(self._answer(order))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _refuse(self, answer: Failure) -> None:
        """A call has one answer: a CANCEL that meets it on its way gets none, which could overtake it."""
        if answer.status != Status.CANCELLED or answer.number not in self._going:
            await self._send(answer)

    async def _answer(self, order: Order) -> None:
        result, now = await self._result(order)
        self._going.add(order.number)
        try:
            await self._send(self._asked.done(order, result, now))
        except Exception as error:
            self._fail(error)
        finally:
            self._going.discard(order.number)

    async def _result(self, order: Order) -> tuple[object, float]:
        """What the handler returned or raised, and when."""
        task = asyncio.current_task()
        if order.cancelled or order.is_late(monotonic()) or task is None:
            return None, monotonic()
        self._running[order.number] = task
        result: object = None
        limit = asyncio.timeout(order.left(monotonic()))
        try:
            async with limit:
                result = await self._server._carry_out(order)
        except asyncio.CancelledError as error:
            if not order.cancelled:
                if task.cancelling():
                    raise
                result = error  # of something that the handler has awaited
        except Exception as error:
            result = error
        finally:
            del self._running[order.number]
        now = monotonic()
        return result, max(now, order.until or now) if limit.expired() else now

    async def _send(self, answer: Reply | Failure) -> None:
        try:
            async with asyncio.timeout(self._server._reply_timeout):
                try:
                    await self._messages.send(answer.pack())
                except MessageTooLongError as error:
                    await self._messages.send(too_long(answer, error))
        except TimeoutError:
            raise ClientStalledError(
                f"the client took no answer within {self._server._reply_timeout} s"
            ) from None
