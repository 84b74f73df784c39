# SPDX-License-Identifier: Apache-2.0
"""Messages that the peer announces: the driver READs each from where it lies, then the peer is told."""

from rnic.endpoint.errors import ProtocolError, Reason
from rnic.endpoint.flow import Flow
from rnic.endpoint.frame import Frame, Offer, parse_offer

__all__ = ["Offers"]


class Offers:
    """The message that is announced, one at a time, and the TAKEN that the peer has to be sent for it.

    look() and look_taken() check a change; put(), take() and confirm() apply it, and calling them again
    changes nothing.
    """

    def __init__(self, max_message: int, flow: Flow) -> None:
        self._max_message = max_message
        self._flow = flow  # counts messages
        self.first: Offer | None = None
        """The message that was announced and not taken yet; None: there is none."""
        self.begun = False
        """The driver is READing the message in `first`."""
        self.unconfirmed: int | None = None
        """The number of the message that was taken and needs a TAKEN to the peer; None: there is none."""
        self._last: int | None = None  # the number of the last one that was taken

    @property
    def idle(self) -> bool:
        """Nothing is left to do here."""
        return self.first is None and self.unconfirmed is None

    def check_none(self, frame: Frame) -> None:
        """Raise ProtocolError if the peer sent this frame while it had to wait for a TAKEN."""
        waits = self.first.number if self.first is not None else self.unconfirmed
        if waits is not None:
            raise ProtocolError(f"{frame.type.name} came before message {waits} was taken")

    def look(self, frame: Frame) -> Offer:
        """Check an ANNOUNCE, and return the message that it offers; ProtocolError when it is not allowed."""
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
        """Keep the offer that look() has returned; calling it again changes nothing."""
        self.first, self.begun = offer, False

    def look_taken(self) -> int:
        """Return how many messages are complete when the announced one is counted, too."""
        return self._flow.complete + 1

    def look_unwanted(self) -> int | None:
        """As look_taken(), but None unless a message is announced and not being READ."""
        return self.look_taken() if self.first is not None and not self.begun else None

    def take(self, complete: int) -> None:
        """Note that the announced message has been READ or dropped; `complete` is from look_taken()."""
        self.first, self.begun = None, False
        self.unconfirmed = self._last = complete - 1 & 0xFFFFFFFF
        self._flow.complete = complete

    def is_late(self, number: int) -> bool:
        """Whether a STOP of this message is too late: the message has been taken, or is being READ."""
        return number == self._last or (self.begun and self.first is not None and self.first.number == number)

    def confirm(self, number: int) -> None:
        """Note that a TAKEN for message `number` was handed out."""
        if self.unconfirmed == number:
            self.unconfirmed = None

    def clear(self) -> None:
        """Forget all offers, as the connection has ended."""
        self.first, self.begun, self.unconfirmed = None, False, None
