# SPDX-License-Identifier: Apache-2.0
"""One end of `rnic pingpong rc`, `uc`, `ud`: a queue pair that answers each message with one.

Each end posts rx_depth receives. It sends one message when it has received the other's, and its own last SEND
has completed; the client begins. An exchange is a message there and one back.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import click

import rnic
from rnic.cli import endpoint, exchange, pingpong_rc
from rnic.cli.params import Failure
from rnic.records import Record, field, fields, values

RECV_WRID, SEND_WRID = 1, 2
QKEY = 0x11111111  # of both ends of ibv_ud_pingpong
FILL = 0x7B  # what ibv_rc_pingpong fills its buffer with


class Options(Record):
    """The command line of one end."""

    servername: str | None
    port: int
    ib_dev: str | None
    ib_port: int
    size: int
    rx_depth: int
    iters: int
    sl: int
    events: bool
    gid_idx: int | None
    chk: bool
    timeout: float
    mtu: rnic.MTU | None
    """The path MTU; datagrams have none."""
    features: pingpong_rc.Features = field(default_factory=pingpong_rc.Features)

    @classmethod
    def of(cls, given: dict[str, Any], mtu: rnic.MTU | None) -> Options:
        """The options as click gives them."""
        index = given.pop("gid_idx")
        features = {name: given.pop(name) for name in _FEATURES if name in given}
        made = pingpong_rc.Features(**features)
        made.check()
        return cls(**given, gid_idx=None if index < 0 else index, mtu=mtu, features=made)


_FEATURES = [one.name for one in fields(pingpong_rc.Features)]


def bad_pages(buffer: memoryview | mmap.mmap | bytes, size: int, start: int = 0) -> list[int]:
    """Pages that do not begin with what the client of a validated run writes (page % sizeof(char), so 0)."""
    offsets = range(0, size, mmap.PAGESIZE)
    return [offset // mmap.PAGESIZE for offset in offsets if buffer[start + offset] != 0]


def validate(buf: mmap.mmap | bytes, size: int, start: int = 0) -> None:
    """Print the wrong pages, as the original does, and fail if there are any."""
    bad = bad_pages(buf, size, start)
    for page in bad:
        click.echo(f"invalid data in page {page}")
    if bad:
        raise Failure(f"{len(bad)} pages arrived wrong")


def _counted(counters: rnic.Counters) -> dict[str, str]:
    """The counters that are not 0, in words."""
    return {name: f"{name} {value}" for name, value in counters.items() if value}


class End:
    """One end: its queue pair, its buffer, and the loop that answers each message with one."""

    qp_type = rnic.QPType.RC
    header = 0  # bytes that a receive has ahead of the message

    def __init__(self, options: Options, port: endpoint.LocalPort, stack: ExitStack) -> None:
        self.options = options
        self.port = port
        ctx = port.ctx
        self.channel = stack.enter_context(ctx.create_comp_channel()) if options.events else None
        self.patience = endpoint.Patience(options.timeout)
        self.events = 0  # taken from the channel, not yet acknowledged
        self.stack = stack
        self.pd = pd = stack.enter_context(ctx.alloc_pd())
        nbytes = max(self.header + options.size, 1)
        self.memory = pingpong_rc.Memory(options.features, ctx, pd, nbytes, stack)
        self.memory.write(bytes([FILL]) * nbytes)
        self.clock = pingpong_rc.Clock(RECV_WRID)
        self.cq = stack.enter_context(self.make_cq())
        stack.callback(self.acknowledge)
        cap = rnic.QPCap(max_send_wr=1, max_recv_wr=options.rx_depth, max_send_sge=1, max_recv_sge=1)
        init = rnic.QPInitAttr(send_cq=self.cq, recv_cq=self.cq, qp_type=self.qp_type, cap=cap)
        self.qp = stack.enter_context(self.make_qp(init))
        self.to_init()

        message = [self.memory.sge(self.header, options.size)] if options.size else []
        room = [self.memory.sge(0, nbytes)] if self.header + options.size else []
        flags = rnic.SendFlags.SIGNALED
        if self.qp.cap.max_inline_data >= options.size and not options.features.dm:
            flags |= rnic.SendFlags.INLINE
        self.send_wr = rnic.SendWR(
            wr_id=SEND_WRID, opcode=rnic.WROpcode.SEND, send_flags=flags, sg_list=message
        )
        self.recv_wrs = [rnic.RecvWR(wr_id=RECV_WRID, sg_list=room) for _ in range(options.rx_depth)]
        self.qp.post_recv(self.recv_wrs)
        if self.channel:
            self.cq.req_notify()
        self.local = port.address(self.qp)

    def make_cq(self) -> rnic.CQ:
        """The completion queue: with timestamps an extended one."""
        cqe = self.options.rx_depth + 1
        if not self.options.features.ts:
            return self.port.ctx.create_cq(cqe, channel=self.channel)
        flags = rnic.CreateCQWCFlags.WITH_COMPLETION_TIMESTAMP
        return self.port.ctx.create_cq_ex(
            rnic.CQInitAttrEx(cqe=cqe, channel=self.channel, wc_flags=rnic.WC_STANDARD_FLAGS | flags)
        )

    def make_qp(self, init: rnic.QPInitAttr) -> rnic.QP:
        """The queue pair: with the ibv_wr_* interface an extended one."""
        if not self.options.features.new_send:
            return self.pd.create_qp(init)
        given = values(init)
        ops = rnic.SendOpsFlags.SEND
        return self.port.ctx.create_qp_ex(rnic.QPInitAttrEx(**given, pd=self.pd, send_ops_flags=ops))

    def poll(self) -> Sequence[rnic.WC | pingpong_rc.Timed]:
        """The completions that are there, without waiting."""
        return self.clock.poll(self.cq, 16) if isinstance(self.cq, rnic.CQEX) else self.cq.poll(16)

    def to_init(self) -> None:
        """From now on receives can be posted."""
        endpoint.to_init(self.qp, self.options.ib_port, rnic.AccessFlags(0))

    def connect(self, remote: exchange.PeerAddress) -> None:
        """From now on messages can be sent to the peer."""
        assert self.options.mtu is not None
        endpoint.connect(self.qp, self.port, self.local, remote, mtu=self.options.mtu, sl=self.options.sl)

    def run(self) -> float:
        """All exchanges; how many seconds they took."""
        client = self.options.servername is not None
        if client and self.options.chk:
            data = bytearray(self.memory.read(self.header + self.options.size))
            for offset in range(0, self.options.size, mmap.PAGESIZE):
                data[self.header + offset] = 0
            self.memory.write(bytes(data))
        # What must complete before the next SEND: the peer's message and our own last one.
        pending = RECV_WRID
        if client:
            pingpong_rc.post(self.qp, self.send_wr)
            pending |= SEND_WRID
        start = time.perf_counter()
        try:
            self._loop(pending)
        except Failure as failure:
            raise Failure(f"{failure.message}\n{self._account()}") from None
        return time.perf_counter() - start

    def _account(self) -> str:
        """The state of the queue pair, and all counters that are not 0."""
        attr, _ = self.qp.query()
        state = attr.qp_state.name if attr.qp_state is not None else "?"
        stats = self.qp.statistics()
        waiting = f"{stats.sq_depth} sends and {stats.rq_depth} receives outstanding"
        psns = f"PSN {stats.snd_psn} next, {stats.snd_una} unacknowledged, {stats.rcv_psn} expected"
        device = _counted(rnic.Counters.from_values(self.qp.context.raw_counters()))
        own = _counted(stats.counters)
        more = [words for name, words in device.items() if name not in own]
        return (
            f"  queue pair:     {'; '.join([state, waiting, psns, *own.values()])}\n"
            f"  device:         {'; '.join(more)}"
        )

    def _loop(self, pending: int) -> None:
        iters, rx_depth = self.options.iters, self.options.rx_depth
        qp, send_wr, recv_wrs = self.qp, self.send_wr, self.recv_wrs
        completions = self._after_event if self.channel else self._polled
        received = sent = 0
        posted = rx_depth
        while received < iters or sent < iters:
            for wc in completions(received):
                if not wc.ok:
                    raise Failure(f"after {received} of {iters} exchanges: {wc.explain()}")
                if wc.wr_id == RECV_WRID:
                    received += 1
                    posted -= 1
                    if posted <= 1:
                        qp.post_recv(recv_wrs[posted:])
                        posted = rx_depth
                else:
                    sent += 1
                pending &= ~wc.wr_id
                if not pending and sent < iters:
                    pingpong_rc.post(qp, send_wr)
                    pending = RECV_WRID | SEND_WRID

    def _polled(self, received: int) -> Sequence[rnic.WC | pingpong_rc.Timed]:
        """Completions, by polling until there are some."""
        poll = self.poll
        found = poll()
        if found:
            return found
        doing, wait = f"after {received} of {self.options.iters} exchanges", self.patience.wait
        self.patience.begin()
        while not found:
            wait(doing)
            found = poll()
        return found

    def _after_event(self, received: int) -> Sequence[rnic.WC | pingpong_rc.Timed]:
        """Completions that an event announced; none when an earlier call has taken them already."""
        assert self.channel is not None
        try:
            self.channel.get_cq_event(timeout=self.options.timeout or None)
        except TimeoutError:
            self.patience.look(self.options.timeout, f"after {received} of {self.options.iters} exchanges")
        self.events += 1
        self.cq.req_notify()
        return self.poll()

    def acknowledge(self) -> None:
        """A completion queue with unacknowledged events is in use."""
        if self.events:
            self.cq.ack_events(self.events)
            self.events = 0

    def validate(self) -> None:
        """The server's last act with -c; the original prints the same lines, but ends with exit code 0."""
        if self.options.servername is not None or not self.options.chk:
            return
        validate(self.memory.read(self.header + self.options.size), self.options.size, self.header)


