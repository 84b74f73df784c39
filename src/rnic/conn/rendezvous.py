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
"""Bytes that one READ fetches at most: a loop has other work, too."""
_READABLE = AccessFlags.REMOTE_READ | AccessFlags.ZERO_BASED


def as_bytes(message: bytes | memoryview) -> bytes:
    """A message; a copy of one that lies in somebody's buffer."""
    return message if isinstance(message, bytes) else bytes(message)


def check_room(length: int, target: memoryview) -> None:
    """ValueError when a message does not fit the buffer of recv_into()."""
    if length > len(target):
        raise ValueError(
            f"recv_into(): the next message has {length} bytes and the buffer {len(target)}: "
            "the message stays, give a larger buffer or call recv()"
        )


class Announced:
    """Messages that lie here for the peer to READ, by their handles."""

    def __init__(self, pd: PD) -> None:
        self._pd = pd
        self._mrs: dict[int, MR] = {}

    def __contains__(self, handle: int) -> bool:
        return handle in self._mrs

    def register(self, handle: int, data: memoryview) -> int:
        """Let the peer READ a message, from address 0 on; its rkey."""
        mr = self._mrs[handle] = self._pd.reg_mr(data, _READABLE)
        return mr.rkey

    def copy(self, handle: int) -> None:
        """From now on the peer READs a copy: the buffer is free.

        Where there is no memory for a copy, a peer that READs the message loses the connection.
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
        """The peer has it, or does not get it."""
        if (mr := self._mrs.get(handle)) is not None:
            let_go_memory(mr)
            del self._mrs[handle]

    def up_to(self, handle: int) -> list[int]:
        """The handles that are no higher."""
        return [one for one in self._mrs if one <= handle]

    def close_all(self) -> None:
        """The connection has ended."""
        for handle in list(self._mrs):
            self.close(handle)


class FetchOp(Op):
    """A READ of a piece of an announced message."""

    def __init__(self, remote: Region, offset: int, mr: MR, start: int) -> None:
        """`start`: where the piece begins in the region."""
        length = min(PIECE, remote.length - offset)
        super().__init__(WROpcode.RDMA_READ, remote, offset, length)
        self.length = length
        self.pieces = [SGE(mr, start, length)]


class Fetch:
    """READs an announced message, piece by piece."""

    def __init__(self, pd: PD, pool: Pool, offer: Offer, target: memoryview | None) -> None:
        self.offer = offer
        self.target = target
        """The user's buffer; None: the message gets bytes of its own."""
        self.unwanted = False
        """Nobody waits for it in this buffer any more."""
        self.data: bytes | memoryview
        self._pd = pd
        self._mr: MR | None = None  # of a piece: pages are taken as they are needed, not as the peer says
        self._addr = 0
        self._hold: Hold | None = None  # registered memory that has the buffer
        if target is None:
            self.data, self._addr = blank(offer.total)
        else:
            self.data = target[: offer.total]
            self._hold = pool.hold(self.data, True)
        self._remote = Region(0, offer.addr, offer.total, offer.rkey, AccessFlags.REMOTE_READ)
        self.here = 0
        """Bytes that have come."""
        self.op = self._next_op()

    @property
    def complete(self) -> bool:
        """All of it is in the buffer."""
        return self.here == self.offer.total

    def step(self) -> None:
        """A READ is over: the next one, unless that was the last."""
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
        """Nothing is written into the buffer any more."""
        self._let_piece_go()
        self._hold = None


class Fetching:
    """The message that the peer has announced, on its way here."""

    def __init__(self, pd: PD, pool: Pool, courier: Courier) -> None:
        self._pd, self._pool, self._courier = pd, pool, courier
        self._fetch: Fetch | None = None
        self.target: memoryview | None = None
        """Where whoever waits for the next message wants it."""
        self._landed_in: memoryview | None = (
            None  # such a buffer, in which the one message lies that is there
        )
        self._own = False  # the next one goes to bytes of its own: a buffer was taken away from under it
        self.error: Exception | None = None
        """Why the message cannot be fetched.  It is tried again when a call for a message has raised it."""

    def step(self, protocol: Protocol, queue: deque[Op]) -> bool:
        """Begin to fetch a message, queue its next READ, or hand it over; False: there is nothing to do."""
        if self._fetch is not None and protocol.offer is not self._fetch.offer:
            self._fetch.close()  # it was handed over, or was never begun
            self._fetch = None
        try:
            if self._fetch is None and not self._begin(protocol):
                return False
            assert self._fetch is not None
            return self._go_on(protocol, self._fetch, queue)
        except (MemoryError, VerbsError) as error:
            self.error = error
            return False

    def _begin(self, protocol: Protocol) -> bool:
        offer, target = protocol.offer, self.target
        if offer is None or self.error is not None or not protocol.may_fetch:
            return False
        if target is not None and len(target) < offer.total:
            return False  # recv_into() says so
        if self._own or not self._is_next(protocol):
            target = None
        self._fetch = Fetch(self._pd, self._pool, offer, target)
        return True

    def _go_on(self, protocol: Protocol, fetch: Fetch, queue: deque[Op]) -> bool:
        protocol.begin_fetch(fetch.offer)
        if fetch.op.done and fetch.op.error is None and not (fetch.complete or fetch.unwanted):
            fetch.step()
        if fetch.complete or (fetch.unwanted and fetch.op.done):
            self._hand_over(protocol, fetch)
        elif not (fetch.op.posted or fetch.op.done) and fetch.op not in queue:
            queue.append(fetch.op)
        else:
            return False
        return True

    def _hand_over(self, protocol: Protocol, fetch: Fetch) -> None:
        """It is here, or where nobody wants it any more, and then it comes again."""
        fetch.close()
        if protocol.offer is fetch.offer:
            self._own = fetch.unwanted
            if fetch.unwanted:
                protocol.give_up_fetch()
            else:
                self._landed_in = fetch.target or self._landed_in
                protocol.fetched(fetch.data)
        self._fetch = None

    def _is_next(self, protocol: Protocol) -> bool:
        """The message that was announced is the next one."""
        return self._courier.hand is None and protocol.peek_event() is None

    def offered(self, protocol: Protocol) -> int:
        """Bytes of the message that was announced, if it is the next one and nobody fetches it; else 0."""
        if self._fetch is not None or protocol.offer is None or not self._is_next(protocol):
            return 0
        return protocol.offer.total

    @property
    def is_landing(self) -> bool:
        """A READ writes into a buffer of the user's."""
        return self._fetch is not None and self._fetch.target is not None and not self._fetch.op.done

    def let_target_go(self, target: memoryview, protocol: Protocol | Raw) -> None:
        """Whoever gave it waits no longer: what is in it is copied, what is on its way comes again."""
        self.target = None
        if self._fetch is not None and self._fetch.target is target:
            self._fetch.unwanted = True
        if self._landed_in is not target or isinstance(protocol, Raw):
            return
        hand = self._courier.hand
        if isinstance(hand, MessageReceived):
            self._courier.hand = copied(hand)
        protocol.copy_messages()  # a message that was asked for by its tag may have taken its place

    def put(self, message: bytes | memoryview, target: memoryview) -> int:
        """A message into the buffer of recv_into(), if it is not there already; its length."""
        check_room(len(message), target)
        if isinstance(message, bytes) or self._landed_in is not target:
            target[: len(message)] = message
        return len(message)

    def close(self) -> None:
        """The connection has ended."""
        if self._fetch is not None:
            self._fetch.close()
            self._fetch = None
