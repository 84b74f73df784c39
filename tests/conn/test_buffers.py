# SPDX-License-Identifier: Apache-2.0
"""What a buffer may be: its bytes in C order go and come, or the call is refused and the connection lives."""

from __future__ import annotations

import array
import asyncio
import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, cast

import numpy as np
import pytest

import rnic
from conn.peers import HOST, WAIT
from conn.test_ends import pair
from rnic.endpoint import Region
from rnic.enums import AccessFlags, WROpcode
from rnic.verbs.memory import AllocDMAttr

SCRAMBLED: dict[str, Callable[[], Any]] = {
    "Fortran order": lambda: np.asfortranarray([[0, 1], [2, 3]]),
    "transposed": lambda: np.arange(6).reshape(2, 3).T,
    "strided": lambda: np.arange(8)[::2],
    "backwards": lambda: np.arange(4)[::-1],
    "columns": lambda: np.arange(16).reshape(4, 4)[:, :2],
    "memoryview, backwards": lambda: memoryview(bytearray(8))[::-1],
    "memoryview, strided": lambda: memoryview(bytearray(8))[::2],
    "one column": lambda: np.arange(16).reshape(4, 4)[:, 1],
}
PLAIN: dict[str, Callable[[], Any]] = {
    "C order": lambda: np.arange(6).reshape(2, 3),
    "no dimension": lambda: np.array(7),
    "big-endian": lambda: np.arange(3, dtype=">i4"),
    "records": lambda: np.zeros(3, dtype=[("a", "i2"), ("b", "f8")]),
    "nothing": lambda: np.empty((0, 3)),
    "nothing, Fortran order": lambda: np.empty((3, 0), order="F"),
    "one row of many": lambda: np.arange(16).reshape(4, 4)[1],
    "array": lambda: array.array("d", [1, 2, 3]),
    "ctypes": lambda: (ctypes.c_int * 4)(1, 2, 3, 4),
    "memoryview": lambda: memoryview(bytearray(b"abcdefgh"))[2:5],
    "a field named O": lambda: np.zeros(3, dtype=[("O", "i2"), ("X", "f8")]),
    "complex numbers": lambda: np.zeros(2, dtype=[("z", complex), ("Z", "c8")]),
    "addresses as numbers": lambda: (ctypes.c_void_p * 2)(1, 2),
}


class Pointing(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("pointer", ctypes.POINTER(ctypes.c_int)))


class Referring(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("object", ctypes.py_object))


REFERENCES: dict[str, Callable[[], Any]] = {
    "objects": lambda: np.array([1, "text", None], dtype=object),
    "one object": lambda: np.array(None, dtype=object),
    "a memoryview of objects": lambda: memoryview(cast("Any", np.array([1, 2], dtype=object))),
    "a field of objects": lambda: np.zeros(2, dtype=[("n", "i8"), ("o", object)]),
    "an array of objects in a field": lambda: np.zeros(2, dtype=[("n", "i8"), ("o", object, (2, 3))]),
    "a field in a field": lambda: np.zeros(2, dtype=[("n", [("O", "i8"), ("o", object)])]),
    "texts of any length": lambda: np.array(["a", "text"], dtype=np.dtypes.StringDType()),
    "a field behind one named O": lambda: np.zeros(2, dtype=[("O", "i8"), ("o", object)]),
    "ctypes' objects": lambda: (ctypes.py_object * 2)(),
    "a structure with an object": lambda: Referring(1, "text"),
    "structures with a pointer": lambda: (Pointing * 2)(),
    "pointers": lambda: (ctypes.POINTER(ctypes.c_int) * 2)(),
    "texts of C": lambda: (ctypes.c_char_p * 2)(b"a", b"b"),
    "wide texts of C": lambda: (ctypes.c_wchar_p * 2)("a", "b"),
    "a function": lambda: ctypes.CFUNCTYPE(None)(),
}


def shared(a: rnic.Connection, b: rnic.Connection, memory: Any) -> Region:
    """Memory of b's, as a sees it."""
    a.send(b"ready?")
    assert b.recv(WAIT) == b"ready?"
    b.share(memory)
    return a.next_region(WAIT)


