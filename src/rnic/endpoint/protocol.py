# SPDX-License-Identifier: Apache-2.0
"""One end of a connection, without I/O and without a clock: a driver moves its bytes and completions."""

from collections.abc import Mapping
from types import MappingProxyType

from rnic.endpoint.end import LIVE, Role, aborted
from rnic.endpoint.errors import AbortedError, LostError, NoHelloError, ProtocolError, Reason
from rnic.endpoint.events import Region
from rnic.endpoint.frame import HEADER_SIZE, MESSAGE_SIZE, VERSION_1, VERSION_2, Frame, FrameType, emit, parse
from rnic.endpoint.hello import MAX_DATA_ANSWERING, MAX_DATA_ASKING, Hello, agree
from rnic.endpoint.receiving import Receiving
from rnic.endpoint.sending import Sending
from rnic.endpoint.state import Input, State
from rnic.enums import AccessFlags
from rnic.records import Record

__all__ = ["Protocol", "Role", "Statistics"]


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


class Protocol(Sending, Receiving):
    """One end of a connection.

    The driver opens it: receives_to_post(), receives_posted(), then hello() and accept_hello(), in the order
    of its role.  Then three things drive it, in any order: the user (send(), share(), withdraw(), close(),
    abort(), next_event()), completions (receive() and sent()) and time (timer() at deadline()).  After each
    of them the driver posts what receives_to_post() and next_send() ask for.  `now` is any clock in seconds
    that does not go back.

    Mistakes of the driver raise RuntimeError or ValueError.  A mistake of the peer raises only in
    accept_hello().  Later it ends the connection, and Failed is the last event.

    An exception may come between any two lines, as End says.  The caller finds out what was done by
    `receives_seen`, `completed`, and the container given to next_send().
    """

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

    # ------------------------------------------------------------ when the connection is lost or disconnected

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
        if self.state not in LIVE:
            self._end(LostError("disconnected"))
            return
        try:
            frame = parse(memoryview(bytes(private_data[:8])))
        except ProtocolError:
            frame = None
        if frame is not None and frame.type is FrameType.ABORT:
            self._end(aborted(frame.id, bytes(private_data[8:])))
        elif frame is not None and frame.type is FrameType.GOODBYE and self._is_last_word(frame):
            change, events = self._said_goodbye(Input.GOODBYE_DELIVERED)
            self._change(change, *events)
        elif self.state is State.HALF_CLOSED_REMOTE:
            self._end(LostError("the peer has closed the connection without waiting for this end"))
        else:
            self._end(LostError("the peer disconnected without a goodbye: perhaps its process has ended"))

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
        if self.state not in LIVE:
            return None
        times = [at for at in (self._close_by, self._idle_deadline()) if at is not None]
        return min(times, default=None)

    def timer(self, now: float) -> None:
        """Act on a deadline that has come: make a probe ready for next_send(), or abort the connection."""
        if self._step is not None:
            self.settle()
        if self.state not in LIVE:
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
