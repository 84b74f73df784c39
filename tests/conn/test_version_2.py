# SPDX-License-Identifier: Apache-2.0
"""What announced messages, tags and recv_into() owe to who waits beside them, or gives up."""

from __future__ import annotations

import asyncio
import io
import random
import resource
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import rnic
import rnic.aio
import rnic.conn.rendezvous
from conn.peers import HOST, WAIT, peer, speak
from conn.test_announced import ALL, ends
from conn.test_ends import pair, together
from rnic._nic import nic
from rnic.conn import device
from rnic.conn.rendezvous import FetchOp
from rnic.endpoint import AbortedError, Config, LostError, Protocol, ProtocolError
from rnic.enums import AccessFlags
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


def protocol_of(conn: rnic.Connection | rnic.aio.Connection) -> Protocol:
    protocol = conn._core.protocol
    assert isinstance(protocol, Protocol)
    return protocol


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
            a._core.send(BIG, 0)
            a._core.send(b"second", 0)
            pumped(a, b, lambda: len(protocol_of(b)._inbox) == 1)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            buffer[:] = bytes(len(buffer))  # the caller's again
            assert await b.recv() == BIG
            assert await b.recv() == b"second"

    asyncio.run(main())


async def takes(conn: rnic.aio.Connection, other: asyncio.Task[int]) -> bytes:
    """The message with a tag; then nobody wants what the other task waits for."""
    message = await conn.recv(tag=5)
    other.cancel()
    return message


def test_a_cancelled_buffer_is_free_though_a_tag_has_overtaken_its_message() -> None:
    """The message that has landed goes back for one with a tag; then its task is cancelled."""

    async def main() -> None:
        async with ends() as (a, b):
            buffer = bytearray(len(BIG))
            waits = await waiting_into(b, buffer)
            tagged = asyncio.create_task(takes(b, waits))  # its turn is before that of who is woken below
            a._core.send(BIG, 0)
            a._core.send(b"tagged", 5)
            pumped(a, b, lambda: len(protocol_of(b)._inbox) == 1)
            assert await tagged == b"tagged"
            with pytest.raises(asyncio.CancelledError):
                await waits
            buffer[:] = bytes(len(buffer))
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


def serve_without_memory(conn: rnic.Connection) -> None:
    """There is memory for a part of the message, and later for all of it."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, before[1]))
    with pytest.raises(MemoryError):
        conn.recv(WAIT)
    resource.setrlimit(resource.RLIMIT_AS, before)
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


def test_a_message_in_pieces_for_which_there_is_no_memory_ends_the_connection_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What has come of it is gone with the memory that could not grow."""

    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise MemoryError

    def take() -> None:
        with pytest.raises(ProtocolError, match="there is no memory for message 0 of 5000000 bytes"):
            b.recv(WAIT)

    def give() -> None:
        with pytest.raises(AbortedError, match="there is no memory"):
            a.send(bytes(5_000_000), WAIT)
            a.recv(WAIT)

    with pair(replace(SILENT, announce=None)) as (a, b):
        monkeypatch.setattr(protocol_of(b)._assembler, "_data", Full())
        together(give, take)


def test_in_a_loop_the_want_of_memory_ends_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer says how long a message is; it must not end what we have to say to it."""
    blank = nic.blank
    lacks = True

    def short(length: int) -> tuple[bytes, int]:
        if lacks and length == len(BIG):
            raise MemoryError
        return blank(length)

    async def main() -> None:
        nonlocal lacks
        async with ends() as (a, b):
            b._pump._loop.set_exception_handler(lambda *_: None)
            taking = asyncio.create_task(b.recv())
            sending = asyncio.create_task(a.send(BIG))
            with pytest.raises(MemoryError):
                await taking
            await asyncio.sleep(0.1)
            lacks = False
            assert await asyncio.wait_for(b.recv(), WAIT) == BIG
            await sending

    monkeypatch.setattr(rnic.conn.rendezvous, "blank", short)
    asyncio.run(main())


def test_a_long_message_for_which_there_is_no_memory_keeps_nobody_from_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """send() is not the call that has to bring the message in."""

    def none(_: int) -> tuple[bytes, int]:
        raise MemoryError

    with pair(replace(SILENT, announce=1000)) as (a, b):
        a._core.send(BIG, 0)
        a._core.pump(monotonic())
        monkeypatch.setattr(rnic.conn.rendezvous, "blank", none)
        together(lambda: b.send(b"x", WAIT, tag=1), lambda: a.recv(WAIT))


# ---------------------------------------------------------------- an exception of a signal's handler


class InterruptError(Exception):
    """What the handler raises."""


def test_an_interrupted_recv_into_leaves_its_message_as_it_was_sent() -> None:
    """A further message has come by then, as recv_into() pumps once more; the buffer is the caller's."""
    with pair(SILENT) as (a, b):
        core, put = b._core, b._core.fetching.put

        def interrupted(message: bytes | memoryview, target: memoryview) -> int:
            put(message, target)
            until(lambda: pump(b) and len(protocol_of(b)._inbox), "the second message")
            raise InterruptError

        def take() -> None:
            buffer = bytearray(len(BIG))
            core.fetching.put = interrupted  # type: ignore[method-assign]
            with pytest.raises(InterruptError):
                b.recv_into(buffer, WAIT)
            buffer[:] = bytes(len(buffer))
            assert b.recv(WAIT) == BIG
            assert b.recv(WAIT) == b"second"

        together(lambda: both(a), take)


