# SPDX-License-Identifier: Apache-2.0
"""Long messages go from buffer to buffer: the sender announces them, and the receiver READs them."""

from __future__ import annotations

from rnic._nic.nic import MR, SGE, blank
from rnic.conn.device import let_go_memory
from rnic.conn.ops import Op
from rnic.endpoint import Offer, Region
from rnic.enums import AccessFlags, ReregMRFlags, WROpcode
from rnic.verbs.pd import PD

PIECE = 1 << 24
"""Bytes that one READ fetches at most: a loop has other work, too."""
_READABLE = AccessFlags.REMOTE_READ | AccessFlags.ZERO_BASED


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
