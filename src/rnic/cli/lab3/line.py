# SPDX-License-Identifier: Apache-2.0
"""A connection of lab 3: messages in and out, and what ends it.  Every wait has a limit."""

from __future__ import annotations

import contextlib
import select
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from errno import ECONNRESET
from typing import Self

import rnic
from rnic.cli.endpoint import is_iwarp
from rnic.cli.lab3 import stream
from rnic.cli.lab3.faults import Code, Fault
from rnic.cli.lab3.messages import MESSAGE_BYTES, TEXT_BYTES, Error, Message, padded
from rnic.rdmacm import CmId, Event, EventChannel, EventType, create_id
from rnic.times import milliseconds
from rnic.wording import place

SLICE = 0.02  # seconds between two looks at what no descriptor tells
REFUSE_SECONDS = 0.5  # how long a peer that is refused may take to hear why
LAST_WORDS_SECONDS = 0.5  # how long what a process has said may be on its way when the process has ended
MARKS_AT = 8  # of a message: where expect() has its marks
RECEIVE_ID, SEND_ID = 1 << 32, 1 << 33  # wr_id; an RDMA WRITE has a smaller one
FAILURES = {
    rnic.WCStatus.RETRY_EXC_ERR: "does not answer any more",
    rnic.WCStatus.RNR_RETRY_EXC_ERR: "has posted no receive for a message",
    rnic.WCStatus.REM_ACCESS_ERR: "refuses the address or the key",
    rnic.WCStatus.REM_INV_REQ_ERR: f"has posted a receive of less than {MESSAGE_BYTES} bytes",
    rnic.WCStatus.REM_OP_ERR: "took no message: the memory of its receive is not registered any more",
    rnic.WCStatus.LOC_LEN_ERR: f"has sent more than {MESSAGE_BYTES} bytes in one message",
}
NOT_GIVEN = (
    "used an address or a key that it was not given, or another operation than RDMA WRITE: "
    "take both from the last REGION, and write no further than its length"
)

Gone = Callable[[], str | None]  # why the peer will never answer, or None


