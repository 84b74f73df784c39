# SPDX-License-Identifier: Apache-2.0
"""Pure codecs for packets: bytes in, frozen dataclasses out, and back. Standard library only, no I/O.

    packet = Packet.parse(frame)        # a captured Ethernet frame
    packet.bth.psn, packet.header(RETH), packet.icrc_ok
    packet.emit() == frame

    mad = MAD.parse(packet.payload)             # a datagram to queue pair 1
    message = parse_cm(mad)                     # a Req, Rep, Rtu ... of the communication manager

`parse` takes any bytes. It raises `WireError` (a ValueError) if they are malformed, or its subclass
`NotRoCEError` if they are another protocol, and nothing else.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from rnic.later import later as _later
from rnic.wire.cm_msg import (
    IP_REQ_PRIVATE_BYTES,
    IP_SIDR_REQ_PRIVATE_BYTES,
    MESSAGES,
    Apr,
    CmMessage,
    CmPath,
    Drep,
    Dreq,
    IpCmHeader,
    Lap,
    Mra,
    Rej,
    Rep,
    Req,
    Rtu,
    SidrRep,
    SidrReq,
    describe_mad,
    parse_cm,
)
from rnic.wire.cm_names import (
    EXTENDED_XRC,
    Answered,
    AprStatus,
    CmAttr,
    PortSpace,
    RejReason,
    SidrStatus,
    TransportType,
    rej_reason,
    service_id,
    split_service_id,
)
from rnic.wire.error import NotRoCEError, WireError
from rnic.wire.icrc import ICRC_BYTES, icrc
from rnic.wire.mad import GSI_QKEY, GSI_QPN, MAD, MAD_BYTES, MadMethod, MgmtClass

if _TYPE_CHECKING:
    from rnic.wire.bth import BTH
    from rnic.wire.crc import crc32c
    from rnic.wire.ddp import DdpHeader, Message, Segment, Tagged, Terminated, Untagged, parse_ddp, terminated
    from rnic.wire.ext import (
        AETH,
        CREDIT_INVALID,
        DETH,
        FETH,
        IETH,
        RETH,
        RNR_TIMER_US,
        XRCETH,
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
    from rnic.wire.ip import ROCE_PORT, TCP_PROTOCOL, UDP, IPv4, IPv6
    from rnic.wire.link import LinkType
    from rnic.wire.mpa import (
        DEPTH_UNKNOWN,
        MARKER_BYTES,
        MARKER_EVERY,
        MPA_PRIVATE_BYTES,
        Fpdu,
        Marker,
        MpaControl,
        MpaFrame,
        MpaHeader,
        fpdu_size,
    )
    from rnic.wire.opcode import BTH_BYTES, TABLE, Mask, Opcode, OpcodeInfo, opcode_info
    from rnic.wire.packet import Packet, Transport
    from rnic.wire.rdmap import (
        AtomicCode,
        AtomicRequest,
        AtomicResponse,
        Immediate,
        QueueNumber,
        RdmapOpcode,
        ReadRequest,
        Terminate,
        TermLayer,
        term_words,
    )
    from rnic.wire.tcp import TCP, TcpHeader
else:
    # Packets are for captures and tests: the device in C makes and reads those of a connection.
    __getattr__, __dir__ = _later(
        __name__, "bth", "crc", "ddp", "ext", "ip", "link", "mpa", "opcode", "packet", "rdmap", "tcp"
    )

__all__ = [
    "AETH",
    "AethKind",
    "Answered",
    "Apr",
    "AprStatus",
    "AtomicAckETH",
    "AtomicCode",
    "AtomicETH",
    "AtomicRequest",
    "AtomicResponse",
    "BTH",
    "BTH_BYTES",
    "CNPReserved",
    "CREDIT_INVALID",
    "CmAttr",
    "CmMessage",
    "CmPath",
    "DEPTH_UNKNOWN",
    "DETH",
    "DdpHeader",
    "Drep",
    "Dreq",
    "EXTENDED_XRC",
    "Ext",
    "FETH",
    "Fpdu",
    "GSI_QKEY",
    "GSI_QPN",
    "ICRC_BYTES",
    "IETH",
    "IP_REQ_PRIVATE_BYTES",
    "IP_SIDR_REQ_PRIVATE_BYTES",
    "IPv4",
    "IPv6",
    "ImmDt",
    "Immediate",
    "IpCmHeader",
    "Lap",
    "LinkType",
    "MAD",
    "MAD_BYTES",
    "MARKER_BYTES",
    "MARKER_EVERY",
    "MESSAGES",
    "MPA_PRIVATE_BYTES",
    "MadMethod",
    "Marker",
    "Mask",
    "Message",
    "MgmtClass",
    "MpaControl",
    "MpaFrame",
    "MpaHeader",
    "Mra",
    "NakCode",
    "NotRoCEError",
    "Opcode",
    "OpcodeInfo",
    "Packet",
    "PortSpace",
    "QueueNumber",
    "RETH",
    "RNR_TIMER_US",
    "ROCE_PORT",
    "RdmapOpcode",
    "ReadRequest",
    "Rej",
    "RejReason",
    "Rep",
    "Req",
    "Rtu",
    "Segment",
    "SidrRep",
    "SidrReq",
    "SidrStatus",
    "TABLE",
    "TCP",
    "TCP_PROTOCOL",
    "Tagged",
    "TcpHeader",
    "TermLayer",
    "Terminate",
    "Terminated",
    "Transport",
    "TransportType",
    "UDP",
    "Untagged",
    "WireError",
    "XRCETH",
    "crc32c",
    "credit_count",
    "describe_mad",
    "ext_classes",
    "fpdu_size",
    "icrc",
    "opcode_info",
    "parse_cm",
    "parse_ddp",
    "rej_reason",
    "service_id",
    "split_service_id",
    "term_words",
    "terminated",
]
