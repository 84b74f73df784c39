# SPDX-License-Identifier: Apache-2.0
"""Long messages go from buffer to buffer: the sender announces them, and the receiver READs them."""

from __future__ import annotations

from collections import deque

from rnic._nic.nic import MR, SGE, Courier, Hold, blank
from rnic.conn.device import let_go_memory
from rnic.conn.ops import Op
from rnic.conn.pool import Pool
from rnic.conn.raw import Raw
from rnic.endpoint import MessageReceived, Offer, Protocol, Region
from rnic.endpoint.inbox import copied
from rnic.enums import AccessFlags, ReregMRFlags, WROpcode
from rnic.errors import VerbsError
from rnic.verbs.pd import PD

PIECE = 1 << 24
"""The most bytes that one READ fetches, so that an event loop gets to its other work in between."""
_READABLE = AccessFlags.REMOTE_READ | AccessFlags.ZERO_BASED


def as_bytes(message: bytes | memoryview) -> bytes:
    """Return the message as bytes; a memoryview, which lies in a buffer of the user, is copied."""
    return message if isinstance(message, bytes) else bytes(message)


def check_room(length: int, target: memoryview) -> None:
    """ValueError when a message does not fit the buffer of recv_into()."""
    if length > len(target):
        raise ValueError(
            f"recv_into(): the next message has {length} bytes and the buffer {len(target)}: "
            "the message stays, give a larger buffer or call recv()"
        )


class Announced:
    """The messages of this end that are registered for the peer to READ, by handle."""

    def __init__(self, pd: PD) -> None:
        self._pd = pd
        self._mrs: dict[int, MR] = {}

    def __contains__(self, handle: int) -> bool:
        return handle in self._mrs

    def register(self, handle: int, data: memoryview) -> int:
        """Register a message for the peer to READ; return its rkey.  Its first byte has address 0."""
        mr = self._mrs[handle] = self._pd.reg_mr(data, _READABLE)
        return mr.rkey

    def copy(self, handle: int) -> None:
        """Let the peer READ a copy from now on, so that the user's buffer is free.

        If there is no memory for a copy, the message is deregistered; a peer that READs it then loses the
        connection.
        """
        mr = self._mrs[handle]
        if mr.closed:
            return
        try:
            with mr.buf as data:
                copy = bytearray(data)
            mr.rereg(ReregMRFlags.CHANGE_TRANSLATION, buffer=copy)
        except (MemoryError, VerbsError):
            self.close(handle)

    def close(self, handle: int) -> None:
        """Deregister a message, which the peer has or does not get; without one, do nothing."""
        if (mr := self._mrs.get(handle)) is not None:
            let_go_memory(mr)
            del self._mrs[handle]

    def up_to(self, handle: int) -> list[int]:
        """Return the handles of the messages here, up to and including `handle`."""
        return [one for one in self._mrs if one <= handle]

    def close_all(self) -> None:
        """Deregister all messages, as the connection has ended."""
        for handle in list(self._mrs):
            self.close(handle)


class FetchOp(Op):
    """The READ of one piece of an announced message."""

    def __init__(self, remote: Region, offset: int, mr: MR, start: int) -> None:
        """Make a READ at `offset` of the message; `start` is the offset in `mr` where the piece goes."""
        length = min(PIECE, remote.length - offset)
        super().__init__(WROpcode.RDMA_READ, remote, offset, length)
        self.length = length
        self.pieces = [SGE(mr, start, length)]


class Fetch:
    """READs an announced message, piece by piece."""

    def __init__(self, pd: PD, pool: Pool, offer: Offer, target: memoryview | None) -> None:
        self.offer = offer
        self.target = target
        """The user's buffer for the message; None: the message gets bytes of its own."""
        self.unwanted = False
        """The call that gave the buffer has ended: the message must be fetched again, elsewhere."""
        self.data: bytes | memoryview
        self._pd = pd
        self._mr: MR | None = None  # registers one piece at a time, so a peer's claim pins no pages
        self._addr = 0
        self._hold: Hold | None = None  # the registered memory in which the user's buffer lies
        if target is None:
            self.data, self._addr = blank(offer.total)
        else:
            self.data = target[: offer.total]
            self._hold = pool.hold(self.data, True)
        self._remote = Region(0, offer.addr, offer.total, offer.rkey, AccessFlags.REMOTE_READ)
        self.here = 0
        """The number of bytes that have come."""
        self.op = self._next_op()

    @property
    def complete(self) -> bool:
        """The whole message is in the buffer."""
        return self.here == self.offer.total

    def step(self) -> None:
        """Note that the READ `op` has completed; if bytes are missing, make `op` the next one."""
        self.here = self.op.offset + self.op.length
        if not self.complete:
            self.op = self._next_op()

    def _next_op(self) -> FetchOp:
        if self._hold is not None:
            return FetchOp(self._remote, self.here, self._hold.mr, self._hold.offset + self.here)
        self._let_piece_go()
        length = min(PIECE, self.offer.total - self.here)
        access = AccessFlags.LOCAL_WRITE
        self._mr = self._pd.reg_mr(addr=self._addr + self.here, length=length, access=access)
        return FetchOp(self._remote, self.here, self._mr, 0)

    def _let_piece_go(self) -> None:
        if self._mr is not None:
            let_go_memory(self._mr)
            self._mr = None

    def close(self) -> None:
        """Deregister the memory of the fetch, as no READ writes into it any more."""
        self._let_piece_go()
        self._hold = None


