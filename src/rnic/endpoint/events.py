# SPDX-License-Identifier: Apache-2.0
"""What a connection tells its user, in the order in which the peer did it."""

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


class Region(Record, weakref_slot=True):
    """Memory of one end that the peer may read, write or add to."""

    id: int
    """Its number in this connection, unique among the regions of the end that shares it."""
    addr: int
    """The address of its first byte, as the owner's device knows it."""
    length: int
    """Its length in bytes."""
    rkey: int
    """The key for requests."""
    access: AccessFlags
    """What the peer may do: REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC."""
    shape: tuple[int, ...] = ()
    """The lengths of the array that it holds; with `dtype`."""
    dtype: str = ""
    """The type of an element, as NumPy writes it ("<f4").  Empty: nobody said that it holds an array."""


class MessageReceived(Record):
    """A message, whole."""

    data: bytes | memoryview
    """A copy of its own: no receive buffer is held by it.  A memoryview: where the driver has READ it to."""
    tag: int = 0
    """The number that its sender gave it."""


class RegionShared(Record):
    """The peer has shared memory."""

    region: Region
    """The region."""


class RegionWithdrawn(Record):
    """The peer has withdrawn a region.  Since the SEND that said so came in, it is not among `regions`."""

    region: Region
    """The region."""


class PeerClosed(Record):
    """The peer will send no more messages.  This end still can."""


class Closed(Record):
    """Both ends have said goodbye and all that was sent has arrived.  The last event."""


class Failed(Record):
    """The connection ended otherwise.  The last event; what came before it whole was delivered."""

    error: EndpointError
    """ProtocolError, AbortedError or LostError."""
    undelivered: int
    """Messages of this end of which it is not known that the peer has them whole."""


Event = MessageReceived | RegionShared | RegionWithdrawn | PeerClosed | Closed | Failed
"""What Protocol.events() gives."""
