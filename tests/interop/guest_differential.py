# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest: an end of a differential program, a queue pair of the kernel's device (through pyverbs).

    python3 guest_differential.py PORT

The protocol is that of guest_verbs.py; the calls are those of differential.runner.End.  The caller is
differential_ends.py.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import pathlib
import socket
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import pyverbs.enums as e
from guest_verbs import (
    DEVICE,
    PORT_NUM,
    QP_STATE,
    WC_OPCODE,
    WC_STATUS,
    Connection,
    flags,
    invalidates,
    serve,
)
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from differential.model import known, noise
from differential.program import DEPTH, INLINE, QUARTER, SGES, SIZE, Pieces
from differential.refused import refuse

BAD_KEY = 0x5A00  # as in differential.end
RIGHTS = "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC"
ACCESS = {
    "memory": ("LOCAL_WRITE", "MW_BIND", *RIGHTS),
    "readable": ("REMOTE_READ",),
    "writable": ("LOCAL_WRITE", "REMOTE_WRITE"),
}


class End:
    """Of one queue pair after the other; everything else stays."""

    def __init__(self) -> None:
        self.context = Context(name=DEVICE)
        self.pd = PD(self.context)
        self.cqs = [CQ(self.context, 4 * DEPTH) for _ in range(2)]
        self.qp: QP | None = None
        self.srq: SRQ | None = None
        self.windows: list[MW] = []
        self.window = 0
        self.handles: list[AH] = []

    def open(self, gid: str, service: str, sig_all: bool, shared: bool, seed: int) -> None:
        self.shared = shared
        self.service, self.sig_all, self.gid = service, sig_all, gid
        self.mr = MR(self.pd, SIZE, flags("IBV_ACCESS_", list(ACCESS["memory"])))
        self.mr.write(noise(seed), SIZE)
        self.mrs = {"memory": self.mr}
        for name in ("readable", "writable"):
            access = flags("IBV_ACCESS_", list(ACCESS[name]))
            self.mrs[name] = MR(self.pd, SIZE, access, address=self.mr.buf)
        self.gid_index = next(
            i for i in range(16) if str(self.context.query_gid(PORT_NUM, i)) == str(GID(gid))
        )

    def renew(self) -> dict[str, Any]:
        """A queue pair in RESET, new if it shares receives, and what the peer must know."""
        if self.shared:
            self._drop_windows()
            for old in (self.qp, self.srq):
                if old:
                    old.close()
            self.qp, self.srq = None, SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=DEPTH, max_sge=SGES)))
        if self.qp is None:
            cap = QPCap(DEPTH, DEPTH, SGES, SGES, INLINE)
            kind = getattr(e, f"IBV_QPT_{self.service}")
            init = QPInitAttr(
                qp_type=kind,
                scq=self.cqs[0],
                rcq=self.cqs[1],
                srq=self.srq,
                cap=cap,
                sq_sig_all=self.sig_all,
            )
            self.qp = QP(self.pd, init)
        keys = {name: mr.rkey for name, mr in self.mrs.items()}
        return {"qp_num": self.qp.qp_num, "gid": self.gid, "addr": self.mr.buf, "keys": keys}

    def connect(
        self, peer: dict[str, Any], how: dict[str, Any], own_psn: int, peer_psn: int, rights: str
    ) -> None:
        assert self.qp
        self.peer = peer
        route = GlobalRoute(dgid=GID(peer["gid"]), sgid_index=self.gid_index, hop_limit=64)
        path = AHAttr(gr=route, is_global=1, port_num=PORT_NUM)
        self.access, self.qkey = flags("IBV_ACCESS_REMOTE_", rights.split()), how["psns"][0]
        self.lead("RESET")
        self.lead("INIT")
        if self.service == "UD":
            self._to("RTR", e.IBV_QP_STATE, QPAttr())
            attr = QPAttr()
            attr.sq_psn = own_psn
            self._to("RTS", e.IBV_QP_STATE | e.IBV_QP_SQ_PSN, attr)
            self.ah = AH(self.pd, attr=path)
            self.handles.append(self.ah)
            return
        attr = QPAttr()
        attr.ah_attr, attr.path_mtu = path, getattr(e, f"IBV_MTU_{how['mtu']}")
        attr.dest_qp_num, attr.rq_psn = peer["qp_num"], peer_psn
        mask = e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
        if self.service == "RC":
            attr.max_dest_rd_atomic, attr.min_rnr_timer = how["rd_atomic"], 12
            mask |= e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER
        self._to("RTR", mask, attr)
        attr = QPAttr()
        attr.sq_psn = own_psn
        mask = e.IBV_QP_STATE | e.IBV_QP_SQ_PSN
        if self.service == "RC":
            attr.timeout, attr.retry_cnt, attr.rnr_retry = how["timeout"], how["retry_cnt"], how["rnr_retry"]
            attr.max_rd_atomic = how["rd_atomic"]
            mask |= e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_MAX_QP_RD_ATOMIC
        self._to("RTS", mask, attr)

    def lead(self, state: str) -> None:
        """To RESET or INIT."""
        if state == "RESET":
            self._drop_windows()
            self._to("RESET", e.IBV_QP_STATE, QPAttr())
            return
        attr = QPAttr(port_num=PORT_NUM)
        mask = e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT
        if self.service == "UD":
            attr.qkey = self.qkey
            mask |= e.IBV_QP_QKEY
        else:
            attr.qp_access_flags = self.access
            mask |= e.IBV_QP_ACCESS_FLAGS
        self._to("INIT", mask, attr)

    def bind(self, at: int, length: int) -> int:
        """A new window each time: pyverbs does not note the new key in the window."""
        assert self.qp
        mw = MW(self.pd, e.IBV_MW_TYPE_2)
        self.windows.append(mw)
        wr = SendWR(opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED)
        info = MWBindInfo(self.mr, self.mr.buf + at, length, flags("IBV_ACCESS_", list(RIGHTS)))
        wr.set_bind_wr(mw, info)
        self.qp.post_send(wr)
        (done,), _ = self.collect(1, 0, 20)
        assert done[1] == "SUCCESS", done
        self.window = int(wr.rkey)
        return self.window

    def post_recv(self, receives: list[tuple[int, list[list[int]], bool]]) -> None:
        queue = self.srq or self.qp
        if self.srq or (self.qp and self.state() != "RESET"):
            for number, sg, wrong in receives:
                sges = self._sges(sg or [[0, 0]], wrong)  # pyverbs wants at least one
                queue.post_recv(RecvWR(wr_id=number, num_sge=len(sges), sg=sges))

    def post_send(self, requests: list[dict[str, Any]]) -> None:
        assert self.qp
        for request in requests:
            self.qp.post_send(self._send_wr(**request))

    def refuse(self, what: str) -> str:
        return refuse(self, what)

    def caps(self) -> tuple[int, int, int, int, int]:
        assert self.qp
        attr, _ = self.qp.query(e.IBV_QP_CAP)
        cap = attr.cap
        receives, sges = cap.max_recv_wr, cap.max_recv_sge
        if self.srq:
            shared = self.srq.query()
            receives, sges = shared.max_wr, shared.max_sge
        return cap.max_send_wr, receives, cap.max_send_sge, sges, cap.max_inline_data

    def send_one(self, opcode: str, sg: Pieces, names: tuple[str, ...]) -> None:
        assert self.qp
        self.qp.post_send(self._send_wr(0, opcode, sg, names, 0, 0, 0, 0, 0, ""))

    def arm(self, limit: int) -> None:
        assert self.srq
        self.srq.modify(SrqAttr(srq_limit=limit), int(e.IBV_SRQ_LIMIT))

    def events(self, number: int, timeout: float) -> list[str]:
        """So many, and what else is there; pyverbs waits with the interpreter in its hands."""
        found: list[str] = []
        limit = time.monotonic() + timeout
        dont_wait_for_events()
        while True:
            with contextlib.suppress(PyverbsError):
                while True:
                    event = self.context.get_async_event()
                    found.append(e.ibv_event_type(int(event.event_type)).name.removeprefix("IBV_EVENT_"))
                    event.ack()
            if len(found) >= number or time.monotonic() > limit:
                return [name for name in found if name in ("SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED")]
            time.sleep(0.0005)

    def receive_one(self, sg: Pieces, own: bool = False) -> None:
        queue = self.qp if own or not self.srq else self.srq
        assert queue
        queue.post_recv(RecvWR(wr_id=0, num_sge=len(sg), sg=self._sges(sg, False)))

    def collect(self, sent: int, received: int, timeout: float) -> list[list[list[Any]]]:
        found: list[list[list[Any]]] = [[], []]
        limit = time.monotonic() + timeout
        while True:
            for queue, cq in zip(found, self.cqs, strict=True):
                _, wcs = cq.poll(DEPTH)
                queue += [self._completion(wc) for wc in wcs]
            if (len(found[0]) >= sent and len(found[1]) >= received) or time.monotonic() > limit:
                return found
            time.sleep(0.0005)

    def digest(self, holes: list[list[int]]) -> str:
        return hashlib.blake2b(known(self.mr.read(SIZE, 0), holes)).hexdigest()

    def memory(self) -> str:
        return base64.b64encode(self.mr.read(SIZE, 0)).decode()

    def refill(self) -> None:
        self.mr.write(b"\xee" * QUARTER, QUARTER)

    def state(self) -> str:
        if self.qp is None:
            return "destroyed"
        attr, _ = self.qp.query(e.IBV_QP_STATE)
        return str(QP_STATE[int(attr.qp_state)])

    def break_(self, how: str) -> None:
        assert self.qp
        self._drop_windows()
        if how == "destroyed":
            self.qp.close()
            self.qp = None
        else:
            self._to(how, e.IBV_QP_STATE, QPAttr())

    def close(self) -> None:
        self._drop_windows()
        for handle in self.handles:
            handle.close()
        self.context.close()

    def _drop_windows(self) -> None:
        """Before the queue pair, which a bound one holds."""
        for mw in self.windows:
            mw.close()
        self.windows.clear()

    def _to(self, state: str, mask: int, attr: QPAttr) -> None:
        assert self.qp
        attr.qp_state = getattr(e, f"IBV_QPS_{state}")
        self.qp.modify(attr, int(mask))

    def _sges(self, sg: Any, wrong: bool) -> list[SGE]:
        lkey = self.mr.lkey ^ (BAD_KEY if wrong else 0)
        return [SGE(self.mr.buf + at, length, lkey) for at, length in sg]

    def _send_wr(
        self,
        wr_id: int,
        opcode: str,
        sg: Any,
        flags: Any,
        addr: int,
        rkey: int,
        imm: int,
        compare: int,
        swap: int,
        fault: str,
    ) -> SendWR:
        sges = self._sges(sg, fault == "local")
        wr = SendWR(
            wr_id=wr_id,
            num_sge=len(sges),
            sg=sges,
            opcode=getattr(e, f"IBV_WR_{opcode}"),
            imm_data=rkey if opcode.endswith("_INV") else socket.htonl(imm),  # a union
            send_flags=sum(int(getattr(e, f"IBV_SEND_{name}")) for name in flags),
        )
        if opcode.startswith("RDMA"):
            wr.set_wr_rdma(rkey, addr)
        elif opcode.startswith("ATOMIC"):
            wr.set_wr_atomic(rkey, addr, compare, swap)
        if self.service == "UD":
            wr.set_wr_ud(self.ah, self.peer["qp_num"], self.qkey + (fault == "qkey"))
        return wr

    def _completion(self, wc: Any) -> list[Any]:
        """The fields of differential.model.Completion."""
        status = WC_STATUS[int(wc.status)]
        if status != "SUCCESS":
            return [wc.wr_id, status]
        opcode = WC_OPCODE.get(int(wc.opcode), str(wc.opcode))
        received = opcode.startswith("RECV")
        with_imm = received and bool(int(wc.wc_flags) & e.IBV_WC_WITH_IMM)
        with_inv = received and invalidates(wc)
        return [
            wc.wr_id,
            status,
            opcode,
            wc.byte_len if received else None,
            socket.ntohl(wc.imm_data) if with_imm else None,
            with_inv and wc.imm_data == self.window,  # a union
        ]


def dont_wait_for_events() -> None:
    """Every context's get_async_event() says at once that there is none."""
    for fd in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "infinibandevent" in str(fd.readlink()):
                os.set_blocking(int(fd.name), False)


class Differential(Connection):
    end_type = End


if __name__ == "__main__":
    serve(int(sys.argv[1]), Differential)
