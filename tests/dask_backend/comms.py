# SPDX-License-Identifier: Apache-2.0
"""Pairs of comms, loops with a limit, and functions for workers, which import them from here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

pytest.importorskip("distributed", reason="Dask is not installed: pip install 'rnic[dask]'")

from distributed.comm import CommClosedError, connect, listen

from rnic.dask import Comm

HERE = "rnic://127.0.0.1"


def run(main: Coroutine[Any, Any, None], timeout: float = 60) -> None:
    """Run it in a loop of its own; nothing of it may be left at the end."""

    async def limited() -> None:
        async with asyncio.timeout(timeout):
            await main
            while asyncio.all_tasks() - {asyncio.current_task()}:  # those that are about to end
                await asyncio.sleep(0)

    asyncio.run(limited())


class Pair(NamedTuple):
    """Both ends of a connection."""

    client: Comm
    server: Comm


@asynccontextmanager
async def pair(address: str = HERE, deserialize: bool = True) -> AsyncIterator[Pair]:
    """Two ends in this loop, whose listener has stopped."""
    came: asyncio.Queue[Comm] = asyncio.Queue()
    async with listen(address, came.put, deserialize=deserialize) as listener:
        client = await connect(listener.contact_address, deserialize=deserialize)
        server = await came.get()
    try:
        yield Pair(client, server)
    finally:
        client.abort()
        server.abort()


async def echo(comm: Comm) -> None:
    """Answer until the peer has gone."""
    try:
        while True:
            await comm.write(await comm.read())
    except CommClosedError:
        await comm.close()


async def until(look: Callable[[], bool]) -> None:
    """Let the loop run until something is so."""
    while not look():
        await asyncio.sleep(0.001)


def filled(size: int, value: int) -> Any:
    """An array; in a worker."""
    import numpy as np

    return np.full(size, value, np.uint8)


def total(*arrays: Any) -> int:
    """The sum of all their bytes; in a worker."""
    return sum(int(array.sum()) for array in arrays)


def pid() -> int:
    """The process; in a worker."""
    return os.getpid()
