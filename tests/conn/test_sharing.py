# SPDX-License-Identifier: Apache-2.0
"""Many who use one connection, listener or loop: each gets its turn, or is told why not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from errno import EBADF
from typing import Any

import pytest

import rnic
from conn.peers import HOST, SMALL, WAIT, peer
from conn.test_ends import pair, together
from rnic.aio import waiting
from rnic.aio.waiting import CALLS, turn_of
from rnic.conn.core import HUNG_UP
from rnic.endpoint import Config, EndpointError, LostError


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 3 * WAIT))


@asynccontextmanager
async def two(config: Config | None = None) -> AsyncIterator[tuple[rnic.aio.Connection, rnic.aio.Connection]]:
    """Both ends in this loop."""
    async with rnic.aio.listen(HOST, 0, config=config) as server:
        there = asyncio.create_task(server.accept())
        a = await rnic.aio.connect(HOST, server.port, config=config)
        b = await there
        try:
            yield a, b
        finally:
            await asyncio.gather(a.abort(), b.abort())


# ------------------------------------------------------------ the loop goes on


def flood(conn: rnic.Connection) -> None:
    conn.share(bytearray(64))
    with suppress(EndpointError):
        while True:
            conn.send(b"again", WAIT)


def swallow(conn: rnic.Connection) -> None:
    with suppress(EndpointError, EOFError):
        while True:
            conn.recv()


async def others_run_beside(call: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """A task makes calls that return at once, one after the other: others and timers have their turn."""
    calls = turns = 0
    most = 0
    over = asyncio.Event()

    async def beside() -> None:
        nonlocal turns, calls, most
        while True:
            await asyncio.sleep(0)
            turns += 1
            most, calls = max(most, calls), 0

    task = asyncio.create_task(beside())
    asyncio.get_running_loop().call_later(0.3, over.set)
    while turns < 2 or not over.is_set():
        await call()
        calls += 1
        assert calls < 20 * CALLS, "nobody else has run"
    # The first one may have waited; and behind a wait the task has another place in the loop's turn.
    assert most <= 2 * CALLS + 1
    task.cancel()


@pytest.mark.parametrize("tasks", [2, 10])
def test_tasks_that_give_way_together_have_one_share(tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SECONDS", WAIT)

    async def main() -> None:
        turn = turn_of(asyncio.get_running_loop())
        taken: list[int] = [0]

        async def call() -> None:
            while len(taken) < 20:
                await turn.take()
                taken[-1] += 1

        calls = [asyncio.create_task(call()) for _ in range(tasks)]
        while len(taken) < 20:
            await asyncio.sleep(0)
            taken.append(0)
        await asyncio.gather(*calls)
        assert max(taken) <= CALLS + tasks

    run(main())


def test_the_share_of_a_turn_is_so_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SECONDS", WAIT)

    async def main() -> None:
        turn = turn_of(asyncio.get_running_loop())
        taken: list[int] = [0]

        async def beside() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
                taken.append(0)

        task = asyncio.create_task(beside())
        while not task.done():
            await turn.take()
            taken[-1] += 1
        assert set(taken[1:-1]) == {CALLS}

    run(main())


def test_a_withdrawal_that_is_cancelled_at_once_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when its call comes behind others that have used up the turn of the loop."""
    monkeypatch.setattr(waiting, "SECONDS", -1)

    async def main() -> None:
        async with two() as (a, b):
            region = await a.share(bytearray(8))
            theirs = await b.next_region()
            a._pump.turn.is_used_up()
            call = asyncio.create_task(a.withdraw(region))
            await asyncio.sleep(0)
            call.cancel()
            assert await b.next_withdrawn() is theirs

    run(main())


def test_messages_that_never_end_leave_the_loop_to_others() -> None:
    async def main(port: int) -> None:
        conn = await rnic.aio.connect(HOST, port)
        try:
            await others_run_beside(conn.recv)
        finally:
            await conn.abort()

    with peer(flood, clean=False) as (port, _):
        run(main(port))


def test_calls_that_never_wait_leave_the_loop_to_others() -> None:
    async def main(port: int) -> None:
        conn = await rnic.aio.connect(HOST, port)
        try:
            await others_run_beside(lambda: conn.send(b""))
        finally:
            await conn.abort()

    with peer(swallow, clean=False) as (port, _):
        run(main(port))


