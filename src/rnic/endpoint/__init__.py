# SPDX-License-Identifier: Apache-2.0
"""The small protocol under messages of any size over a reliable queue pair; no I/O and no clock in it.

Two Protocol objects, one at each end; a driver moves their bytes, completions and time.  What they say to
each other is in docs/endpoint-protocol.md, for other programs to speak it too.
"""

from rnic.endpoint.config import Config
from rnic.endpoint.errors import (
    AbortedError,
    ClosedError,
    EndpointError,
    LostError,
    MessageTooLongError,
    NoHelloError,
    ProtocolError,
    Reason,
    RefusedError,
    VersionError,
)
from rnic.endpoint.events import (
    Closed,
    Event,
    Failed,
    MessageReceived,
    PeerClosed,
    Region,
    RegionShared,
    RegionWithdrawn,
)
from rnic.endpoint.flow import SPARE
from rnic.endpoint.frame import Offer
from rnic.endpoint.hello import Capability, Hello, parse_refusal, refusal
from rnic.endpoint.outbox import Outgoing
from rnic.endpoint.protocol import Protocol, Role, Statistics
from rnic.endpoint.state import State

__all__ = [
    # a connection
    "Protocol",
    "Config",
    "Role",
    "State",
    "Statistics",
    "Outgoing",
    "Offer",
    "SPARE",
    # the handshake
    "Capability",
    "Hello",
    "refusal",
    "parse_refusal",
    # events
    "Event",
    "MessageReceived",
    "Region",
    "RegionShared",
    "RegionWithdrawn",
    "PeerClosed",
    "Closed",
    "Failed",
    # errors
    "EndpointError",
    "ProtocolError",
    "NoHelloError",
    "VersionError",
    "RefusedError",
    "AbortedError",
    "LostError",
    "ClosedError",
    "MessageTooLongError",
    "Reason",
]
