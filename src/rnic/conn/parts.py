# SPDX-License-Identifier: Apache-2.0
"""What a connection is made of, and how it stands: all that its other files look at and change."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Set
from weakref import WeakValueDictionary

from rnic._nic.nic import MR, WC, Courier, Operations, Result
from rnic.conn.memory import MAX_OPS, Memory
from rnic.conn.ops import Op
from rnic.conn.pool import Pool
from rnic.conn.raw import Raw
from rnic.conn.rendezvous import Announced, Fetching
from rnic.endpoint import ClosedError, Config, EndpointError, Outgoing, Protocol, Region, Role, State
from rnic.enums import QPState, Transport
from rnic.rdmacm import CmId, EventChannel
from rnic.rdmacm import Event as CmEvent
from rnic.verbs.qp import QP, QPAttr, QPCap, QPInitAttr

LOOK_AGAIN = 0.25  # seconds until the next look whether what a stopped process holds has been given back
ENDED = frozenset({State.ABORTING, State.CLOSED, State.FAILED})
LEFT = frozenset({State.HALF_CLOSED_LOCAL, State.CLOSED})


class Parts:
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
        self._rung = False  # and the descriptor says so
        context = cm_id.verbs
        assert context is not None
        self._has_streams = context.device.transport is Transport.IWARP
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
        self._left_by: float | None = None  # the last acknowledgements after it come until then
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
        self._linger_by: float | None = (
            None  # iWARP: when the peer's end of the stream is not waited for longer
        )
        self._lingers = self._has_streams  # until a pump has looked
        self._reason_by: float | None = None  # and that the connection manager says why it has ended
        self._end_steps: deque[Callable[[], object]] | None = None  # what release() has to do yet

    def _create_qp(self, sends: int) -> QP:
        cap = QPCap(sends, self.memory.receives, 1, 1, 0)
        qp = self.cm_id.create_qp(self.pd, QPInitAttr(self.cq, self.cq, cap=cap))
        access = self.config.access
        qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=access))
        if self._has_streams:
            qp.confirm_stream()
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

    # ------------------------------------------------------------ how it stands

    @property
    def peer_data(self) -> bytes:
        """The data that the peer's program put into its hello."""
        protocol = self.protocol
        return protocol.peer.data if isinstance(protocol, Protocol) and protocol.peer is not None else b""

    @property
    def raw(self) -> bool:
        """The peer sent no hello: it speaks no endpoint protocol."""
        return isinstance(self.protocol, Raw)

    @property
    def ended(self) -> bool:
        """The connection has ended: what was not sent stays unsent."""
        return self.released or self.broken is not None or self.protocol.state in ENDED

    @property
    def finished(self) -> bool:
        """Both ends are done: only release() is left."""
        return self.released or self.broken is not None or (self.protocol.finished and not self._lingers)

    @property
    def ending(self) -> EndpointError | None:
        """What ends or has ended the connection; None if nothing does, or both ends said goodbye."""
        return self.broken or self.protocol.error

    @property
    def has_left(self) -> bool:
        """The peer has this end's goodbye, and all that was sent before it."""
        return self.protocol.state in LEFT

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
        self.error = self.ending
        self.undelivered = self.protocol.undelivered

    # ------------------------------------------------------------ the short way, by the courier

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
