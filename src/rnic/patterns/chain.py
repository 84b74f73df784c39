# SPDX-License-Identifier: Apache-2.0
"""Chains, inline data and unsignaled work: what a send queue can save, with its accounting kept right.

    queue = SendQueue(qp)
    with queue.chain() as chain:                # one doorbell for all of it
        chain.write(sge, addr, rkey)
        chain.write_imm(7, addr, rkey)
    queue.flush()                               # until all has completed

Only every nth request asks for a completion, which stands for all before it, as they complete in order.
Whoever asks for none fills the send queue: its places are given back when a later completion is polled, and
without one they never are.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Self

from rnic._nic.nic import SGE, SendWR
from rnic.enums import SendFlags, WROpcode
from rnic.errors import PostError
from rnic.patterns.wait import How, Waiter, left
from rnic.records import Record
from rnic.times import after

if TYPE_CHECKING:
    from collections.abc import Sequence

    import rnic
    from rnic._nic.nic import MR, WC

__all__ = ["Chain", "QueueError", "SendQueue", "SendQueueStatistics", "TornError", "Update"]

LIFE = 1.0
"""An end that waits so many seconds in vain asks the peer's device for a sign of life."""
_SIGNALED, _INLINE = (
    int(SendFlags.SIGNALED),
    int(SendFlags.INLINE),
)  # numbers: to join flags takes a microsecond
_CARRIES = frozenset(
    {WROpcode.SEND, WROpcode.SEND_WITH_IMM, WROpcode.RDMA_WRITE, WROpcode.RDMA_WRITE_WITH_IMM}
)


class QueueError(ConnectionError):
    """A request failed, and with it the queue pair; `wc` is the completion that tells."""

    def __init__(self, wc: WC) -> None:
        super().__init__(wc.explain())
        self.wc = wc


class TornError(ConnectionError):
    """An exception from outside, such as Ctrl-C, has come in the middle of a step of this end."""

    def __init__(self) -> None:
        super().__init__(
            "an exception from outside, such as Ctrl-C, came while requests were posted or messages taken: "
            "it is not known which, so that this end is over"
        )


class SendQueueStatistics(Record):
    """What a SendQueue has posted."""

    requests: int
    """Work requests."""
    chains: int
    """Calls of post_send()."""
    signaled: int
    """Requests that asked for a completion."""
    inline: int
    """Requests whose bytes were copied when they were posted."""