def octets(buffer: Any) -> bytes:
    return memoryview(buffer).tobytes()


@pytest.mark.parametrize("make", SCRAMBLED.values(), ids=SCRAMBLED)
def test_a_buffer_whose_bytes_lie_in_another_order_is_refused(make: Callable[[], Any]) -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(64))
        for call in (
            lambda: a.send(make()),
            lambda: a.write(make(), remote),
            lambda: a.read(make(), remote),
            lambda: a.share(make()),
        ):
            with pytest.raises(ValueError, match="contiguous in C order"):
                call()
        a.send(b"still here")
        assert b.recv(WAIT) == b"still here"


@pytest.mark.parametrize("make", REFERENCES.values(), ids=REFERENCES)
def test_references_are_refused_with_the_cure(make: Callable[[], Any]) -> None:
    """A peer that writes over them would end this process."""
    with pair() as (a, b):
        remote = shared(a, b, bytearray(64))
        batch = a.batch()
        calls: list[Callable[[], object]] = [
            lambda: a.send(make()),
            lambda: a.write(make(), remote),
            lambda: a.read(make(), remote),
            lambda: a.share(make()),
            lambda: a.register(make()),
            lambda: a.recv_into(make()),
            lambda: a.pd.reg_mr(make()),
            lambda: a.pd.reg_mr(make(), AccessFlags.REMOTE_READ),
            lambda: rnic.SGE.inline(make()),
        ]
        for call in calls:
            with pytest.raises(TypeError, match="references to objects, or pointers"):
                call()
        with batch, pytest.raises(TypeError, match="references to objects, or pointers"):
            batch.write(make(), remote)
        a.send(b"still here")
        assert b.recv(WAIT) == b"still here"


def test_what_is_closed_says_so() -> None:
    mapped, released = mmap.mmap(-1, 4096), memoryview(bytearray(8))
    mapped.close()
    released.release()
    with pair() as (a, b):
        for buffer in mapped, released:
            for call in a.send, a.share, a.pd.reg_mr:
                with pytest.raises(ValueError, match=r"closed|released"):
                    call(buffer)
        a.send(b"still here")
        assert b.recv(WAIT) == b"still here"


def test_times_are_numbers() -> None:
    """No format of buffers names them."""
    source = np.array(["2020-02-20", "2021-01-01"], dtype="M8[D]")
    with pair() as (a, b):
        memory = np.zeros(2, dtype="M8[D]")
        remote = shared(a, b, memory)
        a.send(source)
        assert b.recv(WAIT) == source.tobytes()
        a.write(source, remote, timeout=WAIT)
        assert (memory == source).all()
        with a.pd.reg_mr(source) as mr:
            assert mr.length == source.nbytes


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_any_other_buffer_moves_byte_by_byte(make: Callable[[], Any]) -> None:
    with pair() as (a, b):
        memory = bytearray(b"\xff" * 64)
        remote = shared(a, b, memory)
        source = make()
        a.send(source)
        assert b.recv(WAIT) == octets(source)
        a.write(source, remote, 8, timeout=WAIT)
        size = len(octets(source))
        assert memory[8 : 8 + size] == octets(source)
        assert memory[8 + size :] == b"\xff" * (56 - size)
        target = make()
        if size:
            memory[:size] = bytes(range(1, size + 1))
        a.read(target, remote, timeout=WAIT)
        assert octets(target) == memory[:size]


def test_the_faces_are_alike() -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as server:
            there = asyncio.create_task(server.accept())
            async with await rnic.aio.connect(HOST, server.port) as conn, await there as other:
                await other.share(bytearray(64))
                remote = await conn.next_region()
                array: Any = np.zeros((2, 2), order="F")
                for call in (conn.write(array, remote), conn.read(array, remote), conn.share(array)):
                    with pytest.raises(ValueError, match="contiguous in C order"):
                        await call
                await asyncio.gather(conn.close(), other.close())

    asyncio.run(asyncio.wait_for(main(), WAIT))


