# SPDX-License-Identifier: Apache-2.0
"""Ethernet frames for tests, and queue pairs that send and receive them."""

from __future__ import annotations

import struct
from contextlib import ExitStack
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self

import rnic
from rnic import SGE, QPAttr, QPInitAttr, QPState, QPType, RecvWR, SendFlags, SendWR
from rnic.testing import ALL_ACCESS

MAC_A, MAC_B, GROUP = "02:00:00:00:00:0a", "02:00:00:00:00:0b", "33:33:00:00:00:01"
TCP, UDP = 6, 17
SLOT = 2048
LONGEST = 70000


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def ethernet(
    payload: bytes, dst: str = MAC_B, src: str = MAC_A, kind: int = 0x88B5, vlan: int | None = None
) -> bytes:
    tag = b"" if vlan is None else struct.pack("!HH", 0x8100, vlan)
    return mac(dst) + mac(src) + tag + kind.to_bytes(2, "big") + payload


def checksum(data: bytes) -> int:
    """RFC 1071."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data[: len(data) // 2 * 2]))
    total += data[-1] << 8 if len(data) % 2 else 0
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def transport(
    proto: int, src: str, dst: str, sport: int, dport: int, data: bytes, csum: bool = True
) -> bytes:
    """A TCP segment or UDP datagram, with its checksum or with a wrong one."""
    if proto == TCP:
        head, at = struct.pack("!HHIIHHHH", sport, dport, 1, 2, 5 << 12 | 0x10, 100, 0, 0), 16
    else:
        head, at = struct.pack("!HHHH", sport, dport, 8 + len(data), 0), 6
    body = head + data
    pseudo = ip_address(src).packed + ip_address(dst).packed + struct.pack("!II", len(body), proto)
    value = checksum(pseudo + body) if csum else 0xDEAD
    return body[:at] + value.to_bytes(2, "big") + body[at + 2 :]


def ip(
    data: bytes = b"data",
    src: str = "10.0.0.1",
    dst: str = "10.0.0.2",
    proto: int = UDP,
    sport: int = 1000,
    dport: int = 2000,
    *,
    csum: bool = True,
    fragment: int = 0,
    ttl: int = 64,
    tos: int = 0,
    **eth: Any,
) -> bytes:
    """A frame with TCP or UDP over IPv4 or IPv6."""
    body = transport(proto, src, dst, sport, dport, data, csum)
    if ip_address(src).version == 6:
        head = struct.pack("!IHBB", 6 << 28 | tos << 20, len(body), proto, ttl)
        return ethernet(head + ip_address(src).packed + ip_address(dst).packed + body, kind=0x86DD, **eth)
    head = struct.pack("!BBHHHBBH", 0x45, tos, 20 + len(body), 7, fragment, ttl, proto, 0)
    head += ip_address(src).packed + ip_address(dst).packed
    value = checksum(head) if csum else 0xBEEF
    return ethernet(head[:10] + value.to_bytes(2, "big") + head[12:] + body, kind=0x0800, **eth)


class Frames:
    """A context and its RAW_PACKET queue pairs."""

    def __init__(self, device: str = "roce_lo") -> None:
        with ExitStack() as stack:
            self.ctx = stack.enter_context(rnic.open_device(device))
            self.pd = stack.enter_context(self.ctx.alloc_pd())
            self.stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stack.__exit__(kind, value, traceback)

    def queue(self, slots: int = 16) -> Queue:
        return Queue(self, slots)


class Queue:
    """A RAW_PACKET queue pair in RTS with `slots` receives posted, of SLOT bytes each."""

    def __init__(self, frames: Frames, slots: int = 16, nbytes: int = SLOT) -> None:
        stack, self.frames = frames.stack, frames
        self.channel = stack.enter_context(frames.ctx.create_comp_channel())
        self.cq = stack.enter_context(frames.ctx.create_cq(256, self.channel))
        self.mr = stack.enter_context(frames.pd.alloc_mr(SLOT * slots + LONGEST, ALL_ACCESS))
        self.slots = slots
        init = QPInitAttr(self.cq, self.cq, QPType.RAW_PACKET)
        self.qp = stack.enter_context(frames.pd.create_qp(init))
        to_rts(self.qp)
        self.qp.post_recv([RecvWR(i, [SGE(self.mr, i * SLOT, nbytes)]) for i in range(slots)])

    def flow(self, *specs: Any, **attr: Any) -> rnic.Flow:
        return self.frames.stack.enter_context(self.qp.create_flow(rnic.FlowAttr(specs=specs, **attr)))

    def send(self, frame: bytes, flags: SendFlags | int = 0, wr_id: int = 100) -> rnic.WC:
        """Sends a frame and returns its completion."""
        at = self.slots * SLOT
        self.mr.buf[at : at + len(frame)] = frame
        self.qp.post_send(
            SendWR(wr_id, send_flags=flags | SendFlags.SIGNALED, sg_list=[SGE(self.mr, at, len(frame))])
        )
        (wc,) = self.wait()
        return wc

    def wait(self, n: int = 1) -> list[rnic.WC]:
        """Exactly n completions."""
        found = self.cq.poll(n)
        while len(found) < n:
            self.cq.req_notify()
            more = self.cq.poll(n - len(found))
            found += more
            if not more:
                self.channel.get_cq_event(60)
                self.cq.ack_events()
        return found

    def frame(self, wc: rnic.WC) -> bytes:
        return bytes(self.mr.buf[wc.wr_id * SLOT : wc.wr_id * SLOT + wc.byte_len])

    def take(self, n: int = 1) -> list[bytes]:
        """The next n frames."""
        found = self.wait(n)
        assert all(wc.ok for wc in found), found
        return [self.frame(wc) for wc in found]

    def nothing(self) -> bool:
        """Nothing has come: internal frames are there when their send completes."""
        return not self.cq.poll(1)


def to_rts(qp: rnic.QP) -> None:
    qp.modify(QPAttr(qp_state=QPState.INIT, port_num=1))
    qp.modify(QPAttr(qp_state=QPState.RTR))
    qp.modify(QPAttr(qp_state=QPState.RTS))
