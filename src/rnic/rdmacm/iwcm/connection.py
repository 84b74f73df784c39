# SPDX-License-Identifier: Apache-2.0
"""Connections: calls become frames of the start-up and states of queue pairs, and what comes is reported.

The events are those of Linux' iw_cm over siw: the initiator is ESTABLISHED by the reply, the responder by the
message that makes a connection of equals ready, or, in another one, by accept(); there is no TIMEWAIT_EXIT.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from errno import ECONNREFUSED, ECONNRESET, EINVAL, EISCONN, EPIPE, EPROTO, ETIMEDOUT
from time import monotonic_ns
from typing import TYPE_CHECKING, cast

import rnic.mpa as mpa
from rnic.cm.timing import LONGEST, iba_ns
from rnic.enums import AccessFlags, QPState
from rnic.errors import VerbsError
from rnic.log import Log
from rnic.rdmacm import outcomes
from rnic.rdmacm.iwcm import sockets, stream
from rnic.rdmacm.iwcm.away import AwayQP
from rnic.rdmacm.iwcm.line import Line
from rnic.rdmacm.names import NOTHING_SAID, ConnParam, Option, Path, UDParam
from rnic.rdmacm.qp_states import to_error
from rnic.rdmacm.service import Limits, Phase, Reason
from rnic.records import replace
from rnic.verbs.qp import QP, QPAttr

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.iwcm.manager import IwService
    from rnic.rdmacm.timers import Timer
    from rnic.verbs.stream import StreamEvent

_log = Log("rnic.rdmacm")

_REFUSED = (ECONNREFUSED, ECONNRESET, EPIPE)
_ACCESS = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC


class IwConnection:
    """A connection of an id: a line until both frames were exchanged, then a stream of the queue pair's."""

    limits = Limits(mpa.PRIVATE_BYTES, mpa.PRIVATE_BYTES, mpa.PRIVATE_BYTES)

    def __init__(self, one: CmId, service: IwService, line: Line | None = None) -> None:
        self.one, self.service, self._line = one, service, line
        self.phase = Phase.NEW if line is None else Phase.ASKED
        self._options = service.options
        self._is_closed = False
        self._qp: QP | AwayQP | None = None
        self._qp_num = 0  # while it has this connection's stream
        self._has_risen = False  # the queue pair got it, once
        self._agreed: mpa.Agreed | None = None
        self._said = NOTHING_SAID  # what ESTABLISHED tells
        self._calling: Line | None = None  # that is being made
        self._is_told = False  # how the handshake has failed, or the stream has ended, was reported
        self._param = ConnParam()
        self._until = 0
        self._in_flight = 0
        self._traffic_class = 0
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<IwConnection of {self.one!r}, {self.phase.name}>"

    @property
    def state_name(self) -> str:
        """How far it is."""
        return self.phase.name

    @property
    def _patience(self) -> int:
        """How long the peer's host may be silent, in ns: as long as a message of InfiniBand's is repeated."""
        timing = self.one.timing
        return min(iba_ns(timing.response_timeout) * (timing.max_cm_retries + 1), iba_ns(LONGEST))

    def _set_timer(self, due: int = 0, call: Callable[[int], None] | None = None) -> None:
        """Make a call at a time, instead of the last one; without arguments none."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if call is None else self.service.timers.at(due, call)

    def route(self, path: Path) -> None:
        """Packets are to go by this path: of that, TCP has the traffic class."""
        self._traffic_class = path.traffic_class

    # ------------------------------------------------------------------ the initiator

    def connect(self, param: ConnParam | UDParam) -> None:
        """Make the TCP connection, then send the request."""
        self._param = cast("ConnParam", param)
        self._qp = stream.queue_pair(self.service, self.one, self._param.qp_num, "connect")
        self._until = monotonic_ns() + self._patience
        self._begin()

    def _begin(self) -> None:
        """Call the peer, from the id's port."""
        one = self.one
        assert one.remote is not None
        if self._calling is None:
            sock = self.service.socket_of(one)
            self._calling = Line(self.service, sock, mpa.Startup(self._options), self)
        line = self._calling
        self.prepare(line)
        self._set_timer(self._until, self._late)
        code = sockets.connect(line.sock, one.remote)
        self._line, self._calling, self.phase, line.is_connecting = line, None, Phase.CALLING, not code
        if code:
            self._broke(code)
        else:
            self.service.todo[line] = 0

    def prepare(self, line: Line) -> None:
        """Set the options of its socket."""
        timeout = None
        if Option.ACK_TIMEOUT in self.one.options:  # of each repetition, as of a queue pair of InfiniBand
            timeout = iba_ns(self.one.options[Option.ACK_TIMEOUT]) / 1e9 * (self._param.retry_count + 1)
        sockets.prepare(line.sock, self._traffic_class, timeout)

    def _late(self, _now: int) -> None:
        """The peer's host does not answer."""
        if self._line is not None and self._line.is_connecting:
            self._broke(ETIMEDOUT)

    def connected(self, line: Line, error: int) -> None:
        """The TCP connection is there: ask for one of iWARP."""
        if error:
            self._broke(error)
            return
        self._set_timer()
        if line.startup.state is mpa.State.IDLE:
            param, now = self._param, monotonic_ns()
            depths = mpa.Depths(param.responder_resources, param.initiator_depth)
            line.startup.send_request(depths, param.private_data, now, now + iba_ns(LONGEST))
            self.service.sent["REQUEST"] += 1

    def _again(self, line: Line) -> None:
        """The peer may know revision 1 alone: it is asked once more, on another TCP connection."""
        if line is not self._line:
            return
        _log.info("%r: no answer to revision 2 of MPA; revision 1 is tried", self.one)
        line.abort()
        self.service.retried += 1
        self._options = replace(self._options, revision=1)
        try:
            self._begin()
        except VerbsError as error:
            self._broke(error.errno or EINVAL)

    # ------------------------------------------------------------------ the responder

    def accept(self, param: ConnParam | UDParam) -> None:
        """Reply, and hand the stream to the queue pair."""
        self._param = param = cast("ConnParam", param)
        line = self._line
        assert line is not None
        self._qp = stream.queue_pair(self.service, self.one, param.qp_num, "accept")
        stream.to_rtr(self._qp)
        depths = mpa.Depths(param.responder_resources, param.initiator_depth)
        self._agreed = line.startup.send_reply(depths, param.private_data, monotonic_ns())
        self.service.sent["REPLY"] += 1
        self.phase = Phase.ACCEPTED
        line.push()

    def flushed(self, line: Line) -> None:
        """The reply has left."""
        if self.phase is Phase.ACCEPTED and line is self._line:
            assert self._agreed is not None
            self._rise(line, self._agreed)

    def lost(self, line: Line, error: int) -> None:
        """The reply cannot be written: the peer has gone."""
        if self.phase is Phase.ACCEPTED and line is self._line:
            self._broke(error)

    def reject(self, private_data: bytes, reason: Reason) -> None:  # noqa: ARG002 - MPA has no place for it
        """Refuse the peer's request."""
        if self.phase is not Phase.ASKED or self._line is None:
            text = f"there is nothing to refuse: the connection is in {self.phase.name}"
            raise VerbsError(EINVAL, text, "reject")
        self._line.startup.send_reject(private_data, monotonic_ns())
        self.service.sent["REJECT"] += 1
        self.phase = Phase.OVER
        self._line.leave()
        self._line = None

    # ------------------------------------------------------------------ either end

    def _rise(
        self, line: Line, agreed: mpa.Agreed, private_data: bytes = b"", *, is_initiator: bool = False
    ) -> None:
        """The stream becomes the queue pair's.

        In a connection of equals the responder waits until the initiator is ready. It does not for a program
        of another process, which need not call again behind accept(), whose answer has the orders.
        """
        if line is not self._line:
            return
        line.unwatch()
        waits = not is_initiator and agreed.rtr is not mpa.Rtr.NONE and not isinstance(self._qp, AwayQP)
        if not self._has_risen and not self._attach(line, agreed, is_initiator, waits):
            return
        self._has_risen = True
        mine = agreed.depths
        self._said = replace(
            NOTHING_SAID,
            private_data=private_data,
            responder_resources=mine.ird,
            initiator_depth=mine.ord,
        )
        self._agreed = agreed
        if not waits:
            self.stream_began()
        self._line, line.is_done = None, True  # now nothing of it comes again

    def _attach(self, line: Line, agreed: mpa.Agreed, is_initiator: bool, waits: bool) -> bool:
        """The queue pair gets the stream, and goes to RTS; False if it cannot, which is reported."""
        qp = self._qp
        assert qp is not None
        try:
            stream.attach(qp, line.sock, agreed, is_initiator=is_initiator, tell_ready=waits)
            self._qp_num = qp.qp_num
            self.service.streams[self._qp_num] = self
            stream.to_rts(qp, agreed)
        except VerbsError as error:
            if stream.is_broken(line.sock):  # a peer that has gone is no fault of the queue pair's
                self._broke(ECONNRESET)
            else:
                self._fail(outcomes.failed, -(error.errno or EINVAL))
            return False
        return True

    def stream_began(self) -> None:
        """The peer is ready: an initiator has its reply, a responder the first message."""
        if self.phase in (Phase.CALLING, Phase.ACCEPTED):
            self.service.report(self.one, outcomes.established, self._said)
            self.phase = Phase.UP
            self._set_timer()

    def told(self, line: Line, event: mpa.Event) -> None:
        """Report what has happened to the start-up."""
        match event.type:
            case mpa.EventType.REPLY:
                assert event.agreed is not None
                assert event.frame is not None
                self._rise(line, event.agreed, event.frame.private_data, is_initiator=True)
                self.service.received["REPLY"] += 1
            case mpa.EventType.OLD_PEER:
                self._again(line)
            case mpa.EventType.REJECTED if event.frame is not None:
                self._fail(outcomes.refused, -event.error, event.frame.private_data)
                self.service.received["REJECT"] += 1
            case mpa.EventType.FAILED if self.phase is Phase.CALLING and event.error == EPROTO:
                _log.info("%r: %s", self.one, event.text)
                self._fail(outcomes.failed, -event.error)
            case mpa.EventType.REJECTED | mpa.EventType.FAILED:
                _log.info("%r: %s", self.one, event.text)
                self._broke(event.error)

    def _broke(self, error: int) -> None:
        """There is no connection: the peer has refused, or it cannot be reached."""
        if self.phase is Phase.CALLING and error in _REFUSED:
            self._fail(outcomes.refused, -error, b"")
        else:
            self._fail(outcomes.unreachable, -error)

    def _fail(self, outcome: Callable[..., None], *values: object) -> None:
        """Report how the handshake has failed, once, and give its socket back."""
        if not self._is_told:
            self.service.report(self.one, outcome, *values)
            self._is_told = True
        self._drop()

    def _drop(self) -> None:
        if self._qp_num:  # it may be the program's own, in which nobody else ends the stream
            to_error(self._qp)
        for line in (self._line, self._calling):  # the latter if an exception has ended the call
            if line is not None:
                line.close()
        self._is_over()

    def _is_over(self) -> None:
        """The queue pair has nothing of the connection any more: the program may use it for another one."""
        self._set_timer()
        self.phase = Phase.OVER
        self.service.forget_stream(self._qp_num, self)
        self._qp_num = 0

    # ------------------------------------------------------------------ the end

    def disconnect(self, private_data: bytes) -> None:  # noqa: ARG002 - there is none: see `limits`
        """Send what is posted, then close the stream: it has ended when the peer has closed it, too."""
        if self.phase is not Phase.UP:
            return
        qp = self._qp
        assert qp is not None
        self.phase, self._in_flight = Phase.LEAVING, self._find_in_flight()
        self._set_timer(monotonic_ns() + self._patience, self._left_alone)
        with contextlib.suppress(VerbsError):  # the stream has ended already, as its event tells
            if not qp.closed:
                qp.modify(QPAttr(qp_state=QPState.SQD))
        if qp.closed:
            self._ended(0)

    def _left_alone(self, _now: int) -> None:
        """The peer has not closed its end in time; or it has not read all yet, and goes on."""
        if self.phase is not Phase.LEAVING:
            return
        before, self._in_flight = self._in_flight, self._find_in_flight()
        if self._in_flight != before:
            self._set_timer(monotonic_ns() + self._patience, self._left_alone)
        else:
            self._ended(-ETIMEDOUT)

    def _find_in_flight(self) -> int:
        """Bytes that the peer's host has not acknowledged."""
        with contextlib.suppress(VerbsError):  # it is being closed
            if isinstance(self._qp, QP):
                return self._qp.statistics().in_flight
        return 0

    def stream_ended(self, event: StreamEvent) -> None:
        """The device reports the end of the stream."""
        _log.info("%r: %s", self.one, event.explain())
        self.one.stream_end = event
        if self.phase is Phase.ACCEPTED:
            self._broke(-stream.status_of(event) or ECONNRESET)
        else:
            self._ended(stream.status_of(event))

    def _ended(self, status: int) -> None:
        if status:
            to_error(self._qp)
        if not self._is_told:
            self.service.report(self.one, outcomes.disconnected, status)
            self._is_told = True
        self._is_over()

    def close(self) -> None:
        """The id goes: refuse or end what is under way."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.phase is Phase.ASKED and self._line is not None:
            self.reject(b"", Reason.PROGRAM)
        self._drop()
        self.service.forget_reports(self.one)

    # ------------------------------------------------------------------ what iWARP does not have

    def complete(self) -> None:
        """The initiator's queue pair is ready before the program hears of the reply."""

    def establish(self) -> None:
        """Raise EINVAL: the service moves queue pairs itself, also those that are not the id's."""
        raise VerbsError(EINVAL, "iWARP has no message to confirm a reply with", "establish")

    def data_came(self) -> None:
        """Data came: the connection is established."""
        if self.phase is Phase.ACCEPTED and self._agreed is not None:
            if self._line is not None:
                self._rise(self._line, self._agreed)
            self.stream_began()
        elif self.phase is Phase.UP:
            raise VerbsError(EISCONN, f"{self.one!r} is connected already", "notify")
        else:
            text = f"no request was accepted: the connection is in {self.phase.name}"
            raise VerbsError(EINVAL, text, "notify")

    def qp_attr(self, state: QPState) -> QPAttr | None:
        """As of the kernel's iw_cm, but with atomics: for RTR the rights of a peer; for RTS nothing, as the
        service moves the queue pair there.
        """
        return QPAttr(qp_state=state, qp_access_flags=_ACCESS) if state is QPState.RTR else QPAttr()

    def expire_at(self, until: int) -> None:
        """Give up at this time, if the program has not answered, or the peer is not ready."""
        if self.phase is Phase.ASKED and self._line is not None:
            self._line.startup.expire_at(until)
            self._line.push()
        elif self.phase is Phase.ACCEPTED:
            self._set_timer(until, self._not_ready)

    def _not_ready(self, _now: int) -> None:
        if self.phase is Phase.ACCEPTED:
            self._broke(ETIMEDOUT)

    def give_up(self) -> None:
        """Give up now, to make room for another request."""
        if self.phase is Phase.ASKED and self._line is not None:
            self._line.startup.give_up(monotonic_ns())
            self._line.push()
        elif self.phase is Phase.ACCEPTED:
            self._broke(ETIMEDOUT)

    def watch(self, now: int) -> None:
        """TCP itself asks after a silent peer."""
