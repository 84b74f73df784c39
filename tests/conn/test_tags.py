# SPDX-License-Identifier: Apache-2.0
"""Messages with tags: each comes to whoever asks for its tag, whatever else is there."""

from __future__ import annotations

import asyncio
import random
import sys
from functools import partial
from time import monotonic
from typing import Any

import numpy
import pytest

import rnic
from conn.peers import WAIT, speak
from conn.test_announced import ends
from conn.test_ends import pair, together
from rnic.endpoint import Config
from rnic.records import replace

TINY = Config(receive_size=64, send_size=64, receives=4, max_backlog=4096, announce=None)
CONFIGS = [None, TINY, Config(announce=100)]
IDS = ["default", "tiny", "announced"]


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_messages_come_by_their_tags_and_the_others_in_order(config: Config | None) -> None:
    long = random.Random(2).randbytes(1000)

    def give() -> None:
        for number in range(4):
            a.send(b"plain %d" % number, WAIT)
            a.send(long + b"%d" % number, WAIT, tag=7)
        a.send(b"last", WAIT, tag=(1 << 64) - 1)

    def take() -> None:
        assert b.recv(WAIT, tag=(1 << 64) - 1) == b"last"
        assert b.recv(WAIT) == b"plain 0"
        assert b.recv(WAIT, tag=7) == long + b"0"
        assert b.recv(WAIT, tag=7) == long + b"1"
        assert b.recv(WAIT, tag=0) == b"plain 1"
        for expected in (b"plain 2", long + b"2", b"plain 3", long + b"3"):
            assert b.recv(WAIT) == expected

    # all that waits has to fit
    with pair(replace(config, max_backlog=1 << 16) if config else Config()) as (a, b):
        together(give, take)


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_any_tag_is_told_with_its_message(config: Config | None) -> None:
    sent = [(b"one", 7), (b"two" * 100, 0), (b"three", (1 << 64) - 1), (b"", 1)]

    async def tasks() -> None:
        async with ends(config or Config()) as (a, b):
            for message, tag in sent:
                await a.post(message, tag=tag)
            assert await b.recv(tag=1) == b""
            assert [await b.recv(tag=rnic.ANY) for _ in sent[:-1]] == sent[:-1]
            late = asyncio.create_task(b.recv(tag=rnic.ANY))
            await asyncio.sleep(0)
            await a.send(b"late", tag=5)
            assert await late == (b"late", 5)

    def give() -> None:
        for message, tag in sent:
            a.send(message, WAIT, tag=tag)

    def take() -> None:
        assert b.recv(WAIT, tag=1) == b""
        assert [b.recv(WAIT, tag=rnic.ANY) for _ in sent[:-1]] == sent[:-1]

    with pair(config or Config()) as (a, b):
        together(give, take)
    asyncio.run(tasks())


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_a_message_of_a_tag_comes_into_a_buffer(config: Config | None) -> None:
    long, room = bytes(range(200)), bytearray(200)

    async def tasks() -> None:
        async with ends(config or Config()) as (a, b):
            await a.post(b"before")
            await a.post(long, tag=7)
            with pytest.raises(ValueError, match="has 200 bytes and the buffer 10"):
                await b.recv_into(bytearray(10), tag=7)
            assert (await b.recv_into(room, tag=7), bytes(room)) == (200, long)
            assert await b.recv_into(room, tag=0) == 6
            assert room[:6] == b"before"

    def give() -> None:
        a.send(b"before", WAIT)
        a.send(long, WAIT, tag=7)

    def take() -> None:
        with pytest.raises(ValueError, match="has 200 bytes and the buffer 10"):
            b.recv_into(bytearray(10), WAIT, tag=7)
        assert (b.recv_into(room, WAIT, tag=7), bytes(room)) == (200, long)
        assert b.recv_into(room, WAIT) == 6
        assert room[:6] == b"before"
        with pytest.raises(TypeError, match=r"use recv\(tag=rnic.ANY\)"):
            b.recv_into(room, WAIT, tag=rnic.ANY)  # type: ignore[arg-type]

    with pair(config or Config()) as (a, b):
        together(give, take)
    room[:] = bytes(200)
    asyncio.run(tasks())


