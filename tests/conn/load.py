# SPDX-License-Identifier: Apache-2.0
"""Many endpoints between two processes: alive at once, and one after the other.

PYTHONPATH=tests python -m conn.load alive --count 1000
PYTHONPATH=tests python -m conn.load cycles --count 10000
PYTHONPATH=tests python -m conn.load cycles --count 10000 --window 32      (asyncio at both ends)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from operator import itemgetter

import rnic
from conn.peers import HOST, WAIT
from rdmacm.ends import Other, all_quiet, other
from rdmacm.load import Figures, held, held_again, main
from rnic.rdmacm import create_id

BACKLOG = 4096


def message(number: int) -> bytes:
    return number.to_bytes(8, "big") * 32


# ------------------------------------------------------------------ the listening process


def serve_alive(way: Pipe, count: int) -> None:
    """Takes so many, answers a message on each, and closes when the other end does.

    They are accepted in nearly the order in which they were made. Each close waits for the other end's, so
    they are closed in the order of their messages, which is the caller's.
    """
    with rnic.listen(HOST, 0, backlog=BACKLOG) as server:
        way.send(server.port)
        conns = [server.accept(WAIT) for _ in range(count)]
        way.send("accepted")
        said = [(conn.recv(WAIT), conn) for conn in conns]
        said.sort(key=itemgetter(0))
        for text, conn in said:
            conn.send(text, WAIT)
        way.send(held())
        for _, conn in said:
            conn.close(WAIT)
    way.send(held())


def serve_cycles(way: Pipe, parts: list[int]) -> None:
    """Takes one after the other."""
    with rnic.listen(HOST, 0, backlog=BACKLOG) as server:
        way.send(server.port)
        before = None
        for part in parts:
            for _ in range(part):
                with server.accept(WAIT) as conn:
                    conn.send(conn.recv(WAIT), WAIT)
            before = held_again(before)
            way.send(before)


def serve_async(way: Pipe, parts: list[int]) -> None:
    """Takes whoever comes, each in a task."""

    async def echo(conn: rnic.aio.Connection) -> None:
        async with conn:
            async for one in conn:
                await conn.send(one)

    async def main() -> None:
        async with rnic.aio.listen(HOST, 0, backlog=BACKLOG) as server:
            way.send(server.port)
            before = None
            for part in parts:
                async with asyncio.TaskGroup() as group:
                    for _ in range(part):
                        group.create_task(echo(await server.accept()))
                before = held_again(before)
                way.send(before)

    asyncio.run(main())


# ------------------------------------------------------------------ the calling process


@contextmanager
def calling(serve: Callable[..., None], *args: object) -> Iterator[tuple[int, Other]]:
    """The other process, with a device of ours that stays open all the while, as in a program that runs."""
    all_quiet()  # what is held is ours alone then
    with other(serve, *args) as peer, create_id() as anchor:
        anchor.bind_addr((HOST, 0))
        yield peer.hear(), peer


def alive(count: int) -> list[Figures]:
    """So many at once, with data moved on each: what both processes hold while they live, and after."""
    with calling(serve_alive, count) as (port, peer):
        began = time.monotonic()
        conns = [rnic.connect(HOST, port, timeout=WAIT) for _ in range(count)]
        assert peer.hear() == "accepted"
        what = f"{count} endpoints at once: {count / (time.monotonic() - began):.0f} a second"
        for number, conn in enumerate(conns):
            conn.send(message(number), WAIT)
        for number, conn in enumerate(conns):
            assert conn.recv(WAIT) == message(number)
        found = [Figures(what, held(), peer.hear())]
        for conn in conns:
            conn.close(WAIT)
        found.append(Figures("closed", held(), peer.hear()))
        return found


def one_cycle(port: int, number: int) -> None:
    with rnic.connect(HOST, port, timeout=WAIT) as conn:
        conn.send(message(number), WAIT)
        assert conn.recv(WAIT) == message(number)


async def one_cycle_async(port: int, number: int) -> None:
    async with await rnic.aio.connect(HOST, port, timeout=WAIT) as conn:
        await conn.send(message(number))
        assert await conn.recv() == message(number)


async def many_cycles(port: int, count: int, window: int) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await one_cycle_async(port, number)

    async with asyncio.TaskGroup() as group:
        for _ in range(window):
            group.create_task(worker())


def cycles(parts: list[int], window: int) -> list[Figures]:
    """Connect, a message each way, close: one after the other, or `window` at a time by asyncio."""
    found: list[Figures] = []
    with calling(serve_async if window > 1 else serve_cycles, parts) as (port, peer):
        for part in parts:
            began = time.monotonic()
            if window > 1:
                asyncio.run(many_cycles(port, part, window))
            else:
                for number in range(part):
                    one_cycle(port, number)
            rate = part / (time.monotonic() - began)
            what = f"{part} cycles, {window} at a time: {rate:.0f} a second"
            mine = held_again(found[-1].caller if found else None)
            found.append(Figures(what, mine, peer.hear()))
    return found


if __name__ == "__main__":
    main(__doc__, alive, cycles, 1)
