# SPDX-License-Identifier: Apache-2.0
"""One end of a connection: posts, polls and feeds the protocol.  Nothing here waits: the faces do.

pump() moves everything that can be moved; what the user asked for is then seen by looking.  Between two pumps
a face waits for the two descriptors, or until deadline().
"""

from __future__ import annotations

import contextlib
from collections import deque
from errno import ECONNRESET
from typing import TYPE_CHECKING

from rnic._nic.nic import MR, SGE, WC, SendWR
from rnic.conn.memory import MAX_OPS, Memory
from rnic.conn.ops import Op, explain
from rnic.conn.raw import Raw
from rnic.endpoint import (
    Closed,
    ClosedError,
    Config,
    EndpointError,
    Event,
    Failed,
    LostError,
    MessageReceived,
    Outgoing,
    PeerClosed,
    Protocol,
    Region,
    Role,
    State,
)
from rnic.enums import AccessFlags, QPState, SendFlags, WCOpcode, WCStatus, WROpcode
from rnic.enums import EventType as AsyncEventType
from rnic.errors import VerbsError
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType
from rnic.rdmacm import Event as CmEvent
from rnic.verbs.qp import QP, QPAttr, QPCap, QPInitAttr

if TYPE_CHECKING:
    from typing_extensions import Buffer

_RECEIVE, _SEND, _OP = range(3)  # the lower bits of a wr_id
_KINDS = 4
_POLL = 64
_ROUNDS = 16  # how often one pump looks again, so that a busy peer does not keep a loop from other work
_ENDED = frozenset({State.ABORTING, State.CLOSED, State.FAILED})
_DISCONNECTS = (EventType.DISCONNECTED, EventType.DEVICE_REMOVAL, EventType.UNREACHABLE)
_CONFUSED = (EventType.CONNECT_ERROR, EventType.REJECTED)
GRACE = 1.0
"""Seconds for the ABORT of a close() that came to its limit."""