class UnreliableEnd(End):
    """An end of an unreliable connection: it has no retries."""

    qp_type = rnic.QPType.UC

    def connect(self, remote: exchange.PeerAddress) -> None:
        """From now on messages can be sent to the peer."""
        self.qp.modify(
            rnic.QPAttr(
                qp_state=rnic.QPState.RTR,
                path_mtu=self.options.mtu,
                dest_qp_num=remote.qp_num,
                rq_psn=remote.psn,
                ah_attr=endpoint.path_to(self.port, remote, self.options.sl),
            )
        )
        self.qp.modify(rnic.QPAttr(qp_state=rnic.QPState.RTS, sq_psn=self.local.psn))


class DatagramEnd(End):
    """An end for datagrams: an address handle in place of a connection."""

    qp_type = rnic.QPType.UD
    header = 40

    def to_init(self) -> None:
        """From now on receives can be posted; refuses messages of more than one packet."""
        mtu = self.port.ctx.query_port(self.options.ib_port).active_mtu.nbytes
        if self.options.size > mtu:
            why = f"a datagram is one packet, and the port's MTU is {mtu}: choose less"
            raise Failure(f"--size {self.options.size}: {why}")
        self.qp.modify(
            rnic.QPAttr(qp_state=rnic.QPState.INIT, pkey_index=0, port_num=self.options.ib_port, qkey=QKEY)
        )

    def connect(self, remote: exchange.PeerAddress) -> None:
        """From now on messages can be sent to the peer."""
        path = endpoint.path_to(self.port, remote, self.options.sl)
        self.qp.modify(rnic.QPAttr(qp_state=rnic.QPState.RTR))
        self.qp.modify(rnic.QPAttr(qp_state=rnic.QPState.RTS, sq_psn=self.local.psn))
        self.send_wr.ah = self.stack.enter_context(self.pd.create_ah(path))
        self.send_wr.remote_qpn, self.send_wr.remote_qkey = remote.qp_num, QKEY
