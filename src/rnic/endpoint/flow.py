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
        self.available = receives

    def allow(self, reserve: bool = False) -> bool:
        """Whether a SEND may be posted; with `reserve`, one that may use the last credit."""
        return self.available > (0 if reserve else RESERVED)

    def spend(self) -> None:
        """One SEND was handed out, which allow() allowed."""
        self.available -= 1

    def refill(self, number: int) -> None:
        """The peer returned credits; ProtocolError when it cannot have so many receives."""
        if self.available + number > self.total:
            raise ProtocolError(
                f"{number} credits returned where {self.total - self.available} of {self.total} were in use",
                Reason.CREDIT,
            )
        self.available += number


class ReceiveWindow:
    """The receives of this end, 65535 at most, each in one of five places; the numbers add up to `total`.

    granted: the peer may use it.  held: free, but not to be posted before the user has taken some events.
    to_post: the driver has to post it.  owed: posted, and the peer does not know yet.  (The fifth is the one
    that receive() is looking at.)
    """

    def __init__(self, receives: int) -> None:
        self.total = receives
        self.to_post = receives
        self.granted = self.held = self.owed = 0
        self.threshold = max(MIN_REFILL, receives // 2)
        """Credits owed at which they are worth a SEND of their own."""

    def posted(self, number: int) -> None:
        """The driver has posted receives."""
        if not 0 <= number <= self.to_post:
            raise ValueError(f"{number} receives posted where {self.to_post} were asked for")
        self.to_post -= number
        self.owed += number

    def grant(self) -> int:
        """Credits to return with the SEND that is about to go out: all that are owed, 16 bits hold them."""
        number, self.owed = self.owed, 0
        self.granted += number
        return number

    def arrived(self, reserve: bool) -> None:
        """A SEND came in; ProtocolError when the peer had no credit for one, or only the reserved one."""
        if self.granted <= (0 if reserve else RESERVED):
            raise ProtocolError(
                f"a SEND without a credit: {self.granted} left, the last of which is for CREDIT alone",
                Reason.CREDIT,
            )
        self.granted -= 1

    def recycle(self, hold: bool) -> None:
        """The SEND was looked at: its buffer is free; with `hold` it is not posted before resume()."""
        if hold:
            self.held += 1
        else:
            self.to_post += 1

    def resume(self) -> None:
        """The user has taken enough: what was held back can be posted."""
        self.to_post += self.held
        self.held = 0
