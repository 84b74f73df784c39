# SPDX-License-Identifier: Apache-2.0
"""Socket addresses of C programs, in and out."""

from __future__ import annotations

import socket
import sys
from errno import EINVAL, ENODEV
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

from rnic.errors import VerbsError
from rnic.ucma.layouts import SOCKADDR_IB, SOCKADDR_IN, SOCKADDR_IN6

if TYPE_CHECKING:
    from rnic.rdmacm.sockaddr import Inet, SockAddr

AF_IB = 27
_SIZES: dict[int, int] = {socket.AF_INET: SOCKADDR_IN.size, socket.AF_INET6: SOCKADDR_IN6.size}
_PKEY = b"\xff\xff"


def family_of(data: bytes) -> int:
    """The family of an address."""
    return int.from_bytes(data[:2], sys.byteorder)


def read(data: bytes) -> SockAddr | None:
    """An address, None if there is none (family 0). Raises VerbsError: EINVAL for a family that rnic does not
    have.
    """
    family = family_of(data)
    if family == socket.AF_INET:
        four = SOCKADDR_IN.read(data)
        return str(IPv4Address(four["addr"])), int.from_bytes(four["port"], "big")
    if family == socket.AF_INET6:
        six = SOCKADDR_IN6.read(data)
        port, flow = int.from_bytes(six["port"], "big"), int.from_bytes(six["flowinfo"], "big")
        return str(IPv6Address(six["addr"])), port, flow, six["scope_id"]
    if family == socket.AF_UNSPEC:
        return None
    raise VerbsError(EINVAL, f"addresses of family {family} are not supported", "rdma_cm")


def read_sized(data: bytes, size: int) -> SockAddr | None:
    """The same with its size beside it, 0: there is none. EINVAL: the size is not that of its family. ENODEV:
    it is of InfiniBand, and no device has such addresses.
    """
    if size == SOCKADDR_IB.size and family_of(data) == AF_IB:
        raise VerbsError(ENODEV, "no device has an address of InfiniBand", "rdma_cm")
    found = read(data[: max(size, 2)]) if size else None
    if size and size != _SIZES.get(family_of(data), 0):
        raise VerbsError(EINVAL, f"an address of family {data[0]} does not have {size} bytes", "rdma_cm")
    return found


def need(data: bytes, size: int | None = None) -> SockAddr:
    """An address, with its size if that stands beside it. Raises VerbsError: EINVAL if there is none."""
    found = read(data) if size is None else read_sized(data, size)
    if found is None:
        raise VerbsError(EINVAL, "there is no address", "rdma_cm")
    return found


def write(address: Inet) -> bytes:
    """The struct of an address, as long as its family has it."""
    port = address.port.to_bytes(2, "big")
    if address.ip.version == 4:
        return SOCKADDR_IN.write(family=socket.AF_INET, port=port, addr=address.ip.packed)
    return SOCKADDR_IN6.write(
        family=socket.AF_INET6, port=port, addr=address.ip.packed, scope_id=address.scope
    )


def write_ib(gid: bytes, service: int, mask: int = 0) -> bytes:
    """An address of InfiniBand: GID, service id, and which bits of it count."""
    return SOCKADDR_IB.write(
        family=AF_IB, pkey=_PKEY, addr=gid, sid=service.to_bytes(8, "big"), sid_mask=mask.to_bytes(8, "big")
    )
