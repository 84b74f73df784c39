# SPDX-License-Identifier: Apache-2.0
"""A link that is slower than its senders: what is sent waits, and nobody takes the wait for a loss."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import namespaces
import rnic
from packages import lacking
from rnic import SGE, QPCap, QPInitAttr, QPType, SendFlags, SendWR, WCStatus, WROpcode
from rnic.testing import ALL_ACCESS, Options, connect
from transport.netdev import Netdevs, ip
from waiting import until

QPS, DEPTH = 64, 2
BYTES = 1 << 16  # of a request: 16 packets
PATIENT = Options(timeout=24)  # 69 s, so that no machine is too slow for a test without a loss
ADDRESSES = "10.83.0.1/24", "10.83.0.2/24"
pytestmark = pytest.mark.skipif(shutil.which("tc") is None, reason=lacking("iproute2"))


@dataclass
class Side:
    """A context in a network namespace of its own, and its queue pairs."""

    ctx: rnic.Context
    cq: rnic.CQ
    mr: rnic.MR
    qps: list[rnic.QP]

    def counted(self, *names: str) -> dict[str, int]:
        counters = self.ctx.counters()
        return {name: counters[name] for name in names}


class SlowLink(Netdevs):
    """Two namespaces at the ends of a cable; what goes out at either end passes a token bucket."""

    def _make(self) -> None:
        super()._make()
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        namespaces.unshare()
        self.namespaces = here, os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        ip("link", "set", "lo", "up")
        namespaces.enter(here)
        ip("link", "set", self.b, "netns", f"/proc/{os.getpid()}/fd/{self.namespaces[1]}")
        for fd, name, address in zip(self.namespaces, (self.a, self.b), ADDRESSES, strict=True):
            namespaces.enter(fd)
            self.link(name, "mtu", "9000")
            self.link(name, "up")
            self.address(name, address)

    def _leave(self) -> None:
        for fd in self.namespaces:
            os.close(fd)
        super()._leave()

    def slow_down(self, rate: str) -> None:
        """A rate for each direction, a queue of 2 MiB."""
        for fd, name in zip(self.namespaces, (self.a, self.b), strict=True):
            namespaces.enter(fd)
            bucket = f"qdisc add dev {name} root tbf rate {rate} burst 64kb limit 2mb"
            done = subprocess.run(["tc", *bucket.split()], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no token bucket on a link here: {done.stderr.strip()}")

    def dropped(self, end: int) -> int:
        """By the queue in front of that end of the cable."""
        namespaces.enter(self.namespaces[end])
        command = ["tc", "-s", "-j", "qdisc", "show", "dev", (self.a, self.b)[end]]
        shown = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return int(shown[0]["drops"])

    def overflowed(self, end: int) -> bool:
        """Whether packets came while no processor was free to take them in."""
        namespaces.enter(self.namespaces[end])
        lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
        names, values = (line.split() for line in lines if line.startswith("Udp:"))
        return dict(zip(names, values, strict=True))["RcvbufErrors"] != "0"

    def open(self, end: int, qp_type: QPType, stack: ExitStack, qps: int = QPS) -> Side:
        namespaces.enter(self.namespaces[end])
        ctx = stack.enter_context(rnic.open_device(f"roce_{(self.a, self.b)[end]}"))
        pd = stack.enter_context(ctx.alloc_pd())
        cq = stack.enter_context(ctx.create_cq(qps * DEPTH))
        mr = stack.enter_context(pd.alloc_mr(qps * BYTES, ALL_ACCESS))
        init = QPInitAttr(
            send_cq=cq, recv_cq=cq, qp_type=qp_type, cap=QPCap(max_send_wr=DEPTH, max_recv_wr=1)
        )
        return Side(ctx, cq, mr, [stack.enter_context(pd.create_qp(init)) for _ in range(qps)])


@pytest.fixture
def link() -> Iterator[SlowLink]:
    """All on one processor: on two, packets overtake each other in the kernel's queues behind the cable."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with SlowLink() as made:
            yield made
    finally:
        os.sched_setaffinity(0, before)


