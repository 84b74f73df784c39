# SPDX-License-Identifier: Apache-2.0
"""The states of a connection, in the order of src/msg's enum msg_state."""

from enum import Enum

__all__ = ["State"]


class State(Enum):
    """Where a connection stands."""

    HELLO = "hello"
    """The peer's hello is awaited."""
    RAW = "raw"
    """The peer is no endpoint, and that is allowed: there is nothing here to do."""
    OPEN = "open"
    """Both may send."""
    HALF_CLOSED_LOCAL = "half-closed (local)"
    """The peer has this end's goodbye."""
    HALF_CLOSED_REMOTE = "half-closed (remote)"
    """This end has the peer's goodbye."""
    CLOSED = "closed"
    """Both."""
    ABORTING = "aborting"
    """An ABORT is on its way; whatever comes in is not looked at."""
    FAILED = "failed"
    """It has ended with an error."""
