# SPDX-License-Identifier: Apache-2.0
"""Connections for asyncio: the running loop watches their file descriptors, and no thread is begun.

    async with rnic.aio.listen("0.0.0.0", 7471) as server:
        async for conn in server: ...

    async with rnic.aio.connect("host", 7471) as conn:
        await conn.send(b"hello")

Any call can be cancelled, by asyncio.timeout() for instance; the connection stays usable.
"""

from rnic.aio.connection import Batch, Connection
from rnic.aio.dialing import Connecting, connect
from rnic.aio.listener import Listener, listen

__all__ = ["Batch", "Connecting", "Connection", "Listener", "connect", "listen"]
