# SPDX-License-Identifier: Apache-2.0
"""A start-up of MPA: two frames on a new TCP connection, without I/O and without a clock (RFC 5044, 7.1).

    one = Startup(Options())
    one.send_request(Depths(ird=16, ord=16), b"hello", now, until)
    send(one.take_out())
    while one.wanted: one.receive(recv(one.wanted), now)
    one.take_events()

The driver reads no more than `wanted`, so that what follows the last frame stays in the socket, for the queue
pair.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from errno import ECONNRESET, EINVAL, EPROTO, ETIMEDOUT
from typing import ClassVar

from rnic.errors import VerbsError
from rnic.log import Log
from rnic.mpa import agreement
from rnic.mpa.agreement import Agreed, Depths, Options, UnfitError
from rnic.mpa.states import TABLE, Action, Input, State
from rnic.records import Record
from rnic.wire.crc import crc32c
from rnic.wire.ddp import Segment
from rnic.wire.error import WireError
from rnic.wire.mpa import CRC_BYTES, KEY_BYTES, KEY_REPLY, KEY_REQUEST, Fpdu, Marker, MpaFrame, MpaHeader
from rnic.wire.rdmap import RdmapOpcode, Terminate, TermLayer

_log = Log("rnic.mpa")
_OLDEST = 1
_READING = (State.REQ_SENT, State.AWAIT_REQ)


class EventType(Enum):
    """The kind of an event."""

    REQUEST = "the initiator's frame: answer with send_reply() or send_reject()"
    REPLY = "the stream is ready: `agreed` says how"
    REJECTED = "the peer has refused, or closed without an answer"
    OLD_PEER = "the peer may know revision 1 alone: ask again, on another connection"
    FAILED = "it cannot be: `error` is why"


class Event(Record):
    """What the layer above is told."""

    type: EventType
    frame: MpaFrame | None = None
    """The peer's."""
    agreed: Agreed | None = None
    """With REPLY."""
    error: int = 0
    """With REJECTED and FAILED: an errno."""
    text: str = ""
    """That in words."""


class Signal(Record):
    """The data of an input."""

    now: int
    frame: MpaFrame | None = None  # that has come
    out: bytes = b""  # that is to be sent
    until: int | None = None
    agreed: Agreed | None = None
    error: int = 0
    text: str = ""
    code: int = 0  # of a Terminate message

    def event(self, kind: EventType) -> Event:
        """What is told of it."""
        return Event(kind, self.frame, self.agreed, self.error, self.text)


class _Change(Record):
    """What an action changes."""

    out: bytes = b""  # that is to be sent
    event: Event | None = None
    asked: MpaFrame | None = None  # the request, when it is known
    deadline: int | None = None  # from now on


