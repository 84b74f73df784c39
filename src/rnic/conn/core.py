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
import math
import os
from errno import ECONNRESET, ETIMEDOUT

from rnic._nic.nic import WC, SendWR
from rnic.conn.device import at_once
from rnic.conn.ending import Ending
from rnic.conn.messaging import Messaging
from rnic.conn.operating import KINDS, OP, RECEIVE, SEND
from rnic.conn.ops import explain
from rnic.conn.parts import LOOK_AGAIN
from rnic.conn.raw import Raw
from rnic.conn.sharing import Sharing
from rnic.endpoint import Capability, LostError, Outgoing, Protocol, State, Statistics
from rnic.enums import EventType as AsyncEventType
from rnic.enums import QPState, SendFlags, WCOpcode, WCStatus, WROpcode
from rnic.errors import VerbsError
from rnic.rdmacm import ConnParam, EventType
from rnic.rdmacm import Event as CmEvent
from rnic.rdmacm.qp_states import is_flushed
from rnic.records import replace

_POLL = 64
_ROUNDS = 4  # how often one pump looks again, so that a busy peer does not keep a loop from other work
_DISCONNECTS = (EventType.DISCONNECTED, EventType.DEVICE_REMOVAL, EventType.UNREACHABLE)
_CONFUSED = (EventType.CONNECT_ERROR, EventType.REJECTED)
_LAST_ACK = 0.1  # seconds for the last acknowledgements, when the peer of a raw connection has disconnected
RESET = "the peer's process has died, or the TCP connection was reset on its way"
SILENT = "the peer did not answer: its process is stopped or gone, or packets do not arrive"
GRACE = 1.0
"""Seconds for the ABORT of a close() that came to its limit."""


