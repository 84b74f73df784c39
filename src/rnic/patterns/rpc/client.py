# SPDX-License-Identifier: Apache-2.0
"""Calls from a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from rnic.endpoint import MessageTooLongError
from rnic.patterns.cursor import LiarError
from rnic.patterns.rpc.calls import Asking
from rnic.patterns.rpc.errors import DeadlineError, as_exception
from rnic.patterns.rpc.frames import Failure, Reply
from rnic.patterns.turn import Turn
from rnic.patterns.wait import left
from rnic.times import after

if TYPE_CHECKING:
    from rnic.patterns.rpc.ways import Messages

__all__ = ["Client", "Future"]

LIMIT = 16  # what an rnic.Connection carries without a step of Python per message; more is slower
WINDOW = 1 << 19  # half of what rnic.Config.max_backlog is by default


class Future:
    """A call on its way; Client.start() makes it. It makes progress while a method of its client runs."""

    def __init__(self, client: Client, method: str, until: float | None) -> None:
        self._client, self._method, self._until = client, method, until
        self._reply: bytes | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether result() returns or raises at once; it does not look for messages."""
        return self._reply is not None or self._error is not None

    def result(self, timeout: float | None = None) -> bytes:
        """Wait for the reply, and return its body.

        Raises RemoteError, if the handler raised; RefusedCallError; DeadlineError, if the call's own time
        is over; concurrent.futures.CancelledError after cancel(); TimeoutError after `timeout` seconds,
        when the call goes on; or what the connection raises.
        """
        until = after(timeout)
        if not self.done():
            self._client._in_turn(lambda: self._client._wait(self, until))
        if self._error is not None:
            raise self._error
        assert self._reply is not None
        return self._reply

    def cancel(self) -> bool:
        """Tell the server that nobody waits for this call; False if it is done already.

        The server drops the call if it has not begun; an async handler is cancelled.
        """
        if self.done():
            return False
        error = CancelledError(f"{self._method}: it was cancelled")
        self._client._in_turn(lambda: self._client._give_up(self, error))
        return True

    def _end(self, reply: bytes | None, error: BaseException | None = None) -> None:
        if not self.done():
            self._reply, self._error = reply, error


