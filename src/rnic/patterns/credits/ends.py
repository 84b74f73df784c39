# SPDX-License-Identifier: Apache-2.0
"""What both kinds of channels have: the machine of a connection (src/msg) on a queue pair of the program's.

A call is a generator that yields what it waits for, and each kind of channel waits in its own way.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from errno import EMSGSIZE, ENOMEM
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from rnic import QPAttr
from rnic.conn.memory import MAX_OPS, Memory
from rnic.endpoint import Capability, Config, Hello, LostError, MessageTooLongError, ProtocolError
from rnic.endpoint.buffers import flat
from rnic.endpoint.errors import AbortedError, Reason
from rnic.endpoint.hello import MAGIC, MIN_RECEIVE_SIZE, REMOTE_ACCESS, VERSIONS
from rnic.endpoint.text import printable
from rnic.enums import AccessFlags, QPState, QPType, Transport
from rnic.errors import VerbsError
from rnic.patterns.chain import LIFE, QueueError
from rnic.patterns.cursor import LiarError
from rnic.patterns.wait import SPIN, How, Waiter
from rnic.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sized

    from rnic import PD, QP, Context
    from rnic._nic.nic import Result, SendWR
    from rnic.endpoint.buffers import AnyBuffer

    T = TypeVar("T")
    Steps = Generator["Until", None, T]

__all__ = ["ChannelStatistics", "Ends", "Out", "Until"]

_PARTING = 1.0  # seconds for the last word to arrive, and for READs and WRITEs to end
_CHAIN = 16  # READs and WRITEs that are queued at a time, at most
_HELLO, _CLOSED = 0, 5  # of enum msg_state
_BROKEN, _ABORTED = 1, 2  # of enum msg_kind
_BY_PEER = b"the peer aborted the connection: "
_NOT_CLOSED = "close: the peer did not close its end"


class ChannelStatistics(Record):
    """What a channel has sent and received."""

    sends: int
    """SENDs of any kind."""
    credit_sends: int
    """Those that returned credits and nothing else."""
    arrived: int
    """SENDs that came in."""
    credits: int
    """SENDs that this end may post now; the last one only to return credits."""
    backlog: int
    """Bytes of messages that came, and that the program has not taken; each counts as 64 more."""


class Until(NamedTuple):
    """What a call waits for; its limit is the call's, or so many seconds."""

    is_so: Callable[[], bool]
    what: str
    among: str = "others"
    """Which other calls wait for the same: "senders", "receivers"."""
    seconds: float | None = None


class Out:
    """A message that is sent, or waits for the peer's hello."""

    def __init__(self, message: AnyBuffer) -> None:
        self.message = flat(message, "send()")
        self.handle = 0  # the machine's
        self.error: Exception | None = None  # why it cannot go


