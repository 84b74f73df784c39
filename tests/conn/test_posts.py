# SPDX-License-Identifier: Apache-2.0
"""asyncio: messages that are posted, connections that are dropped, and ends that are told of."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import rnic
import rnic.aio
from conn.peers import HOST
from rdmacm.ends import all_quiet
from rnic.endpoint import AbortedError, ClosedError, EndpointError, LostError, State

LONG = bytes(range(256)) * 20_000  # is announced


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The agents end before the next test."""
    yield
    all_quiet()


@asynccontextmanager
async def both() -> AsyncIterator[tuple[rnic.aio.Connection, rnic.aio.Connection]]:
    """Two ends in this loop."""
    async with rnic.aio.listen(HOST, 0) as server:
        accepting = asyncio.create_task(server.accept())
        here = await rnic.aio.connect(HOST, server.port)
        there = await accepting
    try:
        yield here, there
    finally:
        here.drop()
        there.drop()


async def until(look: Callable[[], object]) -> None:
    while not look():
        await asyncio.sleep(0.001)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(limited(), debug=True)


@pytest.mark.parametrize("message", [b"short", bytes(300_000), LONG], ids=["short", "pieces", "announced"])
def test_posts_wait_for_nobody_and_come_in_order(message: bytes) -> None:
    async def main() -> None:
        async with both() as (here, there):
            for number in range(40):  # more than the peer takes while it does not ask
                await here.post(message + bytes([number]), tag=number)
            flushing = asyncio.create_task(here.flush())
            for number in range(40):
                assert await there.recv() == message + bytes([number])
            await flushing
            assert here.unsent == 0

    run(main)


def test_a_flush_waits_for_what_was_posted_before() -> None:
    async def main() -> None:
        async with both() as (here, there):
            await here.flush()  # nothing
            await here.post(LONG)
            await here.post(b"short")
            assert here.unsent == 2
            flushing = asyncio.create_task(here.flush())
            await asyncio.sleep(0)
            assert not flushing.done()
            assert await there.recv() == LONG
            await flushing
            assert await there.recv() == b"short"

    run(main)


def test_a_flush_raises_when_posts_are_lost() -> None:
    async def main() -> None:
        async with both() as (here, there):
            await here.post(LONG)
            there.drop("enough")
            with pytest.raises(AbortedError, match="enough"):
                await here.flush()
            with pytest.raises(AbortedError, match="enough"):
                await here.post(b"x")

    run(main)


def test_a_post_that_is_refused_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with both() as (here, there):
            with pytest.raises(TypeError):
                await here.post("text")  # type: ignore[arg-type]
            assert here.unsent == 0
            await here.post(b"bytes")
            assert await there.recv() == b"bytes"

    run(main)


def test_close_that_does_not_wait_leaves_all_to_be_read() -> None:
    async def main() -> None:
        async with both() as (here, there):
            await here.post(b"first")
            await here.post(bytes(300_000))
            await here.close(wait=False)
            assert here.closed
            assert await there.recv() == b"first"
            assert await there.recv() == bytes(300_000)
            with pytest.raises(EOFError):
                await there.recv()

    run(main)


def test_close_that_does_not_wait_has_a_limit_too() -> None:
    async def main() -> None:
        async with both() as (here, there):
            await here.post(LONG)  # which nobody takes
            with pytest.raises(AbortedError, match="in time"):
                await here.close(0.05, wait=False)
            assert here.closed
            with pytest.raises(EndpointError):
                await there.recv()

    run(main)


# ------------------------------------------------------------------ drop


def test_a_dropped_connection_ends_its_calls_and_tells_the_peer() -> None:
    async def main() -> None:
        async with both() as (here, there):
            waiting = asyncio.create_task(here.recv())
            await asyncio.sleep(0)
            here.drop("no more")
            with pytest.raises((AbortedError, ClosedError)):
                await waiting
            with pytest.raises(AbortedError, match="no more"):
                await there.recv()
            here.drop("again")
            await until(lambda: here.closed)

    run(main)


@pytest.mark.parametrize("call", ["recv", "recv_into", "tag"])
@pytest.mark.parametrize("end", ["abort", "drop"])
def test_messages_that_wait_are_lost_when_this_end_aborts(call: str, end: str) -> None:
    async def main() -> None:
        async with both() as (here, there):
            calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
                "recv": here.recv,
                "recv_into": lambda: here.recv_into(bytearray(10)),
                "tag": lambda: here.recv(tag=0),
            }
            await there.send(b"waits")
            await until(here._core.machine.has)
            if end == "abort":
                await here.abort("no more")
            else:
                here.drop("no more")
            with pytest.raises((AbortedError, ClosedError)):
                await calls[call]()

    run(main)


