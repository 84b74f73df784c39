# SPDX-License-Identifier: Apache-2.0
"""Messages of several pieces by the short way: buffers, other tasks, wake-ups, what is left of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from struct import pack

import pytest

import rnic
import rnic.aio
from conn.peers import HOST, WAIT
from conn.test_hostile import Dialled, dialled
from conn.test_short_way import ends
from rnic.endpoint import Config
from rnic.endpoint.hello import Hello

LONG = 3_000_000
WIDE = Config(
    receive_size=16384, send_size=16384, receives=256, max_backlog=1 << 30, idle_interval=None, announce=None
)
SHARE = 64  # pieces that a call moves at most


async def met(a: rnic.aio.Connection, b: rnic.aio.Connection) -> None:
    """Both ends may take the short way."""
    for _ in range(2):
        await a.send(b"hello")
        assert await b.recv() == b"hello"
        await b.send(b"hello")
        assert await a.recv() == b"hello"


def message(number: int, total: int, payload: bytes, *, last: bool = False, refill: int = 0) -> bytes:
    return pack(">BBHIQ", 1, last, refill, number, total) + payload


def more(number: int, payload: bytes, *, last: bool = False) -> bytes:
    return pack(">BBHI", 2, last, 0, number) + payload


@asynccontextmanager
async def with_peer(receives: int) -> AsyncIterator[tuple[rnic.aio.Connection, Dialled]]:
    """An end on the short way, and a peer whose SENDs this test makes, with message 0 behind it."""
    hello = Hello(1, 1, WIDE.access, 2048, receives, 4, 1 << 20).emit()
    async with rnic.aio.listen(HOST, 0, config=WIDE) as server:
        dialling = dialled(server, hello)  # type: ignore[arg-type]
        accepting = asyncio.create_task(server.accept())
        peer = await asyncio.to_thread(dialling.__enter__)
        conn = await accepting
        peer.post(message(0, 1, b"m", last=True))
        assert await conn.recv() == b"m"
        assert conn._core.courier.open or conn._core.take_short_way()
        try:
            yield conn, peer
        finally:
            await conn.abort()
            await asyncio.to_thread(dialling.__exit__, None, None, None)


# ---------------------------------------------------------------- the buffer

CHANGES = """
import asyncio, sys
from conn.test_short_way import ends
from conn.test_short_way_pieces import LONG, WIDE, met

async def main():
    async with ends(WIDE) as (a, b):
        await met(a, b)
        message = bytearray(LONG)
        coming = asyncio.create_task(b.recv())
        going = asyncio.create_task(a.send(message))
        while not a.statistics().queued:
            await asyncio.sleep(0)
        try:
            {change}
        except BufferError:
            pass
        await going
        assert len(await coming) == LONG

asyncio.run(main())
"""


@pytest.mark.parametrize("change", ["message.clear()", "message.extend(b'more')", "del message[LONG // 2 :]"])
def test_a_buffer_that_is_being_sent_keeps_its_size(change: str) -> None:
    """As it does on the long way: BufferError for who tries; not a crash, nor a connection that ends."""
    program = CHANGES.format(change=change)
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=WAIT, capture_output=True, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr.decode()[-600:]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


# ---------------------------------------------------------------- wake-ups


@pytest.mark.parametrize("receives", [3, 4, 8])
def test_a_task_that_waits_for_room_hears_of_credits_that_came_with_a_message(receives: int) -> None:
    async def send(conn: rnic.aio.Connection, messages: list[bytes]) -> None:
        for one in messages:
            await conn.send(one)

    async def take(conn: rnic.aio.Connection, messages: list[bytes]) -> None:
        for one in messages:
            assert await conn.recv() == one

    async def main() -> None:
        there, back = [b"1" * LONG] * 3, [b"2" * 100] * 500
        async with ends(Config(receives=receives, spin=0, idle_interval=None, announce=None)) as (a, b):
            await met(a, b)
            async with asyncio.timeout(WAIT / 2):
                await asyncio.gather(send(a, there), take(b, there), send(b, back), take(a, back))

    asyncio.run(main())


def test_a_task_that_waits_is_woken_though_a_send_has_taken_many_pieces() -> None:
    async def main() -> None:
        async with with_peer(receives=200) as (conn, peer):
            coming = asyncio.create_task(conn.recv())
            await asyncio.sleep(0)
            peer.post(message(1, 2 * SHARE + 1, b"p"))
            while conn._core.courier.part is None:
                await asyncio.sleep(0)
            for number in range(2 * SHARE):
                peer.post(more(1, b"q", last=number == 2 * SHARE - 1))
            await conn.send(b"x")
            async with asyncio.timeout(WAIT / 6):
                assert await coming == b"p" + b"q" * 2 * SHARE

    asyncio.run(main())


# ---------------------------------------------------------------- order


def test_tasks_get_long_messages_in_the_order_of_their_calls() -> None:
    async def main() -> None:
        async with with_peer(receives=200) as (conn, peer):
            for number in range(1, 3):
                letter = b"%d" % number
                peer.post(message(number, SHARE + 10, letter))
                for n in range(SHARE + 9):
                    peer.post(more(number, letter, last=n == SHARE + 8))
            async with asyncio.timeout(WAIT):
                got = await asyncio.gather(conn.recv(), conn.recv())
            assert [one[:1] for one in got] == [b"1", b"2"]

    asyncio.run(main())


# ---------------------------------------------------------------- what is told of it


def test_an_end_keeps_nothing_of_a_message_that_did_not_come_whole() -> None:
    async def main() -> None:
        async with with_peer(receives=200) as (conn, peer):
            coming = asyncio.create_task(conn.recv())
            await asyncio.sleep(0)
            peer.post(message(1, 1 << 20, b"p"))
            while conn._core.courier.part is None:
                await asyncio.sleep(0)
            await conn.abort()
            await asyncio.gather(coming, return_exceptions=True)
            assert conn._core.courier.part is None

    asyncio.run(main())
