# SPDX-License-Identifier: Apache-2.0
"""The calling end, for threads and for tasks.

What a client says and hears is written once. What differs is who takes the answers: a thread does while it
waits. Of tasks many wait at a time, and one more takes the answers for all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Self

from rnic.endpoint.errors import ClosedError, MessageTooLongError
from rnic.patterns.cursor import LiarError
from rnic.patterns.ports import run, run_async
from rnic.patterns.rpc.calls import Asking
from rnic.patterns.rpc.errors import DeadlineError, as_exception
from rnic.patterns.rpc.frames import Failure, Reply
from rnic.patterns.rpc.messages import Abort, AsyncMessagePort, MessagePort, Recv, Send
from rnic.patterns.turn import Turn
from rnic.patterns.wait import left
from rnic.times import after

if TYPE_CHECKING:
    from rnic.patterns.rpc.messages import AsyncMessages, Messages, MessageSteps

__all__ = ["AsyncClient", "Client", "Future"]

LIMIT = 16  # what an rnic.Connection carries without a step of Python per message; more is slower
WINDOW = 1 << 19  # half of what rnic.Config.max_backlog is by default


class _Call:
    """A call on its way."""

    _number = 0
    _answer: Reply | Failure | BaseException | None = None
    _woken: asyncio.Future[None] | None = None  # of the task that waits

    def __init__(self, method: str, until: float | None) -> None:
        self._method, self._until = method, until

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _reply(self) -> bytes:
        answer = self._answer
        if isinstance(answer, Reply):
            return answer.body
        assert answer is not None
        raise as_exception(answer.status, answer.kind, answer.text) if isinstance(answer, Failure) else answer


class _Caller:
    """What a client does, as steps."""

    _unsent: tuple[type[Exception], ...]
    """What send() raises when nothing has gone; of other exceptions that is not known."""

    def __init__(self, messages: Messages | AsyncMessages, limit: int, window: int, max_body: int) -> None:
        self._messages = messages
        self._asking: Asking[_Call] = Asking(limit, window, max_body)
        self._error: BaseException | None = None
        self._untold: deque[bytes] = deque()  # CANCELs that did not go
        self._came: list[bytes] = []  # an answer, until its call has it
        self._next = Recv(self._came, None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.outstanding} calls outstanding, by {self._messages!r}>"

    @property
    def outstanding(self) -> int:
        """Calls that the server has not answered, also those that were given up."""
        return len(self._asking)

    def _ask(self, call: _Call, body: bytes, until: float | None) -> MessageSteps[None]:
        """Begin a call, for which there is room."""
        self._check()
        remaining = None if call._until is None else left(call._until)
        try:
            call._number, frame = self._asking.begin(call._method, body, remaining, call)
            yield Send(frame, None if until is None else remaining)
        except self._unsent:
            self._asking.over_with(call._number)
            raise
        except BaseException:  # it may yet go, and then it is answered
            self._withdraw(call)
            raise

    def _withdraw(self, call: _Call) -> None:
        """Nobody waits for the call any more; if it has no answer, the server is to be told."""
        if (cancel := self._asking.give_up(call._number)) is not None:
            self._untold.append(cancel)

    def _tell(self, until: float | None) -> MessageSteps[None]:
        """Say which calls were given up."""
        while self._untold and self._error is None:
            yield Send(self._untold[0], left(until))
            self._untold.popleft()

    def _hear(self, until: float | None) -> MessageSteps[None]:
        """Take the next answer; TimeoutError."""
        self._check()
        try:
            yield self._next if until is None else Recv(self._came, left(until))
        except TimeoutError:
            raise
        except (EOFError, OSError) as error:
            self._fail(self._asking.over() if isinstance(error, EOFError) else error)
            self._check()
        try:
            call, answer = self._asking.answer(self._came[0])
        except LiarError as error:
            self._fail(error)
            yield Abort(str(error))
            raise
        del self._came[:]  # no signal's handler runs from the end of answer() until the call has its answer
        if call is not None:
            call._answer, call._number = answer, 0  # another call may have the number now
            call._wake()

    def _fail(self, error: BaseException) -> None:
        """No answer comes any more."""
        self._error = self._error or error
        for call in self._asking.all_over():
            call._answer = error
            call._wake()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


# ---------------------------------------------------------------- for threads


class Future(_Call):
    """A call on its way; Client.start() makes it. It makes progress while a method of its client runs."""

    def __init__(self, client: Client, method: str, until: float | None) -> None:
        self._client, self._method, self._until = client, method, until

    def done(self) -> bool:
        """Whether result() returns or raises at once; it does not look for messages."""
        return self._answer is not None

    def result(self, timeout: float | None = None) -> bytes:
        """Wait for the reply, and return its body.

        Raises RemoteError, if the handler raised; RefusedCallError; DeadlineError, if the call's own time
        is over; concurrent.futures.CancelledError after cancel(); TimeoutError after `timeout` seconds,
        when the call goes on; or what the connection raises.
        """
        until = after(timeout)
        if not self.done():
            self._client._run(self._client._wait(self, until))
        return self._reply()

    def cancel(self) -> bool:
        """Tell the server that nobody waits for this call; False if it is done already.

        The server drops the call if it has not begun; an async handler is cancelled.
        """
        if self.done():
            return False
        self._client._cancel(self)
        return True


class Client(_Caller):
    """Calls to the server at the other end of a connection; one thread at a time uses it, as the connection.

    The connection stays the program's, which closes it, and which sends and receives nothing else on it
    meanwhile. It may be an rnic.Connection, a credits.Channel, or anything that is like them (Messages).

    limit: calls that can wait for their answers, those that were given up included; the server has a limit
    of its own; beyond 16 a connection of rnic gets slower. window: how many bytes they have together,
    unless there is but one call; not more than the server's inbox holds (rnic.Config.max_backlog).
    max_body: bytes of the longest body.
    """

    _unsent = (MessageTooLongError,)

    def __init__(
        self, messages: Messages, *, limit: int = LIMIT, window: int = WINDOW, max_body: int = 16 << 20
    ) -> None:
        super().__init__(messages, limit, window, max_body)
        self._port = MessagePort(messages)
        self._turn = Turn("client")

    def call(self, method: str, body: bytes = b"", timeout: float | None = None) -> bytes:
        """Call a method, and return the reply's body: start(), and result()."""
        future = Future(self, method, None if timeout is None else after(timeout))
        self._run(self._call(future, body, self._asking.check(method, body), timeout))
        return future._reply()

    def start(self, method: str, body: bytes = b"", timeout: float | None = None) -> Future:
        """Begin a call, and return while it is on its way; `timeout` is its deadline, in seconds, at both
        ends.

        Waits while the limit is reached, or the window is full, and takes answers meanwhile. Raises
        ValueError for a body or a name that is too long, DeadlineError, or what the connection raises.
        """
        future = Future(self, method, None if timeout is None else after(timeout))
        self._run(self._start(future, body, self._asking.check(method, body), timeout))
        return future

    def _run(self, steps: MessageSteps[None]) -> None:
        busy = RuntimeError("another thread uses this client: one at a time may")
        self._turn.run(partial(run, self._port, steps), 0, busy)

    def _call(self, call: _Call, body: bytes, nbytes: int, timeout: float | None) -> MessageSteps[None]:
        yield from self._start(call, body, nbytes, timeout)
        yield from self._wait(call, None)

    def _start(self, call: _Call, body: bytes, nbytes: int, timeout: float | None) -> MessageSteps[None]:
        until = call._until
        try:
            if self._untold:
                yield from self._tell(until)
            while not self._asking.has_room(nbytes):
                yield from self._hear(until)
            yield from self._ask(call, body, until)
        except TimeoutError:
            raise DeadlineError(f"{call._method}: the call did not go within {timeout} s") from None

    def _wait(self, call: _Call, until: float | None) -> MessageSteps[None]:
        """Until it has its answer, or TimeoutError."""
        own = call._until
        first = own if until is None else until if own is None else min(own, until)
        try:
            while call._answer is None:
                yield from self._hear(first)
        except TimeoutError:
            if first != own:
                raise TimeoutError(f"{call._method}: no answer in time; the call goes on") from None
            yield from self._give_up(call, DeadlineError(f"{call._method}: no answer before its deadline"))

    def _give_up(self, call: _Call, error: BaseException) -> MessageSteps[None]:
        call._answer = call._answer or error
        self._withdraw(call)
        with suppress(OSError):  # it goes ahead of the next call
            yield from self._tell(0)

    def _cancel(self, call: _Call) -> None:
        self._run(self._give_up(call, CancelledError(f"{call._method}: it was cancelled")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up all calls that wait; the connection stays open."""
        for call in self._asking.waiters():
            self._cancel(call)


# ---------------------------------------------------------------- for tasks


class AsyncClient(_Caller):
    """As Client, for asyncio: many tasks may call at the same time. An async context manager.

    The connection stays the program's, which closes it after close(), and which does not receive on it
    meanwhile.
    """

    _unsent = (ValueError, TypeError, RuntimeError)  # it is too long, or the connection of no use here

    def __init__(
        self, messages: AsyncMessages, *, limit: int = LIMIT, window: int = WINDOW, max_body: int = 16 << 20
    ) -> None:
        super().__init__(messages, limit, window, max_body)
        self._port = AsyncMessagePort(messages)
        self._gate, self._room = asyncio.Lock(), asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._teller: asyncio.Task[None] | None = None

    async def call(self, method: str, body: bytes = b"", timeout: float | None = None) -> bytes:
        """Call a method, and return the reply's body; `timeout` is the deadline, in seconds, at both ends.

        Waits while the limit is reached, or the window is full. If the task is cancelled, the server is
        told: an async handler is cancelled. Raises ValueError for a body or a name that is too long;
        RemoteError, if the handler raised; RefusedCallError; DeadlineError; or what the connection raises.
        """
        call = _Call(method, after(timeout))
        woken = call._woken = asyncio.get_running_loop().create_future()
        nbytes = self._asking.check(method, body)
        self._check()
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        try:
            async with asyncio.timeout(timeout) as limit:
                if self._gate.locked() or not self._asking.has_room(nbytes):
                    await self._wait_for_room(nbytes)
                await run_async(self._port, self._ask(call, body, None))
                await woken
        except TimeoutError:
            if limit.expired():
                raise DeadlineError(f"{method}: no answer within {timeout} s") from None
            raise
        finally:
            self._withdraw(call)
        return call._reply()

    async def _wait_for_room(self, nbytes: int) -> None:
        async with self._gate:  # the first one waits, and the others behind it
            while not self._asking.has_room(nbytes):
                self._room.clear()
                await self._room.wait()
                self._check()

    def _withdraw(self, call: _Call) -> None:
        super()._withdraw(call)
        if self._untold and self._error is None and (self._teller is None or self._teller.done()):
            self._teller = asyncio.create_task(self._tell_all())

    async def _tell_all(self) -> None:
        with suppress(OSError):  # of which the reader learns
            await run_async(self._port, self._tell(None))

    async def _read(self) -> None:
        try:
            await run_async(self._port, self._hear_all())
        except Exception as error:
            self._fail(error)

    def _hear_all(self) -> MessageSteps[None]:
        while True:
            yield from self._hear(None)
            self._room.set()

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        self._room.set()

    async def close(self) -> None:
        """Take no answers any more: calls that wait raise ClosedError; the connection stays open."""
        self._fail(ClosedError("the client was closed"))
        tasks = [task for task in (self._reader, self._teller) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
