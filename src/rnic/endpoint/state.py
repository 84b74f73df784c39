# SPDX-License-Identifier: Apache-2.0
"""The states of a connection, as a table; the diagram of docs/endpoint-protocol.md shows the same one."""

from enum import Enum

__all__ = ["TRANSITIONS", "Input", "State", "step"]


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


class Input(Enum):
    """What moves a connection."""

    HELLO_ACCEPTED = "hello accepted"
    NO_HELLO = "no hello, raw allowed"
    GOODBYE_DELIVERED = "goodbye delivered"
    """The SEND of this end's goodbye has completed."""
    GOODBYE_RECEIVED = "goodbye received"
    FAULT = "fault"
    """abort() was called, the peer broke the protocol, or a time limit passed; an ABORT can be sent."""
    LOST = "lost"
    """The connection broke, the peer's ABORT came, or a fault cannot be told for want of a credit."""
    ABORT_DELIVERED = "abort delivered"


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.HELLO, Input.HELLO_ACCEPTED): State.OPEN,
    (State.HELLO, Input.NO_HELLO): State.RAW,
    (State.HELLO, Input.LOST): State.FAILED,
    (State.RAW, Input.LOST): State.FAILED,
    (State.OPEN, Input.GOODBYE_DELIVERED): State.HALF_CLOSED_LOCAL,
    (State.OPEN, Input.GOODBYE_RECEIVED): State.HALF_CLOSED_REMOTE,
    (State.OPEN, Input.FAULT): State.ABORTING,
    (State.OPEN, Input.LOST): State.FAILED,
    (State.HALF_CLOSED_LOCAL, Input.GOODBYE_RECEIVED): State.CLOSED,
    (State.HALF_CLOSED_LOCAL, Input.FAULT): State.ABORTING,
    (State.HALF_CLOSED_LOCAL, Input.LOST): State.FAILED,
    (State.HALF_CLOSED_REMOTE, Input.GOODBYE_DELIVERED): State.CLOSED,
    (State.HALF_CLOSED_REMOTE, Input.FAULT): State.ABORTING,
    (State.HALF_CLOSED_REMOTE, Input.LOST): State.FAILED,
    (State.ABORTING, Input.ABORT_DELIVERED): State.FAILED,
    (State.ABORTING, Input.LOST): State.FAILED,
}


def step(state: State, what: Input) -> State:
    """The next state.  A pair that is not in the table is a mistake of this package: RuntimeError."""
    try:
        return TRANSITIONS[state, what]
    except KeyError:
        raise RuntimeError(f"{what.value!r} cannot happen in the state {state.value!r}") from None
