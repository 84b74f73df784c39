# SPDX-License-Identifier: Apache-2.0
"""Endpoints: an id with address, route and queue pair in one call (rdma_create_ep(3)); and names."""

from __future__ import annotations

import socket
from errno import EADDRNOTAVAIL, EINVAL
from typing import TYPE_CHECKING

from rnic.enums import QPType
from rnic.errors import VerbsError
from rnic.rdmacm.channel import Event
from rnic.rdmacm.names import EventType
from rnic.rdmacm.sockaddr import SockAddr
from rnic.records import Record, replace
from rnic.threads import Thread, begin
from rnic.verbs.pd import PD
from rnic.verbs.qp import QPCap
from rnic.wire import PortSpace
from rnic.wording import unknown_name

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId
    from rnic.verbs.context import Context
    from rnic.verbs.device import Device


class AddrInfo(Record):
    """An address to bind or connect to: hints for getaddrinfo(), and its results (rdma_getaddrinfo(3))."""

    passive: bool = False
    """The address is for listening: RAI_PASSIVE."""
    numeric_host: bool = False
    """The node is an address, not a name: RAI_NUMERICHOST."""
    family: int = 0
    """AF_INET, AF_INET6, or 0 for either."""
    ps: PortSpace = PortSpace.TCP
    """Connections (TCP) or datagrams (UDP)."""
    qp_type: QPType | None = None
    """The type of its queue pair; None: as the port space has it."""
    src_addr: SockAddr | None = None
    """The address to bind to."""
    dst_addr: SockAddr | None = None
    """The address to connect to."""


_HINTS = AddrInfo()


def getaddrinfo(
    node: str | None = None, service: str | int | None = None, hints: AddrInfo = _HINTS
) -> list[AddrInfo]:
    """Look up addresses of a node and service with the C library's resolver (rdma_getaddrinfo(3)).

    A service is a port, or a name of /etc/services. Raises VerbsError: EADDRNOTAVAIL if nothing is found.
    """
    stream = hints.ps is PortSpace.TCP or hints.ps is PortSpace.IB
    flags = socket.AI_PASSIVE if hints.passive else 0
    flags |= socket.AI_NUMERICHOST if hints.numeric_host else 0
    kind = socket.SOCK_STREAM if stream else socket.SOCK_DGRAM
    try:
        found = socket.getaddrinfo(node, service or 0, hints.family, kind, flags=flags)
    except (OSError, UnicodeError) as error:
        text = unknown_name(node or "this host", service or 0, error)
        raise VerbsError(EADDRNOTAVAIL, text, "getaddrinfo") from None
    side = "src_addr" if hints.passive else "dst_addr"
    return [replace(hints, family=family, **{side: addr}) for family, _, _, _, addr in found]  # type: ignore[arg-type] # one of the two sides


def resolve_addrinfo(
    cm_id: CmId, node: str | None, service: str | int | None, hints: AddrInfo = _HINTS
) -> None:
    """Look up a name without waiting. Event: ADDRINFO_RESOLVED with the list as its `arg`, or ADDRINFO_ERROR.

    Raises VerbsError: EAGAIN if no thread can be started.
    """

    def look() -> None:
        try:
            found = getaddrinfo(node, service, hints)
        except VerbsError as error:
            cm_id.channel.put(Event(EventType.ADDRINFO_ERROR, cm_id, -(error.errno or EINVAL)))
        else:
            cm_id.channel.put(Event(EventType.ADDRINFO_RESOLVED, cm_id, arg=found))

    begin(Thread(target=look, name="rnic-addrinfo", daemon=True), "resolve_addrinfo")


def create_ep(
    info: AddrInfo,
    pd: PD | None = None,
    cap: QPCap | None = None,
    *,
    timeout_ms: int = 2000,
    device: str | Device | Context | None = None,
) -> CmId:
    """Create an id without a channel, ready to connect, or bound and ready to listen (rdma_create_ep(3)).

    With `cap` (or a protection domain) it has a queue pair. An id that listens gives such a queue pair to
    each request that get_request() returns. `device` is that of create_id().
    """
    from rnic.rdmacm.cm_id import create_id

    one = create_id(None, info.ps, qp_type=info.qp_type, device=device)
    try:
        if info.passive:
            if info.src_addr is None:
                raise VerbsError(EINVAL, "there is no address to bind to", "create_ep")
            one.bind_addr(info.src_addr)
            one.ep_cap, one.pd = replace(cap) if cap else QPCap() if pd else None, pd
            return one
        if info.dst_addr is None:
            raise VerbsError(EINVAL, "there is no address to connect to", "create_ep")
        one.resolve_addr(info.src_addr, info.dst_addr, timeout_ms)
        one.resolve_route(timeout_ms)
        if cap or pd:
            one.create_qp(pd, cap=cap)
    except BaseException:
        one.destroy()
        raise
    return one
