# SPDX-License-Identifier: Apache-2.0
"""Messages and shared memory between two ends of a connection, with asyncio; both ends in one program."""

import asyncio

import rnic


async def agent(conn: rnic.aio.Connection) -> None:
    """Answer each message, and quote what the client has written into memory."""
    memory = bytearray(64)
    await conn.share(memory)  # the client may read and write it
    async for message in conn:  # until the client says goodbye
        await conn.send(message + b", and " + memory.rstrip(b"\0"))


async def main() -> None:
    """Both ends."""
    async with rnic.aio.listen("127.0.0.1", 0) as server:
        serving = asyncio.create_task(server.serve(agent))  # a task for each connection
        async with rnic.aio.connect("127.0.0.1", server.port) as conn:
            remote = await conn.next_region()
            await conn.write(b"one-sided", remote)
            await conn.send(b"hello")
            print(await conn.recv())
        server.close()
        await serving  # agents that are still at work finish


asyncio.run(main())
