# SPDX-License-Identifier: Apache-2.0
"""What a transport.node.Node can be asked to do with datagrams; transport.worker.Worker inherits it."""

from __future__ import annotations

import socket
import struct
from contextlib import ExitStack
from dataclasses import dataclass, field
from errno import errorcode
from time import monotonic
from typing import Any

import rnic
from rnic import (
    GID,
    SGE,
    AccessFlags,
    AHAttr,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    Route,
    SendFlags,
    SendWR,
    WROpcode,
)

QKEY = 0x11223344
GSI_QKEY = 0x80010000
DEPTH = 32  # receives posted
ROOM = 40 + 4096  # bytes of each


@dataclass(frozen=True)
class Received:
    """A datagram as its receiver found it."""

    payload: bytes
    grh: bytes
    route: Route
    src_qp: int
    imm_data: int | None
    byte_len: int


@dataclass
class Datagrams:
    """One queue pair with its own completion queue and memory; its context may be another one's."""

    ctx: rnic.Context
    pd: rnic.PD
    cq: rnic.CQ
    qp: rnic.QP
    memory: rnic.MR
    index: int
    stack: ExitStack
    completions: list[rnic.WC] = field(default_factory=list)
    listeners: dict[int, Any] = field(default_factory=dict)


class DatagramWorker:
    """The methods of a node.  An end is known by the name that dg_open() gave it."""

    datagrams: dict[str, Datagrams]
    plain: socket.socket

    def dg_open(
        self,
        name: str = "main",
        *,
        address: str = "127.0.0.1",
        qp_type: QPType = QPType.UD,
        qkey: int = QKEY,
        beside: str | None = None,
        device: str = "roce_lo",
        receives: int = DEPTH,
        room: int = ROOM,
    ) -> int:
        """A queue pair in RTS with receives posted, its context its own or another one's. Its number."""
        with ExitStack() as stack:
            if beside:
                ctx, pd = self.datagrams[beside].ctx, self.datagrams[beside].pd
            else:
                ctx = stack.enter_context(rnic.open_device(device))
                pd = stack.enter_context(ctx.alloc_pd())
            cq = stack.enter_context(ctx.create_cq(4 * DEPTH))
            memory = stack.enter_context(pd.alloc_mr((DEPTH + 1) * ROOM, AccessFlags.LOCAL_WRITE))
            qp = stack.enter_context(pd.create_qp(QPInitAttr(cq, cq, qp_type)))
            entries = {entry.gid: entry.gid_index for entry in ctx.query_gid_table()}
            qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qkey=qkey))
            qp.modify(QPAttr(qp_state=QPState.RTR))
            qp.modify(QPAttr(qp_state=QPState.RTS, sq_psn=0))
            for i in range(receives):
                qp.post_recv(RecvWR(i, [SGE(memory, i * ROOM, room)]))
            self.datagrams[name] = Datagrams(ctx, pd, cq, qp, memory, entries[GID(address)], stack.pop_all())
            return qp.qp_num

    def dg_close(self, name: str = "main") -> None:
        for listener in self.datagrams[name].listeners.values():
            listener.close()
        self.datagrams.pop(name).stack.close()

    def dg_send(
        self, to: str, qpn: int, payload: bytes, name: str = "main", qkey: int = QKEY, **more: Any
    ) -> str:
        """Send one datagram; the status of its completion. `more`: imm_data, hop_limit, traffic_class."""
        end = self.datagrams[name]
        imm = more.pop("imm_data", None)
        with end.pd.create_ah(AHAttr(GID(to), end.index, **more)) as ah:
            return self._post(end, ah, qpn, qkey, payload, imm)

    def _post(
        self, end: Datagrams, ah: rnic.AH, qpn: int, qkey: int, payload: bytes, imm: int | None = None
    ) -> str:
        at = DEPTH * ROOM
        end.memory.buf[at : at + len(payload)] = payload
        wr = SendWR(
            1 << 32,
            WROpcode.SEND if imm is None else WROpcode.SEND_WITH_IMM,
            SendFlags.SIGNALED,
            [SGE(end.memory, at, len(payload))],
            imm_data=imm or 0,
            ah=ah,
            remote_qpn=qpn,
            remote_qkey=qkey,
        )
        end.qp.post_send(wr)
        return self._wait(end, lambda wc: wc.wr_id == 1 << 32, 60.0)[0].status.name

    def _wait(self, end: Datagrams, wanted: Any, timeout: float) -> list[rnic.WC]:
        """The first completion that is wanted; the others are kept. None in time: an empty list."""
        until = monotonic() + timeout
        while True:
            for i, wc in enumerate(end.completions):
                if wanted(wc):
                    return [end.completions.pop(i)]
            end.completions += end.cq.poll(16)
            if monotonic() > until and not any(wanted(wc) for wc in end.completions):
                return []

    def dg_take(self, n: int = 1, name: str = "main", timeout: float = 60.0) -> list[Received]:
        """Up to n datagrams, as many as come in time."""
        found: list[Received] = []
        while len(found) < n:
            done = self._wait(self.datagrams[name], lambda wc: wc.wr_id < 1 << 32, timeout)
            if not done:
                return found
            found.append(self._read(self.datagrams[name], done[0]))
        return found

    def dg_take_status(self, name: str = "main") -> str:
        """How the next receive ended."""
        (wc,) = self._wait(self.datagrams[name], lambda wc: wc.wr_id < 1 << 32, 60.0)
        return wc.status.name

    def _read(self, end: Datagrams, wc: rnic.WC) -> Received:
        at = wc.wr_id * ROOM
        raw = bytes(end.memory.buf[at : at + wc.byte_len])
        end.qp.post_recv(RecvWR(wc.wr_id, [SGE(end.memory, at, ROOM)]))
        return Received(raw[40:], raw[:40], Route.from_grh(raw), wc.src_qp, wc.imm_data, wc.byte_len)

    def dg_answer(self, payload: bytes, name: str = "main", qkey: int = QKEY) -> str:
        """Wait for a datagram, and send this back to whoever it is from, by its completion alone."""
        end = self.datagrams[name]
        (wc,) = self._wait(end, lambda wc: wc.wr_id < 1 << 32, 60.0)
        at = wc.wr_id * ROOM
        with end.pd.create_ah_from_wc(wc, end.memory.buf[at : at + 40]) as ah:
            return self._post(end, ah, wc.src_qp, qkey, payload)

    def dg_attach(self, group: str, name: str = "main") -> None:
        self.datagrams[name].qp.attach_mcast(group)

    def dg_detach(self, group: str, name: str = "main") -> None:
        self.datagrams[name].qp.detach_mcast(group)

    def dg_listen(self, service_id: int, addr: str | None = None, name: str = "main", **more: bool) -> str:
        """Listen; the name of the errno when that fails, or ""."""
        end = self.datagrams[name]
        try:
            end.listeners[service_id] = end.ctx.cm_listen(service_id, addr, **more)
        except rnic.VerbsError as error:
            return errorcode[error.errno or 0]
        return ""

    def dg_unlisten(self, service_id: int, name: str = "main") -> None:
        self.datagrams[name].listeners.pop(service_id).close()

    def dg_slot(self, name: str = "main") -> int:
        return self.datagrams[name].ctx.cm_slot()

    def dg_counters(self, name: str = "main") -> dict[str, int]:
        return self.datagrams[name].ctx.counters().as_dict()

    def dg_state(self, name: str = "main") -> str:
        return self.datagrams[name].qp.state.name

    def dg_burst(self, to: str, qpn: int, count: int, nbytes: int, name: str = "main") -> None:
        """As many datagrams in one chain, each full of its number."""
        end = self.datagrams[name]
        with end.pd.create_ah(AHAttr(GID(to), end.index)) as ah, end.pd.alloc_mr(count * nbytes, 0) as mr:
            for i in range(count):
                mr.buf[i * nbytes : (i + 1) * nbytes] = bytes([i]) * nbytes
            pieces = [SGE(mr, i * nbytes, nbytes) for i in range(count)]
            last = {count - 1: SendFlags.SIGNALED}
            end.qp.post_send(
                [
                    SendWR(
                        1 << 32,
                        WROpcode.SEND,
                        last.get(i, 0),
                        [piece],
                        ah=ah,
                        remote_qpn=qpn,
                        remote_qkey=QKEY,
                    )
                    for i, piece in enumerate(pieces)
                ]
            )
            self._wait(end, lambda wc: wc.wr_id == 1 << 32, 60.0)

    def dg_too_long(self, name: str = "main") -> tuple[str, str]:
        """A message of one byte more than the MTU: its status, and the state that it leaves."""
        end = self.datagrams[name]
        with end.pd.create_ah(AHAttr(GID("127.0.0.1"), end.index)) as ah:
            piece = SGE(end.memory, 0, 4097)
            end.qp.post_send(
                SendWR(
                    1 << 32, send_flags=SendFlags.SIGNALED, sg_list=[piece], ah=ah, remote_qpn=end.qp.qp_num
                )
            )
            (wc,) = self._wait(end, lambda wc: wc.wr_id == 1 << 32, 60.0)
            return wc.status.name, end.qp.state.name

    def dg_words(self, verb: str, *args: object, name: str = "main") -> str:
        """What a verb of the queue pair that must fail says."""
        try:
            getattr(self.datagrams[name].qp, verb)(*args)
        except rnic.VerbsError as error:
            return str(error)
        raise AssertionError(f"{verb}{args} succeeded")

    # -- a peer that is no rnic

    def plain_open(self, address: str = "127.0.0.9") -> None:
        """UDP 4791 of an address that no device listens on, with the IP header that ICRCs are made for."""
        self.plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.plain.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
        self.plain.bind((address, 4791))

    def plain_send(self, data: bytes, to: str = "127.0.0.1") -> None:
        self.plain.sendto(data, (to, 4791))

    def plain_take(self, timeout: float = 60.0) -> bytes | None:
        """The next packet, from the BTH to the ICRC; None when none comes."""
        self.plain.settimeout(timeout)
        try:
            return self.plain.recv(8192)
        except TimeoutError:
            return None

    def forge_forward(self, service_id: int, address: str, data: bytes, source: str) -> None:
        """Hand a packet to a listener as the port's owner does (names/slotmsg.h), which this is not."""

        def place(ip: str) -> bytes:
            mapped = GID(ip).raw
            return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI16sI", 4791, 0, mapped, 0)

        header = struct.pack("=IHHIIQIBBH", 0x524E4943, 1, 1, len(data), 0, 0, 0, 64, 0, 0)
        name = f"\0rnic/1/listen/{service_id:016x}/{address}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.sendto(header + place(source) + place(address) + data, name)

    def dg_refusal(self, name: str = "refused", **more: Any) -> str:
        """What dg_open() that must fail says."""
        try:
            self.dg_open(name, **more)
        except rnic.VerbsError as error:
            return str(error)
        raise AssertionError(f"dg_open({more}) succeeded")

    def dg_send_fails(self, to: str, name: str = "main") -> str:
        """What dg_send() that must fail says."""
        try:
            self.dg_send(to, 0xFFFFFF, b"", name)
        except rnic.VerbsError as error:
            return str(error)
        raise AssertionError(f"sending to {to} succeeded")