@pytest.mark.parametrize("announce", [None, 1], ids=["pieces", "announced"])
def test_what_is_no_tag_is_refused_and_the_connection_goes_on(announce: int | None) -> None:
    with pair(Config(announce=announce)) as (a, b):
        for tag in (5.0, "5", b"5"):
            with pytest.raises(TypeError):
                a.send(b"message", WAIT, tag=tag)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="a tag is a number"):
                b.recv(WAIT, tag=tag)  # type: ignore[call-overload]
        number: Any = numpy.int64(5)
        together(lambda: a.send(b"message", WAIT, tag=number), lambda: took(b, number))
        together(lambda: a.send(b"none", WAIT, tag=None), lambda: took(b, None))  # type: ignore[arg-type]


def took(conn: rnic.Connection, tag: int | None) -> None:
    assert conn.recv(WAIT, tag=tag) == (b"none" if tag is None else b"message")


@pytest.mark.parametrize("announce", [None, 1], ids=["pieces", "announced"])
def test_a_long_message_comes_to_who_asks_for_it_though_the_backlog_is_full(announce: int | None) -> None:
    """Nobody has taken what is before it."""
    config = Config(max_backlog=1000, announce=announce)
    long = bytes(100_000)
    with pair(config) as (a, b):

        def give() -> None:
            a.send(b"before", WAIT)
            a.send(long, WAIT, tag=1)

        def take() -> None:
            assert b.recv(WAIT, tag=1) == long
            assert b.recv(WAIT) == b"before"

        together(give, take)


def test_who_asks_for_a_tag_hears_of_the_end() -> None:
    def give() -> None:
        a.send(b"other", WAIT)
        a.close(WAIT)

    def take() -> None:
        with pytest.raises(EOFError, match="no message with tag 3 follows"):
            b.recv(WAIT, tag=3)
        assert b.recv(WAIT) == b"other"
        with pytest.raises(EOFError):
            b.recv(WAIT)
        b.close()

    with pair() as (a, b):
        together(give, take)


def test_a_limit_leaves_what_is_there() -> None:
    with pair() as (a, b):
        a.send(b"one", WAIT)
        a.send(b"two", WAIT, tag=2)
        with pytest.raises(TimeoutError, match=r"recv: not within 0\.01 s"):
            b.recv(0.01, tag=1)
        assert [b.recv(WAIT), b.recv(WAIT)] == [b"one", b"two"]


def test_tags_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pair() as (a, _):
        for tag in (-1, 1 << 64):
            with pytest.raises(ValueError, match="it can be 0 to"):
                a.send(b"", tag=tag)
    speak(1, monkeypatch)
    with pair() as (a, _), pytest.raises(ValueError, match="speaks version 1, which has no tags"):
        a.send(b"", tag=1)


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_tasks_wait_for_a_tag_each(config: Config | None) -> None:
    rng = random.Random(5)
    texts = {tag: [bytes([tag]) * rng.randrange(1, 300) for _ in range(10)] for tag in range(6)}

    async def take(conn: rnic.aio.Connection, tag: int) -> list[bytes]:
        return [await conn.recv(tag=tag) for _ in texts[tag]]

    async def main() -> None:
        async with ends(config or Config()) as (a, b):
            takers = {tag: asyncio.create_task(take(b, tag)) for tag in texts}
            order = [tag for tag, some in texts.items() for _ in some]
            rng.shuffle(order)
            left = {tag: iter(some) for tag, some in texts.items()}
            async with asyncio.timeout(WAIT):
                for tag in order:
                    await a.send(next(left[tag]), tag=tag)
                for tag, task in takers.items():
                    assert await task == texts[tag]

    asyncio.run(main())


def test_a_task_that_takes_any_message_and_one_that_asks_for_a_tag() -> None:
    async def main() -> None:
        async with ends(Config()) as (a, b):
            tagged = asyncio.create_task(b.recv(tag=9))
            plain = asyncio.create_task(b.recv())
            await asyncio.sleep(0)
            await a.send(b"plain")
            async with asyncio.timeout(WAIT):
                assert await plain == b"plain"
                await a.send(b"tagged", tag=9)
                assert await tagged == b"tagged"

    asyncio.run(main())


