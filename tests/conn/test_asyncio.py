# SPDX-License-Identifier: Apache-2.0
"""The asyncio face."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Coroutine
from errno import EBADF
from pathlib import Path
from typing import Any

import pytest

import rnic
from conn.cancelling import CONNECTIONS
from conn.peers import HOST, SMALL, descriptors, quiet
from rnic import VerbsError
from rnic.aio.pump import Pump
from rnic.conn.core import Core
from rnic.endpoint import Config, LostError, RefusedError
from rnic.rdmacm import CmId
from rnic.rdmacm.registry import registry

SEEDS = 200 if os.environ.get("RNIC_SOAK") else 1


def run(main: Coroutine[Any, Any, None], timeout: float = 60) -> None:
    async def limited() -> None:
        async with asyncio.timeout(timeout):
            await main
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left

    asyncio.run(limited(), debug=True)


async def echo(conn: rnic.aio.Connection) -> None:
    async with conn:
        async for message in conn:
            await conn.send(message)


async def serve(server: rnic.aio.Listener) -> None:
    async with asyncio.TaskGroup() as group:
        async for conn in server:
            group.create_task(forgiving(conn))


async def forgiving(conn: rnic.aio.Connection) -> None:
    """Peers of these tests are cancelled, and abort."""
    try:
        await echo(conn)
    except ConnectionError:
        await conn.abort()


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_the_example_of_the_readme() -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0, config=SMALL) as server:
            task = asyncio.create_task(serve(server))
            async with await rnic.aio.connect(HOST, server.port, config=SMALL) as conn:
                await conn.send(b"hello")
                assert await conn.recv() == b"hello"
            await ended(task)

    run(main())


def python(*args: str) -> str:
    """What a program prints that runs with every warning an error, and has nothing to complain of."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", *args],
        env={"PYTHONASYNCIODEBUG": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_hundred_connections_with_cancellation_at_random_points() -> None:
    """See conn/cancelling.py: no task hangs, nothing is left, no warning at exit."""
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        found = json.loads(python("-m", "conn.cancelling", str(seed)))
        assert 0 < found["done"] < CONNECTIONS
        seen.update(found)
    where = {name.removeprefix("cancelled in ").removesuffix(" alone") for name in seen}
    calls = {
        "connect",
        "next_region",
        "write",
        "read",
        "fetch_add",
        "compare_swap",
        "send",
        "recv",
        "withdraw",
    }
    missing = (calls | {"close", "its peer was cancelled"}) - where
    assert len(missing) <= (0 if SEEDS > 20 else 3), f"never cancelled: {missing}, of {seen}"
    print(f"\n{SEEDS * CONNECTIONS} connections: {dict(seen)}")


def test_shared_memory() -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as server:
            there = asyncio.create_task(server.accept())
            async with await rnic.aio.connect(HOST, server.port) as conn, await there as other:
                memory = bytearray(b"0123456789abcdef")
                region = await other.share(memory)
                remote = await conn.next_region()
                await conn.write(b"WXYZ", remote, 4)
                local = bytearray(8)
                await conn.read(local, remote)
                assert local == b"0123WXYZ"
                was = await asyncio.gather(*(conn.fetch_add(remote, 1, 8) for _ in range(200)))
                start = int.from_bytes(b"89abcdef", "little")
                assert sorted(was) == [start + n for n in range(200)]
                assert await conn.compare_swap(remote, start + 200, 0, 8) == start + 200
                assert memory == b"0123WXYZ" + bytes(8)
                await other.withdraw(region)
                with pytest.raises(ValueError, match="not shared"):
                    await conn.write(b"", remote)
                await asyncio.gather(conn.close(), other.close())

    run(main())


async def at_rest(*conns: rnic.aio.Connection) -> None:
    """Until nothing more moves."""
    before: object = None
    same = 0
    while same < 100:
        await asyncio.sleep(0.003)
        seen = [one.statistics() for one in conns]
        same = same + 1 if seen == before else 0
        before = seen


def test_time_limits_and_cancellation_leave_the_connection_usable() -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0, config=SMALL) as server:
            there = asyncio.create_task(server.accept())
            async with await rnic.aio.connect(HOST, server.port, config=SMALL) as conn, await there as other:
                for call in (conn.recv, conn.next_region):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.02):
                            await call()
                messages = [bytearray(rng_bytes(n, 5_000)) for n in range(20)]
                tasks = [asyncio.create_task(conn.send(message)) for message in messages]
                await at_rest(conn, other)  # what nobody takes makes the sender wait
                kept = [bytes(message) for message, task in zip(messages, tasks, strict=True) if task.done()]
                assert 0 < len(kept) < 20
                for task, message in zip(tasks, messages, strict=True):
                    task.cancel()
                    if not task.done():
                        with pytest.raises(asyncio.CancelledError):
                            await task
                        message[:] = bytes(5_000)
                following = asyncio.create_task(conn.send(b"next"))
                got: list[bytes] = []
                while not got or got[-1] != b"next":
                    got.append(await other.recv())
                await following
                got.pop()
                assert got[: len(kept)] == kept
                assert len(got) in (len(kept), len(kept) + 1)  # one had begun
                assert all(one == rng_bytes(n, 5_000) for n, one in enumerate(got))
                await asyncio.gather(conn.close(), other.close())

    run(main())


