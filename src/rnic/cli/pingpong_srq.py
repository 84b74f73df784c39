# SPDX-License-Identifier: Apache-2.0
"""`rnic pingpong srq`: ibv_srq_pingpong, many queue pairs with one shared receive queue.

The exchange is ibv_rc_pingpong's with 256 addresses each way: those of the queue pairs come first, the rest
are 0. Each queue pair bounces messages as ibv_rc_pingpong does; all together do `iters` exchanges.
"""

from __future__ import annotations

import mmap
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import click

import rnic
from rnic.cli import endpoint, exchange
from rnic.cli.params import Failure
from rnic.cli.pingpong_end import RECV_WRID, SEND_WRID

ADDRESSES = 256  # that each end tells, whatever the number of its queue pairs
NOBODY = exchange.PeerAddress(0, 0, 0, bytes(16))


class SharedEnd:
    """One end: a shared receive queue, and the queue pairs that use it."""

    def __init__(
        self,
        port: endpoint.LocalPort,
        stack: ExitStack,
        *,
        qps: int,
        size: int,
        rx_depth: int,
        iters: int,
        sleeps: bool,
        timeout: float,
        fill: Callable[[mmap.mmap], None],
        access: rnic.AccessFlags,
    ) -> None:
        ctx = port.ctx
        self.port, self.iters, self.timeout = port, iters, timeout
        self.patience = endpoint.Patience(timeout)
        self.channel = stack.enter_context(ctx.create_comp_channel()) if sleeps else None
        pd = stack.enter_context(ctx.alloc_pd())
        self.buf = mmap.mmap(-1, max(size, 1))
        fill(self.buf)
        mr = stack.enter_context(pd.reg_mr(self.buf, access))
        self.cq = stack.enter_context(ctx.create_cq(rx_depth + qps, channel=self.channel))
        stack.callback(self._acknowledge)
        attr = rnic.SRQAttr(max_wr=rx_depth, max_sge=1)
        self.srq = stack.enter_context(pd.create_srq(rnic.SRQInitAttr(attr)))
        cap = rnic.QPCap(max_send_wr=1, max_send_sge=1)
        init = rnic.QPInitAttr(self.cq, self.cq, cap=cap, srq=self.srq)
        self.qps = [stack.enter_context(pd.create_qp(init)) for _ in range(qps)]
        for qp in self.qps:
            endpoint.to_init(qp, port.port_num, rnic.AccessFlags(0))
        sges = [rnic.SGE(mr, 0, size)] if size else []
        self.message = rnic.SendWR(SEND_WRID, rnic.WROpcode.SEND, rnic.SendFlags.SIGNALED, sges)
        self.room = [rnic.RecvWR(RECV_WRID, sges) for _ in range(rx_depth)]
        self.srq.post_recv(self.room)
        if self.channel:
            self.cq.req_notify()
        self.local = [port.address(qp) for qp in self.qps]
        self._events = 0

    def _acknowledge(self) -> None:
        if self._events:
            self.cq.ack_events(self._events)
            self._events = 0

    def connect(self, peers: list[exchange.PeerAddress], mtu: rnic.MTU, sl: int) -> None:
        """Connect each queue pair to the peer's with the same place in the list."""
        for qp, local, peer in zip(self.qps, self.local, peers, strict=False):
            if not peer.qp_num:
                raise Failure("the peer has fewer queue pairs: give both ends the same -q")
            endpoint.connect(qp, self.port, local, peer, mtu=mtu, sl=sl)

    def run(self, begins: bool) -> float:
        """All exchanges; how many seconds they took."""
        pending = {qp.qp_num: RECV_WRID for qp in self.qps}
        by_number = {qp.qp_num: qp for qp in self.qps}
        start = time.perf_counter()
        if begins:
            for number, qp in by_number.items():
                qp.post_send(self.message)
                pending[number] |= SEND_WRID
        received = sent = 0
        posted = len(self.room)
        while received < self.iters or sent < self.iters:
            for wc in self._completions(f"after {received} of {self.iters} exchanges"):
                if not wc.ok:
                    raise Failure(f"after {received} of {self.iters} exchanges: {wc.explain()}")
                if wc.wr_id == RECV_WRID:
                    received += 1
                    posted -= 1
                    if posted <= len(self.qps):
                        self.srq.post_recv(self.room[posted:])
                        posted = len(self.room)
                else:
                    sent += 1
                pending[wc.qp_num] &= ~wc.wr_id
                if not pending[wc.qp_num] and sent < self.iters:
                    by_number[wc.qp_num].post_send(self.message)
                    pending[wc.qp_num] = RECV_WRID | SEND_WRID
        return time.perf_counter() - start

    def _completions(self, doing: str) -> list[rnic.WC]:
        """Some; with events perhaps none, when an earlier call has taken them already."""
        if self.channel is None:
            self.patience.begin()
            while not (found := self.cq.poll(16)):
                self.patience.wait(doing)
            return found
        try:
            self.channel.get_cq_event(timeout=self.timeout or None)
        except TimeoutError:
            self.patience.look(self.timeout, doing)
        self._events += 1
        self.cq.req_notify()
        return self.cq.poll(self.cq.cqe)  # what is left now makes no event


def swap(
    sock: socket.socket, end: SharedEnd, client: bool, connect: Callable[[list[exchange.PeerAddress]], None]
) -> None:
    """Tells each end the other's addresses and connects the queue pairs; the server's before it answers."""
    for address in end.local:
        click.echo(f"  local address:  {address}")
    told = end.local + [NOBODY] * (ADDRESSES - len(end.local))
    if client:
        exchange.send_addresses(sock, told)
    peers = [exchange.receive_address(sock) for _ in range(ADDRESSES)]
    connect(peers)
    if client:
        exchange.send_done(sock)
    else:
        exchange.send_addresses(sock, told)
        exchange.receive_done(sock)
    for address in peers[: len(end.local)]:
        click.echo(f"  remote address: {address}")
