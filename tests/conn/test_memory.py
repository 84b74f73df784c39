# SPDX-License-Identifier: Apache-2.0
"""Memory that is registered once: of alloc(), register(), empty(), and buffers that come again."""

from __future__ import annotations

import array
import asyncio
import gc
import itertools
import mmap
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EBUSY
from functools import partial
from typing import Any

import numpy
import pytest

import rnic
from conn.peers import SLEEPY, WAIT, ends
from conn.test_buffers import shared
from conn.test_ends import pair
from conn.test_interrupts import InterruptError, Raiser
from rnic import SGE, SendFlags, SendWR
from rnic._nic.nic import Hold
from rnic.conn.device import part_with
from rnic.conn.pool import MAX_CACHED
from rnic.endpoint import Config, EndpointError, Region
from rnic.enums import AccessFlags, WROpcode
from rnic.errors import VerbsError
from rnic.rdmacm.again import again
from rnic.verbs.pd import PD

np: Any = numpy
LONG = 100_000
"""Bytes of a buffer that is not copied."""


@contextmanager
def registrations(patch: pytest.MonkeyPatch) -> Iterator[list[None]]:
    """What is registered meanwhile."""
    made: list[None] = []
    whole = PD.reg_mr

    def reg_mr(pd: PD, *args: Any, **given: Any) -> Any:
        made.append(None)
        return whole(pd, *args, **given)

    patch.setattr(PD, "reg_mr", reg_mr)
    yield made


def pattern(length: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(length)


@pytest.fixture
def settled() -> Iterator[tuple[rnic.Connection, rnic.Connection]]:
    """Both ends of a connection."""
    with pair() as (a, b):
        yield a, b


# ---------------------------------------------------------------- alloc, register, empty


@pytest.mark.parametrize("length", [1, 64, LONG])
def test_any_slice_of_registered_memory_is_used_as_it_lies(
    settled: tuple[rnic.Connection, rnic.Connection], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = settled
    memory = bytearray(2 * LONG)
    remote = shared(a, b, memory)
    mine = bytearray(3 * LONG)
    with a.alloc(3 * LONG) as own, a.register(mine) as registered:
        both: tuple[Any, ...] = (own.buf, mine, a.empty(3 * LONG, "u1"))
        assert own.addr % mmap.PAGESIZE == 0
        with registrations(monkeypatch) as made:
            for number, buffer in enumerate(both):
                with memoryview(buffer) as view:
                    view[7 : 7 + length] = pattern(length, number)
                    a.write(view[7 : 7 + length], remote, 5, timeout=WAIT)
                    assert memory[5 : 5 + length] == pattern(length, number)
                    memory[50 : 50 + length] = pattern(length, number + 9)
                    a.read(view[-length:], remote, 50, timeout=WAIT)
                    assert view[-length:] == pattern(length, number + 9)
                    assert bytes(view[:-length][:7]) == bytes(buffer[:7])
            del view, buffer
        assert not made
        assert registered.length == len(mine)
        del both


KINDS: tuple[tuple[Any, str], ...] = (
    ((100, 200), "<f4"),
    (70000, ">i8"),
    ((), "f8"),
    ((2, 3, 4), "c16"),
    (9, "i2, f8"),
)


def test_arrays_of_every_kind_lie_in_registered_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(1 << 20))
        with registrations(monkeypatch) as made:
            for shape, kind in (
                ((100, 200), "<f4"),
                (70000, ">i8"),
                ((), "f8"),
                ((2, 3, 4), "c16"),
                (9, "f8"),
            ):
                x = a.empty(shape, kind)
                assert x.shape == (shape if isinstance(shape, tuple) else (shape,))
                assert x.dtype == np.dtype(kind)
                x.reshape(-1).view("u1")[:] = np.arange(x.nbytes) % 100
                a.write(x, remote, timeout=WAIT)
                y = a.empty(shape, kind)
                a.read(y, remote, timeout=WAIT)
                assert (x == y).all()
                if x.ndim == 2:
                    a.read(y[10:20], remote, timeout=WAIT)
                    assert (y[10:20] == x[:10]).all()
        assert not made
        assert a.empty((0, 3), "f8").shape == (0, 3)
        assert a.empty(5).dtype == float
        with pytest.raises(ValueError, match="negative dimensions"):
            a.empty((-1, 3))
        with pytest.raises(ValueError, match="holds Python objects"):
            a.empty(3, object)


def test_what_is_not_in_order_or_cannot_be_written_is_refused_in_registered_memory_too() -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(1 << 20))
        x = a.empty((100, 200))
        for wrong in (x.T, x[:, :3]):
            with pytest.raises(ValueError, match="contiguous in C order"):
                a.write(wrong, remote)
        x.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            a.read(x, remote)
        stable = pattern(LONG)
        with a.register(stable):
            a.write(stable, remote, timeout=WAIT)
            with pytest.raises(ValueError, match="read-only"):
                a.read(stable, remote)
        with pytest.raises(ValueError, match="contiguous in C order"):
            a.register(np.zeros((8, 8)).T)


