# SPDX-License-Identifier: Apache-2.0
"""Where the IP header starts in a captured frame, by the capture's link type (tcpdump.org/linktypes.html)."""

from __future__ import annotations

from enum import IntEnum

from rnic.wire.error import NotRoCEError, WireError
from rnic.wire.header import need


class LinkType(IntEnum):
    """The link types that can be read; the numbers are pcap's."""

    NULL = 0  # 4 bytes of address family in the capturing host's order
    ETHERNET = 1
    RAW = 101  # starts at the IP header
    LOOP = 108  # as NULL, in network order
    LINUX_SLL = 113  # "cooked", 16 bytes
    IPV4 = 228
    IPV6 = 229
    LINUX_SLL2 = 276  # "cooked", 20 bytes


_ETHERTYPES_IP = (0x0800, 0x86DD)
_ETHERTYPES_VLAN = (0x8100, 0x88A8)


def link_bytes(linktype: int, frame: bytes) -> int:
    """The number of bytes in front of the IP header.

    `NotRoCEError` when the frame carries no IP, `WireError` when it is cut short or of another link type.
    """
    if linktype in (LinkType.RAW, LinkType.IPV4, LinkType.IPV6):
        return 0
    if linktype in (LinkType.NULL, LinkType.LOOP):
        need("link header", frame, 4)
        return 4
    if linktype == LinkType.ETHERNET:
        return _past_ethertype(frame, 12)
    if linktype == LinkType.LINUX_SLL:
        return _past_ethertype(frame, 14)
    if linktype == LinkType.LINUX_SLL2:
        need("link header", frame, 20)
        _past_ethertype(frame, 0)
        return 20
    raise WireError(f"link type {linktype} is not supported")


def _past_ethertype(frame: bytes, at: int) -> int:
    """The offset after the Ethertype at `at` and any VLAN tags that it announces."""
    while True:
        need("link header", frame, at + 2)
        ethertype = int.from_bytes(frame[at : at + 2], "big")
        at += 2
        if ethertype in _ETHERTYPES_IP:
            return at
        if ethertype not in _ETHERTYPES_VLAN:
            raise NotRoCEError(f"Ethertype {ethertype:#06x}, not IP")
        at += 2
