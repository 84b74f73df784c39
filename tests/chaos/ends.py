# SPDX-License-Identifier: Apache-2.0
"""Ends of connections for talk.py: of rnic.connect, of rnic.aio, and queue pairs."""

from __future__ import annotations

import asyncio
import os
import random
import select
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import rnic
from chaos.talk import MEMORY, SLOT, blank
from rnic import CQ, MR, PD, QP, SGE, AccessFlags, RecvWR, SendFlags, SendWR, WROpcode
from rnic.endpoint import Region
from rnic.rdmacm import CmId, Event, EventChannel, EventType
from rnic.testing import ALL_ACCESS, connect_through, prepare

T = TypeVar("T")
LIMIT = float(os.environ.get("CHAOS_LIMIT", "60"))
"""Seconds that anything may take on a busy machine: what takes longer hangs."""


class Hangs(Exception):  # noqa: N818
    """Something took longer than the limit."""


class BrokenEnd(ConnectionError):  # noqa: N818
    """A work request failed, or the peer has gone."""


async def within(work: Awaitable[T], what: str) -> T:
    try:
        async with asyncio.timeout(LIMIT):
            return await work
    except TimeoutError:
        raise Hangs(f"{what}: not within {LIMIT} s") from None


# ------------------------------------------------------------------ rnic.connect and rnic.aio


class SyncEnd:
    """rnic.connect and rnic.listen: it blocks."""

    most = 60_000

    def __init__(self, conn: rnic.Connection) -> None:
        self.conn = conn
        self.memory = bytearray()

    def limited(self, call: Callable[..., T], *args: Any) -> T:
        try:
            return call(*args, timeout=LIMIT)
        except TimeoutError as error:
            raise Hangs(f"rnic.connect: {error}") from None

    async def send(self, data: bytes) -> None:
        self.limited(self.conn.send, data)

    async def recv(self) -> bytes | None:
        try:
            return self.limited(self.conn.recv)
        except EOFError:
            return None

    async def give(self) -> bytearray:
        self.memory = bytearray(MEMORY)
        blank(self.memory)
        self.conn.share(self.memory)
        return self.memory

    async def take(self) -> None:
        self.region: Region = self.limited(self.conn.next_region)

    async def write(self, pieces: list[tuple[bytes, int]]) -> None:
        for data, at in pieces:
            self.limited(self.conn.write, data, self.region, at)

    async def read(self, length: int, at: int) -> bytes:
        into = bytearray(length)
        self.limited(self.conn.read, into, self.region, at)
        return bytes(into)

    async def fetch_add(self, n: int) -> int:
        return self.limited(self.conn.fetch_add, self.region, n)

    async def compare_swap(self, compare: int, swap: int) -> int:
        return self.limited(self.conn.compare_swap, self.region, compare, swap)


class AioEnd:
    """rnic.aio: it waits in the loop."""

    most = 60_000

    def __init__(self, conn: rnic.aio.Connection) -> None:
        self.conn = conn
        self.memory = bytearray()

    async def limited(self, work: Awaitable[T], what: str) -> T:
        return await within(work, f"rnic.aio: {what}")

    async def send(self, data: bytes) -> None:
        await self.limited(self.conn.send(data), "send")

    async def recv(self) -> bytes | None:
        try:
            return await self.limited(self.conn.recv(), "recv")
        except EOFError:
            return None

    async def give(self) -> bytearray:
        self.memory = bytearray(MEMORY)
        blank(self.memory)
        await self.conn.share(self.memory)
        return self.memory

    async def take(self) -> None:
        self.region: Region = await self.limited(self.conn.next_region(), "next_region")

    async def write(self, pieces: list[tuple[bytes, int]]) -> None:
        writes = [self.limited(self.conn.write(data, self.region, at), "write") for data, at in pieces]
        await asyncio.gather(*writes)

    async def read(self, length: int, at: int) -> bytes:
        into = bytearray(length)
        await self.limited(self.conn.read(into, self.region, at), "read")
        return bytes(into)

    async def fetch_add(self, n: int) -> int:
        return await self.limited(self.conn.fetch_add(self.region, n), "fetch_add")

    async def compare_swap(self, compare: int, swap: int) -> int:
        return await self.limited(self.conn.compare_swap(self.region, compare, swap), "compare_swap")


