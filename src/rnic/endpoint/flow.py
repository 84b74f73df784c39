# SPDX-License-Identifier: Apache-2.0
"""Credits: a SEND never meets an empty receive queue, and two full directions never wait for each other.

A credit stands for one receive that the peer has posted.  The last one is reserved for CREDIT, which always
returns two or more.  docs/endpoint-protocol.md proves that this does not stall; the tests try.
"""

from rnic.endpoint.errors import ProtocolError, Reason

__all__ = ["MIN_REFILL", "ReceiveWindow", "SendCredits"]

MIN_REFILL = 2
"""Credits that a CREDIT returns at least: one for the SEND that answers it, and one that stays."""
RESERVED = 1
"""Credits that only CREDIT, and the ABORT that ends all, may use."""


class SendCredits:
    """What this end may send: receives that the peer has posted and that no SEND has taken yet."""

    def __init__(self, receives: int) -> None:
        self.total = receives
        """Receives that the peer has."""
        self.spent = 0
        """SENDs that were handed out, in all."""
        self.returned = 0
        """Credits that the peer has returned, in all."""

    @property
    def available(self) -> int:
        """Credits that may be spent now."""
        return self.total + self.returned - self.spent

    def allow(self, reserve: bool = False) -> bool:
        """Whether a SEND may be posted; with `reserve`, one that may use the last credit."""
        return self.total + self.returned - self.spent > (0 if reserve else RESERVED)

    def refilled(self, number: int) -> int:
        """What `returned` is when the peer returns credits; ProtocolError when it cannot have so many."""
        if self.available + number > self.total:
            raise ProtocolError(
                f"{number} credits returned where {self.total - self.available} of {self.total} were in use",
                Reason.CREDIT,
            )
        return self.returned + number


class ReceiveWindow:
    """The receives of this end, 65535 at most; each goes round: posted, told to the peer, taken, free again.

    Each counter is of all receives since the beginning, so that a change is a number that is stored, and to
    store it once more changes nothing.
    """

    def __init__(self, receives: int) -> None:
        self.total = receives
        self.posted = 0
        """Receives that the driver has posted."""
        self.told = 0
        """Those of which the peer knows."""
        self.arrived = 0
        """SENDs that have come in."""
        self.freed = 0
        """Of these receives, those that may be posted again; the others are held back."""
        self.threshold = max(MIN_REFILL, receives // 2)
        """Credits owed at which they are worth a SEND of their own."""

    @property
    def to_post(self) -> int:
        """Receives that the driver has to post."""
        return self.total + self.freed - self.posted

    @property
    def owed(self) -> int:
        """Receives that are posted, and the peer does not know yet."""
        return self.posted - self.told

    @property
    def granted(self) -> int:
        """Receives that the peer may use."""
        return self.told - self.arrived

    @property
    def held(self) -> int:
        """Receives that are free, but not to be posted before the user has taken some events."""
        return self.arrived - self.freed

    def post(self, number: int) -> None:
        """The driver has posted receives."""
        if not 0 <= number <= self.to_post:
            raise ValueError(f"{number} receives posted where {self.to_post} were asked for")
        self.posted += number

    def check_arrival(self, reserve: bool) -> None:
        """A SEND comes in; ProtocolError when the peer has no credit for one, or only the reserved one."""
        if self.told - self.arrived <= (0 if reserve else RESERVED):
            raise ProtocolError(
                f"a SEND without a credit: {self.granted} left, the last of which is for CREDIT alone",
                Reason.CREDIT,
            )

    def resume(self) -> None:
        """The user has taken enough: what was held back can be posted."""
        self.freed = self.arrived