def test_registered_memory_gives_its_buffer_back() -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(LONG))
        buffer = bytearray(LONG)
        with a.register(buffer):
            a.read(buffer, remote, timeout=WAIT)
            with pytest.raises(BufferError):
                buffer.append(0)
        buffer.append(0)
        a.register(buffer)
        with pytest.raises(BufferError):
            buffer.append(0)
        a.abort()
        buffer.append(0)


def test_memory_that_is_looked_into_is_not_closed() -> None:
    with pair() as (a, _):
        own = a.alloc(4096)
        view = np.frombuffer(own.buf, "u1")
        with pytest.raises(VerbsError, match=r"its \.buf is still used") as caught:
            own.close()
        assert caught.value.errno == EBUSY
        view[:] = 7
        del view
        own.close()
        own.close()


def test_an_operation_that_has_not_ended_keeps_its_memory() -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(LONG))
        buffer = bytearray(LONG)
        registered = a.register(buffer)
        op = a._core.rdma(WROpcode.RDMA_READ, memoryview(buffer)[5:], remote, 0)
        with pytest.raises(VerbsError, match="an operation that has not ended uses MR") as caught:
            registered.close()
        assert caught.value.errno == EBUSY
        op.finish()
        registered.close()
        buffer.append(0)


def test_arrays_outlive_their_connection() -> None:
    with pair() as (a, b):
        b.abort()
        x = a.empty(LONG, "u1")
        own = a.alloc(LONG)
        y = np.frombuffer(own.buf, "u1")[5:]
        plain = own.buf
        x[:], y[:] = 1, 2
        a.abort()
        with pytest.raises(EndpointError):
            a.alloc(8)
        with pytest.raises(EndpointError):
            a.register(bytearray(8))
        with pytest.raises(EndpointError):
            a.empty(8)
    pd = a.pd
    assert not pd.closed
    assert not again.is_busy  # nobody looks again and again
    assert x.sum() == LONG
    x[:] = 3
    assert y.sum() == 2 * (LONG - 5)
    assert plain[5] == 2
    del plain, y
    own.close()
    del x
    gc.collect()
    assert pd.closed


def drop_in_a_cycle(mr: Any) -> None:
    cycle: list[Any] = [mr, Hold(mr)]
    cycle.append(cycle)


def test_a_region_that_is_collected_with_its_hold_is_given_back() -> None:
    with pair() as (a, _):
        drop_in_a_cycle(a.pd.reg_mr(bytearray(8), AccessFlags.LOCAL_WRITE))
        with pytest.warns(ResourceWarning, match="unclosed MR"):
            gc.collect()
        a.abort()
        assert a.pd.closed