# ------------------------------------------------------------------ a queue pair

RECEIVES, SIZE = 8, 1 << 14
REMOTE = 12  # bytes that tell where the peer's memory is
_SEND, _RESULT, _AREA = RECEIVES * SIZE, (RECEIVES + 1) * SIZE, (RECEIVES + 1) * SIZE + 64
OWN = _AREA + 4 * SLOT  # bytes: receives, one message, the result of an atomic, pieces of WRITE and READ
CAP = rnic.QPCap(max_send_wr=16, max_recv_wr=RECEIVES, max_send_sge=1, max_recv_sge=1)


class VerbsEnd:
    """A queue pair of a reliable connection; subclasses connect it, and know when the peer has gone."""

    most = SIZE

    def __init__(self, dice: random.Random, stack: ExitStack) -> None:
        self.dice, self.stack = dice, stack
        self.received: deque[tuple[int, int]] = deque()  # slots of receives, and lengths
        self.completed = 0
        self.has_gone = False
        self.memory: bytearray | memoryview = bytearray()

    def equip(self, context: rnic.Context) -> None:
        """What a queue pair needs."""
        self.pd: PD = self.stack.enter_context(context.alloc_pd())
        self.comp = self.stack.enter_context(context.create_comp_channel())
        self.cq: CQ = self.stack.enter_context(context.create_cq(64, self.comp))
        self.own = self.register(OWN)

    def register(self, nbytes: int) -> MR:
        """Of the program, or of the device."""
        if self.dice.random() < 0.5:
            return self.stack.enter_context(self.pd.alloc_mr(nbytes, ALL_ACCESS))
        return self.stack.enter_context(self.pd.reg_mr(bytearray(nbytes), ALL_ACCESS))

    def begin(self, qp: QP) -> None:
        """In INIT: receives can be posted, and the memory for the peer must be there before it asks."""
        self.qp = qp
        self.given = self.register(MEMORY)
        self.memory = self.given.buf
        blank(self.memory)
        for slot in range(RECEIVES):
            self.receive(slot)

    def remote(self) -> bytes:
        """What the peer has to know of the memory."""
        return self.given.addr.to_bytes(8, "big") + self.given.rkey.to_bytes(4, "big")

    def know(self, remote: bytes) -> None:
        self.there = int.from_bytes(remote[:8], "big"), int.from_bytes(remote[8:12], "big")

    def receive(self, slot: int) -> None:
        self.qp.post_recv(RecvWR(slot, [SGE(self.own, slot * SIZE, SIZE)]))

    # -- waiting

    def gone(self) -> bool:
        """Whether the peer has; asked when one of `others` is readable."""
        raise NotImplementedError

    def others(self) -> list[int]:
        """Descriptors that tell."""
        raise NotImplementedError

    def pump(self, until: float, what: str) -> None:
        """Completions; sleeps when there are none."""
        if self.polled():
            return
        self.cq.req_notify()
        if self.polled():
            return
        if self.has_gone:
            raise BrokenEnd("peer gone")
        poll = select.poll()
        for fd in (self.comp.fileno(), *self.others()):
            poll.register(fd, select.POLLIN)
        found = dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))
        if not found:
            raise Hangs(f"verbs: {what}: not within {LIMIT} s")
        if self.comp.fileno() in found:
            self.comp.get_cq_event(0).ack_events()
        else:  # what came before is polled first
            self.has_gone = self.gone()

    def polled(self) -> bool:
        found = self.cq.poll(16)
        for wc in found:
            if not wc.ok:
                raise BrokenEnd(wc.status.name)
            if wc.wr_id < RECEIVES:
                self.received.append((wc.wr_id, wc.byte_len))
            else:
                self.completed += 1
        return bool(found)

    def run(self, wrs: list[SendWR], what: str) -> None:
        """Post, and wait for all."""
        self.qp.post_send(wrs)
        until, wanted = time.monotonic() + LIMIT, self.completed + len(wrs)
        while self.completed < wanted:
            self.pump(until, what)

    # -- of talk.End

    async def send(self, data: bytes) -> None:
        self.own.buf[_SEND : _SEND + len(data)] = data
        self.run([self.wr(WROpcode.SEND, _SEND, len(data))], "SEND")

    async def recv(self) -> bytes | None:
        until = time.monotonic() + LIMIT
        while not self.received:
            self.pump(until, "receive")
        slot, length = self.received.popleft()
        data = bytes(self.own.buf[slot * SIZE : slot * SIZE + length])
        self.receive(slot)
        return data

    async def give(self) -> memoryview:
        return self.given.buf

    async def take(self) -> None:
        """It came with the connection."""

    def wr(self, opcode: WROpcode, at: int, length: int, to: int = 0, **more: Any) -> SendWR:
        addr, rkey = self.there
        piece = [SGE(self.own, at, length)]
        return SendWR(RECEIVES, opcode, SendFlags.SIGNALED, piece, addr + to, rkey, **more)

    async def write(self, pieces: list[tuple[bytes, int]]) -> None:
        wrs = []
        for number, (data, to) in enumerate(pieces):
            at = _AREA + number * SLOT
            self.own.buf[at : at + len(data)] = data
            wrs.append(self.wr(WROpcode.RDMA_WRITE, at, len(data), to))
        self.run(wrs, "WRITE")

    async def read(self, length: int, at: int) -> bytes:
        self.run([self.wr(WROpcode.RDMA_READ, _AREA, length, at)], "READ")
        return bytes(self.own.buf[_AREA : _AREA + length])

    async def fetch_add(self, n: int) -> int:
        self.run([self.wr(WROpcode.ATOMIC_FETCH_AND_ADD, _RESULT, 8, compare_add=n)], "FETCH_AND_ADD")
        return self.result()

    async def compare_swap(self, compare: int, swap: int) -> int:
        more = {"compare_add": compare, "swap": swap}
        self.run([self.wr(WROpcode.ATOMIC_CMP_AND_SWP, _RESULT, 8, **more)], "CMP_AND_SWP")
        return self.result()

    def result(self) -> int:
        return int.from_bytes(self.own.buf[_RESULT : _RESULT + 8], "little")