def test_a_buffer_keeps_its_size_while_an_operation_waits() -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(8))
        local = bytearray(8)
        op = a._core.rdma(WROpcode.RDMA_WRITE, local, remote, 0)
        with pytest.raises(BufferError):
            local.append(0)
        while not op.done:
            a._core.pump(monotonic())
        local.append(0)
        with pytest.raises(ValueError, match="9 bytes at 0 are beyond"):
            a.write(local, remote)


def test_what_cannot_be_read_into_or_is_of_another_domain_is_refused() -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(8))
        with pytest.raises(ValueError, match="read-only"):
            a.read(bytes(8), remote)
        with b.pd.reg_mr(bytearray(8)) as foreign, pytest.raises(ValueError, match="another protection"):
            a.write(foreign, remote)
        with a.pd.alloc_mr(8, AccessFlags.LOCAL_WRITE) as own:
            own.buf[:] = b"12345678"
            a.write(own, remote, timeout=WAIT)
            own.buf[:] = bytes(8)
            a.read(own, remote, timeout=WAIT)
            assert bytes(own.buf) == b"12345678"
        with pytest.raises(TypeError):
            a.send("text")  # type: ignore[arg-type]


@pytest.mark.parametrize("remote", [5, None, b"region"])
def test_what_is_no_region_is_named(remote: Any) -> None:
    with pair() as (a, _):
        for call in (
            lambda: a.write(b"x", remote),
            lambda: a.read(bytearray(1), remote),
            lambda: a.fetch_add(remote, 1),
            lambda: a.compare_swap(remote, 0, 1),
        ):
            with pytest.raises(TypeError, match=rf"next_region\(\) .* not {type(remote).__name__}"):
                call()
        for end in (a.withdraw, a.revoke):
            with pytest.raises(TypeError, match=r"share\(\) .* not"):
                end(remote)


def test_a_text_is_no_timeout() -> None:
    with pair() as (a, _), pytest.raises(TypeError, match="timeout is '5': give a number of seconds"):
        a.recv(timeout="5")  # type: ignore[call-overload]


def test_device_memory_takes_no_array_in_another_order() -> None:
    with pair() as (a, _):
        context: Any = a.pd.context
        memory = context.alloc_dm(AllocDMAttr(32))
        with pytest.raises((BufferError, ValueError), match="contiguous"):  # NumPy has the latter
            memory.copy_to(0, np.asfortranarray([[0, 1], [2, 3]]))
        memory.copy_to(0, np.array([[0, 1], [2, 3]]))
        assert memory.copy_from(0, 32) == np.array([[0, 1], [2, 3]]).tobytes()
        memory.close()


def test_a_region_that_an_operation_cannot_use_is_refused_and_the_connection_goes_on() -> None:
    with pair() as (a, b), rnic.open_device("roce_lo") as other, other.alloc_pd() as elsewhere:
        remote = shared(a, b, bytearray(b"12345678"))
        unwritable = a.pd.reg_mr(bytearray(8), AccessFlags.REMOTE_READ)
        was_writable = a.pd.reg_mr(bytearray(8), AccessFlags.LOCAL_WRITE)
        was_writable.rereg(rnic.ReregMRFlags.CHANGE_ACCESS, access=0)
        moved = a.pd.reg_mr(bytearray(8), AccessFlags.LOCAL_WRITE)
        moved.rereg(rnic.ReregMRFlags.CHANGE_PD, pd=b.pd)
        foreign = elsewhere.reg_mr(bytearray(8), AccessFlags.LOCAL_WRITE)
        endless = a.pd.alloc_null_mr()
        with unwritable, was_writable, moved, foreign, endless:
            for mr, why in (
                (unwritable, "LOCAL_WRITE"),
                (was_writable, "LOCAL_WRITE"),
                (moved, "another protection domain"),
                (foreign, "another protection domain"),
                (endless, "more than"),
            ):
                with pytest.raises(ValueError, match=why):
                    a.read(mr, remote, timeout=WAIT)
            for mr, why in (
                (moved, "another protection domain"),
                (foreign, "another protection domain"),
                (endless, "more than"),
            ):
                with pytest.raises(ValueError, match=why):
                    a.write(mr, remote, timeout=WAIT)
            a.write(unwritable, remote, timeout=WAIT)
            was_writable.rereg(rnic.ReregMRFlags.CHANGE_ACCESS, access=AccessFlags.LOCAL_WRITE)
            a.read(was_writable, remote, timeout=WAIT)
            assert bytes(was_writable.buf) == bytes(8)


