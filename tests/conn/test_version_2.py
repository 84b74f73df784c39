# SPDX-License-Identifier: Apache-2.0
"""What announced messages, tags and recv_into() owe to who waits beside them, or gives up."""

from __future__ import annotations

import asyncio
import random
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import rnic
import rnic.aio
from conn.frames import announce
from conn.peers import HOST, WAIT, apart, peer, speak
from conn.peers import ends as ends_of
from conn.test_announced import ALL, ends
from conn.test_ends import pair, together
from conn.test_hostile import dialled
from conn.test_servers import served
from rnic.conn import sync
from rnic.conn.messages import put
from rnic.endpoint import AbortedError, Config, LostError, ProtocolError
from waiting import until

BIG = random.Random(2).randbytes(100_000)
SILENT = replace(ALL, idle_interval=None)
"""No probe comes to somebody's help."""


# ---------------------------------------------------------------- who waits behind a buffer that is too small


@pytest.mark.parametrize("behind", ["recv", "recv_into", "tag"])
def test_who_waits_behind_a_buffer_that_is_too_small_gets_the_message(behind: str) -> None:
    async def main() -> None:
        async with ends(SILENT) as (a, b):
            small = asyncio.create_task(b.recv_into(bytearray(10)))
            await asyncio.sleep(0.05)
            large = bytearray(len(BIG))
            tag = 5 if behind == "tag" else 0
            calls: dict[str, Callable[[], Any]] = {
                "recv": b.recv,
                "recv_into": lambda: b.recv_into(large),
                "tag": lambda: b.recv(tag=5),
            }
            second = asyncio.create_task(calls[behind]())
            await asyncio.sleep(0.05)
            sending = asyncio.create_task(a.send(BIG, tag=tag))
            with pytest.raises(ValueError, match="give a larger buffer"):
                await asyncio.wait_for(small, WAIT)
            got = await asyncio.wait_for(second, WAIT)
            assert got in (BIG, len(BIG))
            await sending

    asyncio.run(main())


# ---------------------------------------------------------------- whose buffer it is after a cancellation


async def waiting_into(conn: rnic.aio.Connection, buffer: bytearray) -> asyncio.Task[int]:
    """A task that has begun to wait in recv_into()."""
    task = asyncio.create_task(conn.recv_into(buffer))
    while not conn._pump.messages:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


def came(conn: rnic.Connection | rnic.aio.Connection) -> int:
    """How many messages have come."""
    return conn.statistics().messages_received


def pump(conn: rnic.Connection) -> bool:
    conn._core.pump(monotonic())
    return True


def both(conn: rnic.Connection) -> None:
    """A message is sent, and a second one."""
    conn.send(BIG, 20)
    conn.send(b"second", 20)


def pumped(conn: rnic.aio.Connection, other: rnic.aio.Connection, is_so: object) -> None:
    """Both are kept going, and no task runs meanwhile."""
    assert callable(is_so)
    for _ in range(20_000):
        other._pump.run()
        conn._pump.run()
        if is_so():
            return
    pytest.fail("it does not come")


def test_a_cancelled_buffer_is_free_though_a_further_message_has_come() -> None:
    """One message has landed in the buffer, a second one has come since, and then the task is cancelled."""

    async def main() -> None:
        async with ends() as (a, b):
            buffer = bytearray(len(BIG))
            waits = await waiting_into(b, buffer)
            a._core.messages.send(BIG, 0)
            a._core.messages.send(b"second", 0)
            pumped(a, b, lambda: came(b) == 2)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            buffer[:] = bytes(len(buffer))  # the caller's again
            assert await b.recv() == BIG
            assert await b.recv() == b"second"

    asyncio.run(main())


def test_a_cancelled_buffer_is_free_though_a_tag_overtakes_its_message() -> None:
    """A task behind it takes a message with a tag; then somebody takes the one that had landed."""

    async def main() -> None:
        async with ends() as (a, b):
            buffer = bytearray(len(BIG))
            waits = await waiting_into(b, buffer)
            tagged = asyncio.create_task(b.recv(tag=5))
            while len(b._pump.messages) < 2:
                await asyncio.sleep(0)
            a._core.messages.send(BIG, 0)
            a._core.messages.send(b"tagged", 5)
            pumped(a, b, lambda: came(b) == 2)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            buffer[:] = bytes(len(buffer))
            assert await tagged == b"tagged"
            assert await b.recv() == BIG

    asyncio.run(main())


# ---------------------------------------------------------------- time limits that come again and again


def test_a_message_that_takes_longer_than_the_time_limit_comes_in_the_end() -> None:
    """recv_into() with a short limit, again and again: what was READ is not READ anew each time."""
    long = random.Random(3).randbytes(1 << 20) * 64
    with pair() as (a, b):

        def take() -> None:
            buffer, limit = bytearray(len(long)), monotonic() + WAIT
            while True:
                try:
                    assert b.recv_into(buffer, 0.002) == len(long)
                    break
                except TimeoutError:
                    assert monotonic() < limit  # READ anew each time, it would never be whole
            assert buffer == long

        together(lambda: a.send(long, WAIT), take)