class Line:
    """One end of a connection; a context manager that releases it.

    A receive is posted for one message at a time: expect() it before what it answers is sent.
    """

    def __init__(
        self, cm_id: CmId, peer: str, timeout: float, *, gone: Gone | None = None, stop: int | None = None
    ) -> None:
        self.cm_id, self.peer, self.timeout = cm_id, peer, timeout
        self._gone, self._stop = gone, stop
        self.established = False
        self.end: str | None = None
        """Why nothing more will come, once that is known."""
        self.died = False
        """The peer's process has died on this host, and said nothing; iWARP does not tell."""
        self.written: deque[int] = deque()
        """The wr_ids of RDMA WRITEs that have completed."""
        self.failed: rnic.WCStatus | None = None
        """How the first work request that failed did; of iWARP also one that was complete before."""
        self._inbox: deque[bytes | Fault] = deque()
        self._sending = False
        self._marks: list[rnic.SGE] = []
        with ExitStack() as stack:
            stack.callback(self._release)
            context = cm_id.verbs
            assert context is not None
            self.is_iwarp = is_iwarp(context.device)
            self.pd = stack.enter_context(context.alloc_pd())
            self._out = stack.enter_context(self.pd.alloc_mr(MESSAGE_BYTES, rnic.AccessFlags.LOCAL_WRITE))
            self._into = stack.enter_context(self.pd.alloc_mr(MESSAGE_BYTES, rnic.AccessFlags.LOCAL_WRITE))
            self.qp = cm_id.create_qp(self.pd)
            stack.callback(cm_id.destroy_qp)
            self._poller = self._watch()
            self.stack = stack.pop_all()
            """What else lives as long as the connection."""

    def _watch(self) -> select.poll:
        poller = select.poll()
        for watched in (
            self.cm_id.channel,
            self.cm_id.send_cq_channel,
            self.cm_id.recv_cq_channel,
            self._stop,
        ):
            if watched is not None:
                poller.register(watched, select.POLLIN)
        return poller

    def _release(self) -> None:
        channel = self.cm_id.channel
        self.cm_id.destroy()
        channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    # ------------------------------------------------------------------ messages

    def expect(self, marks: list[rnic.SGE] | None = None) -> None:
        """Post the receive for the next message.

        Of its bytes from MARKS_AT on, `marks` get one each: there they overwrite what came before them.
        """
        self._marks = marks or []
        behind = MARKS_AT + len(self._marks)
        head, rest = rnic.SGE(self._into, 0, MARKS_AT), rnic.SGE(self._into, behind, MESSAGE_BYTES - behind)
        self.cm_id.post_recv(head, *self._marks, rest, wr_id=RECEIVE_ID)

    @property
    def has_message(self) -> bool:
        """Whether receive() would not wait."""
        return bool(self._inbox)

    def send(self, message: Message, doing: str) -> None:
        """Send a message; the peer has it when this returns, on iWARP its TCP.

        Fault LOST leaves that open: an acknowledgement may still have been on its way.
        """
        self._post(message, doing)
        self.until(lambda: not self._sending, doing)

    def send_at_once(self, message: Message, doing: str) -> bool:
        """Send a message; False when it met no receive.  On iWARP that may come out later."""
        self._post(message, doing)
        self.until(lambda: not self._sending or self.met_no_receive, doing)
        return not self.met_no_receive

    @property
    def met_no_receive(self) -> bool:
        """Whether a message of this end has met no receive."""
        no_receive = rnic.WCStatus.RNR_RETRY_EXC_ERR
        return self.failed is no_receive or self.qp.statistics().counters.rnr_nak_received > 0

    def _post(self, message: Message, doing: str) -> None:
        self.until(lambda: not self._sending, doing)
        data = message.emit()
        self._out.buf[: len(data)] = data
        self._sending = True
        self.cm_id.post_send(rnic.SGE(self._out, length=len(data)), wr_id=SEND_ID)

    def ask(self, message: Message, doing: str) -> bytes:
        """Send a message and wait for its answer, which says that it was received, too."""
        self.expect()
        self._post(message, doing)
        return self.receive(doing)

    def receive(self, doing: str) -> bytes:
        """The next message.  Fault PROTOCOL when it is none."""
        self.until(lambda: self.has_message, doing)
        found = self._inbox.popleft()
        if isinstance(found, Fault):
            raise found
        return found

    # ------------------------------------------------------------------ waiting

    def until(self, ready: Callable[[], bool], doing: str, timeout: float | None = None) -> None:
        """Wait.  Fault LOST when the connection ends before that, SILENT when it takes too long."""
        timeout = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        while not ready():
            if self.end:
                raise Fault(Code.LOST, f"{doing}: {self.end}")
            if why := self._gone and self._gone():
                self._await_last_words(ready)
                if ready():
                    return
                said_goodbye = self.end is not None and not self.died
                raise Fault(Code.LOST, f"{doing}: {self.end if said_goodbye else self._misuse or why}")
            left = deadline - time.monotonic()
            if left <= 0:
                raise Fault(Code.SILENT, f"{doing}: nothing came from the {self.peer} within {timeout:g} s")
            self.pump(min(left, SLICE) if self._gone else left)

    def _await_last_words(self, ready: Callable[[], bool]) -> None:
        """What a process has said before its end may be seen a moment later than its end."""
        until = time.monotonic() + LAST_WORDS_SECONDS
        self._take()
        while not ready() and self.end is None and time.monotonic() < until:
            self.pump(SLICE)

    def pump(self, seconds: float) -> None:
        """Take what has happened; sleep up to that long when nothing has."""
        if not self._take():
            self._sleep(seconds)
            self._take()

    def _sleep(self, seconds: float) -> None:
        for fd, _ in self._poller.poll(milliseconds(seconds)):
            if fd == self._stop:
                raise Fault(Code.FAILED, "the receiver was interrupted")
        for channel in (self.cm_id.send_cq_channel, self.cm_id.recv_cq_channel):
            assert channel is not None
            with contextlib.suppress(TimeoutError):
                channel.get_cq_event(0).ack_events()

    def _take(self) -> bool:
        """Events before completions: what came before a disconnect is not lost by it."""
        found = False
        with contextlib.suppress(TimeoutError):
            while True:
                with self.cm_id.channel.get_cm_event(0) as event:
                    self._on_event(event)
                    found = True
        for cq in (self.cm_id.send_cq, self.cm_id.recv_cq):
            assert cq is not None
            cq.req_notify()
            for wc in cq.poll(16):
                self._on_completion(wc)
                found = True
        return found

    def _on_event(self, event: Event) -> None:
        match event.event:
            case EventType.ESTABLISHED:
                self.established = True
            case EventType.DISCONNECTED:
                self.died = event.status == -ECONNRESET and not self.is_iwarp
                self.end = self.end or self._why_disconnected()
                self.cm_id.disconnect()  # the peer waits for our agreement; to agree twice does nothing
            case EventType.TIMEWAIT_EXIT:
                pass
            case kind:
                self.end = f"the connection ended with {kind.name}"

    @property
    def _misuse(self) -> str | None:
        """What the peer may not do, if it has tried."""
        end = self.cm_id.stream_end
        refused = stream.is_misuse(end) if end else self.qp.statistics().counters.nak_remote_sent
        return f"the {self.peer} {NOT_GIVEN}" if refused else None

    def _why_disconnected(self) -> str:
        if self._misuse:
            return self._misuse
        if (end := self.cm_id.stream_end) is not None:
            status = stream.turned_down(end)
            self.failed = self.failed or status
            return self._in_words(status) if status else stream.words(end, self.peer)
        return f"the {self.peer}'s process has died" if self.died else f"the {self.peer} disconnected"

    def _on_completion(self, wc: rnic.WC) -> None:
        if not wc.ok:
            self._on_failure(wc)
        elif wc.wr_id == RECEIVE_ID:
            self._inbox.append(self._message(wc))
        elif wc.wr_id == SEND_ID:
            self._sending = False
        else:
            self.written.append(wc.wr_id)

    def _message(self, wc: rnic.WC) -> bytes | Fault:
        if wc.wc_flags & rnic.WCFlags.WITH_IMM:
            return Fault(Code.PROTOCOL, f"the {self.peer} has sent immediate data, which no message here has")
        data = bytearray(self._into.buf)
        for at, mark in enumerate(self._marks, MARKS_AT):
            assert mark.mr is not None
            data[at] = mark.mr.buf[mark.addr - mark.mr.addr]
        return bytes(data[: wc.byte_len])

    def _on_failure(self, wc: rnic.WC) -> None:
        if wc.status is rnic.WCStatus.WR_FLUSH_ERR:
            return
        self.failed = self.failed or wc.status
        self.end = self.end or self._why_failed(wc)
        if wc.status is rnic.WCStatus.LOC_LEN_ERR:
            self._inbox.append(Fault(Code.PROTOCOL, self._why_failed(wc)))

    def refuse(self, text: str) -> None:
        """Let the peer know why this is the end, if it listens; a stop does not interrupt that."""
        if self._stop is not None:
            self._poller.unregister(self._stop)
        self._stop = self._gone = None
        self.timeout = min(self.timeout, REFUSE_SECONDS)
        with contextlib.suppress(Fault, OSError):
            self.send(Error(padded(text, TEXT_BYTES)), "refusing")

    def _why_failed(self, wc: rnic.WC) -> str:
        return self._in_words(wc.status) if wc.status in FAILURES else wc.explain()

    def _in_words(self, status: rnic.WCStatus) -> str:
        return f"the {self.peer} {FAILURES[status]} ({status.name})"

    def hang_up(self) -> None:
        """Disconnect, unless the peer did."""
        if self.end is None:
            self.cm_id.disconnect()


