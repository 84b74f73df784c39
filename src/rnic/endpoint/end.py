# SPDX-License-Identifier: Apache-2.0
"""What both directions of an end share: its parts, how it changes, and how it ends."""

from collections import deque
from collections.abc import Callable, Set
from enum import Enum
from typing import Any, NamedTuple

from rnic.endpoint.config import Config
from rnic.endpoint.errors import AbortedError, EndpointError
from rnic.endpoint.events import Closed, Event, Failed
from rnic.endpoint.flow import Flow
from rnic.endpoint.frame import VERSION_1, FrameType, abort_frame
from rnic.endpoint.hello import Capability, Hello
from rnic.endpoint.inbox import Inbox
from rnic.endpoint.offers import Offers
from rnic.endpoint.outbox import Outbox
from rnic.endpoint.reassembly import Assembler
from rnic.endpoint.regions import OwnRegions, PeerRegions
from rnic.endpoint.state import Input, State
from rnic.endpoint.state import step as next_state
from rnic.endpoint.text import printable

LIVE = frozenset({State.OPEN, State.HALF_CLOSED_LOCAL, State.HALF_CLOSED_REMOTE})
PEER_TALKS = frozenset({State.OPEN, State.HALF_CLOSED_LOCAL})


class Role(Enum):
    """Who asked for the connection."""

    INITIATOR = "initiator"
    """Its hello rides in the REQ."""
    ACCEPTOR = "acceptor"
    """The acceptor reads the initiator's hello first; its own hello rides in the REP."""


class Posted(NamedTuple):
    """A work request that was handed out and has not completed."""

    number: int
    kind: FrameType | None  # None: a probe
    ends: int | None


Change = tuple[Callable[[Any], None], Any]
"""A method and its argument; calling the method again with the same argument changes nothing."""


def _nothing(_: object) -> None:
    """No change."""


NOTHING: Change = (_nothing, None)
Effect = tuple[Change, tuple[Event, ...]]
"""A change, and the events that it gives the user."""


def aborted(reason: int, text: bytes) -> AbortedError:
    """What the peer's ABORT says, as the error that ends this end."""
    return AbortedError(f"the peer aborted the connection: {printable(text)}", reason)


class End:
    """The parts of one end, and the steps by which they change; Sending and Receiving add the directions.

    An exception from outside, such as KeyboardInterrupt, may come between any two lines.  So each call works
    out a change, writes it down as one step, and carries it out.  The next call first carries out a step that
    was interrupted.  A step stores new values and adds nothing, so it can be carried out twice.
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
        self._posted: deque[Posted] = deque()
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

    def _change(self, change: Change, *events: Event) -> None:
        self._do(self._carry_out, change, events, *self._inbox.look(events))

    def _carry_out(self, change: Change, events: tuple[Event, ...], first: int, backlog: int) -> None:
        carry_out, argument = change
        carry_out(argument)
        self._inbox.put(events, first, backlog)

    def _mover(self, what: Input) -> Change:
        return self._go_to, next_state(self.state, what)

    def _go_to(self, state: State) -> None:
        self.state = state

    def _said_goodbye(self, what: Input) -> Effect:
        closed = next_state(self.state, what) is State.CLOSED
        return self._mover(what), (Closed(),) if closed else ()

    # ------------------------------------------------------------ the end

    def _fail(self, error: EndpointError) -> None:
        """End the connection from this end: by an ABORT if there is a credit for it, and by `farewell`."""
        if self.state not in LIVE or self.peer is None:
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

    def _finish(self, error: EndpointError, what: Input) -> Effect:
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

    # ------------------------------------------------------------ how it stands

    def knows(self, what: Capability) -> bool:
        """Whether the peer understands a capability; False before its hello."""
        return self.peer is not None and what in self.peer.capabilities

    @property
    def frame_size(self) -> int:
        """The most bytes in a SEND to the peer, after accept_hello()."""
        assert self.peer is not None
        return min(self.peer.receive_size, self.config.send_size)

    @property
    def finished(self) -> bool:
        """Whether only the disconnect is left to do, with `farewell` as private data."""
        return self.state in (State.CLOSED, State.FAILED)
