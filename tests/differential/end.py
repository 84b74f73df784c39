# SPDX-License-Identifier: Apache-2.0
"""An end of a program that is a queue pair of rnic in this process."""

from __future__ import annotations

import functools
import hashlib
import operator
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Any
from weakref import WeakKeyDictionary

from differential.model import Completion, known, noise
from differential.program import DEPTH, INLINE, QUARTER, SGES, SIZE, Connect, Pieces
from differential.refused import refuse
from rnic import (
    CQ,
    GID,
    MTU,
    QP,
    SGE,
    SRQ,
    WC,
    AccessFlags,
    AHAttr,
    Context,
    EventType,
    MWBindInfo,
    MWType,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    SRQAttr,
    SRQInitAttr,
    WCFlags,
    WROpcode,
    inc_rkey,
)

BAD_KEY = 0x5A00  # what a wrong key differs by
RIGHTS = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
ACCESS = {
    "memory": AccessFlags.LOCAL_WRITE | RIGHTS | AccessFlags.MW_BIND,
    "readable": AccessFlags.REMOTE_READ,
    "writable": AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE,
}


EVENTS: WeakKeyDictionary[Context, list[tuple[str, Any]]] = WeakKeyDictionary()
"""Name and object of what a context has told, and its ends have not asked for yet."""


@dataclass(frozen=True)
class Address:
    """What the other end must know of this one."""

    qp_num: int
    gid: str
    addr: int
    keys: dict[str, int]
    stream: str = ""
    """iWARP: where it waits, in hexadecimal digits."""


@dataclass(frozen=True)
class Request:
    """A work request with everything resolved."""

    wr_id: int
    opcode: str
    sg: Pieces
    flags: tuple[str, ...]
    addr: int = 0
    rkey: int = 0
    imm: int = 0
    compare: int = 0
    swap: int = 0
    fault: str = ""


