# SPDX-License-Identifier: Apache-2.0
"""One end of a connection: a queue pair, its id, and the machine that moves messages.  Nothing here waits.

pump() moves everything that can be moved; what the user asked for is then seen by looking.  Between two pumps
a face waits for the descriptor, or until deadline().  A change of state is one call of the machine (_nic), so
no exception comes in the middle of one.
"""

from __future__ import annotations

import contextlib
import math
import os
from errno import ECONNRESET, ENOENT, ETIMEDOUT
from typing import TYPE_CHECKING

from rnic._nic.nic import MR, Result
from rnic.conn.ending import GRACE, Ending
from rnic.conn.memory import MAX_OPS, Memory
from rnic.conn.messages import STOPPED, Messages
from rnic.conn.ops import explain, local_side
from rnic.conn.pool import Pool
from rnic.conn.sharing import Sharing
from rnic.endpoint import (
    AbortedError,
    ClosedError,
    Config,
    EndpointError,
    Hello,
    LostError,
    NoHelloError,
    ProtocolError,
    State,
    Statistics,
)
from rnic.endpoint.text import printable
from rnic.enums import EventType as AsyncEventType
from rnic.enums import QPState, Transport, WCStatus, WROpcode
from rnic.errors import VerbsError
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType
from rnic.rdmacm import Event as CmEvent
from rnic.times import earliest
from rnic.verbs.qp import QP, QPAttr, QPCap, QPInitAttr

if TYPE_CHECKING:
    from rnic.endpoint import Region
    from rnic.endpoint.buffers import AnyBuffer

STATES = tuple(State)
"""In the order of enum msg_state."""
ENDED = (State.ABORTING, State.CLOSED, State.FAILED)
_CLOSED = STATES.index(State.CLOSED)  # and those behind it
_ERRORS = (EndpointError, ProtocolError, AbortedError, LostError)  # in the order of enum msg_kind
_BY_PEER = b"the peer aborted the connection: "
_DISCONNECTS = (EventType.DISCONNECTED, EventType.DEVICE_REMOVAL, EventType.UNREACHABLE)
_CONFUSED = (EventType.CONNECT_ERROR, EventType.REJECTED)
_LAST_ACK = 0.1  # seconds for the last acknowledgements, when the peer of a raw connection has disconnected
RESET = "the peer's process has died, or the TCP connection was reset on its way"
HUNG_UP = "this end has ended the connection: hang_up() was called"
SILENT = "the peer did not answer: its process is stopped or gone, or packets do not arrive"


