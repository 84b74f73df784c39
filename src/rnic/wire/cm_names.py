# SPDX-License-Identifier: Apache-2.0
"""Names for the numbers in CM messages (IBA 12.6), and the service ids of RDMA-CM (annex A11)."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from rnic.wire.header import fit

_N = TypeVar("_N", bound=IntEnum)


class CmAttr(IntEnum):
    """Attribute ids of the CM class (IBA 12.6, table "CM attributes")."""

    REQ = 0x10
    MRA = 0x11
    REJ = 0x12
    REP = 0x13
    RTU = 0x14
    DREQ = 0x15
    DREP = 0x16
    SIDR_REQ = 0x17
    SIDR_REP = 0x18
    LAP = 0x19
    APR = 0x1A


class Answered(IntEnum):
    """Which message an MRA or a REJ answers (IBA 12.6.6, 12.6.7)."""

    REQ = 0
    REP = 1
    OTHER = 2  # an MRA: the LAP; a REJ: no message


class RejReason(IntEnum):
    """Why a connection is refused (IBA 12.6.7.2); the names are the kernel's."""

    NO_QP = 1
    NO_EEC = 2
    NO_RESOURCES = 3
    TIMEOUT = 4
    UNSUPPORTED = 5
    INVALID_COMM_ID = 6
    INVALID_COMM_INSTANCE = 7
    INVALID_SERVICE_ID = 8
    INVALID_TRANSPORT_TYPE = 9
    STALE_CONN = 10
    RDC_NOT_EXIST = 11
    INVALID_GID = 12
    INVALID_LID = 13
    INVALID_SL = 14
    INVALID_TRAFFIC_CLASS = 15
    INVALID_HOP_LIMIT = 16
    INVALID_PACKET_RATE = 17
    INVALID_ALT_GID = 18
    INVALID_ALT_LID = 19
    INVALID_ALT_SL = 20
    INVALID_ALT_TRAFFIC_CLASS = 21
    INVALID_ALT_HOP_LIMIT = 22
    INVALID_ALT_PACKET_RATE = 23
    PORT_CM_REDIRECT = 24
    PORT_REDIRECT = 25
    INVALID_MTU = 26
    INSUFFICIENT_RESP_RESOURCES = 27
    CONSUMER_DEFINED = 28
    INVALID_RNR_RETRY = 29
    DUPLICATE_LOCAL_COMM_ID = 30
    INVALID_CLASS_VERSION = 31
    INVALID_FLOW_LABEL = 32
    INVALID_ALT_FLOW_LABEL = 33
    VENDOR_OPTION_NOT_SUPPORTED = 35


def rej_reason(code: int) -> str:
    """A reason in words: `4 (TIMEOUT)`, or the number alone."""
    names = {int(one): one.name for one in RejReason}
    return f"{code} ({names[code]})" if code in names else str(code)


class SidrStatus(IntEnum):
    """The verdict of a SIDR_REP (IBA 12.11.2)."""

    SUCCESS = 0
    UNSUPPORTED = 1
    REJECT = 2
    NO_QP = 3
    REDIRECT = 4
    UNSUPPORTED_VERSION = 5


class AprStatus(IntEnum):
    """The verdict of an APR (IBA 12.8.2)."""

    SUCCESS = 0
    INVALID_COMM_ID = 1
    UNSUPPORTED = 2
    REJECT = 3
    REDIRECT = 4
    IS_CURRENT = 5
    INVALID_QPN_EECN = 6
    INVALID_LID = 7
    INVALID_GID = 8
    INVALID_FLOW_LABEL = 9
    INVALID_TCLASS = 10
    INVALID_HOP_LIMIT = 11
    INVALID_PACKET_RATE = 12
    INVALID_SL = 13


class TransportType(IntEnum):
    """Transport service type of a REQ (IBA 12.6.5); EXTENDED means that another field has it."""

    RC = 0
    UC = 1
    RD = 2
    EXTENDED = 3


EXTENDED_XRC = 1
"""The extended transport type of XRC."""


class PortSpace(IntEnum):
    """The port spaces of RDMA-CM, with the numbers of rdma_create_id(3)."""

    IPOIB = 0x0002
    """Datagrams, as UDP; for IP over InfiniBand."""
    TCP = 0x0106
    """Connections."""
    UDP = 0x0111
    """Datagrams."""
    IB = 0x013F
    """Whatever the queue pair is; ports are service ids."""


def service_id(space: int, port: int) -> int:
    """The 64-bit service id of a port of a port space (annex A11: a prefix, the IP protocol, the port)."""
    return fit("port space", space, 48) << 16 | fit("port", port, 16)


def split_service_id(value: int) -> tuple[PortSpace, int] | None:
    """Port space and port of a service id of RDMA-CM; None for other service ids."""
    try:
        return PortSpace(value >> 16), value & 0xFFFF
    except ValueError:
        return None


def service_text(value: int) -> str:
    """A service id in words: "TCP:7174", or its number."""
    found = split_service_id(value)
    return f"{found[0].name}:{found[1]}" if found else f"service {value:#018x}"


def name_of(enum: type[_N], value: int) -> str:
    """The member's name in lower case and words; the number if there is no such member."""
    try:
        return enum(value).name.lower().replace("_", " ")
    except ValueError:
        return f"{enum.__name__} {value}"
