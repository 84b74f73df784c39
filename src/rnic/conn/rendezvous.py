# SPDX-License-Identifier: Apache-2.0
"""Long messages go from buffer to buffer: the sender announces them, and the receiver READs them."""

from __future__ import annotations

from collections import deque

from rnic._nic.nic import MR, SGE, Courier, blank
from rnic.conn.device import let_go_memory
from rnic.conn.ops import Op
from rnic.endpoint import MessageReceived, Offer, Protocol, Region
from rnic.enums import AccessFlags, ReregMRFlags, WROpcode
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
        """From now on the peer READs a copy: the buffer is free."""
        mr = self._mrs[handle]
        with mr.buf as data:
            copy = bytearray(data)
        mr.rereg(ReregMRFlags.CHANGE_TRANSLATION, buffer=copy)

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

    def __init__(self, remote: Region, offset: int, mr: MR) -> None:
        length = min(PIECE, remote.length - offset)
        super().__init__(WROpcode.RDMA_READ, remote, offset, length)
        self.length = length
        self.pieces = [SGE(mr, offset, length)]


class Fetch:
    """READs an announced message, piece by piece."""

    def __init__(self, pd: PD, offer: Offer, target: memoryview | None) -> None:
        self.offer = offer
        self.target = target
        """The user's buffer; None: the message gets bytes of its own."""
        self.unwanted = False
        """Nobody waits for it in this buffer any more."""
        self.data: bytes | memoryview
        if target is None:
            self.data, addr = blank(offer.total)
            self._mr = pd.reg_mr(addr=addr, length=offer.total, access=AccessFlags.LOCAL_WRITE)
        else:
            self.data = target[: offer.total]
            self._mr = pd.reg_mr(self.data, AccessFlags.LOCAL_WRITE)
        self._remote = Region(0, offer.addr, offer.total, offer.rkey, AccessFlags.REMOTE_READ)
        self.here = 0
        """Bytes that have come."""
        self.op = FetchOp(self._remote, 0, self._mr)

    @property
    def complete(self) -> bool:
        """All of it is in the buffer."""
        return self.here == self.offer.total

    def step(self) -> None:
        """A READ is over: the next one, unless that was the last."""
        self.here = self.op.offset + self.op.length
        if not self.complete:
            self.op = FetchOp(self._remote, self.here, self._mr)

    def close(self) -> None:
        """Nothing is written into the buffer any more."""
        let_go_memory(self._mr)


class Fetching:
    """The message that the peer has announced, on its way here."""

    def __init__(self, pd: PD, courier: Courier) -> None:
        self._pd, self._courier = pd, courier
        self._fetch: Fetch | None = None
        self.target: memoryview | None = None
        """Where whoever waits for the next message wants it."""
        self._landed_in: memoryview | None = None  # such a buffer, which has the message in `hand`

    def step(self, protocol: Protocol, queue: deque[Op]) -> bool:
        """Begin to fetch a message, queue its next READ, or hand it over; False: there is nothing to do."""
        if self._fetch is None:
            offer = protocol.offer
            if offer is None or not protocol.may_fetch:
                return False
            target = self.target
            if target is not None and len(target) < offer.total:
                return False  # recv_into() says so
            if target is not None and not self._is_next(protocol):
                target = None
            self._fetch = Fetch(self._pd, offer, target)
        return self._go_on(protocol, self._fetch, queue)

    def _go_on(self, protocol: Protocol, fetch: Fetch, queue: deque[Op]) -> bool:
        protocol.begin_fetch()
        if fetch.op.done and fetch.op.error is None and not fetch.complete:
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
            if fetch.unwanted:
                protocol.give_up_fetch()
            else:
                self._landed_in = fetch.target
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

    def let_target_go(self, target: memoryview) -> None:
        """Whoever gave it waits no longer: what is in it is copied, what is on its way comes again."""
        self.target = None
        if self._fetch is not None and self._fetch.target is target:
            self._fetch.unwanted = True
        hand = self._courier.hand
        landed = isinstance(hand, MessageReceived) and isinstance(hand.data, memoryview)
        if landed and self._landed_in is target:
            self._courier.hand = MessageReceived(bytes(hand.data), hand.tag)

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
