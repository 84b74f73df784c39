# SPDX-License-Identifier: Apache-2.0
"""Many connections between two processes: alive at once, and one after the other.

    PYTHONPATH=tests python -m rdmacm.load alive --count 1000
    PYTHONPATH=tests python -m rdmacm.load cycles --count 10000 --window 32

Both ends are driven by events alone, so that `window` connections can be under way at the same time. Figures
are printed, one line each; what has to hold is asserted.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rdmacm.ends import WAIT, Other, descriptors, other
from rnic import (
    CQ,
    MR,
    PD,
    SGE,
    AccessFlags,
    Faults,
    QPInitAttr,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    VerbsError,
    WROpcode,
)
from rnic.rdmacm import CmId, Event, EventChannel, EventType, Timing, create_id
from rnic.rdmacm.ibcm.manager import IbService
from rnic.rdmacm.iwcm.manager import IwService
from rnic.rdmacm.registry import registry
from rnic.rdmacm.service import ConnectionService
from rnic.verbs.qp import QPCap
from waiting import until

HOST = "127.0.0.1"
SHORT = Timing(response_timeout=20, max_cm_retries=15, packet_life_time=10)  # TIMEWAIT is over after 8 ms
MESSAGE = 64
FAILED = (EventType.UNREACHABLE, EventType.REJECTED)  # what becomes of a handshake that loses too much
COMPLETIONS = 8192


@dataclass(frozen=True)
class Held:
    """What a process holds: leaks show in it."""

    rss_kib: int
    descriptors: int
    threads: int
    exchanges: int
    timers: int
    ids: int
    resent: int  # CM messages
    lost: int  # on their way to the process that they are for

    def __str__(self) -> str:
        return (
            f"{self.rss_kib / 1024:.1f} MiB, {self.descriptors} descriptors, {self.threads} threads, "
            f"{self.exchanges} exchanges, {self.timers} timers, {self.ids} ids, "
            f"{self.resent} sent again, {self.lost} lost"
        )


def timers_of(service: ConnectionService) -> int:
    if isinstance(service, IwService):
        return len(service.timers)
    assert isinstance(service, IbService)
    return len(service.cm._timers)


def held() -> Held:
    """What is in use: what malloc has taken for its busiest moment and holds free is given back first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    with registry.lock:
        agents = registry.agents()
        return Held(
            rss_kib=pages * resource.getpagesize() // 1024,
            descriptors=descriptors(),
            threads=threading.active_count(),
            exchanges=sum(one.service.statistics().exchanges for one in agents),
            timers=sum(timers_of(one.service) for one in agents),
            ids=sum(len(one.ids) for one in agents),
            resent=sum(one.service.statistics().resent for one in agents),
            lost=sum(one.context.counters().drop_slot_full for one in agents),
        )


def held_again(before: Held | None) -> Held:
    """What is held when it is no more than before: sockets of iWARP wait a moment until the peer closes."""
    if before is not None:
        with suppress(AssertionError):
            until(lambda: descriptors() <= before.descriptors, "the sockets are closed")
    return held()


class Shared:
    """What all queue pairs of a process share: a protection domain, a completion queue, one region."""

    def __init__(self, one: CmId, slots: int) -> None:
        context = one.verbs
        assert context is not None
        with ExitStack() as stack:
            self.pd: PD = stack.enter_context(context.alloc_pd())
            self.cq: CQ = stack.enter_context(context.create_cq(COMPLETIONS))
            self.memory = bytearray(slots * MESSAGE)
            self.mr: MR = stack.enter_context(self.pd.reg_mr(self.memory, AccessFlags.LOCAL_WRITE))
            self._stack = stack.pop_all()

    def equip(self, one: CmId, slot: int) -> None:
        """A queue pair, with a receive."""
        qp = one.create_qp(self.pd, QPInitAttr(self.cq, self.cq, QPType.RC, cap=QPCap(2, 2, 1, 1)))
        qp.post_recv(RecvWR(slot, [self.sge(slot)]))

    def sge(self, slot: int) -> SGE:
        return SGE(self.mr, slot * MESSAGE, MESSAGE)

    def send(self, one: CmId, slot: int) -> None:
        assert one.qp is not None
        one.qp.post_send(SendWR(slot, WROpcode.SEND, SendFlags.SIGNALED, [self.sge(slot)]))

    def close(self) -> None:
        self._stack.close()


def lose(one: CmId, loss: float) -> None:
    """So many of the packets that this process sends."""
    assert one.verbs is not None
    one.verbs.set_faults(Faults(seed=20, loss=loss))


