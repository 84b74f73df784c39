# SPDX-License-Identifier: Apache-2.0
"""What both kinds of channels have: the machine of a connection (src/msg) on a queue pair of the program's.

Nothing here waits.  A change of state is one call of the machine, so no exception comes in the middle of one.
"""

from __future__ import annotations

from collections import deque
from errno import EMSGSIZE, ENOMEM
from itertools import islice
from typing import TYPE_CHECKING, cast

from rnic import QPAttr
from rnic._nic.nic import Machine
from rnic.conn.memory import MAX_OPS, Memory
from rnic.endpoint import (
    AbortedError,
    Capability,
    Config,
    Hello,
    LostError,
    MessageTooLongError,
    ProtocolError,
    Reason,
    agree,
)
from rnic.endpoint.buffers import flat
from rnic.endpoint.hello import MAGIC, MIN_RECEIVE_SIZE, REMOTE_ACCESS, VERSIONS
from rnic.endpoint.text import printable
from rnic.enums import AccessFlags, QPState, QPType, Transport
from rnic.errors import VerbsError
from rnic.patterns.chain import LIFE, QueueError
from rnic.patterns.cursor import LiarError
from rnic.patterns.wait import SPIN, How, Waiter
from rnic.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rnic import QP, Context
    from rnic._nic.nic import Result, SendWR
    from rnic.endpoint.buffers import AnyBuffer

__all__ = ["PARTING", "ChannelStatistics", "Ends", "Out"]

PARTING = 1.0  # seconds for the last word to arrive
_CHAIN = 16  # READs and WRITEs that are queued at a time, at most
_HELLO, _CLOSED = 0, 5  # of enum msg_state
_BROKEN, _ABORTED = 1, 2  # of enum msg_kind
_BY_PEER = b"the peer aborted the connection: "


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


class Out:
    """A message that is sent, or waits for the peer's hello."""

    def __init__(self, message: AnyBuffer) -> None:
        self.message = flat(message, "send()")
        self.handle = 0  # the machine's
        self.error: Exception | None = None  # why it cannot go


