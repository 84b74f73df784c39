# SPDX-License-Identifier: Apache-2.0
"""One end of a connection as a program has it: rnic.connect, rnic.aio, and what others use for the same.

    connend.py FD serve FACE    answers each message with itself, and shares memory where the face can
    connend.py FD echo FACE     messages there and back
    connend.py FD add FACE      fetch_add in the server's memory, a bytearray
    connend.py FD count FACE    fetch_add in memory that the server has from alloc()
    connend.py FD read FACE     READs of it

FACE: sync (rnic.connect), aio (rnic.aio), streams (asyncio over TCP), pipes (multiprocessing.connection over
TCP); and options: seconds=0.4 size=8.  FD is a line to the other end, which the server tells its port.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client as PipeClient
from multiprocessing.connection import Listener as PipeListener

import batches

import rnic
import rnic.aio

HOST = "127.0.0.1"
MEMORY = 1 << 20
COUNTERS = 64
WAIT = 20.0
Say = Callable[[int], None]
Run = Callable[[int], None]


# ------------------------------------------------------------------ serve


def serve_sync(say: Say) -> None:
    with rnic.listen(HOST, 0) as server:
        say(server.port)
        with server.accept(WAIT) as conn:
            conn.share(bytearray(MEMORY))
            conn.share(conn.alloc(COUNTERS))
            for message in conn:
                conn.send(message, WAIT)


def serve_aio(say: Say) -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as server:
            say(server.port)
            async with await server.accept() as conn:
                await conn.share(bytearray(MEMORY))
                await conn.share(conn.alloc(COUNTERS))
                async for message in conn:
                    await conn.send(message)

    asyncio.run(main())


def serve_streams(say: Say) -> None:
    async def main() -> None:
        done = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.IncompleteReadError):
                while True:
                    size = await reader.readexactly(8)
                    writer.write(size + await reader.readexactly(int.from_bytes(size)))
                    await writer.drain()
            writer.close()
            done.set()

        server = await asyncio.start_server(answer, HOST, 0, limit=1 << 24)
        say(server.sockets[0].getsockname()[1])
        await done.wait()

    asyncio.run(main())


def serve_pipes(say: Say) -> None:
    with PipeListener((HOST, 0)) as server:
        say(server.address[1])
        with server.accept() as conn, suppress(EOFError):
            while True:
                conn.send_bytes(conn.recv_bytes())


# ------------------------------------------------------------------ measure


def with_sync(port: int, what: str, size: int, measure: Callable[[Run], None]) -> None:
    with rnic.connect(HOST, port) as conn:
        region, counters = conn.next_region(WAIT), conn.next_region(WAIT)
        message, buffer = bytes(size), bytearray(size)
        calls: dict[str, Callable[[], object]] = {
            "add": lambda: conn.fetch_add(region, 1),
            "count": lambda: conn.fetch_add(counters, 1),
            "read": lambda: conn.read(buffer, region),
            "echo": lambda: (conn.send(message), conn.recv()),
        }
        call = calls[what]

        def run(count: int) -> None:
            for _ in range(count):
                call()

        measure(run)


def with_aio(port: int, what: str, size: int, measure: Callable[[Run], None]) -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[rnic.aio.Connection, rnic.Region, rnic.Region]:
        conn = await rnic.aio.connect(HOST, port)
        return conn, await conn.next_region(), await conn.next_region()

    conn, region, counters = loop.run_until_complete(begin())
    message, buffer = bytes(size), bytearray(size)

    async def echo(count: int) -> None:
        for _ in range(count):
            await conn.send(message)
            await conn.recv()

    async def add(count: int) -> None:
        for _ in range(count):
            await conn.fetch_add(region, 1)

    async def add_up(count: int) -> None:
        for _ in range(count):
            await conn.fetch_add(counters, 1)

    async def read(count: int) -> None:
        for _ in range(count):
            await conn.read(buffer, region)

    task = {"echo": echo, "add": add, "count": add_up, "read": read}[what]
    measure(lambda count: loop.run_until_complete(task(count)))
    loop.run_until_complete(conn.close())
    loop.close()


def with_streams(port: int, _what: str, size: int, measure: Callable[[Run], None]) -> None:
    loop = asyncio.new_event_loop()
    reader, writer = loop.run_until_complete(asyncio.open_connection(HOST, port, limit=1 << 24))
    message = size.to_bytes(8) + bytes(size)

    async def echo(count: int) -> None:
        for _ in range(count):
            writer.write(message)
            await writer.drain()
            await reader.readexactly(int.from_bytes(await reader.readexactly(8)))

    measure(lambda count: loop.run_until_complete(echo(count)))
    writer.close()
    loop.run_until_complete(writer.wait_closed())
    loop.close()


def with_pipes(port: int, _what: str, size: int, measure: Callable[[Run], None]) -> None:
    message = bytes(size)
    with PipeClient((HOST, port)) as conn:

        def run(count: int) -> None:
            for _ in range(count):
                conn.send_bytes(message)
                conn.recv_bytes()

        measure(run)


SERVERS = {"sync": serve_sync, "aio": serve_aio, "streams": serve_streams, "pipes": serve_pipes}
CLIENTS = {"sync": with_sync, "aio": with_aio, "streams": with_streams, "pipes": with_pipes}


def main() -> None:
    fd, role, face, *rest = sys.argv[1:]
    given = dict(word.split("=") for word in rest)
    size, seconds = int(given.get("size", 8)), float(given.get("seconds", 0.4))
    with socket.socket(fileno=int(fd)) as line, line.makefile("r") as heard:

        def say(number: int) -> None:
            line.sendall(f"{number}\n".encode())

        def measure(run: Run) -> None:
            batches.show(batches.measure(run, lambda _: None, seconds), size)

        if role == "serve":
            SERVERS[face](say)
        else:
            CLIENTS[face](int(heard.readline()), role, size, measure)


if __name__ == "__main__":
    main()
