# SPDX-License-Identifier: Apache-2.0
"""Ways to the peer's memory: what the patterns ask for, on a queue pair or on a connection.

A pattern's calls are generators that yield what has to be done at the peer, and get the answer; so they are
written once. run() does it in a thread, run_async() in a task.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from rnic._nic.nic import SGE, RecvWR
from rnic.enums import AccessFlags, WCOpcode
from rnic.patterns.chain import QueueError, SendQueue
from rnic.patterns.wait import How, Waiter
from rnic.records import Record

if TYPE_CHECKING:
    import rnic
    import rnic.aio
    from rnic._nic.nic import MR
    from rnic.endpoint import Region
    from rnic.verbs.qp import QP

__all__ = ["ConnectionPort", "Piece", "Port", "QueuePairPort", "Window", "run", "run_async"]

T = TypeVar("T")
_ACCESS = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
BELLS = 4  # receives for doorbells: of each wait the peer rings at most once
BELL_TAG = 0x6C6C6562  # "bell"


class Window(Record):
    """Memory that a peer may use."""

    addr: int
    """Its first byte, as the peer names it."""
    length: int
    """Its bytes."""
    rkey: int
    """Its key."""


class Piece(NamedTuple):
    """Bytes of the own memory that go to the peer's, or come from there."""

    offset: int
    length: int
    remote_offset: int


class Write(NamedTuple):
    """WRITE these pieces, in this order; it need not be known when they are there."""

    mr: MR
    remote: Window
    pieces: Sequence[Piece]


class Read(NamedTuple):
    """READ this piece."""

    mr: MR
    remote: Window
    piece: Piece
    until: float | None


class Ring(NamedTuple):
    """Wake the peer if it sleeps."""


class Sleep(NamedTuple):
    """Sleep until the peer rings; TimeoutError at `until`."""

    until: float | None


class Look(NamedTuple):
    """Whether the peer is still there, which raises if it is not."""


Step = Write | Read | Ring | Sleep | Look
Steps = Generator[Step, None, T]


class Port(Protocol):
    """What a pattern needs of a thread's way to its peer."""

    def memory(self, nbytes: int) -> MR:
        """Memory that the peer may use."""

    def do(self, step: Step) -> None:
        """Carry out a step."""


def run(port: Port, steps: Steps[T]) -> T:
    """Carry out all steps, and return what the pattern says at the end."""
    try:
        while True:
            port.do(next(steps))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def left(until: float | None) -> float | None:
    """Seconds that are left until a time of monotonic()."""
    return None if until is None else max(0.0, until - monotonic())


class QueuePairPort:
    """A connected queue pair (RC), whose send_cq and recv_cq are two, and used by nothing else.

    Its peer must have made its own port before this end rings: a doorbell takes a receive.
    """

    def __init__(self, qp: QP, how: How = How.ADAPTIVE) -> None:
        if qp.recv_cq is None:
            raise ValueError("the queue pair has no recv_cq")
        self.qp = qp
        self.sends = SendQueue(qp, how)
        self._bells = Waiter(qp.recv_cq, how)
        self._receive = RecvWR()
        self._posted = 0
        self._refill()

    def memory(self, nbytes: int) -> MR:
        """Memory of the queue pair's protection domain."""
        return self.qp.pd.alloc_mr(nbytes, _ACCESS)

    def do(self, step: Step) -> None:
        """Carry out a step."""
        match step:
            case Write(mr, remote, pieces):
                self._write(mr, remote, pieces)
            case Read(mr, remote, piece, until):
                with self.sends.chain(signaled=True, timeout=left(until)) as chain:
                    sge = SGE(mr, piece.offset, piece.length)
                    chain.read(sge, remote.addr + piece.remote_offset, remote.rkey)
                self.sends.wait(chain.ticket, left(until))
            case Ring():
                with self.sends.chain() as chain:
                    chain.write_imm(BELL_TAG)
            case Sleep(until):
                self._take(self._bells.wait(timeout=left(until)))
            case Look():
                self.sends.reclaim()
                self._take(self._bells.poll())

    def _write(self, mr: MR, remote: Window, pieces: Sequence[Piece]) -> None:
        with self.sends.chain() as chain:
            for offset, length, remote_offset in pieces:
                chain.write(SGE(mr, offset, length), remote.addr + remote_offset, remote.rkey)

    def _take(self, found: list[Any]) -> None:
        for wc in found:
            if not wc.ok:
                raise QueueError(wc)
            if wc.opcode is not WCOpcode.RECV_RDMA_WITH_IMM:
                raise ConnectionError("the peer sent a message to a queue pair of doorbells")
        self._posted -= len(found)
        self._refill()

    def _refill(self) -> None:
        while self._posted < BELLS:
            self.qp.post_recv(self._receive)
            self._posted += 1