def connect(host: str, port: int, timeout: float) -> Line:
    """Call the receiver.  Fault CONNECT when there is none."""
    where = place(host, port)
    try:
        return _connect(host, port, timeout, where)
    except rnic.VerbsError as error:
        text = error.strerror or ""
        raise Fault(Code.CONNECT, text if text.startswith(where) else f"{where}: {text}") from None


def _connect(host: str, port: int, timeout: float, where: str) -> Line:
    channel = EventChannel()
    cm_id = create_id(channel)
    with ExitStack() as undo:
        undo.callback(channel.close)
        undo.callback(cm_id.destroy)
        cm_id.resolve_addr(None, (host, port), milliseconds(timeout) or 0)
        _await(channel, EventType.ADDR_RESOLVED, where, timeout)
        cm_id.resolve_route(milliseconds(timeout) or 0)
        _await(channel, EventType.ROUTE_RESOLVED, where, timeout)
        undo.pop_all()
    with ExitStack() as undo:
        line = undo.enter_context(Line(cm_id, "receiver", timeout))
        cm_id.connect()
        _await(channel, EventType.ESTABLISHED, where, timeout)
        line.established = True
        undo.pop_all()
    return line


def _await(channel: EventChannel, wanted: EventType, where: str, timeout: float) -> None:
    try:
        event = channel.get_cm_event(timeout)
    except TimeoutError:
        raise Fault(Code.CONNECT, f"{where} did not answer within {timeout:g} s") from None
    with event:
        if event.event is EventType.REJECTED:
            raise Fault(Code.CONNECT, f"{where}: {_refusal(event)}")
        if event.event is not wanted:
            silent = event.status < 0
            raise Fault(Code.CONNECT, event.explain() if silent else f"{where}: {event.event.name}")


def _refusal(event: Event) -> str:
    refusal = event.refusal()
    if refusal.nobody_listens:
        return "nobody listens there"
    data = getattr(event.param, "private_data", b"").rstrip(b"\0")
    words = data.decode(errors="replace")
    return f"refused: {words if words and words.isprintable() else refusal.text}"


def answer(cm_id: CmId, timeout: float, *, gone: Gone | None = None, stop: int | None = None) -> Line:
    """Agree to a sender's request; the receive for its first message is posted."""
    with ExitStack() as undo:
        undo.callback(cm_id.destroy)
        try:
            channel = EventChannel()
        except rnic.VerbsError:  # no descriptor is left
            cm_id.reject_busy()
            raise
        undo.callback(channel.close)
        cm_id.migrate_id(channel)
        undo.pop_all()
    with ExitStack() as undo:
        line = undo.enter_context(Line(cm_id, "sender", timeout, gone=gone, stop=stop))
        line.expect()
        cm_id.accept()
        line.until(lambda: line.established or line.has_message, "connecting")
        if not line.established:
            # Data came before the RTU, which may be lost.  EINVAL: the peer has gone, as an event will tell.
            with contextlib.suppress(rnic.VerbsError):
                cm_id.notify(rnic.EventType.COMM_EST)
        undo.pop_all()
    return line
