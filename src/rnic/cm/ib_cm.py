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
from typing import TYPE_CHECKING, Any, TypeVar

from rnic.cm import dispatch
from rnic.cm.conn_table import ConnTable, random_bits
from rnic.cm.connection import Connection
from rnic.cm.events import Address, Event, Send, Statistics
from rnic.cm.exchange import Exchange, Signal
from rnic.cm.sidr import Listener, Resolution
from rnic.cm.states import Input, State
from rnic.cm.timing import LONGEST, PACKET_LIFE_TIME, iba_ns
from rnic.wire import MAD, CmAttr

if TYPE_CHECKING:
    from random import Random

ANSWERS_KEPT = 1024  # last words, against repeated requests
ANSWER_KEPT_NS = iba_ns(LONGEST)  # as long as the kernel repeats a REQ: 16 times 4.3 s

_E = TypeVar("_E", bound=Exchange)

_MEETING = (State.REQ_SENT, State.MRA_REQ_RCVD, State.REQ_RCVD, State.REP_RCVD, State.SIDR_REQ_SENT)


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
        dispatch.take(self, data, source, now)

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

    def count(self, mad: MAD) -> None:
        """Count a message that was received."""
        self._received[CmAttr(mad.attr_id).name] += 1

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

    def answer_again(self, source: Address, asked: MAD, now: int) -> bool:
        """Whether this request has had its last answer; the answer is sent again."""
        kept = self._answers.get((source, asked))
        if kept is None or kept[0] < now:
            return False
        self.drop("a request that was answered for good")
        self.send(source, kept[1])
        return True

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
