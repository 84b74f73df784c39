# SPDX-License-Identifier: Apache-2.0
"""The answering end, for threads and for tasks.

What is said to a client is written once. What differs is when handlers run. A thread carries out one call
after the other, so calls wait in a queue, and it looks for their CANCELs in between. An AsyncServer has a
task for each call, which a CANCEL or the deadline stops, and one more that reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rnic.endpoint.errors import MessageTooLongError
from rnic.patterns.cursor import LiarError
from rnic.patterns.ports import AsyncMessagePort, MessagePort, Recv, Send, run, run_async
from rnic.patterns.rpc.calls import Asked, Order
from rnic.patterns.rpc.errors import ClientStalledError, Status
from rnic.patterns.rpc.frames import Failure, Reply
from rnic.times import after, seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Mapping
    from concurrent.futures import Executor

    from rnic.patterns.ports import AsyncMessages, Messages

__all__ = ["AsyncServer", "Server"]

T = TypeVar("T")
Body = bytes | bytearray | memoryview
LEAVING = "the server takes no calls any more"
_MANY = 1024  # messages, after which it is time for a call
_SLOW = 1e-3  # seconds of a handler, after which others may have been cancelled meanwhile


class _Handle(NamedTuple):
    """The answer is what the handler of this call returns."""

    order: Order


Steps = Generator[Send | Recv | _Handle, Any, T]


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
    """What a server does for one client, as steps."""

    def __init__(self, server: _Server) -> None:
        self._server, self._asked = server, server._new_table()
        self._going: set[int] = set()  # whose answers are being sent

    def take(self, until: float | None) -> Steps[Order | None]:
        """Take the next message: a call to carry out, one that was cancelled, or nothing to do."""
        came: list[bytes] = []
        yield Recv(came, until)
        found = self._asked.message(came[0], monotonic(), self._server._leaving)
        if isinstance(found, Order):
            return found
        # A call has one answer: a CANCEL that meets it on its way gets none, which could overtake it.
        if found.status != Status.CANCELLED or found.number not in self._going:
            yield from self.send(found)
        return None

    def answer(self, order: Order) -> Steps[float]:
        """Carry out a call, and send its answer; the seconds that the handler took."""
        began, result = monotonic(), None
        if not order.cancelled and not order.is_late(began):
            try:
                result = yield _Handle(order)
            except Exception as error:
                result = error
        ended = monotonic()
        self._going.add(order.number)
        yield from self.send(self._asked.done(order, result, ended))
        self._going.discard(order.number)
        return ended - began

    def send(self, answer: Reply | Failure) -> Steps[None]:
        """Send an answer, or say that the client does not take it."""
        timeout = self._server._reply_timeout
        try:
            try:
                yield Send(answer.pack(), after(timeout))
            except MessageTooLongError as error:
                refusal = Failure(answer.number, Status.TOO_LONG, "", f"the reply: {error}")
                yield Send(refusal.pack(), after(timeout))
        except TimeoutError:
            raise ClientStalledError(f"the client took no answer within {timeout} s") from None


# ---------------------------------------------------------------- for threads


class _ThreadSession(_Session, MessagePort):
    """With a client of a Server."""

    def __init__(self, server: Server, messages: Messages) -> None:
        _Session.__init__(self, server)
        MessagePort.__init__(self, messages)

    def do(self, step: Any) -> Any:
        """Carry out a step."""
        if isinstance(step, _Handle):
            return self._server._handlers[step.order.method](step.order.body)
        return super().do(step)

    def one_by_one(self) -> Steps[None]:
        """Take calls, and carry out one after the other, until the client closes its end: EOFError."""
        waiting, took = deque[Order](), 0.0
        while True:
            if not waiting:
                yield from self._add(waiting, None)
            if took > _SLOW:
                with suppress(TimeoutError):  # no more has come
                    for _ in range(_MANY):
                        yield from self._add(waiting, 0)
            if waiting:
                took = yield from self.answer(waiting.popleft())

    def _add(self, waiting: deque[Order], until: float | None) -> Steps[None]:
        order = yield from self.take(until)
        if order is not None and not order.cancelled:
            waiting.append(order)


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
            session = _ThreadSession(self, messages)
            run(session, session.one_by_one())
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


class _TaskSession(_Session, AsyncMessagePort):
    """With a client of an AsyncServer."""

    _server: AsyncServer

    def __init__(self, server: AsyncServer, messages: AsyncMessages) -> None:
        _Session.__init__(self, server)
        AsyncMessagePort.__init__(self, messages)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._running: dict[int, asyncio.Task[Any] | None] = {}  # whose handlers can be cancelled, by number
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Until the client closes its end, which raises EOFError, or the server has answered all."""
        own = [self._begin(self._read()), self._begin(self._leave())]
        self._tasks.difference_update(own)
        try:
            await self._over
        finally:
            left = [*own, *self._tasks]
            for task in left:
                task.cancel()
            await asyncio.wait(left)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task; what it raises ends all."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._over.done():
            self._over.set_exception(error)

    async def _read(self) -> None:
        while True:
            order = await run_async(self, self.take(None))
            if order is not None and not order.cancelled:
                self._begin(run_async(self, self.answer(order)))
            elif order is not None and (running := self._running.get(order.number)) is not None:
                running.cancel()

    async def _leave(self) -> None:
        await self._server._closed.wait()
        await run_async(self, self.send(Failure(0, Status.LEAVING, "", self._server._leaving or "")))
        while self._tasks:
            await asyncio.wait(self._tasks)
        if not self._over.done():
            self._over.set_result(None)

    async def do(self, step: Any) -> Any:
        """Carry out a step."""
        if not isinstance(step, _Handle):
            return await super().do(step)
        order, server = step.order, self._server
        if server._executor is None and order.method not in server._awaited:
            return server._handlers[order.method](order.body)
        return await self._handle(order, server._handlers[order.method])

    async def _handle(self, order: Order, handler: Callable[[bytes], Any]) -> Any:
        """Until its deadline, or until it is cancelled."""
        task = self._running[order.number] = asyncio.current_task()
        limit = asyncio.timeout(order.left(monotonic()))
        try:
            async with limit:
                if order.method in self._server._awaited:
                    return await handler(order.body)
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._server._executor, handler, order.body)
        except asyncio.CancelledError as error:
            if task is not None and task.cancelling() and not order.cancelled:
                raise
            return error  # of something that the handler has awaited, if the call was not cancelled
        finally:
            del self._running[order.number]
            if limit.expired():
                order.until = 0.0  # over, also if the loop's timer was early by a little


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
