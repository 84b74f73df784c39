# SPDX-License-Identifier: Apache-2.0
"""One end of a connection, without I/O and without a clock: a driver moves its bytes and completions."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rnic.endpoint.buffers import flat
from rnic.endpoint.config import Config
from rnic.endpoint.errors import (
    AbortedError,
    ClosedError,
    EndpointError,
    LostError,
    MessageTooLongError,
    NoHelloError,
    ProtocolError,
    Reason,
)
from rnic.endpoint.events import (
    Closed,
    Event,
    Failed,
    MessageReceived,
    PeerClosed,
    Region,
    RegionShared,
    RegionWithdrawn,
)
from rnic.endpoint.flow import MIN_REFILL, Flow
from rnic.endpoint.frame import (
    HEADER_SIZE,
    MESSAGE_SIZE,
    VERSION_1,
    VERSION_2,
    Frame,
    FrameType,
    Offer,
    abort_frame,
    emit,
    parse,
)
from rnic.endpoint.hello import MAX_DATA_ANSWERING, MAX_DATA_ASKING, Capability, Hello, agree
from rnic.endpoint.inbox import Inbox
from rnic.endpoint.offers import Offers
from rnic.endpoint.outbox import Announcement, Message, Outbox, Outgoing
from rnic.endpoint.reassembly import Assembler, Progress
from rnic.endpoint.regions import OwnRegions, PeerRegions
from rnic.endpoint.state import Input, State
from rnic.endpoint.state import step as next_state
from rnic.endpoint.text import printable
from rnic.enums import AccessFlags
from rnic.records import Record

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from rnic.endpoint.buffers import AnyBuffer

__all__ = ["Protocol", "Role", "Statistics"]

_LIVE = frozenset({State.OPEN, State.HALF_CLOSED_LOCAL, State.HALF_CLOSED_REMOTE})
_PEER_TALKS = frozenset({State.OPEN, State.HALF_CLOSED_LOCAL})


class Role(Enum):
    """Who asked for the connection."""

    INITIATOR = "initiator"
    """Its hello rides in the REQ."""
    ACCEPTOR = "acceptor"
    """The acceptor reads the initiator's hello first; its own hello rides in the REP."""


class Statistics(Record):
    """What a connection has done so far, and where it stands."""

    state: State
    """The state of the connection."""
    messages_sent: int
    """Messages that the peer is known to have whole.  May lag by 16, as short messages complete in groups."""
    messages_received: int
    """Messages of the peer that are whole here."""
    sends: int
    """SENDs that were handed out, of whatever type."""
    receives: int
    """SENDs that came in."""
    credit_sends: int
    """SENDs that carried nothing but credits."""
    probes: int
    """Probes of an idle peer."""
    credits: int
    """Receives of the peer that may be used now."""
    queued: int
    """Bytes of messages that were not handed out yet."""
    backlog: int
    """Bytes of events, each with an overhead, that wait for the user."""
    held: int
    """Receives that are held back, because of the backlog."""
    partial: int
    """Bytes of the message that is coming in."""


class _Posted(NamedTuple):
    """A work request that was handed out and has not completed."""

    number: int
    kind: FrameType | None  # None: a probe
    ends: int | None


_Change = tuple[Callable[[Any], None], Any]
"""A method and its argument; calling the method again with the same argument changes nothing."""


def _nothing(_: object) -> None:
    """No change."""


_NOTHING: _Change = (_nothing, None)
_Effect = tuple[_Change, tuple[Event, ...]]
"""A change, and the events that it gives the user."""


