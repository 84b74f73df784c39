# SPDX-License-Identifier: Apache-2.0
"""A queue pair that carries a channel: its receives, and the memory from which it sends."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, cast

from rnic import QPAttr
from rnic._nic.nic import SGE, RecvWR, SendWR
from rnic.endpoint.errors import AbortedError, Reason
from rnic.enums import AccessFlags, QPState, QPType, Transport, WCOpcode, WCStatus, WROpcode
from rnic.patterns.chain import QueueError, SendQueue, TornError
from rnic.patterns.credits.flow import ChannelStatistics, Flow
from rnic.patterns.cursor import LiarError
from rnic.patterns.wait import How, Waiter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rnic import QP, Context
    from rnic._nic.nic import WC

__all__ = ["Ends"]

_PLACES = 64  # SENDs on their way, at most
PARTING = 1.0  # seconds for the ABORT to go


class Ends:
    """What both kinds of channels have; each posts, waits and takes in its own way."""

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
        self._flow = Flow(receives, size, max_message, max_backlog)
        if qp.qp_type is not QPType.RC:
            raise ValueError(
                f"a queue pair of {qp.qp_type.name}: a channel needs one of RC, which loses nothing"
            )
        if (pd := qp.pd) is None or qp.recv_cq is None:
            raise ValueError("the queue pair has no recv_cq, or no protection domain")
        if receives > qp.cap.max_recv_wr:
            raise ValueError(
                f"{receives} receives: the queue pair has {qp.cap.max_recv_wr} places (max_recv_wr)"
            )
        if qp.state is QPState.RESET:
            raise ValueError("the queue pair is in RESET: move it to INIT first, where it takes receives")
        self._places = min(_PLACES, qp.cap.max_send_wr)
        self._sends = SendQueue(qp, how, every=max(1, self._places // 4))
        self._receipts = Waiter(qp.recv_cq, how)
        self._qp, self._size, self._receives = qp, size, receives
        self._mr = pd.alloc_mr((receives + self._places) * size, AccessFlags.LOCAL_WRITE)
        self._free = list(range(receives))  # places of the memory where no receive lies
        self._closed = False
        self._torn = False  # an exception that leaves it so has come in the middle of a step
        if cast("Context", qp.context).device.transport is Transport.IWARP:
            qp.confirm_stream(both=True)  # else its SENDs complete before the peer has them
        for place in self._free:
            self._post_receive(place)
        self._free.clear()

    def statistics(self) -> ChannelStatistics:
        """What it has sent and received so far."""
        return self._flow.statistics()

    @property
    def qp(self) -> QP:
        """Its queue pair."""
        return self._qp

    @property
    def peer(self) -> tuple[int, int] | None:
        """Bytes of the peer's receives, and of the longest message that it takes; None ahead of its HELLO."""
        return self._flow.peer

    @property
    def max_message(self) -> int:
        """Bytes of the longest message that it takes."""
        return self._flow.max_message

    @property
    def is_waiting(self) -> bool:
        """Whether a message has come, for which recv() does not wait; it does not look for new ones."""
        return self._flow.is_waiting

    @property
    def error(self) -> Exception | None:
        """What has ended the channel."""
        return self._flow.error

    def _batches(self, wrs: Iterable[SendWR]) -> Iterator[list[SendWR]]:
        """As many at a time as leave half of the places to the next ones, and to SENDs."""
        left = iter(wrs)
        while batch := list(islice(left, self._places // 4 or 1)):
            yield batch

    def _blame(self, error: QueueError) -> Exception:
        """A request has failed: what ended the channel, as the peer may have said why."""
        with suppress(LiarError, QueueError):
            self._arrived(self._receipts.poll())
        self._fail(error)
        found = self._flow.error
        assert found is not None
        is_consequence = isinstance(found, QueueError) and found.wc.status is WCStatus.WR_FLUSH_ERR
        return error if is_consequence else found

    def _kill(self, error: Exception) -> None:
        """What was posted does not end: the queue pair to ERR, so that it touches no memory any more."""
        self._flow.fail(error)
        if self._qp.state is not QPState.ERR:
            self._qp.modify(QPAttr(qp_state=QPState.ERR))

    def _post_receive(self, place: int) -> None:
        self._qp.post_recv(RecvWR(place, [SGE(self._mr, place * self._size, self._size)]))

    def _post_receives(self) -> None:
        for _ in range(self._flow.receives_to_post()):
            self._post_receive(self._free.pop())

    @property
    def _blocking(self) -> int:
        """0 if there is a place for a SEND, else the ticket that gives one."""
        ticket = self._sends.posted + 1 - self._places
        if ticket > self._sends.reached:
            self._sends.reclaim()
        return ticket if ticket > self._sends.reached else 0

    def _post_next(self) -> bool:
        """Post what may go next, in a place that is free; whether there was anything."""
        self._torn = True
        try:
            more = self._post_one()
        except QueueError:  # whose reason the caller looks for
            self._torn = False
            raise
        except Exception as error:  # what was to go is lost
            self._torn = False
            with suppress(Exception):  # of a queue pair that has gone
                self._kill(error)
            raise
        self._torn = False
        return more

    def _post_one(self) -> bool:
        self._post_receives()
        if (out := self._flow.next_send()) is None:
            return False
        header, body = out
        at = (self._receives + self._sends.posted % self._places) * self._size
        end = at + len(header) + len(body)
        self._mr.buf[at : at + len(header)] = header
        self._mr.buf[at + len(header) : end] = body
        wr = SendWR(opcode=WROpcode.SEND, sg_list=(SGE(self._mr, at, end - at),))
        self._sends.post([wr], signaled=self._flow.parting)
        return True

    def _leave(self, message: bytes) -> None:
        """Queue a message, and post what may go now without a wait."""
        self._flow.queue(message)
        while not self._blocking and self._post_next():
            pass

    def _arrived(self, found: list[WC]) -> None:
        """Take what came, each once; raises LiarError, or QueueError."""
        while found:
            wc = found[0]
            if not wc.ok:
                with suppress(TornError):
                    self._sends.reclaim()  # which knows the reason, if it is a SEND
                raise QueueError(wc)
            if wc.opcode is not WCOpcode.RECV:
                raise LiarError(f"the peer sent {wc.opcode.name} to a queue pair that takes SENDs alone")
            at = wc.wr_id * self._size
            self._torn = True
            self._free.append(wc.wr_id)
            del found[0]
            try:
                self._flow.receive(bytes(self._mr.buf[at : at + wc.byte_len]))
            except LiarError:
                self._torn = False
                raise
            self._torn = False

    def _fail(self, error: Exception) -> None:
        """The channel is over; a liar is told."""
        self._flow.fail(error, str(error) if isinstance(error, LiarError) else None)

    def _abort(self, text: str) -> None:
        self._flow.fail(AbortedError(f"this end ended the channel: {text}", Reason.APPLICATION), text)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the channel is closed")

    def _check_whole(self) -> None:
        """End the channel, if a call before this one was broken off in the middle of a step."""
        if self._torn:
            self._torn = False
            self._kill(TornError())

    def _release(self) -> None:
        """The queue pair to ERR, so that nothing uses the memory, which then goes."""
        if not self._closed:
            self._closed = True
            if self._qp.state not in (QPState.RESET, QPState.ERR):
                self._qp.modify(QPAttr(qp_state=QPState.ERR))
            self._mr.close()
