# SPDX-License-Identifier: Apache-2.0
"""Messages and shared memory between two ends of a connection, with asyncio; both ends in one program."""

import asyncio

import rnic


async def serve(server: rnic.aio.Listener) -> None:
    """Answer each message, with what the client has written."""
    async with await server.accept() as conn:
        memory = bytearray(64)
        await conn.share(memory)  # the client may read and write it
        async for message in conn:  # until the client says goodbye
            await conn.send(message + b", and " + memory.rstrip(b"\0"))


async def main() -> None:
    """Both ends."""
    async with rnic.aio.listen("127.0.0.1", 0) as server:
        task = asyncio.create_task(serve(server))
        async with await rnic.aio.connect("127.0.0.1", server.port) as conn:
            remote = await conn.next_region()
            await conn.write(b"one-sided", remote)
            await conn.send(b"hello")
            print(await conn.recv())
        await task


asyncio.run(main())
