# SPDX-License-Identifier: Apache-2.0
"""Connections: calls become frames of the start-up and states of queue pairs, and what comes is reported.

The events are those of Linux' iw_cm over siw: the initiator is ESTABLISHED by the reply, the responder by
accept(); there is no TIMEWAIT_EXIT.
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
    from rnic.rdmacm.iwcm.timers import Timer
    from rnic.verbs.stream import StreamEvent

_log = Log("rnic.rdmacm")

_LULL_NS = 100 * 10**6
"""How long a responder that is no equal waits for the initiator's first message before it sends itself.

RFC 5044, 7.1, has it wait for ever. siw does not wait at all, but loses a message that comes at once with its
reply. Programs whose server sends first work over siw, and are to work with its initiators here.
"""
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
        self._qp_num = 0  # while it has a stream
        self._agreed: mpa.Agreed | None = None
        self._param = ConnParam()
        self._until = 0
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
        line = self._line = Line(self.service, self.service.socket_of(one), mpa.Startup(self._options), self)
        self.prepare(line)
        self.phase = Phase.CALLING
        self._set_timer(self._until, self._late)
        if code := sockets.connect(line.sock, one.remote):
            self._broke(code)
            return
        line.is_connecting = True
        line.push()

    def prepare(self, line: Line) -> None:
        """Set the options of its socket."""
        timeout = None
        if Option.ACK_TIMEOUT in self.one.options:  # of each repetition, as of a queue pair of InfiniBand
            timeout = iba_ns(self.one.options[Option.ACK_TIMEOUT]) / 1e9 * (self._param.retry_count + 1)
        sockets.prepare(line.sock, self._traffic_class, timeout)

    def _late(self, _now: int) -> None:
        """The peer's host does not answer."""
        self._broke(ETIMEDOUT)

    def connected(self, error: int) -> None:
        """The TCP connection is there: ask for one of iWARP."""
        self._set_timer()
        if error:
            self._broke(error)
            return
        line, param, now = self._line, self._param, monotonic_ns()
        assert line is not None
        depths = mpa.Depths(param.responder_resources, param.initiator_depth)
        line.startup.send_request(depths, param.private_data, now, now + iba_ns(LONGEST))
        line.push()

    def _again(self) -> None:
        """The peer may know revision 1 alone: it is asked once more, on another TCP connection."""
        _log.info("%r: no answer to revision 2 of MPA; revision 1 is tried", self.one)
        assert self._line is not None
        self._line.abort()
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
        self.phase = Phase.ACCEPTED
        line.push()

    def flushed(self) -> None:
        """The reply has left: equals are ready, others wait a while for the initiator's first message."""
        if self.phase is not Phase.ACCEPTED or self._line is None:
            return
        assert self._agreed is not None
        if self._agreed.peer_to_peer:
            self._rise(self._agreed)
            return
        self._line.is_listening = True
        self._set_timer(monotonic_ns() + _LULL_NS, self._rise_anyway)
        self._line.push()

    def spoken(self) -> None:
        """The initiator's first message is there."""
        assert self._agreed is not None
        self._rise(self._agreed)

    def _rise_anyway(self, _now: int) -> None:
        assert self._agreed is not None
        self._rise(self._agreed, speaks_first=True)

    def reject(self, private_data: bytes, reason: Reason) -> None:  # noqa: ARG002 - MPA has no place for it
        """Refuse the peer's request."""
        if self.phase is not Phase.ASKED or self._line is None:
            text = f"there is nothing to refuse: the connection is in {self.phase.name}"
            raise VerbsError(EINVAL, text, "reject")
        self._line.startup.send_reject(private_data, monotonic_ns())
        self.phase = Phase.OVER
        self._line.push()
        self._line.close()

    # ------------------------------------------------------------------ either end

    def _rise(self, agreed: mpa.Agreed, private_data: bytes = b"", *, speaks_first: bool = False) -> None:
        """The stream becomes the queue pair's."""
        self._set_timer()
        line, qp = self._line, self._qp
        assert line is not None
        assert qp is not None
        self._line, self._agreed = None, agreed
        sock = line.detach()
        try:
            stream.to_rts(qp, sock, agreed, speaks_first=speaks_first)
        except VerbsError as error:
            sock.close()
            self.phase = Phase.OVER
            self.service.report(self.one, outcomes.failed, -(error.errno or EINVAL))
            return
        self.phase, self._qp_num = Phase.UP, qp.qp_num
        self.service.streams[self._qp_num] = self
        mine = agreed.depths
        param = replace(
            NOTHING_SAID,
            private_data=private_data,
            responder_resources=mine.ird,
            initiator_depth=mine.ord,
        )
        self.service.report(self.one, outcomes.established, param)

    def told(self, event: mpa.Event) -> None:
        """Report what has happened to the start-up."""
        if event.type is mpa.EventType.REPLY:
            assert event.agreed is not None
            assert event.frame is not None
            self._rise(event.agreed, event.frame.private_data, speaks_first=True)
        elif event.type is mpa.EventType.OLD_PEER:
            self._again()
        else:
            _log.info("%r: %s", self.one, event.text)
            self._failed(event)

    def _failed(self, event: mpa.Event) -> None:
        if event.type is mpa.EventType.REJECTED and event.frame is not None:
            self._drop()
            self.service.report(self.one, outcomes.refused, -event.error, event.frame.private_data)
        elif self.phase is Phase.CALLING and event.error == EPROTO:
            self._drop()
            self.service.report(self.one, outcomes.failed, -event.error)
        else:
            self._broke(event.error)

    def _broke(self, error: int) -> None:
        """There is no connection: the peer has refused, or it cannot be reached."""
        was = self.phase
        self._drop()
        if was is Phase.CALLING and error in _REFUSED:
            self.service.report(self.one, outcomes.refused, -error, b"")
        else:
            self.service.report(self.one, outcomes.unreachable, -error)

    def _drop(self) -> None:
        self.phase = Phase.OVER
        self._set_timer()
        if self._line is not None:
            self._line.close()

    # ------------------------------------------------------------------ the end

    def disconnect(self, private_data: bytes) -> None:  # noqa: ARG002 - there is none: see `limits`
        """Send what is posted, then close the stream: it has ended when the peer has closed it, too."""
        if self.phase is not Phase.UP:
            return
        qp = self._qp
        assert qp is not None
        self.phase = Phase.LEAVING
        self._set_timer(monotonic_ns() + self._patience, self._left_alone)
        with contextlib.suppress(VerbsError):  # the stream has ended already, as its event tells
            if not qp.closed:
                qp.modify(QPAttr(qp_state=QPState.SQD))
        if qp.closed:
            self._ended(0)

    def _left_alone(self, _now: int) -> None:
        """The peer has not closed its end in time."""
        self._ended(-ETIMEDOUT)

    def stream_ended(self, event: StreamEvent) -> None:
        """The device reports the end of the stream."""
        _log.info("%r: the connection has ended: %s", self.one, stream.words(event))
        self._ended(stream.status_of(event))

    def _ended(self, status: int) -> None:
        self._let_go()
        self.phase = Phase.OVER
        if status:
            to_error(self._qp)
        self.service.report(self.one, outcomes.disconnected, status)

    def _let_go(self) -> None:
        self._set_timer()
        if self.service.streams.get(self._qp_num) is self:
            del self.service.streams[self._qp_num]

    def close(self) -> None:
        """The id goes: refuse or end what is under way."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.phase is Phase.ASKED and self._line is not None:
            self.reject(b"", Reason.PROGRAM)
        if self.phase in (Phase.UP, Phase.LEAVING):
            to_error(self._qp)
        self._let_go()
        self._drop()
        self.service.forget_reports(self.one)

    # ------------------------------------------------------------------ what iWARP does not have

    def complete(self) -> None:
        """The initiator's queue pair is ready before the program hears of the reply."""

    def establish(self) -> None:
        """Raise EINVAL: the service moves queue pairs itself, also those that are not the id's."""
        raise VerbsError(EINVAL, "iWARP has no message to confirm a reply with", "establish")

    def data_came(self) -> None:
        """Data came: the connection is established already."""
        if self.phase is Phase.ACCEPTED and self._agreed is not None and self._line is not None:
            self._rise(self._agreed)
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
        """Give up at this time, if the program has not answered."""
        if self.phase is Phase.ASKED and self._line is not None:
            self._line.startup.expire_at(until)
            self._line.push()

    def give_up(self) -> None:
        """Give up now, to make room for another request."""
        if self.phase is Phase.ASKED and self._line is not None:
            self._line.startup.give_up(monotonic_ns())
            self._line.push()
        elif self.phase is Phase.ACCEPTED:
            self._broke(ETIMEDOUT)

    def watch(self, now: int) -> None:
        """TCP itself asks after a silent peer."""
