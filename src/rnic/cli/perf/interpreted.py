# SPDX-License-Identifier: Apache-2.0
"""The measuring loops by the Python API, as a program writes them: chains, and work requests used again.

Same face and same results as the compiled ones (PerfEnd).
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict
from time import perf_counter_ns
from typing import Any

import rnic
from rnic.cli.endpoint import EMPTY_POLLS
from rnic.cli.perf.line import Line
from rnic.cli.perf.samples import Samples

RECEIVE = 1 << 63  # in wr_id; otherwise the operations that the completion stands for, above the
COUNT_SHIFT = 32  # index of the queue pair
INDEX = (1 << COUNT_SHIFT) - 1
BATCH = 32
SIGNAL_EVERY = 32  # of a ping-pong
WINDOW = 10_000_000  # ns over which a peak is taken
MEMORY_LOOKS = 16  # at the target's byte for each poll
LOOK_OPERATIONS = 1024
SLEEP = 0.25
FETCHES = (
    rnic.WROpcode.RDMA_READ,
    rnic.WROpcode.ATOMIC_FETCH_AND_ADD,
    rnic.WROpcode.ATOMIC_CMP_AND_SWP,
)
Plan = dict[str, int]


class HeardError(Exception):
    """The line spoke: the loop is over."""


class Wait:
    """Looks at the line and the clock now and then, in a wait in which nothing completes."""

    def __init__(self, loops: PythonEnd) -> None:
        self.loops = loops
        self.empty = 0
        self.since = 0

    def idle(self) -> None:
        """After a poll that found nothing."""
        if self.loops.channel is not None:
            self._sleep(self.loops.channel)
            return
        self.empty += 1
        if self.empty % self.loops.yield_polls == 0:
            os.sched_yield()
        if self.empty % EMPTY_POLLS == 0:
            self.look()

    def look(self) -> None:
        """Whether it is time to end."""
        self.loops.listen()
        now = perf_counter_ns()
        self.since = self.since or now
        if now - self.since > self.loops.quiet * 1e9:
            raise TimeoutError("nothing completed in time")

    def _sleep(self, channel: rnic.CompChannel) -> None:
        loops = self.loops
        if not loops.armed:
            loops.cq.req_notify()
            loops.armed = True  # and poll once more
            return
        fds = [channel.fileno()] if loops.both_ways else [channel.fileno(), loops.line.fileno()]
        select.select(fds, [], [], SLEEP)
        try:
            channel.get_cq_event(timeout=0)
        except TimeoutError:
            self.look()
            return
        loops.armed = False
        loops.cq.ack_events(1)


class PythonEnd:
    """The loops; for the arguments see PerfEnd."""

    STREAM, SINK, LATENCY, PINGPONG, MEMORY = range(5)

    def __init__(
        self,
        qps: Sequence[rnic.QP],
        cq: rnic.CQ,
        channel: rnic.CompChannel | None,
        mr: rnic.MR,
        line: Line,
        room: int,
        remote: tuple[int, int],
        *,
        depth: int,
        rx_depth: int,
        yield_polls: int,
        quiet: float,
    ) -> None:
        self.qps, self.cq, self.channel, self.mr, self.line = list(qps), cq, channel, mr, line
        self.room, self.remote, self.depth, self.rx_depth = room, remote, depth, rx_depth
        self.yield_polls, self.quiet = yield_polls, quiet
        self.out = [0] * len(self.qps)  # sends posted, and not known to be done
        self.receives = [0] * len(self.qps)
        self.silent = 0  # messages of a ping-pong since one was signaled
        self.completed = self.received = 0
        self.armed = False
        self.both_ways = False
        self.samples = Samples()
        self.measured = (0, 0, 0.0)
        sge = [rnic.SGE(mr, offset=room, length=room)]
        self.recv_wrs = [
            [rnic.RecvWR(wr_id=RECEIVE | index, sg_list=sge) for _ in range(BATCH)]
            for index in range(len(self.qps))
        ]

    # ------------------------------------------------------------------ the face of PerfEnd

    def fill(self) -> None:
        """Post all the receives that fit."""
        self._refill(1)

    def settle(self) -> None:
        """Events are acknowledged as they come."""

    def result(self) -> tuple[int, int, float]:
        """(operations, ns, peak operations a second)."""
        return self.measured

    def histogram(self) -> dict[str, Any]:
        """The samples' fields."""
        return asdict(self.samples)

    def run(self, plan: Plan) -> bool:
        """Run a loop; whether the line spoke."""
        self.both_ways = bool(plan["both_ways"])
        self.samples, self.measured = Samples(), (0, 0, 0.0)
        loops: list[Callable[[Plan], None]] = [
            self._stream,
            self._sink,
            self._latency,
            self._pingpong,
            self._memory,
        ]
        try:
            loops[plan["loop"]](plan)
        except HeardError:
            return True
        return False

    # ------------------------------------------------------------------ waiting, completions, receives

    def listen(self) -> None:
        """HeardError when the line spoke, ConnectionResetError when it is closed."""
        try:
            byte = self.line.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not byte:
            raise ConnectionResetError("the peer closed the line")
        if not self.both_ways:
            raise HeardError

    def _take(self) -> int:
        found = self.cq.poll(BATCH)
        for wc in found:
            if not wc.ok:
                raise rnic.VerbsError(5, wc.explain(), "poll_cq")
            wr_id = wc.wr_id
            if wr_id & RECEIVE:
                self.receives[wr_id & INDEX] -= 1
                self.received += 1
            else:
                count = wr_id >> COUNT_SHIFT
                self.out[wr_id & INDEX] -= count
                self.completed += count
        return len(found)

    def _refill(self, missing: int) -> None:
        for index, qp in enumerate(self.qps):
            lacks = self.rx_depth - self.receives[index]
            if lacks < missing:
                continue
            while lacks:
                count = min(lacks, BATCH)
                qp.post_recv(self.recv_wrs[index][:count])
                self.receives[index] += count
                lacks -= count

    # ------------------------------------------------------------------ requests

    def _requests(self, plan: Plan, index: int, count: int) -> list[rnic.SendWR]:
        """A chain whose last request is signaled."""
        opcode = rnic.WROpcode(plan["opcode"])
        fetches = opcode in FETCHES
        reads = opcode == rnic.WROpcode.RDMA_READ
        sge = [rnic.SGE(self.mr, offset=self.room if fetches else 0, length=plan["size"])]
        flags = rnic.SendFlags.INLINE if plan["inlined"] else rnic.SendFlags(0)
        addr, rkey = self.remote
        wrs = [
            rnic.SendWR(
                opcode=opcode,
                send_flags=flags,
                sg_list=sge,
                remote_addr=addr if reads else addr + self.room,
                rkey=rkey,
                compare_add=1 if opcode == rnic.WROpcode.ATOMIC_FETCH_AND_ADD else 0,
            )
            for _ in range(count)
        ]
        wrs[-1].send_flags = flags | rnic.SendFlags.SIGNALED
        wrs[-1].wr_id = count << COUNT_SHIFT | index
        return wrs

    # ------------------------------------------------------------------ streams

    def _stream(self, plan: Plan) -> None:
        chains = [self._requests(plan, index, plan["group"]) for index in range(len(self.qps))]
        self._stream_once(plan, chains, plan["warmup"], plan["warmup_ns"])
        self._stream_once(plan, chains, plan["iterations"], plan["ns"])

    def _stream_once(self, plan: Plan, chains: list[list[rnic.SendWR]], iterations: int, ns: int) -> None:
        before, wait, rounds = self.completed, Wait(self), 0
        start = last = mark = perf_counter_ns()
        left = iterations * len(self.qps) if iterations else 1 << 62
        posted = mark_done = 0
        peak = 0.0
        while left or self.completed - before < posted:
            rounds += 1
            for index in range(len(self.qps)):
                while left and self.out[index] + plan["group"] <= self.depth:
                    count = min(left, plan["group"])
                    self._post_group(plan, index, chains[index], count)
                    posted += count
                    left -= count
            if not self._take():
                wait.idle()
                continue
            if wait.empty or wait.since:
                wait = Wait(self)
            elif rounds % LOOK_OPERATIONS == 0:
                self.listen()
            last = perf_counter_ns()
            if not iterations and last - start >= ns:
                left = 0
            if last - mark >= WINDOW:
                done = self.completed - before
                peak = max(peak, (done - mark_done) * 1e9 / (last - mark))
                mark, mark_done = last, done
            if self.both_ways:
                self._refill(BATCH // 2)
        self.measured = posted, last - start, peak

    def _post_group(self, plan: Plan, index: int, chain: list[rnic.SendWR], count: int) -> None:
        """The last `count` of the chain: at once, or one by one."""
        part = chain if count == len(chain) else chain[-count:]
        chain[-1].wr_id = count << COUNT_SHIFT | index
        self.out[index] += count
        if plan["chained"]:
            self.qps[index].post_send(part)
            return
        post = self.qps[index].post_send
        for wr in part:
            post(wr)

    def _sink(self, plan: Plan) -> None:
        del plan
        wait, rounds = Wait(self), 0
        while True:
            rounds += 1
            if not self._take():
                wait.idle()
                continue
            wait = Wait(self)
            self._refill(BATCH // 2)
            if rounds % LOOK_OPERATIONS == 0:
                self.listen()

    # ------------------------------------------------------------------ latencies

    def _course(self, plan: Plan) -> Callable[[int, int], bool]:
        """What is told (before, after) of each operation, and says when there are enough."""
        begun, count, start = perf_counter_ns(), 0, 0

        def enough(before: int, after: int) -> bool:
            nonlocal count, start
            count += 1
            if count % LOOK_OPERATIONS == 0:
                self.listen()
            if not start:
                if count >= plan["warmup"] if plan["warmup"] else after - begun >= plan["warmup_ns"]:
                    start = after
                return False
            self.samples.add(after - before)
            self.measured = self.samples.count, after - start, 0.0
            if plan["iterations"]:
                return self.samples.count >= plan["iterations"]
            return after - start >= plan["ns"]

        return enough

    def _latency(self, plan: Plan) -> None:
        (wr,) = self._requests(plan, 0, 1)
        enough, post = self._course(plan), self.qps[0].post_send
        over = False
        while not over:
            target, before = self.completed + 1, perf_counter_ns()
            self.out[0] += 1
            post(wr)
            wait = Wait(self)
            while self.completed < target:
                if not self._take():
                    wait.idle()
            over = enough(before, perf_counter_ns())

    def _pingpong(self, plan: Plan) -> None:
        before = self.received

        def arrived(number: int) -> None:
            wait = Wait(self)
            while self.received < before + number:
                if not self._take():
                    wait.idle()

        self._bounce(plan, arrived)

    def _memory(self, plan: Plan) -> None:
        with memoryview(self.mr.buf) as view:
            place = self.room + plan["size"] - 1

            def arrived(number: int) -> None:
                wait, looks = Wait(self), 0
                while view[place] != number & 0xFF:
                    looks += 1
                    if looks % MEMORY_LOOKS == 0:
                        self._take()
                        wait.idle()

            self._bounce(plan, arrived)

    def _bounce(self, plan: Plan, arrived: Callable[[int], None]) -> None:
        (wr,) = self._requests(plan, 0, 1)
        signaled = wr.send_flags
        silent = signaled & ~rnic.SendFlags.SIGNALED
        enough, post, number = self._course(plan), self.qps[0].post_send, 0
        with memoryview(self.mr.buf) as view:
            while True:
                number += 1
                began = perf_counter_ns()
                if plan["serving"]:
                    arrived(number)
                view[plan["size"] - 1] = number & 0xFF
                self._count_message(wr, signaled, silent)
                post(wr)
                if not plan["serving"]:
                    arrived(number)
                    if enough(began, perf_counter_ns()):
                        return
                self._refill(max(1, self.rx_depth // 2))

    def _count_message(self, wr: rnic.SendWR, signaled: rnic.SendFlags, silent: rnic.SendFlags) -> None:
        """Now and then a message is signaled, for the send queue's sake."""
        wait = Wait(self)
        while self.out[0] >= self.depth:
            if not self._take():
                wait.idle()
        self.out[0] += 1
        self.silent += 1
        if self.silent >= SIGNAL_EVERY:
            wr.send_flags, wr.wr_id = signaled, self.silent << COUNT_SHIFT
            self.silent = 0
        elif self.silent == 1:
            wr.send_flags = silent
