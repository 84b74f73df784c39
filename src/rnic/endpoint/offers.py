# SPDX-License-Identifier: Apache-2.0
"""A message that the peer has announced: it is READ from where it lies, and then the peer is told so."""

from rnic.endpoint.errors import ProtocolError, Reason
from rnic.endpoint.flow import Flow
from rnic.endpoint.frame import Frame, Offer, parse_offer

__all__ = ["Offers"]


class Offers:
    """What is announced, one at a time, and what the peer has to be told of it.

    look() and look_taken() check, put(), take() and confirm() make it so, and again change nothing more.
    """

    def __init__(self, max_message: int, flow: Flow) -> None:
        self._max_message = max_message
        self._flow = flow  # counts messages
        self.first: Offer | None = None
        """The one that was announced, and not taken."""
        self.begun = False
        """The driver READs it."""
        self.unconfirmed: int | None = None
        """The number of a message that was taken, of which the peer does not know that yet."""
        self._last: int | None = None  # the number of the last one that was taken

    @property
    def idle(self) -> bool:
        """Nothing is left to do here."""
        return self.first is None and self.unconfirmed is None

    def check_none(self, frame: Frame) -> None:
        """ProtocolError: the peer has to wait for a TAKEN before that."""
        waits = self.first.number if self.first is not None else self.unconfirmed
        if waits is not None:
            raise ProtocolError(f"{frame.type.name} came before message {waits} was taken")

    def look(self, frame: Frame) -> Offer:
        """Of an ANNOUNCE."""
        offer = parse_offer(frame)
        due = self._flow.complete & 0xFFFFFFFF
        if offer.number != due:
            raise ProtocolError(f"ANNOUNCE of message {offer.number}, where {due} is due")
        if offer.total > self._max_message:
            raise ProtocolError(
                f"message {offer.number} of {offer.total} bytes is longer than {self._max_message}, "
                "the most we take",
                Reason.TOO_LONG,
            )
        return offer

    def put(self, offer: Offer) -> None:
        """It was announced."""
        self.first, self.begun = offer, False

    def look_taken(self) -> int:
        """How many messages are complete with this one."""
        return self._flow.complete + 1

    def look_unwanted(self) -> int | None:
        """As look_taken(), if there is one that nobody READs."""
        return self.look_taken() if self.first is not None and not self.begun else None

    def take(self, complete: int) -> None:
        """It is here, or nobody wants it."""
        self.first, self.begun = None, False
        self.unconfirmed = self._last = complete - 1 & 0xFFFFFFFF
        self._flow.complete = complete

    def is_late(self, number: int) -> bool:
        """A STOP that crosses with the TAKEN, or comes while the message is READ: it changes nothing."""
        return number == self._last or (self.begun and self.first is not None and self.first.number == number)

    def confirm(self, number: int) -> None:
        """A TAKEN tells the peer."""
        if self.unconfirmed == number:
            self.unconfirmed = None

    def clear(self) -> None:
        """The connection has ended."""
        self.first, self.begun, self.unconfirmed = None, False, None
