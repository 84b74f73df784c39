# SPDX-License-Identifier: Apache-2.0
"""The invariant CRC of RoCEv2 (A17.3.3). It covers everything from the IP header to the padding that no
switch or router changes.

CRC-32 with the Ethernet polynomial runs over eight bytes of ones (where InfiniBand has its local route
header), the IP and UDP headers and the transport packet. Fields that change on the way count as ones. The
result is stored little-endian.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from rnic.records import replace
from rnic.wire.header import need

if TYPE_CHECKING:
    from rnic.wire.ip import UDP, IPv4, IPv6

ICRC_BYTES = 4
_LRH_AS_ONES = b"\xff" * 8


def icrc(ip: IPv4 | IPv6, udp: UDP, transport: bytes) -> int:
    """The ICRC of a packet, as the number that is stored little-endian.

    The headers carry the lengths of the whole packet; `transport` is all from the BTH to the padding, without
    the ICRC. `WireError` when there is no BTH.
    """
    need("BTH", transport, 12)
    state = zlib.crc32(_LRH_AS_ONES + ip.invariant().emit() + replace(udp, checksum=0xFFFF).emit())
    # FECN, BECN and the reserved bits beside them change on the way: byte 4 as ones.
    state = zlib.crc32(transport[:4] + b"\xff", state)
    return zlib.crc32(memoryview(transport)[5:], state)
