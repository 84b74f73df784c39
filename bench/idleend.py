# SPDX-License-Identifier: Apache-2.0
"""One end of busy connections among idle ones, all of one loop at each end.

    idleend.py FD serve FACE
    idleend.py FD use FACE

FACE: aio (rnic.aio), streams (asyncio over TCP); options: idle=1000 busy=1 seconds=0.4 rest=10 (seconds in
which nobody says anything).  FD is a line to the other end, which the server tells its port and process.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import batches

import rnic
import rnic.aio

HOST = "127.0.0.1"
WINDOW = 32  # connections that are being made at a time
MESSAGE = bytes(8)
Echo = Callable[[], Awaitable[object]]


async def serve_aio(say: Callable[[int], None]) -> None:
    async def answer(conn: rnic.aio.Connection) -> None:
        async for message in conn:
            await conn.send(message)

    async with rnic.aio.listen(HOST, 0, backlog=4096) as server:
        say(server.port)
        await server.serve(answer)


async def serve_streams(say: Callable[[int], None]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                writer.write(await reader.readexactly(len(MESSAGE)))
                await writer.drain()

    server = await asyncio.start_server(answer, HOST, 0, backlog=4096)
    say(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def connect_aio(port: int) -> tuple[Any, Echo, Echo]:
    conn = await rnic.aio.connect(HOST, port)

    async def echo() -> None:
        await conn.send(MESSAGE)
        await conn.recv()

    return conn, echo, conn.recv


async def connect_streams(port: int) -> tuple[Any, Echo, Echo]:
    reader, writer = await asyncio.open_connection(HOST, port)

    async def echo() -> None:
        writer.write(MESSAGE)
        await writer.drain()
        await reader.readexactly(len(MESSAGE))

    return writer, echo, lambda: reader.readexactly(len(MESSAGE))


SERVERS = {"aio": serve_aio, "streams": serve_streams}
CLIENTS = {"aio": connect_aio, "streams": connect_streams}


def processor_time(pid: int) -> float:
    """Seconds, of all threads."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    """Bytes that are this process' alone, or shared with the other end."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Use:
    """The calling process."""

    def __init__(self, face: str, port: int, server: int, given: dict[str, str]) -> None:
        self._connect, self._port, self._server = CLIENTS[face], port, server
        self._idle = int(given.get("idle", 1000))
        self._seconds, self._rest = float(given.get("seconds", 0.4)), float(given.get("rest", 10))
        self._busy = int(given.get("busy", 1))
        self._waiting: list[asyncio.Task[object]] = []
        self._kept: list[object] = []

    def run(self) -> dict[str, float]:
        loop = asyncio.new_event_loop()
        busy = [loop.run_until_complete(self._connect(self._port)) for _ in range(self._busy)]
        self._kept.append(busy)
        ends = (os.getpid(), self._server)

        async def echoes(echo: Echo, count: int) -> None:
            for _ in range(count):
                await echo()

        async def all_echoes(count: int) -> None:
            """Each connection has a task, and its share."""
            await asyncio.gather(*(echoes(echo, -(-count // self._busy)) for _, echo, _ in busy))

        loop.run_until_complete(all_echoes(100))
        before = sum(map(memory, ends))
        loop.run_until_complete(self._connect_idle())
        grown = sum(map(memory, ends)) - before
        found = batches.measure(
            lambda count: loop.run_until_complete(all_echoes(count)), lambda _: None, self._seconds
        )
        began, spent = time.monotonic(), sum(map(processor_time, ends))
        loop.run_until_complete(asyncio.sleep(self._rest))
        spent = sum(map(processor_time, ends)) - spent
        return found | {
            "cpu_ms_per_s": spent / max(1e-9, time.monotonic() - began) * 1e3,
            "kib_each": grown / max(1, self._idle) / 1024,
        }

    async def _connect_idle(self) -> None:
        """All of them, and a task for each that waits for a message."""
        numbers = iter(range(self._idle))

        async def make() -> None:
            for _ in numbers:
                conn, echo, wait = await self._connect(self._port)
                await echo()
                self._kept.append(conn)
                self._waiting.append(asyncio.create_task(wait()))

        await asyncio.gather(*(make() for _ in range(WINDOW)))


def main() -> None:
    fd, role, face, *rest = sys.argv[1:]
    given = dict(word.split("=") for word in rest)
    with socket.socket(fileno=int(fd)) as line, line.makefile("r") as heard:
        if role == "serve":

            def say(port: int) -> None:
                line.sendall(f"{port} {os.getpid()}\n".encode())
                threading.Thread(target=leave_with, args=(heard,), daemon=True).start()

            asyncio.run(SERVERS[face](say))
        else:
            port, server = map(int, heard.readline().split())
            print(json.dumps(Use(face, port, server, given).run()), flush=True)
            os._exit(0)  # connections are not closed one by one


def leave_with(heard: Any) -> None:
    """The server ends with the other end of the line."""
    heard.readline()
    os._exit(0)


if __name__ == "__main__":
    main()