def test_asyncio_refuses_a_region_that_an_operation_cannot_use() -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as server:
            there = asyncio.create_task(server.accept())
            async with await rnic.aio.connect(HOST, server.port) as conn, await there as other:
                await other.share(bytearray(64))
                remote = await conn.next_region()
                with other.pd.reg_mr(bytearray(8), AccessFlags.LOCAL_WRITE) as foreign:
                    for call in (conn.write(foreign, remote), conn.read(foreign, remote)):
                        with pytest.raises(ValueError, match="another protection domain"):
                            await call
                with conn.pd.reg_mr(bytearray(8)) as unwritable:
                    with pytest.raises(ValueError, match="LOCAL_WRITE"):
                        await conn.read(unwritable, remote)
                    await conn.write(unwritable, remote)
                await asyncio.gather(conn.close(), other.close())

    asyncio.run(asyncio.wait_for(main(), WAIT))


NONE: dict[str, tuple[Callable[[rnic.Connection, Region], Any], str]] = {
    "send a text": (lambda a, _: a.send("text"), r"send.*not str: give text.encode"),  # type: ignore[arg-type]
    "send a list": (lambda a, _: a.send([1, 2]), "send.*not list"),  # type: ignore[arg-type]
    "share a text": (lambda a, _: a.share("text"), "not str: give text.encode"),  # type: ignore[arg-type]
    "receive into a number": (lambda a, _: a.recv_into(16), "recv_into.*not int"),  # type: ignore[arg-type]
    "register a text": (lambda a, _: a.register("text"), "register.*not str: give"),  # type: ignore[arg-type]
    "read, turned round": (
        lambda a, region: a.read(region, bytearray(8)),  # type: ignore[arg-type]
        r"read.*not Region: write read\(buffer, region\)",
    ),
    "write, turned round": (
        lambda a, region: a.write(region, bytearray(8)),  # type: ignore[arg-type]
        r"write.*not Region: write write\(buffer, region\)",
    ),
    "read in a batch, turned round": (
        lambda a, region: a.batch().__enter__().read(region, bytearray(8)),  # type: ignore[arg-type]
        r"read.*not Region: write read\(buffer, region\)",
    ),
}


@pytest.mark.parametrize(("call", "cure"), NONE.values(), ids=NONE)
def test_what_is_no_buffer_is_named_with_the_cure(
    call: Callable[[rnic.Connection, Region], Any], cure: str
) -> None:
    with pair() as (a, b):
        remote = shared(a, b, bytearray(8))
        with pytest.raises(TypeError, match=cure):
            call(a, remote)
        a.send(b"lives")
        assert b.recv(WAIT) == b"lives"


CHANGES = """
import asyncio
from conn.peers import ends
from rnic.endpoint import Config

async def main():
    config = Config(receive_size=16384, send_size=16384, max_backlog=1 << 30, announce=None)
    async with ends(config) as (a, b):
        message = bytearray(3_000_000)
        coming = asyncio.create_task(b.recv())
        going = asyncio.create_task(a.send(message))
        while not a.statistics().queued:
            await asyncio.sleep(0)
        try:
            {change}
        except BufferError:
            print("refused")
        await going
        assert len(await coming) == 3_000_000

asyncio.run(main())
"""


@pytest.mark.parametrize("change", ["message.clear()", "message.extend(b'more')", "del message[1000:]"])
def test_a_buffer_that_is_being_sent_keeps_its_size(change: str) -> None:
    """BufferError for who tries; not a crash, nor a connection that ends."""
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    program = [sys.executable, "-c", CHANGES.format(change=change)]
    done = subprocess.run(program, timeout=WAIT, capture_output=True, check=False, env=path)
    assert (done.returncode, done.stdout) == (0, b"refused\n"), done.stderr.decode()[-600:]
