# SPDX-License-Identifier: Apache-2.0
"""The messages of a connection: those that the program sends, and those that it takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import Enum
from itertools import chain
from operator import index
from typing import TYPE_CHECKING

from rnic.conn.parts import Parts
from rnic.conn.raw import Raw
from rnic.endpoint import Capability, Closed, ClosedError, MessageReceived, PeerClosed, Protocol, State
from rnic.endpoint.buffers import flat
from rnic.enums import AccessFlags
from rnic.errors import VerbsError
from rnic.rdmacm import EventType

if TYPE_CHECKING:
    from rnic.endpoint.buffers import AnyBuffer


STOPPED = "the server was stopped"


class AnyTag(Enum):
    """The type of ANY."""

    ANY = "any tag"
    """recv(tag=ANY) takes the next message, whatever its tag, and returns its tag, too."""


ANY = AnyTag.ANY
"""recv(tag=ANY) takes the next message of any tag, and returns the message and its tag."""


class Messaging(Parts):
    """What calls that send and receive ask for."""

    # ------------------------------------------------------------ sending

    @property
    def next_handle(self) -> int:
        """The handle of the next message that is queued."""
        return self.protocol.next_handle

    def send(self, message: AnyBuffer, tag: int) -> None:
        """Queue a message; is_sent() tells when its buffer is free."""
        self._go_long()
        self.check()
        data = flat(message, "send()")
        self._waiting[self.next_handle] = True
        self._queue_message(data, index(tag or 0))

    def _queue_message(self, data: memoryview, tag: int) -> None:
        """Announce a message if it is long and can be registered; else queue it to go in pieces."""
        protocol, handle = self.protocol, self.protocol.next_handle
        if isinstance(protocol, Protocol) and self._announces and len(data) >= (self.config.announce or 0):
            try:
                rkey = self._announced.register(handle, data)
            except VerbsError:  # there are no more regions
                protocol.send(data, tag)
            else:
                protocol.announce(len(data), 0, rkey, tag)
        else:
            protocol.send(data, tag)

    @property
    def _announces(self) -> bool:
        """Long messages may be announced to this peer."""
        protocol, config = self.protocol, self.config
        return (
            isinstance(protocol, Protocol)
            and config.announce is not None
            and protocol.knows(Capability.ANNOUNCE)
            and bool(config.access & AccessFlags.REMOTE_READ)
        )

    def is_sent(self, handle: int) -> bool:
        """The message has left its buffer, or the connection has ended (then check() raises)."""
        return handle not in self._waiting or self.ended

    @property
    def unsent(self) -> int:
        """The number of messages that have not left their buffers."""
        return len(self._waiting)

    def are_sent(self, last: int) -> bool:
        """As is_sent(), for all messages up to the handle `last`."""
        return self.ended or next(iter(self._waiting), last + 1) > last

    def raise_unsent_up_to(self, last: int) -> None:
        """Raise the connection's error if it ended before these messages were sent."""
        if next(iter(self._waiting), last + 1) <= last:
            self.check()

    def raise_unsent(self, handle: int) -> None:
        """Raise the connection's error if it ended before the message was sent."""
        self._announced.close(handle)
        if self._waiting.pop(handle, None) is not None:
            self.check()

    def take_back(self, handle: int) -> None:
        """Withdraw a message, as its call has ended: the peer drops it, if it can.

        If it does not, or has begun to READ it, the message goes on from a copy.
        """
        self._go_long()
        protocol = self.protocol
        self._waiting.pop(handle, None)
        if protocol.cancel(handle) or handle >= self.next_handle:
            self._announced.close(handle)
            return
        if handle in self._announced:
            self._announced.copy(handle)
        if isinstance(protocol, Raw) or not protocol.stop(handle):
            protocol.detach(handle)
        for out in self._outgoing:  # of this message, perhaps
            out.payload = memoryview(bytes(out.payload))

    def _note_taken(self) -> None:
        """Deregister the messages that the peer has taken."""
        if isinstance(self.protocol, Protocol):
            for handle in self._announced.up_to(self.protocol.taken):
                self._announced.close(handle)
                self._waiting.pop(handle, None)

    # ------------------------------------------------------------ receiving

    def next_message(self, tag: int | None = None) -> bytes | memoryview | None:
        """The next message, or the next with a tag; None: there is none yet.

        It stays in the courier's `hand`.  Raises EOFError after the peer's goodbye, and what `error` is.
        """
        if self.broken is None:
            self._note_events()
        hand: MessageReceived | bytes | None = self.courier.hand
        if hand is not None and tag is not None and self.tag_in_hand != tag:
            hand = self._fetch_from_behind(hand, tag)
        if hand is not None:
            self._looked = False
            return hand if isinstance(hand, bytes) else hand.data
        if (error := self.fetching.error) is not None and not self.ended:
            self.fetching.error = None
            raise error
        if self.eof or (tag is not None and self._peer_is_done):
            which = "no message" if tag is None else f"no message with tag {tag}"
            error = EOFError(f"the peer has said goodbye: {which} follows")
            vars(error)["of"] = id(self)
            raise error
        self.check()
        if self._looked:
            raise ClosedError(STOPPED)
        return None

    def is_own_end(self, error: BaseException | None) -> bool:
        """The error is the EOFError that next_message() has raised here."""
        return isinstance(error, EOFError) and vars(error).get("of") == id(self)

    def _fetch_from_behind(self, hand: MessageReceived | bytes, tag: int) -> MessageReceived | None:
        """Bring a message with this tag to hand, and put the one that was there back."""
        protocol = self.protocol
        if isinstance(protocol, Raw) or (found := protocol.find_message(tag)) is None:
            return None
        if isinstance(hand, bytes):
            hand = MessageReceived(hand, self.courier.tag)
        protocol.exchange(found, hand, self._take_in_hand)
        return found

    def _take_in_hand(self, message: MessageReceived) -> None:
        self.courier.hand = message

    @property
    def _peer_is_done(self) -> bool:
        """The peer's goodbye has come: no message follows those that are here."""
        return self.protocol.state in (State.HALF_CLOSED_REMOTE, State.CLOSED)

    @property
    def has_no_more(self) -> bool:
        """next_message() raises an error if there is no message."""
        return self.ended or self.leaving or self.fetching.error is not None

    @property
    def by_courier(self) -> bool:
        """The next message came by the courier, so no pump is needed after it."""
        return isinstance(self.courier.hand, bytes)

    def has_news(self) -> bool:
        """next_message() has something to say."""
        return self.courier.hand is not None or self.eof or self.has_no_more

    @property
    def is_spent(self) -> bool:
        """The peer has left or the connection has ended, and the program has taken all messages."""
        if self.courier.hand is not None or not (self.eof or self.ended):
            return False
        return not isinstance(self.protocol.peek_event(), MessageReceived)

    def leave(self) -> None:
        """From any thread: calls that wait for a message raise ClosedError, now and later."""
        self.leaving = True
        self.courier.shut()
        with contextlib.suppress(VerbsError):  # it was closed meanwhile
            self.cm_id.write_cm_event(EventType.USER)

    def why_abort(self, error: BaseException | None) -> str | None:
        """What the peer is told when a `with` block ends by an error; None: it is closed as usual."""
        if error is None or self.is_own_end(error):
            return None
        if self.leaving and isinstance(error, ClosedError):
            return STOPPED
        return f"the program failed: {type(error).__name__}"

    @property
    def offered(self) -> int:
        """The length of the announced message, if it comes next and is not being fetched; else 0."""
        return self.fetching.offered(self.protocol) if isinstance(self.protocol, Protocol) else 0

    def _fetch_offer(self) -> bool:
        """READ what the peer has announced, when somebody waits for it or there is room; True: go on."""
        protocol = self.protocol
        if isinstance(protocol, Raw) or self.ended or not self.established:
            return False
        return self.fetching.step(protocol, self._queued_ops)

    # ------------------------------------------------------------ tags

    def check_tag(self, tag: int) -> None:
        """TypeError or ValueError when no message can have this tag."""
        if not hasattr(tag, "__index__"):
            raise TypeError(f"recv(): a tag is a number, not {type(tag).__name__}")
        if not 0 <= tag < 1 << 64:
            raise ValueError(f"recv(): tag {tag}, it can be 0 to 2**64 - 1")
        protocol = self.protocol
        if tag and not (isinstance(protocol, Protocol) and protocol.knows(Capability.TAG)):
            raise ValueError("recv(): the peer knows no tags")

    def has_tagged(self, tag: int) -> bool:
        """next_message(tag) has something to say."""
        protocol = self.protocol
        if self.tag_in_hand == tag or self._peer_is_done or self.has_no_more:
            return True
        return isinstance(protocol, Protocol) and protocol.find_message(tag) is not None

    def tags_here(self) -> Iterator[int | None] | None:
        """The tags of what is here, as Protocol has it; no iterator: all calls for messages can go on."""
        protocol = self.protocol
        if self._peer_is_done or self.has_no_more:
            return None
        inside = protocol.tags_here() if isinstance(protocol, Protocol) else iter(())
        return inside if (tag := self.tag_in_hand) is None else chain((tag,), inside)

    @property
    def tag_in_hand(self) -> int | None:
        """The tag of the message in the courier's hand; None: there is no message."""
        hand = self.courier.hand
        return self.courier.tag if isinstance(hand, bytes) else None if hand is None else hand.tag

    # ------------------------------------------------------------ events of the protocol

    def _note_events(self) -> None:
        """Take events up to the next message; what stays behind it makes the peer wait."""
        while (event := self.protocol.peek_event()) is not None:
            if isinstance(event, MessageReceived):
                if self.courier.hand is None:
                    self.courier.hand = event
                elif self.courier.hand is not event:
                    break
            elif isinstance(event, PeerClosed | Closed):
                self.eof = True
            self.protocol.next_event()
        self._want()

    def _want(self) -> None:
        protocol, wanted = self.protocol, self.waiting and self.courier.hand is None
        if isinstance(protocol, Protocol):
            if wanted is not protocol.wanted or self.tags or protocol.tags:
                protocol.want(wanted, self.tags)
        elif wanted is not protocol.wanted:
            protocol.want(wanted)
