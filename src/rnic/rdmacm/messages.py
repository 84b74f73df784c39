# SPDX-License-Identifier: Apache-2.0
"""Short calls for memory and work of an id's queue pair: rdma/rdma_verbs.h (rdma_post_send(3) and others)."""

from __future__ import annotations

from collections.abc import Sequence
from errno import EINVAL
from typing import Any

from rnic._nic import nic
from rnic.enums import AccessFlags, SendFlags, WROpcode
from rnic.errors import VerbsError
from rnic.rdmacm.id_base import IdBase
from rnic.times import seconds
from rnic.verbs.ah import AH
from rnic.verbs.qp import QP

Bytes = nic.MR | nic.SGE
"""Memory for a work request: a whole region, or a part of one."""


class Messages(IdBase):
    """Calls of a CmId for its queue pair, its protection domain and its completion queues."""

    # ------------------------------------------------------------------ memory

    def _reg(self, buffer: Any, access: AccessFlags, verb: str) -> nic.MR:
        if self.pd is None:
            raise VerbsError(EINVAL, "the id has no protection domain: create_qp() first", verb)
        return self.pd.reg_mr(buffer, access)

    def reg_msgs(self, buffer: Any) -> nic.MR:
        """Register memory to send from and receive into (rdma_reg_msgs(3))."""
        return self._reg(buffer, AccessFlags.LOCAL_WRITE, "reg_msgs")

    def reg_read(self, buffer: Any) -> nic.MR:
        """Register memory that the peer may read (rdma_reg_read(3))."""
        return self._reg(buffer, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ, "reg_read")

    def reg_write(self, buffer: Any) -> nic.MR:
        """Register memory that the peer may write (rdma_reg_write(3))."""
        return self._reg(buffer, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE, "reg_write")

    # ------------------------------------------------------------------ work

    def _qp(self, verb: str) -> QP:
        if self.qp is None:
            raise VerbsError(EINVAL, "the id has no queue pair: create_qp() first", verb)
        return self.qp

    def _send(
        self, verb: str, opcode: WROpcode, wr_id: int, pieces: Sequence[Bytes], flags: SendFlags, **more: Any
    ) -> None:
        wr = nic.SendWR(wr_id, opcode, flags, [_sge(piece) for piece in pieces], **more)
        self._qp(verb).post_send(wr)

    def post_recv(self, *pieces: Bytes, wr_id: int = 0) -> None:
        """Post a receive (rdma_post_recv(3), rdma_post_recvv(3)); it may precede connect() and accept().

        If the id has a shared receive queue (create_srq()), the receive is posted there.
        """
        to = self._qp("post_recv") if self.srq is None else self.srq
        to.post_recv(nic.RecvWR(wr_id, [_sge(piece) for piece in pieces]))

    def post_send(
        self,
        *pieces: Bytes,
        wr_id: int = 0,
        flags: SendFlags = SendFlags.SIGNALED,
        imm_data: int | None = None,
    ) -> None:
        """Post a SEND (rdma_post_send(3), rdma_post_sendv(3)), with 32 bits of immediate data if `imm_data`
        is given.
        """
        opcode = WROpcode.SEND if imm_data is None else WROpcode.SEND_WITH_IMM
        self._send("post_send", opcode, wr_id, pieces, flags, imm_data=imm_data or 0)

    def post_read(
        self,
        *pieces: Bytes,
        remote_addr: int,
        rkey: int,
        wr_id: int = 0,
        flags: SendFlags = SendFlags.SIGNALED,
    ) -> None:
        """Post an RDMA READ of the peer's memory (rdma_post_read(3), rdma_post_readv(3))."""
        where = {"remote_addr": remote_addr, "rkey": rkey}
        self._send("post_read", WROpcode.RDMA_READ, wr_id, pieces, flags, **where)

    def post_write(
        self,
        *pieces: Bytes,
        remote_addr: int,
        rkey: int,
        wr_id: int = 0,
        flags: SendFlags = SendFlags.SIGNALED,
    ) -> None:
        """Post an RDMA WRITE to the peer's memory (rdma_post_write(3), rdma_post_writev(3))."""
        where = {"remote_addr": remote_addr, "rkey": rkey}
        self._send("post_write", WROpcode.RDMA_WRITE, wr_id, pieces, flags, **where)

    def post_ud_send(
        self,
        *pieces: Bytes,
        ah: AH,
        remote_qpn: int,
        remote_qkey: int,
        wr_id: int = 0,
        flags: SendFlags = SendFlags.SIGNALED,
    ) -> None:
        """Post a datagram (rdma_post_ud_send(3)); unlike the C function it needs the Q_Key."""
        to = {"ah": ah, "remote_qpn": remote_qpn, "remote_qkey": remote_qkey}
        self._send("post_ud_send", WROpcode.SEND, wr_id, pieces, flags, **to)

    # ------------------------------------------------------------------ completions

    def get_send_comp(self, timeout: float | None = None) -> nic.WC:
        """Wait for a send completion (rdma_get_send_comp(3)); TimeoutError after `timeout` seconds."""
        return _next(self.send_cq, "get_send_comp", timeout)

    def get_recv_comp(self, timeout: float | None = None) -> nic.WC:
        """Wait for a receive completion (rdma_get_recv_comp(3)); TimeoutError after `timeout` seconds."""
        return _next(self.recv_cq, "get_recv_comp", timeout)


def _sge(piece: Bytes) -> nic.SGE:
    return piece if isinstance(piece, nic.SGE) else nic.SGE(piece)


def _next(cq: nic.CQ | None, verb: str, timeout: float | None) -> nic.WC:
    """Wait for the next completion: arm the queue, then look into it once more, then sleep."""
    seconds(timeout)  # whether or not it is waited
    if cq is None:
        raise VerbsError(EINVAL, "the id has no completion queue: create_qp() first", verb)
    if done := cq.poll(1):
        return done[0]
    if cq.channel is None:
        raise VerbsError(EINVAL, "the completion queue has no channel to wait on", verb)
    while True:
        cq.req_notify()
        if done := cq.poll(1):
            return done[0]
        cq.channel.get_cq_event(timeout).ack_events()