# ---------------------------------------------------------------- when there is no memory for a message

LONG = 160 << 20
ROOM = 60 << 20


@contextmanager
def little_memory() -> Iterator[None]:
    """This process gets no more than ROOM bytes."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def serve_without_memory(conn: rnic.Connection) -> None:
    """There is memory for a part of the message, and later for all of it."""
    with little_memory(), pytest.raises(MemoryError):
        conn.recv(WAIT)
    assert conn.recv(WAIT) == bytes(LONG)
    assert conn.recv(WAIT) == b"after"


def test_a_message_for_which_there_is_no_memory_comes_when_there_is() -> None:
    config = Config(announce=1)
    with (
        peer(serve_without_memory, config=config) as (port, _),
        rnic.connect(HOST, port, config=config) as conn,
    ):
        conn.send(bytes(LONG), WAIT)
        conn.send(b"after", WAIT)


def take_pieces_without_memory(conn: rnic.Connection) -> None:
    words = f"there is no memory for message 0 of {LONG} bytes"
    with little_memory(), pytest.raises(ProtocolError, match=words):
        conn.recv(WAIT)


def test_a_message_in_pieces_for_which_there_is_no_memory_ends_the_connection_in_words() -> None:
    """What has come of it is gone with the memory that could not grow."""
    config = replace(SILENT, announce=None)
    with (
        peer(take_pieces_without_memory, config=config) as (port, _),
        rnic.connect(HOST, port, config=config) as conn,
    ):
        with pytest.raises(AbortedError, match="there is no memory"):
            conn.send(bytes(LONG), WAIT)
            conn.recv(WAIT)
        conn.abort()


def take_in_a_loop_without_memory() -> None:
    async def main() -> None:
        async with ends() as (a, b):
            message = bytes(LONG)
            with little_memory():
                taking = asyncio.create_task(b.recv())
                sending = asyncio.create_task(a.send(message))
                with pytest.raises(MemoryError):
                    await taking
                await asyncio.sleep(0.1)
            assert await asyncio.wait_for(b.recv(), WAIT) == message
            await sending

    asyncio.run(main())


def test_in_a_loop_the_want_of_memory_ends_no_connection() -> None:
    """The peer says how long a message is; it must not end what we have to say to it."""
    apart(take_in_a_loop_without_memory)


def send_without_memory(conn: rnic.Connection) -> None:
    """The peer's message is announced, and this end cannot take it."""
    until(lambda: pump(conn) and conn._core.machine.offered == LONG, "the peer announces")
    with little_memory():
        conn.send(BIG, WAIT, tag=1)
    with suppress(MemoryError):  # of the moment when there was none
        conn.recv(0)
    assert conn.recv(WAIT) == bytes(LONG)


def test_a_long_message_for_which_there_is_no_memory_keeps_nobody_from_sending() -> None:
    """send() is not the call that has to bring the message in."""
    config = replace(SILENT, announce=1000)
    with (
        peer(send_without_memory, config=config) as (port, _),
        rnic.connect(HOST, port, config=config) as conn,
    ):
        conn.send(bytes(LONG), WAIT)
        assert conn.recv(WAIT, tag=1) == BIG


# ---------------------------------------------------------------- an exception of a signal's handler


class InterruptError(Exception):
    """What the handler raises."""


def test_an_interrupted_recv_into_leaves_its_message_as_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer is the caller's; a further message comes."""
    with pair(SILENT) as (a, b):

        def interrupted(message: bytes | int, target: memoryview) -> int:
            assert put(message, target) == len(BIG)
            raise InterruptError

        def take() -> None:
            buffer = bytearray(len(BIG))
            monkeypatch.setattr(sync, "put", interrupted)
            with pytest.raises(InterruptError):
                b.recv_into(buffer, WAIT)
            buffer[:] = bytes(len(buffer))
            until(lambda: pump(b) and came(b) == 2, "the second message")
            assert b.recv(WAIT) == BIG
            assert b.recv(WAIT) == b"second"

        together(lambda: both(a), take)


# ---------------------------------------------------------------- senders that give up


