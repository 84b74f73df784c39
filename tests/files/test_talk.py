# SPDX-License-Identifier: Apache-2.0
"""A peer that is slow is waited for, as long as it gives signs of life. The clock is ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from rnic.files.records import Alive, encode
from rnic.files.state import CopyError
from rnic.files.talk import Talk

QUIET = 30.0
WAITS: list[Callable[[Talk], Awaitable[object]]] = [Talk.next_region, lambda talk: talk.send(Alive())]


class Conn:
    """The peer says that it is alive; it takes nothing, and shares nothing, until it is let."""

    def __init__(self) -> None:
        self.lets = asyncio.Event()

    async def recv(self) -> bytes:
        return encode(Alive())

    async def next_region(self) -> None:
        await self.lets.wait()

    async def send(self, _: bytes) -> None:
        await self.lets.wait()


async def turns() -> None:
    """All that can go on does."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("wait", WAITS, ids=["a region", "room for a message"])
def test_signs_of_life_count_for_all_that_waits(wait: Callable[[Talk], Any]) -> None:
    async def main() -> None:
        loop, now = asyncio.get_running_loop(), 0.0
        loop.time = lambda: now  # type: ignore[method-assign]
        conn = Conn()
        talk = Talk(cast("Any", conn), QUIET)
        waiting = asyncio.ensure_future(wait(talk))
        for _ in range(5):
            now += 0.9 * QUIET
            await turns()
            assert not waiting.done()
            await talk.hear()
        conn.lets.set()
        await waiting

        conn.lets.clear()
        waiting = asyncio.ensure_future(wait(talk))
        await turns()
        now += QUIET + 1
        with pytest.raises(CopyError, match="said nothing for 30 s"):
            await waiting

    asyncio.run(main())