class SendQueue:
    """The places of a send queue, and the tickets of what was posted.

    The queue pair's send_cq has completions of this send queue alone, and the queue pair was not made with
    sq_sig_all. A ticket is the number of requests posted so far; the ticket of a chain is reached when all of
    it, and all before, has completed. One thread or task uses it at a time.

    every: of how many requests one asks for a completion; the default is a quarter of the send queue.
    """

    def __init__(self, qp: rnic.QP, how: How = How.ADAPTIVE, *, every: int | None = None) -> None:
        if qp.send_cq is None:
            raise ValueError("the queue pair has no send_cq")
        if qp.send_cq is qp.recv_cq:
            raise ValueError("send_cq is also recv_cq: create the queue pair with a send_cq of its own")
        cap = qp.cap
        self.qp, self.depth, self.most_inline = qp, cap.max_send_wr, cap.max_inline_data
        self.every = max(1, self.depth // 4) if every is None else every
        if not 1 <= self.every <= self.depth:
            raise ValueError(f"every {every}: of {self.depth} places, give 1 to {self.depth}")
        self.waiter = Waiter(qp.send_cq, how)
        self.posted = 0
        """The ticket of the last request."""
        self.reached = 0
        """The ticket up to which all has completed."""
        self._signaled = 0  # the ticket of the last request that asked for a completion
        self._chains = self._signals = self._inlined = 0
        self._unnoted: deque[None] = deque()  # one if an exception has come between a post and its note

    @property
    def room(self) -> int:
        """Places that are free, as far as completions were polled."""
        return self.depth - (self.posted - self.reached)

    def statistics(self) -> SendQueueStatistics:
        """What was posted so far."""
        return SendQueueStatistics(self.posted, self._chains, self._signals, self._inlined)

    def chain(self, *, signaled: bool = False, timeout: float | None = None) -> Chain:
        """A block whose requests are posted by one call at its end.

        signaled: the last one asks for a completion, so that wait() can wait for the chain. timeout: seconds
        that the end of the block waits for places in the send queue.
        """
        return Chain(self, signaled, timeout)

    def post(self, wrs: Sequence[SendWR], *, signaled: bool = False, timeout: float | None = None) -> int:
        """Post requests as one chain; returns the ticket of the last.

        wr_id and the flags SIGNALED and INLINE are set here. Waits for places if there are too few. Raises
        ValueError for more requests than the send queue has places, TimeoutError, or QueueError, when nothing
        was posted; PostError, whose index says how many were.
        """
        if len(wrs) > self.depth:
            raise ValueError(f"{len(wrs)} requests in one chain: the send queue has {self.depth} places")
        if not wrs:
            return self.posted
        self._check_whole()
        if self.room < len(wrs):
            self._make_room(len(wrs), timeout)
        last, all_flags = self._signaled, []
        for ticket, wr in enumerate(wrs, self.posted + 1):
            flags = int(wr.send_flags) & ~(_SIGNALED | _INLINE)
            if ticket - last >= self.every or (signaled and wr is wrs[-1]):
                flags |= _SIGNALED
                last = ticket
            if wr.opcode in _CARRIES and sum([sge.length for sge in wr.sg_list]) <= self.most_inline:
                flags |= _INLINE
            wr.wr_id, wr.send_flags = ticket, flags
            all_flags.append(flags)
        try:
            self._unnoted.extend(map(self.qp.post_send, (wrs,)))  # as of Waiter.poll()
        except PostError as error:
            self._note(all_flags[: error.index])
            raise
        self._note(all_flags)
        return self.posted

    def _check_whole(self) -> None:
        if self._unnoted:
            raise TornError

    def post_update(self, wrs: Sequence[SendWR]) -> bool:
        """Post the requests of an Update, if there is room for them; else returns False. Raises PostError."""
        self._check_whole()
        ticket = self.posted + len(wrs)
        if ticket - self.reached > self.depth:
            return False
        signaled = ticket - self._signaled >= self.every  # and then they leave now, with all before
        wrs[0].wr_id = ticket - 1
        wrs[-1].wr_id, wrs[-1].send_flags = ticket, _INLINE | _SIGNALED if signaled else _INLINE
        post = self.qp.post_send if signaled or len(wrs) == 1 else self.qp.raw_post_behind
        try:
            self._unnoted.extend(map(post, (wrs,)))
        except PostError as error:
            self._note((0,)[: error.index])
            raise
        self.posted = ticket
        self._chains += 1
        self._inlined += 1
        if signaled:
            self._signaled = ticket
            self._signals += 1
        self._unnoted.clear()
        return True

    def reclaim(self) -> None:
        """Take the completions that are there; raises QueueError."""
        self._check_whole()
        self._take(self.waiter.last)
        self._take(self.waiter.poll())

    def look(self) -> None:
        """Ask the peer's device for a sign of life, by a WRITE of no bytes; raises QueueError.

        A queue pair that has nothing to send does not notice that its peer is gone. With this it does: it
        fails after its retries.
        """
        self.reclaim()
        if self.room:  # else what has taken the places asks, too
            self.post([SendWR(opcode=WROpcode.RDMA_WRITE)])

    def wait_for_peer(
        self, waiter: Waiter, timeout: float | None = None, *, spin: float | None = None
    ) -> list[WC]:
        """Wait for completions of what the peer does, as waiter.wait(); call look() each second meanwhile.

        When the peer is gone, it raises QueueError, or returns the receives that were flushed.
        """
        until = after(timeout)
        while True:
            soon = monotonic() + LIFE
            try:
                return waiter.wait(timeout=left(soon if until is None else min(soon, until)), spin=spin)
            except TimeoutError:
                if left(until) == 0:
                    raise
                self.look()

    def wait(self, ticket: int, timeout: float | None = None) -> None:
        """Wait until a ticket is reached.

        Raises ValueError if no later request asks for a completion, so that it would never come;
        TimeoutError; QueueError.
        """
        self._check_comes(ticket)
        until = after(timeout)
        self._take(self.waiter.last)
        while self.reached < ticket:
            self._take(self.waiter.wait(timeout=left(until)))

    async def wait_async(self, ticket: int) -> None:
        """The same for a task of asyncio; asyncio.timeout() limits it."""
        self._check_comes(ticket)
        self._take(self.waiter.last)
        while self.reached < ticket:
            self._take(await self.waiter.wait_async())

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was posted has completed; raises TimeoutError or QueueError."""
        if self.posted > self._signaled:  # a WRITE of no bytes touches no memory, and needs no key
            self.post([SendWR(opcode=WROpcode.RDMA_WRITE)], signaled=True, timeout=timeout)
        self.wait(self.posted, timeout)

    def _check_comes(self, ticket: int) -> None:
        self._check_whole()
        if ticket > self._signaled and ticket > self.reached:
            raise ValueError(f"nothing from {ticket} on is signaled: post with signaled=True, or flush()")

    def _note(self, all_flags: Sequence[int]) -> None:
        """Requests with these flags were posted."""
        self._chains += 1
        for flags in all_flags:
            self.posted += 1
            self._inlined += flags & _INLINE == _INLINE
            if flags & _SIGNALED:
                self._signaled = self.posted
                self._signals += 1
        self._unnoted.clear()

    def _make_room(self, places: int, timeout: float | None) -> None:
        self.reclaim()
        until = after(timeout)
        unsignaled = self.posted - self._signaled
        if places > self.depth - unsignaled:  # which would never be given back
            self.flush(timeout)
        while self.room < places:
            self.wait(self.posted + places - self.depth, left(until))

    def _take(self, found: list[WC]) -> None:
        """A second time, behind an exception in the middle, does no harm."""
        for wc in found:
            if not wc.ok:
                raise QueueError(wc)
            self.reached = wc.wr_id
        found.clear()


class Update:
    """WRITEs of bytes and of a word behind them: two requests that are made once and posted many times.

    The bytes go to the place at `addr` that they have in `mr`. The word of 8 bytes, at `word` in `mr`, goes
    to `target` there. What is posted while earlier requests are under way leaves with the next answer to one
    of them, together with what has followed until then (struct rnic_ext_behind).
    """

    def __init__(self, queue: SendQueue, mr: MR, addr: int, rkey: int, word: int, target: int) -> None:
        self._queue, self._mr, self._addr = queue, mr, addr
        write, sge = WROpcode.RDMA_WRITE, SGE(mr, word, 8)
        self._bytes = SendWR(opcode=write, rkey=rkey)
        self._word = SendWR(opcode=write, sg_list=(sge,), remote_addr=addr + target, rkey=rkey)
        self._pair, self._alone = (self._bytes, self._word), (self._word,)

    def post(self, offset: int, length: int) -> bool:
        """Post both, or without bytes the word alone, and wait for nothing.

        False: the send queue has no room, as far as completions were polled, and nothing was posted. Raises
        PostError.
        """
        wrs: tuple[SendWR, ...] = self._alone
        if length:
            wrs, self._bytes.sg_list = self._pair, (SGE(self._mr, offset, length),)
            self._bytes.remote_addr = self._addr + offset
        return self._queue.post_update(wrs)


class Chain:
    """The requests of a `with queue.chain()` block. If the block raises, nothing is posted."""

    def __init__(self, queue: SendQueue, signaled: bool, timeout: float | None) -> None:
        self._queue, self._signaled, self._timeout = queue, signaled, timeout
        self._wrs: list[SendWR] = []
        self.ticket = 0
        """For SendQueue.wait(), after the block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.ticket = self._queue.post(self._wrs, signaled=self._signaled, timeout=self._timeout)

    def send(self, *sges: SGE) -> None:
        """A SEND, to the peer's next receive."""
        self._wrs.append(SendWR(opcode=WROpcode.SEND, sg_list=sges))

    def write(self, sge: SGE, addr: int, rkey: int) -> None:
        """A WRITE of one SGE to the peer's memory."""
        self._wrs.append(SendWR(opcode=WROpcode.RDMA_WRITE, sg_list=(sge,), remote_addr=addr, rkey=rkey))

    def write_imm(self, imm_data: int, addr: int = 0, rkey: int = 0, sge: SGE | None = None) -> None:
        """A WRITE with immediate data, which takes a receive; without an SGE it writes nothing."""
        wr = SendWR(opcode=WROpcode.RDMA_WRITE_WITH_IMM, imm_data=imm_data, remote_addr=addr, rkey=rkey)
        if sge is not None:
            wr.sg_list = (sge,)
        self._wrs.append(wr)

    def read(self, sge: SGE, addr: int, rkey: int) -> None:
        """A READ of the peer's memory into one SGE."""
        self._wrs.append(SendWR(opcode=WROpcode.RDMA_READ, sg_list=(sge,), remote_addr=addr, rkey=rkey))

    def fetch_add(self, sge: SGE, n: int, addr: int, rkey: int) -> None:
        """Add to 8 bytes of the peer's memory; the SGE of 8 bytes gets their old value."""
        opcode = WROpcode.ATOMIC_FETCH_AND_ADD
        self._wrs.append(SendWR(opcode=opcode, sg_list=(sge,), remote_addr=addr, rkey=rkey, compare_add=n))

    def compare_swap(self, sge: SGE, compare: int, swap: int, addr: int, rkey: int) -> None:
        """Replace 8 bytes that equal `compare`; the SGE of 8 bytes gets their old value."""
        self._wrs.append(
            SendWR(
                opcode=WROpcode.ATOMIC_CMP_AND_SWP,
                sg_list=(sge,),
                remote_addr=addr,
                rkey=rkey,
                compare_add=compare,
                swap=swap,
            )
        )