def test_a_long_message_leaves_the_loop_to_others() -> None:
    message = bytes(8 << 20)
    config = Config(announce=None, receive_size=16384, send_size=16384)

    async def main() -> None:
        async with two(config) as (a, b):
            turns = 0

            async def beside() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            task = asyncio.create_task(beside())
            coming = asyncio.create_task(b.recv())
            await a.send(message)
            assert await coming == message
            task.cancel()
            assert turns >= len(message) // (config.send_size * 64)  # one each 64 pieces

    run(main())


def test_operations_that_never_wait_leave_the_loop_to_others() -> None:
    async def main() -> None:
        async with two() as (a, b):
            await b.share(bytearray(64))
            remote = await a.next_region()
            await others_run_beside(lambda: a.write(b"", remote))

    run(main())


def test_what_is_cancelled_while_it_gives_way_takes_no_message() -> None:
    async def main() -> None:
        async with two() as (a, b):
            got: list[bytes] = []

            async def take() -> None:
                while True:
                    message = await b.recv()
                    got.append(message)

            for number in range(300):
                await a.send(b"%d" % number)
                task = asyncio.create_task(take())
                for _ in range(number % 3):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            while len(got) < 300:
                got.append(await b.recv())
            assert got == [b"%d" % number for number in range(300)]

    run(main())


# ------------------------------------------------------------ many tasks


def test_each_of_many_tasks_gets_one_message_and_only_one_is_woken() -> None:
    async def main() -> None:
        async with two() as (a, b):
            looks = 0
            ask = b._core.messages.raise_none

            def counted(tag: int | None = None) -> None:
                nonlocal looks
                looks += 1
                ask(tag)

            b._core.messages.raise_none = counted  # type: ignore[method-assign]
            got: list[bytes] = []

            async def one() -> None:
                got.append(await b.recv())

            tasks = [asyncio.create_task(one()) for _ in range(300)]
            await asyncio.sleep(0.01)
            begun = looks
            for number in range(300):
                await a.send(b"%d" % number)
            await asyncio.gather(*tasks)
            assert got == [b"%d" % number for number in range(300)]
            assert looks - begun < 3 * 300

    run(main())


def test_a_task_that_is_cancelled_when_it_is_woken_hands_the_message_on() -> None:
    async def main() -> None:
        async with two() as (a, b):
            first, second = (asyncio.create_task(b.recv()) for _ in range(2))
            await asyncio.sleep(0)
            await a.send(b"for one of them")
            while not any(future.done() for future in b._pump.messages._waiters):
                await asyncio.sleep(0)
                if first.done():
                    break
            first.cancel()
            done, _ = await asyncio.wait([first, second], timeout=WAIT)
            assert any(not one.cancelled() and one.result() == b"for one of them" for one in done)
            second.cancel()

    run(main())


def test_all_who_wait_hear_of_the_end() -> None:
    async def main() -> None:
        async with two() as (a, b):
            tasks = [asyncio.create_task(call()) for call in (b.recv, b.next_region) for _ in range(20)]
            await asyncio.sleep(0)
            await a.abort("that was all")
            for one in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(one, EndpointError)
                assert "that was all" in str(one)

    run(main())


def test_tasks_that_accept_get_a_connection_each_and_all_hear_of_close() -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as server:
            accepting = [asyncio.create_task(server.accept()) for _ in range(5)]
            await asyncio.sleep(0)
            conns = [await rnic.aio.connect(HOST, server.port, timeout=WAIT) for _ in range(3)]
            done, waiting = await asyncio.wait(accepting[:3], timeout=WAIT)
            assert not waiting
            accepting[3].cancel()
            await asyncio.sleep(0)
            server.close()
            with pytest.raises(rnic.VerbsError) as caught:
                await accepting[4]
            assert caught.value.errno == EBADF
            await asyncio.gather(*(one.abort() for one in conns), *(one.result().abort() for one in done))

    run(main())


