# SPDX-License-Identifier: Apache-2.0
"""One-sided structures on connections and queue pairs: threads, tasks and processes, and those that die."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest

import rnic
from forked import FORKS
from patterns.ends import HOST, WAIT
from patterns.memories import client, served
from rnic.patterns.onesided import (
    AsyncGroup,
    AsyncStore,
    AsyncWords,
    GroupMemory,
    Shared,
    Store,
    StoreMemory,
    WordMemory,
    serve,
    serve_async,
)
from rnic.patterns.ports import ConnectionPort, QueuePairPort, Step, Write
from rnic.testing import connect
from waiting import times_out, until


class Recorded:
    """A connection whose client leaves at once, and a memory: what is done to both."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.mr = type("MR", (), {"buf": memoryview(b"")})()

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.done.append(name)

    def __iter__(self) -> Iterator[bytes]:
        raise ConnectionError("died")

    def share(self, *_: object) -> str:
        self.done.append("share")
        return "region"


def test_a_client_can_do_nothing_more_when_its_locks_are_taken_back() -> None:
    both: Any = Recorded()
    with pytest.raises(ConnectionError, match="died"):
        serve(both, both)
    assert both.done == ["join", "share", "send", "revoke", "leave"]


# ---------------------------------------------------------------------- a store


def test_a_store() -> None:
    with ExitStack() as stack:
        port, memory = stack.enter_context(served(StoreMemory, slots=64, value_size=10_000))
        one, two = (stack.enter_context(client(Store, port)) for _ in range(2))
        assert one.get(b"k") is None
        assert one.put(b"k", b"v" * 10_000)
        assert two.get(b"k") == b"v" * 10_000
        version = two.put(b"k", b"", version=one.entry(b"k").version)
        assert one.entry(b"k").version == version
        assert one.update(b"k", lambda old: old + b"more") > 0
        assert one.keys() == two.keys() == [b"k"]
        assert (two.delete(b"k"), one.delete(b"k"), one.keys()) == (True, False, [])
        assert memory.clients == 2


def test_what_a_client_says_is_not_heard() -> None:
    with served(StoreMemory, slots=4) as (port, memory), rnic.connect(HOST, port) as conn:
        conn.send(b"hello" * 1000)
        Store.over(conn).put(b"k", b"v")
        assert memory.clients == 1


def test_a_client_of_another_kind() -> None:
    wrong = pytest.raises(ValueError, match="has words, not a store")
    with served(WordMemory, locks=1) as (port, _), rnic.connect(HOST, port) as conn, wrong:
        Store.over(conn)


def one_more(old: bytes | None) -> bytes:
    """A counter, repeated, so that a torn value is seen."""
    words = struct.unpack("<64Q", old) if old else (0,) * 64
    assert len(set(words)) == 1
    return struct.pack("<64Q", *[words[0] + 1] * 64)


def _adds(port: int, times: int, pipe: Any) -> None:
    """A process that adds, and reads what the others add."""
    with rnic.connect(HOST, port) as conn:
        store = Store.over(conn, WAIT)
        last = 0
        for number in range(times):
            store.update(b"key %d" % (number % 2), one_more, WAIT)
            found = store.get(b"key 0", WAIT)
            assert found is not None
            words = struct.unpack("<64Q", found)
            assert len(set(words)) == 1
            assert words[0] >= last
            last = words[0]
    pipe.send("done")


def test_processes_lose_no_update_and_read_nothing_torn() -> None:
    with served(StoreMemory, slots=4, value_size=512) as (port, _), client(Store, port) as store:
        ours, theirs = FORKS.Pipe()
        peers = [FORKS.Process(target=_adds, args=(port, 150, theirs)) for _ in range(3)]
        for one in peers:
            one.start()
        for one in peers:
            one.join(WAIT)
        assert [one.exitcode for one in peers] == [0] * 3
        assert [struct.unpack("<64Q", store.get(b"key %d" % at))[0] for at in range(2)] == [225, 225]
        ours.close()
        theirs.close()


