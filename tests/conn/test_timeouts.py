# SPDX-License-Identifier: Apache-2.0
"""Time limits of days, and for ever: every call takes them."""

from __future__ import annotations

import asyncio
import math
import threading
from dataclasses import replace

import pytest

import rnic
from conn.peers import HOST, SMALL, WAIT
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


@pytest.mark.parametrize("long", LONG)
def test_an_event_may_be_waited_for_for_ever(long: float) -> None:
    with EventChannel() as channel, create_id(channel) as one:
        threading.Timer(0.02, lambda: one.write_cm_event(EventType.USER)).start()
        with channel.get_cm_event(long) as event:
            assert event.event is EventType.USER