class Core:
    """A queue pair, a completion queue, an id, and the protocol that rules them."""

    def __init__(self, cm_id: CmId, channel: EventChannel, config: Config, role: Role) -> None:
        self.cm_id, self.channel, self.config = cm_id, channel, config
        self.protocol: Protocol | Raw = Protocol(config, role)
        self.established = False
        """The peer is known to be ready."""
        self.error: EndpointError | None = None
        """What ended the connection, unless goodbyes did."""
        self.undelivered = 0
        """With `error`: messages of which it is not known that the peer has them."""
        self.eof = False
        """The peer has said goodbye, and all that it sent was taken."""
        self.released = False
        self.busy = False
        """There is more to do at once: the last pump stopped to let others work."""
        context = cm_id.verbs
        assert context is not None
        with contextlib.ExitStack() as undo:
            self.pd = undo.enter_context(context.alloc_pd())
            self.memory = Memory(self.pd, config)
            undo.callback(self.memory.mr.close)
            self.comp = undo.enter_context(context.create_comp_channel())
            sends = self.memory.bounces + MAX_OPS + 2
            self.cq = undo.enter_context(context.create_cq(config.receives + sends, self.comp))
            self.qp = self._create_qp(sends)
            undo.pop_all()
        self._armed = False
        self._disconnected: CmEvent | None = None
        self._said_disconnect = False
        self._closing: tuple[float | None] | None = None  # close() waits for the operations
        self._messages: deque[bytes] = deque()
        self._waiting: dict[int, bool] = {}  # handles of messages that were not handed out whole
        self._bounced: deque[tuple[int, int]] = deque()  # numbers of SENDs, and their bounce buffers
        self._queued_ops: deque[Op] = deque()
        self._posted_ops: dict[int, Op] = {}
        self._op_numbers = 0
        self._given: dict[int, Region] = {}
        self._shared: dict[int, MR] = {}

    def _create_qp(self, sends: int) -> QP:
        cap = QPCap(sends, self.config.receives, 1, 1, 0)
        qp = self.cm_id.create_qp(self.pd, QPInitAttr(self.cq, self.cq, cap=cap))
        access = self.config.access
        qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=access))
        return qp

    # ------------------------------------------------------------ opening

    def hello(self) -> bytes:
        """Post the receives; what says so to the peer, and nothing to a raw one."""
        self._post_receives()
        return b"" if isinstance(self.protocol, Raw) else self.protocol.hello()

    def greet(self, private_data: bytes, now: float) -> None:
        """The peer's REQ or REP has come.  Raises ProtocolError when the peer is no endpoint, and must be."""
        if isinstance(self.protocol, Raw):
            raise RuntimeError("a peer is greeted once")
        posted = self.config.receives - self.protocol.receives_to_post()
        if self.protocol.accept_hello(private_data, now) is None:
            self.protocol = Raw(self.config, posted)

    @property
    def raw(self) -> bool:
        """The peer is no endpoint."""
        return isinstance(self.protocol, Raw)

    # ------------------------------------------------------------ pumping

    def filenos(self) -> tuple[int, int]:
        """What becomes readable when there is something to pump."""
        return self.comp.fileno(), self.channel.fileno()

    def pump(self, now: float) -> None:
        """Everything that can be done now.  Afterwards the descriptors tell of news, unless `busy`."""
        if self.released:
            return
        self._cm_events()
        self._quiet()
        for _ in range(_ROUNDS):
            worked = self._poll(now)
            self._lost_peer()
            self._close_when_idle(now)
            self._timer(now)
            self._post()
            if not worked and self._armed:
                break
            if not worked:
                self.cq.req_notify()
                self._armed = True
        else:
            self.busy = True
            return
        self.busy = False
        self._wind_up()

    def deadline(self) -> float | None:
        """When to pump at the latest."""
        due = self.protocol.deadline()
        close_by = self._closing[0] if self._closing is not None and not self.ended else None
        return min((at for at in (due, close_by) if at is not None), default=None)

    def _timer(self, now: float) -> None:
        due = self.protocol.deadline()
        if due is not None and now >= due:
            self.protocol.timer(now)

    def _quiet(self) -> None:
        if self._armed:
            with contextlib.suppress(TimeoutError):
                self.comp.get_cq_event(0).ack_events()
                self._armed = False

    def _cm_events(self) -> None:
        while True:
            try:
                event = self.channel.get_cm_event(0)
            except TimeoutError:
                return
            with event:
                self._cm_event(event)

    def _cm_event(self, event: CmEvent) -> None:
        if event.event is EventType.ESTABLISHED:
            self.established = True
        elif event.event in _DISCONNECTS:
            self._disconnected = self._disconnected or event
        elif event.event in _CONFUSED:
            self.protocol.lost(f"the handshake failed: {event.event.name}")

    def _lost_peer(self) -> bool:
        """What the connection manager says, if anything, comes after all that has completed."""
        event, self._disconnected = self._disconnected, None
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
        found = self.cq.poll(_POLL)
        failed = [wc for wc in found if not wc.ok]
        for wc in found:
            if wc.ok:
                self._completed(wc, now)
        if failed:
            self._failed(failed)
        return bool(found)

    def _completed(self, wc: WC, now: float) -> None:
        kind, number = wc.wr_id % _KINDS, wc.wr_id // _KINDS
        if kind == _RECEIVE:
            # A WRITE with immediate takes a receive and leaves nothing in it.
            self._received(number, wc.byte_len if wc.opcode is WCOpcode.RECV else 0, now)
        elif kind == _SEND:
            self.protocol.sent(number, now)
            self._free_bounces(number)
        else:
            self.protocol.heard(now)
            self._op_done(self._posted_ops.pop(number), None)

    def _received(self, slot: int, length: int, now: float) -> None:
        if not self.established:  # data overtook the last message of the handshake
            self.established = True
            with contextlib.suppress(VerbsError):
                self.cm_id.notify(AsyncEventType.COMM_EST)
        with self.memory.received(slot, length) as data:
            self.protocol.receive(data, now)
        self.memory.free_receives.append(slot)

    def _free_bounces(self, number: int) -> None:
        while self._bounced and self._bounced[0][0] <= number:
            self.memory.free_sends.append(self._bounced.popleft()[1])

    def _failed(self, failed: list[WC]) -> None:
        """The first that was not merely flushed tells what went wrong, else the connection manager."""
        first = next((one for one in failed if one.status is not WCStatus.WR_FLUSH_ERR), None)
        if first is None:
            self._cm_events()
        if first is not None or not self._lost_peer():
            self.protocol.lost(explain(first or failed[0], None))
        for wc in failed:
            if wc.wr_id % _KINDS == _OP:
                self._op_failed(self._posted_ops.pop(wc.wr_id // _KINDS, None), wc)

    def _op_failed(self, op: Op | None, wc: WC) -> None:
        self._note_all()
        flushed = wc.status is WCStatus.WR_FLUSH_ERR
        if op is not None:
            self._op_done(op, LostError(explain(wc, self.error if flushed else None)))

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
            slots = [self.memory.free_receives.popleft() for _ in range(number)]
            self.qp.post_recv([self.memory.receive_wr(slot * _KINDS + _RECEIVE, slot) for slot in slots])
            self.protocol.receives_posted(number)

    def _post_sends(self) -> None:
        """A row of SENDs, of which the last tells when all are done."""
        # What must not come after the RELEASE of a region goes before it.
        self._post_ops()
        wrs: list[SendWR] = []
        while self.memory.free_sends and (out := self.protocol.next_send()) is not None:
            wrs.append(self._send_wr(out))
            if out.ends is not None:
                self._waiting.pop(out.ends, None)
        if wrs:
            wrs[-1].send_flags = wrs[-1].send_flags | SendFlags.SIGNALED
            self.qp.post_send(wrs)

    def _send_wr(self, out: Outgoing) -> SendWR:
        wr_id = out.number * _KINDS + _SEND
        if out.probe:
            return SendWR(wr_id, WROpcode.RDMA_WRITE)
        slot = self.memory.free_sends.popleft()
        self._bounced.append((out.number, slot))
        flags = SendFlags.FENCE if out.fence else SendFlags(0)
        return SendWR(wr_id, WROpcode.SEND, flags, [self.memory.fill(slot, out.header, out.payload)])

    def _post_ops(self) -> None:
        while self._queued_ops and len(self._posted_ops) < MAX_OPS:
            op = self._queued_ops.popleft()
            if not self.raw and self.protocol.regions.get(op.remote.id) != op.remote:
                op.finish(ValueError(f"region {op.remote.id} is not shared any more"))
                continue
            try:
                self._post_op(op)
            except VerbsError as error:
                self._op_done(op, error)

    def _post_op(self, op: Op) -> None:
        sge = self._local_sge(op)
        self._op_numbers += 1
        self.qp.post_send(op.wr(self._op_numbers * _KINDS + _OP, sge))
        self._posted_ops[self._op_numbers] = op

    def _local_sge(self, op: Op) -> SGE:
        if op.local is None:
            op.slot = self.memory.free_results.popleft()
            return self.memory.result_sge(op.slot)
        if isinstance(op.local, MR):
            return SGE(op.local)
        access = AccessFlags.LOCAL_WRITE if op.opcode is WROpcode.RDMA_READ else AccessFlags(0)
        op.own_mr = self.pd.reg_mr(op.local, access)
        return SGE(op.own_mr)

    def _op_done(self, op: Op, error: Exception | None) -> None:
        if op.slot >= 0:
            op.value = self.memory.result(op.slot)
            self.memory.free_results.append(op.slot)
        op.finish(error)

    # ------------------------------------------------------------ the user

    def send(self, message: Buffer) -> int:
        """Queue a message; is_sent() tells when its buffer is free."""
        self.check()
        handle = self.protocol.send(message)
        self._waiting[handle] = True
        return handle

    def is_sent(self, handle: int) -> bool:
        """All of it was copied out; or the connection has ended, which check() tells."""
        return handle not in self._waiting or self.ended

    def raise_unsent(self, handle: int) -> None:
        """Raise what has ended the connection before a message was sent."""
        if self._waiting.pop(handle, None) is not None:
            self.check()

    def give_up(self, handle: int) -> None:
        """Nobody waits for a message any more: it is taken back, or goes on with a copy of what is left."""
        if self.protocol.cancel(handle):
            self._waiting.pop(handle, None)
        else:
            self.protocol.detach(handle)

    def take(self) -> bytes | None:
        """The next message; None: there is none yet.  EOFError after the peer's goodbye; what `error` is."""
        self._note_next()
        if self._messages:
            return self._messages.popleft()
        if self.eof:
            raise EOFError("the peer has said goodbye: no message follows")
        self.check()
        return None

    def has_news(self) -> bool:
        """take() has something to say."""
        self._note_next()
        return bool(self._messages) or self.eof or self.ended

    def share(self, buffer: Buffer, access: AccessFlags | None) -> Region:
        """Register memory and tell the peer."""
        self.check()
        if access is None:
            access = self.config.access
            if memoryview(buffer).readonly:
                access &= AccessFlags.REMOTE_READ
        writes = access & (AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC)
        mr = self.pd.reg_mr(buffer, access | (AccessFlags.LOCAL_WRITE if writes else AccessFlags(0)))
        try:
            region = self.protocol.share(mr.addr, mr.length, mr.rkey, access)
        except BaseException:
            mr.close()
            raise
        self._shared[region.id] = mr
        return region

    def withdraw(self, region: Region) -> None:
        """Tell the peer that it may no longer use a region."""
        self.check()
        self.protocol.withdraw(region.id)

    def is_withdrawn(self, region: Region) -> bool:
        """The peer has confirmed it, and the memory is deregistered."""
        if region.id in self.protocol.unreleased and not self.ended:
            return False
        if (mr := self._shared.pop(region.id, None)) is not None:
            mr.close()
        return True

    def next_region(self) -> Region | None:
        """A region of the peer that was not told of yet."""
        if (region := self._new_region()) is not None:
            self._given[region.id] = region
            return region
        self.check()
        return None

    def has_region(self) -> bool:
        """next_region() has something to say."""
        return self._new_region() is not None or self.ended

    def _new_region(self) -> Region | None:
        regions = self.protocol.regions
        self._given = {key: one for key, one in self._given.items() if regions.get(key) is one}
        return next((one for key, one in regions.items() if key not in self._given), None)

    def start(self, op: Op) -> None:
        """Post a READ, WRITE or atomic, as soon as there is room."""
        self.check()
        if self._closing:
            raise ClosedError("the connection is being closed")
        self._queued_ops.append(op)

    def close(self, now: float, timeout: float | None) -> None:
        """Say goodbye after all that is queued and all operations; is_closed() tells when that is done."""
        if self._closing is None and not self.ended:
            self._closing = (None if timeout is None else now + timeout,)

    def abort(self, text: str) -> None:
        """End at once, and tell the peer why."""
        self.protocol.abort(text)

    def check(self) -> None:
        """Raise what ended the connection."""
        self._note_ended()
        if self.error is not None:
            raise type(self.error)(str(self.error), self.error.reason)
        if self.released or self.protocol.finished:
            raise ClosedError("the connection is closed")

    def hang_up(self) -> None:
        """Any thread: the queue pair goes to the error state, which the next pump finds out."""
        with contextlib.suppress(VerbsError):  # it has ended already
            self.cm_id.disconnect()

    @property
    def ended(self) -> bool:
        """Nothing that was not sent will be."""
        return self.released or self.protocol.state in _ENDED

    @property
    def finished(self) -> bool:
        """Nothing is left to do but to release it."""
        return self.released or self.protocol.finished

    # ------------------------------------------------------------ events of the protocol

    def _note_next(self) -> None:
        """Take events up to a message: what is left lets the peer wait."""
        while not self._messages and (event := self.protocol.next_event()) is not None:
            self._note(event)
        self._note_ended()

    def _note_ended(self) -> None:
        if self.ended:
            self._note_all()

    def _note_all(self) -> None:
        for event in self.protocol.events():
            self._note(event)

    def _note(self, event: Event) -> None:
        if isinstance(event, MessageReceived):
            self._messages.append(event.data)
        elif isinstance(event, PeerClosed | Closed):
            self.eof = True
        elif isinstance(event, Failed):
            self.error, self.undelivered = event.error, event.undelivered

    # ------------------------------------------------------------ the end

    def _close_when_idle(self, now: float) -> None:
        """The goodbye comes after the last operation; what the peer says meanwhile is not kept."""
        if self._closing is None:
            return
        (close_by,) = self._closing
        late = close_by is not None and now >= close_by
        if late or not (self._queued_ops or self._posted_ops):
            self.protocol.close(now, None if close_by is None else max(0.0, close_by - now))
        self._note_all()
        self._messages.clear()

    def _wind_up(self) -> None:
        """The protocol has finished: the peer is told by a DREQ, and nobody waits any more."""
        if not self.protocol.finished:
            return
        self._note_all()
        self._disconnect()
        self._fail_ops()

    def _disconnect(self) -> None:
        if self.established and not self._said_disconnect:
            self._said_disconnect = True
            with contextlib.suppress(VerbsError):
                self.cm_id.disconnect(self.protocol.farewell)

    def _fail_ops(self) -> None:
        error = self.error or ClosedError("the connection is closed")
        for op in (*self._posted_ops.values(), *self._queued_ops):
            op.finish(error)
        self._posted_ops.clear()
        self._queued_ops.clear()

    def release(self) -> None:
        """Give everything back, however it stands; the second time does nothing."""
        if self.released:
            return
        self._disconnect()
        self._note_all()
        self.released = True
        self.cm_id.destroy_qp()
        self._fail_ops()
        for mr in self._shared.values():
            mr.close()
        for handle in (self.cq, self.comp, self.memory.mr, self.pd):
            handle.close()
        self.cm_id.destroy()
        self.channel.close()
