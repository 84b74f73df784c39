# SPDX-License-Identifier: Apache-2.0
"""Subscribers, for a thread and for a task: they wait for datagrams, and READ what is missing."""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from rnic.errors import VerbsError
from rnic.patterns.ports import AsyncPort, ConnectionPort, Look, Piece, Sleep, Step, Steps, run, run_async
from rnic.patterns.pubsub.datagrams import Inbox, check_device
from rnic.patterns.pubsub.feed import FIRST, Feed, SubscriberStatistics
from rnic.patterns.pubsub.wire import SLOTS, Welcome
from rnic.patterns.turn import Turn
from rnic.patterns.wait import How, left
from rnic.times import after

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import rnic
    from rnic import Context, aio
    from rnic._nic.nic import MR
    from rnic.endpoint import Region

__all__ = ["AsyncSubscriber", "Subscriber"]

QUIET = 0.1
RECEIVES = 256
_BATCH = 256  # messages that are READ at a time
_ROOM = 1 << 18  # bytes for what they fetch, or as many as one message needs
_GRACE = 0.1  # seconds that READs have at least
_GONE = "the publisher has closed the connection without an end()"


class _ReadMany(NamedTuple):
    """A step of these ports alone: READ these pieces of the ring; the answer is 0 when all are here."""

    mr: MR
    ring: Region
    pieces: list[Piece]
    until: float | None

    def add_to(self, batch: rnic.Batch | aio.Batch) -> None:
        for offset, length, remote_offset in self.pieces:
            batch.read(self.mr.buf[offset : offset + length], self.ring, remote_offset)


class _ThreadPort(ConnectionPort):
    """Sleeps until a datagram comes; there are no doorbells."""

    def __init__(self, conn: rnic.Connection, inbox: Inbox) -> None:
        super().__init__(conn)
        self._inbox = inbox

    def do(self, step: Step | _ReadMany) -> int:
        match step:
            case Sleep(until):
                self._inbox.wait(left(until))
            case _ReadMany():
                with self.conn.batch(left(step.until)) as batch:
                    step.add_to(batch)
            case _:
                return super().do(step)
        return 0


class _TaskPort(AsyncPort):
    """The same for a task."""

    def __init__(self, conn: aio.Connection, inbox: Inbox) -> None:
        super().__init__(conn)
        self._inbox = inbox

    async def _do(self, step: Step | _ReadMany) -> int:
        match step:
            case Sleep():
                await self._inbox.wait_async()
            case _ReadMany():
                async with self.conn.batch() as batch:
                    step.add_to(batch)
            case _:
                return await super()._do(step)
        return 0


