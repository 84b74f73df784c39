# SPDX-License-Identifier: Apache-2.0
"""The answering end, for threads and for tasks.

What is said to a client is written once. What differs is when handlers run. A thread carries out one call
after the other, so calls wait in a queue, and it looks for their CANCELs in between. An AsyncServer has a
task for each call, which a CANCEL or the deadline stops, and one more that reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from inspect import iscoroutinefunction
from time import monotonic
from typing import TYPE_CHECKING, Any

from rnic.endpoint.errors import MessageTooLongError
from rnic.patterns.cursor import LiarError
from rnic.patterns.ports import run, run_async
from rnic.patterns.rpc.calls import Asked, Order
from rnic.patterns.rpc.errors import ClientStalledError, Status
from rnic.patterns.rpc.frames import Failure, Reply
from rnic.patterns.rpc.messages import AsyncMessagePort, MessagePort, Recv, Send, within
from rnic.times import seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from concurrent.futures import Executor

    from rnic.patterns.rpc.messages import AsyncMessages, Messages, MessageSteps

__all__ = ["AsyncServer", "Server"]

Body = bytes | bytearray | memoryview
LEAVING = "the server takes no calls any more"
_MANY = 1024  # messages, after which it is time for a call
_SLOW = 1e-3  # seconds of a handler, after which others may have been cancelled meanwhile


def _is_async(handler: Callable[..., object]) -> bool:
    """Whether a call of the handler has to be awaited."""
    return iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


class _Server:
    """What a server knows for all of its clients."""

    def __init__(
        self, handlers: Mapping[str, Callable[..., Any]], limit: int, max_body: int, timeout: float | None
    ) -> None:
        for name, handler in handlers.items():
            if not callable(handler):
                raise TypeError(f"{name}: give a function that takes the body, not {handler!r}")
        self._handlers = dict(handlers)
        self._awaited = {name for name, handler in handlers.items() if _is_async(handler)}
        self._new_table = partial(Asked, frozenset(handlers), limit, max_body)
        self._new_table()  # says what is wrong with the limits
        self._reply_timeout = seconds(timeout, "reply_timeout")
        self._leaving: str | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(sorted(self._handlers))}>"


class _Session:
    """What a server and one client say to each other, as steps."""

    def __init__(self, server: _Server) -> None:
        self._server, self._asked = server, server._new_table()
        self._came: list[bytes] = []
        self._next = Recv(self._came, None)
        self._going: set[int] = set()  # whose answers are being sent

    def taken(self) -> Order | Failure | None:
        """Of the message that has come: a call to carry out, a refusal to send, or nothing to do."""
        found = self._asked.message(self._came.pop(), monotonic(), self._server._leaving)
        if isinstance(found, Order):
            return None if found.cancelled else found
        # A call has one answer: a CANCEL that meets it on its way gets none, which could overtake it.
        return None if found.status == Status.CANCELLED and found.number in self._going else found

    def send(self, answer: Reply | Failure) -> MessageSteps[None]:
        """Send an answer, or say that the client does not take it."""
        timeout = self._server._reply_timeout
        try:
            try:
                yield Send(answer.pack(), timeout)
            except MessageTooLongError as error:
                refusal = Failure(answer.number, Status.TOO_LONG, "", f"the reply: {error}")
                yield Send(refusal.pack(), timeout)
        except TimeoutError:
            raise ClientStalledError(f"the client took no answer within {timeout} s") from None


# ---------------------------------------------------------------- for threads


class _ThreadSession(_Session):
    """With a client of a Server."""

    def serve(self) -> MessageSteps[None]:
        """Take calls, and carry out one after the other, until the client closes its end: EOFError."""
        waiting, looks = deque[Order](), 0
        while True:
            while looks or not waiting:
                try:
                    yield Recv(self._came, 0) if waiting else self._next
                except TimeoutError:
                    if waiting:  # no more has come
                        break
                    raise
                looks -= looks > 0
                if isinstance(found := self.taken(), Order):
                    waiting.append(found)
                elif found is not None:
                    yield from self.send(found)
            order, began = waiting.popleft(), monotonic()
            result = self._result(order, began)
            ended = monotonic()
            looks = _MANY if ended - began > _SLOW else 0  # a CANCEL may have come
            yield from self.send(self._asked.done(order, result, ended))

    def _result(self, order: Order, now: float) -> object:
        """What the handler returns or raises."""
        if order.cancelled or order.is_late(now):
            return None
        try:
            return self._server._handlers[order.method](order.body)
        except Exception as error:
            return error


class Server(_Server):
    """Answers calls by plain functions, each in the thread that serves its client, one after the other.

    handlers: by the names of methods, functions that take the body and return the reply's body. An
    exception goes to the client, as RemoteError. limit: calls of one client that can wait for their
    answers. max_body: bytes of the longest body, of all bodies of one client that wait, and of the longest
    reply. reply_timeout: seconds that a client may take no answer, after which it loses the connection.
    """

    def __init__(
        self,
        handlers: Mapping[str, Callable[[bytes], Body]],
        *,
        limit: int = 256,
        max_body: int = 16 << 20,
        reply_timeout: float | None = 30.0,
    ) -> None:
        super().__init__(handlers, limit, max_body, reply_timeout)
        for name in self._awaited:
            raise TypeError(f"{name}: an async function: AsyncServer calls such")

    def serve(self, messages: Messages) -> None:
        """Answer the calls of one client, until it closes its end; then return.

        It is an agent for rnic.Listener.serve(). Raises LiarError if the client breaks the protocol, when
        the connection has been aborted, ClientStalledError when it takes no answers, or what the connection
        raises.
        """
        try:
            run(MessagePort(messages), _ThreadSession(self).serve())
        except EOFError:
            return
        except (LiarError, ClientStalledError) as error:
            messages.abort(str(error))
            raise

    def close(self, text: str = LEAVING) -> None:
        """Take no calls any more, of any client; from any thread. Calls that came before are answered,
        later ones are refused with this text (RefusedCallError, Status.LEAVING). serve() returns when its
        client has gone.
        """
        self._leaving = text


# ---------------------------------------------------------------- for tasks


class _TaskSession(_Session):
    """With a client of an AsyncServer."""

    _server: AsyncServer

    def __init__(self, server: AsyncServer, messages: AsyncMessages) -> None:
        super().__init__(server)
        self._port = AsyncMessagePort(messages)
        self._tasks: set[asyncio.Task[None]] = set()  # one for each call

    async def serve(self) -> None:
        """Until the client closes its end, which raises EOFError, or the server has answered all."""
        try:
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(run_async(self._port, self._read(group)))
                await self._server._closed.wait()
                leaving = Failure(0, Status.LEAVING, "", self._server._leaving or "")
                await run_async(self._port, self.send(leaving))
                while self._tasks:
                    await asyncio.wait(self._tasks)
                reader.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _read(self, group: asyncio.TaskGroup) -> MessageSteps[None]:
        while True:
            yield self._next
            if isinstance(found := self.taken(), Order):
                task = group.create_task(self._answer(found))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif found is not None:
                yield from self.send(found)

    async def _answer(self, order: Order) -> None:
        result: object = None
        if not order.cancelled and not order.is_late(monotonic()):
            try:
                result = await self._result(order, self._server._handlers[order.method])
            except Exception as error:
                result = error
        self._going.add(order.number)
        await run_async(self._port, self.send(self._asked.done(order, result, monotonic())))
        self._going.discard(order.number)

    async def _result(self, order: Order, handler: Callable[[bytes], Any]) -> object:
        """What the handler returns; until the deadline, or until the call is cancelled."""
        executor, awaited = self._server._executor, order.method in self._server._awaited
        if not awaited and executor is None:
            return handler(order.body)
        left = order.left(monotonic())
        order.task = task = asyncio.current_task()
        try:
            if awaited:
                return await within(left, handler(order.body))
            loop = asyncio.get_running_loop()
            return await within(left, loop.run_in_executor(executor, handler, order.body))
        except asyncio.CancelledError as error:
            if task is not None and task.cancelling() and not order.cancelled:
                raise
            return error  # of something that the handler has awaited, if the call was not cancelled
        finally:
            order.task = None


class AsyncServer(_Server):
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
        super().__init__(handlers, limit, max_body, reply_timeout)
        self._executor = executor
        self._closed = asyncio.Event()

    async def serve(self, messages: AsyncMessages) -> None:
        """Answer the calls of one client, until it closes its end; or after close(), until none waits.

        It is an agent for rnic.aio.Listener.serve(). Raises LiarError if the client breaks the protocol,
        ClientStalledError when it takes no answers, in both cases after the connection was aborted; or what
        the connection raises. Calls that are not done by then are cancelled.
        """
        try:
            await _TaskSession(self, messages).serve()
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
