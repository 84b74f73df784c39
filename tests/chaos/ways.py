# SPDX-License-Identifier: Apache-2.0
"""Four ways to another process: each has a server, and calls."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from typing import Any, Protocol

import rnic
from chaos.ends import LIMIT, AioEnd, BareEnd, BrokenEnd, CmEnd, SyncEnd, next_event, within
from chaos.payload import compare
from chaos.talk import Caller, Host, Tally, without_waiting
from rnic.rdmacm import CmId, ConnParam, Event, EventChannel, EventType, create_id

HOST = "127.0.0.1"
ROUNDS = 40  # of a conversation, at most
Address = Any  # a port, or the name of a socket


class Node(Protocol):
    """What the ways have in common: the process."""

    who: int
    tally: Tally
    ending: threading.Event

    def ended(self, what: str, error: BaseException | None) -> None:
        """A conversation has, by an error or in order."""


class Graves:
    """Memory of connections that have ended: nobody writes there any more."""

    def __init__(self) -> None:
        self._all: deque[tuple[bytearray | memoryview, bytes]] = deque()

    def bury(self, memory: bytearray | memoryview) -> None:
        self._all.append((memory, bytes(memory)))
        if len(self._all) > 16:
            self.look()

    def look(self) -> None:
        while self._all:
            memory, was = self._all.popleft()
            compare(bytes(memory), was, "memory of a connection that has ended")


class Way:
    """Conversations in threads; subclasses say how a process is reached."""

    name = ""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.graves = Graves()
        self._threads: list[threading.Thread] = []

    def start(self) -> Address:
        """Serve; where."""
        raise NotImplementedError

    async def call(self, address: Address, dice: random.Random) -> None:
        """A conversation, to its end."""
        await asyncio.to_thread(self.guarded, f"{self.name} caller", self.converse, address, dice)

    def converse(self, address: Address, dice: random.Random) -> None:
        raise NotImplementedError

    def guarded(self, what: str, work: Callable[..., None], *args: Any) -> None:
        """Run, and tell how it ended."""
        error: BaseException | None = None
        try:
            work(*args)
        except BaseException as caught:
            error = caught
        self.node.ended(what, error)
        if error is not None:
            error.__traceback__ = None  # which holds the connection

    def thread(self, what: str, work: Callable[..., None], *args: Any) -> None:
        """Run beside all else."""
        self._threads = [one for one in self._threads if one.is_alive()]
        thread = threading.Thread(target=self.guarded, args=(what, work, *args), name=what, daemon=True)
        thread.start()
        self._threads.append(thread)

    async def finish(self) -> list[str]:
        """Wait for all conversations; what does not end."""
        return await asyncio.to_thread(self.stop)

    def stop(self) -> list[str]:
        """As finish(), for the threads, also those that a server begins meanwhile."""
        late: list[threading.Thread] = []
        while waiting := [one for one in self._threads if one.is_alive() and one not in late]:
            waiting[0].join(LIMIT)
            if waiting[0].is_alive():
                late.append(waiting[0])
        self.graves.look()
        return [thread.name for thread in late]

    def close(self) -> None:
        """From now on nobody is served."""


class SyncWay(Way):
    """rnic.connect and rnic.listen."""

    name = "connect"

    def start(self) -> int:
        self.listener = rnic.listen(HOST, 0)
        self.thread("connect server", self.listener.serve, self.serve)
        return self.listener.port

    def serve(self, conn: rnic.Connection) -> None:
        self.guarded("connect host", self._serve, conn)

    def _serve(self, conn: rnic.Connection) -> None:
        end = SyncEnd(conn)
        host = Host(end, self.node.who, self.node.tally)
        try:
            without_waiting(host.talk())
            without_waiting(end.recv())  # the goodbye
            conn.close(LIMIT)
        except BaseException:
            conn.abort()
            raise
        finally:
            host.after()
            self.graves.bury(end.memory)

    def converse(self, address: int, dice: random.Random) -> None:
        conn = rnic.connect(HOST, address, timeout=LIMIT)
        caller = Caller(SyncEnd(conn), self.node.who, dice, self.node.tally)
        try:
            without_waiting(caller.talk(dice.randint(1, ROUNDS)))
            if dice.random() < 0.2:  # dropped: the collector gives everything back
                return
            without_waiting(caller.bye())
            conn.close(LIMIT)
        except BaseException:
            conn.abort()
            raise

    def close(self) -> None:
        self.listener.close()


class AioWay(Way):
    """rnic.aio, in the loop of the process."""

    name = "aio"

    def start(self) -> int:
        self.listener = rnic.aio.listen(HOST, 0)
        server = self.listener.serve(self.serve)
        self.serving = asyncio.create_task(self.told("aio server", server))
        return self.listener.port

    async def told(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Wait, and tell how it ended."""
        error: Exception | None = None
        try:
            await work
        except Exception as caught:
            error = caught
        self.node.ended(what, error)

    async def serve(self, conn: rnic.aio.Connection) -> None:
        await self.told("aio host", self._serve(conn))

    async def _serve(self, conn: rnic.aio.Connection) -> None:
        end = AioEnd(conn)
        host = Host(end, self.node.who, self.node.tally)
        try:
            await host.talk()
            await end.recv()  # the goodbye
            await conn.close(LIMIT)
        except BaseException:
            await conn.abort()
            raise
        finally:
            host.after()
            self.graves.bury(end.memory)

    async def call(self, address: int, dice: random.Random) -> None:
        await self.told("aio caller", self._call(address, dice))

    async def _call(self, address: int, dice: random.Random) -> None:
        conn = await within(rnic.aio.connect(HOST, address, timeout=None), "rnic.aio: connect")
        caller = Caller(AioEnd(conn), self.node.who, dice, self.node.tally)
        try:
            await caller.talk(dice.randint(1, ROUNDS))
            if dice.random() < 0.2:
                return
            await caller.bye()
            await conn.close(LIMIT)
        except BaseException:
            await conn.abort()
            raise

    def close(self) -> None:
        self.listener.close()

    async def finish(self) -> list[str]:
        _, late = await asyncio.wait([self.serving], timeout=LIMIT)
        return [*(["aio server"] if late else []), *await super().finish()]


