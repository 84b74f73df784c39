# SPDX-License-Identifier: Apache-2.0
"""What an end of a rendezvous asks of its channel."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from rnic._nic.nic import SendWR

__all__ = ["Hear", "Leave", "More", "Move", "Say", "Step", "Steps"]

T = TypeVar("T")


class Leave(NamedTuple):
    """Leave a message to the channel; nothing is waited for."""

    message: bytes


class Say(NamedTuple):
    """Send a message; TimeoutError."""

    message: bytes
    until: float | None
    begins: Callable[[], object]
    """Called when it is clear that it goes."""


class Hear(NamedTuple):
    """The answer is the next message; TimeoutError, EOFError."""

    until: float | None
    spin: float | None = None
    """Seconds that a thread polls before it sleeps, as the message must be near."""


class More(NamedTuple):
    """The answer is whether a message is here for Hear, as far as was looked."""


class Move(NamedTuple):
    """Carry out READs and WRITEs, to the end; TimeoutError."""

    wrs: Iterable[SendWR]
    until: float | None
    behind: Callable[[], bytes] | None = None
    """Gives a message that is left to the channel when all are posted."""


Step = Leave | Say | Hear | More | Move
Steps = Generator[Step, Any, T]