class BareEnd(VerbsEnd):
    """Connected over a socket, without a connection manager; the socket's end is the peer's."""

    def __init__(self, way: socket.socket, dice: random.Random, stack: ExitStack) -> None:
        super().__init__(dice, stack)
        self.way = way
        way.settimeout(LIMIT)
        self.equip(stack.enter_context(rnic.open_device("roce_lo")))
        qp = stack.enter_context(self.pd.create_qp(rnic.QPInitAttr(self.cq, self.cq, cap=CAP)))
        own = prepare(qp)
        self.begin(qp)
        connect_through(qp, way, own=own)
        way.sendall(self.remote())
        self.know(exactly(way, REMOTE))

    def others(self) -> list[int]:
        return [self.way.fileno()]

    def gone(self) -> bool:
        return True  # nothing is said there any more


class CmEnd(VerbsEnd):
    """Connected by RDMA-CM."""

    def __init__(self, cm_id: CmId, dice: random.Random, stack: ExitStack) -> None:
        super().__init__(dice, stack)
        self.id = cm_id
        context = cm_id.verbs
        assert context is not None
        self.equip(context)
        self.stack.callback(self.id.destroy_qp)
        qp = cm_id.create_qp(self.pd, rnic.QPInitAttr(self.cq, self.cq, cap=CAP))
        remote = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
        init = rnic.QPState.INIT
        qp.modify(rnic.QPAttr(qp_state=init, pkey_index=0, port_num=1, qp_access_flags=remote))
        self.begin(qp)

    def others(self) -> list[int]:
        return [self.id.channel.fileno()]

    def gone(self) -> bool:
        try:
            with self.id.channel.get_cm_event(0) as event:
                return event.event is not EventType.ESTABLISHED
        except TimeoutError:
            return False


def next_event(channel: EventChannel, *wanted: EventType) -> Event:
    """Acknowledged; BrokenEnd when it is another one."""
    try:
        event = channel.get_cm_event(LIMIT)
    except TimeoutError:
        raise Hangs(f"RDMA-CM: {wanted[0].name}: not within {LIMIT} s") from None
    with event:
        if event.event not in wanted:
            raise BrokenEnd(event.event.name)
        return event


def exactly(way: socket.socket, n: int) -> bytes:
    """So many bytes of a stream."""
    data = b""
    while len(data) < n:
        part = way.recv(n - len(data))
        if not part:
            raise BrokenEnd("peer gone before it was connected")
        data += part
    return data