OUTLIVES = """
import sys, threading, numpy, rnic
made = []
with rnic.listen("127.0.0.1", 0) as server:
    there = threading.Thread(target=lambda: made.append(server.accept()))
    there.start()
    a = rnic.connect("127.0.0.1", server.port)
    there.join()
x, own = a.empty(100_000, "u1"), a.alloc(100_000)
y = numpy.frombuffer(own.buf, "u1")
x[:], y[:] = 1, 2
if "close" in sys.argv:
    closing = threading.Thread(target=made[0].close)
    closing.start()
    a.close()
    closing.join()
    assert x.sum() == 100_000
    assert y.sum() == 200_000
elif "collect" in sys.argv:
    del a, made
    import gc, time
    gc.collect()
    time.sleep(0.1)
    assert x.sum() == 100_000
print("done", x.sum(), y.sum())
"""


@pytest.mark.parametrize("how", ["close", "collect", "nothing"])
def test_a_program_may_end_with_arrays_in_the_memory_of_connections(how: str) -> None:
    ran = subprocess.run([sys.executable, "-c", OUTLIVES, how], capture_output=True, text=True, timeout=WAIT)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "done 100000 200000\n"
    if how == "close":
        assert not ran.stderr


def test_memory_that_nobody_refers_to_goes_silently() -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(LONG))
        for _ in range(100):
            a.read(a.empty(LONG, "u1"), remote, timeout=WAIT)
            a.alloc(LONG)
        gc.collect()
        assert not a._core.pool.places.regions()


def test_memory_is_found_among_overlapping_and_closed_regions() -> None:
    with pair() as (a, b):
        memory = bytearray(LONG)
        remote = shared(a, b, memory)
        buffer = bytearray(LONG)
        view = memoryview(buffer)
        rng = np.random.default_rng(3)
        kept = []
        for number in range(300):
            start = int(rng.integers(0, LONG - 1))
            kept.append(a.register(view[start : int(rng.integers(start + 1, LONG))]))
            if number % 3 == 2:
                kept.pop(int(rng.integers(0, len(kept)))).close()
        places = a._core.pool.places
        assert set(places.regions()) == set(kept)
        for _ in range(300):
            start = int(rng.integers(0, LONG - 1))
            stop = int(rng.integers(start + 1, LONG))
            at = address(view) + start
            found = places.at(at, stop - start, True)
            fits = [mr for mr in kept if mr.addr <= at and at + stop - start <= mr.addr + mr.length]
            assert found in fits if fits else found is None
        a.read(view, remote, timeout=WAIT)
        for mr in kept:
            mr.close()


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, "u1").ctypes.data)


def test_both_faces_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with ends() as (a, b):
            memory = bytearray(LONG)
            await b.share(memory)
            remote = await a.next_region()
            x = a.empty(LONG, "u1")
            with registrations(monkeypatch) as made, a.alloc(LONG) as own:
                x[:] = 5
                await a.write(x, remote)
                assert memory == b"\5" * LONG
                await a.read(own, remote)
                assert own.buf == memory
                await asyncio.gather(*(a.read(x[n : n + 999], remote, n) for n in range(50)))
            assert not made

    asyncio.run(asyncio.wait_for(main(), WAIT))


def test_without_numpy_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pair() as (a, _):
        monkeypatch.setitem(sys.modules, "numpy", None)
        with pytest.raises(ImportError, match=r"empty\(\) makes a NumPy array, .* pip install"):
            a.empty(8)


# ---------------------------------------------------------------- buffers that come again


MAKERS: dict[str, Callable[[], Any]] = {
    "bytearray": lambda: bytearray(LONG),
    "numpy": lambda: np.zeros(LONG, "u1"),
    "array": lambda: array.array("B", bytes(LONG)),
    "mmap": lambda: mmap.mmap(-1, LONG),
}