class Protocol:
    """One end of a connection.

    The driver opens it: receives_to_post(), receives_posted(), then hello() and accept_hello(), in the order
    of its role.  Then three things drive it, in any order: the user (send(), share(), withdraw(), close(),
    abort(), next_event()), completions (receive() and sent()) and time (timer() at deadline()).  After each
    of them the driver posts what receives_to_post() and next_send() ask for.  `now` is any clock in seconds
    that does not go back.

    Mistakes of the driver raise RuntimeError or ValueError.  A mistake of the peer raises only in
    accept_hello().  Later it ends the connection, and Failed is the last event.

    An exception from outside, such as KeyboardInterrupt, may come between any two lines.  So each call works
    out a change, writes it down as one step, and carries it out.  The next call first carries out a step that
    was interrupted.  A step stores new values and adds nothing, so it can be carried out twice.  The caller
    finds out what was done by `receives_seen`, `completed`, and the container given to next_send().
    """

    def __init__(self, config: Config, role: Role) -> None:
        self.config = config
        self.role = role
        self.state = State.HELLO
        self.peer: Hello | None = None
        """The peer's hello, after accept_hello()."""
        self.version = 0
        """The version that both speak, after accept_hello()."""
        self.error: EndpointError | None = None
        """What ended the connection; None if it is open, or both ends said goodbye."""
        self.undelivered = 0
        """When `error` is set: the number of messages that the peer has perhaps not received."""
        self.flow = Flow(config.receives)
        """The counters of the connection, which a Courier uses, too."""
        self._step: tuple[Callable[..., None], tuple[Any, ...]] | None = None  # what was begun
        self._greeted = False  # hello() was called
        self._closing = False  # close() was called
        self._close_by: float | None = None  # when the goodbyes must have been said
        self._heard_at = 0.0  # the last sign of life
        self._probe_due = False  # the peer has been silent for too long
        self._assembler = Assembler(config.max_message, self.flow)
        self._outbox = Outbox(self.flow)
        self._posted: deque[_Posted] = deque()
        self._abort = b""  # the ABORT frame, when this end aborted
        self._inbox = Inbox()
        self.wanted = False
        """A call waits for a message, by want()."""
        self.tags: Set[int] = frozenset()
        """The tags that calls ask for now."""
        self._discards = False
        self._own = OwnRegions(config.access)
        self._theirs = PeerRegions(config.max_regions)
        self._offers = Offers(config.max_message, self.flow)
        self._dialect = VERSION_1
        self._handles = 0  # messages that send() took
        self._stopped = 0  # messages of the peer's that it has taken back
        self._probes = 0

    # ------------------------------------------------------------ changes

    def settle(self) -> None:
        """Finish the step that an exception has interrupted; every call does so first."""
        if self._step is not None:
            step, args = self._step
            step(*args)
            self._step = None

    def _do(self, step: Callable[..., None], *args: Any) -> None:
        self._step = (step, args)
        step(*args)
        self._step = None

    def _change(self, change: _Change, *events: Event) -> None:
        self._do(self._carry_out, change, events, *self._inbox.look(events))

    def _carry_out(self, change: _Change, events: tuple[Event, ...], first: int, backlog: int) -> None:
        carry_out, argument = change
        carry_out(argument)
        self._inbox.put(events, first, backlog)

    # ------------------------------------------------------------ opening

    def hello(self, data: bytes = b"") -> bytes:
        """Return the private data for the REQ (initiator) or the REP (acceptor).

        Post the receives before.  The acceptor calls accept_hello() before, or answers with refusal().
        `data` is the program's own: 24 bytes at most in a REQ, 164 in a REP, else ValueError.  A peer of
        version 1 ignores it.
        """
        most = MAX_DATA_ASKING if self.role is Role.INITIATOR else MAX_DATA_ANSWERING
        if len(data) > most:
            raise ValueError(f"the data of a hello has {len(data)} bytes, there is room for {most}")
        if self._step is not None:
            self.settle()
        if self.flow.to_post:
            raise RuntimeError(f"hello() promises receives: {self.flow.to_post} are not posted")
        if self.role is Role.ACCEPTOR and self.state is not State.OPEN:
            raise RuntimeError("hello(): an acceptor has to accept the peer's hello first")
        if not self._greeted:
            self.flow.told = self.flow.posted
        self._greeted = True
        return self.config.hello(data).emit()

    def accept_hello(self, private_data: bytes, now: float) -> Hello | None:
        """Return the peer's hello, from the private data of the REQ or REP; zeros after it do not matter.

        None: the peer said no hello, and the option `raw` allows that.  The queue pair is then the user's,
        and this object is done.  Raises ProtocolError, NoHelloError or VersionError.  The connection is over
        then, and an acceptor tells the peer by refusal(error.reason, str(error)) in a REJ.
        """
        if self.state is not State.HELLO or (self.role is Role.INITIATOR and not self._greeted):
            raise RuntimeError(f"accept_hello() by the {self.role.value} in the state {self.state.value!r}")
        try:
            peer = Hello.parse(private_data)
            self.version = agree(self.config.hello(), peer)
        except NoHelloError:
            self._change(self._mover(Input.NO_HELLO if self.config.raw else Input.LOST))
            if self.config.raw:
                return None
            raise
        except ProtocolError:
            self._change(self._mover(Input.LOST))
            raise
        self.peer = peer
        self._dialect = VERSION_2 if self.version >= 2 else VERSION_1
        self.flow.credits = peer.receives
        self._heard_at = now
        self._change(self._mover(Input.HELLO_ACCEPTED))
        return peer

    # ------------------------------------------------------------ the user

    def send(self, message: "AnyBuffer", tag: int = 0) -> int:
        """Queue a message of any length; return its handle.  sent() returns that when the buffer is free.

        The bytes are not copied: they must stay as they are until then.  MessageTooLongError when the peer
        does not take so many, ClosedError when nothing can be sent any more, ValueError when the buffer is
        not contiguous in C order, or the peer knows no tags.
        """
        data = flat(message, "send()")
        self._check_message(len(data), tag)
        handle = self._handles + 1
        self._do(self._queue_message, Message(handle, data, tag=tag))
        return handle

    def announce(self, length: int, addr: int, rkey: int, tag: int = 0) -> int:
        """Queue a message that the peer READs from where it lies; return its handle, as send() does.

        The peer must know ANNOUNCE, and the queue pair must let it READ.  The memory must stay registered
        until `taken` has reached the handle.
        """
        self._check_message(length, tag)
        handle = self._handles + 1
        self._do(self._queue_message, Announcement(handle, length, addr, rkey, tag))
        return handle

    def _check_message(self, length: int, tag: int) -> None:
        peer = self._may_send("send")
        if length > peer.max_message:
            raise MessageTooLongError(
                f"a message of {length} bytes is longer than {peer.max_message}, the most the peer takes"
            )
        if not 0 <= tag < 1 << 64:
            raise ValueError(f"send(): tag {tag}, it can be 0 to 2**64 - 1")
        if tag and not self.knows(Capability.TAG):
            raise ValueError(f"send(): the peer speaks version {self.version}, which has no tags")

    def knows(self, what: Capability) -> bool:
        """Whether the peer understands a capability; False before its hello."""
        return self.peer is not None and what in self.peer.capabilities

    def _queue_message(self, message: Message | Announcement) -> None:
        self._outbox.add(message)
        self._handles = message.handle

    def receive_rest(self, total: int, data: bytes, tag: int, let_go: Callable[[], None]) -> None:
        """Take over a message of `total` bytes from a Courier, which has `data` of it; then call let_go()."""
        if self._step is not None:
            self.settle()
        self._do(self._take_over, total, data, tag, let_go)

    def _take_over(self, total: int, data: bytes, tag: int, let_go: Callable[[], None]) -> None:
        self._assembler.take_over(total, data, tag)
        let_go()

    @property
    def next_handle(self) -> int:
        """The handle that the next send() returns: cancel() can use it if an exception hides the result."""
        return self._handles + 1

    def cancel(self, handle: int) -> bool:
        """Take back a message of which nothing was handed out yet; return False when it is too late."""
        if self._step is not None:
            self.settle()
        return self._outbox.cancel(handle)

    def stop(self, handle: int) -> bool:
        """Take back a message of which something was handed out; False when the peer does not know STOP.

        The peer drops a message of send() that was not handed out whole; its buffer is free at once.  The
        peer may be READing an announced message: its memory must stay until `taken` has reached the handle.
        """
        if self._step is not None:
            self.settle()
        if not self.knows(Capability.STOP):
            return False
        self._do(self._outbox.stop, handle)
        return True

    def detach(self, handle: int) -> None:
        """Copy the part of a message that was not handed out, so that its buffer is free.

        This needs a driver that copies what next_send() returns.
        """
        if self._step is not None:
            self.settle()
        self._outbox.detach(handle)

    def share(
        self,
        addr: int,
        length: int,
        rkey: int,
        access: AccessFlags,
        shape: tuple[int, ...] = (),
        dtype: str = "",
    ) -> Region:
        """Share memory with the peer, after the messages before; return the region.  withdraw() takes its id.

        `shape` and `dtype` are those of the array in it.  They are not sent to a peer that does not know
        DESCRIBE, or whose receives are too small for them.  ValueError when the peer takes no more regions,
        or the rights are none, or more than the queue pair's.  ClosedError as in send().
        """
        peer = self._may_send("share")
        region, number = self._own.look(addr, length, rkey, access, peer.max_regions, (shape, dtype))
        self._do(self._queue_share, region, number)
        return region

    def _queue_share(self, region: Region, number: int) -> None:
        self._outbox.add(region)
        self._own.add(region, number)

    def withdraw(self, region_id: int) -> None:
        """Tell the peer, after the messages before, that it may no longer use a region.

        The memory must stay registered until the id has left `unreleased`, as requests of the peer may be on
        their way.  ValueError when no such region is shared.
        """
        self._may_send("withdraw")
        self._do(self._queue_withdraw, region_id, self._own.look_withdrawn(region_id))

    def _queue_withdraw(self, region_id: int, unreleased: tuple[int, ...]) -> None:
        self._own.withdraw(region_id, unreleased)
        self._outbox.add(region_id)

    def close(self, now: float, timeout: float | None = None) -> None:
        """Say goodbye after all that is queued.  The peer's messages still come until it says goodbye, too.

        When `timeout` seconds pass before both have said it, the connection is aborted.  Another call only
        sets a new time limit.
        """
        if self._step is not None:
            self.settle()
        if self.state in (State.HELLO, State.RAW):
            self._end(AbortedError("closed before the handshake was over", Reason.APPLICATION))
        if self.state not in _LIVE:
            return
        if not self._closing:
            self._do(self._begin_close)
        self._close_by = None if timeout is None else now + timeout

    def _begin_close(self) -> None:
        self._outbox.add(None)
        self._closing = True

    def abort(self, text: str = "the program aborted the connection") -> None:
        """End the connection at once, and tell the peer the reason.  Messages on their way may be lost."""
        if self._step is not None:
            self.settle()
        self._fail(AbortedError(text, Reason.APPLICATION))

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
        if offer is None or self._offers.begun or self.state not in _LIVE:
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

    def _resume(self) -> None:
        if self.flow.freed != self.flow.arrived and not self._is_full():
            self.flow.resume()

    def events(self) -> Iterator[Event]:
        """The events, each taken when the loop comes to it."""
        while (event := self.next_event()) is not None:
            yield event

    # ------------------------------------------------------------ what the driver posts

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

    def next_send(self, kept: deque[Outgoing] | None = None) -> Outgoing | None:
        """Return the next work request to post, in this order on one queue pair; None when there is none.

        Do not call it when the send queue is full.  RuntimeError while receives are to be posted: each SEND
        has to return all credits, or the two ends might wait for each other.  The work request is put into
        `kept`, too, in case an exception hides the result.
        """
        if self._step is not None:
            self.settle()
        if not self._greeted:
            return None
        if self.state is State.ABORTING:
            return self._next_abort(kept)
        if self.state not in _LIVE:
            return None
        if self.flow.to_post:
            raise RuntimeError(f"next_send(): {self.flow.to_post} receives have to be posted first")
        return self._next_frame(kept) or self._next_credit(kept) or self._next_probe(kept)

    def _next_abort(self, kept: deque[Outgoing] | None) -> Outgoing | None:
        if any(posted.kind is FrameType.ABORT for posted in self._posted):
            return None
        return self._hand_out(Outgoing(self.flow.handed_out + 1, self._abort), FrameType.ABORT, kept)

    def _next_frame(self, kept: deque[Outgoing] | None) -> Outgoing | None:
        """The next SEND, but for CREDIT.  TAKEN and RELEASE overtake messages, as the peer waits for them."""
        if self.peer is None:
            return None
        number, refill = self.flow.handed_out + 1, self.flow.owed
        if (taken := self._offers.unconfirmed) is not None:
            out = Outgoing(number, emit(FrameType.TAKEN, refill, taken))
            return self._hand_out(out, FrameType.TAKEN, kept, (self._offers.confirm, taken))
        if not self.flow.allow():
            return None
        seen = self._theirs.withdrawals
        if self._theirs.confirmed != seen:
            out = Outgoing(number, emit(FrameType.RELEASE, refill, seen), fence=True)
            return self._hand_out(out, FrameType.RELEASE, kept, (self._theirs.confirm, seen))
        if self._outbox.ready:
            out, kind, cut = self._outbox.look(
                number, refill, self.frame_size, self.knows(Capability.DESCRIBE)
            )
            return self._hand_out(out, kind, kept, (self._outbox.go, cut))
        return None

    def _next_credit(self, kept: deque[Outgoing] | None) -> Outgoing | None:
        if self.flow.owed < self.flow.threshold or not self.flow.allow(reserve=True):
            return None
        out = Outgoing(self.flow.handed_out + 1, emit(FrameType.CREDIT, self.flow.owed))
        return self._hand_out(out, FrameType.CREDIT, kept, (self._note_credit, self.flow.credit_sends + 1))

    def _note_credit(self, number: int) -> None:
        self.flow.credit_sends = number

    def _next_probe(self, kept: deque[Outgoing] | None) -> Outgoing | None:
        if not self._probe_due:
            return None
        out = Outgoing(self.flow.handed_out + 1, b"", probe=True)
        return self._hand_out(out, None, kept, (self._note_probe, self._probes + 1))

    def _note_probe(self, number: int) -> None:
        self._probes, self._probe_due = number, False

    def _hand_out(
        self,
        out: Outgoing,
        kind: FrameType | None,
        kept: deque[Outgoing] | None,
        change: _Change = _NOTHING,
    ) -> Outgoing:
        flow = self.flow
        told = flow.told if kind in (None, FrameType.ABORT) else flow.posted
        spent = flow.spent + (kind not in (None, FrameType.TAKEN))
        posted = _Posted(out.number, kind, out.ends)
        self._do(self._note_handed_out, out, kept, change, posted, told, spent)
        return out

    def _note_handed_out(
        self,
        out: Outgoing,
        kept: deque[Outgoing] | None,
        change: _Change,
        posted: _Posted,
        told: int,
        spent: int,
    ) -> None:
        carry_out, argument = change
        carry_out(argument)
        self.flow.told, self.flow.spent = told, spent
        if not (self._posted and self._posted[-1] is posted):
            self._posted.append(posted)
        if kept is not None and not (kept and kept[-1] is out):
            kept.append(out)
        self.flow.handed_out = out.number

    # ------------------------------------------------------------ completions

    def receive(self, data: "Buffer", now: float) -> None:
        """Take in a SEND: `data` is exactly its bytes in the receive buffer, which is free on return.

        Nothing that a peer sends raises.  A SEND that is not allowed ends the connection.
        """
        if self._step is not None:
            self.settle()
        if self.state in (State.HELLO, State.RAW):
            raise RuntimeError(f"receive() in the state {self.state.value!r}")
        self._heard_at = now
        if self.state in _LIVE:
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
        if talk and self.state not in _PEER_TALKS:
            raise ProtocolError(f"{frame.type.name} after GOODBYE")
        returned = self.flow.refilled(frame.credits) if frame.credits else self.flow.returned
        change, events = handler(self, frame)
        number, freed, told = self.flow.seen + 1, self.flow.freed + 1, self.flow.told + spare
        self._do(self._arrive, change, events, *self._inbox.look(events), returned, number, freed, told, talk)

    def _arrive(
        self,
        change: _Change,
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

    def sent(self, number: int, now: float) -> tuple[int, ...]:
        """Note that the work requests up to `number` have completed with success: the peer has them.

        Returns the handles of the messages that are now delivered whole: their buffers are free.
        """
        if self._step is not None:
            self.settle()
        if not self.flow.completed < number <= self.flow.handed_out:
            raise ValueError(f"sent({number}): no such work request is outstanding")
        self._heard_at = now
        delivered: list[int] = []
        change: _Change = _NOTHING
        events: tuple[Event, ...] = ()
        for posted in self._posted:
            if posted.number > number:
                break
            if posted.ends is not None:
                delivered.append(posted.ends)
            elif posted.kind is FrameType.GOODBYE or posted.kind is FrameType.ABORT:
                change, events = self._last_word_arrived(posted.kind)
        short = self.flow.short_between(self.flow.completed, number)
        sent = self.flow.delivered + len(delivered) + short
        self._do(self._note_completed, change, events, *self._inbox.look(events), number, sent)
        return tuple(delivered)

    def _last_word_arrived(self, kind: FrameType) -> tuple[_Change, tuple[Event, ...]]:
        if kind is FrameType.GOODBYE and self.state in _LIVE:
            return self._said_goodbye(Input.GOODBYE_DELIVERED)
        if kind is FrameType.ABORT and self.state is State.ABORTING:
            return self._mover(Input.ABORT_DELIVERED), ()
        return _NOTHING, ()

    def _note_completed(
        self,
        change: _Change,
        events: tuple[Event, ...],
        first: int,
        backlog: int,
        number: int,
        messages_sent: int,
    ) -> None:
        self._carry_out(change, events, first, backlog)
        while self._posted and self._posted[0].number <= number:
            self._posted.popleft()
        self.flow.delivered = messages_sent
        self.flow.completed = number

    def lost(self, text: str) -> None:
        """End the connection: a work request or the device has failed, and `text` says how."""
        if self._step is not None:
            self.settle()
        self._end(LostError(text))

    def disconnected(self, private_data: bytes = b"") -> None:
        """Note that the peer has disconnected, with the private data of its DREQ.

        Call it after receive() and sent() for all completions, and before you move the queue pair to the
        error state.
        """
        if self._step is not None:
            self.settle()
        if self.state not in _LIVE:
            self._end(LostError("disconnected"))
            return
        try:
            frame = parse(memoryview(bytes(private_data[:8])))
        except ProtocolError:
            frame = None
        if frame is not None and frame.type is FrameType.ABORT:
            self._end(_aborted(frame.id, bytes(private_data[8:])))
        elif frame is not None and frame.type is FrameType.GOODBYE and self._is_last_word(frame):
            change, events = self._said_goodbye(Input.GOODBYE_DELIVERED)
            self._change(change, *events)
        else:
            self._end(LostError("the peer disconnected without a goodbye"))

    def _is_last_word(self, frame: Frame) -> bool:
        """Whether the peer's DREQ says that it has all: only the acknowledgement of our goodbye was lost."""
        outstanding = any(posted.kind is FrameType.GOODBYE for posted in self._posted)
        complete = frame.id == self.flow.begun & 0xFFFFFFFF
        return outstanding and complete and self.state is State.HALF_CLOSED_REMOTE

    # ------------------------------------------------------------ time

    def heard(self, now: float) -> None:
        """Note a sign of life that is not seen here: a READ, WRITE or atomic of the user has completed."""
        self._heard_at = now

    def deadline(self) -> float | None:
        """Return the time at which timer() must be called at the latest; None: there is none."""
        if self.state not in _LIVE:
            return None
        times = [at for at in (self._close_by, self._idle_deadline()) if at is not None]
        return min(times, default=None)

    def timer(self, now: float) -> None:
        """Act on a deadline that has come: make a probe ready for next_send(), or abort the connection."""
        if self._step is not None:
            self.settle()
        if self.state not in _LIVE:
            return
        if self._close_by is not None and now >= self._close_by:
            self._fail(AbortedError("the goodbyes were not said in time", Reason.TIMEOUT))
            return
        if self.flow.heard:  # at some time since
            self.flow.heard, self._heard_at = False, now
        idle = self._idle_deadline()
        if idle is not None and now >= idle:
            self._probe_due = True

    def _idle_deadline(self) -> float | None:
        """When to probe an idle peer; None while a SEND of this object is outstanding, as that will tell."""
        interval = self.config.idle_interval
        if interval is None or self._probe_due or self.peer is None or self._posted:
            return None
        return self._heard_at + interval if self.peer.access & AccessFlags.REMOTE_WRITE else None

    # ------------------------------------------------------------ how it stands

    @property
    def receives_seen(self) -> int:
        """The number of SENDs that receive() was given."""
        return self.flow.seen

    @property
    def completed(self) -> int:
        """The highest number that sent() was given."""
        return self.flow.completed

    @property
    def frame_size(self) -> int:
        """The most bytes in a SEND to the peer, after accept_hello()."""
        assert self.peer is not None
        return min(self.peer.receive_size, self.config.send_size)

    @property
    def taken(self) -> int:
        """The handle up to which announced messages were taken by the peer."""
        return self._outbox.taken

    def longest_of(self, pieces: int) -> int:
        """Return the length of the longest message that fits `pieces` SENDs and that the peer takes."""
        assert self.peer is not None
        most = pieces * self.frame_size - MESSAGE_SIZE - (pieces - 1) * HEADER_SIZE
        return min(most, self.peer.max_message)

    @property
    def plain(self) -> bool:
        """Whether nothing here must be sent or taken before the next message."""
        return (
            self.state is State.OPEN
            and self._step is None
            and not (self._closing or self._discards or self._probe_due)
            and not (self._outbox or self._posted or self._inbox)
            and not self._assembler.partial
            and self._offers.idle
            and self._theirs.confirmed == self._theirs.withdrawals
            and self.flow.freed == self.flow.arrived
        )

    @property
    def finished(self) -> bool:
        """Whether only the disconnect is left to do, with `farewell` as private data."""
        return self.state in (State.CLOSED, State.FAILED)

    @property
    def farewell(self) -> bytes:
        """Private data for the DREQ: our last word once more, in case its SEND was lost."""
        if self.state is State.CLOSED:
            return emit(FrameType.GOODBYE, 0, self.flow.complete)
        return self._abort

    @property
    def regions(self) -> Mapping[int, Region]:
        """The peer's regions that may be used now, by id.

        Look here before you post a READ, WRITE or atomic.  A withdrawn region is not here any more, and the
        SEND that confirms the withdrawal must come after all requests to the region.
        """
        return MappingProxyType(self._theirs.known)

    @property
    def known_regions(self) -> dict[int, Region]:
        """The dictionary behind `regions`, the same one for as long as the connection lasts."""
        return self._theirs.known

    @property
    def queued(self) -> int:
        """Bytes of messages that were not handed out yet."""
        return self._outbox.queued

    @property
    def outstanding(self) -> int:
        """Work requests that were handed out and have not completed."""
        return self.flow.handed_out - self.flow.completed

    @property
    def released(self) -> int:
        """The number of this end's regions that the peer has released, modulo 2**32."""
        return self._own.released

    @property
    def shared(self) -> Mapping[int, Region]:
        """The regions of this end that the peer may use, by id; withdrawn ones move to `unreleased`."""
        return MappingProxyType(self._own.shared)

    @property
    def unreleased(self) -> tuple[int, ...]:
        """The ids of this end's withdrawn regions that the peer has not released yet."""
        return self._own.unreleased

    def statistics(self) -> Statistics:
        """Return counts of what the connection has done so far."""
        return Statistics(
            state=self.state,
            messages_sent=self.flow.delivered,
            messages_received=self.flow.complete - self._stopped,
            sends=self.flow.handed_out - self._probes,
            receives=self.flow.seen,
            credit_sends=self.flow.credit_sends,
            probes=self._probes,
            credits=self.flow.available,
            queued=self.queued,
            backlog=self._inbox.weight,
            held=self.flow.held,
            partial=self._assembler.buffered,
        )

    # ------------------------------------------------------------ what came in

    def _on_message(self, frame: Frame) -> _Effect:
        self._offers.check_none(frame)
        return self._came(*self._assembler.first(frame))

    def _on_more(self, frame: Frame) -> _Effect:
        return self._came(*self._assembler.more(frame))

    def _came(self, progress: Progress, data: bytes | None) -> _Effect:
        events = () if data is None or self._discards else (MessageReceived(data, progress.tag),)
        return (self._assembler.go, progress), events

    def _on_announce(self, frame: Frame) -> _Effect:
        self._offers.check_none(frame)
        if self._assembler.partial:
            raise ProtocolError(f"ANNOUNCE inside of message {self.flow.complete}")
        offer = self._offers.look(frame)
        if self._discards:
            return (self._offers.take, self._offers.look_taken()), ()
        return (self._offers.put, offer), ()

    def _on_taken(self, frame: Frame) -> _Effect:
        item = self._outbox.announced
        if item is None or item.number is None or item.number & 0xFFFFFFFF != frame.id:
            raise ProtocolError(f"TAKEN of message {frame.id}, which waits for none")
        return (self._note_taken, (item, self.flow.delivered + (not item.stopped))), ()

    def _note_taken(self, argument: tuple[Announcement, int]) -> None:
        item, self.flow.delivered = argument
        self._outbox.take(item)

    def _on_stop(self, frame: Frame) -> _Effect:
        number = self.flow.complete & 0xFFFFFFFF
        if frame.id == number and self._assembler.partial:
            return (self._note_stopped, (self._stopped + 1, self._assembler.look_stopped())), ()
        if self._offers.is_late(frame.id):
            return _NOTHING, ()
        if self._offers.first is None or frame.id != number:
            raise ProtocolError(f"STOP of message {frame.id}, which was not begun")
        return (self._note_offer_stopped, (self._stopped + 1, self._offers.look_taken())), ()

    def _note_stopped(self, argument: tuple[int, Progress]) -> None:
        self._stopped, progress = argument
        self._assembler.go(progress)

    def _note_offer_stopped(self, argument: tuple[int, int]) -> None:
        self._stopped, complete = argument
        self._offers.take(complete)

    def _on_credit(self, frame: Frame) -> _Effect:
        if frame.credits < MIN_REFILL:
            raise ProtocolError(f"CREDIT returns {frame.credits}, it must be two or more", Reason.CREDIT)
        return _NOTHING, ()

    def _on_share(self, frame: Frame) -> _Effect:
        region = self._theirs.look(frame)
        return (self._theirs.add, region), (RegionShared(region),)

    def _on_withdraw(self, frame: Frame) -> _Effect:
        withdrawn = self._theirs.look_withdrawn(frame)
        return (self._theirs.drop, withdrawn), (RegionWithdrawn(withdrawn[0]),)

    def _on_release(self, frame: Frame) -> _Effect:
        return (self._own.release, self._own.look_released(frame)), ()

    def _on_goodbye(self, frame: Frame) -> _Effect:
        self._offers.check_none(frame)
        if self._assembler.partial:
            raise ProtocolError(f"GOODBYE inside of message {self.flow.complete}")
        if frame.id != self.flow.complete & 0xFFFFFFFF:
            raise ProtocolError(f"GOODBYE after {frame.id} messages, {self.flow.complete} have come")
        change, events = self._said_goodbye(Input.GOODBYE_RECEIVED)
        return change, (PeerClosed(), *events)

    def _on_abort(self, frame: Frame) -> _Effect:
        return self._finish(_aborted(frame.id, bytes(frame.body)), Input.LOST)

    class _Rule(NamedTuple):
        """How a SEND of some type is received."""

        handler: "Callable[[Protocol, Frame], _Effect]"
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

    # ------------------------------------------------------------ inside

    def _may_send(self, what: str) -> Hello:
        if self._step is not None:
            self.settle()
        if self.peer is None:
            raise RuntimeError(f"{what}() before the peer's hello was accepted")
        if self._closing or self.state not in _LIVE:
            raise ClosedError(f"{what}() after close()" if self._closing else f"{what}(): connection ended")
        return self.peer

    def _mover(self, what: Input) -> _Change:
        return self._go_to, next_state(self.state, what)

    def _go_to(self, state: State) -> None:
        self.state = state

    def _said_goodbye(self, what: Input) -> _Effect:
        closed = next_state(self.state, what) is State.CLOSED
        return self._mover(what), (Closed(),) if closed else ()

    def _fail(self, error: EndpointError) -> None:
        """End the connection from this end: by an ABORT if there is a credit for it, and by `farewell`."""
        if self.state not in _LIVE or self.peer is None:
            self._end(error)
            return
        self._abort = abort_frame(error.reason, str(error), self.peer.receive_size)
        can_say_so = self._greeted and self.flow.allow(reserve=True)
        change, events = self._finish(error, Input.FAULT if can_say_so else Input.LOST)
        self._change(change, *events)

    def _end(self, error: EndpointError) -> None:
        """Note that the connection has ended; after CLOSED and FAILED this changes nothing."""
        if self.state is State.ABORTING:
            self._change(self._mover(Input.LOST))
        elif not self.finished:
            change, events = self._finish(error, Input.LOST)
            self._change(change, *events)

    def _finish(self, error: EndpointError, what: Input) -> _Effect:
        flow = self.flow
        undelivered = self._outbox.messages + sum(posted.ends is not None for posted in self._posted)
        undelivered += flow.short_between(flow.completed, flow.handed_out)
        failed = Failed(error, undelivered)
        return (self._let_go, (failed, next_state(self.state, what))), (failed,)

    def _let_go(self, argument: tuple[Failed, State]) -> None:
        failed, state = argument
        self._outbox.clear()
        self._assembler.drop()
        self._offers.clear()
        self._theirs.known.clear()
        self._probe_due = False
        self.error, self.undelivered = failed.error, failed.undelivered
        self.state = state


def _aborted(reason: int, text: bytes) -> AbortedError:
    return AbortedError(f"the peer aborted the connection: {printable(text)}", reason)