class Startup:
    """One end of a start-up.

    Calls of the application, receive(), end() and timer() change it, each with the time in nanoseconds. A
    call in the wrong state raises VerbsError (EINVAL), and nothing has changed then. Nor has it if memory was
    short: the call can be made again, receive() without the bytes.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.state = State.IDLE
        self.deadline: int | None = None
        """When to call timer()."""
        self.asked: MpaFrame | None = None
        """The request: this end's, or the peer's."""
        self._depths = Depths(0, 0)
        self.buffer = b""
        """Bytes of the stream that are not a whole frame yet. A reader that may be interrupted adds to them,
        and then calls receive(b"").
        """
        self._out = b""
        self._events: tuple[Event, ...] = ()

    def __repr__(self) -> str:
        return f"<Startup {self.state.name}>"

    # ------------------------------------------------------------------ calls

    def send_request(self, depths: Depths, private_data: bytes, now: int, until: int) -> None:
        """Begin as the initiator; `until` is when the reply has to be there."""
        frame = agreement.request(self.options, depths, private_data)
        self._check(Input.SEND_REQUEST)
        self._depths = depths
        self._step(Input.SEND_REQUEST, Signal(now, frame, frame.emit(), until))

    def await_request(self, now: int, until: int) -> None:
        """Begin as the responder; `until` is when the request has to be there."""
        self._step(Input.AWAIT_REQUEST, Signal(now, until=until))

    def send_reply(self, depths: Depths, private_data: bytes, now: int) -> Agreed:
        """Accept the request; what is agreed is known at once."""
        self._check(Input.SEND_REPLY)
        assert self.asked is not None
        frame, agreed = agreement.reply(self.options, self.asked, depths, private_data)
        self._step(Input.SEND_REPLY, Signal(now, frame, frame.emit(), agreed=agreed))
        return agreed

    def send_reject(self, private_data: bytes, now: int) -> None:
        """Refuse the request."""
        self._check(Input.SEND_REJECT)
        self._step(Input.SEND_REJECT, Signal(now, out=self._refusal(private_data)))

    def close(self, now: int) -> None:
        """Let go: a request that waits for its answer is refused; no events follow."""
        self._step(Input.CLOSE, Signal(now, out=self._refusal(b"")))
        self._events = ()

    def expire_at(self, until: int) -> None:
        """Give a request up that the application has not answered by then."""
        self._check(Input.SEND_REPLY)
        self.deadline = until

    # ------------------------------------------------------------------ the stream

    @property
    def wanted(self) -> int:
        """How many bytes to read, at most; 0: the stream is not to be read."""
        if self.state not in _READING:
            return 0
        if len(self.buffer) < MpaHeader.SIZE:
            return MpaHeader.SIZE - len(self.buffer)
        size = MpaHeader.SIZE + MpaHeader.parse(self.buffer).private_size
        return max(0, size - len(self.buffer))

    def receive(self, data: bytes, now: int) -> None:
        """Take bytes of the stream, at most as many as are wanted."""
        self.buffer += data  # at once: nobody else has them
        try:
            frame = self._frame()
        except WireError as error:
            self._step(Input.MALFORMED, Signal(now, error=EPROTO, text=str(error)))
            return
        if frame is not None:
            self._take(frame, now)

    def _frame(self) -> MpaFrame | None:
        """The frame, when it is complete. WireError as soon as it cannot become one."""
        key = KEY_REPLY if self.state is State.REQ_SENT else KEY_REQUEST
        if not key.startswith(self.buffer[:KEY_BYTES]):
            raise WireError(f"{self.buffer[:KEY_BYTES]!r} is not the key of a {_kind(key)}")
        if len(self.buffer) < MpaHeader.SIZE:
            return None
        header = MpaHeader.parse(self.buffer)
        header.check()
        if not _OLDEST <= header.revision <= agreement.NEWEST:
            raise WireError(f"revision {header.revision} of MPA is not supported")
        return None if self.wanted else MpaFrame.parse(self.buffer)

    def _take(self, frame: MpaFrame, now: int) -> None:
        if not frame.is_reply:
            self._step(Input.REQUEST, Signal(now, frame))
            return
        assert self.asked is not None
        if frame.revision < self.asked.revision:
            self._step(Input.OLD_REPLY, Signal(now, frame))
        elif frame.rejected:
            self._step(Input.REJECT, Signal(now, frame, error=ECONNRESET, text="the peer has refused"))
        elif frame.revision > self.asked.revision or (frame.control is None) != (self.asked.control is None):
            text = f"{frame} does not answer {self.asked}"
            self._step(Input.MALFORMED, Signal(now, frame, error=EPROTO, text=text))
        else:
            self._take_reply(frame, now)

    def _take_reply(self, frame: MpaFrame, now: int) -> None:
        assert self.asked is not None
        try:
            agreed = agreement.settle(self.options, self._depths, self.asked, frame)
        except UnfitError as error:
            unfit = Signal(now, frame, error=EPROTO, text=str(error), code=error.code)
            self._step(Input.UNFIT_REPLY, unfit)
        else:
            self._step(Input.REPLY, Signal(now, frame, agreed=agreed))

    def end(self, now: int, error: int = 0) -> None:
        """The stream has ended: the peer has closed it, or an errno."""
        code = error or ECONNRESET
        text = "the connection was lost" if error else "the peer has closed the connection"
        is_new = self.asked is not None and self.asked.revision > _OLDEST and not self.buffer
        is_old = self.state is State.REQ_SENT and is_new and code == ECONNRESET
        self._step(Input.OLD_REPLY if is_old else Input.END, Signal(now, error=code, text=text))

    def timer(self, now: int) -> None:
        """Do what is due at this time."""
        if self.deadline is not None and now >= self.deadline:
            self.give_up(now)

    def give_up(self, now: int) -> None:
        """Do so now: it makes room for another connection."""
        text = f"no {'reply' if self.state is State.REQ_SENT else 'request'} has come in time"
        if self.state is State.REQ_RCVD:
            text = "the application has not answered in time"
        signal = Signal(now, out=self._refusal(b""), error=ETIMEDOUT, text=text)
        self._step(Input.TIMEOUT, signal)

    # ------------------------------------------------------------------ what comes of it

    def take_out(self) -> bytes:
        """What is to be written to the stream."""
        out, self._out = self._out, b""
        return out

    @property
    def event(self) -> Event | None:
        """What has happened first; it stays until drop_event()."""
        return self._events[0] if self._events else None

    def drop_event(self) -> None:
        """The first event was handled."""
        self._events = self._events[1:]

    def take_events(self) -> list[Event]:
        """All that has happened."""
        events, self._events = self._events, ()
        return [*events]

    # ------------------------------------------------------------------ the table at work

    def _check(self, event: Input) -> None:
        row = TABLE[self.state, event]
        if row.action is Action.REFUSE:
            raise VerbsError(EINVAL, f"{event.value} in {self.state.name}: {row.reason}", event.name.lower())

    def _step(self, event: Input, signal: Signal) -> None:
        """All is computed first, and then comes about at once: no call is left for which memory may lack."""
        self._check(event)
        row = TABLE[self.state, event]
        change = self._actions[row.action](self, signal)
        _log.debug("[mpa] %s -> %s", self.state.name, row.next.name)
        told = self._events if change.event is None else (*self._events, change.event)
        self._out, self._events, self.buffer = self._out + change.out, told, b""
        self.asked, self.deadline, self.state = change.asked or self.asked, change.deadline, row.next

    def _refusal(self, private_data: bytes) -> bytes:
        if self.state is not State.REQ_RCVD:
            return b""
        assert self.asked is not None
        return agreement.reject(self.asked, private_data).emit()

    # ------------------------------------------------------------------ actions

    def _nothing(self, _signal: Signal) -> _Change:
        return _Change()

    def _send(self, signal: Signal) -> _Change:
        return _Change(signal.out)

    def _send_request(self, signal: Signal) -> _Change:
        return _Change(signal.out, asked=signal.frame, deadline=signal.until)

    def _start_timer(self, signal: Signal) -> _Change:
        return _Change(deadline=signal.until)

    def _take_request(self, signal: Signal) -> _Change:
        return _Change(event=signal.event(EventType.REQUEST), asked=signal.frame)

    def _accepted(self, signal: Signal) -> _Change:
        return _Change(event=signal.event(EventType.REPLY))

    def _terminate(self, signal: Signal) -> _Change:
        """A Terminate message that says so, as the peer has begun to take FPDUs (RFC 6581, 8)."""
        asked, answer = self.asked, signal.frame
        assert asked is not None
        assert answer is not None
        control = Terminate(layer=TermLayer.LLP, etype=0, code=signal.code)
        ulpdu = Segment.of(control, RdmapOpcode.TERMINATE, msn=1).emit()
        covered = (Marker().emit() if answer.markers else b"") + Fpdu.of(ulpdu, crc=False).emit_covered()
        crc = crc32c(covered) if asked.crc or answer.crc else 0
        return _Change(covered + crc.to_bytes(CRC_BYTES, "little"), signal.event(EventType.FAILED))

    def _rejected(self, signal: Signal) -> _Change:
        return _Change(event=signal.event(EventType.REJECTED))

    def _old_peer(self, signal: Signal) -> _Change:
        return _Change(event=signal.event(EventType.OLD_PEER))

    def _failed(self, signal: Signal) -> _Change:
        return _Change(event=signal.event(EventType.FAILED))

    def _expire(self, signal: Signal) -> _Change:
        return _Change(signal.out, signal.event(EventType.FAILED))

    _actions: ClassVar[dict[Action, Callable[[Startup, Signal], _Change]]] = {
        Action.NOTHING: _nothing,
        Action.SEND_REQUEST: _send_request,
        Action.START_TIMER: _start_timer,
        Action.TAKE_REQUEST: _take_request,
        Action.SEND_REPLY: _send,
        Action.SEND_REJECT: _send,
        Action.TAKE_REPLY: _accepted,
        Action.TERMINATE: _terminate,
        Action.TAKE_REJECT: _rejected,
        Action.FALL_BACK: _old_peer,
        Action.RESET: _rejected,
        Action.FAIL: _failed,
        Action.EXPIRE: _expire,
    }


def _kind(key: bytes) -> str:
    return "reply" if key == KEY_REPLY else "request"
