# SPDX-License-Identifier: Apache-2.0
"""One end of a connection: posts, polls and feeds the protocol.  Nothing here waits; sync.py and aio do.

pump() moves everything that can be moved; what the user asked for is then seen by looking.  Between two pumps
a face waits for the two descriptors, or until deadline().

An exception may come between any two lines, from the handler of a signal (Ctrl-C) or for want of memory.
So what the device or the connection manager has said is kept until it was handled, and handled once: a number
tells what was (`receives_seen`, `completed`).  What was posted is known by a mark that the posting itself
leaves (at_once()).  The next pump goes on from there.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Set
from errno import ECONNRESET
from functools import partial
from itertools import chain
from operator import index
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from rnic._nic.nic import MR, SGE, WC, Chain, Courier, Hold, Operations, Result, SendWR, not_shared
from rnic.conn.arrays import describe
from rnic.conn.device import at_once, later, let_go, let_go_memory, run_all
from rnic.conn.memory import MAX_OPS, Memory
from rnic.conn.ops import Op, explain
from rnic.conn.pool import Pool
from rnic.conn.raw import Raw
from rnic.conn.rendezvous import Announced, Fetching
from rnic.endpoint import (
    Capability,
    Closed,
    ClosedError,
    Config,
    EndpointError,
    LostError,
    MessageReceived,
    Outgoing,
    PeerClosed,
    Protocol,
    Region,
    Role,
    State,
    Statistics,
)
from rnic.endpoint.buffers import flat, view_of
from rnic.enums import AccessFlags, QPState, SendFlags, WCOpcode, WCStatus, WROpcode
from rnic.enums import EventType as AsyncEventType
from rnic.errors import VerbsError
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType
from rnic.rdmacm import Event as CmEvent
from rnic.rdmacm.again import again
from rnic.rdmacm.qp_states import is_flushed
from rnic.records import replace
from rnic.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from rnic.wire import rej_reason

if TYPE_CHECKING:
    from rnic.endpoint.buffers import AnyBuffer

_RECEIVE, _SEND, _OP = range(3)  # the lower bits of a wr_id
_KINDS = 4
_POLL = 64
_ROUNDS = 4  # how often one pump looks again, so that a busy peer does not keep a loop from other work
_ENDED = frozenset({State.ABORTING, State.CLOSED, State.FAILED})
_DISCONNECTS = (EventType.DISCONNECTED, EventType.DEVICE_REMOVAL, EventType.UNREACHABLE)
_CONFUSED = (EventType.CONNECT_ERROR, EventType.REJECTED)
GRACE = 1.0
"""Seconds for the ABORT of a close() that came to its limit."""
STOPPED = "the server was stopped"
_LOOK_AGAIN = 0.25  # seconds until the next look whether what a stopped process holds has been given back


class Core:
    """A connection's queue pair, completion queue and id, and the protocol that rules them."""

    def __init__(self, cm_id: CmId, config: Config, role: Role) -> None:
        self.cm_id, self.config = cm_id, config
        self.protocol: Protocol | Raw = Protocol(config, role)
        self.established = False
        """The peer is known to be ready."""
        self.error: EndpointError | None = None
        """What ended the connection; None if it is open, or both ends said goodbye."""
        self.undelivered = 0
        """When `error` is set: the number of messages that the peer has perhaps not received."""
        self.eof = False
        """The peer has said goodbye, and the program has taken all its messages."""
        self.waiting = False
        """A call waits for a message to come or to go: a long message may come in meanwhile."""
        self.tags: Set[int] = frozenset()
        """The tags that calls ask for now."""
        self.leaving = False
        """The server is being stopped: who would wait for a message gets ClosedError."""
        self._looked = False  # a pump has looked for messages since, and after the last one
        self.broken: EndpointError | None = None
        """A mistake in rnic that ended the connection."""
        self.released = False
        """release() has begun.  When it is done, `given_back` is true."""
        self.busy = False
        """The last pump stopped to let other tasks work: pump again at once."""
        context = cm_id.verbs
        assert context is not None
        with contextlib.ExitStack() as undo:
            self.pd = undo.enter_context(context.alloc_pd())
            self.memory = Memory(self.pd, config)
            self.pool = Pool(self.pd, self.memory.staged_size)
            undo.callback(self.memory.mr.close)
            self.comp = undo.enter_context(context.create_comp_channel())
            sends = self.memory.bounces + MAX_OPS + 2
            self.cq = undo.enter_context(context.create_cq(self.memory.receives + sends, self.comp))
            undo.callback(cm_id.destroy_qp)
            self.qp = self._create_qp(sends)
            # One descriptor for both: completions, and what the connection manager says.
            self.channel = undo.enter_context(EventChannel(beside=self.comp))
            cm_id.migrate_id(self.channel)
            undo.pop_all()
        self._posted_ops: dict[int, Op | Result] = {}
        self.courier = self._make_courier()
        self.operations = self._make_operations()
        self._disconnected: CmEvent | None = None
        self._said_disconnect = False
        self._closing: tuple[float | None] | None = None  # close() waits for the operations
        self._polled: deque[list[WC]] = deque()  # completions that were not all handled
        self._waiting: dict[int, bool] = {}  # handles of messages that were not handed out whole
        self._announced = Announced(self.pd)
        self.fetching = Fetching(self.pd, self.pool, self.courier)
        self._outgoing: deque[Outgoing] = deque()  # handed out, not posted
        self._queued_ops: deque[Op] = deque()
        # What the device has taken, and nobody has noted yet; with it, how many receives are posted then.
        self._took_sends: deque[None] = deque()
        self._took_op: deque[None] = deque()
        self._took_receives: deque[None] = deque()
        self._receives_then = 0
        self._given: dict[int, Region] = {}
        self._withdrawn: WeakValueDictionary[int, Region] = WeakValueDictionary()  # told by nobody yet
        self._shared: dict[int, MR] = {}  # also those that were withdrawn and not released
        self._ours: WeakValueDictionary[int, Region] = WeakValueDictionary()  # all that were shared
        self._released_seen = 0
        self._again_at: float | None = None  # when to look again at memory that a stopped process holds
        self._flushed_by: float | None = None  # and at the queue pair
        self._end_steps: deque[Callable[[], object]] | None = None  # what release() has to do yet

    def _create_qp(self, sends: int) -> QP:
        cap = QPCap(sends, self.memory.receives, 1, 1, 0)
        qp = self.cm_id.create_qp(self.pd, QPInitAttr(self.cq, self.cq, cap=cap))
        access = self.config.access
        qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=access))
        return qp

    def _make_courier(self) -> Courier:
        memory, config, protocol = self.memory, self.config, self.protocol
        assert isinstance(protocol, Protocol)
        return Courier(
            self.qp,
            self.cq,
            memory.mr,
            protocol.flow,
            receive_size=config.receive_size,
            sends_at=memory.sends_at,
            send_size=config.send_size,
            bounces=memory.bounces,
            max_message=config.max_message,
            spin=config.spin,
        )

    def _make_operations(self) -> Operations:
        memory, protocol = self.memory, self.protocol
        assert isinstance(protocol, Protocol)
        return Operations(
            self.courier,
            memory.mr,
            protocol.known_regions,
            self.pool.places,
            self.pool.find,
            self._posted_ops,
            results_at=memory.results_at,
            staged_at=memory.staged_at,
            staged_size=memory.staged_size,
        )

    # ------------------------------------------------------------ opening

    def hello(self, data: bytes) -> bytes:
        """Post the receives; return the hello with the program's data, empty for a raw peer."""
        self._post_receives()
        return b"" if isinstance(self.protocol, Raw) else self.protocol.hello(data)

    def greet(self, private_data: bytes, now: float) -> None:
        """Read the hello in a REQ or REP.  ProtocolError when there is none and Config.raw is off."""
        if isinstance(self.protocol, Raw):
            raise RuntimeError("a peer is greeted once")
        posted = self.protocol.posted_receives
        peer = self.protocol.accept_hello(private_data, now)
        if peer is None:
            self.protocol = Raw(self.config, self.memory.receives, posted)
        else:
            # What goes at once: the peer gives half of its receives back before more goes.
            pieces = max(1, min(self.memory.bounces, peer.receives) // 2)
            longest = self.protocol.longest_of(pieces)
            if self._announces:
                longest = min(longest, (self.config.announce or 1) - 1)
            self.courier.frame, self.courier.longest = self.protocol.frame_size, longest
            self.courier.tags = self.protocol.knows(Capability.TAG)

    @property
    def peer_data(self) -> bytes:
        """The data that the peer's program put into its hello."""
        protocol = self.protocol
        return protocol.peer.data if isinstance(protocol, Protocol) and protocol.peer is not None else b""

    @property
    def raw(self) -> bool:
        """The peer sent no hello: it speaks no endpoint protocol."""
        return isinstance(self.protocol, Raw)

    def take_short_way(self) -> bool:
        """Open the courier if its messages would overtake nothing that waits here; whether it is open."""
        protocol = self.protocol
        return (
            isinstance(protocol, Protocol)
            and protocol.plain
            and self.established
            and not (self.ended or self.eof or self._closing or self.leaving)
            and not (self._outgoing or self._polled or self._queued_ops or self._disconnected)
            and not (self._took_receives or self._took_sends or self._took_op)
            and self.courier.reopen()
        )

    def _go_long(self) -> None:
        """Shut the courier, and take over the beginning of a message that it has received."""
        courier, protocol = self.courier, self.protocol
        courier.shut()
        if not isinstance(protocol, Protocol) or self.ended:
            return
        if courier.part is not None:
            protocol.settle()  # it may have been handed over, and an exception has hidden that
        if (part := courier.part) is not None:
            protocol.receive_rest(*part, courier.let_part_go)
        if courier.failed:
            protocol.lost("a piece of a message could not be posted")

    def woken(self) -> bool:
        """Let the courier look, as the descriptor is readable; False when a pump is needed."""
        return (self.courier.open or self.take_short_way()) and self.courier.woken()

    # ------------------------------------------------------------ pumping

    def fileno(self) -> int:
        """A descriptor that becomes readable when a pump has something to do."""
        return self.comp.fileno()

    def pump(self, now: float) -> None:
        """Do all that can be done now.  Afterwards the descriptor tells of news, unless `busy`."""
        if self.released or self.broken is not None:
            return
        self._go_long()
        self.protocol.settle()
        if self._took_receives or self._took_sends or self._took_op:
            self._note_posted()
        self._want()
        self._cm_events()
        self._quiet()
        for turn in range(_ROUNDS):
            worked = self._poll(now) or self._fetch_offer()  # a STOP may stand behind the ANNOUNCE
            if worked or turn == 0 or self._closing is not None:  # what _post() ends is the last, perhaps
                self._go_on(now)
            if not worked and self.courier.armed:
                break
            if not worked:
                self.cq.req_notify()
                self.courier.armed = True
        else:
            self.busy = True
            return
        self.busy, self._looked = False, self.leaving
        self._wind_up(now)
        if self._again_at is not None or self.ended or self.protocol.released != self._released_seen:
            self._close_released(now)

    def _go_on(self, now: float) -> None:
        """Do what follows from completions, from the time, and from what the user has queued."""
        self._lost_peer()
        self._note_taken()
        self._note_events()
        self._close_when_idle(now)
        self._timer(now)
        self._post()

    def _note_posted(self) -> None:
        """Note what was posted just before an exception came."""
        self._note_receives()
        self._note_sends()
        self._note_op()

    def deadline(self) -> float | None:
        """The time at which pump() must run at the latest; None: there is none."""
        due = self.protocol.deadline()
        close_by = self._closing[0] if self._closing is not None and not self.ended else None
        times = (due, close_by, self._again_at, self._flushed_by)
        return min((at for at in times if at is not None), default=None)

    def _timer(self, now: float) -> None:
        due = self.protocol.deadline()
        if due is not None and now >= due:
            self.protocol.timer(now)

    def _quiet(self) -> None:
        if self.courier.armed:
            self.courier.armed = False
            try:
                self.comp.get_cq_event(0).ack_events()
            except TimeoutError:
                # What made the descriptor readable may have been an event that came since: it is not now.
                self.courier.armed = True
                self._cm_events()

    def _cm_events(self) -> None:
        while (event := self.channel.peek()) is not None:
            self._cm_event(event)
            self.channel.drop(event)

    def _cm_event(self, event: CmEvent) -> None:
        if event.event is EventType.ESTABLISHED:
            self.established = True
        elif event.event in _DISCONNECTS:
            self._disconnected = self._disconnected or event
        elif event.event in _CONFUSED:
            why = f", reason {rej_reason(event.status)}" if event.event is EventType.REJECTED else ""
            self.protocol.lost(f"the handshake failed: {event.event.name}{why}")

    def _lost_peer(self) -> bool:
        """Handle a disconnect, after all completions that came before it; whether there was one."""
        event = self._disconnected
        if event is None or self.finished:
            return False
        if event.status == -ECONNRESET:
            self.protocol.lost("the peer's process has died")
        elif event.event is not EventType.DISCONNECTED:
            self.protocol.lost(f"{event.event.name}: the peer does not answer, or the device is gone")
        else:
            param = event.param
            self.protocol.disconnected(param.private_data if isinstance(param, ConnParam) else b"")
        return True

    def _poll(self, now: float) -> bool:
        if not self._polled:
            at_once(self.cq.poll, _POLL, self._polled)
        found = self._polled[0]
        failed = []
        for wc in found:
            if wc.ok:
                self._completed(wc, now)
            else:
                failed.append(wc)
        if failed:
            self._failed(failed)
        self._polled.popleft()
        return bool(found)

    def _completed(self, wc: WC, now: float) -> None:
        kind, number = wc.wr_id % _KINDS, wc.wr_id // _KINDS
        if kind == _RECEIVE:
            if number >= self.protocol.receives_seen:
                # A WRITE with immediate takes a receive and leaves nothing in it.
                self._received(number, wc.byte_len if wc.opcode is WCOpcode.RECV else 0, now)
        elif kind == _SEND:
            if number > self.protocol.completed:
                self.protocol.sent(number, now)
        elif (op := self._posted_ops.get(number)) is not None:
            self.protocol.heard(now)
            self._op_done(op, None)

    def _received(self, number: int, length: int, now: float) -> None:
        if not self.established:  # data overtook the last message of the handshake
            with contextlib.suppress(VerbsError):
                self.cm_id.notify(AsyncEventType.COMM_EST)
            self.established = True
        with self.memory.received(number, length) as data:
            self.protocol.receive(data, now)

    def _failed(self, failed: list[WC]) -> None:
        """End the connection: the first status that is not WR_FLUSH_ERR says why, or else the CM does."""
        first = next((one for one in failed if one.status is not WCStatus.WR_FLUSH_ERR), None)
        if first is None:
            self._cm_events()
        if first is not None or not self._lost_peer():
            self.protocol.lost(explain(first or failed[0], None))
        for wc in failed:
            op = self._posted_ops.get(wc.wr_id // _KINDS) if wc.wr_id % _KINDS == _OP else None
            if op is not None:
                flushed = wc.status is WCStatus.WR_FLUSH_ERR
                self._op_done(op, LostError(explain(wc, self.protocol.error if flushed else None)))

    # ------------------------------------------------------------ posting

    def _post(self) -> None:
        if self.qp.state is QPState.ERR:
            return
        try:
            if self.protocol.state is not State.HELLO:
                self._post_receives()
            if self.established:
                self._post_sends()
                self._post_ops()
        except VerbsError as error:
            self.protocol.lost(str(error))

    def _post_receives(self) -> None:
        number = self.protocol.receives_to_post()
        if number:
            first = self.protocol.posted_receives
            then = self._receives_then = first + number
            wrs = [self.memory.receive_wr(one * _KINDS + _RECEIVE, one) for one in range(first, then)]
            at_once(self.qp.post_recv, wrs, self._took_receives)
            self._note_receives()

    def _note_receives(self) -> None:
        if self._took_receives:
            self.protocol.receives_posted(self._receives_then - self.protocol.posted_receives)
            self._took_receives.clear()

    def _post_sends(self) -> None:
        """Post the SENDs that may go now; the last one is signaled, and completes for all."""
        # What must not come after the RELEASE of a region goes before it.
        self._post_ops()
        while self.protocol.outstanding < self.memory.bounces:
            if self.protocol.next_send(self._outgoing) is None:
                break
        if self._outgoing:
            wrs = [self._send_wr(out) for out in self._outgoing]
            wrs[-1].send_flags = wrs[-1].send_flags | SendFlags.SIGNALED
            at_once(self.qp.post_send, wrs, self._took_sends)
            self._note_sends()

    def _note_sends(self) -> None:
        if self._took_sends:
            for out in self._outgoing:
                if out.ends is not None:
                    self._waiting.pop(out.ends, None)
            if self._outgoing and isinstance(self.protocol, Protocol):
                self.protocol.flow.signaled = self._outgoing[-1].number
            self._outgoing.clear()
            self._took_sends.clear()

    def _send_wr(self, out: Outgoing) -> SendWR:
        wr_id = out.number * _KINDS + _SEND
        if out.probe:
            return SendWR(wr_id, WROpcode.RDMA_WRITE)
        flags = SendFlags.FENCE if out.fence else SendFlags(0)
        return SendWR(wr_id, WROpcode.SEND, flags, [self.memory.fill(out.number, out.header, out.payload)])

    def _post_ops(self) -> None:
        while self._queued_ops and len(self._posted_ops) < MAX_OPS and not self.ended:
            op = self._queued_ops[0]
            if not op.posted and not op.done:
                self._post_op(op)
            self._queued_ops.popleft()

    def _post_op(self, op: Op) -> None:
        if op.pieces is None and not self.raw and self.protocol.regions.get(op.remote.id) != op.remote:
            self._op_done(op, not_shared(op.remote))
            return
        try:
            op.number = self.operations.posted + 1
            at_once(self.qp.post_send, op.wr(op.number * _KINDS + _OP, self._local_side(op)), self._took_op)
        except VerbsError as error:
            self._op_done(op, error)
        else:
            self._note_op()

    def _note_op(self) -> None:
        if self._took_op:
            op = self._queued_ops[0]
            self._posted_ops[op.number] = op
            self.operations.posted, op.posted = op.number, True
            self._took_op.clear()

    def _local_side(self, op: Op) -> list[SGE]:
        if op.pieces is not None:
            return op.pieces
        if op.local is None:
            return [self.memory.result_sge(op.number)]
        if isinstance(op.local, MR):
            piece = SGE(op.local)
            op.hold = op.hold or Hold(op.local, 0, piece.length)
            return [piece]
        if not op.local:  # no region is empty
            return []
        op.hold = op.hold or self.pool.find(op.local, op.opcode is WROpcode.RDMA_READ)
        if op.hold is not None:
            return [op.hold.sge]
        if op.own_mr is None:
            access = AccessFlags.LOCAL_WRITE if op.opcode is WROpcode.RDMA_READ else AccessFlags(0)
            op.own_mr = self.pd.reg_mr(op.local, access)
        return [SGE(op.own_mr)]

    def _op_done(self, op: Op | Result, error: Exception | None) -> None:
        if isinstance(op, Result):
            self.operations.end(op, error)
            return
        if op.own_mr is not None:
            let_go_memory(op.own_mr)
            op.own_mr = None
        if op.staged:
            if error is None and isinstance(op.local, memoryview):
                op.fill(self.memory.staged(len(op.local)))
            self.operations.staged, op.staged = 0, False
        if op.posted and op.local is None and op.pieces is None and not op.done and error is None:
            op.value = self.memory.result(op.number)
        op.finish(error)
        self._posted_ops.pop(op.number if op.posted else 0, None)

    def _close_released(self, now: float) -> None:
        """Deregister memory that no request of the peer can reach any more."""
        due = self._again_at is not None and now >= self._again_at
        released = self.protocol.released
        if not due and released == self._released_seen and not (self.ended and self.protocol.unreleased):
            return
        kept = set(self.protocol.shared).union(() if self.ended else self.protocol.unreleased)
        gone = [key for key in self._shared if key not in kept]
        for key in gone:
            if let_go_memory(self._shared[key]):
                del self._shared[key]
        self._again_at = now + _LOOK_AGAIN if any(key in self._shared for key in gone) else None
        self._released_seen = released

    # ------------------------------------------------------------ announced messages

    @property
    def _announces(self) -> bool:
        """Long messages may be announced to this peer."""
        protocol, config = self.protocol, self.config
        return (
            isinstance(protocol, Protocol)
            and config.announce is not None
            and protocol.knows(Capability.ANNOUNCE)
            and bool(config.access & AccessFlags.REMOTE_READ)
        )

    def _queue_message(self, data: memoryview, tag: int) -> None:
        """Announce a message if it is long and can be registered; else queue it to go in pieces."""
        protocol, handle = self.protocol, self.protocol.next_handle
        if isinstance(protocol, Protocol) and self._announces and len(data) >= (self.config.announce or 0):
            try:
                rkey = self._announced.register(handle, data)
            except VerbsError:  # there are no more regions
                protocol.send(data, tag)
            else:
                protocol.announce(len(data), 0, rkey, tag)
        else:
            protocol.send(data, tag)

    def _note_taken(self) -> None:
        """Deregister the messages that the peer has taken."""
        if isinstance(self.protocol, Protocol):
            for handle in self._announced.up_to(self.protocol.taken):
                self._announced.close(handle)
                self._waiting.pop(handle, None)

    @property
    def offered(self) -> int:
        """The length of the announced message, if it comes next and is not being fetched; else 0."""
        return self.fetching.offered(self.protocol) if isinstance(self.protocol, Protocol) else 0

    def _fetch_offer(self) -> bool:
        """READ what the peer has announced, when somebody waits for it or there is room; True: go on."""
        protocol = self.protocol
        if isinstance(protocol, Raw) or self.ended or not self.established:
            return False
        return self.fetching.step(protocol, self._queued_ops)

    # ------------------------------------------------------------ the user

    @property
    def next_handle(self) -> int:
        """The handle of the next message that is queued."""
        return self.protocol.next_handle

    def send(self, message: AnyBuffer, tag: int) -> None:
        """Queue a message; is_sent() tells when its buffer is free."""
        self._go_long()
        self.check()
        data = flat(message, "send()")
        self._waiting[self.next_handle] = True
        self._queue_message(data, index(tag or 0))

    def is_sent(self, handle: int) -> bool:
        """The message has left its buffer, or the connection has ended (then check() raises)."""
        return handle not in self._waiting or self.ended

    def raise_unsent(self, handle: int) -> None:
        """Raise the connection's error if it ended before the message was sent."""
        self._announced.close(handle)
        if self._waiting.pop(handle, None) is not None:
            self.check()

    def take_back(self, handle: int) -> None:
        """Withdraw a message, as its call has ended: the peer drops it, if it can.

        If it does not, or has begun to READ it, the message goes on from a copy.
        """
        self._go_long()
        protocol = self.protocol
        self._waiting.pop(handle, None)
        if protocol.cancel(handle) or handle >= self.next_handle:
            self._announced.close(handle)
            return
        if handle in self._announced:
            self._announced.copy(handle)
        if isinstance(protocol, Raw) or not protocol.stop(handle):
            protocol.detach(handle)
        for out in self._outgoing:  # of this message, perhaps
            out.payload = memoryview(bytes(out.payload))

    def next_message(self, tag: int | None = None) -> bytes | memoryview | None:
        """The next message, or the next with a tag; None: there is none yet.

        It stays in the courier's `hand`.  Raises EOFError after the peer's goodbye, and what `error` is.
        """
        if self.broken is None:
            self._note_events()
        hand: MessageReceived | bytes | None = self.courier.hand
        if hand is not None and tag is not None and self.tag_in_hand != tag:
            hand = self._fetch_from_behind(hand, tag)
        if hand is not None:
            self._looked = False
            return hand if isinstance(hand, bytes) else hand.data
        if (error := self.fetching.error) is not None and not self.ended:
            self.fetching.error = None
            raise error
        if self.eof or (tag is not None and self._peer_is_done):
            which = "no message" if tag is None else f"no message with tag {tag}"
            error = EOFError(f"the peer has said goodbye: {which} follows")
            vars(error)["of"] = id(self)
            raise error
        self.check()
        if self._looked:
            raise ClosedError(STOPPED)
        return None

    def is_own_end(self, error: BaseException | None) -> bool:
        """The error is the EOFError that next_message() has raised here."""
        return isinstance(error, EOFError) and vars(error).get("of") == id(self)

    def leave(self) -> None:
        """From any thread: calls that wait for a message raise ClosedError, now and later."""
        self.leaving = True
        self.courier.shut()
        with contextlib.suppress(VerbsError):  # it was closed meanwhile
            self.cm_id.write_cm_event(EventType.USER)

    def why_abort(self, error: BaseException | None) -> str | None:
        """What the peer is told when a `with` block ends by an error; None: it is closed as usual."""
        if error is None or self.is_own_end(error):
            return None
        if self.leaving and isinstance(error, ClosedError):
            return STOPPED
        return f"the program failed: {type(error).__name__}"

    def _fetch_from_behind(self, hand: MessageReceived | bytes, tag: int) -> MessageReceived | None:
        """Bring a message with this tag to hand, and put the one that was there back."""
        protocol = self.protocol
        if isinstance(protocol, Raw) or (found := protocol.find_message(tag)) is None:
            return None
        if isinstance(hand, bytes):
            hand = MessageReceived(hand, self.courier.tag)
        protocol.exchange(found, hand, self._take_in_hand)
        return found

    def _take_in_hand(self, message: MessageReceived) -> None:
        self.courier.hand = message

    @property
    def _peer_is_done(self) -> bool:
        """The peer's goodbye has come: no message follows those that are here."""
        return self.protocol.state in (State.HALF_CLOSED_REMOTE, State.CLOSED)

    def check_tag(self, tag: int) -> None:
        """TypeError or ValueError when no message can have this tag."""
        if not hasattr(tag, "__index__"):
            raise TypeError(f"recv(): a tag is a number, not {type(tag).__name__}")
        if not 0 <= tag < 1 << 64:
            raise ValueError(f"recv(): tag {tag}, it can be 0 to 2**64 - 1")
        protocol = self.protocol
        if tag and not (isinstance(protocol, Protocol) and protocol.knows(Capability.TAG)):
            raise ValueError("recv(): the peer knows no tags")

    def has_tagged(self, tag: int) -> bool:
        """next_message(tag) has something to say."""
        protocol = self.protocol
        if self.tag_in_hand == tag or self._peer_is_done or self.has_no_more:
            return True
        return isinstance(protocol, Protocol) and protocol.find_message(tag) is not None

    def tags_here(self) -> Iterator[int | None] | None:
        """The tags of what is here, as Protocol has it; no iterator: all calls for messages can go on."""
        protocol = self.protocol
        if self._peer_is_done or self.has_no_more:
            return None
        inside = protocol.tags_here() if isinstance(protocol, Protocol) else iter(())
        return inside if (tag := self.tag_in_hand) is None else chain((tag,), inside)

    @property
    def tag_in_hand(self) -> int | None:
        """The tag of the message in the courier's hand; None: there is no message."""
        hand = self.courier.hand
        return self.courier.tag if isinstance(hand, bytes) else None if hand is None else hand.tag

    @property
    def has_no_more(self) -> bool:
        """next_message() raises an error if there is no message."""
        return self.ended or self.leaving or self.fetching.error is not None

    @property
    def by_courier(self) -> bool:
        """The next message came by the courier, so no pump is needed after it."""
        return isinstance(self.courier.hand, bytes)

    def has_news(self) -> bool:
        """next_message() has something to say."""
        return self.courier.hand is not None or self.eof or self.has_no_more

    def share(self, buffer: AnyBuffer, access: AccessFlags | None) -> Region:
        """Register memory and tell the peer."""
        self._go_long()
        self.check()
        view = view_of(buffer, "share()")
        data = flat(view, "share()")
        if access is None:
            access = self.config.access
            if data.readonly:
                access &= AccessFlags.REMOTE_READ
        elif not isinstance(access, int):
            cure = "such as AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE"
            raise TypeError(f"share(): access is AccessFlags, {cure}, not {type(access).__name__}")
        writes = access & (AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC)
        mr = self.pd.reg_mr(data, access | (AccessFlags.LOCAL_WRITE if writes else AccessFlags(0)))
        before = set(self.protocol.shared)
        try:
            region = self.protocol.share(mr.addr, mr.length, mr.rkey, access, *describe(view))
            self._shared[region.id] = mr
            self._ours[region.id] = region
        except BaseException:
            self._unshare(mr, before)
            raise
        return region

    def _unshare(self, mr: MR, before: set[int]) -> None:
        """Undo share() after an exception; if the peer has been told of the region, withdraw it."""
        self.protocol.settle()
        for key in set(self.protocol.shared) - before:
            self._shared[key] = mr
            self.protocol.withdraw(key)
            return
        mr.close()

    def withdraw(self, region: Region) -> None:
        """Tell the peer that it may no longer use a region; pump() deregisters it when the peer agrees."""
        self._go_long()
        self.check()
        self._check_ours(region, "withdraw")
        if region.id in self.protocol.shared:
            self.protocol.withdraw(region.id)

    def _check_ours(self, region: Region, what: str) -> None:
        if not isinstance(region, Region):
            raise TypeError(f"{what}() takes the Region that share() returned, not {type(region).__name__}")
        if self._ours.get(region.id) is not region:
            raise ValueError(
                f"{what}(): no region {region.id} is shared here: give what share() has returned"
            )

    def shared_memory(self, region: Region) -> memoryview:
        """The buffer that share() was given."""
        if region in self.protocol.regions.values():
            raise ValueError("asarray(): the memory is the peer's: read_array() reads it")
        self._check_ours(region, "asarray")
        mr = self._shared.get(region.id)
        if mr is None or region.id not in self.protocol.shared:
            raise ValueError(f"asarray(): region {region.id} was withdrawn")
        return mr.buf

    def is_withdrawn(self, region: Region) -> bool:
        """The peer has confirmed the withdrawal, and the memory is deregistered."""
        mr = self._shared.get(region.id)
        return mr is None or mr.closed

    def revoke(self, region: Region) -> None:
        """Deregister a region at once, and tell the peer."""
        self._go_long()
        self._check_ours(region, "revoke")
        if (mr := self._shared.get(region.id)) is None:
            return
        try:
            mr.close()
        finally:
            if not self.ended and region.id in self.protocol.shared:
                with contextlib.suppress(ClosedError):  # the goodbye is queued
                    self.protocol.withdraw(region.id)
        self._shared.pop(region.id, None)

    def next_region(self) -> Region | None:
        """A region of the peer that the program has not got yet; None: there is none."""
        if (region := self._new_region()) is not None:
            self._given[region.id] = region
            return region
        self.check()
        return None

    def has_region(self) -> bool:
        """next_region() has something to say."""
        return self._new_region() is not None or self.ended

    def next_withdrawn(self) -> Region | None:
        """A region that next_region() returned and the peer has withdrawn, each once; None: there is none."""
        self._look_at_regions()
        for key, region in list(self._withdrawn.items()):
            del self._withdrawn[key]
            return region
        self.check()
        return None

    def has_withdrawn(self) -> bool:
        """next_withdrawn() has something to say."""
        self._look_at_regions()
        return bool(self._withdrawn) or self.ended

    def _look_at_regions(self) -> None:
        """Find the regions that the peer has withdrawn.  The end of the connection withdraws none."""
        regions = self.protocol.regions
        for key, region in list(self._given.items()):
            if regions.get(key) is not region:
                if not self.ended:
                    self._withdrawn[id(region)] = region
                self._given.pop(key, None)

    def _new_region(self) -> Region | None:
        self._look_at_regions()
        return next((one for key, one in self.protocol.regions.items() if key not in self._given), None)

    def start(self, op: Op) -> None:
        """Post a READ, WRITE or atomic, as soon as there is room."""
        self.courier.shut()
        self.check()
        if self._closing:
            raise ClosedError("the connection is being closed")
        self._queued_ops.append(op)

    def may_operate_short(self) -> bool:
        """Whether the courier may post a READ, WRITE or atomic."""
        return not self._posted_ops and (self.courier.open or self.take_short_way())

    def begin_batch(self) -> None:
        """There is memory for its copies, and it may go the short way."""
        self.check()
        self.operations.stage = self.memory.stage(self.pd)
        self.take_short_way()

    def go_on_with(self, batch: Chain) -> bool:
        """Post what there is room for, and look for the ends; whether all have ended."""
        if self.courier.open or self.take_short_way():
            return batch.step()
        for result in batch.rest():
            try:
                self.start(Op.of(result))
            except EndpointError as error:
                result.finish(error)
        return batch.is_over()

    def adopt(self, op: Op) -> None:
        """Take over an operation that the courier posted and that was not over soon."""
        short = self.operations
        op.number, op.posted, op.staged = short.pending, True, short.staged == short.pending
        if (left := self._posted_ops.get(op.number)) is not None:
            op.hold = left.hold
        self._posted_ops[op.number] = op
        short.pending = 0
        self.courier.shut()

    def statistics(self) -> Statistics:
        """Counts of what the connection has done so far.  For any thread: it changes nothing."""
        found = self.protocol.statistics()
        part = self.courier.part
        return found if part is None else replace(found, partial=len(part[1]))

    def close(self, now: float, timeout: float | None) -> None:
        """Say goodbye, after the queued messages and all operations; `finished` tells when that is done."""
        self._go_long()
        if self._closing is None and not self.ended:
            self._closing = (None if timeout is None else now + timeout,)
            self.protocol.discard()

    def abort(self, text: str) -> None:
        """End the connection at once, and tell the peer why."""
        self._go_long()
        self.protocol.abort(text)

    def check(self) -> None:
        """Raise the error that ended the connection, if it has ended."""
        if self.broken is None:
            self.protocol.settle()
        self._note_error()
        if self.error is not None:
            raise type(self.error)(str(self.error), self.error.reason) from self.error.__cause__
        if self.released or self.protocol.finished:
            raise ClosedError("the connection is closed")

    def _note_error(self) -> None:
        self.error = self.broken or self.protocol.error
        self.undelivered = self.protocol.undelivered

    def give_up(self, mistake: BaseException) -> None:
        """End the connection after a mistake in rnic; the peer is told by a disconnect."""
        self.broken = LostError(f"a mistake in rnic ended the connection, please report it: {mistake!r}")
        self.broken.__cause__ = mistake
        self.hang_up()

    def hang_up(self) -> None:
        """From any thread: move the queue pair to ERR; the next pump finds that out."""
        with contextlib.suppress(VerbsError):  # it has ended already
            self.cm_id.disconnect()

    @property
    def ended(self) -> bool:
        """The connection has ended: what was not sent stays unsent."""
        return self.released or self.broken is not None or self.protocol.state in _ENDED

    @property
    def finished(self) -> bool:
        """Both ends are done: only release() is left."""
        return self.released or self.broken is not None or self.protocol.finished

    # ------------------------------------------------------------ events of the protocol

    def _note_events(self) -> None:
        """Take events up to the next message; what stays behind it makes the peer wait."""
        while (event := self.protocol.peek_event()) is not None:
            if isinstance(event, MessageReceived):
                if self.courier.hand is None:
                    self.courier.hand = event
                elif self.courier.hand is not event:
                    break
            elif isinstance(event, PeerClosed | Closed):
                self.eof = True
            self.protocol.next_event()
        self._want()

    def _want(self) -> None:
        protocol, wanted = self.protocol, self.waiting and self.courier.hand is None
        if isinstance(protocol, Protocol):
            if wanted is not protocol.wanted or self.tags or protocol.tags:
                protocol.want(wanted, self.tags)
        elif wanted is not protocol.wanted:
            protocol.want(wanted)

    # ------------------------------------------------------------ the end

    def _close_when_idle(self, now: float) -> None:
        """Say goodbye when the last operation has ended; drop the messages that come meanwhile."""
        if self._closing is None:
            return
        (close_by,) = self._closing
        late = close_by is not None and now >= close_by
        if late or not (self._queued_ops or self._posted_ops):
            self.protocol.close(now, None if close_by is None else max(0.0, close_by - now))
        while self.protocol.next_event() is not None:
            pass
        self.courier.hand = None

    def _wind_up(self, now: float) -> None:
        """When the protocol has finished: disconnect, and end the operations that are left."""
        if not self.protocol.finished:
            return
        self._note_error()
        self._disconnect()
        self._last_completions()
        if is_flushed(self.qp) or not self._posted_ops:
            self._fail_ops()
            self.fetching.close()
            self._flushed_by = None
        else:  # a READ may still be carried out, into a buffer that would be the user's again
            self._flushed_by = now + _LOOK_AGAIN

    def _disconnect(self) -> None:
        if self.established and not self._said_disconnect:
            with contextlib.suppress(VerbsError):
                self.cm_id.disconnect(self.protocol.farewell)
            self._said_disconnect = True

    def _last_completions(self) -> None:
        """Poll once more: operations that ended before the connection did have outcomes of their own."""
        while self._posted_ops and self._poll(0.0):
            pass

    def _fail_ops(self) -> None:
        error = self.error or ClosedError("the connection is closed")
        for op in (*self._posted_ops.values(), *self._queued_ops):
            self._op_done(op, error)
        self._queued_ops.clear()

    def forget(self) -> None:
        """Have another thread release the connection.  For finalisers, which may take no lock."""
        agent = self.cm_id.agent
        if agent is not None and not self.given_back:
            agent.later(self.release)

    @property
    def given_back(self) -> bool:
        """release() has done all."""
        return self._end_steps is not None and not self._end_steps

    def release(self) -> None:
        """Give everything back, in whatever state the connection is; the second time does nothing.

        All of it is done, also when an exception comes meanwhile: that is raised at the end. What the device
        does not take back yet goes later (let_go()).
        """
        self.courier.shut()
        if self._end_steps is None:
            self._end_steps = deque(
                [
                    self._say_the_last,
                    self._destroy_qp,
                    self._fail_ops,
                    self._let_go_memory,
                    self.pool.let_go,
                    self.cm_id.destroy,
                    self.channel.close,
                    self.channel.drop_fd,  # before the descriptor that it shares
                    self.memory.let_go,
                    *(partial(let_go, one) for one in (self.cq, self.comp)),
                    self._let_go_domain,
                ]
            )
        self.released = True
        run_all(self._end_steps)

    def _say_the_last(self) -> None:
        self._disconnect()
        self._note_error()

    def _destroy_qp(self) -> None:
        """Destroy the queue pair; later, with its memory, if a stopped process uses it."""
        if is_flushed(self.qp) or not (self._said_disconnect and again.is_held_up):
            with contextlib.suppress(VerbsError):
                self.cm_id.destroy_qp()
        if not self.qp.closed:
            self.cm_id.qp = None
            later(self.qp)

    def _let_go_domain(self) -> None:
        if self.pool.awaited:
            self.pd.__exit__(VerbsError, None, None)  # now, or with the last array in its memory
        else:
            let_go(self.pd)

    def _let_go_memory(self) -> None:
        self._outgoing.clear()
        self.courier.let_part_go()
        self._announced.close_all()
        self.fetching.close()
        for mr in self._shared.values():
            let_go_memory(mr)