class Ends:
    """The machine, what the two ends know of each other, and the calls.

    A change of state is one call of the machine, so no exception comes in the middle of one.
    """

    _receivers: Sized = ()  # calls that wait for a message

    def __init__(
        self,
        qp: QP,
        *,
        receives: int = 16,
        size: int = 4096,
        max_message: int = 16 << 20,
        max_backlog: int = 1 << 20,
        how: How = How.ADAPTIVE,
    ) -> None:
        pd, cap = qp.pd, qp.cap
        if qp.qp_type is not QPType.RC:
            raise ValueError(
                f"a queue pair of {qp.qp_type.name}: a channel needs one of RC, which loses nothing"
            )
        if pd is None or qp.recv_cq is None or qp.send_cq is None:
            raise ValueError("the queue pair has no recv_cq, no send_cq, or no protection domain")
        if max_backlog < 0:
            raise ValueError(f"max_backlog {max_backlog}: give bytes from 0 on")
        if receives >= cap.max_recv_wr or cap.max_send_wr < 2:
            raise ValueError(
                f"{receives} receives and one more, and two requests to send: the queue pair has "
                f"{cap.max_recv_wr} places (max_recv_wr) and {cap.max_send_wr} (max_send_wr)"
            )
        self._config = Config(
            receives=receives,
            receive_size=size,
            send_size=size,
            max_message=max_message,
            max_backlog=max(1, max_backlog),
            announce=None,
            max_regions=0,
            idle_interval=LIFE,
            spin=0.0 if how is How.EVENT else SPIN,
        )
        if qp.state is QPState.RESET:
            raise ValueError("the queue pair is in RESET: move it to INIT first, where it takes receives")
        queues = {Waiter(cq, how).cq for cq in (qp.send_cq, qp.recv_cq)}
        channels = {cq.channel for cq in queues if cq.channel is not None and how is not How.POLL}
        self._filenos = tuple(channel.fileno() for channel in channels)
        self._qp, self._how, self._memory = qp, how, Memory(cast("PD", pd), self._config)
        bounces = min(self._memory.bounces, cap.max_send_wr // 2)
        self._room = min(MAX_OPS, cap.max_send_wr - bounces)  # places for READs and WRITEs
        self._own: Hello | None = None
        self._peer: Hello | None = None
        self._error: Exception | None = None
        self._told = False  # a call has raised it,
        self._stopped: list[Result] = []  # or an operation, whose result() has
        self._early: deque[Out] = deque()  # messages that wait for the peer's hello
        self._closed = False
        try:
            self._machine = self._memory.machine(qp, qp.send_cq, qp.recv_cq, bounces)
            if cast("Context", qp.context).device.transport is Transport.IWARP:
                qp.confirm_stream(both=True)  # else its SENDs complete before the peer has them
            self._machine.post_receives()
        except BaseException:
            self._memory.let_go()
            raise

    def statistics(self) -> ChannelStatistics:
        """What it has sent and received so far."""
        n = self._machine.count()
        backlog = n["backlog"] + n["partial"]
        return ChannelStatistics(n["sends"], n["credit_sends"], n["receives"], n["credits"], backlog)

    @property
    def qp(self) -> QP:
        """Its queue pair."""
        return self._qp

    @property
    def peer(self) -> tuple[int, int] | None:
        """Bytes of the peer's receives, and of the longest message that it takes; None ahead of its hello."""
        return None if self._peer is None else (self._peer.receive_size, self._peer.max_message)

    @property
    def max_message(self) -> int:
        """Bytes of the longest message that it takes."""
        return self._config.max_message

    @property
    def is_waiting(self) -> bool:
        """Whether a message has come, for which recv() does not wait; it does not look for new ones."""
        return self._machine.hand is not None or self._machine.has()

    @property
    def error(self) -> Exception | None:
        """What has ended the channel."""
        kind, reason, text = self._machine.error
        if kind and self._error is None:
            words = printable(text.removeprefix(_BY_PEER))
            if text.startswith(_BY_PEER):
                self._error = AbortedError(f"the peer ended the channel: {words}", reason)
            elif kind == _BROKEN:
                self._error = LiarError(words)
            elif kind == _ABORTED:
                self._error = AbortedError(f"this end ended the channel: {words}", Reason.APPLICATION)
            else:
                self._error = LostError(words)
        return self._error

    def _tell(self, error: Exception) -> Exception:
        """Note that a call raises this error, so that close() does not; returns it."""
        self._told = self._told or error is self._error
        return error

    # ------------------------------------------------------------------------------------ moving

    def _move(self) -> bool:
        """Do what can be done now; whether there is more."""
        if self._closed:
            return False
        machine = self._machine
        if machine.state == _HELLO:
            self._greet()
        while self._early and machine.state != _HELLO:
            try:
                self._hand_over(self._early[0])
            except Exception as error:
                self._early[0].error, self._early[0].handle = error, 0
            self._early.popleft()
        more = machine.pump()
        if more < 0 or (machine.state == _HELLO and machine.failed() is not None):
            wc = machine.failed()
            if self.error is None and machine.state != _CLOSED:
                self._error = LostError("a completion queue has overrun") if wc is None else QueueError(wc)
            machine.lost("the queue pair has failed")
        self._finish()
        return more > 0

    def _finish(self) -> None:
        """READs and WRITEs that have failed, of what ended the channel, or as they could not be posted."""
        for one in self._machine.failures():
            why = (
                VerbsError(-one.status, "a request was not posted", "post_send")
                if one.status < 0
                else self.error
            )
            one.finish(why or LostError("the channel is closed"))
            if one.error is self._error:
                self._stopped.append(one)

    def _greet(self) -> None:
        """Say hello, and read the peer's, which is all that may come first."""
        machine, config = self._machine, self._config
        if self._own is None:
            access = (self._qp.query()[0].qp_access_flags or AccessFlags(0)) & REMOTE_ACCESS
            sizes = config.receive_size, config.receives, 0, config.max_message
            own = Hello(*VERSIONS, access, *sizes, Capability.STOP)
            machine.say_hello(own.emit(), access)
            self._own = own
        if (found := machine.hear_hello()) is None:
            return
        peer = Hello(1, 1, AccessFlags(0), MIN_RECEIVE_SIZE, 1, 0, 0)
        try:
            if found[:4] != MAGIC:
                begins = found[:8].hex(" ") or "nothing"
                raise LiarError(
                    f"the peer's first SEND begins with {begins}: it is no channel of this protocol"
                )
            self._peer = peer = Hello.parse(found)
        except (LiarError, ProtocolError) as error:  # whatever the peer is, it may understand why
            self._error = LiarError(str(error))
        machine.greet(peer)
        if self._error is not None:
            machine.abort(str(self._error))

    def _has_greeted(self) -> bool:
        return self._machine.state != _HELLO

    def _has_closed(self) -> bool:
        return self._machine.state == _CLOSED or self.error is not None

    # ------------------------------------------------------------------------------------ messages

    def _send(self, out: Out) -> bool:
        """Send a message behind those before it; whether it has left its buffer."""
        if self.error is not None:
            raise self._tell(self.error)
        if self._early or not self._has_greeted():
            self._early.append(out)
            return False
        return self._hand_over(out)

    def _hand_over(self, out: Out) -> bool:
        machine = self._machine
        if 0 < out.handle <= machine.handle:  # it went ahead of an exception from outside
            return False
        out.handle = machine.handle + 1
        if (sent := machine.send(out.message)) >= 0:
            return not sent
        if sent == -EMSGSIZE and self.peer is not None:
            raise MessageTooLongError(
                f"a message of {len(out.message)} bytes: the peer takes {self.peer[1]} at most"
            )
        if sent == -ENOMEM:
            raise MemoryError
        if self.error is not None:
            raise self._tell(self.error)
        raise ValueError("send() after close(): this end has said that no message follows")

    def _is_sent(self, out: Out) -> bool:
        """Whether all of it has left its buffer; raises what has ended the channel, or why it cannot go."""
        if 0 < out.handle <= self._machine.sent:
            return True
        if (error := out.error or self.error) is not None:
            raise self._tell(error)
        return False

    def _take_back(self, out: Out) -> bool:
        """Its call is over, and its buffer free; whether the peer gets it."""
        if out in self._early:
            self._early.remove(out)
        is_sent = 0 < out.handle <= self._machine.sent
        return self._machine.take_back(out.handle) or is_sent

    def _sending(self, out: Out, begins: Callable[[], object] | None) -> Steps[None]:
        try:
            if not self._send(out):
                yield Until(lambda: self._is_sent(out), "send: the peer takes nothing", "senders")
        finally:
            if not self._take_back(out):
                self._move()  # the peer learns that the rest does not come
            elif begins is not None:
                begins()

    def _leaving(self, out: Out) -> Steps[None]:
        self._move()
        self._send(out)
        yield from ()

    def _has_next(self) -> bool:
        """Whether a message is in the machine's hand; EOFError behind the last, or what ended the channel."""
        if self._machine.take():
            return True
        if self.error is not None:
            raise self._tell(self.error)
        if self._machine.heard_goodbye:
            raise EOFError("the peer has closed its end of the channel")
        return False

    def _receiving(self) -> Steps[Any]:
        machine = self._machine
        if self._receivers or not machine.take():
            yield Until(self._has_next, "recv: no message came", "receivers")
        message, machine.hand = machine.hand, None  # no call behind which an exception could come
        return message

    # ------------------------------------------------------------------------------------ READs and WRITEs

    def _carrying_out(self, wrs: Iterable[SendWR], behind: Callable[[], bytes] | None) -> Steps[None]:
        """Half of the places are for the next requests: two batches are under way."""
        if self.error is not None:
            raise self._tell(self.error)
        left = iter(wrs)
        batch: list[Result] = []
        try:
            while chain := list(islice(left, max(1, min(_CHAIN, self._room // 2)))):
                before, batch = batch, [self._machine.carry_out(wr) for wr in chain]
                self._move()
                yield from self._completing(before)
            if behind is not None:
                self._send(Out(behind()))
            yield from self._completing(batch)
        except BaseException:
            try:
                yield Until(
                    lambda: not self._machine.operates, "a READ or WRITE does not end", seconds=_PARTING
                )
            except TimeoutError as error:
                self._kill(error)
            raise

    def _completing(self, batch: list[Result]) -> Steps[None]:
        yield Until(lambda: all(one.done for one in batch), "carry_out: the peer did not answer")
        for one in batch:
            one.result()

    # ------------------------------------------------------------------------------------ the end

    def _end(self, error: Exception, tell: str) -> Steps[None]:
        """The channel is over, and the peer is told."""
        self._error = self.error or error
        self._machine.abort(tell)
        yield from self._parting()

    def _parting(self) -> Steps[None]:
        """Wait for the last word to arrive: the peer may have gone by now, as it has all."""
        with suppress(TimeoutError, VerbsError):
            yield Until(lambda: self._machine.may_leave, "", seconds=_PARTING)

    def _closing(self) -> Steps[None]:
        try:
            if self.error is None:
                yield Until(self._has_greeted, _NOT_CLOSED)
                self._machine.close(None)
                self._machine.hand = None
                yield Until(self._has_closed, _NOT_CLOSED)
                if self.error is not None:
                    raise self._tell(self.error)
                yield from self._parting()
            elif not self._told and not any(one.told for one in self._stopped):
                raise self._tell(self.error)
        except TimeoutError as error:
            yield from self._end(error, "the goodbyes were not said in time")
            raise
        finally:
            self._release()

    def _aborting(self, text: str) -> Steps[None]:
        try:
            self._move()  # the peer may have ended the channel already
            self._machine.abort(text)
            yield from self._parting()
        finally:
            self._release()

    def _kill(self, error: Exception) -> None:
        """What was posted does not end: the queue pair to ERR, so that it touches no memory any more."""
        self._error = self.error or error
        self._to_error()
        self._machine.lost(str(error))
        self._machine.fail_operations()
        self._finish()

    def _to_error(self) -> None:
        if not self._qp.closed and self._qp.state not in (QPState.RESET, QPState.ERR):
            self._qp.modify(QPAttr(qp_state=QPState.ERR))

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the channel is closed")

    def _release(self) -> None:
        """The queue pair to ERR, so that nothing uses the memory, which then goes."""
        if not self._closed:
            self._closed = True
            self._to_error()
            self._machine.release()
            self._finish()
            self._machine.hand = None
            self._memory.let_go()