class RnicEnd:
    def __init__(
        self,
        ctx: Context,
        service: str,
        own_memory: bool,
        sig_all: bool,
        shared: bool,
        seed: int,
        gid_index: int = 0,
    ) -> None:
        self.ctx, self.service, self.gid_index = ctx, service, gid_index
        self.srq: SRQ | None = None
        with ExitStack() as stack:
            self.pd = stack.enter_context(ctx.alloc_pd())
            self.cqs = [stack.enter_context(ctx.create_cq(4 * DEPTH)) for _ in range(2)]
            if own_memory:
                self.buf: Any = bytearray(SIZE)
                self.mr = stack.enter_context(self.pd.reg_mr(self.buf, ACCESS["memory"]))
            else:
                self.mr = stack.enter_context(self.pd.alloc_mr(SIZE, ACCESS["memory"]))
                self.buf = self.mr.buf
            self.buf[:] = noise(seed)
            self.keys = {"memory": self.mr.rkey}
            for name in ("readable", "writable"):
                mr = self.pd.reg_mr(addr=self.mr.addr, length=SIZE, access=ACCESS[name])
                self.keys[name] = stack.enter_context(mr).rkey
            if shared:
                self.srq = stack.enter_context(self._create_srq())
            self.qp = stack.enter_context(self._create_qp(sig_all))
            self.window = 0
            self.stack = stack.pop_all()

    def address(self) -> Address:
        gid = self.ctx.query_gid(1, self.gid_index)
        return Address(self.qp.qp_num, IPv6Address(gid.raw).exploded, self.mr.addr, self.keys)

    def connect(self, peer: Address, how: Connect, own_psn: int, peer_psn: int, rights: str) -> None:
        path = AHAttr(dgid=GID(peer.gid), sgid_index=self.gid_index, port_num=1, hop_limit=64)
        access = functools.reduce(
            operator.or_, (AccessFlags[f"REMOTE_{right}"] for right in rights.split()), AccessFlags(0)
        )
        self.access, self.qkey = access, how.psns[0]
        rtr: dict[str, Any] = {}
        rts: dict[str, Any] = {"sq_psn": own_psn}
        if self.service != "UD":
            mtu = MTU[f"MTU_{how.mtu}"]
            rtr = {"path_mtu": mtu, "dest_qp_num": peer.qp_num, "rq_psn": peer_psn, "ah_attr": path}
        if self.service == "RC":
            rtr |= {"max_dest_rd_atomic": how.rd_atomic, "min_rnr_timer": 12}
            rts |= {"timeout": how.timeout, "retry_cnt": how.retry_cnt, "rnr_retry": how.rnr_retry}
            rts |= {"max_rd_atomic": how.rd_atomic}
        if self.qp.state != QPState.RESET:
            self.lead("RESET")
        self.lead("INIT")
        self.qp.modify(QPAttr(qp_state=QPState.RTR, **rtr))
        self.qp.modify(QPAttr(qp_state=QPState.RTS, **rts))
        self.peer = peer
        if self.service == "UD":
            self.ah = self.stack.enter_context(self.pd.create_ah(path))

    def lead(self, state: str) -> None:
        """To RESET or INIT."""
        attr = QPAttr(qp_state=QPState.RESET)
        if state == "INIT":
            init = {"qp_access_flags": self.access} if self.service != "UD" else {"qkey": self.qkey}
            attr = QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, **init)
        self.qp.modify(attr)

    def bind(self, at: int, length: int) -> int:
        """The key of a new window."""
        mw = self.stack.enter_context(self.pd.alloc_mw(MWType.TYPE_2))
        wr = SendWR(
            opcode=WROpcode.BIND_MW,
            send_flags=SendFlags.SIGNALED,
            mw=mw,
            rkey=inc_rkey(mw.rkey),
            bind_info=MWBindInfo(self.mr, self.mr.addr + at, length, RIGHTS),
        )
        self.qp.post_send(wr)
        (done,), _ = self.collect(1, 0)
        assert done.status == "SUCCESS", done
        self.window = mw.rkey
        return mw.rkey

    def post_recv(self, receives: Iterable[tuple[int, Pieces, bool]]) -> None:
        """(number, where to, whether that is wrong); a queue pair in RESET takes none."""
        wrs = [RecvWR(n, self._sges(sg, wrong)) for n, sg, wrong in receives]
        if self.srq:
            self.srq.post_recv(wrs)
        elif not self.qp.closed and self.qp.state != QPState.RESET:
            self.qp.post_recv(wrs)

    def post_send(self, requests: Iterable[Request], chained: bool) -> None:
        wrs = [self._send_wr(request) for request in requests]
        if chained:
            self.qp.post_send(wrs)
        else:
            for wr in wrs:
                self.qp.post_send(wr)

    def refuse(self, what: str) -> str:
        return refuse(self, what)

    def caps(self) -> tuple[int, int, int, int, int]:
        cap = self.qp.cap
        receives, sges = cap.max_recv_wr, cap.max_recv_sge
        if self.srq:
            attr = self.srq.query()
            receives, sges = attr.max_wr or 0, attr.max_sge or 0
        return cap.max_send_wr, receives, cap.max_send_sge, sges, cap.max_inline_data

    def send_one(self, opcode: str, sg: Pieces, flags: tuple[str, ...]) -> None:
        self.qp.post_send(self._send_wr(Request(0, opcode, sg, flags)))

    def receive_one(self, sg: Pieces, own: bool = False) -> None:
        queue = self.qp if own or not self.srq else self.srq
        queue.post_recv(RecvWR(0, self._sges(sg)))

    def arm(self, limit: int) -> None:
        """The limit of the shared receive queue."""
        assert self.srq
        self.srq.modify(SRQAttr(srq_limit=limit))

    def events(self, number: int, timeout: float) -> list[str]:
        """So many of the shared receive queue and its queue pair, and what else is there."""
        found: list[str] = []
        limit = time.monotonic() + timeout
        while True:
            told = EVENTS.setdefault(self.ctx, [])
            told += _events(self.ctx)
            mine = [event for event in told if event[1] in (self.srq, self.qp)]
            told[:] = [event for event in told if event not in mine]
            found += [name for name, _ in mine]
            if len(found) >= number or time.monotonic() > limit:
                return found
            time.sleep(0.001)

    def collect(
        self, sent: int, received: int, timeout: float = 60.0
    ) -> tuple[list[Completion], list[Completion]]:
        """So many completions of each queue, and what else is there; fewer when they do not come in time."""
        found: list[list[Completion]] = [[], []]
        limit = time.monotonic() + timeout
        while True:
            for queue, cq in zip(found, self.cqs, strict=True):
                queue += self._completions(cq)
            if (len(found[0]) >= sent and len(found[1]) >= received) or time.monotonic() > limit:
                return found[0], found[1]
            time.sleep(0)

    def digest(self, holes: Sequence[tuple[int, int]]) -> str:
        """Of the memory, with zeros in the holes."""
        return hashlib.blake2b(known(self.buf, holes)).hexdigest()

    def memory(self) -> bytes:
        return bytes(self.buf)

    def refill(self) -> None:
        """Other bytes into OUT, as a program does that uses its buffers again."""
        self.buf[:QUARTER] = b"\xee" * QUARTER

    def state(self) -> str:
        if self.qp.closed:
            return "destroyed"
        attr, _ = self.qp.query()
        assert attr.qp_state is not None
        return attr.qp_state.name

    def break_(self, how: str) -> None:
        if how == "destroyed":
            self.qp.close()
        else:
            self.qp.modify(QPAttr(qp_state=QPState[how]))

    def renew(self, sig_all: bool) -> Address:
        """A new queue pair where the old one was destroyed; new ones of a queue pair that shares receives."""
        if self.srq:
            self.qp.close()
            self.srq.close()
            self.srq = self.stack.enter_context(self._create_srq())
        if self.qp.closed:
            self.qp = self.stack.enter_context(self._create_qp(sig_all))
        return self.address()

    def _create_qp(self, sig_all: bool) -> QP:
        send_cq, recv_cq = self.cqs
        cap = QPCap(DEPTH, DEPTH, SGES, SGES, INLINE)
        init = QPInitAttr(send_cq, recv_cq, QPType[self.service], sig_all, cap, srq=self.srq)
        return self.pd.create_qp(init)

    def _create_srq(self) -> SRQ:
        return self.pd.create_srq(SRQInitAttr(SRQAttr(DEPTH, SGES)))

    def close(self) -> None:
        self.stack.close()

    def _sges(self, sg: Pieces, wrong: bool = False) -> list[SGE]:
        lkey = self.mr.lkey ^ (BAD_KEY if wrong else 0)
        return [SGE(addr=self.mr.addr + at, length=n, lkey=lkey) for at, n in sg]

    def _send_wr(self, request: Request) -> SendWR:
        kind: dict[str, Any] = {}
        if request.opcode.startswith(("RDMA", "ATOMIC")):
            kind = {"remote_addr": request.addr, "rkey": request.rkey}
        if request.opcode.startswith("ATOMIC"):
            kind |= {"compare_add": request.compare, "swap": request.swap}
        if request.opcode.endswith("WITH_IMM"):
            kind["imm_data"] = request.imm
        if request.opcode.endswith("WITH_INV"):
            kind["invalidate_rkey"] = request.rkey
        if self.service == "UD":
            qkey = self.qkey + (request.fault == "qkey")
            kind |= {"ah": self.ah, "remote_qpn": self.peer.qp_num, "remote_qkey": qkey}
        flags = functools.reduce(operator.or_, (SendFlags[name] for name in request.flags), SendFlags(0))
        sges = self._sges(request.sg, request.fault == "local")
        return SendWR(request.wr_id, WROpcode[request.opcode], flags, sges, **kind)

    def _completions(self, cq: CQ) -> list[Completion]:
        return [self._completion(wc) for wc in cq.poll(DEPTH)]

    def _completion(self, wc: WC) -> Completion:
        if not wc.ok:
            return Completion(wc.wr_id, wc.status.name)
        length = wc.byte_len if wc.opcode.name.startswith("RECV") else None
        imm = wc.imm_data if wc.wc_flags & WCFlags.WITH_IMM else None
        invalidated = bool(wc.wc_flags & WCFlags.WITH_INV) and wc.invalidated_rkey == self.window
        return Completion(wc.wr_id, "SUCCESS", wc.opcode.name, length, imm, invalidated)


def _events(ctx: Context) -> Iterator[tuple[str, Any]]:
    """Those of shared receive queues, and what each is about."""
    while True:
        try:
            event = ctx.get_async_event(0)
        except TimeoutError:
            return
        event.ack()
        if event.event_type in (EventType.SRQ_LIMIT_REACHED, EventType.QP_LAST_WQE_REACHED):
            yield event.event_type.name, event.element
