# SPDX-License-Identifier: Apache-2.0
"""Who waits does the device's work meanwhile: threads, signals, forks and loops on one device."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

import pytest

import rnic
from conn.peers import HOST, SLEEPY, WAIT, ends, peer, settle
from conn.test_ends import pair, together
from rnic.endpoint import EndpointError

MANY = 50


@contextmanager
def alarms(handler: Callable[[int, FrameType | None], None], interval: float = 0.002) -> Iterator[None]:
    """SIGALRM again and again, with this handler."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, interval, interval)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------- threads


def test_threads_that_wait_on_one_device_get_their_messages() -> None:
    """By turns one does the work of all."""

    def talk(mine: rnic.Connection, number: int) -> None:
        for turn in range(MANY):
            said = bytes([number, turn])
            mine.send(said, WAIT)
            assert mine.recv(WAIT) == said

    with ExitStack() as stack:
        pairs = [stack.enter_context(pair(SLEEPY)) for _ in range(2)]
        serving = [threading.Thread(target=answer, args=(b, MANY)) for _, b in pairs]
        for one in serving:
            one.start()
        together(*(lambda a=a, i=i: talk(a, i) for i, (a, _) in enumerate(pairs)))
        for one in serving:
            one.join(WAIT)
            assert not one.is_alive()


def answer(conn: rnic.Connection, times: int) -> None:
    for _ in range(times):
        conn.send(conn.recv(WAIT), WAIT)


def test_a_thread_that_waits_on_gets_its_message_when_the_other_has_left() -> None:
    """Both wait; one gets its message and does something else, then the other gets one."""
    got: list[bytes] = []
    with pair(SLEEPY) as (a, a_peer), pair(SLEEPY) as (b, b_peer):
        settle(a, a_peer)
        settle(b, b_peer)
        for turn in range(MANY):
            first, second = [(a, a_peer), (b, b_peer)][:: 1 if turn % 2 else -1]
            threads = [
                threading.Thread(target=lambda conn=conn: got.append(conn.recv(WAIT)))
                for conn, _ in (first, second)
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.02 * (turn % 3))  # the engine's looks become rare
            for (_, other), thread in zip((first, second), threads, strict=True):
                other.send(b"%d" % turn, WAIT)
                thread.join(WAIT)
                assert not thread.is_alive()
        assert got == [b"%d" % turn for turn in range(MANY) for _ in range(2)]


def test_a_connection_is_not_lost_when_another_thread_ends_the_other_one() -> None:
    """Who drives for both waits on while connections of the same device come and go."""
    with pair(SLEEPY) as (a, b):
        settle(a, b)
        got: list[bytes] = []
        waits = threading.Thread(target=lambda: got.append(a.recv(WAIT)))
        waits.start()
        for turn in range(10):
            with pair(SLEEPY) as (c, d):
                settle(c, d)
                if turn % 2:
                    c.abort()
        b.send(b"the last", WAIT)
        waits.join(WAIT)
        assert got == [b"the last"]


def test_a_thread_that_waits_is_no_obstacle_to_closing_from_another() -> None:
    """A call in another thread keeps a connection open; it is refused or ends the wait, and nothing hangs."""
    with pair(SLEEPY) as (a, b):
        settle(a, b)
        ended: list[BaseException | bytes] = []

        def wait() -> None:
            try:
                ended.append(a.recv(WAIT))
            except (EndpointError, RuntimeError, EOFError, OSError) as error:
                ended.append(error)

        waits = threading.Thread(target=wait)
        waits.start()
        time.sleep(0.05)
        with suppress(RuntimeError):
            a.abort()
        b.abort()
        waits.join(WAIT)
        assert not waits.is_alive()
        assert len(ended) == 1
        assert isinstance(ended[0], BaseException)


# ---------------------------------------------------------------- signals, time limits and forks


def test_handlers_run_while_a_connection_waits_and_the_message_comes() -> None:
    seen = 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1

    with pair(SLEEPY) as (a, b):
        settle(a, b)
        with alarms(count):
            for turn in range(5):
                later = threading.Timer(0.05, b.send, (b"%d" % turn, WAIT))
                later.start()
                assert a.recv(WAIT) == b"%d" % turn
                later.join()
        assert seen


def test_a_time_limit_is_kept_beside_signals_and_ends_no_sooner() -> None:
    with pair(SLEEPY) as (a, b), rnic.open_device("roce_lo") as ctx, ctx.create_comp_channel() as channel:
        settle(a, b)
        for handler in (None, lambda *_: None):
            with alarms(handler) if handler else ExitStack():
                for wait in (a.recv, channel.get_cq_event):
                    for limit in (0, 0.003, 0.3):
                        began = time.monotonic()
                        with pytest.raises(TimeoutError):
                            wait(limit)
                        assert time.monotonic() - began >= limit
        settle(a, b)


