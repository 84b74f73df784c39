# SPDX-License-Identifier: Apache-2.0
"""One end of a connection as a program has it: rnic.connect, rnic.aio, and what others use for the same.

    connend.py FD serve FACE    answers each message with itself, and shares memory where the face can
    connend.py FD echo FACE     messages there and back
    connend.py FD add FACE      fetch_add in the server's memory, a bytearray
    connend.py FD count FACE    fetch_add in memory that the server has from alloc()
    connend.py FD read FACE     READs of it

FACE: sync (rnic.connect), aio (rnic.aio), streams (asyncio over TCP), pipes (multiprocessing.connection over
TCP), pipe (the same over a unix socket, as Pipe() has it), tcp (blocking sockets); and options: seconds=0.4
size=8 each=0 (1: operations are timed one by one).  FD is a line to the other end, which the server tells its
port and process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Client as PipeClient
from multiprocessing.connection import Connection
from multiprocessing.connection import Listener as PipeListener

import batches

import rnic
import rnic.aio

HOST = "127.0.0.1"
MEMORY = 1 << 20
COUNTERS = 64
WAIT = 20.0
Say = Callable[[int], object]
Run = Callable[[Iterable[object]], None]  # an operation for each


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


def answer(conn: Connection) -> None:
    with conn, suppress(EOFError):
        while True:
            conn.send_bytes(conn.recv_bytes())


def serve_pipes(say: Say) -> None:
    with PipeListener((HOST, 0)) as server:
        say(server.address[1])
        answer(server.accept())


def serve_pipe(say: Say) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("")  # the kernel gives a name of five hexadecimal digits
        server.listen()
        say(int(server.getsockname()[1:], 16))
        answer(Connection(server.accept()[0].detach()))


def serve_tcp(say: Say) -> None:
    with socket.create_server((HOST, 0)) as server:
        say(server.getsockname()[1])
        with server.accept()[0] as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := sock.recv(MEMORY):
                sock.sendall(data)


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

        def run(turns: Iterable[object]) -> None:
            for _ in turns:
                call()

        measure(run)


def with_aio(port: int, what: str, size: int, measure: Callable[[Run], None]) -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[rnic.aio.Connection, rnic.Region, rnic.Region]:
        conn = await rnic.aio.connect(HOST, port)
        return conn, await conn.next_region(), await conn.next_region()

    conn, region, counters = loop.run_until_complete(begin())
    message, buffer = bytes(size), bytearray(size)

    async def echo(turns: Iterable[object]) -> None:
        for _ in turns:
            await conn.send(message)
            await conn.recv()

    async def add(turns: Iterable[object]) -> None:
        for _ in turns:
            await conn.fetch_add(region, 1)

    async def add_up(turns: Iterable[object]) -> None:
        for _ in turns:
            await conn.fetch_add(counters, 1)

    async def read(turns: Iterable[object]) -> None:
        for _ in turns:
            await conn.read(buffer, region)

    task = {"echo": echo, "add": add, "count": add_up, "read": read}[what]
    measure(lambda turns: loop.run_until_complete(task(turns)))
    loop.run_until_complete(conn.close())
    loop.close()


def with_streams(port: int, _what: str, size: int, measure: Callable[[Run], None]) -> None:
    loop = asyncio.new_event_loop()
    reader, writer = loop.run_until_complete(asyncio.open_connection(HOST, port, limit=1 << 24))
    message = size.to_bytes(8) + bytes(size)

    async def echo(turns: Iterable[object]) -> None:
        for _ in turns:
            writer.write(message)
            await writer.drain()
            await reader.readexactly(int.from_bytes(await reader.readexactly(8)))

    measure(lambda turns: loop.run_until_complete(echo(turns)))
    writer.close()
    loop.run_until_complete(writer.wait_closed())
    loop.close()


def talk(conn: Connection, size: int, measure: Callable[[Run], None]) -> None:
    message = bytes(size)

    def run(turns: Iterable[object]) -> None:
        for _ in turns:
            conn.send_bytes(message)
            conn.recv_bytes()

    with conn:
        measure(run)


def with_pipes(port: int, _what: str, size: int, measure: Callable[[Run], None]) -> None:
    talk(PipeClient((HOST, port)), size, measure)


def with_pipe(port: int, _what: str, size: int, measure: Callable[[Run], None]) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(b"\0%05x" % port)
        talk(Connection(sock.detach()), size, measure)


def with_tcp(port: int, _what: str, size: int, measure: Callable[[Run], None]) -> None:
    message = bytes(size)
    with socket.create_connection((HOST, port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def run(turns: Iterable[object]) -> None:
            for _ in turns:
                sock.sendall(message)
                sock.recv(size, socket.MSG_WAITALL)

        measure(run)


# face: the ends that serve and measure
FACES = {
    "sync": (serve_sync, with_sync),
    "aio": (serve_aio, with_aio),
    "streams": (serve_streams, with_streams),
    "pipes": (serve_pipes, with_pipes),
    "pipe": (serve_pipe, with_pipe),
    "tcp": (serve_tcp, with_tcp),
}


def main() -> None:
    fd, role, face, *rest = sys.argv[1:]
    given = dict(word.split("=") for word in rest)
    size, seconds = int(given.get("size", 8)), float(given.get("seconds", 0.4))
    serve, use = FACES[face]
    with socket.socket(fileno=int(fd)) as line, line.makefile("r") as heard:
        if role == "serve":
            serve(lambda port: line.sendall(f"{port} {os.getpid()}\n".encode()))
            return
        port, server = map(int, heard.readline().split())

        def measure(run: Run) -> None:
            if given.get("each") == "1":
                found = batches.each(run, seconds, (os.getpid(), server))
            else:
                found = batches.measure(lambda count: run(range(count)), lambda _: None, seconds)
            batches.show(found, size)

        use(port, role, size, measure)


if __name__ == "__main__":
    main()
