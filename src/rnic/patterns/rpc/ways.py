# SPDX-License-Identifier: Apache-2.0
"""What calls need of that which carries their messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

__all__ = ["AsyncMessages", "Body", "Messages", "handlers_of"]

Body = bytes | bytearray | memoryview
T = TypeVar("T")


def handlers_of(handlers: Mapping[str, Callable[[bytes], T]]) -> dict[str, Callable[[bytes], T]]:
    """A server's own handlers; TypeError for one that is no function."""
    for name, handler in handlers.items():
        if not callable(handler):
            raise TypeError(f"{name}: give a function that takes the body, not {handler!r}")
    return dict(handlers)


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
