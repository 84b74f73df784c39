# SPDX-License-Identifier: Apache-2.0
"""Many tasks share one connection: each gets its message, and hardly any of them goes the long way."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Coroutine
from typing import Any

import pytest

import rnic
import rnic.aio
from conn.peers import SLEEPY, WAIT, ends
from rnic.endpoint import Config
from waiting import until

CALLS = 40
TASKS = 10
TURNS = 20  # in one of which messages come by the short way, however busy the machine is


async def answer(conn: rnic.aio.Connection, tagged: bool) -> None:
    async for message in conn:
        await conn.send(message, tag=int.from_bytes(message[:4], "big") if tagged else 0)
    await conn.close()


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
    """By the long way both messages are here, and no event tells of the second."""

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
            for message in (b"one", b"two"):
                await a.send(message)
            until(both_are_here, "one is in hand, the other behind it")
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
