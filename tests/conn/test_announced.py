# SPDX-License-Identifier: Apache-2.0
"""Long messages that are announced and READ, and recv_into(), by both faces."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace

import pytest

import rnic
import rnic.aio
from conn.peers import HOST, WAIT, peer, speak
from conn.peers import ends as ends_of
from conn.test_ends import pair, together
from rnic.endpoint import AbortedError, Config, EndpointError, LostError
from rnic.enums import AccessFlags

ALL = Config(announce=1)
"""Every message is announced."""
LONG = random.Random(1).randbytes(3_000_001)
SIZE = Config().send_size
NO_READ = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC


def ends(
    config: Config = ALL,
) -> AbstractAsyncContextManager[tuple[rnic.aio.Connection, rnic.aio.Connection]]:
    return ends_of(config)


def sends(conn: rnic.Connection) -> int:
    return conn.statistics().sends


def echo(conn: rnic.Connection) -> None:
    for message in conn:
        conn.send(message, WAIT)


def echo_into(conn: rnic.Connection) -> None:
    buffer = bytearray(len(LONG) + 5)
    with suppress(EOFError):
        while True:
            length = conn.recv_into(buffer)
            conn.send(memoryview(buffer)[:length], WAIT)


# ---------------------------------------------------------------- messages


@pytest.mark.parametrize("serve", [echo, echo_into])
@pytest.mark.parametrize("config", [None, ALL], ids=["default", "all"])
def test_long_messages_come_back_as_they_went(serve: object, config: Config | None) -> None:
    with peer(serve, config=config) as (port, _), rnic.connect(HOST, port, config=config) as conn:  # type: ignore[arg-type]
        buffer = bytearray(len(LONG) + 1)
        for size in (1, 100, 70_000, len(LONG), 5, len(LONG)):
            conn.send(LONG[:size], WAIT)
            assert conn.recv(WAIT) == LONG[:size]
            conn.send(bytearray(LONG[:size]), WAIT)
            buffer[size:] = b"\xee" * (len(buffer) - size)
            assert conn.recv_into(buffer, WAIT) == size
            assert buffer[:size] == LONG[:size]
            assert buffer[size:] == b"\xee" * (len(buffer) - size)
        assert sends(conn) - conn.statistics().probes < 40 if config else True


def test_an_announced_message_takes_three_sends_and_no_pieces() -> None:
    with pair(ALL) as (a, b):
        before = sends(a), sends(b)
        together(lambda: a.send(LONG, WAIT), lambda: took(b, LONG))
        together(lambda: a.send(b"", WAIT), lambda: took(b, b""))
        assert (sends(a), sends(b)) == (before[0] + 2, before[1] + 1)


def took(conn: rnic.Connection, *expected: bytes) -> None:
    assert [conn.recv(WAIT) for _ in expected] == list(expected)


@pytest.mark.parametrize("config", [ALL, replace(ALL, announce=None)], ids=["announced", "pieces"])
def test_a_buffer_is_free_when_it_has_its_message(config: Config) -> None:
    with pair(config) as (a, b):
        buffer, sent = bytearray(len(LONG)), bytearray(LONG)
        together(lambda: a.send(sent, WAIT), lambda: b.recv_into(buffer, WAIT))
        assert buffer == LONG
        buffer.append(0)
        sent.append(0)
        with b.alloc(len(LONG)) as mr:
            together(lambda: a.send(LONG, WAIT), lambda: b.recv_into(mr.buf, WAIT))


@pytest.mark.parametrize("config", [ALL, replace(ALL, announce=None)], ids=["announced", "pieces"])
def test_a_buffer_is_free_when_a_task_has_its_message(config: Config) -> None:
    async def main() -> None:
        async with ends(config) as (a, b):
            for size in (1, 100, 10_000, len(LONG)) * 3:
                buffer, sent = bytearray(size), bytearray(LONG[:size])
                receiving = asyncio.create_task(b.recv_into(buffer))
                await asyncio.sleep(0)
                await asyncio.gather(a.send(sent), receiving)
                assert buffer == sent
                buffer.append(0)
                sent.append(0)

    asyncio.run(main())


def test_both_ends_send_at_once_and_then_receive() -> None:
    def one(conn: rnic.Connection, message: bytes) -> None:
        for _ in range(3):
            conn.send(message, WAIT)
            assert conn.recv(WAIT) == message

    with pair(ALL) as (a, b):
        together(lambda: one(a, LONG), lambda: one(b, LONG))


@pytest.mark.parametrize(
    "config", [replace(ALL, access=NO_READ), Config(announce=None)], ids=["no READ", "never"]
)
def test_who_may_not_announce_sends_pieces(config: Config) -> None:
    with pair(config) as (a, b):
        together(lambda: a.send(LONG, WAIT), lambda: took(b, LONG))
        assert sends(a) >= len(LONG) // SIZE


def test_an_old_peer_gets_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    speak(1, monkeypatch)
    with pair(ALL) as (a, b):
        together(lambda: a.send(LONG, WAIT), lambda: took(b, LONG))
        assert sends(a) >= len(LONG) // SIZE


def test_the_buffer_is_free_when_send_returns() -> None:
    with pair(ALL) as (a, b):
        message = bytearray(LONG)
        together(lambda: a.send(message, WAIT), lambda: took(b, LONG))
        message.clear()  # it is not exported any more


def test_operations_go_on_beside_announced_messages() -> None:
    memory = bytearray(8)
    with pair(ALL) as (a, b):
        b.share(memory)
        region = a.next_region(WAIT)

        def ask() -> None:
            for number in range(20):
                a.send(LONG[:100_000], WAIT)
                assert a.fetch_add(region, 1, timeout=WAIT) == number

        together(ask, lambda: took(b, *[LONG[:100_000]] * 20))


# ---------------------------------------------------------------- what does not come


@pytest.mark.parametrize("version", [1, 2])
def test_after_a_time_limit_the_message_comes_whole_or_not_at_all(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(version, monkeypatch)
    with pair(ALL) as (a, b):
        message = bytearray(LONG)
        with pytest.raises(TimeoutError):
            a.send(message, 0.05)  # nobody takes it
        message[:] = bytes(len(message))
        expected = [LONG, b"next"] if version == 1 else [b"next"]
        together(lambda: a.send(b"next", WAIT), lambda: took(b, *expected))


def test_a_buffer_that_is_too_small_leaves_the_message() -> None:
    with pair(ALL) as (a, b):

        def take() -> None:
            small = bytearray(10)
            for _ in range(2):
                with pytest.raises(ValueError, match=r"the next message has 3000001 bytes and the buffer 10"):
                    b.recv_into(small, WAIT)
            assert b.recv(WAIT) == LONG
            with pytest.raises(ValueError, match="has 11 bytes and the buffer 10"):
                b.recv_into(small, WAIT)
            large = bytearray(20)
            assert b.recv_into(large, WAIT) == 11
            assert large[:11] == LONG[:11]

        def give() -> None:
            a.send(LONG, WAIT)
            a.send(LONG[:11], WAIT)

        together(give, take)


@pytest.mark.parametrize(
    ("buffer", "error", "words"),
    [
        (b"read-only", ValueError, "this one is read-only"),
        (memoryview(bytearray(8))[::2], ValueError, "contiguous"),
        (7, TypeError, "needs a buffer"),
    ],
)
def test_buffers_that_cannot_be_filled(buffer: object, error: type[Exception], words: str) -> None:
    with pair(ALL) as (a, b):
        with pytest.raises(error, match=words):
            b.recv_into(buffer, WAIT)  # type: ignore[arg-type]
        together(lambda: a.send(LONG, WAIT), lambda: took(b, LONG))


def test_recv_into_says_what_recv_says() -> None:
    with pair(ALL) as (a, b):
        with pytest.raises(TimeoutError, match=r"recv_into: not within 0\.01 s"):
            b.recv_into(bytearray(8), 0.01)
        together(a.close, lambda: said_goodbye(b))


def said_goodbye(conn: rnic.Connection) -> None:
    with pytest.raises(EOFError):
        conn.recv_into(bytearray(8), WAIT)
    conn.close()


def test_a_peer_that_closes_does_not_take_it_and_nobody_hangs() -> None:
    with pair(ALL) as (a, b):

        def give() -> None:
            a.send(LONG, WAIT)
            a.close(WAIT)

        together(give, lambda: b.close(WAIT))


def test_a_sender_that_aborts_is_heard_by_who_waits_for_its_message() -> None:
    with pair(ALL) as (a, b):
        with pytest.raises(TimeoutError):
            a.send(LONG, 0.05)

        def take() -> None:
            with pytest.raises((AbortedError, LostError)):
                b.recv_into(bytearray(len(LONG)), WAIT)

        together(lambda: a.abort("enough"), take)


# ---------------------------------------------------------------- in tasks


def test_tasks_get_messages_in_their_order_each_in_its_own_buffer() -> None:
    async def main() -> None:
        async with ends() as (a, b):
            buffers = [bytearray(200_000) for _ in range(6)]
            messages = [LONG[n : n + 100_000 + n] for n in range(6)]
            takers = [
                asyncio.create_task(b.recv_into(buffer) if n % 3 else b.recv())
                for n, buffer in enumerate(buffers)
            ]
            await asyncio.gather(*(a.send(message) for message in messages))
            for n, (task, buffer, message) in enumerate(zip(takers, buffers, messages, strict=True)):
                found = await task
                assert (buffer[:found] if isinstance(found, int) else found) == message, n

    asyncio.run(main())


def test_cancelled_tasks_lose_no_message() -> None:
    rng = random.Random(3)

    async def main() -> None:
        async with ends() as (a, b):
            for number in range(60):
                message = LONG[number : number + 50_000]
                sending = asyncio.create_task(a.send(message))
                while True:
                    buffer = bytearray(60_000)
                    into = rng.random() < 0.7
                    task = asyncio.create_task(b.recv_into(buffer) if into else b.recv())
                    for _ in range(rng.randrange(4)):
                        await asyncio.sleep(0)
                    if rng.random() < 0.5:
                        task.cancel()
                    try:
                        found = await task
                    except asyncio.CancelledError:
                        continue
                    assert (bytes(buffer[:found]) if isinstance(found, int) else found) == message
                    break
                await sending

    asyncio.run(main())


def test_senders_that_are_cancelled_leave_whole_messages_in_order() -> None:
    rng = random.Random(4)

    async def main() -> None:
        async with ends() as (a, b):
            messages = [n.to_bytes(4, "big") * rng.choice([10, 20_000]) for n in range(60)]
            buffers = [bytearray(message) for message in messages]
            tasks = [asyncio.create_task(a.send(buffer)) for buffer in buffers]
            found: list[bytes] = []

            async def take() -> None:
                while not found or found[-1] != b"end":
                    found.append(await b.recv())
                    if rng.random() < 0.5:
                        n = rng.randrange(len(tasks))
                        tasks[n].cancel()
                        await asyncio.sleep(0)
                        if tasks[n].done():
                            buffers[n][:] = bytes(len(buffers[n]))

            taking = asyncio.create_task(take())
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await a.send(b"end")
            await taking
            kept = [m for m, result in zip(messages, results, strict=True) if result is None]
            assert found[-1] == b"end"
            order = [messages.index(one) for one in found[:-1]]
            assert order == sorted(set(order))
            assert set(kept) <= set(found)

    asyncio.run(main())


def test_a_buffer_that_is_too_small_leaves_the_message_to_the_next_task() -> None:
    async def main() -> None:
        async with ends() as (a, b):
            small = asyncio.create_task(b.recv_into(bytearray(10)))
            large = asyncio.create_task(b.recv())
            await asyncio.sleep(0)
            sending = asyncio.create_task(a.send(LONG))
            with pytest.raises(ValueError, match="the message stays"):
                await small
            assert await large == LONG
            await sending

    asyncio.run(main())


def test_the_end_wakes_who_waits_for_an_announced_message() -> None:
    async def main() -> None:
        async with ends() as (a, b):
            taking = asyncio.create_task(b.recv_into(bytearray(10)))
            await asyncio.sleep(0)
            await a.abort()
            with pytest.raises(EndpointError):
                await taking

    asyncio.run(main())


@pytest.mark.parametrize("how", ["abort", "drop"])
@pytest.mark.parametrize("local", ["on", "off"])
def test_an_abort_while_the_peer_reads_a_message_tells_why(
    how: str, local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(turns: int) -> None:
        async with ends() as (a, b):
            receiving = asyncio.create_task(b.recv())
            message = bytearray(LONG)
            sending = asyncio.create_task(a.send(message))
            for _ in range(turns):
                await asyncio.sleep(0)
            if how == "abort":
                await a.abort("enough")
            else:
                a.drop("enough")
            message[:] = bytes(len(message))
            with pytest.raises(AbortedError, match=r"peer aborted.*enough"):
                for _ in range(2):  # the READ may be faster
                    assert await receiving == LONG
                    receiving = asyncio.create_task(b.recv())
            with suppress(EndpointError):
                await sending

    monkeypatch.setenv("RNIC_LOCAL", local)
    for turns in range(1, 20):
        asyncio.run(main(turns))
