# SPDX-License-Identifier: Apache-2.0
"""Credits: a SEND never meets an empty receive queue, and two full directions never wait for each other.

A credit stands for one receive that the peer has posted.  The last one is reserved for CREDIT, which always
returns two or more.  docs/endpoint-protocol.md proves that this does not stall; the tests try.
"""

from rnic._nic.nic import Ledger
from rnic.endpoint.errors import ProtocolError, Reason

__all__ = ["MIN_REFILL", "Flow"]

MIN_REFILL = 2
"""Credits that a CREDIT returns at least: one for the SEND that answers it, and one that stays."""
RESERVED = 1
"""Credits that only CREDIT, and the ABORT that ends all, may use."""


class Flow(Ledger):
    """Both directions of one end: what it may send, and its receives, 65535 at most.

    Each receive goes round: posted, told to the peer, taken, free again.  Each counter is of all since the
    beginning, so that a change is a number that is stored, and to store it once more changes nothing.
    """

    def __init__(self, receives: int) -> None:
        self.receives = receives
        self.threshold = max(MIN_REFILL, receives // 2)

    # ------------------------------------------------------------ what this end may send

    @property
    def available(self) -> int:
        """Credits that may be spent now."""
        return self.credits + self.returned - self.spent

    def allow(self, reserve: bool = False) -> bool:
        """Whether a SEND may be posted; with `reserve`, one that may use the last credit."""
        return self.credits + self.returned - self.spent > (0 if reserve else RESERVED)

    def refilled(self, number: int) -> int:
        """What `returned` is when the peer returns credits; ProtocolError when it cannot have so many."""
        if self.available + number > self.credits:
            used = self.credits - self.available
            raise ProtocolError(
                f"{number} credits returned where {used} of {self.credits} were in use", Reason.CREDIT
            )
        return self.returned + number

    # ------------------------------------------------------------ what the peer may send

    @property
    def to_post(self) -> int:
        """Receives that the driver has to post."""
        return self.receives + self.freed - self.posted

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
