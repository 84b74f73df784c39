# SPDX-License-Identifier: Apache-2.0
"""An end of tasks of asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rnic.patterns.chain import QueueError
from rnic.patterns.cursor import LiarError
from rnic.patterns.ports import run_async
from rnic.patterns.rendezvous.ends import LONGEST, Ends, blamed
from rnic.patterns.rendezvous.layout import Layout
from rnic.patterns.rendezvous.steps import Hear, Leave, More, Move, Say
from rnic.patterns.wait import left
from rnic.times import after

if TYPE_CHECKING:
    from types import TracebackType

    from rnic.patterns.credits import AsyncChannel
    from rnic.patterns.rendezvous.cache import RegistrationCache
    from rnic.patterns.rendezvous.layout import Buffers
    from rnic.patterns.rendezvous.sides import How
    from rnic.patterns.rendezvous.steps import Step, Steps

__all__ = ["AsyncRendezvous"]

T = TypeVar("T")


class _Port:
    """Carries out steps on a channel."""

    def __init__(self, channel: AsyncChannel) -> None:
        self._channel = channel

    async def do(self, step: Step) -> Any:
        channel = self._channel
        match step:
            case Leave(message):
                channel.leave(message)
            case Say(message, until, begins):
                async with asyncio.timeout(left(until)):
                    await channel.send(message, begins=begins)
            case Hear(until):
                async with asyncio.timeout(left(until)):
                    return await channel.recv()
            case More():
                return channel.is_waiting
            case Move(wrs, until, behind):
                try:
                    async with asyncio.timeout(left(until)):
                        await channel.carry_out(wrs, behind=behind)
                except QueueError as error:
                    raise blamed(error) from None
        return None

    async def check(self) -> None:
        if self._channel.error is not None:
            raise self._channel.error


class AsyncRendezvous(Ends):
    """As Rendezvous, for asyncio: asyncio.timeout() limits its calls, and one of them runs at a time.

    A cancelled call ends as one of a thread after TimeoutError.
    """

    def __init__(
        self,
        channel: AsyncChannel,
        how: How = "read",
        *,
        threshold: int | None = None,
        max_message: int = LONGEST,
        max_backlog: int = 16 << 20,
        cache: RegistrationCache | None = None,
    ) -> None:
        super().__init__(channel, how, threshold, max_message, max_backlog, cache)
        self._channel, self._port = channel, _Port(channel)

    async def send(self, message: Buffers) -> None:
        """Send a message: a buffer, a NumPy array, or a list of them, as Rendezvous.send()."""
        await self._do(self._dealings.send(Layout(message, "send()", False), None))

    async def recv(self) -> bytes:
        """Wait for the next message; EOFError when the peer has closed its end."""
        found = await self._do(self._dealings.recv(None, None))
        assert isinstance(found, bytes)
        return found

    async def recv_into(self, buffer: Buffers) -> int:
        """Wait for the next message, and put it into a buffer, as Rendezvous.recv_into()."""
        found = await self._do(self._dealings.recv(Layout(buffer, "recv_into()", True), None))
        assert isinstance(found, int)
        return found

    async def measure(self) -> int:
        """Find the threshold, as Rendezvous.measure(); the other end calls it, too."""
        try:
            return await self._do(self._dealings.measure(None))
        except BaseException:
            await self.abort("measure() has failed")
            raise

    async def close(self, timeout: float | None = 5.0) -> None:
        """Say that no message follows, and wait until the peer says so, too, as Rendezvous.close()."""
        if self._closed:
            return
        until = after(timeout)
        try:
            if self._channel.error is None:
                await self._do(self._dealings.settle(until))
            await self._channel.close(left(until))
        finally:
            await self.abort("close() has failed")

    async def abort(self, text: str = "the program ended the rendezvous") -> None:
        """End the channel at once, and tell the peer why; messages may be lost."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._channel.abort(text)
        finally:
            self._let_go()

    async def _do(self, steps: Steps[T]) -> T:
        self._check_open()
        if self._inside:
            raise RuntimeError("another task uses this rendezvous: one at a time may")
        self._inside = True
        try:
            return await run_async(self._port, steps)
        except LiarError as error:
            await self._channel.refuse(error)
            raise
        finally:
            self._inside = False
            if self._channel.error is not None:
                self._dealings.let_go()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort(f"the program failed with {kind.__name__}")
