# SPDX-License-Identifier: Apache-2.0
"""The measuring loops by the Python API, as a program writes them: chains, and work requests used again.

Same face and same results as the compiled ones (PerfEnd).
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import rnic
from rnic.cli.perf.allowance import TOLD, Allowance
from rnic.cli.perf.line import Line
from rnic.cli.perf.moved import packets_moved
from rnic.cli.perf.samples import Samples, cost_of_timestamp
from rnic.records import values

RECEIVE = 1 << 63  # in wr_id; otherwise the operations that the completion stands for, above the
COUNT_SHIFT = 32  # index of the queue pair
INDEX = (1 << COUNT_SHIFT) - 1
BATCH = 32
SIGNAL_EVERY = 32  # of a ping-pong
WINDOW = 10_000_000  # ns over which a peak is taken
MEMORY_LOOKS = 4  # at the target's byte for each poll
LOOK_EVERY = 256  # empty polls, or operations
SLEEP = 0.25
FETCHES = (
    rnic.WROpcode.RDMA_READ,
    rnic.WROpcode.ATOMIC_FETCH_AND_ADD,
    rnic.WROpcode.ATOMIC_CMP_AND_SWP,
)
FOR_EVER = 1 << 62  # operations
Plan = dict[str, int]
Chain = tuple[rnic.SendWR, ...]


class HeardError(Exception):
    """The line spoke: the loop is over."""


class Wait:
    """Looks at the line and the clock now and then, in a wait in which nothing completes."""

    def __init__(self, loops: PythonEnd) -> None:
        self.loops = loops
        self.empty = 0
        self.since = self.moved = 0

    def idle(self) -> None:
        """After a poll that found nothing."""
        if self.loops.channel is not None:
            self._sleep(self.loops.channel)
            return
        self.empty += 1
        if self.empty % self.loops.yield_polls == 0:
            os.sched_yield()
        if self.empty % LOOK_EVERY == 0:
            self.look()

    def look(self) -> None:
        """Whether it is time to end."""
        self.loops.glance()
        now, moved = perf_counter_ns(), packets_moved(self.loops.cq)
        if not self.since or moved != self.moved:
            self.since, self.moved = now, moved
        if now - self.since > self.loops.quiet * 1e9:
            raise TimeoutError("nothing moved in time")

    def _sleep(self, channel: rnic.CompChannel) -> None:
        loops = self.loops
        if not loops.armed:
            loops.cq.req_notify()
            loops.armed = True  # and poll once more
            return
        fds = [channel.fileno()] if loops.defers else [channel.fileno(), loops.line.fileno()]
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
        allowance: int,
    ) -> None:
        self.qps, self.cq, self.channel, self.mr, self.line = list(qps), cq, channel, mr, line
        self.room, self.remote, self.depth, self.rx_depth = room, remote, depth, rx_depth
        self.yield_polls, self.quiet = yield_polls, quiet
        self.out = [0] * len(self.qps)  # sends posted, and not known to be done
        self.receives = [0] * len(self.qps)
        self.allowance = Allowance(self.qps, mr, 2 * room, remote, allowance)
        self.messages = [0] * len(self.qps)  # sent, ever,
        self.taken = [0] * len(self.qps)  # and received
        self.silent = 0  # messages of a ping-pong since one was signaled
        self.completed = self.received = 0
        self.armed = False
        self.both_ways = self.defers = False
        self.tick: Callable[[int], None] | None = None
        self.stamp_ns = cost_of_timestamp()
        self.samples = Samples()
        self.measured = (0, 0, 0.0)
        sge = [rnic.SGE(mr, offset=room, length=room)]
        self.recv_wrs = [
            tuple(rnic.RecvWR(wr_id=RECEIVE | index, sg_list=sge) for _ in range(BATCH))
            for index in range(len(self.qps))
        ]

    # ------------------------------------------------------------------ the face of PerfEnd

    def fill(self) -> None:
        """Post all the receives that fit."""
        self.refill(1)

    def settle(self) -> None:
        """Events are acknowledged as they come."""

    def result(self) -> tuple[int, int, float]:
        """(operations, ns, peak operations a second)."""
        return self.measured

    def histogram(self) -> dict[str, Any]:
        """The samples' fields."""
        return values(self.samples)

    def run(self, plan: Plan) -> bool:
        """Run a loop; whether the line spoke."""
        self.both_ways = bool(plan["both_ways"])
        self.defers = self.both_ways and bool(plan["serving"])
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

    def glance(self) -> None:
        """HeardError when the line spoke or ended; ConnectionResetError where it must not be read yet."""
        if self.tick is not None:
            self.tick(self.measured[0])
        if not self.line.has_news():
            return
        if not self.defers:
            raise HeardError
        if self.line.has_ended():
            raise ConnectionResetError("the peer closed the line")

    def take(self) -> int:
        """How many completions there were."""
        found = self.cq.poll(BATCH)
        for wc in found:
            if not wc.ok:
                raise rnic.VerbsError(5, wc.explain(), "poll_cq")
            wr_id = wc.wr_id
            if wr_id & RECEIVE:
                self.receives[wr_id & INDEX] -= 1
                self.taken[wr_id & INDEX] += 1
                self.received += 1
            elif wr_id & TOLD:
                self.allowance.telling[wr_id & INDEX] = False
            else:
                count = wr_id >> COUNT_SHIFT
                self.out[wr_id & INDEX] -= count
                self.completed += count
        return len(found)

    def refill(self, missing: int) -> None:
        """Post receives where `missing` or more have been taken."""
        for index in range(len(self.qps)):
            lacks = self.rx_depth - self.receives[index]
            if lacks >= missing:
                self._post_receives(index, lacks)
            again = self.taken[index] - (self.rx_depth - self.receives[index])
            self.allowance.tell(index, again, self.rx_depth // 4)

    def _post_receives(self, index: int, lacks: int) -> None:
        while lacks:
            count = min(lacks, BATCH)
            self.qps[index].post_recv(self.recv_wrs[index][:count])  # of a whole tuple that is the tuple
            self.receives[index] += count
            lacks -= count

    # ------------------------------------------------------------------ requests

    def _requests(self, plan: Plan, index: int, count: int) -> tuple[rnic.SendWR, ...]:
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
        return tuple(wrs)

    # ------------------------------------------------------------------ streams

    def _stream(self, plan: Plan) -> None:
        chains = [self._requests(plan, index, plan["group"]) for index in range(len(self.qps))]
        Stream(self, plan, chains).run(0, plan["warmup_ns"])
        self.measured = Stream(self, plan, chains, measured=True).run(plan["iterations"], plan["ns"])

    def has_room(self, index: int, group: int) -> bool:
        """For so many more, here and at the peer."""
        here = self.out[index] + group <= self.depth
        return here and self.allowance.permits(index, self.messages[index] + group)

    def post_group(self, plan: Plan, index: int, chain: Chain, count: int) -> None:
        """The last `count` of the chain: at once, or one by one."""
        part = chain[-count:]
        chain[-1].wr_id = count << COUNT_SHIFT | index
        self.out[index] += count
        self.messages[index] += count
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
            if not self.take():
                wait.idle()
                continue
            wait = Wait(self)
            self.refill(BATCH // 2)
            if rounds % LOOK_EVERY == 0:
                self.glance()

    # ------------------------------------------------------------------ latencies

    def _latency(self, plan: Plan) -> None:
        (wr,) = self._requests(plan, 0, 1)
        course, post = Course(self, plan), self.qps[0].post_send
        over = False
        while not over:
            target = self.completed + 1
            self.out[0] += 1
            post(wr)
            wait = Wait(self)
            while self.completed < target:
                if not self.take():
                    wait.idle()
            over = course.is_over()

    def _pingpong(self, plan: Plan) -> None:
        before = self.received

        def arrived(number: int) -> None:
            wait = Wait(self)
            while self.received < before + number:
                if not self.take():
                    wait.idle()

        self._bounce(plan, arrived)

    def _memory(self, plan: Plan) -> None:
        with memoryview(self.mr.buf) as view:
            place = self.room + plan["size"] - 1

            def arrived(number: int) -> None:
                wait, looks, value = Wait(self), 0, number & 0xFF
                while view[place] != value:
                    looks += 1
                    if looks % MEMORY_LOOKS == 0:
                        self.take()
                        wait.idle()

            self._bounce(plan, arrived)

    def _bounce(self, plan: Plan, arrived: Callable[[int], None]) -> None:
        """As the client: a message, then the answer; as the server the other way round."""
        number = 0
        with memoryview(self.mr.buf) as view:
            send = self._sender(plan, view)
            if plan["serving"]:
                while True:
                    number += 1
                    arrived(number)
                    send(number)
                    if number % LOOK_EVERY == 0:
                        self.glance()
            course, over = Course(self, plan), False
            while not over:
                number += 1
                send(number)
                arrived(number)
                over = course.is_over()

    def _sender(self, plan: Plan, view: memoryview) -> Callable[[int], None]:
        """What sends message `number`, and posts receives while it is on its way."""
        (wr,) = self._requests(plan, 0, 1)
        signaled, place, post = wr.send_flags, plan["size"] - 1, self.qps[0].post_send
        wr.send_flags = silent = signaled & ~rnic.SendFlags.SIGNALED  # the run before has left self.silent

        def send(number: int) -> None:
            view[place] = number & 0xFF
            self._count_message(wr, signaled, silent)
            post(wr)
            if self.rx_depth:
                self.refill(1)

        return send

    def _count_message(self, wr: rnic.SendWR, signaled: rnic.SendFlags, silent: rnic.SendFlags) -> None:
        """Now and then a message is signaled, for the send queue's sake."""
        wait = Wait(self)
        while self.out[0] >= self.depth:
            if not self.take():
                wait.idle()
        self.out[0] += 1
        self.silent += 1
        if self.silent >= SIGNAL_EVERY or self.out[0] >= self.depth:
            wr.send_flags, wr.wr_id = signaled, self.silent << COUNT_SHIFT
            self.silent = 0
        elif self.silent == 1:
            wr.send_flags = silent


class Stream:
    """As many operations on their way as fit, on all queue pairs."""

    def __init__(self, loops: PythonEnd, plan: Plan, chains: list[Chain], *, measured: bool = False) -> None:
        self.loops, self.plan, self.chains, self.measured = loops, plan, chains, measured
        self.before = loops.completed
        self.left = self.posted = 0
        self.start = self.last = self.mark = perf_counter_ns()
        self.mark_done = 0
        self.peak = 0.0

    def run(self, iterations: int, ns: int) -> tuple[int, int, float]:
        """For so many operations of each queue pair, or so long; what PerfEnd.result() says of it."""
        loops, wait, rounds = self.loops, Wait(self.loops), 0
        self.left = iterations * len(self.chains) if iterations else FOR_EVER
        while self.left or loops.completed - self.before < self.posted:
            rounds += 1
            self._post()
            if not loops.take():
                wait.idle()
                continue
            if wait.empty or wait.since:
                wait = Wait(loops)
            if rounds % LOOK_EVERY == 0:
                loops.glance()
            self._completed()
            if not iterations and self.last - self.start >= ns:
                self.left = 0
            if loops.both_ways:
                loops.refill(BATCH // 2)
        return self.posted, self.last - self.start, self.peak

    def _post(self) -> None:
        loops, group = self.loops, self.plan["group"]
        for index, chain in enumerate(self.chains):
            while self.left and loops.has_room(index, group):
                count = min(self.left, group)
                loops.post_group(self.plan, index, chain, count)
                self.posted += count
                self.left -= count

    def _completed(self) -> None:
        self.last = perf_counter_ns()
        done = self.loops.completed - self.before
        if self.measured:
            self.loops.measured = done, self.last - self.start, self.peak
        if self.last - self.mark >= WINDOW:
            self.peak = max(self.peak, (done - self.mark_done) * 1e9 / (self.last - self.mark))
            self.mark, self.mark_done = self.last, done


class Course:
    """Which operations of a latency are measured, and when there are enough; see struct course of perf.c."""

    def __init__(self, loops: PythonEnd, plan: Plan) -> None:
        self.loops, self.plan = loops, plan
        self.count = self.start = 0
        self.begun = self.last = perf_counter_ns()

    def is_over(self) -> bool:
        """An operation has ended: that was the last?"""
        now = perf_counter_ns()
        self.count += 1
        over = self._measure(self.last, now)
        self.last = now
        if self.count % LOOK_EVERY == 0:
            self.loops.glance()
            self.last = perf_counter_ns()  # a glance is in no sample
        return over

    def _measure(self, before: int, now: int) -> bool:
        loops, plan = self.loops, self.plan
        if not self.start:
            if now - self.begun >= plan["warmup_ns"]:
                self.start = now
            return False
        samples = loops.samples
        samples.add(now - before)
        loops.measured = samples.count, now - self.start, 0.0
        if plan["iterations"]:
            return samples.count >= plan["iterations"]
        return now - self.start >= plan["ns"]