def test_connections_that_are_made_at_once_are_taken_by_as_many_tasks() -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as server:
            accepting = [asyncio.create_task(server.accept()) for _ in range(8)]
            await asyncio.sleep(0)
            with ThreadPoolExecutor(8) as pool:
                calls = [pool.submit(rnic.connect, HOST, server.port, timeout=WAIT) for _ in accepting]
                time.sleep(0.2)  # the program is busy: the requests come together
                found = await asyncio.wait_for(asyncio.gather(*accepting), WAIT)
                for one in found:
                    await one.abort()
                for call in calls:
                    call.result().abort()

    run(main())


def test_threads_that_accept_get_a_connection_each() -> None:
    with rnic.listen(HOST, 0) as server:
        found: list[rnic.Connection] = []

        def accept() -> None:
            found.append(server.accept(WAIT))

        conns: list[rnic.Connection] = []
        together(*[accept] * 4, lambda: conns.extend(rnic.connect(HOST, server.port) for _ in range(4)))
        assert len(found) == 4
        for one in (*conns, *found):
            one.abort()


# ------------------------------------------------------------ many threads


def test_a_second_thread_is_refused_with_the_cure_and_the_first_goes_on() -> None:
    with pair() as (a, b):
        waiting = threading.Thread(target=lambda: got.append(a.recv(WAIT)))
        got: list[bytes] = []
        waiting.start()
        while a._inside is None and not a._core.machine.busy:
            time.sleep(0.001)
        for name in ("send", "recv", "close", "abort", "next_region"):
            with pytest.raises(RuntimeError, match=f"{name}.. while .*recv.. .* runs.*rnic.aio.*hang_up"):
                getattr(a, name)(*[b"x"] if name == "send" else [])
        b.send(b"meanwhile")
        waiting.join(WAIT)
        assert got == [b"meanwhile"]
        a.send(b"alone again")
        assert b.recv(WAIT) == b"alone again"


def test_hang_up_comes_from_any_thread() -> None:
    with pair() as (a, _):
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                a.recv(WAIT)
            except LostError as error:
                errors.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        while a._inside is None and not a._core.machine.busy:
            time.sleep(0.001)
        a.hang_up()
        waiting.join(WAIT)
        assert [str(one) for one in errors] == [HUNG_UP]


# ------------------------------------------------------------ what a peer can make an end hold


def test_an_unfinished_message_counts_in_the_backlog_unless_somebody_waits() -> None:
    async def main() -> None:
        async with two(SMALL) as (a, b):
            message = bytes(1 << 20)
            sending = asyncio.create_task(a.send(message))
            bound = SMALL.max_backlog + SMALL.receives * SMALL.receive_size
            for _ in range(50):
                await asyncio.sleep(0.001)
                assert b.statistics().partial <= bound
            taking = asyncio.create_task(b.recv())
            assert await taking == message
            await sending

    run(main())


def test_who_gives_up_waiting_holds_no_more_than_the_backlog() -> None:
    async def main() -> None:
        async with two(SMALL) as (a, b):
            getting = asyncio.create_task(b.recv())
            await asyncio.sleep(0)
            getting.cancel()
            sending = asyncio.create_task(a.send(bytes(1 << 20)))
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert b.statistics().partial <= SMALL.max_backlog + SMALL.receives * SMALL.receive_size
            sending.cancel()

    run(main())


def test_regions_that_nobody_asks_for_keep_nothing_back() -> None:
    """A program that takes no messages: its peer shares and withdraws as often as it likes."""

    def share_and_withdraw() -> None:
        for _ in range(300):
            a.withdraw(a.share(bytearray(8)), WAIT)
        a.close(WAIT)

    with pair(Config(max_backlog=1000, receives=4)) as (a, b):
        a.send(b"ready")
        assert b.recv(WAIT) == b"ready"
        together(share_and_withdraw, lambda: next_regions(b))


def next_regions(conn: rnic.Connection) -> None:
    """Until the peer has closed."""
    while not conn._core.eof:
        with suppress(TimeoutError, EndpointError):
            conn.next_region(0.02)
    conn.close(WAIT)


def test_a_loop_of_several_busy_connections_does_not_poll_for_one() -> None:
    """May one look?  Only if it was the last that asked."""

    async def main() -> None:
        turn = turn_of(asyncio.get_running_loop())
        one, other = object(), object()
        asked = [one, one, one, other, one, other, other]
        assert [turn.may_look(each) for each in asked] == [False, True, True, False, False, False, True]

    asyncio.run(main())