def message(number: int) -> bytes:
    return number.to_bytes(8, "big") * (MESSAGE // 8)


# ------------------------------------------------------------------ the listening process


class Server:
    """Accepts whoever comes, echoes a message, lets go of whoever leaves."""

    def __init__(self, way: Connection, slots: int, loss: float) -> None:
        self.way = way
        self.loss = loss
        self.channel = EventChannel()
        self.listener = create_id(self.channel, timing=SHORT)
        self.listener.bind_addr((HOST, 0))
        self.listener.listen(1 << 16)
        self.shared = Shared(self.listener, slots)
        lose(self.listener, loss)
        self.free = list(range(slots))
        self.by_slot: dict[int, CmId] = {}
        way.send(self.listener.get_src_port())

    def run(self) -> None:
        while True:
            if self.way.poll(0):
                what = self.way.recv()
                if what == "stop":
                    return
                self.way.send(held())
            try:
                event = self.channel.get_cm_event(0.0 if self.echo() else 0.001)
            except TimeoutError:
                continue
            with event:
                kind, one = event.event, event.id
            self.on(kind, one)

    def on(self, kind: EventType, one: CmId) -> None:
        if kind is EventType.CONNECT_REQUEST:
            one.context = self.free.pop()
            self.by_slot[one.context] = one
            with suppress(VerbsError) if self.loss else nullcontext():  # it may have given up
                self.shared.equip(one, one.context)
                one.accept()
        elif kind is EventType.DISCONNECTED or (self.loss and kind in FAILED):
            if kind is EventType.DISCONNECTED:
                one.disconnect()
            slot: Any = one.context
            del self.by_slot[slot]
            self.free.append(slot)
            one.destroy()
        elif kind is not EventType.ESTABLISHED:
            raise AssertionError(f"{kind.name}: {one!r}")

    def echo(self) -> bool:
        found = self.shared.cq.poll(256)
        for wc in found:
            one = self.by_slot.get(wc.wr_id)
            if wc.ok and wc.opcode.name == "RECV" and one is not None:
                self.shared.send(one, wc.wr_id)
        return bool(found)


def serve(way: Connection, slots: int, loss: float = 0.0) -> None:
    server = Server(way, slots, loss)
    server.run()
    for one in list(server.by_slot.values()):
        one.destroy()
    server.listener.destroy()
    server.shared.close()
    way.send("done")


# ------------------------------------------------------------------ the calling process


class Caller:
    """Opens connections, `window` at a time; what to do with one that is established, the caller says."""

    def __init__(self, port: int, window: int, timing: Timing = SHORT) -> None:
        self.port = port
        self.timing = timing
        self.window = window
        self.channel = EventChannel()
        self.anchor = create_id(timing=SHORT)  # keeps the device open
        self.anchor.bind_addr((HOST, 0))
        self.shared = Shared(self.anchor, window)
        self.free = list(range(window))
        self.begun = self.ended = 0
        self.may_fail = False
        self.failed: Counter[EventType] = Counter()
        self.slots_began: dict[int, float] = {}  # when connect() was called
        self.slowest = 0.0  # seconds from there to what became of it
        self.numbers: set[int] = set()
        self.on_established: Callable[[CmId], None] = CmId.disconnect

    def begin(self) -> None:
        self.begun += 1
        one = create_id(self.channel, timing=self.timing, context=self.free.pop())
        one.resolve_addr(None, (HOST, self.port))

    def next_event(self) -> Event:
        return self.channel.get_cm_event(WAIT)

    def step(self) -> None:
        with self.next_event() as event:
            kind, one = event.event, event.id
        if kind is EventType.ADDR_RESOLVED:
            one.resolve_route()
        elif kind is EventType.ROUTE_RESOLVED:
            slot: Any = one.context
            self.shared.equip(one, slot)
            assert one.qp is not None
            self.numbers.add(one.qp.qp_num)
            self.slots_began[slot] = time.monotonic()
            one.connect()
        elif kind is EventType.ESTABLISHED:
            self._decided(one)
            self.on_established(one)
        elif kind is EventType.DISCONNECTED:
            self._over(one)
        elif self.may_fail and kind in FAILED:
            self._decided(one)
            self.failed[kind] += 1
            self._over(one)
        else:
            raise AssertionError(f"{kind.name} {event.status}: {one!r}")

    def _decided(self, one: CmId) -> None:
        slot: Any = one.context
        self.slowest = max(self.slowest, time.monotonic() - self.slots_began[slot])

    def _over(self, one: CmId) -> None:
        self.free.append(one.context)  # type: ignore[arg-type] # a slot
        one.destroy()
        self.ended += 1

    def cycle(self, count: int) -> float:
        """Connect and disconnect so often; connections a second."""
        began, until = time.monotonic(), self.ended + count
        left = count
        while self.ended < until:
            while left and self.free:
                self.begin()
                left -= 1
            self.step()
            self.shared.cq.poll(256)
        return count / (time.monotonic() - began)

    def open(self, count: int) -> list[CmId]:
        """So many connections that stay."""
        alive: list[CmId] = []
        self.on_established = alive.append
        for _ in range(count):
            self.begin()
        while len(alive) < count:
            self.step()
        return alive

    def exchange(self, alive: list[CmId]) -> None:
        """A message each way on all of them; they differ."""
        waits = {}
        for one in alive:
            slot: Any = one.context
            at = slot * MESSAGE
            self.shared.memory[at : at + MESSAGE] = waits[slot] = message(slot)
            self.shared.send(one, slot)
        end = time.monotonic() + WAIT
        while waits:
            assert time.monotonic() < end, f"{len(waits)} answers are missing"
            for wc in self.shared.cq.poll(256):
                assert wc.ok, wc.explain()
                if wc.opcode.name == "RECV":
                    at = wc.wr_id * MESSAGE
                    assert self.shared.memory[at : at + MESSAGE] == waits.pop(wc.wr_id)

    def release(self, alive: Sequence[CmId]) -> None:
        """Disconnect, and see all of them go."""
        until = self.ended + len(alive)
        for one in alive:
            one.disconnect()
        while self.ended < until:
            self.step()

    def close(self) -> None:
        self.shared.close()
        self.anchor.destroy()
        self.channel.close()


@dataclass(frozen=True)
class Figures:
    """What was seen: a line for people, and what both processes held then."""

    what: str
    caller: Held
    server: Held

    def __str__(self) -> str:
        return f"{self.what}\n    caller: {self.caller}\n    server: {self.server}"


def ask(peer: Other) -> Held:
    """What the other process holds."""
    peer.way.send("held")
    found: Held = peer.hear()
    return found


def stop(caller: Caller, peer: Other, ids: Sequence[CmId] = ()) -> Figures:
    """Release what is alive; what is held when TIMEWAIT is over."""
    began = time.monotonic()
    caller.release(ids)
    took = time.monotonic() - began
    until(lambda: not held().exchanges and not ask(peer).exchanges, "TIMEWAIT ends")
    until(lambda: ask(peer).ids == 1, "the peer's program has heard of all ends")
    last = Figures(f"{len(ids)} released in {took:.2f} s, TIMEWAIT is over", held(), ask(peer))
    caller.close()
    peer.way.send("stop")
    assert peer.hear() == "done"
    return last


def alive(count: int) -> list[Figures]:
    """So many at once, with a message each way on all of them."""
    with other(serve, count) as peer:
        caller = Caller(peer.hear(), count)
        began = time.monotonic()
        ids = caller.open(count)
        opened = time.monotonic()
        caller.exchange(ids)
        moved = time.monotonic() - opened
        what = f"{count} at once: {count / (opened - began):.0f} a second, data on all in {moved:.2f} s"
        return [Figures(what, held(), ask(peer)), stop(caller, peer, ids)]


def cycles(parts: Sequence[int], window: int) -> list[Figures]:
    """Connect and disconnect, `window` at a time; figures after each part."""
    found = []
    with other(serve, window + 64) as peer:
        caller = Caller(peer.hear(), window)
        for part in parts:
            rate = caller.cycle(part)
            numbers = len(caller.numbers)
            what = f"{caller.ended} cycles, {window} at a time: {rate:.0f} a second, {numbers} QP numbers"
            found.append(Figures(what, held(), ask(peer)))
        return [*found, stop(caller, peer)]


def main(
    text: str | None,
    alive: Callable[[int], list[Figures]],
    cycles: Callable[[list[int], int], list[Figures]],
    window: int,
) -> None:
    """The command line of such a program, with its own `window`."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("what", choices=["alive", "cycles"])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--window", type=int, default=window)
    args = parser.parse_args()
    tenth = args.count // 10
    for one in (
        alive(args.count) if args.what == "alive" else cycles([tenth, args.count - tenth], args.window)
    ):
        print(one)


if __name__ == "__main__":
    main(__doc__, alive, cycles, 32)
