# SPDX-License-Identifier: Apache-2.0
"""Connections to listeners, for asyncio."""

from __future__ import annotations

import asyncio
from time import monotonic

from rnic.aio.connection import Connection
from rnic.aio.readable import Readable
from rnic.conn.handshake import AnyDevice, Dial
from rnic.endpoint import Config
from rnic.rdmacm.sockaddr import is_name, parse
from rnic.times import seconds


async def connect(
    host: str,
    port: int,
    *,
    timeout: float | None = 10.0,
    config: Config | None = None,
    data: bytes = b"",
    device: AnyDevice = None,
) -> Connection:
    """Connect to a program that listens with rnic.listen() or rnic.aio.listen(); `data` and `device` are
    those of rnic.connect(), and it raises what that raises.
    """
    dial = None
    try:
        async with asyncio.timeout(seconds(timeout)):
            dial = Dial(await _address(host, port), port, config or Config(), data, device)
            try:
                descriptor = Readable(dial.fileno)
                while not dial.step(monotonic()):
                    await descriptor.wait()
                assert dial.core is not None
                return Connection(dial.core)
            except BaseException:
                dial.abandon()
                raise
    except TimeoutError:
        if dial is None:
            raise
        why = await asyncio.to_thread(dial.silence)
        raise TimeoutError(f"connect: no answer from {dial.name} within {timeout} s: {why}") from None


async def _address(host: str, port: int) -> str:
    """Look a name up in a thread, so that the loop goes on meanwhile."""
    if not is_name(host):
        return host
    return str((await asyncio.to_thread(parse, (host, port), "resolve_addr")).ip)