def test_ctrl_c_ends_a_wait_of_the_main_thread_while_another_one_drives() -> None:
    with pair(SLEEPY) as (a, b), pair(SLEEPY) as (c, d):
        settle(a, b)
        settle(c, d)
        got: list[bytes] = []
        drives = threading.Thread(target=lambda: got.append(c.recv(WAIT)))
        drives.start()
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            for _ in range(5):
                kills = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
                kills.start()
                with pytest.raises(KeyboardInterrupt):
                    a.recv(WAIT)
                kills.join()
        finally:
            signal.signal(signal.SIGINT, before)
        settle(a, b)
        d.send(b"it goes on", WAIT)
        drives.join(WAIT)
        assert got == [b"it goes on"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_while_a_thread_waits_leaves_both_processes_at_work() -> None:
    with pair(SLEEPY) as (a, b):
        settle(a, b)
        for turn in range(5):
            got: list[bytes] = []
            waits = threading.Thread(target=lambda got=got: got.append(a.recv(WAIT)))
            waits.start()
            time.sleep(0.01 * turn)
            pid = os.fork()
            if not pid:
                try:
                    a.recv(0)
                except BaseException:  # it is the parent's
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0
            b.send(b"%d" % turn, WAIT)
            waits.join(WAIT)
            assert got == [b"%d" % turn]


# ---------------------------------------------------------------- asyncio


async def bounce(a: rnic.aio.Connection, b: rnic.aio.Connection, times: int) -> None:
    for turn in range(times):
        await a.send(b"%d" % turn)
        assert await asyncio.wait_for(b.recv(), WAIT) == b"%d" % turn


def test_two_loops_in_two_threads_share_a_device() -> None:
    async def main() -> None:
        async with ends(SLEEPY) as (a, b):
            for _ in range(MANY // 10):
                await bounce(a, b, 10)
                await asyncio.sleep(0.006)  # the engine takes over, and gives it back
                await bounce(b, a, 10)

    together(*(lambda: asyncio.run(main()),) * 2)


def test_a_loop_and_a_thread_that_waits_share_a_device() -> None:
    async def main() -> None:
        async with ends(SLEEPY) as (a, b):
            await bounce(a, b, 3 * MANY)

    def talk() -> None:
        with pair(SLEEPY) as (a, b):
            for _ in range(MANY):
                settle(a, b)

    together(lambda: asyncio.run(main()), talk)


def test_a_task_that_is_cancelled_while_it_waits_leaves_the_loop_at_work() -> None:
    async def main() -> None:
        async with ends(SLEEPY) as (a, b):
            for turn in range(MANY):
                waits = asyncio.create_task(b.recv())
                await asyncio.sleep(0.006 if turn % 10 == 0 else 0)
                waits.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waits
                await bounce(a, b, 2)

    asyncio.run(main())


def test_a_loop_that_has_stopped_runs_again_and_misses_nothing() -> None:
    """What has come while it stood still is there; the device has gone on meanwhile."""
    loop = asyncio.new_event_loop()
    try:
        both = ends(SLEEPY)
        a, b = loop.run_until_complete(both.__aenter__())
        for turn in range(10):
            loop.run_until_complete(a.send(b"%d" % turn))
            time.sleep(0.003 * turn)
            assert loop.run_until_complete(asyncio.wait_for(b.recv(), WAIT)) == b"%d" % turn
        loop.run_until_complete(both.__aexit__(None, None, None))
    finally:
        loop.close()


def with_memory_of(conn: rnic.Connection) -> None:
    """WRITEs and READs, in answer to each message: how often, while the peer computes."""
    remote = conn.next_region(WAIT)
    for turn, _ in enumerate(conn):
        data = bytearray(8)
        conn.write(turn.to_bytes(8, "big"), remote, 0, timeout=WAIT)
        conn.read(data, remote, 0, timeout=WAIT)
        assert int.from_bytes(data, "big") == turn


def compute(memory: bytearray, turn: int) -> None:
    """No call of rnic, at least 50 ms, and until the peer has written."""
    limit, least = time.monotonic() + WAIT, time.monotonic() + 0.05
    while int.from_bytes(memory[:8], "big") != turn or time.monotonic() < least:
        assert time.monotonic() < limit, "the peer is not served while the program computes"


def test_a_peer_is_served_while_the_loop_computes() -> None:
    async def main(port: int) -> None:
        memory = bytearray(64)
        async with rnic.aio.connect(HOST, port, config=SLEEPY) as conn:
            await conn.share(memory)
            for turn in range(10):
                await conn.send(b"now")
                await asyncio.sleep(0)
                compute(memory, turn)
                if turn % 2:
                    await asyncio.sleep(0.01)

    with peer(with_memory_of, config=SLEEPY) as (port, _):
        asyncio.run(main(port))


def test_a_peer_is_served_while_a_program_computes_between_two_waits() -> None:
    memory = bytearray(64)
    with (
        peer(with_memory_of, config=SLEEPY) as (port, _),
        rnic.connect(HOST, port, config=SLEEPY, timeout=WAIT) as conn,
    ):
        conn.share(memory)
        for turn in range(10):
            conn.send(b"now", WAIT)
            with pytest.raises(TimeoutError):
                conn.recv(0.001 * turn)
            compute(memory, turn)