class Fetching:
    """Fetches the messages that the peer announces, one at a time."""

    def __init__(self, pd: PD, pool: Pool, courier: Courier) -> None:
        self._pd, self._pool, self._courier = pd, pool, courier
        self._fetch: Fetch | None = None
        self.target: memoryview | None = None
        """The buffer of the recv_into() that waits for the next message; None: there is none."""
        self.landed_in: memoryview | None = None
        """The user's buffer in which the message lies that is handed over next."""
        self._own = False  # fetch the next message into bytes of its own, as its buffer was withdrawn
        self.error: Exception | None = None
        """Why the message cannot be fetched.  When a call has raised this error, the fetch is tried again."""

    def step(self, protocol: Protocol, queue: deque[Op]) -> bool:
        """Begin to fetch a message, queue its next READ, or hand it over; False if nothing was to do."""
        if self._fetch is not None and protocol.offer is not self._fetch.offer:
            self._fetch.close()  # the message was handed over, or its fetch never began
            self._fetch = None
        try:
            if self._fetch is None and not self._begin(protocol):
                return False
            assert self._fetch is not None
            return self._go_on(protocol, self._fetch, queue)
        except (MemoryError, VerbsError) as error:
            if protocol.wanted or protocol.tags:  # else the next call tries again
                self.error = error
            return False

    def _begin(self, protocol: Protocol) -> bool:
        offer, target = protocol.offer, self.target
        if offer is None or self.error is not None or not protocol.may_fetch:
            return False
        if target is not None and len(target) < offer.total:
            return False  # recv_into() raises ValueError
        if self._own or not self._is_next(protocol):
            target = None
        self._fetch = Fetch(self._pd, self._pool, offer, target)
        return True

    def _go_on(self, protocol: Protocol, fetch: Fetch, queue: deque[Op]) -> bool:
        protocol.begin_fetch(fetch.offer)
        if fetch.op.error is not None:  # the READ could not be posted
            return self._give_up(protocol, fetch, fetch.op.error)
        if fetch.op.done and not (fetch.complete or fetch.unwanted):
            fetch.step()
        if fetch.complete or (fetch.unwanted and fetch.op.done):
            self._hand_over(protocol, fetch)
        elif not (fetch.op.posted or fetch.op.done) and fetch.op not in queue:
            queue.append(fetch.op)
        else:
            return False
        return True

    def _give_up(self, protocol: Protocol, fetch: Fetch, error: Exception) -> bool:
        """Keep the error for the call that asks for the message, which stays with the peer."""
        fetch.close()
        protocol.give_up_fetch()
        self._fetch, self.error = None, error
        return False

    def _hand_over(self, protocol: Protocol, fetch: Fetch) -> None:
        """Give a complete message to the protocol; if its buffer is unwanted, have it fetched again."""
        fetch.close()
        if protocol.offer is fetch.offer:
            self._own = fetch.unwanted
            if fetch.unwanted:
                protocol.give_up_fetch()
            else:
                if fetch.target is not None:
                    self.landed_in = fetch.target
                protocol.fetched(fetch.data)
        self._fetch = None

    def _is_next(self, protocol: Protocol) -> bool:
        """Whether no other message comes before the announced one."""
        return self._courier.hand is None and protocol.peek_event() is None

    def offered(self, protocol: Protocol) -> int:
        """Return the length of the announced message, if it comes next and is not being fetched; else 0."""
        if self._fetch is not None or protocol.offer is None or not self._is_next(protocol):
            return 0
        return protocol.offer.total

    @property
    def is_landing(self) -> bool:
        """A READ is writing into a buffer of the user."""
        return self._fetch is not None and self._fetch.target is not None and not self._fetch.op.done

    def let_target_go(self, target: memoryview, protocol: Protocol | Raw) -> None:
        """Stop using the buffer of a recv_into() that has ended.

        A message that lies in the buffer is copied; one that is on its way is fetched again.
        """
        self.target = None
        if self._fetch is not None and self._fetch.target is target:
            self._fetch.unwanted = True
        if self.landed_in is not target or isinstance(protocol, Raw):
            return
        hand = self._courier.hand
        if isinstance(hand, MessageReceived):
            self._courier.hand = copied(hand)
        protocol.copy_messages()  # the message is there when a recv() with a tag has put it back
        self.landed_in = None

    def put(self, message: bytes | memoryview, target: memoryview) -> int:
        """Copy a message into the buffer of recv_into(), unless it lies there already; return its length."""
        check_room(len(message), target)
        if isinstance(message, bytes) or self.landed_in is not target:
            target[: len(message)] = message
        return len(message)

    def close(self) -> None:
        """End the fetch, as the connection has ended."""
        if self._fetch is not None:
            self._fetch.close()
            self._fetch = None
