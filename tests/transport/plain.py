# SPDX-License-Identifier: Apache-2.0
"""Packets made and read by rnic.wire alone, for a peer that is a plain UDP socket (plain_open)."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

from rnic.wire import BTH, DETH, UDP, Ext, IPv4, Opcode, Packet, Transport

DEVICE, PEER = "127.0.0.1", "127.0.0.9"


def sealed(transport: Transport, src: str = PEER, dst: str = DEVICE, ident: int = 0) -> bytes:
    """The UDP payload with its padding and the ICRC of an IP identification."""
    packet = Packet(IPv4(IPv4Address(src), IPv4Address(dst), ident), UDP(4791), transport).sealed()
    return packet.transport.emit()


def icrc_right(data: bytes, src: str = DEVICE, dst: str = PEER) -> bool:
    """Whether a UDP payload ends in the ICRC of identification 0."""
    transport = Transport.parse(data)
    return sealed(replace(transport, icrc=0), src, dst) == data


def datagram(payload: bytes, dqpn: int, qkey: int, sqpn: int = 1, *ext: Ext) -> Transport:
    """A UD SEND only."""
    return Transport(BTH(Opcode.UD_SEND_ONLY, dqpn=dqpn, psn=0), (DETH(qkey, sqpn), *ext), payload)
