# SPDX-License-Identifier: Apache-2.0
"""Latency and bandwidth between the two processes of `rnic demo`, as a program sees them from Python.

SEND latency is half a round trip of a message that comes back; that of the others is the time from posting to
polling the completion, with the target asleep.  Bandwidth is payload over time with BENCH_DEPTH operations at
once.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter

import rnic
from rnic.cli.params import Failure
from rnic.cli.transfer import BENCH_DEPTH, RECEIVES, REMOTE_ALL, Link
from rnic.records import Record

SIZES = (64 << 10, 1 << 20)
ROUNDS = 1000  # of a latency
SECONDS = 0.4  # that measuring one bandwidth should take
Op = rnic.WROpcode

OPERATIONS = {
    "SEND": Op.SEND,
    "RDMA WRITE": Op.RDMA_WRITE,
    "RDMA READ": Op.RDMA_READ,
    "FETCH_AND_ADD": Op.ATOMIC_FETCH_AND_ADD,
    "CMP_AND_SWP": Op.ATOMIC_CMP_AND_SWP,
}
ATOMICS = (Op.ATOMIC_FETCH_AND_ADD, Op.ATOMIC_CMP_AND_SWP)


class Row(Record):
    """One operation's figures."""

    operation: str
    latency: float  # seconds, the median
    bandwidth: dict[int, float]  # bytes a second for each message size; empty for atomics


def measure(link: Link, stack: ExitStack) -> list[Row]:
    """All figures; the receiver must be serving."""
    sender = Sender(link, stack)
    rows = [sender.row(name, opcode) for name, opcode in OPERATIONS.items()]
    sender.check_atomics()
    link.control.send("end")
    return rows


def calibrated(run: Callable[[int], float], *, least: int, most: int) -> tuple[int, float]:
    """Run as many operations as take about SECONDS, found with a short run first; returns (count,
    seconds).
    """
    trial = max(run(least), 1e-9)
    count = min(most, max(least, int(SECONDS / trial * least)))
    return count, run(count)


class Sender:
    """The end that measures."""

    def __init__(self, link: Link, stack: ExitStack) -> None:
        self.link, self.lane = link, link.data
        self.mr = stack.enter_context(link.pd.alloc_mr(max(SIZES), REMOTE_ALL))
        link.control.send("bench", bytes=max(SIZES))
        self.region = link.control.receive("region")
        self.added = 0  # times 1 was added to the counter at the region's start

    def wr(self, opcode: rnic.WROpcode, size: int) -> rnic.SendWR:
        """A signaled operation of size bytes on the start of both regions."""
        flags = rnic.SendFlags.SIGNALED
        if size <= 64 and opcode in (Op.SEND, Op.RDMA_WRITE):
            flags |= rnic.SendFlags.INLINE
        return rnic.SendWR(
            wr_id=1,
            opcode=opcode,
            send_flags=flags,
            sg_list=[rnic.SGE(self.mr, offset=0, length=size)],
            remote_addr=self.region["addr"],
            rkey=self.region["rkey"],
            compare_add=1 if opcode == Op.ATOMIC_FETCH_AND_ADD else 0,
            swap=0,
        )

    def row(self, name: str, opcode: rnic.WROpcode) -> Row:
        if opcode == Op.SEND:
            return Row(name, self.send_latency(), {size: self.send_bandwidth(size) for size in SIZES})
        latency = self.latency(opcode)
        sizes = () if opcode in ATOMICS else SIZES
        return Row(name, latency, {size: self.bandwidth(opcode, size) for size in sizes})

    def send_latency(self) -> float:
        """Half of the median round trip of a SEND."""
        lane, wr = self.lane, self.wr(Op.SEND, 8)
        receive = rnic.RecvWR(wr_id=2, sg_list=wr.sg_list)
        self.link.control.send("echo", count=ROUNDS)
        self.link.control.receive("ready")
        samples = []
        for _ in range(ROUNDS):
            lane.qp.post_recv(receive)
            began = perf_counter()
            lane.qp.post_send(wr)
            pending = 3
            while pending:
                for wc in lane.spin("waiting for an echo"):
                    pending &= ~wc.wr_id
                    if wc.wr_id == 2:
                        samples.append(perf_counter() - began)
        return statistics.median(samples) / 2

    def latency(self, opcode: rnic.WROpcode) -> float:
        """The median time from posting to the completion."""
        lane, wr, samples = self.lane, self.wr(opcode, 8), []
        if opcode == Op.ATOMIC_FETCH_AND_ADD:
            self.reset_counter()
        for _ in range(ROUNDS):
            began = perf_counter()
            lane.qp.post_send(wr)
            lane.spin(f"waiting for {opcode.name}")
            samples.append(perf_counter() - began)
        self.added += ROUNDS if opcode == Op.ATOMIC_FETCH_AND_ADD else 0
        return statistics.median(samples)

    def bandwidth(self, opcode: rnic.WROpcode, size: int) -> float:
        """Bytes per second."""
        count, seconds = calibrated(lambda count: self.stream(opcode, size, count), least=16, most=1 << 15)
        return count * size / seconds

    def send_bandwidth(self, size: int) -> float:
        """Bytes per second into receives that the other end posts."""

        def run(count: int) -> float:
            self.link.control.send("sink", count=count, size=size)
            self.link.control.receive("ready")
            return self.stream(Op.SEND, size, count)

        most = RECEIVES if self.link.port.is_iwarp else 1 << 15
        count, seconds = calibrated(run, least=16, most=most)
        return count * size / seconds

    def stream(self, opcode: rnic.WROpcode, size: int, count: int) -> float:
        """Run `count` operations, as many at a time as fit; returns the seconds."""
        lane, wrs = self.lane, [self.wr(opcode, size) for _ in range(BENCH_DEPTH)]
        posted = completed = 0
        began = perf_counter()
        while completed < count:
            more = min(BENCH_DEPTH - (posted - completed), count - posted)
            if more:
                lane.qp.post_send(wrs[:more])
                posted += more
            completed += len(lane.spin(f"streaming {opcode.name}"))
        return perf_counter() - began

    def reset_counter(self) -> None:
        """Write 0 to the counter of the atomics."""
        with memoryview(self.mr.buf) as view:
            view[:8] = bytes(8)
        self.lane.qp.post_send(self.wr(Op.RDMA_WRITE, 8))
        self.lane.spin("resetting the counter")
        self.added = 0

    def check_atomics(self) -> None:
        """Every addition was executed, and once; CMP_AND_SWP, which compared with 0, left the sum alone."""
        self.lane.qp.post_send(self.wr(Op.RDMA_READ, 8))
        self.lane.spin("reading the counter")
        with memoryview(self.mr.buf) as view:
            value = int.from_bytes(view[:8], sys.byteorder)
        if value != self.added:
            raise Failure(f"{self.added} FETCH_AND_ADDs made {value}")
