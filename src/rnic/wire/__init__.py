# SPDX-License-Identifier: Apache-2.0
"""Pure codecs for what is on the wire: bytes in, frozen dataclasses out, and back. Standard library, no I/O.

    packet = Packet.parse(frame)        # a captured Ethernet frame
    packet.bth.psn, packet.header(RETH), packet.icrc_ok
    packet.emit() == frame

Any bytes may be given to `parse`: it raises `WireError` (a ValueError), or its subclass `NotRoCEError` where
it is just another protocol, and nothing else.
"""

from rnic.wire.bth import BTH
from rnic.wire.error import NotRoCEError, WireError
from rnic.wire.ext import (
    AETH,
    CREDIT_INVALID,
    DETH,
    IETH,
    RETH,
    RNR_TIMER_US,
    AethKind,
    AtomicAckETH,
    AtomicETH,
    CNPReserved,
    Ext,
    ImmDt,
    NakCode,
    credit_count,
    ext_classes,
)
from rnic.wire.icrc import ICRC_BYTES, icrc
from rnic.wire.ip import ROCE_PORT, UDP, IPv4, IPv6
from rnic.wire.link import LinkType
from rnic.wire.opcode import BTH_BYTES, TABLE, Mask, Opcode, OpcodeInfo, opcode_info
from rnic.wire.packet import Packet, Transport

__all__ = [
    "AETH",
    "BTH",
    "BTH_BYTES",
    "CREDIT_INVALID",
    "DETH",
    "ICRC_BYTES",
    "IETH",
    "RETH",
    "RNR_TIMER_US",
    "ROCE_PORT",
    "TABLE",
    "UDP",
    "AethKind",
    "AtomicAckETH",
    "AtomicETH",
    "CNPReserved",
    "Ext",
    "IPv4",
    "IPv6",
    "ImmDt",
    "LinkType",
    "Mask",
    "NakCode",
    "NotRoCEError",
    "Opcode",
    "OpcodeInfo",
    "Packet",
    "Transport",
    "WireError",
    "credit_count",
    "ext_classes",
    "icrc",
    "opcode_info",
]
