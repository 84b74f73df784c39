# SPDX-License-Identifier: Apache-2.0
"""RDMA-CM: connections by IP address and port, with librdmacm's names and semantics (rdma_cm(7)).

    with EventChannel() as channel, create_id(channel) as listener:
        listener.bind_addr(("0.0.0.0", 7471))
        listener.listen()
        with channel.get_cm_event() as event: ...    # CONNECT_REQUEST: event.id is the new one

Functions of an id are its methods: rdma_resolve_addr(id, ...) is id.resolve_addr(...). A call raises
VerbsError where the C function returns -1. With an event channel, calls return at once, and an event reports
the result. An id without an event channel is synchronous: each call waits for its event.
"""

from rnic.rdmacm.channel import Event, EventChannel
from rnic.rdmacm.cm_id import CmId, create_id
from rnic.rdmacm.endpoint import AddrInfo, create_ep, getaddrinfo, resolve_addrinfo
from rnic.rdmacm.names import (
    MAX_INIT_DEPTH,
    MAX_RESP_RES,
    UDP_QKEY,
    ConnParam,
    EventType,
    IdState,
    JoinFlags,
    Option,
    Path,
    Timing,
    UDParam,
)
from rnic.rdmacm.registry import registry
from rnic.verbs.context import Context
from rnic.verbs.ece import ECE
from rnic.wire import PortSpace

__all__ = [
    "ECE",
    "MAX_INIT_DEPTH",
    "MAX_RESP_RES",
    "UDP_QKEY",
    "AddrInfo",
    "CmId",
    "ConnParam",
    "Event",
    "EventChannel",
    "EventType",
    "IdState",
    "JoinFlags",
    "Option",
    "Path",
    "PortSpace",
    "Timing",
    "UDParam",
    "create_ep",
    "create_id",
    "get_devices",
    "getaddrinfo",
    "resolve_addrinfo",
]


def get_devices() -> list[Context]:
    """The contexts of the devices that ids of this process use now (rdma_get_devices(3))."""
    return registry.get_devices()
