# SPDX-License-Identifier: Apache-2.0
"""Where a connection stands, and what it counts."""

from enum import Enum

from rnic.records import Record


class State(Enum):
    """Where a connection stands, in the order of src/msg's enum msg_state."""

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


class Statistics(Record):
    """What a connection has done so far, and where it stands."""

    state: State
    """The state of the connection."""
    messages_sent: int
    """Messages that the peer is known to have whole.  May lag by 32: completions are looked at in groups."""
    messages_received: int
    """Messages of the peer that are whole here."""
    sends: int
    """SENDs that were posted, of whatever type."""
    receives: int
    """SENDs that came in."""
    credit_sends: int
    """SENDs that carried nothing but credits."""
    probes: int
    """Probes of an idle peer."""
    credits: int
    """Receives of the peer that may be used now."""
    queued: int
    """Bytes of messages that were not handed out yet."""
    backlog: int
    """Bytes of messages, each with an overhead, that wait for the user."""
    held: int
    """Receives that are held back, because of the backlog."""
    partial: int
    """Bytes of the message that is coming in."""