class Client:
    """Calls to the server at the other end of a connection; one thread at a time uses it, as the connection.

    The connection stays the program's, which closes it, and which sends and receives nothing else on it
    meanwhile. It may be an rnic.Connection, a credits.Channel, or anything that is like them (Messages).

    limit: calls that can wait for their answers, those that were given up included; the server has a limit
    of its own; beyond 16 a connection of rnic gets slower. window: how many bytes they have together,
    unless there is but one call; not more than the server's inbox holds (rnic.Config.max_backlog).
    max_body: bytes of the longest body.
    """

    def __init__(
        self, messages: Messages, *, limit: int = LIMIT, window: int = WINDOW, max_body: int = 16 << 20
    ) -> None:
        self._messages = messages
        self._asking: Asking[Future] = Asking(limit, window, max_body)
        self._turn = Turn("client")
        self._error: BaseException | None = None
        self._untold: deque[bytes] = deque()  # CANCELs that did not go
        self._came: tuple[bytes, int] | None = None
        """An answer, and the call that it has ended, or -1: what an exception has broken off goes on so."""

    def __repr__(self) -> str:
        return f"<Client: {self.outstanding} calls outstanding, by {self._messages!r}>"

    @property
    def outstanding(self) -> int:
        """Calls that the server has not answered, also those that were given up."""
        return len(self._asking)

    def call(self, method: str, body: bytes = b"", timeout: float | None = None) -> bytes:
        """Call a method, and return the reply's body: start(), and result()."""
        return self.start(method, body, timeout).result()

    def start(self, method: str, body: bytes = b"", timeout: float | None = None) -> Future:
        """Begin a call, and return while it is on its way; `timeout` is its deadline, in seconds, at both
        ends.

        Waits while the limit is reached, or the window is full, and takes answers meanwhile. Raises
        ValueError for a body or a name that is too long, DeadlineError, or what the connection raises.
        """
        until = after(timeout)
        nbytes = self._asking.check(method, body)
        future = Future(self, method, until)
        try:
            self._in_turn(lambda: self._begin(future, body, nbytes))
        except DeadlineError:
            raise
        except TimeoutError:
            raise DeadlineError(f"{method}: the call did not go within {timeout} s") from None
        return future

    def _in_turn(self, call: Callable[[], None]) -> None:
        self._turn.run(call, 0, RuntimeError("another thread uses this client: one at a time may"))

    def _begin(self, future: Future, body: bytes, nbytes: int) -> None:
        until = future._until
        try:
            self._tell(left(until))
            while not self._asking.has_room(nbytes):
                self._look(until)
            self._check()
            remaining = left(until)
            _, frame = self._asking.begin(future._method, body, remaining, future)
            self._send(future, frame, remaining)
        except TimeoutError:
            raise
        except BaseException:  # of a handler of a signal, perhaps: it may yet go, and then it is answered
            self._withdraw(future)
            raise

    def _send(self, future: Future, frame: bytes, timeout: float | None) -> None:
        try:
            self._messages.send(frame, timeout)
        except MessageTooLongError:  # nothing has gone; with an exception of a signal's handler it may have
            self._asking.over_with(self._asking.number_of(future))
            raise
        except OSError as error:
            self._withdraw(future)
            if not isinstance(error, TimeoutError):
                self._fail(error)
            raise

    def _withdraw(self, future: Future) -> bool:
        """Nobody waits for the call any more, if it waits; the server is to be told."""
        cancel = self._asking.give_up(self._asking.number_of(future))
        if cancel is not None:
            self._untold.append(cancel)
        return cancel is not None

    def _wait(self, future: Future, until: float | None) -> None:
        """Until it is done, or TimeoutError."""
        own = future._until
        first = own if until is None else until if own is None else min(own, until)
        try:
            while not future.done():
                self._look(first)
        except TimeoutError:
            if first != own:
                raise TimeoutError(f"{future._method}: no answer in time; the call goes on") from None
            self._give_up(future, DeadlineError(f"{future._method}: no answer before its deadline"))

    def _give_up(self, future: Future, error: BaseException) -> None:
        future._end(None, error)
        if self._error is None and self._withdraw(future):
            with suppress(OSError):  # it goes ahead of the next call
                self._tell(0)

    def _tell(self, timeout: float | None) -> None:
        """Say which calls were given up."""
        while self._untold and self._error is None:
            self._messages.send(self._untold[0], timeout)
            self._untold.popleft()

    def _look(self, until: float | None) -> None:
        """Take the next answer; TimeoutError."""
        self._check()
        try:
            if self._came is None:
                self._came = self._messages.recv(left(until)), -1
        except TimeoutError:
            raise
        except (EOFError, OSError) as error:
            self._fail(self._asking.over() if isinstance(error, EOFError) else error)
            self._check()
            raise
        message, ended = self._came
        if ended < 0:
            ended = self._take(message)
            self._came = message, ended
        self._asking.over_with(ended)
        self._came = None

    def _take(self, message: bytes) -> int:
        """End the call that it answers; its number. A second time does nothing."""
        try:
            waiter, answer = self._asking.find(message)
        except LiarError as error:
            self._fail(error)
            self._messages.abort(str(error))
            raise
        if waiter is not None and isinstance(answer, Reply):
            waiter._end(answer.body)
        elif waiter is not None and isinstance(answer, Failure):
            waiter._end(None, as_exception(answer.status, answer.kind, answer.text))
        return answer.number

    def _fail(self, error: BaseException) -> None:
        """No answer comes any more."""
        self._error = error
        for future in self._asking.all_over():
            future._end(None, error)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up all calls that wait; the connection stays open."""
        for future in self._asking.waiters():
            future.cancel()
