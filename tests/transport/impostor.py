# SPDX-License-Identifier: Apache-2.0
"""Packets that no peer of ours would send: built with rnic.wire, sent by a plain UDP socket."""

from __future__ import annotations

import socket

from rnic import QP
from rnic.wire import BTH, Ext, Opcode, Packet, Transport

LOOPBACK = "127.0.0.1"
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2  # DF and identification 0, which the ICRC covers


def pretend(to: QP, opcode: Opcode, psn: int, ext: tuple[Ext, ...] = (), payload: bytes = b"") -> None:
    """One packet to a queue pair, as if its peer at 127.0.0.1 had sent it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        sock.bind((LOOPBACK, 0))
        transport = Transport(BTH(opcode, to.qp_num, psn), ext, payload)
        packet = Packet.build(LOOPBACK, LOOPBACK, transport, sport=sock.getsockname()[1])
        sock.sendto(packet.transport.emit(), (LOOPBACK, 4791))
