# SPDX-License-Identifier: Apache-2.0
"""The InfiniBand communication manager without I/O and without a clock (IBA chapter 12).

    cm = IbCm(slot=3, ca_guid=guid)
    conn = cm.connection(peer)                  # or cm.listen(service_id, now), and events
    conn.send_req(Req(...), now)
    cm.input(payload, source, now)              # a datagram that came to queue pair 1
    cm.timer(now)                               # when cm.deadline() says so
    for send in cm.take_sends(): ...            # after any of these: datagrams to send ...
    for event in cm.take_events(): ...          # ... and what to tell the application

Time is an integer of nanoseconds from any start. Addresses are the caller's own: hashable, compared, handed
back. Bytes from the wire never raise: what is malformed or fits nothing is dropped and counted.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rnic.cm.conn_table import ConnTable, random_bits
from rnic.cm.connection import Connection
from rnic.cm.events import Address, Event, Send, Statistics
from rnic.cm.exchange import Exchange, Signal
from rnic.cm.sidr import Listener, Resolution, refusal
from rnic.cm.states import Input, State
from rnic.cm.timing import LONGEST, PACKET_LIFE_TIME, iba_ns
from rnic.log import Log
from rnic.records import Record
from rnic.wire import (
    MAD,
    Answered,
    Apr,
    CmAttr,
    CmMessage,
    Drep,
    Dreq,
    Lap,
    MgmtClass,
    Mra,
    Rej,
    RejReason,
    Rep,
    Req,
    Rtu,
    SidrRep,
    SidrReq,
    SidrStatus,
    TransportType,
    WireError,
    parse_cm,
)

if TYPE_CHECKING:
    from random import Random

_log = Log("rnic.cm")

ANSWERS_KEPT = 1024  # last words, against repeated requests
ANSWER_KEPT_NS = iba_ns(LONGEST)  # as long as the kernel repeats a REQ: 16 times 4.3 s

_E = TypeVar("_E", bound=Exchange)

_MRA_INPUTS: dict[int, Input] = {
    Answered.REQ: Input.MRA_REQ,
    Answered.REP: Input.MRA_REP,
    Answered.OTHER: Input.MRA_OTHER,
}
_CALLING = (State.REQ_SENT, State.MRA_REQ_RCVD)
_MEETING = (State.REQ_SENT, State.MRA_REQ_RCVD, State.REQ_RCVD, State.REP_RCVD, State.SIDR_REQ_SENT)


class _Received(Record):
    """A datagram and its source."""

    mad: MAD
    source: Address
    now: int


class IbCm:
    """Connections, resolutions and listeners of one slot, on one channel adapter.

    Only one thread may call it at a time.
    """

    def __init__(self, slot: int, ca_guid: int, *, rng: Random | None = None) -> None:
        draw = rng.getrandbits if rng else random_bits
        self.ca_guid = ca_guid
        self.table = ConnTable(slot, draw)
        self._tid_high = draw(32) << 32
        self._sends: deque[Send] = deque()
        self._events: deque[Event] = deque()
        self._met: deque[Exchange] = deque()
        self._timers: list[tuple[int, int, Exchange]] = []  # a heap; stale entries are passed over
        self._serial = 0
        self._answers: OrderedDict[tuple[Address, MAD], tuple[int, MAD]] = OrderedDict()
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._resent = 0

    # ------------------------------------------------------------------ calls

    def connection(self, peer: Address, *, packet_life_time: int = PACKET_LIFE_TIME) -> Connection:
        """A new connection, for the active end; it is entered in the table when its REQ is sent.

        `packet_life_time`: n of 4.096 us * 2^n, how long a packet can be under way.
        """
        comm_id = self.table.allocate()
        return self._add(
            Connection(self, comm_id, peer, tid=self._tid(comm_id), packet_life_time=packet_life_time)
        )

    def resolution(self, peer: Address) -> Resolution:
        """A new resolution: it will ask which queue pair serves a service id."""
        comm_id = self.table.allocate()
        return self._add(Resolution(self, comm_id, peer, tid=self._tid(comm_id)))

    def listen(self, service_id: int, now: int) -> Listener:
        """Listen for a service id until the listener is closed. Raises EADDRINUSE if another listener
        has it.
        """
        listener = Listener(self, service_id, self._spawn)
        listener.listen(now)
        return listener

    def input(self, data: bytes, source: Address, now: int) -> None:
        """Handle a datagram that came to queue pair 1; it never raises for its contents."""
        try:
            mad = MAD.parse(data)
            message = parse_cm(mad)
        except WireError as error:
            self._malformed(data, str(error), source)
            return
        self._received[CmAttr(mad.attr_id).name] += 1
        self.handlers[mad.attr_id](self, message, _Received(mad, source, now))

    def deadline(self) -> int | None:
        """When to call `timer()`, or None."""
        while self._timers and self._timers[0][2].deadline() != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def timer(self, now: int) -> None:
        """Do what is due. If an exception interrupts it, the next call does the rest."""
        while (due := self.deadline()) is not None and due <= now:
            self._timers[0][2].timer(now)  # it has another deadline then, and this one is passed over

    def next_send(self) -> Send | None:
        """The next datagram to send, in order."""
        return self._sends.popleft() if self._sends else None

    def next_event(self) -> Event | None:
        """The next event, in order; events of closed exchanges are dropped."""
        while self._events:
            event = self._events.popleft()
            if not event.source.closed:
                return event
        return None

    def next_met(self) -> Exchange | None:
        """The next exchange that knows more about its peer: a request was sent, or the peer's id has come.

        The caller may find out which process the peer is, and note it in `process`.
        """
        while self._met:
            exchange = self._met.popleft()
            if not exchange.over:
                return exchange
        return None

    def put_back(self, one: Event | Exchange) -> None:
        """Return an item that could not be handled now: it is the next one again."""
        if isinstance(one, Event):
            self._events.appendleft(one)
        else:
            self._met.appendleft(one)

    def take_sends(self) -> list[Send]:
        """All datagrams of next_send()."""
        return list(iter(self.next_send, None))

    def take_events(self) -> list[Event]:
        """All events of next_event()."""
        return list(iter(self.next_event, None))

    def take_met(self) -> list[Exchange]:
        """All exchanges of next_met()."""
        return list(iter(self.next_met, None))

    def died(self, process: object, now: int) -> None:
        """A process that the caller has noted in exchanges has died."""
        for exchange in self.table.exchanges():
            if exchange.process is process:
                exchange.gone(now)
                exchange.process = None

    def statistics(self) -> Statistics:
        """The counters so far."""
        return Statistics(
            exchanges=len(self.table),
            listeners=len(self.table.listeners),
            sent=dict(self._sent),
            received=dict(self._received),
            resent=self._resent,
            dropped=dict(self._dropped),
        )

    # ------------------------------------------------------------------ what exchanges ask of their owner

    def send(self, dest: Address, mad: MAD, *, again: bool = False) -> None:
        """Queue a datagram."""
        self._sent[CmAttr(mad.attr_id).name] += 1
        self._resent += again
        self._sends.append(Send(dest, mad))

    def report(self, event: Event) -> None:
        """Queue an event."""
        self._events.append(event)

    def drop(self, reason: str) -> None:
        """Count a datagram that changed nothing."""
        self._dropped[reason] += 1

    def moved(self, exchange: Exchange, now: int) -> None:
        """Update the table after an exchange has changed its state; it is the last step that may fail."""
        if exchange.state in _MEETING:
            self._met.append(exchange)
        if exchange.over:
            self._keep_last_word(exchange, now)
            self._pass_over_stale(len(self.table) - 1)
            self.table.remove(exchange)
        elif isinstance(exchange, Listener):
            self.table.listen(exchange)
        elif isinstance(exchange, Connection):
            self._connection_moved(exchange)
        elif isinstance(exchange, Resolution) and exchange.state is State.SIDR_REQ_RCVD:
            self.table.add_question(exchange)

    def _connection_moved(self, conn: Connection) -> None:
        if conn.state is State.REQ_SENT:
            self.table.add_call(conn)
        elif conn.state in (State.REQ_RCVD, State.REP_RCVD):
            self.table.add_remote(conn)
        elif conn.state is State.TIMEWAIT:
            self.table.release(conn)

    def _keep_last_word(self, one: Exchange, now: int) -> None:
        """Keep the answer: a copy of the REQ may still be under way, and would begin an unwanted
        connection.
        """
        if (
            isinstance(one, Connection)
            and one.asked is not None
            and (one.peer, one.asked) not in self._answers
        ):
            self.remember(one.peer, one.asked, one.stale().to_mad(one.asked.tid), now)

    def timed(self, exchange: Exchange, deadline: int | None) -> None:
        """Put a deadline of an exchange into the heap."""
        self._pass_over_stale(len(self.table))
        if deadline is not None:
            self._serial += 1
            heapq.heappush(self._timers, (deadline, self._serial, exchange))

    def _pass_over_stale(self, alive: int) -> None:
        """What is in the heap is bounded by what is alive."""
        if len(self._timers) >= 64 + 4 * alive:  # mostly stale ones
            self._timers = [one for one in self._timers if one[2].deadline() == one[0]]
            heapq.heapify(self._timers)

    def remember(self, source: Address, asked: MAD, answer: MAD, now: int) -> None:
        """Keep the last answer to a request: if the answer is lost, the same request comes again."""
        self._answers[source, asked] = (now + ANSWER_KEPT_NS, answer)
        while len(self._answers) > ANSWERS_KEPT:
            self._answers.popitem(last=False)

    def said(self) -> tuple[int, ...]:
        """The length of the queues, for unsay()."""
        return len(self._sends), len(self._events), len(self._met)

    def unsay(self, said: tuple[int, ...]) -> None:
        """Remove what was queued since said()."""
        queues: tuple[deque[Any], ...] = (self._sends, self._events, self._met)
        for queue, length in zip(queues, said, strict=True):
            while len(queue) > length:
                queue.pop()

    # ------------------------------------------------------------------ new exchanges

    def _tid(self, comm_id: int) -> int:
        return self._tid_high | comm_id

    def _add(self, exchange: _E) -> _E:
        self.table.add(exchange)
        return exchange

    def _spawn(self, listener: Listener, event: Input, signal: Signal) -> None:
        """Make an exchange for a request to a listener."""
        peer, comm_id = signal.source, self.table.allocate()
        tid = self._tid(comm_id)
        new = (Connection if event is Input.REQ else Resolution)(self, comm_id, peer, tid=tid)
        self._add(new)
        try:
            new.input(event, Signal(signal.now, signal.message, signal.mad, listener=listener))
        except BaseException:
            self.table.remove(new)
            raise

    def _answered_before(self, at: _Received) -> bool:
        """Whether this request has had its last answer; the answer is sent again."""
        kept = self._answers.get((at.source, at.mad))
        if kept is None or kept[0] < at.now:
            return False
        self.drop("a request that was answered for good")
        self.send(at.source, kept[1])
        return True

    # ------------------------------------------------------------------ messages that ask

    def _req(self, req: Req, at: _Received) -> None:
        if known := self.table.find_remote(req.local_ca_guid, req.local_comm_id):
            self._pass(known, Input.REQ, req, at)
            return
        if self._answered_before(at):
            return
        if old := self.table.find_qpn(req.local_ca_guid, req.local_qpn):
            self._stale(old, Answered.REQ, req.local_comm_id, 0, at)
            return
        listener = self.table.listeners.get(req.service_id)
        if listener is None or req.transport_type not in (TransportType.RC, TransportType.UC):
            self._refuse(req, listener, at)
            return
        self._pass(listener, Input.REQ, req, at)

    def _refuse(self, req: Req, listener: Listener | None, at: _Received) -> None:
        if listener is not None:
            reason = RejReason.INVALID_TRANSPORT_TYPE
        elif self.table.is_calling(req.service_id, at.source):
            reason = RejReason.UNSUPPORTED  # both ends call: the peer-to-peer model would join them
        else:
            reason = RejReason.INVALID_SERVICE_ID
        self.drop(f"a REQ that is refused: {reason.name.lower()}")
        self._reject(reason, Answered.REQ, req.local_comm_id, 0, at)

    def _stale(
        self, old: Connection, message: Answered, remote_comm_id: int, local_comm_id: int, at: _Received
    ) -> None:
        """A queue pair that counts as connected here requests another connection (IBA 12.9.8.3.1)."""
        self.drop(f"a {message.name} from a queue pair that is connected already")
        self._reject(RejReason.STALE_CONN, message, remote_comm_id, local_comm_id, at)
        if old.peer == at.source:  # anybody can name a queue pair
            old.input(Input.STALE, Signal(at.now))

    def _reject(
        self, reason: RejReason, message: Answered, remote_comm_id: int, local_comm_id: int, at: _Received
    ) -> None:
        rej = Rej(local_comm_id=local_comm_id, remote_comm_id=remote_comm_id, message=message, reason=reason)
        self.send(at.source, rej.to_mad(at.mad.tid))

    def _sidr_req(self, req: SidrReq, at: _Received) -> None:
        known: Exchange | None = self.table.find_question(req.request_id, at.source)
        if known is None and self._answered_before(at):
            return
        known = known or self.table.listeners.get(req.service_id)
        if known is None:
            self.drop("a SIDR_REQ for a service without a listener")
            self.send(at.source, refusal(req, SidrStatus.UNSUPPORTED).to_mad(at.mad.tid))
            return
        self._pass(known, Input.SIDR_REQ, req, at)

    # ------------------------------------------------------------------ messages that answer

    def _rep(self, rep: Rep, at: _Received) -> None:
        conn = self.table.find(rep.remote_comm_id)
        if not isinstance(conn, Connection):
            # The peer would repeat it until it gives up.
            self.drop("a REP for an id that is not known")
            self._reject(RejReason.INVALID_COMM_ID, Answered.REP, rep.local_comm_id, rep.remote_comm_id, at)
        elif conn.remote_comm_id == rep.local_comm_id:
            self._pass(conn, Input.REP, rep, at)
        elif conn.remote_comm_id:
            self.drop("a REP from another connection than the one before")
        elif self.table.find_remote(rep.local_ca_guid, rep.local_comm_id):
            self.drop("a REP with the id of another connection")
        elif (old := self.table.find_qpn(rep.local_ca_guid, rep.local_qpn)) and conn.state in _CALLING:
            self._stale(old, Answered.REP, rep.local_comm_id, rep.remote_comm_id, at)
        else:
            self._pass(conn, Input.REP, rep, at)

    def _mra(self, mra: Mra, at: _Received) -> None:
        event = _MRA_INPUTS.get(mra.message)
        # To a REQ it is the first that we hear of the peer's id.
        known_id = 0 if mra.message == Answered.REQ else mra.local_comm_id
        conn = self.table.find_connection(mra.remote_comm_id, known_id)
        if event is None or conn is None:
            self.drop("an MRA for an id that is not known")
            return
        self._pass(conn, event, mra, at)

    def _rej(self, rej: Rej, at: _Received) -> None:
        conn = self._rejected(rej)
        if conn is None:
            self.drop("a REJ for an id that is not known")
            return
        stale = rej.reason == RejReason.STALE_CONN
        self._pass(conn, Input.REJ_STALE if stale else Input.REJ, rej, at)

    def _rejected(self, rej: Rej) -> Connection | None:
        if rej.reason == RejReason.TIMEOUT:
            # Its sender may not know our id, but says who it is (IBA 12.6.7.2, reason 4).
            return self.table.find_remote(int.from_bytes(rej.info[:8], "big"), rej.local_comm_id)
        if rej.message == Answered.REQ:
            return self.table.find_connection(rej.remote_comm_id, 0)
        # Ours may be waiting for the REP still, when that was lost and the REJ arrived.
        find = self.table.find_connection
        return find(rej.remote_comm_id, rej.local_comm_id) or find(rej.remote_comm_id, 0)

    def _dreq(self, dreq: Dreq, at: _Received) -> None:
        conn = self.table.find_connection(dreq.remote_comm_id, dreq.local_comm_id)
        if conn is None:
            # Long gone here: the peer shall not wait for it, as the kernel has it.
            self.drop("a DREQ for an id that is not known")
            drep = Drep(local_comm_id=dreq.remote_comm_id, remote_comm_id=dreq.local_comm_id)
            self.send(at.source, drep.to_mad(at.mad.tid))
        elif conn.local_qpn != dreq.remote_qpn:
            self.drop("a DREQ for another queue pair")
        else:
            self._pass(conn, Input.DREQ, dreq, at)

    def _reply(self, message: Rtu | Drep | Lap | Apr, at: _Received) -> None:
        """Handle a message that must name both ids."""
        conn = self.table.find_connection(message.remote_comm_id, message.local_comm_id)
        event = Input[message.ATTR.name]
        if conn is None:
            self.drop(f"{event.name}: an id that is not known")
            return
        self._pass(conn, event, message, at)

    def _sidr_rep(self, rep: SidrRep, at: _Received) -> None:
        found = self.table.find(rep.request_id)
        if not isinstance(found, Resolution):
            self.drop("a SIDR_REP for an id that is not known")
            return
        self._pass(found, Input.SIDR_REP, rep, at)

    def _pass(self, exchange: Exchange, event: Input, message: CmMessage, at: _Received) -> None:
        if exchange.peer not in (None, at.source):  # a listener's is None
            self.drop("a message of another address than the peer's")
            return
        exchange.input(event, Signal(at.now, message, at.mad, source=at.source))

    def _malformed(self, data: bytes, reason: str, source: Address) -> None:
        """Handle an unreadable datagram; a REQ of another version is refused with its reason (IBA 12.6.7.2,
        reason 31).
        """
        self.drop("malformed")
        _log.debug("from %s: %s", source, reason)
        if len(data) != MAD.SIZE:
            return
        mad = MAD.parse(data)
        if (mad.mgmt_class, mad.attr_id) == (MgmtClass.CM, CmAttr.REQ) and mad.class_version != 2:
            reply_to = Req.parse(mad.data).local_comm_id
            at = _Received(mad, source, 0)
            self._reject(RejReason.INVALID_CLASS_VERSION, Answered.REQ, reply_to, 0, at)

    handlers: ClassVar[dict[int, Callable[..., None]]] = {
        CmAttr.REQ: _req,
        CmAttr.MRA: _mra,
        CmAttr.REJ: _rej,
        CmAttr.REP: _rep,
        CmAttr.RTU: _reply,
        CmAttr.DREQ: _dreq,
        CmAttr.DREP: _reply,
        CmAttr.SIDR_REQ: _sidr_req,
        CmAttr.SIDR_REP: _sidr_rep,
        CmAttr.LAP: _reply,
        CmAttr.APR: _reply,
    }
