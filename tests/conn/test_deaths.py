# SPDX-License-Identifier: Apache-2.0
"""The other process is killed while endpoints connect, wait or transfer: on this host, and across a wire."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import rnic
from conn.peers import HOST, WAIT
from rdmacm.ends import IWARP, all_quiet
from rdmacm.mortal import PIECE, Mortal, cable, mortal
from rnic.endpoint import Config, LostError, RefusedError, Region, State
from rnic.rdmacm import EventType, PortSpace, Timing

POINTS = ["idle", "send", "write", "read"]
# Of a process that dies the kernel closes the TCP connection; with bytes that nobody has read, it resets it.
DIED = "has died|without a goodbye|RETRY_EXC_ERR" if IWARP else "has died"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The agents end before the next test, which may count descriptors or threads."""
    yield
    all_quiet()


def echoed(data: bytes) -> None:
    """This process goes on: with another peer, and data comes back as it went."""
    with mortal() as peer, rnic.connect(HOST, peer.do("serve_endpoint")) as conn:
        conn.send(data, WAIT)
        assert conn.recv(WAIT) == data


def say(what: str, died: float) -> None:
    """What was heard tells who noticed, not the time."""
    print(f"{what}: {time.monotonic() - died:.2f} s")


def kill_soon(peer: Mortal, died: list[float]) -> threading.Timer:
    """While the transfer is under way."""
    timer = threading.Timer(0.1, lambda: died.append(peer.kill()))
    timer.start()
    return timer


def act(conn: rnic.Connection, remote: Region, point: str) -> None:
    """Until it ends."""
    calls: dict[str, Callable[[], object]] = {
        "idle": lambda: conn.recv(WAIT),
        "send": lambda: conn.send(bytes(100_000), WAIT),
        "write": lambda: conn.write(bytes(PIECE), remote, timeout=WAIT),
        "read": lambda: conn.read(bytearray(PIECE), remote, timeout=WAIT),
    }
    while True:
        calls[point]()


@pytest.mark.parametrize("point", POINTS)
def test_the_other_process_is_killed(point: str) -> None:
    if point in ("send", "read") and not os.environ.get("RNIC_SOAK"):
        pytest.skip("RNIC_SOAK=1 takes it")
    died: list[float] = []
    with mortal() as peer:
        conn = rnic.connect(HOST, peer.do("serve_endpoint"))
        remote = conn.next_region(WAIT)
        timer = kill_soon(peer, died)
        with pytest.raises(LostError, match=DIED):
            act(conn, remote, point)
        timer.join()
        say(f"rnic.connect, {point}: LostError", died[0])
        conn.abort()
        echoed(os.urandom(50_000))


def test_every_task_hears_that_the_other_process_was_killed() -> None:
    died: list[float] = []

    async def for_ever(call: Callable[[], object]) -> None:
        while True:
            await call()  # type: ignore[misc]

    async def main(peer: Mortal, port: int) -> None:
        conn = await rnic.aio.connect(HOST, port)
        remote = await conn.next_region()
        into = bytearray(PIECE)
        calls = (
            conn.recv,
            conn.next_region,
            lambda: conn.write(bytes(PIECE), remote),
            lambda: conn.read(into, remote),
        )
        tasks = [asyncio.create_task(for_ever(one)) for one in calls]
        timer = kill_soon(peer, died)
        async with asyncio.timeout(WAIT):
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, LostError), result
                assert re.search(DIED, str(result))
        timer.join()
        say("rnic.aio, four tasks: LostError", died[0])
        await conn.abort()

    with mortal() as peer:
        asyncio.run(main(peer, peer.do("serve_endpoint")))
    echoed(os.urandom(50_000))


def test_close_tells_of_an_end_that_only_a_call_that_was_cancelled_would_have_told_of() -> None:
    async def main(peer: Mortal, port: int) -> None:
        conn = await rnic.aio.connect(HOST, port)
        remote = await conn.next_region()
        peer.stop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await conn.write(bytes(PIECE), remote)
        peer.kill()
        async with asyncio.timeout(WAIT):
            while conn.statistics().state is not State.FAILED:
                await asyncio.sleep(0.01)
        with pytest.raises(LostError, match=DIED):
            await conn.close()

    with mortal() as peer:
        asyncio.run(main(peer, peer.do("serve_endpoint")))


def test_who_is_called_is_killed_before_the_answer() -> None:
    died: list[float] = []
    with mortal() as peer:
        port = peer.do("listen")
        peer.stop()
        timer = kill_soon(peer, died)
        with pytest.raises(RefusedError, match="nobody listens"):
            rnic.connect(HOST, port)
        timer.join()
        say("rnic.connect, not answered: RefusedError", died[0])
    echoed(b"x")


@pytest.mark.roce
def test_who_called_is_killed_before_the_answer() -> None:
    """A raw client that never confirms is nobody's connection; the listener takes the next one."""
    with (
        rnic.listen(HOST, 0, config=Config(raw=True)) as server,
        ThreadPoolExecutor(1) as pool,
        mortal(Timing()) as peer,
        mortal() as other,
    ):
        first = pool.submit(server.accept, WAIT)
        peer.do("ask", server.port, HOST, PortSpace.TCP, True)
        peer.do("expect", EventType.CONNECT_RESPONSE)
        peer.kill()
        other.do("ask", server.port)
        with first.result(WAIT) as conn:
            assert conn.raw
            assert conn.peer_address is not None
            assert conn.peer_address[1] == other.do("port")


@pytest.mark.wire
@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_across_a_wire_the_probe_decides() -> None:
    with cable() as wire, mortal(netns=wire.netns) as peer:
        port = peer.do("serve_endpoint", wire.there)
        conn = rnic.connect(wire.there, port, config=Config(idle_interval=0.2))
        conn.send(b"x", WAIT)
        assert conn.recv(WAIT) == b"x"
        died = peer.kill()
        silent = "RETRY_EXC_ERR: the peer did not answer: its process is stopped or gone"
        with pytest.raises(LostError, match=DIED if IWARP else silent):
            conn.recv(WAIT)
        conn.abort()
        say("wire, idle, probed every 0.2 s: LostError", died)
    echoed(b"x")
