# SPDX-License-Identifier: Apache-2.0
"""What both sides of an end have: its state, and its counts."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from rnic.patterns.rendezvous import words
from rnic.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from rnic.patterns.rendezvous.cache import RegistrationCache
    from rnic.patterns.rendezvous.layout import Remote
    from rnic.patterns.rendezvous.sides import How, In, Out
    from rnic.patterns.rendezvous.steps import Steps

__all__ = ["LATEST", "NUMBERS", "SOON", "TOLL", "Base", "RendezvousStatistics", "near"]

NUMBERS = 1 << 32
TOLL = 64  # bytes as which a waiting message counts, beside its own
SOON = 200e-6  # seconds: about what an announcement costs
LATEST = 5e-3  # seconds for which nobody sleeps while a message comes: it is near
LONGER = 1.5  # times as long as the last one took, a message or an answer is waited for without sleep


class RendezvousStatistics(Record):
    """What an end has sent and received. Messages of measure() are none, but their bytes count."""

    eager: int
    """Messages that were sent in the channel."""
    announced: int
    """Messages that were announced to the peer, or went where it had invited them."""
    invited: int
    """Those of them that went where the peer had invited them, without an announcement."""
    received: int
    """Messages that came."""
    moved: int
    """Bytes that this end has moved by READ or WRITE."""
    copied: int
    """Bytes of arrays that were copied, as they cannot be used where they lie, or as a call ended early."""
    backlog: int
    """Bytes of messages that came, and that the program has not taken; each counts as 64 more."""


def near(took: float) -> float | None:
    """Seconds for which to poll for what took so long the last time; None: no more than for anything else."""
    return LONGER * took if took < LATEST else None


class Base:
    """One end, whose calls are done one at a time.

    max_sge: elements of a request. peer_takes: bytes of the peer's receives and of the longest message of the
    channel, None as long as they are not known. reads_memory: whether READs of this end were carried out in
    memory that it shares with the peer.
    """

    def __init__(
        self,
        how: How,
        threshold: int | None,
        max_message: int,
        max_backlog: int,
        cache: RegistrationCache,
        max_sge: int,
        peer_takes: Callable[[], tuple[int, int] | None],
        reads_memory: Callable[[], bool] = lambda: False,
    ) -> None:
        if how not in ("read", "write"):
            raise ValueError(f"how {how!r}: give 'read' or 'write'")
        sizes = {"threshold": threshold or 0, "max_message": max_message, "max_backlog": max_backlog}
        for name, value in sizes.items():
            if not 0 <= value < 1 << 63:
                raise ValueError(f"{name} {value}: give bytes from 0 on")
        self.how, self.max_message, self.max_backlog, self.cache = how, max_message, max_backlog, cache
        self.chosen = threshold
        self._max_sge, self._peer_takes, self._reads_memory = max_sge, peer_takes, reads_memory
        self._longest: int | None = None  # what the peer takes
        self._greeted = False
        self._out: Out | None = None
        self._in: In | None = None
        self._room: In | None = None  # where this end has invited the next message, which may not come there
        self._invited: list[Remote] | None = None  # where the peer has invited the next one; empty: no more
        self._hopes = False  # the peer invites in time
        self._patience = SOON  # what "in time" is, in seconds
        self._began = 0.0  # when a message of this end was announced, or began to move
        self._answer: float | None = None  # seconds that it polls for the answer to one that the peer READs
        self._long = False  # the last message of recv_into() was moved there
        self._pause = 0  # so many of them are not invited
        self._told = 0.0  # when this end has invited
        self._near: float | None = None  # seconds that it polls then until it sleeps
        self._left = 0.0  # when this end has READ a message
        self._next: float | None = None  # seconds that it polls then for the next one
        self._places: list[int] = []  # of the last message that was invited
        self._ours = self._theirs = 0  # messages so far: modulo 2**32 the number of the last one
        self._invitations = 0  # of the peer
        self._may_withdraw = False  # the last of them
        self._probing: int | None = None  # the number of the eager probe
        self._inbox: deque[bytes] = deque()
        self._landed: int | None = None  # bytes of the message that has come into the buffer of recv_into()
        self._nonce: bytes | None = None
        self._measured = False
        self._measuring = False
        self._backlog = self._eager = self._announced = self._used = 0
        self._received = self._moved = self._copied = 0

    def statistics(self) -> RendezvousStatistics:
        """What it has done so far."""
        sent = self._eager, self._announced, self._used
        return RendezvousStatistics(*sent, self._received, self._moved, self._copied, self._backlog)

    @property
    def threshold(self) -> int | None:
        """From how many bytes on a message is announced."""
        if (takes := self._peer_takes()) is None:
            return self.chosen
        size, longest = takes
        one_send = size - 2 * words.HEADER.size  # behind the channel's header and its own
        return min(one_send + 1 if self.chosen is None else self.chosen, longest - words.HEADER.size + 1)

    def let_go(self) -> None:
        """The channel is over: what the peer could use is taken back."""
        if self._out is not None and self._out.held is not None:
            self._out.held.release()
        for place in self._in, self._room:
            if place is not None:
                place.release()
        self._out = self._in = self._room = None

    def _hear(self, until: float | None, spin: float | None = None) -> Steps[None]:
        """Wait for the peer's next word, and act on it."""
        raise NotImplementedError