def test_a_task_that_is_cancelled_leaves_its_message() -> None:
    async def main() -> None:
        async with ends(Config()) as (a, b):
            for number in range(20):
                tasks = [asyncio.create_task(b.recv(tag=tag)) for tag in (1, 1, 2)]
                await asyncio.sleep(0)
                await a.send(b"%d" % number, tag=1)
                if number % 2:
                    await asyncio.sleep(0.001)
                tasks[0].cancel()
                found = await asyncio.gather(tasks[0], return_exceptions=True)
                async with asyncio.timeout(WAIT):
                    if isinstance(found[0], bytes):
                        await a.send(b"%d" % number, tag=1)
                    assert await tasks[1] == b"%d" % number
                    await a.send(b"two", tag=2)
                    assert await tasks[2] == b"two"

    asyncio.run(main())


# ---------------------------------------------------------------- what a wake-up costs


async def waiting_for_tags(conn: rnic.aio.Connection, count: int) -> list[asyncio.Task[bytes]]:
    tasks = [asyncio.create_task(conn.recv(tag=tag)) for tag in range(count)]
    while len(conn._pump.messages) < count:
        await asyncio.sleep(0)
    return tasks


def calls_until_all_know(count: int, how: str) -> int:
    """How many calls it takes until so many tasks, each with its own tag, know that the peer has left."""
    calls = 0

    def counted(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    async def main() -> None:
        async with ends(Config(idle_interval=None)) as (a, b):
            tasks = await waiting_for_tags(b, count)
            leaving = asyncio.create_task(a.close() if how == "close" else a.abort("enough"))
            sys.setprofile(counted)
            try:
                async with asyncio.timeout(WAIT):
                    found = await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                sys.setprofile(None)
            assert all(isinstance(one, EOFError if how == "close" else rnic.AbortedError) for one in found)
            await b.abort()
            await asyncio.gather(leaving, return_exceptions=True)

    asyncio.run(main())
    return calls


@pytest.mark.parametrize("how", ["close", "abort"])
def test_the_calls_that_tell_tasks_of_the_end_are_in_proportion_to_the_tasks(how: str) -> None:
    assert calls_until_all_know(400, how) < 8 * calls_until_all_know(100, how)


class Counting:
    """A machine that counts what its lists have in them."""

    def __init__(self, machine: Any) -> None:
        self._machine, self.items = machine, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._machine, name)
        return partial(self._call, found) if callable(found) else found

    def _call(self, call: Any, *args: Any) -> Any:
        found = call(*args)
        self.items += len(found) if isinstance(found, list) else 0
        return found


def test_a_wake_up_makes_no_list_of_the_messages_that_nobody_asks_for() -> None:
    async def main() -> None:
        async with ends(Config(max_backlog=1 << 30)) as (a, b):
            for _ in range(100):
                await a.send(b"other", tag=9)
            machine = b._core.messages._machine = Counting(b._core.machine)  # type: ignore[assignment]
            async with asyncio.timeout(WAIT):
                for _ in range(10):
                    tasks = await waiting_for_tags(b, 2)
                    await a.send(b"one", tag=1)
                    await a.send(b"zero", tag=0)
                    assert await asyncio.gather(*tasks) == [b"zero", b"one"]
            assert machine.items == 0
            assert [await b.recv() for _ in range(100)] == [b"other"] * 100

    asyncio.run(main())


def test_after_the_goodbye_tasks_take_what_is_left_in_the_order_of_their_calls() -> None:
    """All are woken at once."""

    async def main() -> None:
        async with ends() as (a, b):
            tags = [None, 5, None, 1, None, 2, None]
            tasks = []
            for number, tag in enumerate(tags):
                tasks.append(asyncio.create_task(b.recv(tag=tag)))
                while len(b._pump.messages) <= number:
                    await asyncio.sleep(0)
            for tag in (7, 1, 2):
                a._core.messages.send(b"%d" % tag, tag)
            a._core.close(None)
            while not b._core.machine.heard_goodbye:  # no task runs meanwhile
                a._pump.run()
                b._core.pump(monotonic())
            late = asyncio.create_task(b.recv())
            async with asyncio.timeout(WAIT):
                found = await asyncio.gather(*tasks, late, return_exceptions=True)
            assert found[:3:2] == [b"7", b"1"]
            assert found[4] == b"2"
            others = (found[1], found[3], *found[5:])
            assert [type(one) for one in others] == [EOFError] * 5

    asyncio.run(main())