def give_up_without_memory() -> None:
    with pair(SILENT) as (a, b):
        message = bytearray(BIG) * (LONG // len(BIG))
        wanted = bytes(message)
        with little_memory(), pytest.raises((TimeoutError, MemoryError)):
            a.send(message, 0.1)
        message[:] = bytes(len(message))

        def take() -> None:
            got = b.recv(WAIT)
            if got != b"next":
                assert got == wanted
                assert b.recv(WAIT) == b"next"

        together(lambda: a.send(b"next", WAIT), take)


def test_a_send_that_gives_up_without_memory_for_a_copy_gives_the_buffer_back() -> None:
    """The peer gets the whole message as it was, or nothing of it; and the caller hears of the time limit."""
    apart(give_up_without_memory)


# ---------------------------------------------------------------- one direction does not wait for the other


@pytest.mark.parametrize("announce", [None, 1])
def test_a_long_message_goes_though_its_sender_takes_none(announce: int | None) -> None:
    """The peer takes what comes, and has filled the other direction, which nobody takes."""

    async def fill(conn: rnic.aio.Connection) -> None:
        while True:
            await conn.send(bytes(400))

    async def main() -> None:
        config = replace(
            SILENT, announce=announce, receive_size=512, send_size=512, receives=8, max_backlog=4000
        )
        of_b = replace(config, announce=None)  # what fills is not announced
        async with ends_of(config, of_b) as (a, b):
            filling = asyncio.create_task(fill(b))
            while not (a.statistics().held and b.statistics().credits < 2):
                await asyncio.sleep(0.01)
            try:
                for _ in range(3):
                    sending = asyncio.create_task(a.send(BIG))
                    assert await asyncio.wait_for(b.recv(), WAIT) == BIG
                    await asyncio.wait_for(sending, WAIT)
            finally:
                filling.cancel()
                sending.cancel()
                await asyncio.gather(filling, sending, return_exceptions=True)

    asyncio.run(main())


# ---------------------------------------------------------------- what a peer can make us hold


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_message_takes_memory_as_it_comes_and_not_as_it_is_announced() -> None:
    """The peer has one page, and says 512 MiB: 40 bytes are not worth so much of our memory."""
    total, held = 1 << 29, list[int]()

    def take(conn: rnic.Connection) -> None:
        before = resident()
        with pytest.raises(LostError):  # it cannot be READ
            conn.recv(WAIT)
        held.append(resident() - before)

    with (
        served(take) as server,
        dialled(server, SILENT.hello().emit()) as one,
        one.one.reg_read(bytearray(4096)) as page,
    ):
        one.post(announce(0, total, page.addr, page.rkey))
        until(lambda: bool(held), "the connection is lost")
    assert held[0] < total // 4


# ---------------------------------------------------------------- who may come in


@pytest.mark.parametrize("answer", [False, True, 3])
def test_an_admit_that_answers_no_bytes_admits_nobody(answer: object) -> None:
    """It is not known what it means; False hardly means yes."""
    with rnic.listen(HOST, 0, admit=lambda *_: answer) as server:  # type: ignore[arg-type]
        thread = threading.Thread(target=lambda: suppressed(server.accept, 2))
        thread.start()
        with pytest.raises(rnic.endpoint.RefusedError):
            rnic.connect(HOST, server.port).abort()
    thread.join()


def test_what_admit_cannot_open_is_not_told_to_the_peer() -> None:
    """PermissionError is its way to refuse, and also what open() says, with a path of this machine."""

    def admit(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied", "/etc/rnic/tokens")

    with rnic.listen(HOST, 0, admit=admit) as server:
        thread = threading.Thread(target=lambda: suppressed(server.accept, 2))
        thread.start()
        with pytest.raises(rnic.endpoint.RefusedError) as caught:
            rnic.connect(HOST, server.port).abort()
    thread.join()
    assert "/etc/rnic" not in str(caught.value)


def suppressed(call: Callable[..., object], *args: object) -> None:
    with suppress(rnic.VerbsError, TimeoutError):
        call(*args)


# ---------------------------------------------------------------- tags


@pytest.mark.parametrize("tag", [-1, 1 << 64])
def test_nobody_waits_for_a_tag_that_cannot_be(tag: int) -> None:
    with pair() as (_, b), pytest.raises(ValueError, match="tag"):
        b.recv(0.1, tag=tag)


def test_nobody_waits_for_a_tag_of_a_peer_that_knows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    speak(1, monkeypatch)
    with pair() as (_, b), pytest.raises(ValueError, match="tag"):
        b.recv(0.1, tag=5)


# ---------------------------------------------------------------- statistics


def test_statistics_of_another_thread_leave_a_call_as_it_is() -> None:
    with pair(Config(idle_interval=None)) as (a, b):
        for _ in range(2):
            a.send(b"x", WAIT)
            b.recv(WAIT)
            b.send(b"x", WAIT)
            a.recv(WAIT)
        got: list[bytes] = []
        waiting = threading.Thread(target=lambda: got.append(a.recv(WAIT)))
        waiting.start()
        until(lambda: a._inside is not None, "it waits")
        assert a.statistics().messages_received == 2
        b.send(b"y", WAIT)
        waiting.join(WAIT)
        assert got == [b"y"]