def join(link: SlowLink, qp_type: QPType, stack: ExitStack, qps: int = QPS) -> tuple[Side, Side]:
    a, b = (link.open(end, qp_type, stack, qps) for end in (0, 1))
    for x, y in zip(a.qps, b.qps, strict=True):
        connect(x, y, PATIENT)
    return a, b


def move(a: Side, b: Side, opcode: WROpcode, rounds: int) -> None:
    """Each of a's queue pairs carries out so many requests on b's memory."""

    def post(i: int) -> None:
        a.qps[i].post_send(
            SendWR(
                wr_id=i,
                opcode=opcode,
                send_flags=SendFlags.SIGNALED,
                sg_list=[SGE(a.mr, i * BYTES, BYTES)],
                remote_addr=b.mr.addr + i * BYTES,
                rkey=b.mr.rkey,
            )
        )

    qps = len(a.qps)
    left = [rounds - DEPTH] * qps
    for _, i in itertools.product(range(DEPTH), range(qps)):
        post(i)
    done = 0
    while done < rounds * qps:
        for wc in until(lambda: a.cq.poll(qps), "a completion"):
            assert wc.status is WCStatus.SUCCESS, wc
            done += 1
            if left[wc.wr_id]:
                left[wc.wr_id] -= 1
                post(wc.wr_id)


QUIET = {"tx_errors": 0, "timeouts": 0, "nak_seq_sent": 0, "implied_naks": 0}


@pytest.mark.parametrize("mbit", [200, 1000])
@pytest.mark.parametrize("qps", [QPS, 256])
@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ], ids=["write", "read"])
def test_many_queue_pairs_share_a_slow_link_without_a_loss(
    link: SlowLink, opcode: WROpcode, qps: int, mbit: int, soak: bool, record: Any
) -> None:
    link.slow_down(f"{mbit}mbit")
    rounds = max(DEPTH, (100 if soak else 3) * mbit // 200 * QPS // qps)
    with ExitStack() as stack:
        a, b = join(link, QPType.RC, stack, qps)
        begun = monotonic()
        move(a, b, opcode, rounds)
        took = monotonic() - begun
        lost = any(link.overflowed(end) for end in (0, 1))  # and was asked for again
        for side in (a, b):
            assert lost or side.counted(*QUIET) == QUIET
            # In the first ms nobody knows that the link is slow, or an end has had no processor for long.
            assert lost or side.ctx.counters().requests_resent <= qps // 16
        sender = a if opcode is WROpcode.RDMA_WRITE else b
        assert sender.ctx.counters().tx_waits > 0, "the link was slower than its sender"
        assert [link.dropped(end) for end in (0, 1)] == [0, 0]
        counters = a.ctx.counters()
        share = rounds * qps * BYTES * 8 / took / (mbit * 1e6)  # of the rate, by payload
        record(resent=counters.requests_resent, sent=counters.requests_sent, share=round(share, 3))


def test_an_unreliable_write_that_is_complete_has_not_been_thrown_away(link: SlowLink) -> None:
    link.slow_down("200mbit")
    with ExitStack() as stack:
        a, b = join(link, QPType.UC, stack)
        move(a, b, WROpcode.RDMA_WRITE, 4)
        packets = 4 * QPS * BYTES // 4096
        assert a.counted("requests_sent", "tx_errors") == {"requests_sent": packets, "tx_errors": 0}
        until(lambda: b.ctx.counters().requests_executed == packets, "all packets arrive")


def test_a_device_that_closes_has_sent_what_was_complete(link: SlowLink) -> None:
    """The last batch of a program that is in a hurry."""
    link.slow_down("200mbit")
    with ExitStack() as stack:
        b = link.open(1, QPType.UC, stack)
        with ExitStack() as short:
            a = link.open(0, QPType.UC, short)
            for x, y in zip(a.qps, b.qps, strict=True):
                connect(x, y, PATIENT)
            move(a, b, WROpcode.RDMA_WRITE, 2)
        packets = 2 * QPS * BYTES // 4096
        until(lambda: b.ctx.counters().requests_executed == packets, "all packets arrive")
