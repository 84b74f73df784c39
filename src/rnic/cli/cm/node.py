# SPDX-License-Identifier: Apache-2.0
"""An id with a queue pair and memory for its messages; ucmatose, udaddy and mckey have many of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import rnic
from rnic.cli.cm.waiting import Waiter
from rnic.cli.endpoint import check
from rnic.cli.params import Failure
from rnic.rdmacm import CmId
from rnic.records import Record

GRH_BYTES = 40  # ahead of a datagram that was received


class Load(Record):
    """The messages of each connection, in each direction."""

    count: int
    size: int

    @classmethod
    def of(cls, count: int, size: int) -> Load:
        """The load of the command line; messages of 0 bytes are not sent, as by the originals."""
        return cls(count if size else 0, size)


class Node:
    """One id, from its first state to its last; `close()` ends it."""

    def __init__(self, cm_id: CmId, number: int, load: Load) -> None:
        self.id, self.number, self.load = cm_id, number, load
        cm_id.context = self
        self.connected = False  # messages can be sent
        self.gone = False  # the peer has disconnected
        self.buffer = bytearray()
        self._mr: rnic.MR | None = None
        self._ah: rnic.AH | None = None  # of datagrams, and whom it leads to
        self._remote_qpn = self._remote_qkey = 0
        self._stack = ExitStack()
        self._stack.callback(cm_id.destroy)

    def close(self) -> None:
        """Destroy the id and everything that belongs to it."""
        self._stack.close()

    def create_qp(self) -> None:
        """Create the queue pair, and the memory in which each message overwrites the last."""
        depth = max(self.load.count, 1)
        cap = rnic.QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=1, max_recv_sge=1)
        self.id.create_qp(cap=cap, sq_sig_all=True)
        self._stack.callback(self.id.destroy_qp)
        if self.load.count:
            self.buffer = bytearray(self._header() + self.load.size)
            self._mr = self._stack.enter_context(self.id.reg_msgs(self.buffer))

    def _header(self) -> int:
        return GRH_BYTES if self.id.qp_type is rnic.QPType.UD else 0

    def check_size(self) -> None:
        """Raise Failure if the messages are longer than a datagram can be."""
        assert self.id.verbs is not None
        mtu = self.id.verbs.query_port(self.id.port_num).active_mtu.nbytes
        if self.load.count and self.load.size > mtu:
            raise Failure(
                f"-S {self.load.size}: a datagram is one packet, and the port's MTU is {mtu}: choose less"
            )

    def lead_to(self, ah_attr: rnic.AHAttr, qpn: int, qkey: int) -> None:
        """The destination of the datagrams; None before it is known."""
        assert self.id.pd is not None
        self._ah = self._stack.enter_context(self.id.pd.create_ah(ah_attr))
        self._remote_qpn, self._remote_qkey = qpn, qkey

    @property
    def has_way(self) -> bool:
        """Whether the destination of the datagrams is known."""
        return self._ah is not None

    # ------------------------------------------------------------------ messages

    def post_recvs(self) -> None:
        """Post a receive for each expected message."""
        assert self.id.qp is not None
        if self._mr is not None:
            self.id.qp.post_recv([rnic.RecvWR(sg_list=[rnic.SGE(self._mr)]) for _ in range(self.load.count)])

    def post_sends(self) -> None:
        """Post all messages at once; the immediate data of a datagram is the number of the queue pair for the
        answer.
        """
        assert self.id.qp is not None
        if self._mr is None:
            return
        opcode = rnic.WROpcode.SEND if self._ah is None else rnic.WROpcode.SEND_WITH_IMM
        out = rnic.SGE(self._mr, 0, self.load.size)
        wrs = [
            rnic.SendWR(
                opcode=opcode,
                sg_list=[out],
                imm_data=self.id.qp.qp_num,
                ah=self._ah,
                remote_qpn=self._remote_qpn,
                remote_qkey=self._remote_qkey,
            )
            for _ in range(self.load.count)
        ]
        self.id.qp.post_send(wrs)

    def sent(self, waiter: Waiter) -> None:
        """Wait until all messages are sent."""
        for _ in self._completions(waiter, self.id.send_cq, "sent"):
            pass

    def received(self, waiter: Waiter) -> Iterator[rnic.WC]:
        """Wait for all messages."""
        return self._completions(waiter, self.id.recv_cq, "received")

    def _completions(self, waiter: Waiter, cq: rnic.CQ | None, what: str) -> Iterator[rnic.WC]:
        assert cq is not None
        for done in range(self.load.count):
            doing = f"connection {self.number}: {done} of {self.load.count} messages {what}"
            wc = waiter.completion(cq, doing, lambda: self.gone)
            if wc is None:
                raise Failure(f"{doing}: the peer has disconnected")
            yield check(wc)
