# SPDX-License-Identifier: Apache-2.0
"""Servers that meet a limit: who asked too much is refused, everybody else goes on."""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import pytest

import rnic
from conn.peers import HOST, SMALL, WAIT
from rdmacm.ends import IWARP, expect, other, resolve
from rnic.endpoint import EndpointError, RefusedError
from rnic.rdmacm import ConnParam, EventChannel, EventType, create_id
from rnic.wire import RejReason
from waiting import until

FACES = ["sync", "aio"]


def echo(conn: rnic.Connection) -> None:
    for message in conn:
        conn.send(message)


async def aio_echo(conn: rnic.aio.Connection) -> None:
    async for message in conn:
        await conn.send(message)


class Heard(logging.Handler):
    """Tells the test what the server says."""

    def __init__(self, way: Pipe) -> None:
        super().__init__(logging.WARNING)
        self.way = way

    def emit(self, record: logging.LogRecord) -> None:
        self.way.send(record.getMessage())


def serve(way: Pipe, face: str, limits: dict[str, Any], files: int = 0) -> None:
    """An echo server; with `files` so many descriptors are left to it."""
    logging.getLogger("rnic").addHandler(Heard(way))

    def begun(server: rnic.Listener | rnic.aio.Listener) -> None:
        if files:
            held = len(list(Path("/proc/self/fd").iterdir()))
            resource.setrlimit(resource.RLIMIT_NOFILE, (held + files, held + files))
        way.send(server.port)

    async def main() -> None:
        async with rnic.aio.listen(HOST, 0, config=SMALL, **limits) as server:
            begun(server)
            await server.serve(aio_echo)

    if face == "aio":
        asyncio.run(main())
    with rnic.listen(HOST, 0, config=SMALL, **limits) as server:
        begun(server)
        server.serve(echo)


def connect(port: int) -> rnic.Connection:
    return rnic.connect(HOST, port, config=SMALL, timeout=WAIT)


def works(conn: rnic.Connection) -> None:
    conn.send(b"still here", WAIT)
    assert conn.recv(WAIT) == b"still here"


def end(conns: list[rnic.Connection]) -> None:
    for conn in conns:
        with suppress(EndpointError):
            conn.close(WAIT)


def connect_again(port: int) -> rnic.Connection:
    """When those before have gone, which the server finds out in its own time."""

    def again() -> rnic.Connection | None:
        try:
            return connect(port)
        except RefusedError:
            return None

    found = until(again, "a place is free")
    assert found is not None
    return found


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("files", [4, 5, 6, 7])
def test_a_server_without_descriptors_refuses_and_lives(face: str, files: int) -> None:
    """Whichever call meets the limit: the count of descriptors that are left decides."""
    with other(serve, face, {}, files) as server:
        port = server.hear()
        conns = [connect(port)]
        with pytest.raises(RefusedError) as caught:
            while True:
                conns.append(connect(port))
        assert caught.value.reason == RejReason.NO_RESOURCES
        said = server.hear()
        assert "RLIMIT_NOFILE is " in said
        for conn in conns:
            works(conn)
        end(conns)
        last = connect_again(port)
        works(last)
        end([last])


@pytest.mark.parametrize("face", FACES)
def test_max_connections(face: str) -> None:
    with other(serve, face, {"max_connections": 2}) as server:
        port = server.hear()
        conns = [connect(port) for _ in range(2)]
        with pytest.raises(RefusedError, match="no room for one more") as caught:
            connect(port)
        assert caught.value.reason == RejReason.NO_RESOURCES
        for conn in conns:
            works(conn)
        end([conns.pop()])
        conns.append(connect_again(port))
        for conn in conns:
            works(conn)
        end(conns)


@contextmanager
def silent(port: int, count: int) -> Iterator[None]:
    """Peers that ask for a connection and never finish the handshake: no queue pair, no RTU."""
    with ExitStack() as stack:
        for number in range(count):
            channel = stack.enter_context(EventChannel())
            one = stack.enter_context(create_id(channel))
            resolve(one, (HOST, port))
            one.connect(ConnParam(SMALL.hello().emit(), qp_num=0x2000 + number))
            expect(channel, EventType.CONNECT_RESPONSE)
        yield


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.roce
@pytest.mark.parametrize("face", FACES)
def test_peers_that_never_finish_the_handshake_take_a_bounded_share(face: str) -> None:
    with other(serve, face, {"max_half_open": 4}) as server:
        port, pid = server.hear(), server.process.pid
        good = connect(port)
        works(good)
        before = descriptors(pid)
        with silent(port, 12):
            another = connect(port)
            works(another)
            works(good)
            until(lambda: descriptors(pid) <= before + 1 + 4, "half-open connections gave way")
        end([good, another])


@pytest.mark.roce
@pytest.mark.parametrize("face", FACES)
def test_a_handshake_that_takes_too_long_gives_everything_back(face: str) -> None:
    with other(serve, face, {"handshake_timeout": 1.0}) as server:
        port, pid = server.hear(), server.process.pid
        good = connect(port)
        works(good)
        before = descriptors(pid)
        with silent(port, 3):
            until(lambda: descriptors(pid) <= before, "the half-open connections are given back")
            works(good)
        end([good])


def test_a_server_without_threads_ends_that_connection_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start: Callable[[threading.Thread], None] = threading.Thread.start
    refuse = threading.Event()

    def limited(thread: threading.Thread) -> None:
        if refuse.is_set() and thread.name == "rnic-agent":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with rnic.listen(HOST, 0, config=SMALL) as server:
        serving = threading.Thread(target=server.serve, args=(echo,))
        serving.start()
        with connect(server.port) as good:
            works(good)
            refuse.set()
            bad = connect(server.port)
            with pytest.raises(EndpointError, match="no thread"):
                bad.recv(WAIT)
            end([bad])
            refuse.clear()
            with connect(server.port) as another:
                works(another)
            works(good)
        server.close()
        serving.join(WAIT)
        assert not serving.is_alive()
    assert any("RLIMIT_NPROC" in one.getMessage() for one in caplog.records)


def open_files() -> Counter[str]:
    """This process' descriptors, by what they are open on."""
    found: Counter[str] = Counter()
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own, or closed meanwhile
            found[re.sub(r"\d+", "N", str(one.readlink()))] += 1
    return found


def test_a_connection_needs_one_descriptor() -> None:
    """Completions and the connection manager's events share it; iWARP needs a TCP socket, too. What a
    handshake has open for a moment, and other threads of this process, are waited for.
    """
    most = 40 if IWARP else 20
    with rnic.listen(HOST, 0, config=SMALL) as server, ExitStack() as stack:
        taken: list[rnic.Connection] = []

        def pair() -> None:
            thread = threading.Thread(target=lambda: taken.append(server.accept(WAIT)))
            thread.start()
            stack.callback(connect(server.port).abort)
            thread.join(WAIT)
            stack.callback(taken.pop().abort)

        pair()
        before = open_files()
        for _ in range(10):
            pair()
        new: Counter[str] = Counter()

        def few() -> bool:
            nonlocal new
            new = open_files() - before
            return new.total() <= most

        with suppress(AssertionError):
            until(few, "each connection has one descriptor")
        assert new.total() <= most, new
