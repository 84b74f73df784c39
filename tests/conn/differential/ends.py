# SPDX-License-Identifier: Apache-2.0
"""One end of a connection, which carries out the steps of a program by either face.

The steps are coroutines.  By the synchronous face nothing in them waits for a loop: `at_once` runs them.
"""

from __future__ import annotations

import array
import asyncio
import ctypes
import re
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

import rnic
import rnic.aio
from conn.differential.program import (
    LONGEST,
    Abort,
    After,
    Batch,
    Close,
    End,
    Gone,
    Idle,
    Listen,
    Look,
    Op,
    Send,
    Share,
    Stats,
    Step,
    Tagged,
    Take,
    Withdraw,
    Wrong,
    content,
    digest,
)  # fmt: skip
from conn.peers import WAIT
from rnic.enums import AccessFlags

GUARD = 24
COUNTS = ("messages_sent", "messages_received", "queued", "backlog", "held", "partial", "probes")
ALL = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC
Outcome = Any


def at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run what never waits for a loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a synchronous end waits for a loop")


class Sync:
    """A connection of rnic.connect(), as a tasks' connection looks."""

    def __init__(self, conn: rnic.Connection) -> None:
        self.conn = conn

    async def call(self, name: str, *args: Any, **named: Any) -> Any:
        return getattr(self.conn, name)(*args, **named)

    async def limited(self, patience: int, name: str, *args: Any, **named: Any) -> Any:
        """With a time limit; TimeoutError when it is over."""
        return getattr(self.conn, name)(*args, timeout=patience * 2e-5, **named)

    async def batch(self, fill: Callable[[Any], None]) -> None:
        with self.conn.batch() as batch:
            fill(batch)


class Aio:
    def __init__(self, conn: rnic.aio.Connection, tasks: bool) -> None:
        self.conn = conn
        self.tasks = tasks

    async def call(self, name: str, *args: Any, **named: Any) -> Any:
        found = getattr(self.conn, name)(*args, **named)
        return await found if asyncio.iscoroutine(found) else found

    async def limited(self, patience: int, name: str, *args: Any, **named: Any) -> Any:
        """Cancelled after some turns of the loop; where each task must begin at once, by a timer."""
        if self.tasks:
            async with asyncio.timeout(patience * 2e-5):
                return await getattr(self.conn, name)(*args, **named)
        task = asyncio.ensure_future(getattr(self.conn, name)(*args, **named))
        for _ in range(patience + 1):
            if not task.done():
                await asyncio.sleep(0)
        if not task.done():
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            raise TimeoutError from None

    async def batch(self, fill: Callable[[Any], None]) -> None:
        async with self.conn.batch() as batch:
            fill(batch)