def test_a_task_that_was_woken_for_a_message_takes_none_from_a_dropped_connection() -> None:
    async def main() -> None:
        async with both() as (here, there):
            waiting = asyncio.create_task(here.recv())
            while not here._pump.messages:
                await asyncio.sleep(0)
            there._core.messages.send(b"waits", 0)
            while not here._core.machine.has():  # no task runs meanwhile
                there._pump.run()
                here._pump.run()
            here.drop("no more")
            with pytest.raises((AbortedError, ClosedError)):
                await waiting

    run(main)


def test_a_drop_from_another_thread() -> None:
    async def main() -> None:
        async with both() as (here, there):
            thread = threading.Thread(target=here.drop, args=("from afar",))
            thread.start()
            thread.join()
            with pytest.raises(AbortedError, match="from afar"):
                await there.recv()

    run(main)


def test_a_drop_after_the_loop_was_closed() -> None:
    left: list[rnic.aio.Connection] = []

    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as server:
            accepting = asyncio.create_task(server.accept())
            left.append(await rnic.aio.connect(HOST, server.port))
            left.append(await accepting)

    run(main)
    for conn in left:
        conn.drop()
    left.clear()  # and no warning


# ------------------------------------------------------------------ on_end


def test_on_end_is_called_when_the_peer_has_left() -> None:
    async def main() -> None:
        async with both() as (here, there):
            told: list[EndpointError | None] = []
            here.on_end(told.append)
            await there.close(wait=False)
            await until(lambda: told)
            assert told == [None]

    run(main)


def test_on_end_waits_until_all_was_received() -> None:
    async def main() -> None:
        async with both() as (here, there):
            told: list[EndpointError | None] = []
            here.on_end(told.append)
            for message in (b"first", bytes(300_000), b"last"):
                await there.post(message)
            await there.close(wait=False)
            for message in (b"first", bytes(300_000), b"last"):
                assert not told
                assert await here.recv() == message
            await until(lambda: told)
            assert told == [None]

    run(main)


def test_on_end_is_called_behind_a_message_that_was_there_already() -> None:
    """recv() takes it and does not wait; the peer waits for the callback's close(), without a limit."""

    async def main() -> None:
        async with both() as (here, there):
            told: list[EndpointError | None] = []
            here.on_end(told.append)
            await there.post(b"last")
            await there.close(wait=False)
            await until(lambda: here._core.machine.heard_goodbye)
            assert await here.recv() == b"last"
            await until(lambda: told)
            assert told == [None]

    run(main)


def test_on_end_is_told_of_a_failure() -> None:
    async def main() -> None:
        async with both() as (here, there):
            told: list[EndpointError | None] = []
            here.on_end(told.append)
            there.drop("gone")
            await until(lambda: told)
            assert isinstance(told[0], AbortedError | LostError)
            assert "gone" in str(told[0])
            here.on_end(told.append)  # also later
            await until(lambda: len(told) == 2)

    run(main)


@pytest.mark.parametrize("watched", [False, True])
def test_close_tells_of_an_end_that_nothing_has_told_of(watched: bool) -> None:
    """The messages ended with the peer's goodbye, and then its close() came to its limit."""

    async def main() -> None:
        async with both() as (here, there):
            told: list[EndpointError | None] = []
            await here.send(b"perhaps lost")
            with pytest.raises(AbortedError, match="goodbyes"):
                await there.close(0.2)
            assert [message async for message in here] == []
            await until(lambda: here.statistics().state is State.FAILED)
            if watched:
                here.on_end(told.append)
                await until(lambda: told)
                assert told == [None]  # the messages have ended well
            with pytest.raises(AbortedError, match="goodbyes"):
                await here.close()
            await here.close()

    run(main)


def test_on_end_is_not_called_for_what_this_end_does() -> None:
    async def main() -> None:
        async with both() as (here, there):
            told: list[EndpointError | None] = []
            here.on_end(told.append)
            there.on_end(told.append)
            there.drop()
            with pytest.raises(EndpointError):
                await here.recv()
            await until(lambda: told)
            await asyncio.sleep(0)
            assert len(told) == 1

    run(main)