def test_an_interrupted_fetch_does_not_keep_the_next_one_from_beginning() -> None:
    """It comes when the message is here; then come completions without a pause, and one more offer."""
    with pair(SILENT) as (a, b):
        core, protocol = b._core, b._core.protocol
        assert isinstance(protocol, Protocol)
        fetched, poll = protocol.fetched, core._poll

        def interrupted(data: bytes | memoryview | None) -> None:
            fetched(data)
            raise InterruptError

        def busy(now: float) -> bool:
            """Completions of other work: READs and WRITEs of the user's, for instance."""
            poll(now)
            return protocol.offer is None

        def take() -> None:
            protocol.fetched = interrupted  # type: ignore[method-assign]
            with pytest.raises(InterruptError):
                b.recv(WAIT)
            protocol.fetched, core._poll = fetched, busy  # type: ignore[method-assign]
            until(
                lambda: pump(b) and (protocol.offer is not None or core.fetching._fetch is None),
                "an offer",
            )
            core._poll = poll  # type: ignore[method-assign]
            assert b.recv(WAIT) == BIG
            assert b.recv(WAIT) == b"second"

        together(lambda: both(a), take)


def test_a_send_that_is_interrupted_when_its_message_was_taken_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The memory is deregistered, and its place in the table is not empty yet."""
    let_go = device.let_go_memory

    def interrupted(mr: rnic.MR) -> bool:
        let_go(mr)
        monkeypatch.undo()
        raise InterruptError

    def say(conn: rnic.Connection) -> None:
        with pytest.raises(InterruptError):
            conn.send(BIG, WAIT)
        conn.send(b"next", WAIT)

    with pair(SILENT) as (a, b):
        a_only = a._core._announced
        close = type(a_only).close

        def close_of_a(announced: object, handle: int) -> None:
            if announced is a_only and handle in a_only:
                monkeypatch.setattr(rnic.conn.rendezvous, "let_go_memory", interrupted)
                monkeypatch.setattr(type(a_only), "close", close)
            close(announced, handle)  # type: ignore[arg-type]

        monkeypatch.setattr(type(a_only), "close", close_of_a)
        together(lambda: say(a), lambda: (b.recv(WAIT), b.recv(WAIT)))


# ---------------------------------------------------------------- senders that give up


def test_a_send_that_gives_up_without_memory_for_a_copy_gives_the_buffer_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer gets the whole message as it was, or nothing of it; and the caller hears of the time limit."""

    def none(_: object) -> bytearray:
        raise MemoryError

    with pair(SILENT) as (a, b):
        message = bytearray(BIG)
        monkeypatch.setattr(rnic.conn.rendezvous, "bytearray", none, raising=False)
        with pytest.raises((TimeoutError, MemoryError)):
            a.send(message, 0.1)
        monkeypatch.undo()
        message[:] = bytes(len(message))

        def take() -> None:
            got = b.recv(WAIT)
            if got != b"next":
                assert got == BIG
                assert b.recv(WAIT) == b"next"

        together(lambda: a.send(b"next", WAIT), take)


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
        async with ends(config) as (a, b):
            b._core.config = replace(config, announce=None)  # what fills is not announced
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
    total = 1 << 29
    with (
        pair(SILENT) as (a, b),
        a.pd.alloc_mr(4096, AccessFlags.REMOTE_READ | AccessFlags.LOCAL_WRITE) as page,
    ):
        before = resident()
        protocol_of(a).announce(total, page.addr, page.rkey)
        a._core.pump(monotonic())
        with pytest.raises(LostError):  # it cannot be READ
            b.recv(WAIT)
        assert resident() - before < total // 4


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


# ---------------------------------------------------------------- a READ that cannot be posted; statistics


def test_a_read_that_cannot_be_posted_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FetchOp.wr
    left = [None]

    def wr(op: FetchOp, wr_id: int, pieces: list[rnic.SGE]) -> rnic.SendWR:
        if left:
            left.clear()
            raise rnic.VerbsError(12, "no room", "post_send")
        return whole(op, wr_id, pieces)

    def take() -> None:
        with pytest.raises(rnic.VerbsError, match="no room"):
            b.recv(WAIT)
        assert b.recv(WAIT) == BIG

    monkeypatch.setattr(FetchOp, "wr", wr)
    with pair(SILENT) as (a, b):
        together(lambda: a.send(BIG, WAIT), take)


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
        until(lambda: a._core.courier.busy, "it waits")
        is_open = a._core.courier.open
        assert a.statistics().messages_received == 2
        assert a._core.courier.open == is_open
        b.send(b"y", WAIT)
        waiting.join(WAIT)
        assert got == [b"y"]
