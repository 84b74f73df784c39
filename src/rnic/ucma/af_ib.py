# SPDX-License-Identifier: Apache-2.0
"""Ids that are bound to addresses of InfiniBand (AF_IB): over RoCE, to any address.

Such an id has a service id for a port, and is one of IPv6 that listens at any address. It takes its port when
it listens: librdmacm binds one at its start, to find out whether a kernel knows such addresses, and no device
has to be opened for that. Its program has addresses of InfiniBand for the ids of requests, too, and finds the
header of RDMA-CM ahead of their private data, as from a kernel. No device has an address of InfiniBand: there
is nothing else to bind to, and nothing to call.
"""

from __future__ import annotations

from errno import EINVAL, ENODEV, EPROTONOSUPPORT
from typing import TYPE_CHECKING

from rnic.errors import VerbsError
from rnic.rdmacm import IdState, PortSpace
from rnic.rdmacm.routes import ephemeral
from rnic.ucma.layouts import SOCKADDR_IB
from rnic.ucma.sockaddrs import AF_IB, family_of

if TYPE_CHECKING:
    from rnic.rdmacm.sockaddr import SockAddr
    from rnic.ucma.files import Handle

_PORT = 0xFFFF  # of a service id; what is above is the port space (IBA annex A11.2)
_SPACES = (PortSpace.IB, PortSpace.TCP, PortSpace.UDP)


def is_ib(data: bytes, size: int | None) -> bool:
    """Whether a command has an address of InfiniBand, whose size stands beside it."""
    return size == SOCKADDR_IB.size and family_of(data) == AF_IB


def bind(handle: Handle, data: bytes) -> None:
    """Bind an id to an address of InfiniBand; its port space is that of the service id.

    Raises VerbsError: EINVAL if the id is bound, ENODEV for an address, EPROTONOSUPPORT for a service id that
    is not of the id's port space.
    """
    address, one = SOCKADDR_IB.read(data), handle.one
    check_unbound(handle)
    if any(address["addr"]):
        raise VerbsError(ENODEV, "no device has an address of InfiniBand", "rdma_cm")
    service, mask = (int.from_bytes(address[name], "big") for name in ("sid", "sid_mask"))
    one.ps = _space(one.ps, service, mask)
    handle.service = int(one.ps) << 16 | (service & mask & _PORT or ephemeral()[0])


def check_unbound(handle: Handle) -> None:
    """Raise EINVAL if an id is bound already."""
    if handle.service is not None or handle.one.state is not IdState.IDLE:
        raise VerbsError(EINVAL, f"{handle.one!r} is bound", "rdma_cm")


def place(service: int) -> SockAddr:
    """Where an id of a service id listens."""
    return "::", service & _PORT, 0, 0


def _space(own: PortSpace, service: int, mask: int) -> PortSpace:
    upper = mask & ~_PORT
    for space in _SPACES:
        if own in (PortSpace.IB, space) and service & upper == int(space) << 16 & upper:
            return space
    text = f"service id {service:#x} is not of port space {own.name}"
    raise VerbsError(EPROTONOSUPPORT, text, "rdma_cm")