class Core:
    """A connection as a face drives it: it is opened, pumped and closed."""

    def __init__(self, cm_id: CmId, config: Config) -> None:
        self.cm_id, self.config = cm_id, config
        self.peer: Hello | None = None
        self.raw = False
        """The peer sent no hello: it speaks no endpoint protocol."""
        self.leaving = False
        """The server is being stopped: who would wait for a message gets ClosedError."""
        self.broken: EndpointError | None = None
        """A mistake in rnic that ended the connection."""
        self.error: EndpointError | None = None
        """What has ended the connection; None: nothing, or both said goodbye."""
        self.told = False
        """The program has been told of the error: a call has raised it, or on_end() has passed it on."""
        self.stopped: list[Result] = []
        """Operations that the end of the connection has stopped: whoever waits for one is told by it."""
        self.released = False
        """release() has begun.  When it is done, `given_back` is true."""
        self.gone = False
        """The machine is not to be asked any more, as the connection is released or broken."""
        self.busy = False
        """The last pump stopped to let other tasks work: pump again at once."""
        self._rung = False  # and the descriptor says so
        self.looked = False  # a pump has looked for messages since the server is being stopped
        context = cm_id.verbs
        assert context is not None
        self.has_streams = context.device.transport is Transport.IWARP
        with contextlib.ExitStack() as undo:
            self.pd = undo.enter_context(context.alloc_pd())
            self.memory = Memory(self.pd, config)
            self.pool = Pool(self.pd)
            undo.callback(self.memory.mr.close)
            self.comp = undo.enter_context(context.create_comp_channel())
            sends = self.memory.bounces + MAX_OPS + 2
            self.cq = undo.enter_context(context.create_cq(self.memory.receives + sends, self.comp))
            undo.callback(cm_id.destroy_qp)
            self.qp = self._create_qp(sends)
            # One descriptor for both: completions, and what the connection manager says.
            self.channel = undo.enter_context(EventChannel(beside=self.comp))
            cm_id.migrate_id(self.channel)
            self.machine = self.memory.machine(self.qp, self.cq, self.cq, pool=self.pool)
            undo.pop_all()
        self.sharing, self.messages, self.end = Sharing(self), Messages(self), Ending(self)
        self._established = False  # the connection manager knows that the peer is ready
        self._disconnected: CmEvent | None = None
        self._left_by: float | None = None  # the last acknowledgements after it come until then
        self._reason_by: float | None = None  # until when the connection manager may say why it has ended
        self.due: float | None = None
        """When a pump has something to do that the machine does not know of; None: never."""

    def _create_qp(self, sends: int) -> QP:
        cap = QPCap(sends, self.memory.receives, 1, 1, 0)
        qp = self.cm_id.create_qp(self.pd, QPInitAttr(self.cq, self.cq, cap=cap))
        access = self.config.access
        qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=access))
        if self.has_streams:
            qp.confirm_stream()
        return qp

    # ------------------------------------------------------------ opening

    def hello(self, data: bytes) -> bytes:
        """Post the receives; return the hello with the program's data, empty for a raw peer."""
        self.machine.post_receives()
        return b"" if self.raw else self.config.hello(data).emit()

    def greet(self, private_data: bytes) -> None:
        """Read the hello in a REQ or REP.  ProtocolError when there is none and Config.raw is off."""
        try:
            peer = Hello.parse(private_data)
        except ProtocolError as error:
            if self.config.raw and isinstance(error, NoHelloError):
                self.raw = True
                self.machine.greet_raw()
                return
            self.machine.lost(str(error))
            raise
        self.peer = peer
        if self.has_streams:
            self.qp.confirm_stream(both=True)
        self.machine.greet(peer)

    def establish(self) -> None:
        """The connection manager says that the peer is ready."""
        self._established = True
        self.machine.establish()

    # ------------------------------------------------------------ how it stands

    @property
    def state(self) -> State:
        """The state of the connection."""
        return STATES[self.machine.state]

    @property
    def peer_data(self) -> bytes:
        """The data that the peer's program put into its hello."""
        return b"" if self.peer is None else self.peer.data

    @property
    def ended(self) -> bool:
        """The connection has ended: what was not sent stays unsent."""
        return self.released or self.broken is not None or self.state in ENDED

    @property
    def finished(self) -> bool:
        """Both ends are done: only release() is left."""
        over = self.state in (State.CLOSED, State.FAILED)
        return self.released or self.broken is not None or (over and not self.end.lingers)

    @property
    def fault(self) -> EndpointError | None:
        """What ends or has ended the connection; None if nothing does, or both ends said goodbye."""
        kind, reason, text = self.machine.error
        if self.broken is not None or not kind:
            return self.broken
        if text.startswith(_BY_PEER):
            words = _BY_PEER.decode() + printable(text[len(_BY_PEER) :])
        else:
            words = text.decode("utf-8", "replace")
        return _ERRORS[kind](words, reason)

    @property
    def eof(self) -> bool:
        """The peer has said goodbye, and the program has taken all its messages."""
        return self.machine.spent and self.machine.hand is None

    @property
    def given_back(self) -> bool:
        """release() has done all."""
        return self.end.given_back

    @property
    def has_left(self) -> bool:
        """The peer has this end's goodbye, and all that was sent before it."""
        return self.state in (State.HALF_CLOSED_LOCAL, State.CLOSED)

    @property
    def is_known(self) -> bool:
        """The program knows that the connection has ended: close() has nothing to tell."""
        return self.released or self.told or any(one.told for one in self.stopped)

    def check(self) -> None:
        """Raise the error that ended the connection, if it has ended."""
        self.error = self.error or self.fault
        if self.error is not None:
            self.told = True
            raise type(self.error)(str(self.error), self.error.reason) from self.error.__cause__
        if self.released or self.state is State.CLOSED:
            raise ClosedError("the connection is closed")

    def statistics(self) -> Statistics:
        """Counts of what the connection has done so far.  For any thread: it changes nothing."""
        found = self.machine.count()
        return Statistics(**{**found, "state": STATES[found["state"]]})  # type: ignore[arg-type]

    # ------------------------------------------------------------ pumping

    def fileno(self) -> int:
        """A descriptor that becomes readable when a pump has something to do."""
        return self.comp.fileno()

    def ring(self) -> None:
        """Make the descriptor readable until the next pump, if that has something to do already."""
        if self.busy and not self._rung and not self.released:
            self.comp.wake()
            self._rung = True

    def pump(self, now: float) -> None:
        """Do all that can be done now.  Afterwards the descriptor tells of news, unless `busy`."""
        if self.gone:
            return
        if self._rung:
            self._rung = False
            self.comp.unwake()
        self._cm_events()
        more = self.machine.step()
        while (more < 0 and self._failed(now)) or (not more and self._lost_peer(now)):
            more = self.machine.step()
        self.busy = more > 0
        if not self.busy:
            self.looked = self.leaving
            self._after(now)

    def _after(self, now: float) -> None:
        """Do what follows from what has come."""
        if self.machine.established and not self._established:  # data overtook the end of the handshake
            with contextlib.suppress(VerbsError):
                self.cm_id.notify(AsyncEventType.COMM_EST)
            self._established = True
        self.finish_failed(now)
        self.end.wind_up(now)
        self.sharing.look(now)
        self.due = self._find_due()

    def deadline(self) -> float | None:
        """The time at which pump() must run at the latest; None: there is none."""
        return earliest(self.machine.deadline(), self.due)

    def _find_due(self) -> float | None:
        """deadline(), but for the machine's."""
        times = [self.sharing.again_at, self.end.flushed_by]
        if not self.finished:
            times += (self._left_by, self.end.linger_by)
        if not self.ended:
            times.append(self._reason_by)
        return earliest(*times)

    # ------------------------------------------------------------ what the connection manager says

    def _cm_events(self) -> None:
        while (event := self.channel.peek()) is not None:
            self._cm_event(event)
            self.channel.drop(event)

    def _cm_event(self, event: CmEvent) -> None:
        if event.event is EventType.ESTABLISHED:
            self.establish()
        elif event.event in _DISCONNECTS:
            self._disconnected = self._disconnected or event
        elif event.event in _CONFUSED:
            self.machine.lost(f"the handshake failed: {event.explain()}")

    def _lost_peer(self, now: float) -> bool:
        """Handle a disconnect, after all completions that came before it; whether there was one."""
        event = self._disconnected
        if event is None or self.state in (State.CLOSED, State.FAILED) or self._may_have_arrived(event, now):
            return False
        data = event.param.private_data if isinstance(event.param, ConnParam) else b""
        if self.end.hung_up and not data:
            self.machine.lost(HUNG_UP)
        elif event.status == -ECONNRESET:
            self.machine.lost(RESET if self.has_streams else "the peer's process has died")
        elif event.event is not EventType.DISCONNECTED:
            self.machine.lost(f"{event.event.name}: the peer does not answer, or the device is gone")
        elif event.status == -ETIMEDOUT:
            self.machine.lost(SILENT)
        elif event.status:  # of iWARP alone
            self.machine.lost(f"the connection was lost: {os.strerror(-event.status)}")
        else:
            self.machine.disconnected(data)
        return True

    def _may_have_arrived(self, event: CmEvent, now: float) -> bool:
        """Whether to wait for the end of a raw connection's last messages, which no goodbye confirms: their
        acknowledgement and the disconnect come by two ways.
        """
        if not self.raw or event.event is not EventType.DISCONNECTED or event.status:
            return False
        if self._left_by is None:
            self._left_by = now + _LAST_ACK
        return self.machine.sending and now < self._left_by

    # ------------------------------------------------------------ work that has failed

    def _says_why(self, status: int) -> bool:
        """Of a queue pair that failed, one status says why; of a TCP connection that is lost, none does."""
        return status != WCStatus.WR_FLUSH_ERR and not (self.has_streams and status == WCStatus.RETRY_EXC_ERR)

    def _failed(self, now: float) -> bool:
        """End the connection: the first status that says why does so, or else the CM; False: later."""
        failed = self.machine.failed()
        if failed is None or self.state in (State.CLOSED, State.FAILED):
            return False
        if self._says_why(failed.status):
            self.machine.lost(explain(failed))
            return True
        self._cm_events()
        unsaid = self._disconnected is None and not self.end.hung_up
        if self.has_streams and unsaid:  # the CM is about to say why
            if self._reason_by is None:
                self._reason_by = now + GRACE
            if now < self._reason_by:
                return False
        if not self._lost_peer(math.inf):
            self.machine.lost(HUNG_UP if self.end.hung_up else explain(failed))
        return True

    def finish_failed(self, now: float) -> None:
        """End the operations that have failed; of what, the connection manager may be about to say."""
        waits = self._reason_by is not None and now < self._reason_by and not self.ended
        for one in self.machine.failures():
            if not waits or one.status < 0 or self._says_why(one.status):
                error = self.why(one)
                one.finish(error)
                if isinstance(error, EndpointError):
                    self.stopped.append(one)

    def why(self, one: Result) -> Exception:
        """What an operation has failed of: its own status, or the end of the connection."""
        if one.status == -ENOENT:
            return ValueError(
                f"region {one.remote.id} is not shared by the peer, or not any more: next_region() returns "
                "the peer's regions, and share() one of your own memory, for the peer"
            )
        if one.status < 0:
            return VerbsError(-one.status, "the operation could not be posted", "post_send")
        if self._says_why(one.status):
            return LostError(explain(self.machine.completion_of(one)))
        return self.fault or ClosedError("the connection is closed")

    # ------------------------------------------------------------ operations

    def rdma(
        self, opcode: WROpcode, local: AnyBuffer | MR, remote: Region, offset: int, fence: bool = False
    ) -> Result:
        """Queue a READ or WRITE between a buffer, or an MR, and the peer's region."""
        one = None if self.gone else self.machine.rdma(opcode, local, remote, offset, fence)
        if one is None:
            self._may_operate()
            one = self.machine.rdma(opcode, local_side(local, self.pd, opcode), remote, offset, fence)
        assert one is not None
        return one

    def atomic(
        self, opcode: WROpcode, remote: Region, offset: int, add: int, swap: int = 0, fence: bool = False
    ) -> Result:
        """Queue an atomic operation on 8 bytes of the peer's region."""
        one = None if self.gone else self.machine.atomic(opcode, remote, offset, add, swap, fence)
        if one is None:
            self._may_operate()
        assert one is not None
        return one

    def _may_operate(self) -> None:
        if self.gone or self.machine.state >= _CLOSED or self.machine.closing:
            self.check()
            raise ClosedError("the connection is being closed")

    # ------------------------------------------------------------ the end

    def close(self, timeout: float | None) -> None:
        """Say goodbye, after the queued messages and all operations; `finished` tells when that is done."""
        if not self.ended:
            self.machine.close(timeout)
            self.machine.hand = None

    def abort(self, text: str) -> None:
        """End the connection at once, and tell the peer why."""
        self.machine.abort(text)

    def give_up(self, mistake: BaseException) -> None:
        """End the connection after a mistake in rnic; the peer is told by a disconnect."""
        self.broken = LostError(f"a mistake in rnic ended the connection, please report it: {mistake!r}")
        self.broken.__cause__ = mistake
        self.gone = True
        self.end.hang_up()

    def leave(self) -> None:
        """From any thread: calls that wait for a message raise ClosedError, now and later."""
        self.leaving = True
        with contextlib.suppress(VerbsError):  # it was closed meanwhile
            self.cm_id.write_cm_event(EventType.USER)

    def why_abort(self, error: BaseException | None) -> str | None:
        """What the peer is told when a `with` block ends by an error; None: it is closed as usual."""
        if error is None or self.messages.is_own_end(error):
            return None
        if self.leaving and isinstance(error, ClosedError):
            return STOPPED
        return f"the program failed: {type(error).__name__}"

    def release(self) -> None:
        """Give everything back, in whatever state the connection is; the second time does nothing."""
        self.end.release()
