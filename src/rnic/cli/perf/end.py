# SPDX-License-Identifier: Apache-2.0
"""One end: device, memory and queue pairs, connected over the line or by RDMA-CM."""

from __future__ import annotations

import ipaddress
import mmap
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import rnic
from rnic.cli import endpoint
from rnic.cli.exchange import PeerAddress
from rnic.cli.params import Failure
from rnic.cli.perf.allowance import WORD
from rnic.cli.perf.interpreted import PythonEnd
from rnic.cli.perf.line import QUIET, Line
from rnic.cli.perf.native import PerfEnd
from rnic.cli.perf.plan import Plan
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType, create_id

RD_ATOMIC = 16  # READs and atomics on their way at a time, of a queue pair
RECEIVES = 512  # posted by an end that takes messages, or twice the depth
SHORTEST_RNR = 1  # 0.01 ms: how long a sender waits that met no receive
GOODBYE = 0.2  # seconds that the news of an end's death may take after the death of its queue pairs
CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
REMOTE_ALL = rnic.AccessFlags.REMOTE_WRITE | rnic.AccessFlags.REMOTE_READ | rnic.AccessFlags.REMOTE_ATOMIC
Loops = PerfEnd | PythonEnd


class End:
    """Connected queue pairs, and the loops that use them."""

    def __init__(
        self,
        plan: Plan,
        line: Line,
        stack: ExitStack,
        client: bool,
        device: str | None,
        gid_index: int | None,
    ) -> None:
        self.plan, self.line, self.stack, self.client = plan, line, stack, client
        self.qps: list[rnic.QP] = []
        if plan.cm:
            self._call(device) if client else self._answer(device)
        else:
            self._connect(device, gid_index)
        line.say("linked", addr=self.mr.addr, rkey=self.mr.rkey, device=self.ctx.name, receives=self.rx_depth)
        peer = line.hear("linked", 2 * QUIET)
        self.peer_device = str(peer["device"])
        remote = int(peer["addr"]), int(peer["rkey"])
        self.loops = self._loops(remote, int(peer["receives"]))
        stack.callback(self.loops.settle)

    # ------------------------------------------------------------------ what both ways need

    def _build(self, ctx: rnic.Context) -> None:
        """Create everything except the queue pairs."""
        plan = self.plan
        self.ctx = ctx
        attr = ctx.query_device()
        self.rd_atomic = max(1, min(RD_ATOMIC, attr.max_qp_rd_atom, attr.max_qp_init_rd_atom))
        self.rx_depth = (
            min(max(RECEIVES, 2 * plan.depth), attr.max_qp_wr) if plan.receives(self.client) else 0
        )
        self.is_iwarp = endpoint.is_iwarp(ctx.device)
        entries = plan.qps * (plan.depth + self.rx_depth + 1) + 1
        if entries > attr.max_cqe:
            raise Failure(f"{entries} completions at a time; the device has room for {attr.max_cqe}")
        self.pd = self.stack.enter_context(ctx.alloc_pd())
        self.channel = self.stack.enter_context(ctx.create_comp_channel()) if plan.events else None
        self.cq = self.stack.enter_context(ctx.create_cq(entries, channel=self.channel))
        self.room = -(-max(plan.sizes) // mmap.PAGESIZE) * mmap.PAGESIZE
        access = rnic.AccessFlags.LOCAL_WRITE | REMOTE_ALL
        self.mr = self.stack.enter_context(self.pd.alloc_mr(2 * self.room + 2 * WORD.size * plan.qps, access))
        self.clear()

    def clear(self) -> None:
        """Write zeros everywhere, which also makes the system provide the pages."""
        with memoryview(self.mr.buf) as view:
            zeros = bytes(min(2 * self.room, 1 << 20))
            for start in range(0, 2 * self.room, len(zeros)):
                part = view[start : min(start + len(zeros), 2 * self.room)]
                part[:] = zeros[: len(part)]

    def _init(self) -> rnic.QPInitAttr:
        cap = rnic.QPCap(
            max_send_wr=self.plan.depth + 1,  # and a word of how many receives there are
            max_recv_wr=max(1, self.rx_depth),
            max_send_sge=1,
            max_recv_sge=1,
            max_inline_data=max(self.plan.inline, WORD.size),
        )
        return rnic.QPInitAttr(send_cq=self.cq, recv_cq=self.cq, qp_type=rnic.QPType.RC, cap=cap)

    def _loops(self, remote: tuple[int, int], receives: int) -> Loops:
        alone = len(os.sched_getaffinity(0)) == 1
        what = (self.qps, self.cq, self.channel, self.mr, self.line, self.room, remote)
        limits: dict[str, Any] = {
            "depth": self.plan.depth,
            "rx_depth": self.rx_depth,
            "yield_polls": 1 if alone else endpoint.YIELD_POLLS,
            "quiet": QUIET,
            "allowance": self._allowance(receives),
        }
        if self.plan.loop == "python":
            self.clock = "clock_gettime"
            return PythonEnd(*what, **limits)
        self.clock = "tsc" if kernel_trusts_tsc() else "clock_gettime"
        return PerfEnd(*what, **limits, tsc=self.clock == "tsc")

    def _allowance(self, receives: int) -> int:
        """Messages that may be sent before the peer tells of more receives; 0: it can make a sender wait."""
        streams = self.plan.what.receives and not self.plan.is_latency
        return (receives or self.rx_depth) if self.is_iwarp and streams else 0

    # ------------------------------------------------------------------ by the line

    def _connect(self, device: str | None, gid_index: int | None) -> None:
        port = endpoint.open_port(device, 1, gid_index, self.line.sock.getsockname())
        self.stack.enter_context(port.ctx)
        self._build(port.ctx)
        for _ in range(self.plan.qps):
            qp = self.stack.enter_context(self.pd.create_qp(self._init()))
            endpoint.to_init(qp, port.port_num, REMOTE_ALL)
            self.qps.append(qp)
        mine = [port.address(qp) for qp in self.qps]
        mtu = port.ctx.query_port(port.port_num).active_mtu.nbytes
        self.line.say("end", qps=[address.encode().decode() for address in mine], mtu=mtu, rd=self.rd_atomic)
        told = self.line.hear("end", 2 * QUIET)
        if (rd := int(told["rd"])) < 0:
            raise ValueError(f"rd is {rd}")
        self.rd_atomic = min(self.rd_atomic, rd)
        least = min(mtu, endpoint.MTUS[int(told["mtu"])].nbytes)
        if self.plan.mtu > least:
            raise Failure(f"-m {self.plan.mtu}: the ports' MTU is {least}")
        self.mtu: int | None = None if self.is_iwarp else self.plan.mtu or least
        if self.is_iwarp and self.plan.mtu:
            raise Failure("-m: iWARP has no path MTU, TCP makes its segments itself")
        for qp, local, text in zip(self.qps, mine, told["qps"], strict=True):
            endpoint.connect(
                qp,
                port,
                local,
                PeerAddress.parse(text.encode()),
                mtu=endpoint.MTUS[self.mtu or least],
                rd_atomic=self.rd_atomic,
                min_rnr_timer=SHORTEST_RNR,
            )

    # ------------------------------------------------------------------ by RDMA-CM

    def _call(self, device: str | None) -> None:
        told = self.line.hear("end", 2 * QUIET)
        address = (plain(self.line.sock.getpeername()), int(told["port"]))
        for _ in range(self.plan.qps):
            cm_id = self.stack.enter_context(create_id(device=device))
            cm_id.resolve_addr(None, address)
            cm_id.resolve_route()
            self._add(cm_id)
            cm_id.connect(self._param())
        self._see_mtu()

    def _answer(self, device: str | None) -> None:
        channel = self.stack.enter_context(EventChannel())
        listener = self.stack.enter_context(create_id(channel, device=device))
        listener.bind_addr((plain(self.line.sock.getsockname()), 0))
        listener.listen(self.plan.qps)
        self.line.say("end", port=listener.get_src_port())
        established = 0
        while established < self.plan.qps:
            try:
                event = channel.get_cm_event(QUIET)
            except TimeoutError:
                raise Failure(f"the client did not call within {QUIET:g} s") from None
            with event:
                if event.event is EventType.CONNECT_REQUEST:
                    cm_id = self.stack.enter_context(event.id)
                elif event.event is EventType.ESTABLISHED:
                    established += 1
                    continue
                else:
                    raise Failure(event.explain())
            self._add(cm_id)
            cm_id.accept(self._param())
        self._see_mtu()

    def _add(self, cm_id: CmId) -> None:
        """Add the queue pair of an id."""
        assert cm_id.verbs is not None
        if not self.qps:
            self._build(cm_id.verbs)
        self.qps.append(cm_id.create_qp(self.pd, self._init()))
        self.stack.callback(cm_id.destroy_qp)

    def _param(self) -> ConnParam:
        return ConnParam(responder_resources=self.rd_atomic, initiator_depth=self.rd_atomic)

    def _see_mtu(self) -> None:
        """Note the MTU that RDMA-CM has agreed on."""
        attr, _ = self.qps[0].query()
        self.mtu = None if attr.path_mtu is None else rnic.MTU(attr.path_mtu).nbytes

    # ------------------------------------------------------------------ running

    def run(self, size: int) -> bool:
        """Run this end's loop for a message size. Returns whether the other end sent something meanwhile."""
        name = self.plan.loop_name(self.client)
        assert name is not None
        return self._guarded(self.plan.run(getattr(self.loops, name), size, self.client))

    def sink(self, size: int) -> None:
        """Receive messages until the other end sends something on the line."""
        self._guarded({**self.plan.run(self.loops.SINK, size, self.client), "both_ways": False})

    def _guarded(self, plan: dict[str, int]) -> bool:
        try:
            return self.loops.run(plan)
        except rnic.VerbsError:
            if self.line.has_news(GOODBYE):
                self.line.hear("over")  # what the other end says of it, or that it is gone
            raise
        except TimeoutError:
            text = f"nothing moved for {QUIET:g} s: is the {self.line.peer} still there?"
            raise Failure(text) from None
        except ConnectionResetError:
            raise self.line.gone() from None

    def counters(self) -> dict[str, int]:
        """The counters of the device."""
        return self.ctx.counters().as_dict()


def kernel_trusts_tsc() -> bool:
    """Whether the processors' counters run evenly and together: else the kernel takes another clock."""
    try:
        return CLOCKSOURCE.read_text(encoding="ascii").strip() == "tsc"
    except OSError:
        return False


def plain(sockaddr: tuple[Any, ...]) -> str:
    """The host of a socket address; an IPv4-mapped address becomes IPv4."""
    host, scope = str(sockaddr[0]), sockaddr[3] if len(sockaddr) == 4 else 0
    ip = ipaddress.ip_address(host.partition("%")[0])
    if ip.version == 6 and ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return f"{ip}%{scope}" if scope else str(ip)
