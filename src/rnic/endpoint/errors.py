# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between two endpoints, and the number that each reason has on the wire."""

from enum import IntEnum

__all__ = [
    "AbortedError",
    "ClosedError",
    "EndpointError",
    "LostError",
    "MessageTooLongError",
    "NoHelloError",
    "ProtocolError",
    "Reason",
    "RefusedError",
    "VersionError",
]


class Reason(IntEnum):
    """Why a connection was refused or aborted, as ABORT and the refusal carry it."""

    APPLICATION = 1
    """The program wanted it; the text is its own."""
    VIOLATION = 2
    """A SEND that this protocol does not know, or not here."""
    TOO_LONG = 3
    """A message longer than the hello of its receiver allows."""
    CREDIT = 4
    """Credits that do not exist, or a SEND without one."""
    REGION = 5
    """A region that cannot be: too many, twice, unknown, beyond the address space."""
    HELLO = 6
    """Private data that is no hello, or a hello with values that cannot be."""
    VERSION = 7
    """No version that both speak."""
    TIMEOUT = 8
    """The goodbye did not come in time."""


class EndpointError(ConnectionError):
    """The connection cannot be made or has ended; the text says why, for a person.

    `reason` is the number that the wire carries: a Reason, or a bare int that a later version knows.
    """

    reason: int

    def __init__(self, text: str, reason: int = Reason.VIOLATION) -> None:
        super().__init__(text)
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.reason)


class ProtocolError(EndpointError):
    """The peer sent what it may not send.  The connection has ended, and the peer is told why."""


class NoHelloError(ProtocolError):
    """The peer's private data does not begin with a hello: it is no rnic endpoint."""


class VersionError(ProtocolError):
    """There is no version of the protocol that both ends speak; the text names those of both."""


class RefusedError(EndpointError):
    """The peer rejected the connection request; the text is the one that it gave."""


class AbortedError(EndpointError):
    """The connection was aborted, by abort() here or by the peer; what was on its way may be lost."""


class LostError(EndpointError):
    """The connection broke without a goodbye: the peer is gone, or a work request failed."""


class ClosedError(EndpointError):
    """Nothing can be sent any more: close() was called, or the connection has ended.  Nothing was sent."""


class MessageTooLongError(ValueError):
    """The message is longer than the peer takes.  It was not sent, and the connection is as it was."""