def test_an_array_that_comes_again_is_registered_once(
    settled: tuple[rnic.Connection, rnic.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = settled
    memory = bytearray(pattern(LONG))
    remote = shared(a, b, memory)
    for make in (
        lambda: np.zeros(LONG, "u1"),
        lambda: array.array("B", bytes(LONG)),
        lambda: mmap.mmap(-1, LONG),
    ):
        buffer: Any = make()
        with registrations(monkeypatch) as made:
            for number in range(5):
                memory[number] = 99
                a.read(buffer, remote, timeout=WAIT)
                assert memoryview(buffer).tobytes() == memory
                a.read(memoryview(buffer)[: LONG - 1], remote, timeout=WAIT)
                a.write(buffer, remote, timeout=WAIT)
        assert len(made) == 3  # the second one is shorter, the third is not filled
        monkeypatch.undo()


def test_slices_of_an_array_are_the_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(LONG))
        whole = np.zeros((4, LONG // 8), "f8")
        with registrations(monkeypatch) as made:
            for _ in range(5):
                a.read(whole[1:2].reshape(-1)[: LONG // 8], remote, timeout=WAIT)
                a.read(np.asarray(memoryview(whole)[1:2]), remote, timeout=WAIT)
        assert len(made) == 1


def resize_array(buffer: Any) -> None:
    buffer.resize(3 * LONG, refcheck=False)


def extend(buffer: Any) -> None:
    buffer.extend(array.array("B", bytes(2 * LONG)))


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: bytearray(LONG), lambda buffer: buffer.extend(bytes(2 * LONG))),
        (lambda: np.zeros(LONG, "u1"), resize_array),
        (lambda: array.array("B", bytes(LONG)), extend),
        (lambda: mmap.mmap(-1, LONG, mmap.MAP_PRIVATE), lambda buffer: buffer.resize(3 * LONG)),
    ],
    ids=["bytearray", "numpy", "array", "mmap"],
)
def test_a_buffer_can_be_resized_and_freed_and_is_then_another_one(
    make: Callable[[], Any], change: Callable[[Any], None]
) -> None:
    with pair() as (a, b):
        memory = bytearray(pattern(3 * LONG))
        remote = shared(a, b, memory)
        for number in range(MAX_CACHED + 4):
            memory[0] = number
            buffer = make()
            a.read(buffer, remote, timeout=WAIT)
            assert memoryview(buffer).tobytes() == memory[:LONG]
            change(buffer)
            a.read(buffer, remote, timeout=WAIT)
            assert memoryview(buffer).tobytes() == memory
            assert len(a._core.pool._cached) <= MAX_CACHED
            del buffer
    assert not a._core.pool._cached


def test_the_next_owner_of_the_same_addresses_gets_its_own_bytes() -> None:
    """In turn: memory of the device, which goes, and pages of the program in its place."""
    with pair() as (a, b):
        memory = bytearray(pattern(1 << 21))
        remote = shared(a, b, memory)
        other = b.pd.alloc_mr(1 << 21, AccessFlags.LOCAL_WRITE)
        view = other.buf
        at = address(view)
        b.read(view, b_region(a, b, memory), timeout=WAIT)
        a.read(view, remote, timeout=WAIT)
        assert view == memory
        del view
        other.close()
        pages = [mmap.mmap(-1, 1 << 21, mmap.MAP_PRIVATE) for _ in range(20)]
        for one in pages:
            memory[0] ^= 1
            a.read(one, remote, timeout=WAIT)
            assert one[:] == memory
            a.write(one, remote, timeout=WAIT)
            assert one[:] == memory
        print("in its place:", at in [address(memoryview(one)) for one in pages])


def b_region(a: rnic.Connection, b: rnic.Connection, memory: bytearray) -> Region:
    """The same memory, as b sees it."""
    a.share(memory)
    return b.next_region(WAIT)


def test_the_cache_holds_nothing_back() -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(LONG))
        local = np.zeros(LONG, "u1")
        before = sys.getrefcount(local)
        for _ in range(3):
            a.read(local, remote, timeout=WAIT)
        assert sys.getrefcount(local) == before
        assert len(a._core.pool._cached) == 1
        local.resize(LONG + 1)  # which it refuses when there is so much as a weak reference


def test_peers_get_no_right_by_a_registration_that_is_kept() -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(LONG))
        local = np.zeros(LONG, "u1")
        a.read(local, remote, timeout=WAIT)
        (mr,) = a._core.pool._cached.values()
        with b.pd.reg_mr(bytearray(b"evil")) as evil:
            wr = SendWR(2, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [SGE(evil)], mr.addr, mr.rkey)
            b._core.qp.post_send(wr)
            with pytest.raises(EndpointError, match="REM_ACCESS_ERR"):
                b.recv(WAIT)
        assert not local.any()


