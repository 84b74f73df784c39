# SPDX-License-Identifier: Apache-2.0
"""What all servers have: the invitation of a client, and what is done when the client's connection has ended.

A client is let in by three things: its number, the region (conn.share), and the invitation (a message). From
then on the server waits for the end of the connection. Then it revokes the region, so that nothing of the
client can come any more, and only then takes back what the client held: a client that is not dead, but out of
reach, cannot write into what others have locked meanwhile.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar, Protocol

from rnic.enums import AccessFlags
from rnic.patterns.onesided.guest import COUNT, OWNER
from rnic.patterns.onesided.invitation import Invitation
from rnic.patterns.revoking import take_back, take_back_async

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rnic import Connection
    from rnic._nic.nic import MR
    from rnic.aio import Connection as AsyncConnection

__all__ = ["NoPlaceError", "Shared", "serve", "serve_async"]

_ACCESS = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC


class NoPlaceError(RuntimeError):
    """The memory has as many clients as it can have."""


class Shared(Protocol):
    """Memory that clients share: StoreMemory, WordMemory, GroupMemory."""

    mr: MR

    def join(self) -> bytes:
        """Let a client in; the invitation for it; NoPlaceError."""

    def leave(self, invitation: bytes) -> int:
        """A client is gone, and its requests with it: take back what it held. How many locks that were."""


def serve(conn: Connection, shared: Shared) -> None:
    """Let one client in, and wait until its connection has ended; for rnic.Listener.serve().

    What the client says is not heard. Raises what the connection raises when the client dies. As long as a
    process of this host is stopped in the middle of a copy, nothing is taken back, and it does not return.
    """
    try:
        invitation = shared.join()
    except NoPlaceError as error:
        conn.abort(str(error))
        return
    region = None
    try:
        region = conn.share(shared.mr.buf, _ACCESS)
        conn.send(invitation)
        for _ in conn:
            pass
    finally:
        if region is not None:
            take_back(conn, region)
        shared.leave(invitation)


async def serve_async(conn: AsyncConnection, shared: Shared) -> None:
    """The same for rnic.aio.Listener.serve()."""
    try:
        invitation = shared.join()
    except NoPlaceError as error:
        await conn.abort(str(error))
        return
    region = None
    try:
        region = await conn.share(shared.mr.buf, _ACCESS)
        await conn.send(invitation)
        async for _ in conn:
            pass
    finally:
        if region is not None:
            await take_back_async(conn, region)
        shared.leave(invitation)


class Memory:
    """Memory of a kind, and the numbers of its clients."""

    kind: ClassVar[int]

    def __init__(self, alloc: Callable[[int], MR], length: int, sizes: tuple[int, int, int]) -> None:
        self.mr = alloc(length)
        """The memory. Clients need REMOTE_READ, REMOTE_WRITE and REMOTE_ATOMIC for it."""
        self._sizes = sizes
        self._guard = threading.Lock()
        self._numbers: set[int] = set()
        self._last = 0

    @property
    def _words(self) -> memoryview:
        """All whole words of the memory; a view that stayed would keep the device open."""
        return self.mr.buf[: self.mr.length & ~7].cast("Q")

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self._numbers)

    def join(self) -> bytes:
        """Let a client in; the invitation for it, 32 bytes. NoPlaceError if there is none."""
        with self._guard:
            number = self._free()
            self._numbers.add(number)
        return Invitation(self.kind, number, self._sizes, self.mr.length).pack()

    def leave(self, invitation: bytes) -> int:
        """A client is gone, and its requests with it: take back what it held. How many locks that were.

        On queue pairs of your own, destroy the client's queue pair first.
        """
        number = Invitation.parse(invitation, self.kind).number
        with self._guard:
            if number not in self._numbers:
                raise ValueError(f"client {number} has left already")
            held = self._take_back(number)
            self._numbers.discard(number)
        return held

    def _free(self) -> int:
        """A number that no client has; the one that was free longest, as far as that is cheap."""
        for step in range(1, OWNER + 1):
            number = (self._last + step - 1) % OWNER + 1
            if number not in self._numbers:
                self._last = number
                return number
        raise NoPlaceError(f"no place: there are {OWNER} clients")

    def _locks(self) -> Iterable[int]:
        """Where locks are, in words of 8 bytes."""
        raise NotImplementedError

    def _take_back(self, number: int) -> int:
        words, held = self._words, 0
        for at in self._locks():
            word = words[at]
            if word & OWNER == number:
                words[at] = ((word >> COUNT) + 1 << COUNT) % (1 << 64)  # one store of 8 bytes
                held += 1
        return held
