# SPDX-License-Identifier: Apache-2.0
"""How calls fail."""

from __future__ import annotations

from concurrent.futures import CancelledError
from enum import IntEnum

__all__ = ["ClientStalledError", "DeadlineError", "RefusedCallError", "RemoteError", "Status", "as_exception"]


class Status(IntEnum):
    """Why a call has no reply: the number in an ERROR."""

    FAILED = 1
    """The handler raised an exception."""
    DEADLINE = 2
    """The deadline had passed at the server."""
    CANCELLED = 3
    """The client had cancelled it."""
    UNKNOWN = 4
    """The server has no such method."""
    BUSY = 5
    """The client has too many calls that were not answered."""
    LEAVING = 6
    """The server takes no calls any more."""
    TOO_LONG = 7
    """The body, or the reply, is longer than the server's limit."""


class RemoteError(Exception):
    """The handler at the server raised an exception; `kind` is the name of its type, `text` what it says."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}" if text else kind)
        self.kind, self.text = kind, text


class RefusedCallError(Exception):
    """The server did not carry out the call, or its reply is too long; `status` says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class DeadlineError(TimeoutError):
    """The time for the call was over; whether its handler ran is not known."""


class ClientStalledError(TimeoutError):
    """A client took no answers, and has lost the connection; the server raises it."""


def as_exception(status: int, kind: str, text: str) -> BaseException:
    """What the client raises for an ERROR."""
    if status == Status.FAILED:
        return RemoteError(kind, text)
    if status == Status.DEADLINE:
        return DeadlineError(text)
    return CancelledError(text) if status == Status.CANCELLED else RefusedCallError(status, text)