class VerbsWay(Way):
    """Queue pairs."""

    def begin(self, what: str, forget: Callable[[], None], work: Callable[..., None], *args: Any) -> None:
        """A thread; the caller is let go of when there can be none."""
        try:
            self.thread(what, work, *args)
        except (RuntimeError, MemoryError) as error:
            self.node.ended(what, error)
            forget()

    def host(self, end: CmEnd | BareEnd) -> None:
        host = Host(end, self.node.who, self.node.tally)
        try:
            without_waiting(host.talk())
            with suppress(BrokenEnd):  # until the caller has its answer, and goes
                without_waiting(end.recv())
        finally:
            host.after()
            host.memory = bytearray()

    def caller(self, end: CmEnd | BareEnd, dice: random.Random) -> None:
        caller = Caller(end, self.node.who, dice, self.node.tally)
        without_waiting(caller.talk(dice.randint(1, ROUNDS)))
        if dice.random() < 0.8:
            without_waiting(caller.bye())


class CmWay(VerbsWay):
    """RDMA-CM."""

    name = "rdmacm"

    def start(self) -> int:
        self.channel = EventChannel()
        self.listener = create_id(self.channel)
        self.listener.bind_addr((HOST, 0))
        self.listener.listen()
        self.thread("rdmacm server", self.serve)
        return self.listener.get_src_port()

    def serve(self) -> None:
        with self.channel, self.listener:
            while not self.node.ending.is_set():
                with suppress(TimeoutError), self.channel.get_cm_event(0.2) as event:
                    child, data = event.id, private_data(event)
                    try:
                        own = EventChannel()
                    except OSError as error:  # no descriptor
                        self.node.ended("rdmacm host", error)
                        child.destroy()
                        continue
                    child.migrate_id(own)  # at once: this channel cannot be closed before
                    self.begin("rdmacm host", child.destroy, self.accept, child, own, data)

    def accept(self, child: CmId, channel: EventChannel, remote: bytes) -> None:
        with channel, child, ExitStack() as stack:
            end = CmEnd(child, random.Random(self.node.who), stack)
            end.know(remote)
            child.accept(ConnParam(end.remote()))
            self.host(end)
            child.disconnect()

    def converse(self, address: int, dice: random.Random) -> None:
        with EventChannel() as channel, create_id(channel) as one, ExitStack() as stack:
            one.resolve_addr(None, (HOST, address))
            next_event(channel, EventType.ADDR_RESOLVED)
            one.resolve_route()
            next_event(channel, EventType.ROUTE_RESOLVED)
            end = CmEnd(one, dice, stack)
            one.connect(ConnParam(end.remote()))
            end.know(private_data(next_event(channel, EventType.ESTABLISHED)))
            self.caller(end, dice)
            if dice.random() < 0.5:
                one.disconnect()
                if not end.has_gone:
                    next_event(channel, EventType.DISCONNECTED)


class BareWay(VerbsWay):
    """Verbs alone: two programs that tell each other over a socket where their queue pairs are."""

    name = "verbs"

    def start(self) -> str:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind("")  # a free abstract name
        self.listener.listen(64)
        self.listener.settimeout(0.2)
        self.thread("verbs server", self.serve)
        name: bytes = self.listener.getsockname()
        return name.decode()

    def serve(self) -> None:
        with self.listener:
            while not self.node.ending.is_set():
                try:
                    way, _ = self.listener.accept()
                except TimeoutError:
                    continue
                except OSError as error:  # no descriptor: whoever comes waits, until there is one
                    self.node.ended("verbs server", error)
                    time.sleep(0.05)
                    continue
                self.begin("verbs host", way.close, self.accept, way)

    def accept(self, way: socket.socket) -> None:
        with way, ExitStack() as stack:
            self.host(BareEnd(way, random.Random(self.node.who), stack))

    def converse(self, address: str, dice: random.Random) -> None:
        with socket.socket(socket.AF_UNIX) as way, ExitStack() as stack:
            way.settimeout(LIMIT)
            way.connect(address)
            self.caller(BareEnd(way, dice, stack), dice)


def private_data(event: Event) -> bytes:
    assert isinstance(event.param, ConnParam)
    return event.param.private_data


WAYS: tuple[type[Way], ...] = (AioWay, SyncWay, CmWay, BareWay)
