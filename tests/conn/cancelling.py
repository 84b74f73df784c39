# SPDX-License-Identifier: Apache-2.0
"""A hundred connections in one loop, whose tasks are cancelled at random points.

    PYTHONPATH=tests PYTHONASYNCIODEBUG=1 python -X dev -W error -m conn.cancelling SEED

A task is cancelled at its nth wait, so that every wait there is gets its turn. It prints what was cancelled
how often; whatever goes wrong, a warning at exit too, is on stderr.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import rnic
from conn.peers import HOST, SMALL, WAIT, descriptors, quiet
from rnic.endpoint import EndpointError, Region

CONNECTIONS = 100
REGION = 4096
WAITS = 24  # an undisturbed client has about so many, and a server's end:
ANSWER_WAITS = 6
TIME_LIMIT = 600

T = TypeVar("T")


@types.coroutine
def cancelled_at(begin: Callable[[], Coroutine[Any, Any, T]], nth: int) -> Generator[Any, Any, T]:
    """Begin it, and cancel the task that runs it at its nth wait; 0: never."""
    coro, waits, thrown = begin(), 0, None
    while True:
        try:
            future = coro.send(None) if thrown is None else coro.throw(thrown)
        except StopIteration as end:
            value: T = end.value
            return value
        waits += 1
        task = asyncio.current_task()
        if waits == nth and task is not None:
            task.cancel()
        try:
            yield future
            thrown = None
        except BaseException as error:
            thrown = error


class Client:
    """One connection, and what it does at the moment."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self.port, self.rng = port, rng
        self.does = "connect"
        self.interrupted: Counter[str] = Counter()

    async def call(self, name: str, awaitable: Awaitable[T]) -> T:
        self.does = name
        return await awaitable

    async def run(self) -> None:
        conn = await rnic.aio.connect(HOST, self.port, config=SMALL, timeout=WAIT)
        async with conn:
            remote = await self.call("next_region", conn.next_region())
            await self.one_sided(conn, remote)
            await self.interrupt(conn, remote)
            region = await self.call("share", conn.share(bytearray(8)))
            message = self.rng.randbytes(self.rng.choice((0, 10, 5000, 50_000)))
            await self.call("send", conn.send(message))
            while await self.call("recv", conn.recv()) != message:
                pass  # of a send that was interrupted when it had begun
            await self.call("withdraw", conn.withdraw(region))
            self.does = "close"

    async def one_sided(self, conn: rnic.aio.Connection, remote: Region) -> None:
        data, back = self.rng.randbytes(REGION - 8), bytearray(REGION - 8)
        await self.call("write", conn.write(data, remote))
        await self.call("read", conn.read(back, remote))
        assert back == data
        before = await self.call("fetch_add", conn.fetch_add(remote, 1, REGION - 8))
        while (
            await self.call("compare_swap", conn.compare_swap(remote, before + 1, 0, REGION - 8))
            != before + 1
        ):
            before += 1

    async def interrupt(self, conn: rnic.aio.Connection, remote: Region) -> None:
        """One call alone is cancelled: the connection stays usable."""
        calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "recv alone": conn.recv,
            "next_region alone": conn.next_region,
            "read alone": lambda: conn.read(bytearray(8), remote),
            "write alone": lambda: conn.write(bytes(8), remote),
            "fetch_add alone": lambda: conn.fetch_add(remote, 1, REGION - 8),
            "send alone": lambda: conn.send(bytes(60_000)),
        }
        self.does = self.rng.choice(sorted(calls))
        task = asyncio.ensure_future(cancelled_at(calls[self.does], 1))
        try:
            await task
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is not None and me.cancelling():
                raise
            self.interrupted[self.does] += 1
        await self.one_sided(conn, remote)


async def answer(conn: rnic.aio.Connection) -> None:
    """A server's end: memory to work on, and an echo. Whose peer was cancelled sees it abort."""
    with suppress(EndpointError):
        async with conn:
            await conn.share(bytearray(REGION))
            async for message in conn:
                await conn.send(message)


async def serve(server: rnic.aio.Listener, rng: random.Random) -> None:
    """Accepts, and is interrupted in it; some of its agents are cancelled as well."""
    async with asyncio.TaskGroup() as group:
        while True:
            try:
                async with asyncio.timeout(rng.uniform(0, 0.02)):
                    conn = await server.accept()
            except TimeoutError:
                continue
            nth = rng.randrange(1, ANSWER_WAITS) if rng.random() < 0.2 else 0
            group.create_task(interrupted(partial(answer, conn), nth))


async def interrupted(begin: Callable[[], Coroutine[Any, Any, None]], nth: int) -> None:
    await cancelled_at(begin, nth)


async def attempt(client: Client, nth: int) -> str:
    task = asyncio.ensure_future(cancelled_at(client.run, nth))
    try:
        await task
    except asyncio.CancelledError:
        return f"cancelled in {client.does}"
    except EndpointError:
        return "its peer was cancelled"
    return "done"


async def main(seed: int) -> Counter[str]:
    rng = random.Random(seed)
    asyncio.get_running_loop().slow_callback_duration = TIME_LIMIT  # a busy machine is no mistake of ours
    async with asyncio.timeout(TIME_LIMIT), rnic.aio.listen(HOST, 0, config=SMALL) as server:
        serving = asyncio.create_task(serve(server, rng))
        clients = [Client(server.port, random.Random(rng.random())) for _ in range(CONNECTIONS)]
        nths = [rng.randrange(1, WAITS) if rng.random() < 0.7 else 0 for _ in clients]
        seen = Counter(await asyncio.gather(*map(attempt, clients, nths)))
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left
    return sum((client.interrupted for client in clients), seen)


if __name__ == "__main__":
    asyncio.run(asyncio.sleep(0))  # what asyncio opens once is no leak
    before = descriptors()
    found = asyncio.run(main(int(sys.argv[1])))
    quiet(before)
    print(json.dumps(found))