class _Subscriber:
    """What both kinds have."""

    def __init__(self, conn: Any, region: Region, data: bytes, quiet: float, receives: int, how: How) -> None:
        welcome = Welcome.parse(data, region.length)
        self._region, self._quiet = region, quiet
        self._feed = Feed(welcome)
        self.group = welcome.group
        """The group's address, as a GID."""
        self._first = min(FIRST, self._feed.stride)
        self._closed = False
        with ExitStack() as stack:
            self._mr = conn.alloc(SLOTS + max(_ROOM, self._feed.stride))
            stack.callback(self._mr.__exit__, VerbsError, None, None)
            context = conn.pd.context
            self._inbox = Inbox(context, self._feed, welcome.qkey, welcome.group, receives, how)
            stack.callback(self._inbox.close)
            self._stack = stack.pop_all()
        self._look_at = 0.0  # when to look at the board though nothing says so

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.group.ip}, waits for message {self._feed.next}>"

    def statistics(self) -> SubscriberStatistics:
        """What it has seen so far."""
        return self._feed.statistics()

    def _close(self) -> None:
        self._closed = True
        self._stack.close()

    # ------------------------------------------------------------ steps

    def _begin(self, replay: bool, until: float | None) -> Steps[None]:
        """In the group already: what is published from now on comes as a datagram, or is missed."""
        yield from self._read([Piece(0, SLOTS, 0)], until)
        self._feed.begin(self._part(0, SLOTS), replay)
        self._look_at = monotonic() + self._quiet

    def _get(self, until: float | None) -> Steps[bytes]:
        feed = self._feed
        while not feed.ready:
            if self._closed:
                raise ValueError("get() behind close()")
            if feed.ended:
                raise EOFError("the publisher has ended")
            self._inbox.poll()
            if feed.ready:
                break
            quiet = monotonic() >= self._look_at
            if quiet:
                yield Look()
            if quiet or feed.due or feed.missing(1):
                yield from self._catch_up(until)
            elif left(until) == 0:
                raise TimeoutError("get: no message came in time")
            else:
                yield from self._doze(until)
        self._look_at = monotonic() + self._quiet
        return feed.take()

    def _doze(self, until: float | None) -> Steps[None]:
        ends = self._look_at if until is None else min(until, self._look_at)
        with suppress(TimeoutError):
            yield Sleep(ends)

    def _catch_up(self, until: float | None) -> Steps[None]:
        """Look at the board, and READ what is missing, or as much of it as one batch takes."""
        yield from self._read([Piece(0, SLOTS, 0)], until)
        self._feed.board(self._part(0, SLOTS))
        self._look_at = monotonic() + self._quiet
        yield from self._fetch(dict.fromkeys(self._feed.missing(_BATCH), self._first), until)

    def _fetch(self, wanted: dict[int, int], until: float | None) -> Steps[None]:
        """READ so many bytes of these messages' slots, and then more of those that need more."""
        feed = self._feed
        while wanted:
            places = self._lay(wanted)
            pieces = [Piece(at, wanted[number], feed.place(number)) for number, at in places.items()]
            yield from self._read(_merged(pieces), until)
            for number, at in places.items():
                if more := feed.fetched(number, self._part(at, wanted.pop(number))):
                    wanted[number] = more

    def _lay(self, wanted: dict[int, int]) -> dict[int, int]:
        """Places in own memory for as many of them as there is room for."""
        places, at = {}, SLOTS
        for number, length in wanted.items():
            if at + length > self._mr.length:
                break
            places[number] = at
            at += length
        return places

    def _read(self, pieces: list[Piece], until: float | None) -> Steps[None]:
        limit = None if until is None else max(until, monotonic() + _GRACE)
        try:
            yield _ReadMany(self._mr, self._region, pieces, limit)  # type: ignore[misc] # of these ports
        except TimeoutError:
            raise TimeoutError("get: the publisher's device did not answer in time") from None

    def _part(self, at: int, length: int) -> bytes:
        return bytes(self._mr.buf[at : at + length])


def _merged(pieces: list[Piece]) -> list[Piece]:
    """With those that lie side by side here and there as one: a READ of many slots is one operation."""
    found = pieces[:1]
    for piece in pieces[1:]:
        offset, length, remote_offset = found[-1]
        if (offset + length, remote_offset + length) == (piece.offset, piece.remote_offset):
            found[-1] = Piece(offset, length + piece.length, remote_offset)
        else:
            found.append(piece)
    return found


def _check(quiet: float, receives: int) -> None:
    if not 0 < quiet < math.inf:
        raise ValueError(f"quiet {quiet}: give seconds, more than 0")
    if not 1 <= receives <= 1 << 14:
        raise ValueError(f"{receives} receives: give 1 to {1 << 14}")