def rng_bytes(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def test_connect_gives_up_and_can_be_cancelled() -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as server:
            with pytest.raises(TimeoutError):
                await rnic.aio.connect(HOST, server.port, timeout=0.1)
            task = asyncio.create_task(rnic.aio.connect(HOST, server.port))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            port = server.port
        with pytest.raises(RefusedError, match="nobody listens"):
            await rnic.aio.connect(HOST, port)

    before = descriptors()
    run(main())
    quiet(before)


def test_a_deadline_that_is_put_off_makes_no_new_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        made: list[object] = []
        call_later = loop.call_later

        def counted(*args: Any) -> asyncio.TimerHandle:
            made.append(args)
            return call_later(*args)

        monkeypatch.setattr(loop, "call_later", counted)
        async with rnic.aio.listen(HOST, 0) as server:
            there = asyncio.create_task(server.accept())
            async with await rnic.aio.connect(HOST, server.port) as conn, await there as other:
                made.clear()
                for _ in range(100):
                    await other.withdraw(await other.share(bytearray(8)))
                    await conn.send(b"there")
                    assert await other.recv() == b"there"
                assert len(made) < 10
                await asyncio.gather(conn.close(), other.close())

    run(main())


def test_a_connection_is_probed_whose_deadline_was_put_off() -> None:
    config = Config(idle_interval=0.1)

    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as server:
            there = asyncio.create_task(server.accept())
            async with await rnic.aio.connect(HOST, server.port, config=config) as conn, await there as other:
                for _ in range(3):
                    probes = conn.statistics().probes
                    await other.share(bytearray(8))
                    await conn.next_region()
                    while conn.statistics().probes == probes:
                        await asyncio.sleep(0.01)
                await asyncio.gather(conn.close(), other.close())

    run(main())


PROGRAM = """
import asyncio, rnic
async def serve(conn):
    async with conn:
        async for message in conn:
            await conn.send(message)
async def main():
    asyncio.get_running_loop().slow_callback_duration = 60  # a busy machine is no mistake of ours
    async with rnic.aio.listen("127.0.0.1", 0) as server:
        accepting = asyncio.create_task(server.accept())
        async with await rnic.aio.connect("localhost", server.port) as conn:
            task = asyncio.create_task(serve(await accepting))
            await conn.send(b"hello")
            print(await conn.recv())
        await task
asyncio.run(main())
"""


def test_no_warning_at_exit() -> None:
    assert python("-c", PROGRAM) == "b'hello'\n"


def test_a_connection_whose_pump_fails_again_and_again_is_lost_with_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with rnic.aio.listen(HOST, 0) as server:
            there = asyncio.create_task(server.accept())
            a = await rnic.aio.connect(HOST, server.port)
            b = await there
            await b.share(bytearray(64))
            remote = await a.next_region()
            waiting = [asyncio.create_task(one) for one in (a.recv(), a.next_region())]
            while not (a._pump.messages and a._pump.regions):
                await asyncio.sleep(0)

            def fails(*_: object) -> None:
                raise ZeroDivisionError("on purpose")

            monkeypatch.setattr(a._core.channel, "peek", fails)
            await b.send(b"news")
            await asyncio.wait(waiting)
            for call in (*waiting, a.send(b"more"), a.read(bytearray(8), remote), a.recv()):
                with pytest.raises(LostError, match=r"mistake in rnic.*on purpose") as caught:
                    await call
                assert isinstance(caught.value.__cause__, ZeroDivisionError)
            await a.abort()
            assert a.closed
            await b.abort()

    run(main())


def test_connections_that_cannot_be_begun_let_other_tasks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        turns = looks = 0

        async def turning() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        def take(_now: float) -> object:
            nonlocal looks
            looks += 1
            if looks > 1000:
                raise VerbsError(EBADF, "enough", "accept")
            return object()

        async with rnic.aio.listen(HOST, 0) as server:
            monkeypatch.setattr(server._desk, "take", take)
            monkeypatch.setattr(server, "_begin", lambda _: None)
            other = asyncio.create_task(turning())
            with pytest.raises(VerbsError, match="enough"):
                await server.accept()
            assert turns > 900
            await ended(other)

    run(main())


def raises_once(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, cores: list[Core], port: int | None = None
) -> None:
    """The next call of a method raises instead, as below the handler of a signal, and tells of which core;
    port: of an end whose own port it is.
    """
    real = getattr(owner, name)

    def call(first: Any, *args: Any) -> Any:
        core: Core = getattr(first, "core", first)
        if cores or (port is not None and core.cm_id.get_src_port() != port):
            return real(first, *args)
        cores.append(core)
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(owner, name, call)


def no_reader(fd: int) -> bool:
    return not asyncio.get_running_loop().remove_reader(fd)


def ids_but(*kept: CmId) -> set[CmId]:
    return {one for agent in registry.agents() for one in agent.ids} - set(kept)


async def is_hung_up_on(conn: rnic.aio.Connection) -> None:
    with pytest.raises(LostError):
        await conn.recv()
    await conn.abort()


@pytest.mark.parametrize("where", ["before it is begun", "while it is begun"])
def test_a_connection_that_an_exception_keeps_from_accept_is_given_back(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        lost: list[Core] = []
        async with rnic.aio.listen(HOST, 0) as server:
            if where == "before it is begun":
                raises_once(monkeypatch, server, "_begin", lost)
            else:
                raises_once(monkeypatch, Pump, "run", lost, server.port)
            getting = asyncio.create_task(server.accept())
            a = await rnic.aio.connect(HOST, server.port)
            with pytest.raises(ZeroDivisionError):
                await getting
            assert lost[0].given_back
            await is_hung_up_on(a)
            assert not ids_but(server._desk.cm_id)
            there = asyncio.create_task(server.accept())
            b = await rnic.aio.connect(HOST, server.port)
            await asyncio.gather(b.close(), (await there).close())

    before = descriptors()
    run(main())
    quiet(before)


def test_a_connection_that_an_exception_keeps_from_connect_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        lost: list[Core] = []
        raises_once(monkeypatch, Pump, "run", lost)
        with rnic.listen(HOST, 0) as server:
            getting = asyncio.create_task(asyncio.to_thread(server.accept))
            with pytest.raises(ZeroDivisionError):
                await rnic.aio.connect(HOST, server.port)
            assert lost[0].given_back
            b = await getting
            with pytest.raises(LostError):
                await asyncio.to_thread(b.recv)
            b.abort()
            assert not ids_but(server._desk.cm_id)

    before = descriptors()
    run(main())
    quiet(before)


def test_a_connection_that_cannot_be_begun_leaves_no_reader_in_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        lost: list[Core] = []
        raises_once(monkeypatch, Pump, "run", lost)
        watched: list[int] = []
        loop = asyncio.get_running_loop()
        real = loop.add_reader

        def add_reader(fd: int, *args: Any) -> None:
            watched.append(fd)
            real(fd, *args)

        monkeypatch.setattr(loop, "add_reader", add_reader)
        with rnic.listen(HOST, 0) as server:
            getting = asyncio.create_task(asyncio.to_thread(server.accept))
            with pytest.raises(ZeroDivisionError):
                await rnic.aio.connect(HOST, server.port)
            assert no_reader(watched[-1])
            (await getting).abort()

    run(main())


def test_connect_is_awaited_or_entered() -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as server:
            accepting = asyncio.create_task(server.accept())
            async with rnic.aio.connect(HOST, server.port) as conn:
                other = await accepting
                await conn.send(b"entered")
                assert await other.recv() == b"entered"
                closing = asyncio.create_task(other.close())
            await closing
            assert conn.closed
            task = asyncio.create_task(rnic.aio.connect(HOST, server.port))
            awaited, accepted = await asyncio.gather(task, server.accept())
            await asyncio.gather(awaited.close(), accepted.close())
            with pytest.raises(rnic.RefusedError):
                async with rnic.aio.connect(HOST, 1):
                    raise AssertionError("nobody listens there")

    asyncio.run(main())