class Ends:
    """The machine, and what the two ends know of each other; each kind of channel waits in its own way."""

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
        if qp.qp_type is not QPType.RC:
            raise ValueError(
                f"a queue pair of {qp.qp_type.name}: a channel needs one of RC, which loses nothing"
            )
        if qp.pd is None or qp.recv_cq is None or qp.send_cq is None:
            raise ValueError("the queue pair has no recv_cq, no send_cq, or no protection domain")
        if max_backlog < 0:
            raise ValueError(f"max_backlog {max_backlog}: give bytes from 0 on")
        self._config = config = Config(
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
        if receives >= qp.cap.max_recv_wr:
            raise ValueError(
                f"{receives} receives, and one for what needs no credit: "
                f"the queue pair has {qp.cap.max_recv_wr} places (max_recv_wr)"
            )
        if qp.cap.max_send_wr < 2:
            raise ValueError("the queue pair has one place for SENDs (max_send_wr): a channel needs two")
        if qp.state is QPState.RESET:
            raise ValueError("the queue pair is in RESET: move it to INIT first, where it takes receives")
        queues = {qp.send_cq: Waiter(qp.send_cq, how), qp.recv_cq: Waiter(qp.recv_cq, how)}
        self._qp, self._how = qp, how
        self._filenos: tuple[int, ...] = ()  # of the completion channels, if it sleeps at all
        if how is not How.POLL:
            self._filenos = tuple({cq.channel.fileno() for cq in queues if cq.channel is not None})
        self._memory = memory = Memory(qp.pd, config)
        bounces = min(memory.bounces, qp.cap.max_send_wr // 2)
        self._room = min(MAX_OPS, qp.cap.max_send_wr - bounces)  # places for READs and WRITEs
        self._machine = Machine(
            qp,
            qp.send_cq,
            memory.mr,
            recv_cq=qp.recv_cq,
            receives=receives,
            receive_size=size,
            send_size=size,
            max_regions=0,
            max_message=max_message,
            max_backlog=config.max_backlog,
            announce=None,
            idle=LIFE,
            bounces=bounces,
            sends_at=memory.sends_at,
            results_at=memory.results_at,
            spin=config.spin,
        )
        self._peer: Hello | None = None
        self._said_hello = self._closed = False
        self._error: Exception | None = None
        self._early: deque[Out] = deque()  # messages that wait for the peer's hello
        if cast("Context", qp.context).device.transport is Transport.IWARP:
            qp.confirm_stream(both=True)  # else its SENDs complete before the peer has them
        self._machine.post_receives()

    # ------------------------------------------------------------------------------------ how it stands

    def statistics(self) -> ChannelStatistics:
        """What it has sent and received so far."""
        found = self._machine.count()
        waiting = found["backlog"] + found["partial"]
        return ChannelStatistics(
            found["sends"], found["credit_sends"], found["receives"], found["credits"], waiting
        )

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
        if self._error is None:
            kind, reason, text = self._machine.error
            if kind:
                self._error = _error_of(kind, reason, text)
        return self._error

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the channel is closed")

    def _has_greeted(self) -> bool:
        """The peer has said hello, or the channel is over."""
        return self._machine.state != _HELLO

    def _has_closed(self) -> bool:
        """Both ends have said goodbye, or the channel is over."""
        return self._machine.state == _CLOSED or self.error is not None

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
                self._early[0].error = error
            self._early.popleft()
        more = machine.pump()
        if more < 0 or (machine.state == _HELLO and machine.failed() is not None):
            self._queue_failed()
        for one in machine.failures():
            posted = one.status > 0
            why = self.error if posted else VerbsError(-one.status, "a request was not posted", "post_send")
            one.finish(why or LostError("the channel is closed"))
        return more > 0

    def _greet(self) -> None:
        """Say hello, and read the peer's, which is all that may come first."""
        machine = self._machine
        if not self._said_hello:
            access = (self._qp.query()[0].qp_access_flags or AccessFlags(0)) & REMOTE_ACCESS
            config = self._config
            sizes = config.receive_size, config.receives, 0, config.max_message
            self._own = Hello(*VERSIONS, access, *sizes, Capability.STOP)
            machine.say_hello(self._own.emit(), int(access))
            self._said_hello = True
        if (found := machine.hear_hello()) is None:
            return
        try:
            peer, version = self._read(found)
        except LiarError as error:  # whatever it is, it may understand why
            sizes = 1, MIN_RECEIVE_SIZE, 0, 0
            peer, version = Hello(1, 1, AccessFlags(0), sizes[1], 1, 0, 0), 1
            self._error = error
        else:
            self._peer = peer
        machine.greet(
            receives=peer.receives,
            receive_size=peer.receive_size,
            max_regions=peer.max_regions,
            capabilities=int(peer.capabilities),
            access=int(peer.access),
            max_message=peer.max_message,
            version=version,
        )
        if self._error is not None:
            machine.abort(str(self._error))

    def _read(self, found: bytes) -> tuple[Hello, int]:
        """The peer's hello, and the version that both speak; LiarError."""
        if found[:4] != MAGIC:
            raise LiarError(
                f"the peer's first SEND begins with {found[:8].hex(' ') or 'nothing'}: "
                "it has no channel of this version of rnic"
            )
        try:
            peer = Hello.parse(found)
            return peer, agree(self._own, peer)
        except ProtocolError as error:
            raise LiarError(str(error)) from None

    def _queue_failed(self) -> None:
        """A request has failed; what the peer has said before counts more, as it may say why."""
        wc = self._machine.failed()
        if self.error is None and self._machine.state != _CLOSED:
            self._error = LostError("a completion queue has overrun") if wc is None else QueueError(wc)
        self._machine.lost("the queue pair has failed")

    # ------------------------------------------------------------------------------------ messages

    def _send(self, out: Out) -> bool:
        """Send a message behind those before it; whether it has left its buffer."""
        if self.error is not None:
            raise self.error
        if self._early or not self._has_greeted():
            self._early.append(out)
            return False
        return self._hand_over(out)

    def _hand_over(self, out: Out) -> bool:
        machine = self._machine
        if out.handle and machine.handle >= out.handle:  # it went ahead of an exception from outside
            return machine.sent >= out.handle
        out.handle = machine.handle + 1
        if (sent := machine.send(out.message)) >= 0:
            return not sent
        if sent == -EMSGSIZE and self._peer is not None:
            most = self._peer.max_message
            raise MessageTooLongError(
                f"a message of {len(out.message)} bytes: the peer takes {most} at most"
            )
        if sent == -ENOMEM:
            raise MemoryError
        raise self.error or ValueError("send() after close(): this end has said that no message follows")

    def _is_sent(self, out: Out) -> bool:
        """Whether all of it has left its buffer; raises what has ended the channel, or why it cannot go."""
        if out.error is not None:
            raise out.error
        if out.handle and self._machine.sent >= out.handle:
            return True
        if self.error is not None:
            raise self.error
        return False

    def _take_back(self, out: Out) -> bool:
        """Its call is over, and its buffer free; whether the peer gets it."""
        if out in self._early:
            self._early.remove(out)
        if not out.handle:
            return False
        is_sent = self._machine.sent >= out.handle
        return self._machine.take_back(out.handle) or is_sent

    def _has_next(self) -> bool:
        """Whether the machine's hand has a message; EOFError behind the last one, or what ended the channel."""
        if self._machine.take():
            return True
        if self.error is not None:
            raise self.error
        if self._machine.heard_goodbye:
            raise EOFError("the peer has closed its end of the channel")
        return False

    # ------------------------------------------------------------------------------------ READs and WRITEs

    def _batches(self, wrs: Iterable[SendWR]) -> Iterator[list[SendWR]]:
        """As many at a time as leave half of the places to the next ones."""
        left = iter(wrs)
        while batch := list(islice(left, max(1, min(_CHAIN, self._room // 2)))):
            yield batch

    def _carry(self, batch: list[SendWR]) -> list[Result]:
        """Post requests."""
        results = [self._machine.carry_out(wr) for wr in batch]
        self._move()
        return results

    # ------------------------------------------------------------------------------------ the end

    def _end(self, error: Exception, tell: str) -> None:
        """The channel is over, and the peer is told."""
        if self.error is None:
            self._error = error
        self._machine.abort(tell)

    def _kill(self, error: Exception) -> None:
        """What was posted does not end: the queue pair to ERR, so that it touches no memory any more."""
        if self.error is None:
            self._error = error
        self._to_error()
        self._machine.lost(str(error))
        self._machine.fail_operations()
        for one in self._machine.failures():
            one.finish(self.error)

    def _to_error(self) -> None:
        if not self._qp.closed and self._qp.state not in (QPState.RESET, QPState.ERR):
            self._qp.modify(QPAttr(qp_state=QPState.ERR))

    def _abort(self, text: str) -> None:
        self._move()  # the peer may have ended the channel already
        self._machine.abort(text)

    def _release(self) -> None:
        """The queue pair to ERR, so that nothing uses the memory, which then goes."""
        if self._closed:
            return
        self._closed = True
        self._to_error()
        self._machine.release()
        for one in self._machine.failures():
            one.finish(self.error or LostError("the channel is closed"))
        self._machine.hand = None
        self._memory.let_go()


def _error_of(kind: int, reason: int, text: bytes) -> Exception:
    """What the machine says has ended it."""
    if text.startswith(_BY_PEER):
        return AbortedError(f"the peer ended the channel: {printable(text[len(_BY_PEER) :])}", reason)
    words = text.decode("utf-8", "replace")
    if kind == _BROKEN:
        return LiarError(words)
    if kind == _ABORTED:
        return AbortedError(f"this end ended the channel: {words}", Reason.APPLICATION)
    return LostError(words)
