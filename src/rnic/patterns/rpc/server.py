# SPDX-License-Identifier: Apache-2.0
"""Calls that a thread answers."""

from __future__ import annotations

from collections import deque
from functools import partial
from inspect import iscoroutinefunction
from time import monotonic
from typing import TYPE_CHECKING

from rnic.endpoint.errors import MessageTooLongError
from rnic.patterns.cursor import LiarError
from rnic.patterns.rpc.calls import Asked, Order
from rnic.patterns.rpc.errors import ClientStalledError, Status
from rnic.patterns.rpc.frames import Failure, Reply
from rnic.patterns.rpc.ways import handlers_of
from rnic.times import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rnic.patterns.rpc.ways import Body, Messages

__all__ = ["Server"]

_MANY = 1024  # messages, after which it is time for a call
_SLOW = 1e-3  # seconds of a handler, after which others may have been cancelled meanwhile
LEAVING = "the server takes no calls any more"


def is_async(handler: Callable[..., object]) -> bool:
    """Whether a call of the handler has to be awaited."""
    return iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def too_long(answer: Reply | Failure, error: MessageTooLongError) -> bytes:
    """What goes in place of an answer that the client does not take."""
    return Failure(answer.number, Status.TOO_LONG, "", f"the reply: {error}").pack()


class Server:
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
        for name, handler in handlers.items():
            if is_async(handler):
                raise TypeError(f"{name}: an async function: AsyncServer calls such")
        self._handlers = handlers_of(handlers)
        self._new_table = partial(Asked, frozenset(handlers), limit, max_body)
        self._new_table()  # says what is wrong with the limits
        self._reply_timeout = seconds(reply_timeout, "reply_timeout")
        self._leaving: str | None = None

    def __repr__(self) -> str:
        return f"<Server of {', '.join(sorted(self._handlers))}>"

    def serve(self, messages: Messages) -> None:
        """Answer the calls of one client, until it closes its end; then return.

        It is an agent for rnic.Listener.serve(). Raises LiarError if the client breaks the protocol, when
        the connection has been aborted, ClientStalledError when it takes no answers, or what the connection
        raises.
        """
        asked, waiting, slow = self._new_table(), deque[Order](), False
        try:
            while True:
                if not waiting:
                    self._take(messages, asked, waiting, None)
                if slow:
                    self._take_all(messages, asked, waiting)
                if waiting:
                    slow = self._answer_next(messages, asked, waiting.popleft())
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

    def _take(self, messages: Messages, asked: Asked, waiting: deque[Order], timeout: float | None) -> None:
        """Take the next message."""
        found = asked.message(messages.recv(timeout), monotonic(), self._leaving)
        if isinstance(found, Failure):
            self._send(messages, found)
        elif found is not None and not found.cancelled:
            waiting.append(found)

    def _take_all(self, messages: Messages, asked: Asked, waiting: deque[Order]) -> None:
        """Take those that have come, among which may be a CANCEL."""
        for _ in range(_MANY):
            try:
                self._take(messages, asked, waiting, 0)
            except TimeoutError:
                return

    def _answer_next(self, messages: Messages, asked: Asked, order: Order) -> bool:
        """Carry out one call; whether it took long."""
        began = monotonic()
        result: object = None
        if not order.cancelled and not order.is_late(began):
            try:
                result = self._handlers[order.method](order.body)
            except Exception as error:
                result = error
        ended = monotonic()
        self._send(messages, asked.done(order, result, ended))
        return ended - began > _SLOW

    def _send(self, messages: Messages, answer: Reply | Failure) -> None:
        try:
            messages.send(answer.pack(), self._reply_timeout)
        except MessageTooLongError as error:
            messages.send(too_long(answer, error), self._reply_timeout)
        except TimeoutError:
            raise ClientStalledError(f"the client took no answer within {self._reply_timeout} s") from None