class OnlyDLPack:
    """An array of another library."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **named: Any) -> Any:
        return self.array.__dlpack__(**named)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Buffer:
    """Memory of one kind with bytes to guard on both sides."""

    def __init__(self, conn: Any, kind: str, data: bytes) -> None:
        length = len(data)
        arena = bytearray(b"\xa5" * (length + 2 * GUARD))
        self.mr: Any = None
        if kind == "alloc":
            self.mr = conn.alloc(len(arena))
            self.whole = memoryview(self.mr.buf)
        elif kind == "register":
            self.mr = conn.register(arena)
            self.whole = memoryview(arena)
        elif kind == "empty":
            self.whole = memoryview(conn.empty(len(arena), np.uint8))
        elif kind == "array":
            self.whole = memoryview(array.array("B", arena))
        else:
            self.whole = memoryview(arena)
        self.registers = kind == "register"
        """`mr` is closed before its buffer is, not after."""
        self.whole[:] = arena
        self.bytes = self.whole[GUARD : GUARD + length]
        self.bytes[:] = data
        self.given: Any = self._given(kind, data)

    def _given(self, kind: str, data: bytes) -> Any:
        if kind == "bytes":
            return data
        if kind in ("numpy", "dlpack"):
            array = np.frombuffer(self.bytes, np.uint8)
            return array if kind == "numpy" else OnlyDLPack(array)
        if kind == "matrix":
            return np.frombuffer(self.bytes, np.uint8).reshape(-1, 2 if len(data) % 2 == 0 else len(data))
        if kind == "ctypes":
            return (ctypes.c_ubyte * len(data)).from_buffer(self.bytes) if data else b""
        if kind == "words" and len(data) and len(data) % 8 == 0:
            return self.bytes.cast("Q")
        return self.bytes

    def intact(self) -> bool:
        """Nothing was written beside it."""
        return bytes(self.whole[:GUARD]) == bytes(self.whole[-GUARD:]) == b"\xa5" * GUARD

    def scribble(self) -> None:
        """The buffer is free: whatever is done with it concerns nobody."""
        self.bytes[:] = bytes(len(self.bytes))

    def close(self) -> None:
        self.given = None
        if self.registers:
            self.mr.close()
        self.bytes.release()
        self.whole.release()
        if self.mr is not None and not self.registers:
            self.mr.close()


class Side:
    """Carries out steps, and tells what they come to."""

    def __init__(self, way: Sync | Aio, tasks: bool = False) -> None:
        self.way, self.conn = way, way.conn
        self.tasks = tasks
        """What sends, what receives and what operates goes on at the same time, in tasks."""
        self.kept: list[Any] = []
        self.shared: dict[str, Any] = {}
        self.buffers: dict[str, Any] = {}
        self.theirs: dict[str, Any] = {}
        self.other_pd: Any = None

    async def run(self, steps: tuple[Step, ...]) -> list[Outcome]:
        if self.tasks and all(isinstance(step, Send | Listen | Tagged | Op | Batch) for step in steps):
            return await self._at_the_same_time(steps)
        return [await self._outcome(step) for step in steps]

    async def _outcome(self, step: Step) -> Outcome:
        try:
            return await getattr(self, "_" + type(step).__name__.lower())(step)
        except Exception as error:
            return told(error)

    async def _at_the_same_time(self, steps: tuple[Step, ...]) -> list[Outcome]:
        """A task for each message, one for what receives, and one for the operations on each region."""
        found: dict[int, Outcome] = {}

        async def row(numbers: list[int]) -> None:
            for number in numbers:
                found[number] = await self._outcome(steps[number])

        numbers = range(len(steps))
        rows = [[one] for one in numbers if isinstance(steps[one], Send)]
        rows.append([one for one in numbers if isinstance(steps[one], Listen | Tagged)])
        rows += apart({one: step for one, step in enumerate(steps) if isinstance(step, Op | Batch)})
        await asyncio.gather(*(row(one) for one in rows))
        return [found[one] for one in numbers]

    # ------------------------------------------------------------ messages

    async def _send(self, step: Send) -> Outcome:
        buffer = Buffer(self.conn, step.kind, content(step.key, step.size))
        named = {"tag": step.tag} if step.tag else {}
        try:
            if step.patience is None:
                await self.way.call("send", buffer.given, **named)
            else:
                await self.way.limited(step.patience, "send", buffer.given, **named)
        except TimeoutError:
            return "timeout"
        finally:
            buffer.scribble()
            buffer.close()
        return "sent"

    async def _listen(self, step: Listen) -> Outcome:
        found: list[tuple[int, int]] = []
        patience = step.patience
        while not found or found[-1] != step.last:
            how = step.hows[len(found) % len(step.hows)]
            try:
                found.append(await self._receive(how, patience))
            except TimeoutError:
                patience = None if patience is None or patience > 10_000 else 2 * patience + 1
        return found

    async def _receive(self, how: str, patience: int | None) -> tuple[int, int]:
        if how == "recv":
            return digest(await self._waits(patience, "recv"))
        if how == "small":
            return await self._into_small(patience)
        return await self._into(how, patience, 300)

    async def _into_small(self, patience: int | None) -> tuple[int, int]:
        """Into a buffer that is perhaps too small: the message stays, unless its sender takes it back."""
        try:
            return await self._into("bytearray", patience, 50)
        except ValueError:
            return digest(await self._waits(None, "recv"))

    async def _into(self, kind: str, patience: int | None, room: int) -> tuple[int, int]:
        buffer = Buffer(self.conn, kind, bytes(room))
        try:
            try:
                length = await self._waits(patience, "recv_into", buffer.given)
            except TimeoutError:  # what is done with it now changes no message
                buffer.scribble()
                raise
            assert buffer.intact(), "bytes beside the buffer have changed"
            return digest(buffer.bytes[:length])
        except ValueError as error:
            match = re.search(r"has (\d+) bytes", str(error))
            if room == 50 or match is None:
                raise
            room = int(match[1])
        finally:
            buffer.given = None
            if self.conn.closed or patience is None:
                buffer.close()
        return await self._into(kind, None, room)

    async def _waits(self, patience: int | None, name: str, *args: Any, **named: Any) -> Any:
        if patience is None:
            return await self.way.call(name, *args, **named)
        return await self.way.limited(patience, name, *args, **named)

    async def _tagged(self, step: Tagged) -> Outcome:
        named = [{} if tag is None else {"tag": tag} for tag in step.tags]
        return [await self._tagged_one(one, step.patience) for one in named]

    async def _tagged_one(self, named: dict[str, int], patience: int | None) -> tuple[int, int]:
        while patience is not None and patience < 10_000:
            try:
                return digest(await self.way.limited(patience, "recv", **named))
            except TimeoutError:
                patience = 2 * patience + 1
        return digest(await self.way.call("recv", **named))

    async def _idle(self, step: Idle) -> Outcome:
        args: tuple[Any, ...] = (bytearray(10),) if step.what == "recv_into" else ()
        named = {"tag": 5} if step.what == "tag" else {}
        name = "recv" if step.what == "tag" else step.what
        try:
            return "found", await self.way.limited(step.patience, name, *args, **named)
        except TimeoutError:
            return "timeout"

    # ------------------------------------------------------------ memory

    async def _share(self, step: Share) -> Outcome:
        data = content(step.key, step.size)
        buffer: Any = data if step.kind == "bytes" else bytearray(data)
        if step.kind == "numpy":
            buffer = np.frombuffer(buffer, np.uint64)
        elif step.kind == "alloc":
            mr = self.conn.alloc(step.size)
            mr.buf[:] = data
            buffer = mr.buf
        elif step.kind == "register":
            self.buffers[step.name + " mr"] = self.conn.register(buffer)
        region = await self.way.call("share", buffer, AccessFlags(step.access))
        self.shared[step.name], self.buffers[step.name] = region, buffer
        return region.length, int(region.access)

    async def _take(self, step: Take) -> Outcome:
        region = self.theirs[step.name] = await self.way.call("next_region")
        return region.length, int(region.access)

    async def _op(self, op: Op) -> Outcome:
        region = self.theirs[op.name]
        if op.what == "array":
            return digest(memoryview(await self.way.call("read_array", region)).cast("B"))
        if op.what in ("add", "swap"):
            name, args = ("fetch_add", op.values[:1]) if op.what == "add" else ("compare_swap", op.values)
            if op.patience is None:
                return await self.way.call(name, region, *args, op.offset)
            return await self._impatient_atomic(op, name, args)
        local = self._local(op)
        if op.patience is not None:
            try:
                await self.way.limited(op.patience, op.what, local.given, region, op.offset)
            except TimeoutError:  # it goes on, and its buffer is in use
                self.kept.append(local)
                local = self._local(op)
        try:
            found = await self.way.call(op.what, local.given, region, op.offset)
            return self._result(op, local, found)
        finally:
            local.close()

    async def _impatient_atomic(self, op: Op, name: str, args: tuple[int, ...]) -> int:
        """Once in all: a call that came to its limit may have begun, or not."""
        region = self.theirs[op.name]
        before: int = await self.way.call("fetch_add", region, 0, op.offset)
        try:
            found: int = await self.way.limited(op.patience or 0, name, region, *args, op.offset)
        except TimeoutError:
            after: int = await self.way.call("fetch_add", region, 0, op.offset)
            if after == before:
                await self.way.call(name, region, *args, op.offset)
            return before
        return found

    def _local(self, op: Op) -> Buffer:
        data = content(op.key, op.length) if op.what == "write" else bytes(op.length)
        if op.kind != "mr" or not op.length:
            return Buffer(self.conn, op.kind, data)
        made = Buffer(self.conn, "bytearray", data)
        made.mr = self.conn.pd.reg_mr(made.bytes, AccessFlags.LOCAL_WRITE)
        made.given, made.registers = made.mr, True
        return made

    def _result(self, op: Op, local: Buffer, found: Any) -> Outcome:
        assert found is None or found == 0, found
        assert local.intact(), "bytes beside the buffer have changed"
        return digest(local.bytes) if op.what == "read" else None

    async def _batch(self, step: Batch) -> Outcome:
        results: list[tuple[Op, Any, Any]] = []

        def fill(batch: Any) -> None:
            for op in step.ops:
                region = self.theirs[op.name]
                if op.fence:
                    batch.fence()
                if op.what == "add":
                    results.append((op, None, batch.fetch_add(region, op.values[0], op.offset)))
                elif op.what == "swap":
                    results.append((op, None, batch.compare_swap(region, *op.values, op.offset)))
                else:
                    local = self._local(op)
                    results.append((op, local, getattr(batch, op.what)(local.given, region, op.offset)))

        try:
            await self.way.batch(fill)
            return [
                one.result() if local is None else self._result(op, local, one.result())
                for op, local, one in results
            ]
        finally:
            for _, local, _ in results:
                if local is not None:
                    local.close()

    async def _look(self, step: Look) -> Outcome:
        return digest(memoryview(self.buffers[step.name]).cast("B"))

    async def _withdraw(self, step: Withdraw) -> Outcome:
        region = self.shared.pop(step.name)
        if step.patience is None:
            return await self.way.call("withdraw", region)
        try:
            return await self.way.limited(step.patience, "withdraw", region)
        except TimeoutError:
            return "timeout"

    async def _gone(self, step: Gone) -> Outcome:
        assert await self.way.call("next_withdrawn") is self.theirs[step.name]

    # ------------------------------------------------------------ what is refused

    async def _wrong(self, step: Wrong) -> Outcome:
        try:
            await self._try(step)
        except Exception as error:
            return told(error)
        return "done"

    async def _try(self, step: Wrong) -> None:
        region = self.theirs[step.name]
        if (bad := bad_calls(region).get(step.what)) is not None:
            await self.way.call(*bad)
            return
        if step.what.startswith(("tag ", "recv tag ")):
            call = ("recv",) if step.what.startswith("recv") else ("send", b"x")
            await self.way.call(*call, tag=_TAGS[step.what.split()[-1]])
            return
        name, *args = self._bad_operations(region)[step.what]
        if step.form == "alone":
            await self.way.call(name, *args)
        else:
            await self.way.batch(lambda batch: getattr(batch, name)(*args))

    def _bad_operations(self, region: Any) -> dict[str, tuple[Any, ...]]:
        strided, fortran = np.zeros(16, np.uint8)[::2], np.zeros((4, 2), np.uint8, "F")
        granting = replace(region, access=ALL)
        return {
            "right": ("write", b"x" * 8, replace(region, access=AccessFlags.REMOTE_READ)),
            "beyond": ("write", bytes(9), region, region.length - 8),
            "before": ("read", bytearray(8), region, -1),
            "huge": ("fetch_add", region, 1, 1 << 70),
            "unaligned": ("fetch_add", granting, 1, 1),
            "readonly": ("read", bytes(8), region),
            "strided": ("write", strided, region),
            "fortran": ("read", fortran, region),
            "text": ("write", "text", region),
            "none": ("write", None, region),
            "pd": ("write", self.stranger(), region),
            "closed mr": ("write", self.closed_mr(), region),
            "unfillable": ("read", self.conn.register(bytes(8)), region),
            "no region": ("write", bytes(8), None),
            "offset text": ("write", bytes(8), region, "0"),
            "offset float": ("write", bytes(8), region, 0.0),
            "offset none": ("write", bytes(8), region, None),
            "add text": ("fetch_add", granting, "1"),
            "add float": ("fetch_add", granting, 1.0),
            "withdrawn": allowed(region),
        }

    def stranger(self) -> Any:
        """Memory of another protection domain."""
        if self.other_pd is None:
            context = self.conn._core.cm_id.verbs
            assert context is not None
            self.other_pd = context.alloc_pd()
        return self.other_pd.alloc_mr(8, AccessFlags.LOCAL_WRITE)

    def closed_mr(self) -> Any:
        mr = self.conn.alloc(8)
        mr.close()
        return mr

    # ------------------------------------------------------------ how it stands, and the end

    async def _stats(self, _step: Stats) -> Outcome:
        found = self.conn.statistics()
        counts = {name: getattr(found, name) for name in COUNTS}
        return {"state": found.state.name, **counts}

    async def _close(self, _step: Close) -> Outcome:
        await self.way.call("close", WAIT)

    async def _abort(self, step: Abort) -> Outcome:
        await self.way.call("abort", step.text)

    async def _end(self, _step: End) -> Outcome:
        found: list[Any] = []
        while True:
            try:
                found.append(digest(await self.way.call("recv")))
            except (EOFError, rnic.EndpointError) as error:
                return [*found, type(error).__name__]

    async def _after(self, step: After) -> Outcome:
        region = self.theirs.get(step.name)
        calls: dict[str, tuple[Any, ...]] = {
            "send": (b"x",),
            "recv_into": (bytearray(9),),
            "read": (bytearray(8), region),
            "share": (bytearray(9),),
            "abort": ("text",),
            "alloc": (10,),
        }
        if step.what == "batch":
            await self.way.batch(lambda batch: batch.read(bytearray(8), region) if region else batch.fence())
        elif step.what == "tag":
            await self.way.call("recv", tag=5)
        else:
            await self.way.call(step.what, *calls.get(step.what, ()))
        return "done"


_TAGS: dict[str, Any] = {"negative": -1, "large": 1 << 64, "text": "5", "float": 5.0}


def apart(steps: dict[int, Op | Batch]) -> list[list[int]]:
    """Steps by number, so that no two rows use the same region."""
    rows: list[tuple[set[str], list[int]]] = []
    for number, step in steps.items():
        names = {op.name for op in step.ops} if isinstance(step, Batch) else {step.name}
        joined = [row for row in rows if row[0] & names]
        rows = [row for row in rows if not row[0] & names]
        numbers = sorted(chain([number], *(row[1] for row in joined)))
        rows.append((names.union(*(row[0] for row in joined)), numbers))
    return [numbers for _, numbers in rows]


def allowed(region: Any) -> tuple[Any, ...]:
    """An operation that the region's rights allow."""
    if region.access & AccessFlags.REMOTE_READ:
        return "read", bytearray(8), region
    return (
        ("write", bytes(8), region) if region.access & AccessFlags.REMOTE_WRITE else ("fetch_add", region, 1)
    )


def bad_calls(region: Any) -> dict[str, tuple[Any, ...]]:
    strided = np.zeros(16, np.uint8)[::2]
    return {
        "send text": ("send", "text"),
        "send none": ("send", None),
        "send strided": ("send", strided),
        "send too long": ("send", bytes(LONGEST + 1)),
        "into readonly": ("recv_into", bytes(8)),
        "into strided": ("recv_into", strided),
        "into text": ("recv_into", "text"),
        "share none": ("share", None),
        "share strided": ("share", strided),
        "share text": ("share", "text"),
        "share too much": ("share", bytearray(8), AccessFlags.LOCAL_WRITE),
        "withdraw peer's": ("withdraw", region),
        "withdraw none": ("withdraw", None),
        "revoke peer's": ("revoke", region),
        "asarray peer's": ("asarray", region),
    }


def told(error: Exception) -> tuple[str, str, str, int | None]:
    """An exception: its type, and its text without what differs each time."""
    text = re.sub(r"0x[0-9a-f]+", "0x", str(error))
    text = re.sub(r"region \d+", "region N", text)
    reason = getattr(error, "reason", None)
    return "error", type(error).__name__, re.sub(r" at \d+ of", " at N of", text), reason
