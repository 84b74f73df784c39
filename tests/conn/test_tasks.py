# SPDX-License-Identifier: Apache-2.0
"""Many tasks share one connection: each gets its message, whole, in the order of the calls."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

import rnic
import rnic.aio
from conn.frames import message, more
from conn.peers import HOST, SLEEPY, WAIT, ends, speak
from conn.test_hostile import Dialled, dialled
from rnic.endpoint import Config, Hello
from waiting import until

CALLS = 40
TASKS = 10
LONG = 200_001
PIECES = Config(announce=None, receive_size=16384, send_size=16384)
MANY = 64
"""Pieces: more than an end takes without a pause."""


async def answer(conn: rnic.aio.Connection, tagged: bool) -> None:
    async for one in conn:
        await conn.send(one, tag=int.from_bytes(one[:4], "big") if tagged else 0)
    await conn.close()


@pytest.mark.parametrize("tagged", [False, True], ids=["untagged", "tagged"])
def test_tasks_that_call_at_once_get_an_answer_each(tagged: bool) -> None:
    async def call(conn: rnic.aio.Connection, number: int) -> list[bytes]:
        found = []
        for one in range(CALLS):
            await conn.send(number.to_bytes(4, "big") + one.to_bytes(4, "big"))
            found.append(await conn.recv(tag=number if tagged else None))
        return found

    async def main() -> None:
        async with ends(SLEEPY) as (a, b):
            server = asyncio.create_task(answer(b, tagged))
            got = await asyncio.gather(*[call(a, number) for number in range(1, 1 + TASKS)])
            every = sorted(answer for one in got for answer in one)
            assert len(set(every)) == len(every) == TASKS * CALLS
            if tagged:
                for number, found in enumerate(got, 1):
                    assert found == [
                        number.to_bytes(4, "big") + one.to_bytes(4, "big") for one in range(CALLS)
                    ]
            await a.close()
            await server

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(6))
def test_no_message_is_lost_or_taken_twice_when_tasks_are_cancelled(seed: int) -> None:
    rng = random.Random(seed)
    count, tags = 400, (None, 0, 1, 2)
    got: list[bytes] = []

    async def take(conn: rnic.aio.Connection, tag: int | None) -> None:
        buffer = bytearray(64)
        if tag is None and rng.random() < 0.3:
            got.append(bytes(buffer[: await conn.recv_into(buffer)]))
        else:
            got.append(await conn.recv(tag=tag))

    async def main() -> None:
        async with ends(SLEEPY) as (a, b):

            async def give(number: int) -> None:
                await a.send(number.to_bytes(4, "big") * rng.randrange(1, 12), tag=number % 3)

            tasks: set[asyncio.Task[None]] = set()
            giving = [asyncio.create_task(give(number)) for number in range(count)]
            async with asyncio.timeout(WAIT):
                while len(got) < count:
                    while len(tasks) < 8:
                        tasks.add(asyncio.create_task(take(b, rng.choice(tags))))
                    for task in rng.sample(sorted(tasks, key=id), 2):
                        if rng.random() < 0.5:
                            task.cancel()
                    await asyncio.sleep(0 if rng.random() < 0.8 else 0.001)
                    tasks = {task for task in tasks if not task.done()}
            await asyncio.gather(*giving)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert sorted(int.from_bytes(one[:4], "big") for one in got) == list(range(count))


def test_who_is_cancelled_in_front_of_a_message_leaves_it_to_the_next_task() -> None:
    """Both messages are here, and no event tells of the second."""

    async def main() -> None:
        async with ends(Config(spin=0, idle_interval=None)) as (a, b):

            async def take_one() -> bytes:
                found = await b.recv()
                cancelled.cancel()
                return found

            def both_are_here() -> bool:
                b._pump.run()
                return b.statistics().backlog > 0

            first = asyncio.create_task(take_one())
            cancelled, last = (asyncio.create_task(b.recv()) for _ in range(2))
            while len(b._pump.messages) < 3:
                await asyncio.sleep(0)
            for one in (b"one", b"two"):
                await a.send(one)
            until(both_are_here, "one is awaited, the other behind it")
            async with asyncio.timeout(WAIT):
                assert (await first, await last) == (b"one", b"two")
            assert cancelled.cancelled()

    asyncio.run(main())


def test_the_buffer_of_a_cancelled_call_is_free_when_the_next_message_was_taken() -> None:
    """An announced message had landed in it."""

    async def main() -> None:
        async with ends(Config(announce=1)) as (a, b):
            buffer = bytearray(10)
            task = asyncio.create_task(b.recv_into(buffer))
            while not b._pump.messages:
                await asyncio.sleep(0)
            sending = asyncio.create_task(a.send(b"message"))
            while not b._core.machine.has():
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert await b.recv() == b"message"
            await sending
            del task  # its exception has the call's variables
            await asyncio.sleep(0)  # and the loop has the task
            gc.collect()
            buffer.append(1)  # nothing exports it

    asyncio.run(main())


@pytest.mark.parametrize("call", ["recv", "recv_into"])
def test_a_call_may_be_given_up_after_its_loop_was_closed(call: str) -> None:
    async def begin() -> None:
        conns.extend(await contexts.__aenter__())
        waiting.append(conns[0].recv() if call == "recv" else conns[0].recv_into(bytearray(1)))
        waiting[0].send(None)

    conns: list[rnic.aio.Connection] = []
    waiting: list[Coroutine[Any, Any, object]] = []
    contexts = ends(SLEEPY)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    for conn in conns:
        conn._pump.release()
    loop.close()
    waiting[0].close()


# ---------------------------------------------------------------- order


def test_tasks_get_messages_in_the_order_of_their_calls() -> None:
    async def main() -> None:
        async with ends() as (a, b):
            for _ in range(20):
                tasks = [asyncio.create_task(a.recv()) for _ in range(5)]
                await asyncio.sleep(0)
                tasks[1].cancel()
                for number in range(5):
                    await b.send(b"%d" % number)
                done = await asyncio.gather(*tasks, return_exceptions=True)
                assert [one for one in done if isinstance(one, bytes)] == [b"0", b"1", b"2", b"3"]
                assert await a.recv() == b"4"

    asyncio.run(main())


@pytest.mark.parametrize("others", [b"short", bytes(50_000)], ids=["short", "long"])
def test_tasks_that_send_at_once_do_not_mix_their_messages(others: bytes) -> None:
    rng = random.Random(6)
    long = [rng.randbytes(rng.randrange(1 << 20, 3 << 20)) for _ in range(3)]

    async def main() -> None:
        async with ends(PIECES) as (a, b):
            expected = [one for first in long for one in (first, others)]
            sends = [asyncio.create_task(a.send(one)) for one in expected]
            assert [await b.recv() for _ in expected] == expected
            await asyncio.gather(*sends)

    asyncio.run(main())


@pytest.mark.parametrize("version", [1, 2])
def test_a_long_message_that_is_cancelled_in_the_middle_comes_whole_or_not_at_all(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(version, monkeypatch)

    async def main() -> None:
        async with ends(PIECES) as (a, b):
            for _ in range(10):
                buffer = bytearray(random.Random(7).randbytes(10 * LONG))
                wanted = bytes(buffer)
                begun = a.statistics().sends
                task = asyncio.create_task(a.send(buffer))
                while a.statistics().sends == begun and not task.done():
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                buffer[:] = bytes(10 * LONG)
                following = asyncio.create_task(a.send(b"behind it"))
                if version == 1 or (task.done() and not task.cancelled()):
                    assert await b.recv() == wanted
                assert await b.recv() == b"behind it"
                await following

    asyncio.run(main())


# ---------------------------------------------------------------- wake-ups


async def send_all(conn: rnic.aio.Connection, messages: list[bytes]) -> None:
    for one in messages:
        await conn.send(one)


async def take_all(conn: rnic.aio.Connection, messages: list[bytes]) -> None:
    for one in messages:
        assert await conn.recv() == one


@pytest.mark.parametrize("receives", [3, 4, 8])
def test_a_task_that_waits_for_room_hears_of_credits_that_came_with_a_message(receives: int) -> None:
    async def main() -> None:
        there, back = [b"1" * 3_000_000] * 3, [b"2" * 100] * 500
        async with ends(Config(receives=receives, spin=0, idle_interval=None, announce=None)) as (a, b):
            async with asyncio.timeout(WAIT / 2):
                await asyncio.gather(
                    send_all(a, there), take_all(b, there), send_all(b, back), take_all(a, back)
                )

    asyncio.run(main())


def test_tasks_that_wait_are_no_hindrance_to_the_probe() -> None:
    async def main() -> None:
        async with ends(Config(idle_interval=0.05, spin=0, receives=3)) as (a, b):
            for _ in range(20):
                await a.send(b"hello")
                assert await b.recv() == b"hello"
                await b.send(b"hello")
                assert await a.recv() == b"hello"
                before = a.statistics().probes
                await a.send(b"the last for long")
                tasks = [asyncio.create_task(a.recv()) for _ in range(2)]
                async with asyncio.timeout(WAIT):
                    while a.statistics().probes == before:
                        await asyncio.sleep(0.01)
                assert await b.recv() == b"the last for long"
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


@asynccontextmanager
async def with_peer(receives: int) -> AsyncIterator[tuple[rnic.aio.Connection, Dialled]]:
    """An end, and a peer whose SENDs this test makes, with message 0 behind it."""
    config = Config(receive_size=16384, receives=256, max_backlog=1 << 30, idle_interval=None, announce=None)
    hello = Hello(1, 1, config.access, 2048, receives, 4, 1 << 20).emit()
    async with rnic.aio.listen(HOST, 0, config=config) as server:
        dialling = dialled(server, hello)
        accepting = asyncio.create_task(server.accept())
        one = await asyncio.to_thread(dialling.__enter__)
        conn = await accepting
        one.post(message(0, b"m"))
        assert await conn.recv() == b"m"
        try:
            yield conn, one
        finally:
            await conn.abort()
            await asyncio.to_thread(dialling.__exit__, None, None, None)


def test_a_task_that_waits_is_woken_though_a_send_has_taken_many_pieces() -> None:
    async def main() -> None:
        async with with_peer(receives=200) as (conn, one):
            coming = asyncio.create_task(conn.recv())
            await asyncio.sleep(0)
            one.post(message(1, b"p", 2 * MANY + 1, last=0))
            while not conn.statistics().partial:
                await asyncio.sleep(0)
            for number in range(2 * MANY):
                one.post(more(1, b"q", last=number == 2 * MANY - 1))
            await conn.send(b"x")
            async with asyncio.timeout(WAIT / 6):
                assert await coming == b"p" + b"q" * 2 * MANY

    asyncio.run(main())


def test_tasks_get_long_messages_in_the_order_of_their_calls() -> None:
    async def main() -> None:
        async with with_peer(receives=200) as (conn, one):
            for number in range(1, 3):
                letter = b"%d" % number
                one.post(message(number, letter, MANY + 10, last=0))
                for n in range(MANY + 9):
                    one.post(more(number, letter, last=n == MANY + 8))
            async with asyncio.timeout(WAIT):
                got = await asyncio.gather(conn.recv(), conn.recv())
            assert list(got) == [b"1" * (MANY + 10), b"2" * (MANY + 10)]

    asyncio.run(main())