class Core(Ending, Sharing, Messaging):
    """A connection as a face drives it: it is opened, pumped and closed."""

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
            if self._has_streams:
                self.qp.confirm_stream(both=True)
            # What goes at once: the peer gives half of its receives back before more goes.
            pieces = max(1, min(self.memory.bounces, peer.receives) // 2)
            longest = self.protocol.longest_of(pieces)
            if self._announces:
                longest = min(longest, (self.config.announce or 1) - 1)
            self.courier.frame, self.courier.longest = self.protocol.frame_size, longest
            self.courier.tags = self.protocol.knows(Capability.TAG)

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
        if self.released or self.broken is not None:
            return
        if self._rung:
            self._rung = False
            self.comp.unwake()
        self._go_long()
        self.protocol.settle()
        if self._took_receives or self._took_sends or self._took_op:
            self._note_posted()
        self._want()
        self._cm_events()
        self._quiet()
        for turn in range(_ROUNDS):
            worked = self._poll(now) or self._fetch_offer()  # a STOP may stand behind the ANNOUNCE
            lost = not worked and self._lost_peer(now)
            if (
                worked or lost or turn == 0 or self._closing is not None
            ):  # what _post() ends is the last, perhaps
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
        times = [due, close_by, self._again_at, self._flushed_by]
        if not self.finished:
            times += (self._left_by, self._linger_by)
        if not self.ended:
            times.append(self._reason_by)
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

    # ------------------------------------------------------------ what the connection manager says

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
            self.protocol.lost(f"the handshake failed: {event.explain()}")

    def _lost_peer(self, now: float) -> bool:
        """Handle a disconnect, after all completions that came before it; whether there was one."""
        event = self._disconnected
        if event is None or self.finished or self.protocol.finished or self._may_have_arrived(event, now):
            return False
        if event.status == -ECONNRESET:
            self.protocol.lost(RESET if self._has_streams else "the peer's process has died")
        elif event.event is not EventType.DISCONNECTED:
            self.protocol.lost(f"{event.event.name}: the peer does not answer, or the device is gone")
        elif event.status == -ETIMEDOUT:
            self.protocol.lost(SILENT)
        elif event.status:  # of iWARP alone
            self.protocol.lost(f"the connection was lost: {os.strerror(-event.status)}")
        else:
            param = event.param
            self.protocol.disconnected(param.private_data if isinstance(param, ConnParam) else b"")
        return True

    def _may_have_arrived(self, event: CmEvent, now: float) -> bool:
        """Whether to wait for the end of a raw connection's last messages, which no goodbye confirms: their
        acknowledgement and the disconnect come by two ways.
        """
        if self.protocol.state is not State.RAW or event.event is not EventType.DISCONNECTED or event.status:
            return False
        if self._left_by is None:
            self._left_by = now + _LAST_ACK
        return self.protocol.outstanding > 0 and now < self._left_by

    # ------------------------------------------------------------ completions

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
            if self._awaits_reason(failed, now):
                return False
            self._failed(failed)
        self._polled.popleft()
        return bool(found)

    def _completed(self, wc: WC, now: float) -> None:
        kind, number = wc.wr_id % KINDS, wc.wr_id // KINDS
        if kind == RECEIVE:
            if number >= self.protocol.receives_seen:
                # A WRITE with immediate takes a receive and leaves nothing in it.
                self._received(number, wc.byte_len if wc.opcode is WCOpcode.RECV else 0, now)
        elif kind == SEND:
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

    def _reason(self, failed: list[WC]) -> WC | None:
        """The first whose status says why; of a TCP connection that is lost, none does."""
        silent = (WCStatus.WR_FLUSH_ERR, *((WCStatus.RETRY_EXC_ERR,) if self._has_streams else ()))
        return next((one for one in failed if one.status not in silent), None)

    def _awaits_reason(self, failed: list[WC], now: float) -> bool:
        """iWARP: the queue pair has ended by itself, and the connection manager is about to say why."""
        if not self._has_streams or self.ended or self._reason(failed) is not None:
            return False
        self._cm_events()
        if self._reason_by is None:
            self._reason_by = now + GRACE
        return self._disconnected is None and now < self._reason_by

    def _failed(self, failed: list[WC]) -> None:
        """End the connection: the first status that says why does so, or else the CM."""
        first = self._reason(failed)
        if first is None:
            self._cm_events()
        if first is not None or not self._lost_peer(math.inf):
            self.protocol.lost(explain(first or failed[0], None))
        for wc in failed:
            op = self._posted_ops.get(wc.wr_id // KINDS) if wc.wr_id % KINDS == OP else None
            if op is not None:
                own = self._reason([wc]) is not None
                self._op_done(op, LostError(explain(wc, None if own else self.protocol.error)))

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
            wrs = [self.memory.receive_wr(one * KINDS + RECEIVE, one) for one in range(first, then)]
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
        wr_id = out.number * KINDS + SEND
        if out.probe:
            return SendWR(wr_id, WROpcode.RDMA_WRITE)
        flags = SendFlags.FENCE if out.fence else SendFlags(0)
        return SendWR(wr_id, WROpcode.SEND, flags, [self.memory.fill(out.number, out.header, out.payload)])

    # ------------------------------------------------------------ closing

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
        self._linger(now)
        self._last_completions()
        if is_flushed(self.qp) or not self._posted_ops:
            self._fail_ops()
            self.fetching.close()
            self._flushed_by = None
        else:  # a READ may still be carried out, into a buffer that would be the user's again
            self._flushed_by = now + LOOK_AGAIN

    def _linger(self, now: float) -> None:
        """iWARP: keep the stream until the peer has closed it, too, as it may still ask for our last word."""
        waits = self.protocol.state is State.CLOSED and self._has_streams and not self.raw
        if waits and self._linger_by is None:
            self._linger_by = now + GRACE
        self._lingers = self._linger_by is not None and now < self._linger_by and not is_flushed(self.qp)

    def _last_completions(self) -> None:
        """Poll once more: operations that ended before the connection did have outcomes of their own."""
        while self._posted_ops and self._poll(0.0):
            pass

    def statistics(self) -> Statistics:
        """Counts of what the connection has done so far.  For any thread: it changes nothing."""
        found = self.protocol.statistics()
        part = self.courier.part
        return found if part is None else replace(found, partial=len(part[1]))
