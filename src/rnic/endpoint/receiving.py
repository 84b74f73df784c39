# SPDX-License-Identifier: Apache-2.0
"""What an end receives: the peer's SENDs, and the events that they become."""

from collections.abc import Callable, Iterator, Set
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rnic.endpoint.end import LIVE, NOTHING, PEER_TALKS, Change, Effect, End, aborted
from rnic.endpoint.errors import ProtocolError, Reason
from rnic.endpoint.events import Event, MessageReceived, PeerClosed, RegionShared, RegionWithdrawn
from rnic.endpoint.flow import MIN_REFILL
from rnic.endpoint.frame import Frame, FrameType, Offer, parse
from rnic.endpoint.outbox import Announcement
from rnic.endpoint.reassembly import Progress
from rnic.endpoint.state import Input, State

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Receiving(End):
    """The calls of the user that takes events, and those of the driver that brings what came in."""

    # ------------------------------------------------------------ the user

    def next_event(self) -> Event | None:
        """Take and return the next event.  While too many events are not taken, the peer has to wait.

        None: there is no event, and the user waits for one.  Then also a message longer than max_backlog may
        come.
        """
        event = self.peek_event()
        if event is None:
            self.want(True)
        else:
            self._do(self._take_event, event, *self._inbox.look_taken(event))
        return event

    def _take_event(self, event: Event, taken: int, backlog: int) -> None:
        self._inbox.take(event, taken, backlog)
        self._resume()

    def peek_event(self) -> Event | None:
        """Return the next event without taking it; None when there is none."""
        if self._step is not None:
            self.settle()
        return self._inbox.first

    def find_message(self, tag: int) -> MessageReceived | None:
        """Return the first message with this tag without taking it; None when there is none."""
        if self._step is not None:
            self.settle()
        return self._inbox.find(tag)

    def exchange(
        self, found: MessageReceived, other: MessageReceived, done: Callable[[MessageReceived], None]
    ) -> None:
        """Take the message that find_message() has found; put the one that was taken last back in front.

        Calls `done` with what was found, perhaps more than once.
        """
        if self._step is not None:
            self.settle()
        self._do(self._exchange, found, other, self._inbox.look_exchanged(found, other), done)

    def _exchange(
        self,
        found: MessageReceived,
        other: MessageReceived,
        weight: int,
        done: Callable[[MessageReceived], None],
    ) -> None:
        self._inbox.exchange(found, other, weight)
        done(found)

    def tags_here(self) -> Iterator[int | None]:
        """Return the tags of the events that can be taken, one for each; None: it is no message."""
        if self._step is not None:
            self.settle()
        return self._inbox.tags()

    def want(self, wanted: bool, tags: Set[int] = frozenset()) -> None:
        """Note whether a call waits for a message now, and for which `tags`.

        While it waits and no event is here, an unfinished message of any length may come.  Else the bytes of
        an unfinished message count in the backlog.  A message with one of the `tags` may always come.
        """
        if self._step is not None:
            self.settle()
        self.wanted, self.tags = wanted, tags
        self._resume()

    def discard(self) -> None:
        """Keep no messages from now on, as the user takes no more.  They are still checked."""
        if self._step is not None:
            self.settle()
        self._do(self._discard, self._offers.look_unwanted())

    def _discard(self, complete: int | None) -> None:
        self._discards = True
        self._assembler.discard()
        if complete is not None:
            self._offers.take(complete)
        self._resume()

    def _is_full(self) -> bool:
        """Whether max_backlog is reached, so that the peer has to wait."""
        if self._discards or (self.wanted and not self._inbox) or self._assembler.is_of(self.tags):
            return False
        return self._inbox.weight + self._assembler.buffered >= self.config.max_backlog

    def _resume(self) -> None:
        if self.flow.freed != self.flow.arrived and not self._is_full():
            self.flow.resume()

    def events(self) -> Iterator[Event]:
        """The events, each taken when the loop comes to it."""
        while (event := self.next_event()) is not None:
            yield event

    # ------------------------------------------------------------ announced messages

    @property
    def offer(self) -> Offer | None:
        """A message that the peer has announced, and that this end has not taken.

        The driver READs it when `may_fetch`, after begin_fetch(); then it calls fetched().
        """
        return self._offers.first

    @property
    def may_fetch(self) -> bool:
        """Whether to READ the offer now: no READ has begun, and a call waits for it or there is room."""
        offer = self._offers.first
        if offer is None or self._offers.begun or self.state not in LIVE:
            return False
        if (self.wanted and not self._inbox) or offer.tag in self.tags:
            return True
        return self._inbox.weight + offer.total < self.config.max_backlog

    def begin_fetch(self, offer: Offer | None = None) -> None:
        """Note that the driver READs `offer`, if that is still the offer.  From now on a STOP is too late."""
        if offer is None or self._offers.first is offer:
            self._offers.begun = True

    def copy_messages(self) -> None:
        """Copy the messages that lie in the driver's memory, because the driver is about to reuse it."""
        if self._step is not None:
            self.settle()
        self._inbox.copy_messages()

    def give_up_fetch(self) -> None:
        """Make the offer due again: the READ has failed, or its buffer is not wanted."""
        self._offers.begun = False
        if self._discards:
            self.discard()

    def fetched(self, data: bytes | memoryview | None) -> None:
        """Note that the offer was READ.  next_event() returns `data`; None: the driver delivers it itself."""
        if self._step is not None:
            self.settle()
        offer = self._offers.first
        assert offer is not None
        keep = data is not None and not self._discards
        events = (MessageReceived(data, offer.tag),) if keep and data is not None else ()
        self._change((self._offers.take, self._offers.look_taken()), *events)

    # ------------------------------------------------------------ what the driver brings

    def receives_to_post(self) -> int:
        """How many receives the driver has to post now, of config.receive_size bytes each.

        As many buffers are free: receive() keeps none.
        """
        if self._step is not None:
            self.settle()
        return self.flow.to_post

    def receives_posted(self, number: int) -> None:
        """Note that the driver has posted `number` receives; only now may the peer learn of them."""
        self.flow.post(number)

    @property
    def posted_receives(self) -> int:
        """The number of receives that were posted since the beginning."""
        return self.flow.posted

    def receive(self, data: "Buffer", now: float) -> None:
        """Take in a SEND: `data` is exactly its bytes in the receive buffer, which is free on return.

        Nothing that a peer sends raises.  A SEND that is not allowed ends the connection.
        """
        if self._step is not None:
            self.settle()
        if self.state in (State.HELLO, State.RAW):
            raise RuntimeError(f"receive() in the state {self.state.value!r}")
        self._heard_at = now
        if self.state in LIVE:
            try:
                self._take(memoryview(data).cast("B"))
                return
            except (
                ProtocolError
            ) as error:  # which is kept: not with its frames, which hold the receive buffer
                self._fail(type(error)(str(error), error.reason))
        self.flow.seen += 1

    def _take(self, data: memoryview) -> None:
        if len(data) > self.config.receive_size:
            raise ProtocolError(f"a SEND of {len(data)} bytes into {self.config.receive_size}")
        frame = parse(data, self._dialect)
        handler, talk, reserve, spare = self._RULES[frame.type]
        if not spare:
            self.flow.check_arrival(reserve)
        if talk and self.state not in PEER_TALKS:
            raise ProtocolError(f"{frame.type.name} after GOODBYE")
        returned = self.flow.refilled(frame.credits) if frame.credits else self.flow.returned
        change, events = handler(self, frame)
        number, freed, told = self.flow.seen + 1, self.flow.freed + 1, self.flow.told + spare
        self._do(self._arrive, change, events, *self._inbox.look(events), returned, number, freed, told, talk)

    def _arrive(
        self,
        change: Change,
        events: tuple[Event, ...],
        first: int,
        backlog: int,
        returned: int,
        number: int,
        freed: int,
        told: int,
        talk: bool,
    ) -> None:
        carry_out, argument = change
        carry_out(argument)
        if events:
            self._inbox.put(events, first, backlog)
        self.flow.returned = returned
        flow = self.flow
        if not (talk and self._is_full()):
            flow.freed = freed
        flow.arrived = flow.seen = number
        flow.told = told

    def receive_rest(self, total: int, data: bytes, tag: int, let_go: Callable[[], None]) -> None:
        """Take over a message of `total` bytes from a Courier, which has `data` of it; then call let_go()."""
        if self._step is not None:
            self.settle()
        self._do(self._take_over, total, data, tag, let_go)

    def _take_over(self, total: int, data: bytes, tag: int, let_go: Callable[[], None]) -> None:
        self._assembler.take_over(total, data, tag)
        let_go()

    # ------------------------------------------------------------ what came in

    def _on_message(self, frame: Frame) -> Effect:
        self._offers.check_none(frame)
        return self._came(*self._assembler.first(frame))

    def _on_more(self, frame: Frame) -> Effect:
        return self._came(*self._assembler.more(frame))

    def _came(self, progress: Progress, data: bytes | None) -> Effect:
        events = () if data is None or self._discards else (MessageReceived(data, progress.tag),)
        return (self._assembler.go, progress), events

    def _on_announce(self, frame: Frame) -> Effect:
        self._offers.check_none(frame)
        if self._assembler.partial:
            raise ProtocolError(f"ANNOUNCE inside of message {self.flow.complete}")
        offer = self._offers.look(frame)
        if self._discards:
            return (self._offers.take, self._offers.look_taken()), ()
        return (self._offers.put, offer), ()

    def _on_taken(self, frame: Frame) -> Effect:
        item = self._outbox.announced
        if item is None or item.number is None or item.number & 0xFFFFFFFF != frame.id:
            raise ProtocolError(f"TAKEN of message {frame.id}, which waits for none")
        return (self._note_taken, (item, self.flow.delivered + (not item.stopped))), ()

    def _note_taken(self, argument: tuple[Announcement, int]) -> None:
        item, self.flow.delivered = argument
        self._outbox.take(item)

    def _on_stop(self, frame: Frame) -> Effect:
        number = self.flow.complete & 0xFFFFFFFF
        if frame.id == number and self._assembler.partial:
            return (self._note_stopped, (self._stopped + 1, self._assembler.look_stopped())), ()
        if self._offers.is_late(frame.id):
            return NOTHING, ()
        if self._offers.first is None or frame.id != number:
            raise ProtocolError(f"STOP of message {frame.id}, which was not begun")
        return (self._note_offer_stopped, (self._stopped + 1, self._offers.look_taken())), ()

    def _note_stopped(self, argument: tuple[int, Progress]) -> None:
        self._stopped, progress = argument
        self._assembler.go(progress)

    def _note_offer_stopped(self, argument: tuple[int, int]) -> None:
        self._stopped, complete = argument
        self._offers.take(complete)

    def _on_credit(self, frame: Frame) -> Effect:
        if frame.credits < MIN_REFILL:
            raise ProtocolError(f"CREDIT returns {frame.credits}, it must be two or more", Reason.CREDIT)
        return NOTHING, ()

    def _on_share(self, frame: Frame) -> Effect:
        region = self._theirs.look(frame)
        return (self._theirs.add, region), (RegionShared(region),)

    def _on_withdraw(self, frame: Frame) -> Effect:
        withdrawn = self._theirs.look_withdrawn(frame)
        return (self._theirs.drop, withdrawn), (RegionWithdrawn(withdrawn[0]),)

    def _on_release(self, frame: Frame) -> Effect:
        return (self._own.release, self._own.look_released(frame)), ()

    def _on_goodbye(self, frame: Frame) -> Effect:
        self._offers.check_none(frame)
        if self._assembler.partial:
            raise ProtocolError(f"GOODBYE inside of message {self.flow.complete}")
        if frame.id != self.flow.complete & 0xFFFFFFFF:
            raise ProtocolError(f"GOODBYE after {frame.id} messages, {self.flow.complete} have come")
        change, events = self._said_goodbye(Input.GOODBYE_RECEIVED)
        return change, (PeerClosed(), *events)

    def _on_abort(self, frame: Frame) -> Effect:
        return self._finish(aborted(frame.id, bytes(frame.body)), Input.LOST)

    class _Rule(NamedTuple):
        """How a SEND of some type is received."""

        handler: "Callable[[Receiving, Frame], Effect]"
        talk: bool  # not after GOODBYE; the user hears of it, so its receive may be held back
        reserve: bool = False  # it may use the last credit
        spare: bool = False  # it needs no credit: there is a receive for it that the peer is not told of

    _RULES: ClassVar[dict[FrameType, _Rule]] = {
        FrameType.MESSAGE: _Rule(_on_message, talk=True),
        FrameType.MORE: _Rule(_on_more, talk=True),
        FrameType.CREDIT: _Rule(_on_credit, talk=False, reserve=True),
        FrameType.SHARE: _Rule(_on_share, talk=True),
        FrameType.WITHDRAW: _Rule(_on_withdraw, talk=True),
        FrameType.RELEASE: _Rule(_on_release, talk=False),
        FrameType.GOODBYE: _Rule(_on_goodbye, talk=True),
        FrameType.ABORT: _Rule(_on_abort, talk=False, reserve=True),
        FrameType.ANNOUNCE: _Rule(_on_announce, talk=True),
        FrameType.TAKEN: _Rule(_on_taken, talk=False, spare=True),
        FrameType.STOP: _Rule(_on_stop, talk=True),
    }