class Subscriber(_Subscriber):
    """A subscriber of a thread, which gets all messages in order; iterating gives them to the publisher's
    end().

        with rnic.connect(host, port) as conn, Subscriber.over(conn) as subscriber:
            for message in subscriber:
                ...

    Close it ahead of the connection, which it does not close.
    """

    def __init__(self, conn: rnic.Connection, region: Region, data: bytes, **options: Any) -> None:
        super().__init__(conn, region, data, **options)
        self._port = _ThreadPort(conn, self._inbox)
        self._turn = Turn("subscriber")

    @classmethod
    def over(
        cls,
        conn: rnic.Connection,
        *,
        replay: bool = False,
        quiet: float = QUIET,
        receives: int = RECEIVES,
        how: How = How.ADAPTIVE,
        timeout: float | None = None,
    ) -> Self:
        """Subscribe at the publisher that serves the other end of the connection.

        What is published from its return on is received. replay: begin with the oldest message of the ring.
        quiet: seconds without a message after which a call looks at the publisher's board, to find a last
        message that was lost, and a publisher that has died. receives: datagrams that may wait while the
        program does something else, 4 KiB each.

        Raises VerbsError: EOPNOTSUPP on an iWARP device. ValueError if the peer is no publisher.
        TimeoutError; what the connection raises.
        """
        _check(quiet, receives)
        check_device(cast("Context", conn.pd.context))
        until = after(timeout)
        region = conn.next_region(left(until))
        data = conn.recv(left(until))
        self = cls(conn, region, data, quiet=quiet, receives=receives, how=how)
        try:
            run(self._port, self._begin(replay, until))
        except BaseException:
            self.close()
            raise
        return self

    def get(self, timeout: float | None = None) -> bytes:
        """The next message; waits for it.

        Raises RuntimeError while another call runs, in another thread or below the handler of a signal.
        MissedError for messages that are gone; the next call goes on behind them. TimeoutError: a call
        that READs what was lost may take 0.1 s longer than its timeout. EOFError behind the publisher's
        end(). LiarError if what the publisher's ring says cannot be. When the publisher has died, what the
        connection raises, a ConnectionError, at most `quiet` seconds after the connection has found out.
        """
        until = after(timeout)
        busy = RuntimeError("another thread is in get(): give each thread a subscriber of its own")
        try:
            return self._turn.run(lambda: self._next(until), 0, busy)
        except EOFError as error:
            raise self._end(error) from None

    def _next(self, until: float | None) -> bytes:
        return run(self._port, self._get(until))

    def _end(self, error: EOFError) -> Exception:
        return error if self._feed.ended else ConnectionError(_GONE)

    def __iter__(self) -> Iterator[bytes]:
        """All messages. After a MissedError, iterate again to go on."""
        with suppress(EOFError):
            while True:
                yield self.get()

    def close(self) -> None:
        """Leave the group, and give back its memory. A second call does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncSubscriber(_Subscriber):
    """A subscriber of a task of asyncio; asyncio.timeout() limits its calls.

    async with rnic.aio.connect(host, port) as conn, await AsyncSubscriber.over(conn) as subscriber:
        async for message in subscriber:
            ...
    """

    def __init__(self, conn: aio.Connection, region: Region, data: bytes, **options: Any) -> None:
        super().__init__(conn, region, data, **options)
        self._port = _TaskPort(conn, self._inbox)
        self._turn = asyncio.Lock()

    @classmethod
    async def over(
        cls,
        conn: aio.Connection,
        *,
        replay: bool = False,
        quiet: float = QUIET,
        receives: int = RECEIVES,
        how: How = How.ADAPTIVE,
    ) -> Self:
        """Subscribe at the publisher that serves the other end of the connection; as Subscriber.over()."""
        _check(quiet, receives)
        check_device(cast("Context", conn.pd.context))
        region = await conn.next_region()
        self = cls(conn, region, await conn.recv(), quiet=quiet, receives=receives, how=how)
        try:
            await run_async(self._port, self._begin(replay, None))
        except BaseException:
            await self.close()
            raise
        return self

    async def get(self) -> bytes:
        """The next message; waits for it. Tasks take turns. Raises as Subscriber.get()."""
        async with self._turn:
            if not self._feed.ready:
                await asyncio.sleep(0)  # other tasks run, however many messages come
            try:
                return await run_async(self._port, self._get(None))
            except EOFError as error:
                if self._feed.ended:
                    raise
                raise ConnectionError(_GONE) from error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """All messages. After a MissedError, iterate again to go on."""
        while True:
            try:
                message = await self.get()
            except EOFError:
                return
            yield message

    async def close(self) -> None:
        """Leave the group, and give back its memory. A second call does nothing."""
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
