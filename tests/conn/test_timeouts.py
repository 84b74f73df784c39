# SPDX-License-Identifier: Apache-2.0
"""Time limits of days, and for ever: every call takes them."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

import rnic
from conn.peers import HOST, SMALL, WAIT
from conn.test_ends import pair
from rnic.rdmacm import EventChannel, EventType, create_id
from rnic.times import bounded, milliseconds

LONG = [math.inf, 3e6]  # 3e6 s in ms are more than an int has room for


@pytest.mark.parametrize(
    ("seconds", "found"),
    [(None, None), (0, 0), (-1, 0), (0.0001, 1), (1.5, 1500), (3e6, 1 << 30), (math.inf, 1 << 30)],
)
def test_milliseconds(seconds: float | None, found: int | None) -> None:
    assert milliseconds(seconds) == found


@pytest.mark.parametrize(
    ("seconds", "found"), [(None, None), (0, 0), (5.5, 5.5), (3e6, None), (math.inf, None)]
)
def test_what_is_too_long_for_a_socket_is_for_ever(seconds: float | None, found: float | None) -> None:
    assert bounded(seconds) == found


@pytest.mark.parametrize("long", LONG)
def test_a_connection_may_wait_for_ever(long: float) -> None:
    config = replace(SMALL, idle_interval=long)
    with rnic.listen(HOST, 0, config=config, handshake_timeout=long) as server:

        def echo() -> None:
            with server.accept(long) as conn:
                conn.send(conn.recv(long), long)
                conn.close(long)

        thread = threading.Thread(target=echo)
        thread.start()
        conn = rnic.connect(HOST, server.port, timeout=long, config=config)
        conn.send(b"hello", long)
        assert conn.recv(long) == b"hello"
        conn.close(long)
        thread.join(WAIT)
        assert not thread.is_alive()


@pytest.mark.parametrize("long", LONG)
def test_agents_may_take_for_ever_to_finish(long: float) -> None:
    with rnic.listen(HOST, 0, config=SMALL) as server:
        serving = threading.Thread(
            target=server.serve, args=(lambda conn: conn.recv(long),), kwargs={"grace": long}
        )
        serving.start()
        with rnic.connect(HOST, server.port, config=SMALL) as conn:
            server.close()
            conn.send(b"goodbye", long)
        serving.join(WAIT)
        assert not serving.is_alive()


@pytest.mark.parametrize("long", LONG)
def test_a_task_may_wait_for_ever(long: float) -> None:
    async def main() -> None:
        config = replace(SMALL, idle_interval=long)

        async def echo(conn: rnic.aio.Connection) -> None:
            await conn.send(await conn.recv())
            await conn.close(long)

        async with rnic.aio.listen(HOST, 0, config=config, handshake_timeout=long) as server:
            serving = asyncio.create_task(server.serve(echo, grace=long))
            conn = await rnic.aio.connect(HOST, server.port, timeout=long, config=config)
            await conn.send(b"hello")
            assert await conn.recv() == b"hello"
            await conn.close(long)
            server.close()
            await serving

    asyncio.run(asyncio.wait_for(main(), WAIT))


@pytest.mark.parametrize("timeout", [-1, -0.5, math.nan])
def test_a_time_before_now_is_refused_and_nothing_has_happened(timeout: float) -> None:
    refused = pytest.raises(ValueError, match=f"timeout is {timeout}: give seconds from 0 on, 0 .* None ")
    with rnic.listen(HOST, 0, config=SMALL) as server:
        with refused:
            rnic.connect(HOST, server.port, timeout=timeout)
        with refused:
            server.accept(timeout)
        with pytest.raises(ValueError, match=f"grace is {timeout}: "):
            server.serve(lambda _: None, grace=timeout)
    with pair() as (a, b):
        memory = bytearray(8)
        region = a.share(memory)
        there = b.next_region(WAIT)
        calls: tuple[Callable[[], object], ...] = (
            lambda: a.send(b"lost", timeout),
            lambda: a.recv(timeout),
            lambda: a.withdraw(region, timeout),
            lambda: a.next_region(timeout),
            lambda: b.write(b"8 bytes!", there, timeout=timeout),
            lambda: b.fetch_add(there, 1, timeout=timeout),
            lambda: a.close(timeout),
        )
        for call in calls:
            with refused:
                call()
        a.send(b"kept")
        assert b.recv(WAIT) == b"kept"
        assert b.fetch_add(there, 5) == 0  # the region is still shared, and nothing has been written
        assert memory == (5).to_bytes(8, sys.byteorder)


@pytest.mark.parametrize("timeout", [-1, math.nan])
def test_a_task_is_refused_a_time_before_now(timeout: float) -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0, config=SMALL) as server:
            with pytest.raises(ValueError, match=f"timeout is {timeout}: "):
                await rnic.aio.connect(HOST, server.port, timeout=timeout)
            with pytest.raises(ValueError, match=f"grace is {timeout}: "):
                await server.serve(asyncio.sleep, grace=timeout)  # type: ignore[arg-type]
            dialling = asyncio.create_task(rnic.aio.connect(HOST, server.port, config=SMALL))
            async with await server.accept() as peer, await dialling as conn:
                with pytest.raises(ValueError, match=f"timeout is {timeout}: "):
                    await conn.close(timeout)
                await conn.send(b"open")
                assert await peer.recv() == b"open"
                await asyncio.gather(peer.close(), conn.close())

    asyncio.run(asyncio.wait_for(main(), WAIT))


@pytest.mark.parametrize("timeout", [-1, math.nan])
def test_an_event_is_not_waited_for_before_now(timeout: float) -> None:
    refused = pytest.raises(ValueError, match=f"timeout is {timeout}: ")
    with EventChannel() as channel, create_id(channel) as one:
        with refused:
            channel.get_cm_event(timeout)
        limit = "timeout_ms is -1: give milliseconds from 0 on"
        with pytest.raises(rnic.VerbsError, match=limit):
            one.resolve_addr(None, (HOST, 1), -1)
        with pytest.raises(rnic.VerbsError, match=limit):
            one.resolve_route(-1)


@pytest.mark.parametrize("long", LONG)
def test_an_event_may_be_waited_for_for_ever(long: float) -> None:
    with EventChannel() as channel, create_id(channel) as one:
        threading.Timer(0.02, lambda: one.write_cm_event(EventType.USER)).start()
        with channel.get_cm_event(long) as event:
            assert event.event is EventType.USER
