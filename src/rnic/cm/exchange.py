# SPDX-License-Identifier: Apache-2.0
"""The common part of connections, resolutions and listeners: a state, the table that changes it, and one
timer.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import EINVAL
from typing import ClassVar, Protocol

from rnic.cm.events import Address, Event, EventType
from rnic.cm.states import HALF_OPEN, TABLE, WAITING, Action, Input, State
from rnic.errors import VerbsError
from rnic.log import Log
from rnic.records import Record
from rnic.wire import MAD, CmMessage

_log = Log("rnic.cm")


class Owner(Protocol):
    """What an exchange needs from its manager."""

    ca_guid: int

    def send(self, dest: Address, mad: MAD, *, again: bool = False) -> None:
        """Queue a datagram."""

    def report(self, event: Event) -> None:
        """Queue an event."""

    def drop(self, reason: str) -> None:
        """Count a datagram that changed nothing."""

    def moved(self, exchange: Exchange, now: int) -> None:
        """Note that an exchange has changed its state: completely, or not at all if it raises."""

    def timed(self, exchange: Exchange, deadline: int | None) -> None:
        """Note that the deadline of an exchange has changed."""

    def remember(self, source: Address, asked: MAD, answer: MAD, now: int) -> None:
        """Keep the last answer to a request, in case it was lost."""

    def said(self) -> tuple[int, ...]:
        """The length of the queue, for unsay()."""

    def unsay(self, said: tuple[int, ...]) -> None:
        """Remove what was queued since said()."""


class Signal(Record):
    """The data of an input: a message that was received, or that is to be sent."""

    now: int
    message: CmMessage | None = None
    mad: MAD | None = None
    source: Address = None  # where a received message is from
    listener: Exchange | None = None  # whose service id it asks for
    held: bool = False  # an MRA that is kept for a repeated message
    wait: int = 0  # ns to wait for the answer to a SIDR_REQ
    retries: int = 0  # how often it is sent again
    gone: bool = False  # no time has run out: the peer's process has died


class Exchange:
    """One conversation with one peer.

    Three things change it: calls of the application, `input()` and `timer()`, each with the time in
    nanoseconds. Its datagrams and events go to its owner at once. A call in the wrong state raises
    `VerbsError` (EINVAL), and a field that does not fit its message raises `WireError`; nothing has changed
    then.
    """

    actions: ClassVar[dict[Action, Callable[..., None]]]

    def __init__(self, owner: Owner, local_comm_id: int, peer: Address) -> None:
        self.owner = owner
        self.local_comm_id = local_comm_id
        self.peer = peer
        self.state = State.IDLE
        self.over = False  # it was somewhere and is back in IDLE: a new one is needed
        self.closed = False  # the application has let go: events are not for it any more
        self.context: object = None  # the layer above's own
        self.process: object = None  # likewise: the process that the peer is, where its death can be known
        self.peer_id = 0  # an id that the peer gave out: it says which process of its host the peer is
        self._deadline: int | None = None
        self._due: int | None = None  # the same without:
        self._until: int | None = None  # when a handshake that is half-open is given up, whatever else runs
        self._request: MAD | None = None  # what is sent again until it is answered
        self._wait = 0  # ns between two of them
        self._left = 0  # how often yet
        self._answer: MAD | None = None  # what a repeated message is answered with

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.local_comm_id:#010x} {self.state.name}>"

    # ------------------------------------------------------------------ what moves it

    def deadline(self) -> int | None:
        """When to call `timer()`, or None."""
        return self._deadline

    def timer(self, now: int) -> None:
        """Do what is due at this time."""
        if self._deadline is None or now < self._deadline:
            return
        late = self._until is not None and now >= self._until
        waiting = self.state in WAITING and self._left > 0 and not late
        self._step(Input.RETRY if waiting else Input.TIMEOUT, Signal(now))

    def hurry(self, now: int, wait: int) -> None:
        """Repeat the current request after `wait` ns, if that is sooner than planned."""
        if self.state in WAITING and self._deadline is not None and wait < self._wait:
            self._wait = wait
            self._arm(min(self._deadline, now + wait))

    def close(self, now: int) -> None:
        """End the exchange: refuse or release what is under way, depending on the state; no events follow.

        A connection is released with all repetitions, and stays in TIMEWAIT.
        """
        if self.over:
            return
        before, self.closed = self.closed, True
        try:
            self._step(Input.CLOSE, Signal(now))
        except BaseException:
            self.closed = before
            raise

    def input(self, event: Input, signal: Signal) -> None:
        """Handle a message that belongs to this exchange."""
        self._step(event, signal)

    def gone(self, now: int) -> None:
        """The peer's process has died, as its watcher has found out."""
        self._step(Input.GONE, Signal(now, gone=True))

    # ------------------------------------------------------------------ the table at work

    def _step(self, event: Input, signal: Signal) -> None:
        if self.over:
            self._refuse(event, "it is over; make a new one")
        row = TABLE[self.state, event]
        if row.action is Action.REFUSE:
            self._refuse(event, row.reason)
        if row.action is Action.IGNORE:
            self.owner.drop(f"{event.value} in {self.state.name}: {row.reason}")
            return
        before, said = dict(vars(self)), self.owner.said()
        try:
            if row.action is not Action.NOTHING:
                self.actions[row.action](self, signal)
            if row.next is not self.state or row.next is State.IDLE:
                self._set_state(row.next, signal.now)
            if self.closed and self.state is State.DREQ_RCVD:  # nobody else will answer it
                self._step(Input.CLOSE, Signal(signal.now))
        except BaseException:  # MemoryError, for one: as if the message, or the time, had not come yet
            self.owner.unsay(said)
            vars(self).update(before)
            raise

    def _refuse(self, event: Input, reason: str) -> None:
        raise VerbsError(EINVAL, f"{event.value} in {self.state.name}: {reason}", event.name.lower())

    def _set_state(self, following: State, now: int) -> None:
        before, self.state = self.state, following
        _log.debug("[cm %08x] %s -> %s", self.local_comm_id, before.name, following.name)
        if following not in HALF_OPEN:
            self._until = None
        if following is State.TIMEWAIT:
            self._arm(now + self._timewait_ns())
        elif following not in WAITING:
            self._arm(None)
        self.over = following is State.IDLE
        self.owner.moved(self, now)

    def _timewait_ns(self) -> int:
        return 0

    # ------------------------------------------------------------------ what actions are made of

    def _arm(self, deadline: int | None) -> None:
        self._due = deadline
        if self._until is not None:
            deadline = self._until if deadline is None else min(deadline, self._until)
        if deadline != self._deadline:
            self.owner.timed(self, deadline)
            self._deadline = deadline

    def _ask(self, mad: MAD, wait: int, retries: int, now: int) -> None:
        """Send a request and start its timer."""
        self._request, self._wait, self._left = mad, wait, retries
        self.owner.send(self.peer, mad)
        self._arm(now + wait)

    def _resend(self, signal: Signal) -> None:
        assert self._request is not None
        self._left -= 1
        self.owner.send(self.peer, self._request, again=True)
        self._arm(signal.now + self._wait)

    def _answer_again(self, _signal: Signal) -> None:
        if self._answer is not None:
            self.owner.send(self.peer, self._answer)

    def _tell(self, kind: EventType, signal: Signal) -> None:
        if not self.closed:
            attr_mod = signal.mad.attr_mod if signal.mad is not None else 0
            self.owner.report(Event(kind, self, signal.message, attr_mod, signal.listener, signal.gone))


def telling(kind: EventType) -> Callable[[Exchange, Signal], None]:
    """Make an action that only reports an event."""

    def tell(exchange: Exchange, signal: Signal) -> None:
        exchange._tell(kind, signal)

    return tell
