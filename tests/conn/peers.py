# SPDX-License-Identifier: Apache-2.0
"""Other ends of connections: in another process, or in the same loop."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import rnic
import rnic.aio
import rnic.endpoint.config
import rnic.endpoint.hello
from forked import FORKS
from rnic.endpoint import Config
from waiting import until

HOST = "127.0.0.1"
WAIT = 180.0  # seconds that only a hang takes
SMALL = Config(receive_size=2048, send_size=2048, receives=8, max_backlog=8192)
SLEEPY = Config(spin=0)
"""Who waits sleeps at once."""
Serve = Callable[..., None]


def _child(serve: Serve, pipe: Any, config: Config | None, args: tuple[Any, ...]) -> None:
    with rnic.listen(HOST, 0, config=config) as server:
        pipe.send(server.port)
        with server.accept(WAIT) as conn:
            serve(conn, *args)
    pipe.send("done")


@contextmanager
def peer(
    serve: Serve, *args: Any, config: Config | None = None, clean: bool = True
) -> Iterator[tuple[int, BaseProcess]]:
    """Another process that listens and serves one connection: its port, and itself; it has to end well."""
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=_child, args=(serve, theirs, config, args))
    process.start()
    theirs.close()
    try:
        assert ours.poll(WAIT), "the peer does not begin"
        yield ours.recv(), process
        if clean:
            process.join(WAIT)
            assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
        ours.close()


@asynccontextmanager
async def ends(
    config: Config | None = None, of_b: Config | None = None
) -> AsyncIterator[tuple[rnic.aio.Connection, rnic.aio.Connection]]:
    """Both ends in the running loop; they are given back however the test ends.

    `of_b`: the options of b, if it has others.
    """
    async with rnic.aio.listen(HOST, 0, config=of_b or config) as server:
        calling = asyncio.create_task(rnic.aio.connect(HOST, server.port, config=config))
        b = await server.accept()
        a = await calling
    try:
        yield a, b
    finally:
        await asyncio.gather(a.abort(), b.abort())


def settle(a: rnic.Connection, b: rnic.Connection) -> None:
    """A message each way."""
    a.send(b"hello", WAIT)
    assert b.recv(WAIT) == b"hello"
    b.send(b"hello", WAIT)
    assert a.recv(WAIT) == b"hello"


def speak(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process speaks no newer version of the endpoint protocol."""
    for module in (rnic.endpoint.config, rnic.endpoint.hello):
        monkeypatch.setattr(module, "VERSIONS", (1, version))


def apart(call: Callable[[], None]) -> None:
    """Call a function of a module in a process of its own, which has to end well."""
    process = FORKS.Process(target=call)
    process.start()
    try:
        process.join(WAIT)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def quiet(before: int) -> None:
    """No agent is left, and as many descriptors are open as before.

    An exception that a signal's handler raises can hold the frame in which an agent's descriptor was in use.
    """
    until(lambda: not [one for one in threading.enumerate() if one.name.startswith("rnic")], "the agents end")
    gc.collect()
    assert descriptors() <= before
