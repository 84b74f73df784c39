# SPDX-License-Identifier: Apache-2.0
"""Credits: every SEND finds a receive, and two ends with full queues never wait for each other.

A credit stands for one receive that the peer has posted.  The last credit is reserved for CREDIT, which
always returns two or more.  TAKEN needs no credit: each end has one receive more than it tells, for the
peer's TAKEN.  docs/endpoint-protocol.md proves that the two ends cannot stall.
"""

from rnic._nic.nic import Ledger
from rnic.endpoint.errors import ProtocolError, Reason

__all__ = ["MIN_REFILL", "SPARE", "Flow"]

MIN_REFILL = 2
"""The fewest credits that a CREDIT returns: one for the SEND that answers, and one to keep."""
RESERVED = 1
"""The number of credits that only a CREDIT or an ABORT may use."""
SPARE = 1
"""The number of receives that the peer has no credit for: one, for its TAKEN."""


class Flow(Ledger):
    """The credits of one end in both directions: the SENDs that it may post, and its receives.

    `receives` is the number that the peer is told of, 65535 at most.  Each receive is posted, told to the
    peer, used by a SEND and free again.  Each counter counts from the beginning of the connection.  A change
    stores a new total, so storing it again changes nothing.
    """

    def __init__(self, receives: int) -> None:
        self.receives = receives + SPARE
        self.threshold = max(MIN_REFILL, receives // 2)

    # ------------------------------------------------------------ what this end may send

    @property
    def available(self) -> int:
        """The number of credits that may be spent now."""
        return self.credits + self.returned - self.spent

    def allow(self, reserve: bool = False) -> bool:
        """Whether a SEND may be posted; `reserve`: the SEND may use the last credit."""
        return self.credits + self.returned - self.spent > (0 if reserve else RESERVED)

    def refilled(self, number: int) -> int:
        """Return `returned` after the peer gives back `number` credits; ProtocolError if fewer are in use."""
        if self.available + number > self.credits:
            used = self.credits - self.available
            raise ProtocolError(
                f"{number} credits returned where {used} of {self.credits} were in use", Reason.CREDIT
            )
        return self.returned + number

    # ------------------------------------------------------------ what the peer may send

    @property
    def to_post(self) -> int:
        """The number of receives that the driver has to post."""
        return self.receives + self.freed - self.posted

    @property
    def owed(self) -> int:
        """The number of receives that are posted for the peer's next credits, and that it was not told of."""
        return self.posted - self.told

    @property
    def granted(self) -> int:
        """The number of SENDs that the peer has credits for."""
        return self.told - self.arrived - SPARE

    @property
    def held(self) -> int:
        """The number of free receives that are held back until the user has taken some events."""
        return self.arrived - self.freed

    def post(self, number: int) -> None:
        """Note that the driver has posted receives; ValueError for more than `to_post`."""
        if not 0 <= number <= self.to_post:
            raise ValueError(f"{number} receives posted where {self.to_post} were asked for")
        self.posted += number

    def check_arrival(self, reserve: bool) -> None:
        """Raise ProtocolError if the peer has no credit for a SEND; `reserve`: the last credit is enough."""
        if self.told - self.arrived - SPARE <= (0 if reserve else RESERVED):
            raise ProtocolError(
                f"a SEND without a credit: {self.granted} left, the last of which is for CREDIT alone",
                Reason.CREDIT,
            )

    def resume(self) -> None:
        """Release the receives that were held back, as the user has taken enough events."""
        self.freed = self.arrived
