# SPDX-License-Identifier: Apache-2.0
"""Batches: many operations and one wait, in order, however many they are."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest

import rnic
from conn.peers import HOST, SLEEPY, WAIT, ends, peer
from conn.test_buffers import shared
from conn.test_ends import pair
from conn.test_interrupts import InterruptError, Raiser, raisers
from rnic.endpoint import Config, EndpointError, LostError, Region
from rnic.enums import AccessFlags
from rnic.errors import VerbsError
from waiting import until

np: Any = numpy
SIZE = 1 << 20
MANY = 1000


@pytest.fixture(params=[None, SLEEPY], ids=["looks", "sleeps"])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[rnic.Connection, bytearray, Region]]:
    """A connection, and memory of its peer's."""
    with pair(request.param) as (a, b):
        memory = bytearray(random.Random(1).randbytes(SIZE))
        remote = shared(a, b, memory)
        yield a, memory, remote


def test_many_reads_of_all_sizes_fill_their_buffers(both: tuple[rnic.Connection, bytearray, Region]) -> None:
    a, memory, remote = both
    rng = random.Random(2)
    places = [(rng.randrange(SIZE // 2), rng.choice((0, 1, 64, 4096, 4097, 20_000))) for _ in range(MANY)]
    buffers = [bytearray(length) for _, length in places]
    with a.batch(WAIT) as batch:
        results = [batch.read(one, remote, at) for one, (at, _) in zip(buffers, places, strict=True)]
    for one, (at, length) in zip(buffers, places, strict=True):
        assert one == memory[at : at + length]
    assert all(one.done and one.result() is None and one.error is None for one in results)
    assert [one.index for one in results] == list(range(MANY))
    for one in buffers:
        one.append(0)  # it is free
    assert not a._core.machine.operates


def test_operations_are_carried_out_in_their_order(both: tuple[rnic.Connection, bytearray, Region]) -> None:
    a, memory, remote = both
    rows = a.empty((300, 8), "u1")
    with a.batch(WAIT) as batch:
        buffers, olds = [], []
        for number in range(300):
            batch.write(number.to_bytes(8, "little"), remote, 64)
            buffers.append(bytearray(8) if number % 3 else rows[number])
            batch.read(buffers[-1], remote, 64)
            batch.fence()
            olds.append(batch.fetch_add(remote, 1, 64))
            olds.append(batch.compare_swap(remote, number + 1, 7, 64))
            olds.append(batch.fetch_add(remote, -7, 64))
        with pytest.raises(RuntimeError, match="has not ended: results are there when the batch's block"):
            batch.write(b"\0" * 8, remote, 64).result()
        found: Any = None
        for _ in range(2):
            found = batch.fetch_add(remote, 0, 64)
    for number, one in enumerate(buffers):
        assert int.from_bytes(bytes(one), "little") == number
    assert [one.result() for one in olds] == [value for n in range(300) for value in (n, n + 1, 7)]
    assert found.result() == 0
    assert memory[64:72] == bytes(8)


def test_memory_of_every_kind_is_taken(both: tuple[rnic.Connection, bytearray, Region]) -> None:
    a, memory, remote = both
    mine, tensor = bytearray(SIZE), np.zeros(1000)
    with a.register(mine), a.pd.alloc_mr(9000, AccessFlags.LOCAL_WRITE) as mr:
        with a.batch(WAIT) as batch:
            for start in range(0, SIZE, 1 << 14):
                batch.read(memoryview(mine)[start : start + (1 << 14)], remote, start)
            batch.read(mr, remote, 5)
            batch.read(Only(tensor), remote)
        assert mine == memory
        assert mr.buf == memory[5:9005]
        assert tensor.tobytes() == memory[:8000]
        with a.batch(WAIT) as batch:
            batch.write(mr, remote, 100)
            batch.write(Only(tensor), remote, 10_000)
        assert mr.buf == memory[100:9100]
        assert tensor.tobytes() == memory[10_000:18_000]


class Only:
    """An array that speaks nothing but DLPack."""

    def __init__(self, one: Any) -> None:
        self.__dlpack__, self.__dlpack_device__ = one.__dlpack__, one.__dlpack_device__


def test_what_cannot_be_is_refused_by_the_call_and_the_batch_goes_on(
    both: tuple[rnic.Connection, bytearray, Region],
) -> None:
    a, memory, remote = both
    closed = a.alloc(8)
    closed.close()
    fixed = a.register(bytes(8))
    endless = a.pd.alloc_null_mr()
    with pair() as (other, _), other.alloc(8) as foreign, a.batch(WAIT) as batch:
        wrong: list[tuple[Callable[[], object], type[Exception], str]] = [
            (lambda: batch.read(bytearray(8), remote, SIZE - 7), ValueError, "beyond region"),
            (lambda: batch.read(bytearray(8), remote, -1), ValueError, "beyond region"),
            (lambda: batch.write(np.zeros((2, 2)).T, remote), ValueError, "contiguous in C order"),
            (lambda: batch.read(b"fixed", remote), ValueError, "read-only"),
            (lambda: batch.read(fixed, remote), ValueError, "LOCAL_WRITE"),
            (lambda: batch.write(foreign, remote), ValueError, "another protection domain"),
            (lambda: batch.write(endless, remote), ValueError, "more than"),
            (lambda: batch.write(closed, remote), VerbsError, "is closed"),
            (lambda: batch.write(b"x", 5), TypeError, "remote is a Region"),  # type: ignore[arg-type]
            (lambda: batch.write("x", remote), TypeError, "."),  # type: ignore[arg-type]
            (lambda: batch.fetch_add(remote, 1, 4), ValueError, "multiple of 8"),
            (lambda: batch.fetch_add(remote, "1"), TypeError, "."),  # type: ignore[arg-type]
            (lambda: batch.write(b"x", remote, "1"), TypeError, "."),  # type: ignore[arg-type]
        ]
        for call, kind, text in wrong:
            with pytest.raises(kind, match=text):
                call()
        done = batch.write(b"good", remote)
    endless.close()
    assert done.result() is None
    assert memory[:4] == b"good"
    with pytest.raises(RuntimeError, match="the batch has ended: begin another one"):
        batch.write(b"x", remote)


def test_a_copy_of_a_region_serves_as_well(both: tuple[rnic.Connection, bytearray, Region]) -> None:
    a, memory, remote = both
    copy = pickle.loads(pickle.dumps(remote))
    a.write(b"12345678", copy)
    with a.batch(WAIT) as batch:
        batch.write(b"abcdefgh", copy, 8)
    assert memory[:16] == b"12345678abcdefgh"


def test_an_empty_buffer_may_be_read_only(both: tuple[rnic.Connection, bytearray, Region]) -> None:
    a, _, remote = both
    for empty in (b"", memoryview(b""), np.frombuffer(b"", np.uint8)):
        a.read(empty, remote)
        with a.batch(WAIT) as batch:
            result = batch.read(empty, remote)
        assert result.result() is None


@pytest.mark.parametrize("number", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_numbers_may_be_of_any_type(both: tuple[rnic.Connection, bytearray, Region], number: Any) -> None:
    a, memory, remote = both
    a.write(bytes(8), remote, number(8))
    assert a.fetch_add(remote, number(5), number(8)) == 0
    assert a.compare_swap(remote, number(5), number(6), number(8)) == 5
    with a.batch(WAIT) as batch:
        first = batch.fetch_add(remote, number(1), number(8))
        second = batch.compare_swap(remote, number(7), number(9), number(8))
        batch.write(b"abcdefgh", remote, number(16))
    assert (first.result(), second.result()) == (6, 7)
    assert memory[8:24] == b"\x09" + bytes(7) + b"abcdefgh"


@pytest.mark.parametrize("number", [8.0, 8.5, "8", None, np.float32(8)])
def test_what_is_no_whole_number_is_refused_and_the_connection_goes_on(
    both: tuple[rnic.Connection, bytearray, Region], number: Any
) -> None:
    a, memory, remote = both
    before = bytes(memory)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("write", (b"12345678", remote, number)),
        ("read", (bytearray(8), remote, number)),
        ("fetch_add", (remote, 1, number)),
        ("fetch_add", (remote, number)),
        ("compare_swap", (remote, number, 1)),
        ("compare_swap", (remote, 1, number)),
    ]
    for name, args in calls:
        for way in (a, a.batch().__enter__()):
            with pytest.raises(TypeError):
                getattr(way, name)(*args)
    assert memory == before
    a.write(b"12345678", remote, 8)
    assert memory[8:16] == b"12345678"


def test_a_region_that_grants_less_is_refused() -> None:
    with pair() as (a, b):
        a.send(b"ready?")
        assert b.recv(WAIT) == b"ready?"
        b.share(b"stable")
        remote = a.next_region(WAIT)
        with a.batch(WAIT) as batch:
            with pytest.raises(ValueError, match="grants REMOTE_READ, and RDMA_WRITE needs REMOTE_WRITE"):
                batch.write(b"x", remote)
            local = bytearray(6)
            batch.read(local, remote)
        assert local == b"stable"


def test_the_operation_that_failed_is_named_and_the_others_are_not_touched() -> None:
    with pair() as (a, b):
        memory = bytearray(64)
        remote = shared(a, b, memory)
        gone = Region(99, remote.addr, remote.length, remote.rkey, remote.access)
        with (
            pytest.raises(ValueError, match="region 99 is not shared by the peer") as caught,
            a.batch(WAIT) as batch,
        ):
            first = batch.write(b"first", remote)
            second = batch.write(b"x", gone, 7)
            third = batch.write(b"third", remote, 8)
        assert caught.value.__notes__ == ["operation 1 of the batch: RDMA_WRITE of 1 bytes at 7 of region 99"]
        assert batch.failed is second
        assert first.result() is third.result() is None
        assert memory[:13] == b"first\0\0\0third"
        with pytest.raises(ValueError, match="99"):
            second.result()
        a.write(b"on", remote, timeout=WAIT)


def test_an_operation_that_ends_the_connection_fails_those_behind_it() -> None:
    with pair() as (a, b):
        memory = bytearray(64)
        remote = shared(a, b, memory)
        wrong = shared(a, b, bytearray(64))
        b._core.sharing._shared[wrong.id].close()  # without a word
        with (
            pytest.raises(LostError, match="REM_ACCESS_ERR") as caught,
            a.batch(WAIT) as batch,
        ):
            results = [batch.write(b"%03d" % n, remote) for n in range(5)]
            results.append(batch.read(bytearray(3), wrong, 1))
            results += [batch.write(b"%03d" % n, remote) for n in range(100)]
        assert caught.value.__notes__ == ["operation 5 of the batch: RDMA_READ of 3 bytes at 1 of region 2"]
        assert all(one.done for one in results)
        assert [one.error is None for one in results[:6]] == [True] * 5 + [False]
        for one in results[6:]:
            with pytest.raises(LostError):
                one.result()
        with pytest.raises(LostError), a.batch():
            pass
        assert not a._core.machine.operates


def test_an_exception_inside_leaves_the_block_at_once() -> None:
    with pair() as (a, b):
        memory = bytearray(SIZE)
        remote = shared(a, b, memory)
        with suppress(InterruptError), a.batch(WAIT) as batch:
            results = [batch.fetch_add(remote, 1) for _ in range(MANY)]
            raise InterruptError
        posted = sum(one.done for one in results)
        before = a.fetch_add(remote, 0, timeout=WAIT)
        assert posted <= before <= MANY
        with a.batch(WAIT) as batch:
            last = batch.fetch_add(remote, 0)
        assert last.result() == before  # nothing was posted since
        assert not a._core.machine.operates


@pytest.mark.usefixtures("unheard_finalisers")
def test_a_batch_that_is_interrupted_carries_out_each_operation_at_most_once() -> None:
    with pair(Config(spin=0)) as (a, b):
        memory = bytearray(SIZE)
        remote = shared(a, b, memory)
        total, most, raised = 0, 0, 0
        for raiser in (*map(Raiser, range(1, 60)), *raisers()):
            local = np.zeros(5000, "u1")
            memory[8:5008] = bytes([raiser.left % 256]) * 5000
            most += 20
            try:
                raiser.call(partial(adds_and_a_read, a, remote, local))
                total += 20
                assert local.tobytes() == memory[8:5008]
            except InterruptError:
                pass
            except TypeError as error:
                # With a profiler that raises as a call begins, CPython may call what lies beside it.
                assert "'traceback' object is not callable" in str(error)  # noqa: PT017
            raised += raiser.left == 0
            assert total <= a.fetch_add(remote, 0, timeout=WAIT) <= most, raiser.at
            assert not a._core.machine.operates, raiser.at
        assert raised > 10
        assert not a._core.machine.busy


def adds_and_a_read(conn: rnic.Connection, remote: Region, local: Any) -> None:
    with conn.batch(WAIT) as batch:
        for _ in range(20):
            batch.fetch_add(remote, 1)
        batch.read(local, remote, 8)


def test_after_a_timeout_what_was_posted_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with pair() as (a, b):
        memory = bytearray(SIZE)
        remote = shared(a, b, memory)
        with monkeypatch.context() as still, pytest.raises(TimeoutError, match="batch: not within 0 s"):
            still.setattr(a._core, "pump", lambda _now: None)  # else all may be over at once
            with a.batch(0) as batch:
                results = [batch.fetch_add(remote, 1) for _ in range(20)]
        a.write(b"x", remote, 100, timeout=WAIT)
        assert [one.result() for one in results] == list(range(20))


def test_messages_that_come_meanwhile_are_not_lost() -> None:
    with pair() as (a, b):
        memory = bytearray(SIZE)
        remote = shared(a, b, memory)
        for number in range(20):
            b.send(b"%d" % number)
        saying = threading.Thread(target=partial(b.send, bytes(200_000), WAIT))
        saying.start()
        with a.batch(WAIT) as batch:
            for number in range(300):
                batch.fetch_add(remote, 1)
                if number % 20 == 0:
                    assert a.recv(WAIT) == b"%d" % (number // 20)
        for number in range(15, 20):
            assert a.recv(WAIT) == b"%d" % number
        assert a.recv(WAIT) == bytes(200_000)
        saying.join(WAIT)
        assert a.fetch_add(remote, 0, timeout=WAIT) == 300


def test_a_second_thread_is_refused_at_the_end_and_loses_nothing() -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(SIZE))
        waiting = threading.Thread(target=partial(a.recv, WAIT))
        waiting.start()
        while a._inside is None and not a._core.machine.busy:
            pass
        with (
            pytest.raises(RuntimeError, match="of this connection runs"),
            a.batch(WAIT) as batch,
        ):
            batch.fetch_add(remote, 1)
        b.send(b"go")
        waiting.join(WAIT)
        with a.batch(WAIT) as batch:
            batch.fetch_add(remote, 1)


def test_results_are_of_no_cost_to_the_memory_they_used() -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(SIZE))
        with a.alloc(SIZE) as own:
            with a.batch(WAIT) as batch:
                kept = [batch.read(own.buf[n * 8 : n * 8 + 8], remote) for n in range(100)]
                gc.collect()
            assert kept[5].length == 8
        assert repr(kept[5]) == "<Result 5: RDMA_READ of 8 bytes at 0 of region 1, done>"


def test_a_buffer_in_a_batch_keeps_its_size_and_its_memory_until_the_end() -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(SIZE))
        buffer, own = bytearray(8), a.alloc(8)
        with a.batch(WAIT) as batch:
            batch.read(buffer, remote)
            batch.read(own, remote)
            with pytest.raises(BufferError):
                buffer.append(0)
            with pytest.raises(VerbsError, match="an operation that has not ended uses MR"):
                own.close()
        buffer.append(0)
        own.close()


def test_outside_its_block_a_batch_takes_nothing(both: tuple[rnic.Connection, bytearray, Region]) -> None:
    a, memory, remote = both
    before = memory[:8]
    batch = a.batch()
    for call in (batch.read, batch.write):
        with pytest.raises(RuntimeError, match=r"begin a block: with conn.batch\(\) as batch"):
            call(bytearray(8), remote)
    with pytest.raises(RuntimeError, match="begin a block"):
        batch.fetch_add(remote, 1)
    with batch:
        kept = batch.fetch_add(remote, 0)
    assert kept.result() == int.from_bytes(before, sys.byteorder)
    with pytest.raises(RuntimeError, match="has ended"):
        batch.fetch_add(remote, 1)


def test_an_empty_batch_and_one_on_a_closed_connection() -> None:
    with pair() as (a, _):
        with a.batch() as batch:
            pass
        assert batch.failed is None
        with pytest.raises(ValueError, match="timeout"):
            a.batch(-1)
        a.abort()
        with pytest.raises(EndpointError), a.batch():
            pass


LENGTHS = (0, 1, 8, 255, 256, 257, 4095, 4096, 4097, 9000)


class Model:
    """Random operations of a batch, and the bytes that the peer's memory must have."""

    def __init__(self, conn: rnic.Connection, remote: Region, memory: bytearray, rng: random.Random) -> None:
        self.conn, self.remote, self.rng = conn, remote, rng
        self.memory = bytearray(memory)
        self._expected: list[tuple[Any, bytes | int]] = []

    def run(self, count: int) -> None:
        """A batch, and what it has found."""
        self._expected.clear()
        with self.conn.batch(WAIT) as batch:
            for _ in range(count):
                self.rng.choice((self._read, self._write, self._add, self._swap))(batch)
        for found, expected in self._expected:
            assert (found.result() if isinstance(expected, int) else bytes(found)) == expected

    def _place(self) -> tuple[int, int]:
        length = self.rng.choice(LENGTHS)
        return length, self.rng.randrange(len(self.memory) - length)

    def _read(self, batch: Any) -> None:
        length, at = self._place()
        make = self.rng.choice(
            (bytearray, partial(np.zeros, dtype="u1"), partial(self.conn.empty, dtype="u1"))
        )
        local = make(length)
        batch.read(local, self.remote, at)
        batch.fence()
        self._expected.append((local, bytes(self.memory[at : at + length])))

    def _write(self, batch: Any) -> None:
        length, at = self._place()
        local: Any = self.rng.choice((bytearray, partial(self.conn.empty, dtype="u1")))(length)
        memoryview(local)[:] = self.memory[at : at + length] = self.rng.randbytes(length)
        batch.write(local, self.remote, at)

    def _add(self, batch: Any) -> None:
        at, old = self._number()
        added = self.rng.getrandbits(64)
        self._atomic(batch.fetch_add(self.remote, added, at), at, old, (old + added) % (1 << 64))

    def _swap(self, batch: Any) -> None:
        at, old = self._number()
        compare, new = self.rng.choice((old, 5)), self.rng.getrandbits(64)
        self._atomic(
            batch.compare_swap(self.remote, compare, new, at), at, old, new if compare == old else old
        )

    def _number(self) -> tuple[int, int]:
        at = self.rng.randrange(len(self.memory) // 8) * 8
        return at, int.from_bytes(self.memory[at : at + 8], "little")

    def _atomic(self, result: Any, at: int, old: int, new: int) -> None:
        self.memory[at : at + 8] = new.to_bytes(8, "little")
        self._expected.append((result, old))


@pytest.mark.parametrize("config", [None, SLEEPY, Config(receive_size=256, send_size=256, receives=4)])
def test_random_batches_do_what_a_model_does(config: Config | None) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with pair(config) as (a, b):
        memory = bytearray(rng.randbytes(1 << 16))
        model = Model(a, shared(a, b, memory), memory, rng)
        for _ in range(30):
            model.run(rng.choice((1, 5, 63, 64, 65, 200)))
            assert memory == model.memory


# ---------------------------------------------------------------- asyncio


def test_tasks_have_batches_of_their_own_at_the_same_time() -> None:
    async def main() -> None:
        async with ends() as (a, b):
            memory = bytearray(random.Random(1).randbytes(SIZE))
            await b.share(memory)
            remote = await a.next_region()

            async def work(seed: int) -> None:
                rng = random.Random(seed)
                places = [(rng.randrange(SIZE // 2), rng.choice((1, 64, 5000))) for _ in range(500)]
                buffers = [bytearray(length) for _, length in places]
                async with a.batch() as batch:
                    for one, (at, _) in zip(buffers, places, strict=True):
                        batch.read(one, remote, at)
                        if rng.random() < 0.02:
                            await asyncio.sleep(0)
                        if rng.random() < 0.01:
                            await a.read(bytearray(8), remote)
                for one, (at, length) in zip(buffers, places, strict=True):
                    assert one == memory[at : at + length]

            async def talk() -> None:
                for number in range(300):
                    await b.send(b"%d" % number)
                    assert await a.recv() == b"%d" % number

            await asyncio.gather(talk(), *(work(seed) for seed in range(4)))
            assert not a._core.machine.operates

    asyncio.run(asyncio.wait_for(main(), WAIT))


def test_a_batch_keeps_its_connection() -> None:
    async def main() -> None:
        memory = bytearray(SIZE)
        async with rnic.aio.listen(HOST, 0) as server:
            there = asyncio.create_task(server.accept())

            async def begin() -> rnic.aio.Batch:
                conn = await rnic.aio.connect(HOST, server.port)
                remotes.append(await conn.next_region())
                return conn.batch()

            remotes: list[Region] = []
            beginning = asyncio.create_task(begin())
            b = await there
            await b.share(memory)
            async with await beginning as batch:
                gc.collect()
                batch.write(b"x", remotes[0])
            assert memory[:1] == b"x"
            await asyncio.gather(batch._conn.abort(), b.abort())

    asyncio.run(asyncio.wait_for(main(), WAIT))


def test_a_long_batch_lets_the_loop_run() -> None:
    async def main() -> None:
        async with ends() as (a, b):
            await b.share(bytearray(SIZE))
            remote = await a.next_region()
            ticks: list[None] = []

            async def tick() -> None:
                while True:
                    ticks.append(None)
                    await asyncio.sleep(0)

            ticking = asyncio.create_task(tick())
            async with a.batch() as batch:
                for _ in range(20_000):
                    last = batch.fetch_add(remote, 1)
            ticking.cancel()
            assert last.result() == 19_999

    asyncio.run(asyncio.wait_for(main(), WAIT))


def test_a_task_that_is_cancelled_leaves_the_batch_and_the_connection_goes_on() -> None:
    async def main() -> None:
        async with ends(SLEEPY) as (a, b):
            await b.share(bytearray(SIZE))
            remote = await a.next_region()
            for pause in range(10):
                made: list[Any] = []

                async def work(made: list[Any] = made) -> None:
                    async with a.batch() as batch:
                        made += [batch.read(bytearray(50_000), remote) for _ in range(200)]

                task = asyncio.create_task(work())
                for _ in range(pause):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                local = bytearray(8)
                await a.read(local, remote)
            assert not a._core.machine.operates

    asyncio.run(asyncio.wait_for(main(), WAIT))


@pytest.mark.parametrize("how", ["close", "abort", "drop", "lost"])
def test_a_batch_ends_with_its_connection(how: str) -> None:
    async def main() -> None:
        async with ends(SLEEPY) as (a, b):
            await b.share(bytearray(SIZE))
            remote = await a.next_region()
            results: list[Any] = []

            async def work() -> None:
                async with a.batch() as batch:
                    results.extend(batch.read(np.zeros(50_000, "u1"), remote) for _ in range(500))
                    await asyncio.sleep(0)

            task = asyncio.create_task(work())
            await asyncio.sleep(0)
            if how == "lost":
                b._core.end.hang_up()
            elif how == "drop":
                a.drop()
            else:
                with suppress(EndpointError):
                    await (a.close(1) if how == "close" else a.abort())
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            assert outcome is None or isinstance(outcome, EndpointError)
            assert all(one.done for one in results)
            assert (outcome is None) is all(one.error is None for one in results)

    with suppress(EndpointError):
        asyncio.run(asyncio.wait_for(main(), WAIT))


def lends_and_stops(conn: rnic.Connection) -> None:
    conn.share(bytearray(64))
    conn.recv(WAIT)
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.wire  # in shared memory the operations need no peer that runs
@pytest.mark.parametrize("how", ["close", "abort", "drop"])
def test_a_batch_whose_peer_is_stopped_raises_when_another_task_ends_the_connection(how: str) -> None:
    async def main(port: int) -> None:
        conn = await rnic.aio.connect(HOST, port, config=SLEEPY)
        remote = await conn.next_region()
        await conn.send(b"stop")

        async def work() -> None:
            async with conn.batch() as batch:
                results.extend([batch.read(bytearray(8), remote), batch.fetch_add(remote, 1)])

        results: list[Any] = []
        await asyncio.to_thread(until, lambda: is_stopped(process.pid), "the peer stops")
        task = asyncio.create_task(work())
        while not conn._pump.ops:
            await asyncio.sleep(0)
        with suppress(EndpointError):
            if how == "drop":
                conn.drop("planned")
            else:
                await (conn.close(0.2) if how == "close" else conn.abort("planned"))
        with pytest.raises(EndpointError, match="in time" if how == "close" else "planned"):
            await task
        assert results[0].error is not None

    with peer(lends_and_stops, clean=False) as (port, process):
        asyncio.run(asyncio.wait_for(main(port), WAIT))


def is_stopped(pid: int | None) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_the_asyncio_face_names_what_failed() -> None:
    async def main() -> None:
        async with ends() as (a, b):
            await b.share(bytearray(64))
            remote = await a.next_region()
            gone = Region(99, remote.addr, remote.length, remote.rkey, remote.access)
            with pytest.raises(ValueError, match="99 is not shared") as caught:
                async with a.batch() as batch:
                    batch.write(b"x", remote)
                    batch.write(b"y", gone)
            assert caught.value.__notes__ == [
                "operation 1 of the batch: RDMA_WRITE of 1 bytes at 0 of region 99"
            ]
            assert batch.failed is not None
            assert batch.failed.index == 1
            with suppress(InterruptError):
                async with a.batch() as batch:
                    batch.write(b"x", remote)
                    raise InterruptError

    asyncio.run(asyncio.wait_for(main(), WAIT))


@pytest.mark.parametrize("way", ["call", "batch"])
def test_an_atomic_takes_every_number_of_8_bytes_and_no_other(way: str) -> None:
    with pair() as (a, b):
        memory = bytearray(8)
        remote = shared(a, b, memory)

        def atomic(name: str, *args: Any) -> None:
            if way == "call":
                getattr(a, name)(remote, *args)
            else:
                with a.batch(WAIT) as batch:
                    getattr(batch, name)(remote, *args)

        atomic("fetch_add", -1)
        assert int.from_bytes(memory, sys.byteorder) == (1 << 64) - 1
        atomic("fetch_add", np.int64(3))
        assert int.from_bytes(memory, sys.byteorder) == 2
        atomic("compare_swap", 2, np.uint64((1 << 64) - 1))
        atomic("compare_swap", -1, -(1 << 63))
        assert int.from_bytes(memory, sys.byteorder) == 1 << 63
        for args in (("fetch_add", 1 << 64), ("fetch_add", -(1 << 63) - 1), ("compare_swap", 0, 1 << 64)):
            with pytest.raises(ValueError, match=r"8 bytes hold -2\*\*63 to 2\*\*64 - 1"):
                atomic(*args)
        for wrong in (1.5, remote, b"a"):
            with pytest.raises(TypeError, match=r"n is a whole number, not (float|Region|bytes)"):
                atomic("fetch_add", wrong)
        with pytest.raises(TypeError, match="swap is a whole number, not NoneType"):
            atomic("compare_swap", 1, None)
        assert int.from_bytes(memory, sys.byteorder) == 1 << 63


def test_a_batch_that_only_the_end_has_stopped_names_its_first_operation() -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(64))
        with pytest.raises(LostError, match="hang_up"), a.batch(WAIT) as batch:
            a.hang_up()
            batch.read(bytearray(64), remote)
            batch.write(b"x", remote)
        assert batch.failed is not None
        assert batch.failed.index == 0
