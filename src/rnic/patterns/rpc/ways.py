# SPDX-License-Identifier: Apache-2.0
"""What calls need of that which carries their messages."""

from __future__ import annotations

from typing import Protocol

__all__ = ["AsyncMessages", "Body", "Messages"]

Body = bytes | bytearray | memoryview


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
