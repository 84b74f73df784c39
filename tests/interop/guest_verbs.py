# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest: a queue pair of the kernel's device, driven from the tests over TCP (through pyverbs).

    python3 guest_verbs.py PORT

Each connection is one end of an RC connection: a QP, a CQ and one memory region, all gone when it closes.
A request is a JSON object a line, {"op": name of a method of End, and its arguments}; the answer is
{"result"} or {"error"}.  Names of opcodes, statuses and flags go as strings without their prefix.  The caller
is ends.py.
"""

from __future__ import annotations

import base64
import json
import socket
import socketserver
import sys
import time
from typing import Any

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

DEVICE, PORT_NUM = "rxe0", 1

WC_STATUS = {int(v): v.name.removeprefix("IBV_WC_") for v in e.ibv_wc_status}
WC_OPCODE = {int(v): v.name.removeprefix("IBV_WC_") for v in e.ibv_wc_opcode}
QP_STATE = {int(v): v.name.removeprefix("IBV_QPS_") for v in e.ibv_qp_state}


def flags(prefix: str, names: list[str]) -> int:
    return sum(int(getattr(e, prefix + name)) for name in names)


def invalidates(wc: Any) -> bool:
    """rdma_rxe hands out the kernel's own flag, IB_WC_WITH_INVALIDATE, which is IP_CSUM_OK to libibverbs."""
    return bool(int(wc.wc_flags) & (e.IBV_WC_WITH_INV | e.IBV_WC_IP_CSUM_OK))


