# SPDX-License-Identifier: Apache-2.0
"""Calls with deadlines, errors and cancellation over one connection; both ends in one program."""

import asyncio
import threading

import rnic
import rnic.aio
from rnic.patterns.rpc import AsyncClient, AsyncServer, Client, DeadlineError, RemoteError, Server


def divide(body: bytes) -> bytes:
    """A handler is a function of bytes; its exceptions go to the client."""
    a, b = map(int, body.split(b"/"))
    return b"%d" % (a // b)


def with_threads() -> None:
    """A thread for each client; many calls are on their way at a time."""
    server = Server({"echo": bytes, "divide": divide})
    with rnic.listen("127.0.0.1", 0) as listener:
        serving = threading.Thread(target=listener.serve, args=(server.serve,))
        serving.start()
        with rnic.connect("127.0.0.1", listener.port) as conn, Client(conn) as client:
            print(client.call("echo", b"hello", timeout=5.0))
            calls = [client.start("divide", b"100/%d" % n, timeout=5.0) for n in range(4)]
            for call in calls:
                try:
                    print(call.result())
                except RemoteError as error:
                    print(error)
        listener.close()
        serving.join()


async def sleep(_: bytes) -> bytes:
    """A handler of asyncio: cancelled when nobody waits for it any more."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("the server cancels it, too")
        raise
    return b""


async def with_tasks() -> None:
    """A task for each call."""
    server = AsyncServer({"echo": bytes, "sleep": sleep})
    async with rnic.aio.listen("127.0.0.1", 0) as listener:
        serving = asyncio.create_task(listener.serve(server.serve))
        async with rnic.aio.connect("127.0.0.1", listener.port) as conn, AsyncClient(conn) as client:
            print(await asyncio.gather(*(client.call("echo", b"%d" % n) for n in range(3))))
            try:
                await client.call("sleep", timeout=0.2)
            except DeadlineError as error:
                print(error)
            while client.outstanding:  # the server's answer to a call that nobody waits for
                await asyncio.sleep(0.01)
        listener.close()
        await serving


with_threads()
asyncio.run(with_tasks())