def test_a_task_that_is_cancelled_leaves_a_registration_that_is_held() -> None:
    async def main() -> None:
        async with ends(SLEEPY) as (a, b):
            await b.share(bytearray(1 << 22))
            remote = await a.next_region()
            local = np.zeros(1 << 22, "u1")
            for _ in range(20):
                task = asyncio.create_task(a.read(local, remote))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                del local
                local = np.zeros(1 << 22, "u1")
                for key in list(a._core.pool._cached):
                    part_with(a._core.pool._cached.pop(key))
            await a.read(local, remote)
            assert len(a._core.pool._cached) == 1

    asyncio.run(asyncio.wait_for(main(), WAIT))


def test_small_buffers_are_not_kept() -> None:
    with pair(Config(spin=0)) as (a, b):
        remote = shared(a, b, bytearray(LONG))
        for _ in range(50):
            a.read(np.zeros(64, "u1"), remote, timeout=WAIT)
        assert not a._core.pool._cached


# ---------------------------------------------------------------- exceptions from outside


@pytest.mark.usefixtures("unheard_finalisers")
def test_memory_is_given_back_wherever_an_exception_comes() -> None:
    with pair(Config(spin=0)) as (a, b):
        memory = bytearray(pattern(LONG))
        remote = shared(a, b, memory)
        raised = 0
        for raiser in map(Raiser, [*range(1, 150)] * 2):
            buffer, local = bytearray(LONG), np.zeros(LONG, "u1")
            with suppress(InterruptError):
                raiser.call(partial(use, a, remote, buffer, local))
                assert buffer == local.tobytes() == memory
            raised += raiser.left <= 0
            a.read(local, remote, timeout=WAIT)
            assert local.tobytes() == memory, raiser.at
            for mr in a._core.pool._registered:
                mr.close()
            buffer.append(0)
            gc.collect()
            assert not a._core.pool.places.regions(), raiser.at
            assert len(a._core.pool._cached) <= MAX_CACHED, raiser.at
            assert not a._core.machine.operates, raiser.at
        assert raised > 50


@pytest.mark.usefixtures("unheard_finalisers")
def test_an_exception_leaves_no_registration_too_many_in_the_cache() -> None:
    with pair(Config(spin=0)) as (a, b):
        remote = shared(a, b, bytearray(pattern(LONG)))
        buffers = [bytearray(LONG) for _ in range(MAX_CACHED + 1)]
        cached = a._core.pool._cached
        for raiser in map(Raiser, itertools.count(1)):
            for buffer in buffers:  # the first is the oldest in the cache, or no longer there
                a.read(buffer, remote, timeout=WAIT)
            with suppress(InterruptError):
                raiser.call(partial(a.read, buffers[0], remote, timeout=WAIT))
            assert len(cached) <= MAX_CACHED, raiser.at
            assert not any(mr.closed for mr in cached.values()), raiser.at
            if raiser.left > 0:
                break


def use(conn: rnic.Connection, remote: Region, buffer: bytearray, local: Any) -> None:
    with conn.register(buffer), conn.alloc(LONG) as own:
        conn.read(buffer, remote, timeout=WAIT)
        conn.read(own, remote, timeout=WAIT)
        conn.read(local, remote, timeout=WAIT)
        conn.empty(LONG, "u1")
        conn.read_array(remote, timeout=WAIT)
