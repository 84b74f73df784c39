# SPDX-License-Identifier: Apache-2.0
"""A process with two ends, each in a thread of its own, which does what comes through a pipe.

PYTHONPATH=tests python -m conn.differential.worker FD FD VERSION LOSS
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from multiprocessing.connection import Connection as Pipe
from typing import NamedTuple

import rnic
import rnic.aio
import rnic.endpoint.config
import rnic.endpoint.hello
from conn.differential.ends import Aio, Side, Sync, at_once
from conn.peers import HOST, WAIT
from rdmacm.load import lose
from rnic.conn.core import Core
from rnic.endpoint import Config
from rnic.rdmacm import create_id


class Setting(NamedTuple):
    """How an end is made."""

    face: str
    """sync, aio, or tasks: aio with many at the same time"""
    config: Config


def serve(pipe: Pipe) -> None:
    while True:
        try:
            setting, port = pipe.recv()
        except EOFError:
            return
        try:
            if setting.face == "sync":
                at_once(_sync(pipe, setting, port))
            else:
                asyncio.run(_aio(pipe, setting, port))
        except Exception:
            pipe.send(("failed", traceback.format_exc()))


async def _sync(pipe: Pipe, setting: Setting, port: int) -> None:
    if port:
        conn = rnic.connect(HOST, port, timeout=WAIT, config=setting.config)
    else:
        with rnic.listen(HOST, 0, config=setting.config) as server:
            pipe.send(("port", server.port))
            conn = server.accept(WAIT)
    side = _side(Sync(conn), setting)
    try:
        pipe.send(("ready", None))
        while (steps := pipe.recv()) is not None:
            pipe.send(("did", await side.run(steps)))
    finally:
        conn.abort("the program is over")


async def _aio(pipe: Pipe, setting: Setting, port: int) -> None:
    hear = asyncio.get_running_loop().run_in_executor
    if port:
        conn = await rnic.aio.connect(HOST, port, timeout=WAIT, config=setting.config)
    else:
        async with rnic.aio.listen(HOST, 0, config=setting.config) as server:
            pipe.send(("port", server.port))
            conn = await asyncio.wait_for(server.accept(), WAIT)
    side = _side(Aio(conn, setting.face == "tasks"), setting)
    try:
        pipe.send(("ready", None))
        while (steps := await hear(None, pipe.recv)) is not None:
            pipe.send(("did", await side.run(steps)))
    finally:
        await conn.abort("the program is over")


def _side(way: Sync | Aio, setting: Setting) -> Side:
    return Side(way, setting.face == "tasks")


HELLO = Core.hello


def no_hello(self: Core, data: bytes) -> bytes:
    """As hello(), but what it says stays here."""
    HELLO(self, data)
    return b""


def main() -> None:
    *fds, version, loss = (int(one) for one in sys.argv[1:])
    if version == 0:  # no endpoint
        Core.hello = no_hello  # type: ignore[method-assign]
    for module in (rnic.endpoint.config, rnic.endpoint.hello):
        setattr(module, "VERSIONS", (1, version or 2))  # noqa: B010
    threads = [threading.Thread(target=serve, args=(Pipe(fd),)) for fd in fds]
    with create_id() as anchor:  # the device of all its connections
        anchor.bind_addr((HOST, 0))
        lose(anchor, loss / 1000)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