class Stops(ConnectionPort):
    """Says so when the pattern would write, and waits for ever: it holds the lock."""

    def __init__(self, conn: rnic.Connection, pipe: Any) -> None:
        super().__init__(conn)
        self._pipe = pipe

    def do(self, step: Step) -> int:
        if isinstance(step, Write):
            self._pipe.send("holds")
            threading.Event().wait()
        return super().do(step)


def _holds(port: int, pipe: Any) -> None:
    with rnic.connect(HOST, port) as conn:
        Store(Stops(conn, pipe), conn.next_region(WAIT), conn.recv(WAIT)).put(b"k", b"new")


def test_a_writer_that_dies_with_a_lock() -> None:
    with served(StoreMemory, slots=1) as (port, memory), client(Store, port) as store:
        store.put(b"k", b"old")
        ours, theirs = FORKS.Pipe()
        dying = FORKS.Process(target=_holds, args=(port, theirs))
        dying.start()
        try:
            assert ours.poll(WAIT)
            assert store.get(b"k") == b"old"
            times_out(lambda limit: store.put(b"k", b"mine", timeout=limit), "client 2 is writing")
            assert store.get(b"k") == b"old"
        finally:
            dying.kill()
            dying.join(WAIT)
            ours.close()
            theirs.close()
        assert store.put(b"k", b"mine", timeout=WAIT)
        assert store.get(b"k") == b"mine"
        until(lambda: memory.clients == 1, "the server learns of the death")


def test_threads_share_a_client() -> None:
    with served(StoreMemory, slots=4, value_size=512) as (port, _), client(Store, port) as store:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda _: store.update(b"k", one_more), range(60)))
        assert struct.unpack("<64Q", store.get(b"k"))[0] == 60


def queue_pair(stack: ExitStack) -> rnic.QP:
    ctx = stack.enter_context(rnic.open_device(rnic.testing.loopback()))
    pd = stack.enter_context(ctx.alloc_pd())
    cqs = []
    for _ in range(2):
        channel = stack.enter_context(ctx.create_comp_channel())
        cqs.append(stack.enter_context(ctx.create_cq(64, channel)))
    return stack.enter_context(pd.create_qp(rnic.QPInitAttr(send_cq=cqs[0], recv_cq=cqs[1])))


def test_on_queue_pairs() -> None:
    with ExitStack() as stack:
        a, b = queue_pair(stack), queue_pair(stack)
        connect(a, b)
        server, port = QueuePairPort(a), QueuePairPort(b)
        memory = StoreMemory(server.memory, slots=16)
        invitation = memory.join()
        store = Store(port, server.window(memory.mr), invitation)
        for number in range(200):
            store.put(b"%d" % (number % 10), b"%d" % number)
        assert sorted(map(int, map(store.get, store.keys()))) == list(range(190, 200))  # type: ignore[arg-type]
        assert memory.leave(invitation) == 0
        with pytest.raises(ValueError, match="has left already"):
            memory.leave(invitation)
        del memory, store  # and with them what looks at the memory
        server.close()
        port.close()


# ---------------------------------------------------------------------- asyncio


async def with_clients(shared: Any, n: int, kind: Any, use: Any) -> None:
    """A server and clients, all in one loop; use(client, number) in a task each."""

    async def one(number: int) -> None:
        async with await rnic.aio.connect(HOST, listener.port) as conn:
            await use(await kind.over(conn), number)

    async with rnic.aio.listen(HOST, 0) as listener:
        memory: Shared = shared(listener.alloc)
        serving = asyncio.create_task(listener.serve(partial(serve_async, shared=memory)))
        try:
            async with asyncio.timeout(WAIT), asyncio.TaskGroup() as group:
                for number in range(n):
                    group.create_task(one(number))
        finally:
            listener.close()
            await serving


def test_tasks_with_a_store() -> None:
    async def use(store: AsyncStore, number: int) -> None:
        await asyncio.gather(*(store.update(b"k", one_more, WAIT) for _ in range(20)))
        await store.put(b"%d" % number, b"mine")
        assert await store.get(b"%d" % number) == b"mine"
        assert await store.delete(b"%d" % number)
        assert not await store.delete(b"%d" % number)
        assert b"k" in await store.keys()
        entry = await store.entry(b"k")
        assert entry is not None
        ended.append(struct.unpack("<64Q", entry.value)[0])

    ended: list[int] = []
    asyncio.run(with_clients(partial(StoreMemory, slots=8, value_size=512), 3, AsyncStore, use))
    assert max(ended) == 60


