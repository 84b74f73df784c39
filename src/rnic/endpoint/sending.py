# SPDX-License-Identifier: Apache-2.0
"""What an end sends: the user's messages and regions, and the work requests that carry them."""

from collections import deque
from typing import TYPE_CHECKING

from rnic.endpoint.buffers import flat
from rnic.endpoint.end import LIVE, NOTHING, Change, End, Posted
from rnic.endpoint.errors import AbortedError, ClosedError, MessageTooLongError, Reason
from rnic.endpoint.events import Event, Region
from rnic.endpoint.frame import FrameType, emit
from rnic.endpoint.hello import Capability, Hello
from rnic.endpoint.outbox import Announcement, Message, Outgoing
from rnic.endpoint.state import Input, State
from rnic.enums import AccessFlags

if TYPE_CHECKING:
    from rnic.endpoint.buffers import AnyBuffer


class Sending(End):
    """The calls of the user that send, and those of the driver that posts work requests."""

    # ------------------------------------------------------------ the user

    def send(self, message: "AnyBuffer", tag: int = 0) -> int:
        """Queue a message of any length; return its handle.  sent() returns that when the buffer is free.

        The bytes are not copied: they must stay as they are until then.  MessageTooLongError when the peer
        does not take so many, ClosedError when nothing can be sent any more, ValueError when the buffer is
        not contiguous in C order, or the peer knows no tags.
        """
        data = flat(message, "send()")
        self._check_message(len(data), tag)
        handle = self._handles + 1
        self._do(self._queue_message, Message(handle, data, tag=tag))
        return handle

    def announce(self, length: int, addr: int, rkey: int, tag: int = 0) -> int:
        """Queue a message that the peer READs from where it lies; return its handle, as send() does.

        The peer must know ANNOUNCE, and the queue pair must let it READ.  The memory must stay registered
        until `taken` has reached the handle.
        """
        self._check_message(length, tag)
        handle = self._handles + 1
        self._do(self._queue_message, Announcement(handle, length, addr, rkey, tag))
        return handle

    def _check_message(self, length: int, tag: int) -> None:
        peer = self._may_send("send")
        if length > peer.max_message:
            raise MessageTooLongError(
                f"a message of {length} bytes is longer than {peer.max_message}, the most the peer takes"
            )
        if not 0 <= tag < 1 << 64:
            raise ValueError(f"send(): tag {tag}, it can be 0 to 2**64 - 1")
        if tag and not self.knows(Capability.TAG):
            raise ValueError(f"send(): the peer speaks version {self.version}, which has no tags")

    def _queue_message(self, message: Message | Announcement) -> None:
        self._outbox.add(message)
        self._handles = message.handle

    @property
    def next_handle(self) -> int:
        """The handle that the next send() returns: cancel() can use it if an exception hides the result."""
        return self._handles + 1

    def cancel(self, handle: int) -> bool:
        """Take back a message of which nothing was handed out yet; return False when it is too late."""
        if self._step is not None:
            self.settle()
        return self._outbox.cancel(handle)

    def stop(self, handle: int) -> bool:
        """Take back a message of which something was handed out; False when the peer does not know STOP.

        The peer drops a message of send() that was not handed out whole; its buffer is free at once.  The
        peer may be READing an announced message: its memory must stay until `taken` has reached the handle.
        """
        if self._step is not None:
            self.settle()
        if not self.knows(Capability.STOP):
            return False
        self._do(self._outbox.stop, handle)
        return True

    def detach(self, handle: int) -> None:
        """Copy the part of a message that was not handed out, so that its buffer is free.

        This needs a driver that copies what next_send() returns.
        """
        if self._step is not None:
            self.settle()
        self._outbox.detach(handle)

    def share(
        self,
        addr: int,
        length: int,
        rkey: int,
        access: AccessFlags,
        shape: tuple[int, ...] = (),
        dtype: str = "",
    ) -> Region:
        """Share memory with the peer, after the messages before; return the region.  withdraw() takes its id.

        `shape` and `dtype` are those of the array in it.  They are not sent to a peer that does not know
        DESCRIBE, or whose receives are too small for them.  ValueError when the peer takes no more regions,
        or the rights are none, or more than the queue pair's.  ClosedError as in send().
        """
        peer = self._may_send("share")
        region, number = self._own.look(addr, length, rkey, access, peer.max_regions, (shape, dtype))
        self._do(self._queue_share, region, number)
        return region

    def _queue_share(self, region: Region, number: int) -> None:
        self._outbox.add(region)
        self._own.add(region, number)

    def withdraw(self, region_id: int) -> None:
        """Tell the peer, after the messages before, that it may no longer use a region.

        The memory must stay registered until the id has left `unreleased`, as requests of the peer may be on
        their way.  ValueError when no such region is shared.
        """
        self._may_send("withdraw")
        self._do(self._queue_withdraw, region_id, self._own.look_withdrawn(region_id))

    def _queue_withdraw(self, region_id: int, unreleased: tuple[int, ...]) -> None:
        self._own.withdraw(region_id, unreleased)
        self._outbox.add(region_id)

    def close(self, now: float, timeout: float | None = None) -> None:
        """Say goodbye after all that is queued.  The peer's messages still come until it says goodbye, too.

        When `timeout` seconds pass before both have said it, the connection is aborted.  Another call only
        sets a new time limit.
        """
        if self._step is not None:
            self.settle()
        if self.state in (State.HELLO, State.RAW):
            self._end(AbortedError("closed before the handshake was over", Reason.APPLICATION))
        if self.state not in LIVE:
            return
        if not self._closing:
            self._do(self._begin_close)
        self._close_by = None if timeout is None else now + timeout

    def _begin_close(self) -> None:
        self._outbox.add(None)
        self._closing = True

    def abort(self, text: str = "the program aborted the connection") -> None:
        """End the connection at once, and tell the peer the reason.  Messages on their way may be lost."""
        if self._step is not None:
            self.settle()
        self._fail(AbortedError(text, Reason.APPLICATION))

    def _may_send(self, what: str) -> Hello:
        if self._step is not None:
            self.settle()
        if self.peer is None:
            raise RuntimeError(f"{what}() before the peer's hello was accepted")
        if self._closing or self.state not in LIVE:
            raise ClosedError(f"{what}() after close()" if self._closing else f"{what}(): connection ended")
        return self.peer

    # ------------------------------------------------------------ what the driver posts

    def next_send(self, kept: deque[Outgoing] | None = None) -> Outgoing | None:
        """Return the next work request to post, in this order on one queue pair; None when there is none.

        Do not call it when the send queue is full.  RuntimeError while receives are to be posted: each SEND
        has to return all credits, or the two ends might wait for each other.  The work request is put into
        `kept`, too, in case an exception hides the result.
        """
        if self._step is not None:
            self.settle()
        if not self._greeted:
            return None
        if self.state is State.ABORTING:
            return self._next_abort(kept)
        if self.state not in LIVE:
            return None
        if self.flow.to_post:
            raise RuntimeError(f"next_send(): {self.flow.to_post} receives have to be posted first")
        return self._next_frame(kept) or self._next_credit(kept) or self._next_probe(kept)

    def _next_abort(self, kept: deque[Outgoing] | None) -> Outgoing | None:
        if any(posted.kind is FrameType.ABORT for posted in self._posted):
            return None
        return self._hand_out(Outgoing(self.flow.handed_out + 1, self._abort), FrameType.ABORT, kept)

    def _next_frame(self, kept: deque[Outgoing] | None) -> Outgoing | None:
        """The next SEND, but for CREDIT.  TAKEN and RELEASE overtake messages, as the peer waits for them."""
        if self.peer is None:
            return None
        number, refill = self.flow.handed_out + 1, self.flow.owed
        if (taken := self._offers.unconfirmed) is not None:
            out = Outgoing(number, emit(FrameType.TAKEN, refill, taken))
            return self._hand_out(out, FrameType.TAKEN, kept, (self._offers.confirm, taken))
        if not self.flow.allow():
            return None
        seen = self._theirs.withdrawals
        if self._theirs.confirmed != seen:
            out = Outgoing(number, emit(FrameType.RELEASE, refill, seen), fence=True)
            return self._hand_out(out, FrameType.RELEASE, kept, (self._theirs.confirm, seen))
        if self._outbox.ready:
            out, kind, cut = self._outbox.look(
                number, refill, self.frame_size, self.knows(Capability.DESCRIBE)
            )
            return self._hand_out(out, kind, kept, (self._outbox.go, cut))
        return None

    def _next_credit(self, kept: deque[Outgoing] | None) -> Outgoing | None:
        if self.flow.owed < self.flow.threshold or not self.flow.allow(reserve=True):
            return None
        out = Outgoing(self.flow.handed_out + 1, emit(FrameType.CREDIT, self.flow.owed))
        return self._hand_out(out, FrameType.CREDIT, kept, (self._note_credit, self.flow.credit_sends + 1))

    def _note_credit(self, number: int) -> None:
        self.flow.credit_sends = number

    def _next_probe(self, kept: deque[Outgoing] | None) -> Outgoing | None:
        if not self._probe_due:
            return None
        out = Outgoing(self.flow.handed_out + 1, b"", probe=True)
        return self._hand_out(out, None, kept, (self._note_probe, self._probes + 1))

    def _note_probe(self, number: int) -> None:
        self._probes, self._probe_due = number, False

    def _hand_out(
        self,
        out: Outgoing,
        kind: FrameType | None,
        kept: deque[Outgoing] | None,
        change: Change = NOTHING,
    ) -> Outgoing:
        flow = self.flow
        told = flow.told if kind in (None, FrameType.ABORT) else flow.posted
        spent = flow.spent + (kind not in (None, FrameType.TAKEN))
        posted = Posted(out.number, kind, out.ends)
        self._do(self._note_handed_out, out, kept, change, posted, told, spent)
        return out

    def _note_handed_out(
        self,
        out: Outgoing,
        kept: deque[Outgoing] | None,
        change: Change,
        posted: Posted,
        told: int,
        spent: int,
    ) -> None:
        carry_out, argument = change
        carry_out(argument)
        self.flow.told, self.flow.spent = told, spent
        if not (self._posted and self._posted[-1] is posted):
            self._posted.append(posted)
        if kept is not None and not (kept and kept[-1] is out):
            kept.append(out)
        self.flow.handed_out = out.number

    # ------------------------------------------------------------ completions

    def sent(self, number: int, now: float) -> tuple[int, ...]:
        """Note that the work requests up to `number` have completed with success: the peer has them.

        Returns the handles of the messages that are now delivered whole: their buffers are free.
        """
        if self._step is not None:
            self.settle()
        if not self.flow.completed < number <= self.flow.handed_out:
            raise ValueError(f"sent({number}): no such work request is outstanding")
        self._heard_at = now
        delivered: list[int] = []
        change: Change = NOTHING
        events: tuple[Event, ...] = ()
        for posted in self._posted:
            if posted.number > number:
                break
            if posted.ends is not None:
                delivered.append(posted.ends)
            elif posted.kind is FrameType.GOODBYE or posted.kind is FrameType.ABORT:
                change, events = self._last_word_arrived(posted.kind)
        short = self.flow.short_between(self.flow.completed, number)
        sent = self.flow.delivered + len(delivered) + short
        self._do(self._note_completed, change, events, *self._inbox.look(events), number, sent)
        return tuple(delivered)

    def _last_word_arrived(self, kind: FrameType) -> tuple[Change, tuple[Event, ...]]:
        if kind is FrameType.GOODBYE and self.state in LIVE:
            return self._said_goodbye(Input.GOODBYE_DELIVERED)
        if kind is FrameType.ABORT and self.state is State.ABORTING:
            return self._mover(Input.ABORT_DELIVERED), ()
        return NOTHING, ()

    def _note_completed(
        self,
        change: Change,
        events: tuple[Event, ...],
        first: int,
        backlog: int,
        number: int,
        messages_sent: int,
    ) -> None:
        self._carry_out(change, events, first, backlog)
        while self._posted and self._posted[0].number <= number:
            self._posted.popleft()
        self.flow.delivered = messages_sent
        self.flow.completed = number
