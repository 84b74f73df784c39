# SPDX-License-Identifier: Apache-2.0
"""An end of a connection that is a QP of rnic in this process."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Iterable
from typing import Any

from ends import ALL_ACCESS, SG, Address, Completion, Path, Send, gid_of

import rnic
from rnic import (
    GID,
    MTU,
    MW,
    SGE,
    AccessFlags,
    AHAttr,
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
    WCFlags,
    WROpcode,
    inc_rkey,
)


def gid_index(context: rnic.Context, ip: str) -> int:
    """Where an address stands in the GID table of rnic's device."""
    return next(entry.gid_index for entry in context.query_gid_table() if entry.gid == GID(ip))


class RnicEnd:
    in_order = True

    def __init__(
        self,
        context: rnic.Context,
        ip: str,
        *,
        length: int,
        psn: int = 0x654321,
        access: Iterable[str] = ALL_ACCESS,
        rd_atomic: int = 16,
    ) -> None:
        self.rd_atomic = rd_atomic
        self._gid_index = gid_index(context, ip)
        self._make(context, length, access)
        self.address = Address(self.qp.qp_num, psn, gid_of(ip), self._mr.addr, self._mr.rkey)

    def _make(self, context: rnic.Context, length: int, access: Iterable[str]) -> None:
        """Memory, and a queue pair in INIT."""
        flags = _flags(access)
        self._pd = context.alloc_pd()
        self._cq = context.create_cq(2048)
        self._memory = bytearray(length)
        self._mr = self._pd.reg_mr(self._memory, flags)
        self._windows: list[MW] = []
        cap = QPCap(max_send_wr=256, max_recv_wr=256, max_send_sge=4, max_recv_sge=4, max_inline_data=256)
        self.qp = self._pd.create_qp(
            QPInitAttr(send_cq=self._cq, recv_cq=self._cq, qp_type=QPType.RC, sq_sig_all=False, cap=cap)
        )
        self.qp.modify(
            QPAttr(
                qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=flags & ~AccessFlags.MW_BIND
            )
        )

    def connect(self, remote: Address, path: Path) -> None:
        self.qp.modify(
            QPAttr(
                qp_state=QPState.RTR,
                path_mtu=MTU[f"MTU_{path.mtu}"],
                dest_qp_num=remote.qp_num,
                rq_psn=remote.psn,
                max_dest_rd_atomic=self.rd_atomic,
                min_rnr_timer=12,
                ah_attr=AHAttr(dgid=GID(remote.gid), sgid_index=self._gid_index, port_num=1, hop_limit=64),
            )
        )
        self.qp.modify(
            QPAttr(
                qp_state=QPState.RTS,
                timeout=path.timeout,
                retry_cnt=path.retry_cnt,
                rnr_retry=path.rnr_retry,
                sq_psn=self.address.psn,
                max_rd_atomic=self.rd_atomic,
            )
        )

    def store(self, offset: int, data: bytes) -> None:
        memoryview(self._memory)[offset : offset + len(data)] = data

    def load(self, offset: int, length: int) -> bytes:
        return bytes(memoryview(self._memory)[offset : offset + length])

    def post_recv(self, wr_id: int, sg: SG) -> None:
        self.qp.post_recv(RecvWR(wr_id=wr_id, sg_list=self._sges(sg)))

    def post_send(self, *wrs: Send) -> None:
        self.qp.post_send([self._send_wr(wr) for wr in wrs])

    def bind_mw(self, offset: int, length: int, access: Iterable[str]) -> int:
        mw = self._pd.alloc_mw(MWType.TYPE_2)
        self._windows.append(mw)
        info = MWBindInfo(self._mr, self._mr.addr + offset, length, _flags(access))
        self.qp.post_send(
            SendWR(
                opcode=WROpcode.BIND_MW,
                send_flags=SendFlags.SIGNALED,
                mw=mw,
                rkey=inc_rkey(mw.rkey),
                bind_info=info,
            )
        )
        return mw.rkey

    def poll(self, n: int, timeout: float = 60) -> list[Completion]:
        found: list[Completion] = []
        end = time.monotonic() + timeout
        while len(found) < n and time.monotonic() < end:
            found += [_completion(wc) for wc in self._cq.poll(n - len(found))]
        return found

    def state(self) -> str:
        attr, _ = self.qp.query()
        assert attr.qp_state is not None
        return attr.qp_state.name

    def close(self) -> None:
        for thing in (self.qp, *self._windows, self._mr, self._cq, self._pd):
            thing.close()

    def _sges(self, sg: SG) -> list[SGE]:
        return [SGE(self._mr, offset=offset, length=length) for offset, length in sg]

    def _send_wr(self, wr: Send) -> SendWR:
        kind: dict[str, Any] = {}
        if wr.opcode.startswith(("RDMA", "ATOMIC")):
            kind = {"remote_addr": wr.remote_addr, "rkey": wr.rkey}
        if wr.opcode.startswith("ATOMIC"):
            kind |= {"compare_add": wr.compare_add, "swap": wr.swap}
        if wr.opcode.endswith("WITH_IMM"):
            kind["imm_data"] = wr.imm_data
        if wr.opcode.endswith("_INV"):
            kind["invalidate_rkey"] = wr.invalidate_rkey
        return SendWR(
            wr_id=wr.wr_id,
            opcode=WROpcode[wr.opcode],
            send_flags=functools.reduce(
                operator.or_, (SendFlags[name] for name in wr.send_flags), SendFlags(0)
            ),
            sg_list=self._sges(wr.sg),
            **kind,
        )


def _flags(names: Iterable[str]) -> AccessFlags:
    return functools.reduce(operator.or_, (AccessFlags[name] for name in names), AccessFlags(0))


def _completion(wc: Any) -> Completion:
    imm_data = wc.imm_data if wc.wc_flags & WCFlags.WITH_IMM else None
    invalidated = wc.invalidated_rkey if wc.wc_flags & WCFlags.WITH_INV else None
    return Completion(wc.wr_id, wc.status.name, wc.opcode.name, wc.byte_len, imm_data, invalidated)
