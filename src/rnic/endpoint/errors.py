# SPDX-License-Identifier: Apache-2.0
"""Errors between two endpoints, and the number of each reason in messages."""

from rnic.wording import Named


class Reason(Named):
    """Why a connection was refused or aborted: the number in an ABORT or a refusal."""

    APPLICATION = 1
    """The program aborted; the text is the program's."""
    VIOLATION = 2
    """A SEND that the protocol does not know, or does not allow here."""
    TOO_LONG = 3
    """A message longer than its receiver's hello allows."""
    CREDIT = 4
    """Credits that cannot exist, or a SEND without a credit."""
    REGION = 5
    """An impossible region: too many, duplicate, unknown, or beyond the address space."""
    HELLO = 6
    """Private data that is not a hello, or a hello with impossible values."""
    VERSION = 7
    """The two ends have no protocol version in common."""
    TIMEOUT = 8
    """The goodbye did not come in time."""


class EndpointError(ConnectionError):
    """A connection cannot be made, or has ended; the text says why.

    `reason` is the number in the message: a Reason, or an int that a later version of rnic defines.
    """

    reason: int

    def __init__(self, text: str, reason: int = Reason.VIOLATION) -> None:
        super().__init__(text)
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.reason)


class ProtocolError(EndpointError):
    """The peer sent something that the protocol forbids. The connection has ended, and the peer is told
    why.
    """


class NoHelloError(ProtocolError):
    """The peer is not an rnic endpoint: its private data does not begin with a hello."""


class VersionError(ProtocolError):
    """The two ends have no protocol version in common; the text names the versions of both."""


class RefusedError(EndpointError):
    """The peer refused the connection; the text is the peer's, if it gave one."""


class AbortedError(EndpointError):
    """This end or the peer called abort(); messages on their way may be lost."""


class LostError(EndpointError):
    """The connection broke: the peer's process or the network has gone, or a work request failed."""


class ClosedError(EndpointError):
    """This end was closed, or the connection has ended: the message was not sent."""


class MessageTooLongError(ValueError):
    """The message is longer than the peer accepts. It was not sent, and the connection is unchanged."""