class End:
    device, inline = DEVICE, 256

    def __init__(self) -> None:
        self.context = Context(name=self.device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 2048)
        self.windows: list[MW] = []

    def open(self, gid: str, length: int, access: list[str], rd_atomic: int) -> dict[str, int]:
        """Make the region and the QP, which is then in INIT."""
        self.access, self.rd_atomic = flags("IBV_ACCESS_", access), rd_atomic
        self.gid_index = self._gid_index(gid)
        return self.make(length)

    def make(self, length: int) -> dict[str, int]:
        self.mr = MR(self.pd, length, self.access)
        self.mr.write(bytes(length), length)
        most = {"max_send_wr": 256, "max_recv_wr": 256, "max_send_sge": 4, "max_recv_sge": 4}
        cap = QPCap(**most, max_inline_data=self.inline)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0)
        self.qp = QP(self.pd, init, self._attr())
        return {"qp_num": self.qp.qp_num, "addr": self.mr.buf, "rkey": self.mr.rkey}

    def connect(self, qp_num: int, gid: str, rq_psn: int, sq_psn: int, path: dict[str, int]) -> None:
        """Take the QP to RTS towards a remote one."""
        attr = self._attr()
        route = GlobalRoute(dgid=GID(gid), sgid_index=self.gid_index, hop_limit=64)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=PORT_NUM)
        attr.path_mtu = getattr(e, f"IBV_MTU_{path['mtu']}")
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = qp_num, rq_psn, sq_psn
        attr.max_rd_atomic = attr.max_dest_rd_atomic = self.rd_atomic
        attr.min_rnr_timer, attr.timeout = 12, path["timeout"]
        attr.retry_cnt, attr.rnr_retry = path["retry_cnt"], path["rnr_retry"]
        self.qp.to_rts(attr)

    def store(self, offset: int, data: str) -> None:
        """Put base64-coded bytes into the region."""
        raw = base64.b64decode(data)
        self.mr.write(raw, len(raw), offset)

    def load(self, offset: int, length: int) -> str:
        """The region's bytes, base64-coded."""
        return base64.b64encode(self.mr.read(length, offset)).decode() if length else ""

    def post_recv(self, wr_id: int, sg: list[list[int]]) -> None:
        sg = sg or [[0, 0]]  # pyverbs wants at least one
        self.qp.post_recv(RecvWR(wr_id=wr_id, num_sge=len(sg), sg=self._sges(sg)))

    def post_send(self, wrs: list[dict[str, Any]]) -> None:
        for wr in wrs:
            self.qp.post_send(self._send_wr(**wr))

    def bind_mw(self, offset: int, length: int, access: list[str]) -> int:
        """Post a bind of a new memory window of type 2; its key.

        A new one each time: pyverbs does not note the new key in the window, and the kernel wants to be told
        the present one.
        """
        mw = MW(self.pd, e.IBV_MW_TYPE_2)
        self.windows.append(mw)
        wr = SendWR(opcode=e.IBV_WR_BIND_MW)
        wr.set_bind_wr(mw, MWBindInfo(self.mr, self.mr.buf + offset, length, flags("IBV_ACCESS_", access)))
        self.qp.post_send(wr)
        return int(wr.rkey)

    def poll(self, n: int, timeout: float) -> list[dict[str, Any]]:
        """The next n completions, fewer when they have not come after timeout seconds."""
        found: list[dict[str, Any]] = []
        end = time.monotonic() + timeout
        while len(found) < n and time.monotonic() < end:
            got, wcs = self.cq.poll(n - len(found))
            found += [_completion(wc) for wc in wcs]
            if not got:
                time.sleep(0.001)
        return found

    def state(self) -> str:
        attr, _ = self.qp.query(e.IBV_QP_STATE)
        return str(QP_STATE[int(attr.qp_state)])

    def close(self) -> None:
        for mw in self.windows:  # before the queue pair, which a bound one holds
            mw.close()
        self.context.close()

    def _attr(self) -> QPAttr:
        attr = QPAttr(port_num=PORT_NUM)
        attr.qp_access_flags = self.access & ~e.IBV_ACCESS_MW_BIND
        return attr

    def _gid_index(self, gid: str) -> int:
        for index in range(16):
            if str(self.context.query_gid(PORT_NUM, index)) == str(GID(gid)):
                return index
        raise LookupError(f"{self.device} has no GID {gid}")

    def _sges(self, sg: list[list[int]]) -> list[SGE]:
        return [SGE(self.mr.buf + offset, length, self.mr.lkey) for offset, length in sg]

    def _send_wr(
        self,
        wr_id: int,
        opcode: str,
        sg: list[list[int]],
        send_flags: list[str],
        remote_addr: int,
        rkey: int,
        imm_data: int,
        compare_add: int,
        swap: int,
        invalidate_rkey: int,
    ) -> SendWR:
        wr = SendWR(
            wr_id=wr_id,
            num_sge=len(sg),
            sg=self._sges(sg),
            opcode=getattr(e, f"IBV_WR_{opcode}"),
            imm_data=invalidate_rkey if opcode.endswith("_INV") else socket.htonl(imm_data),  # a union
            send_flags=flags("IBV_SEND_", send_flags),
        )
        if opcode.startswith("RDMA"):
            wr.set_wr_rdma(rkey, remote_addr)
        elif opcode.startswith("ATOMIC"):
            wr.set_wr_atomic(rkey, remote_addr, compare_add, swap)
        return wr


def _completion(wc: Any) -> dict[str, Any]:
    opcode = WC_OPCODE.get(int(wc.opcode), str(wc.opcode))
    received = opcode.startswith("RECV")
    with_imm = received and bool(int(wc.wc_flags) & e.IBV_WC_WITH_IMM)
    with_inv = received and invalidates(wc)
    return {
        "wr_id": wc.wr_id,
        "status": WC_STATUS[int(wc.status)],
        "opcode": opcode,
        "byte_len": wc.byte_len,
        "imm_data": socket.ntohl(wc.imm_data) if with_imm else None,
        "invalidated_rkey": wc.imm_data if with_inv else None,  # a union
    }


class Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    end_type: type[Any] = End

    def handle(self) -> None:
        end = self.end_type()
        try:
            for line in self.rfile:
                request = json.loads(line)
                answer: dict[str, Any] = {}
                try:
                    answer["result"] = getattr(end, request.pop("op"))(**request)
                except Exception as error:  # whatever it was, the caller shows it
                    answer["error"] = f"{type(error).__name__}: {error}"
                self.wfile.write(json.dumps(answer).encode() + b"\n")
        finally:
            end.close()


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def serve(port: int, connection: type[Connection]) -> None:
    with Server(("", port), connection) as server:
        print("ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Connection)
