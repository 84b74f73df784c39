# SPDX-License-Identifier: Apache-2.0
"""What a connection tells its user, in the order in which the peer did it."""

from dataclasses import dataclass

from rnic.endpoint.errors import EndpointError
from rnic.enums import AccessFlags
from rnic.records import Record

__all__ = [
    "Closed",
    "Event",
    "Failed",
    "MessageReceived",
    "PeerClosed",
    "Region",
    "RegionShared",
    "RegionWithdrawn",
]


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Region(Record):
    """Memory of one end that the other may reach by RDMA."""

    id: int
    """Its name in this connection, unique among the regions of the end that shares it."""
    addr: int
    """Where it begins, as the owner's device sees it."""
    length: int
    """In bytes."""
    rkey: int
    """The key that a request must show."""
    access: AccessFlags
    """REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC: what may be done."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MessageReceived(Record):
    """A message, whole."""

    data: bytes
    """A copy of its own: no receive buffer is held by it."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RegionShared(Record):
    """The peer has shared memory."""

    region: Region


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RegionWithdrawn(Record):
    """The peer has withdrawn a region.  Since the SEND that said so came in, it is not among `regions`."""

    region: Region


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PeerClosed(Record):
    """The peer will send no more messages.  This end still can."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Closed(Record):
    """Both ends have said goodbye and all that was sent has arrived.  The last event."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Failed(Record):
    """The connection ended otherwise.  The last event; what came before it whole was delivered."""

    error: EndpointError
    """ProtocolError, AbortedError or LostError."""
    undelivered: int
    """Messages of this end of which it is not known that the peer has them whole."""


Event = MessageReceived | RegionShared | RegionWithdrawn | PeerClosed | Closed | Failed
