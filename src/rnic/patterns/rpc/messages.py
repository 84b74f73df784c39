# SPDX-License-Identifier: Apache-2.0
"""Messages as steps of a pattern: what a connection or a channel does for request and reply."""

from __future__ import annotations

from asyncio import timeout
from collections.abc import Awaitable, Generator
from typing import NamedTuple, Protocol, TypeVar

__all__ = [
    "Abort",
    "AsyncMessagePort",
    "AsyncMessages",
    "MessagePort",
    "MessageSteps",
    "Messages",
    "Recv",
    "Send",
    "within",
]

T = TypeVar("T")
S = TypeVar("S")


class Messages(Protocol):
    """A thread's way to the other end, as rnic.Connection and credits.Channel are.

    send() returns when the message may be changed, and recv() raises EOFError behind the last message. Both
    raise TimeoutError; then the peer gets the whole message or nothing.
    """

    def send(self, message: bytes, timeout: float | None = None) -> None:
        """Send a message."""

    def recv(self, timeout: float | None = None) -> bytes:
        """Wait for the next message."""

    def abort(self, text: str) -> None:
        """End it at once, and tell the peer why."""


class AsyncMessages(Protocol):
    """The same for asyncio, as rnic.aio.Connection and credits.AsyncChannel are: a task sends, another
    receives.
    """

    async def send(self, message: bytes) -> None:
        """Send a message."""

    async def recv(self) -> bytes:
        """Wait for the next message."""

    async def abort(self, text: str) -> None:
        """End it at once, and tell the peer why."""


class Send:
    """Send a message; TimeoutError after so many seconds."""

    __slots__ = ("message", "timeout")

    def __init__(self, message: bytes, timeout: float | None) -> None:
        self.message, self.timeout = message, timeout


class Recv:
    """Put the next message into a list, unless one waits there; TimeoutError after so many seconds, EOFError.

    Whoever takes it out when it has dealt with it loses none, wherever the handler of a signal raises.
    """

    __slots__ = ("into", "timeout")

    def __init__(self, into: list[bytes], timeout: float | None) -> None:
        self.into, self.timeout = into, timeout


class Abort(NamedTuple):
    """End the connection at once, and tell the peer why."""

    text: str


MessageStep = Send | Recv | Abort
MessageSteps = Generator[MessageStep, None, T]


class MessagePort:
    """Messages, for a pattern whose ends say all by them."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def do(self, step: MessageStep) -> None:
        """Carry out a step."""
        if isinstance(step, Send):
            self._messages.send(step.message, step.timeout)
        elif isinstance(step, Recv):
            if not step.into:
                step.into.append(self._messages.recv(step.timeout))
        else:
            self._messages.abort(step.text)

    def check(self) -> None:
        """Nothing: each call of the messages says what has ended them."""


class AsyncMessagePort:
    """As MessagePort, for tasks."""

    def __init__(self, messages: AsyncMessages) -> None:
        self._messages = messages

    async def do(self, step: MessageStep) -> None:
        """Carry out a step."""
        if isinstance(step, Recv):
            if not step.into:
                step.into.append(await within(step.timeout, self._messages.recv()))
        elif isinstance(step, Send):
            await within(step.timeout, self._messages.send(step.message))
        else:
            await self._messages.abort(step.text)

    async def check(self) -> None:
        """Nothing: each call of the messages says what has ended them."""


def within(seconds: float | None, work: Awaitable[S]) -> Awaitable[S]:
    """The work, which raises TimeoutError after so many seconds."""
    return work if seconds is None else _limited(seconds, work)


async def _limited(seconds: float, work: Awaitable[S]) -> S:
    async with timeout(seconds):
        return await work
