# SPDX-License-Identifier: Apache-2.0
"""What the two ends of a connection agree on: options, hellos, errors, regions, counts.

What they say to each other is in docs/endpoint-protocol.md, for other programs too; src/msg says it.
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
from rnic.endpoint.hello import Capability, Hello, parse_refusal, refusal
from rnic.endpoint.regions import Region
from rnic.endpoint.state import State, Statistics

SPARE = 1
"""Receives of which the peer is not told: for its TAKEN (MSG_SPARE of src/msg)."""

__all__ = [
    # a connection
    "Config",
    "State",
    "Statistics",
    "SPARE",
    # the handshake
    "Capability",
    "Hello",
    "refusal",
    "parse_refusal",
    "Region",
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