def test_a_cancelled_put_locks_nobody_out() -> None:
    async def use(store: AsyncStore, _: int) -> None:
        for turns in range(40):
            task = asyncio.create_task(store.put(b"k", b"a"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert await store.put(b"k", b"b", timeout=WAIT)
            assert await store.get(b"k") == b"b"

    asyncio.run(with_clients(partial(StoreMemory, slots=1), 1, AsyncStore, use))


async def beside_another(shared: Any, kind: Any, use: Any) -> None:
    """use(one client, another, the server's memory), while the first stays connected."""
    clients: list[Any] = []
    memories: list[Any] = []
    over = asyncio.Event()

    def make(alloc: Any) -> Any:
        memories.append(shared(alloc))
        return memories[0]

    async def one(client: Any, _: int) -> None:
        clients.append(client)
        if len(clients) < 2:
            await over.wait()
            return
        try:
            await use(*clients, memories.pop())
        finally:
            over.set()

    await with_clients(make, 2, kind, one)


def test_a_cancelled_put_locks_no_other_client_out() -> None:
    async def use(one: AsyncStore, two: AsyncStore, memory: Any) -> None:
        def locked() -> bool:
            return any(memory._words[at] & 0xFFFF == one.number for at in memory._locks())

        cut = 0
        while cut < 50:
            task = asyncio.create_task(one.put(b"k", b"a"))
            while not locked() and not task.done():
                await asyncio.sleep(0)
            cut += task.cancel()
            await asyncio.wait([task])
            assert await two.put(b"k", b"b")

    asyncio.run(beside_another(partial(StoreMemory, slots=1), AsyncStore, use))


def test_a_release_that_is_cancelled_while_it_waits_for_its_turn_is_done_all_the_same() -> None:
    async def hold(words: AsyncWords, held: asyncio.Event, go: asyncio.Event) -> None:
        async with words.lock(0):
            held.set()
            await go.wait()

    async def use(one: AsyncWords, two: AsyncWords, _: Any) -> None:
        for turns in range(6):
            held, go = asyncio.Event(), asyncio.Event()
            holder = asyncio.create_task(hold(one, held, go))
            await held.wait()
            async with one._turn:
                go.set()
                for _ in range(turns):
                    await asyncio.sleep(0)
                holder.cancel()
            await asyncio.wait([holder])
            async with two.lock(0):
                pass

    asyncio.run(beside_another(partial(WordMemory, locks=1), AsyncWords, use))


def test_tasks_with_locks_counters_and_groups() -> None:
    inside = 0

    async def count(words: AsyncWords, number: int) -> None:
        nonlocal inside
        for _ in range(10):
            async with words.lock(1, WAIT):
                assert not inside
                inside += 1
                await words.add(0, number)
                inside -= 1
        if number == 2:
            while await words.value(0) != 30:
                await asyncio.sleep(0)

    async def reduce(group: AsyncGroup, _: int) -> None:
        for turn in range(5):
            found = await group.all_reduce_array(np.arange(10) + group.rank + turn, np.add, WAIT)
            assert (found == 3 * np.arange(10) + 3 + 3 * turn).all()
        assert await group.all_reduce(bytes((group.rank,)), max, timeout=WAIT) == b"\2"
        await group.barrier(WAIT)

    asyncio.run(with_clients(partial(WordMemory, locks=2, counters=1), 3, AsyncWords, count))
    asyncio.run(with_clients(partial(GroupMemory, members=3, room=80), 3, AsyncGroup, reduce))


def test_a_key_of_the_wrong_type_says_so() -> None:
    with served(StoreMemory, slots=8, value_size=8) as (port, _), client(Store, port) as store:
        with pytest.raises(TypeError, match=r"key\.encode"):
            store.get("key", WAIT)
        with pytest.raises(TypeError, match=r"key\.encode"):
            store.put("key", b"", timeout=WAIT)
