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
from conn.peers import WAIT
from conn.test_short_way import SLEEPY, ends
from rnic.aio.pump import Pump
from rnic.endpoint import Config
from waiting import until

CALLS = 40
TASKS = 10
TURNS = 20  # in one of which messages come by the short way, however busy the machine is


async def answer(conn: rnic.aio.Connection, tagged: bool) -> None:
    async for message in conn:
        await conn.send(message, tag=int.from_bytes(message[:4], "big") if tagged else 0)
    await conn.close()


@pytest.mark.parametrize("tagged", [False, True], ids=["untagged", "tagged"])
def test_tasks_that_call_at_once_go_the_short_way(tagged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pumps = 0
    whole_run = Pump.run

    def run(pump: Pump) -> None:
        nonlocal pumps
        pumps += 1
        whole_run(pump)

    async def call(conn: rnic.aio.Connection, number: int) -> list[bytes]:
        found = []
        for one in range(CALLS):
            await conn.send(number.to_bytes(4, "big") + one.to_bytes(4, "big"))
            found.append(await conn.recv(tag=number if tagged else None))
        return found

    async def main() -> None:
        async with ends(SLEEPY) as (a, b):
            server = asyncio.create_task(answer(b, tagged))
            monkeypatch.setattr(Pump, "run", run)
            got = await asyncio.gather(*[call(a, number) for number in range(1, 1 + TASKS)])
            monkeypatch.undo()
            every = sorted(message for one in got for message in one)
            assert len(set(every)) == len(every) == TASKS * CALLS
            if tagged:
                for number, found in enumerate(got, 1):
                    assert found == [
                        number.to_bytes(4, "big") + one.to_bytes(4, "big") for one in range(CALLS)
                    ]
            await a.close()
            await server

    for _ in range(TURNS):
        pumps = 0
        asyncio.run(main())
        if pumps < TASKS * CALLS:  # five for each call without the short way; more on a busy machine
            return
    pytest.fail(f"{pumps} times the long way for {TASKS * CALLS} calls")


def test_messages_go_on_by_the_short_way_while_one_waits_to_be_taken() -> None:
    async def turn() -> bool:
        async with ends(SLEEPY) as (a, b):
            for conn, other in ((a, b), (b, a)) * 2:
                await conn.send(b"hello")
                assert await other.recv() == b"hello"
            await b.send(b"waits", tag=7)
            while a._core.courier.hand is None:
                await a.send(b"goes on")
            if came_short := a._core.by_courier:
                assert a._core.courier.open
            await a.send(b"last", tag=1)
            if came_short:
                assert a._core.courier.open
            assert await a.recv(tag=7) == b"waits"
            assert await b.recv(tag=1) == b"last"
            return came_short

    assert any(asyncio.run(turn()) for _ in range(TURNS))


def test_a_long_message_keeps_its_tag_when_the_long_way_takes_over() -> None:
    big = bytes(range(256)) * 800

    async def main() -> None:
        async with ends(Config(idle_interval=None, announce=None)) as (a, b):
            for conn, other in ((a, b), (b, a)) * 2:
                await conn.send(b"hello")
                assert await other.recv() == b"hello"
            getting = asyncio.create_task(b.recv(tag=5))
            await asyncio.sleep(0)
            sending = asyncio.create_task(a.send(big, tag=5))
            while not getting.done():
                b._core._go_long()
                await asyncio.sleep(0)
            assert await getting == big
            await sending

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


@pytest.mark.parametrize("stolen", [False, True], ids=["it stays", "another task takes it"])
def test_the_buffer_of_a_cancelled_call_is_free_when_the_next_message_was_taken(stolen: bool) -> None:
    """An announced message had landed in it."""

    async def main() -> None:
        async with ends(Config(announce=1)) as (a, b):
            buffer = bytearray(10)
            task = asyncio.create_task(b.recv_into(buffer))
            while not b._pump.messages:
                await asyncio.sleep(0)
            sending = asyncio.create_task(a.send(b"message"))
            while b._core.courier.hand is None:
                await asyncio.sleep(0)
            if stolen:
                assert await b.recv() == b"message"
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            if not stolen:
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
