# SPDX-License-Identifier: Apache-2.0
"""The registered memory of a connection: receives, bounce buffers for SENDs, results of atomics."""

from __future__ import annotations

from rnic._nic.nic import MR, SGE, RecvWR
from rnic.conn.device import let_go_memory
from rnic.endpoint import SPARE, Config
from rnic.enums import AccessFlags
from rnic.verbs.pd import PD

RESULT_SIZE = 8
MAX_BOUNCE = 32
MAX_OPS = 64
"""The most READs, WRITEs and atomics that are posted at a time; further ones wait."""
MAX_STAGED = 16384
"""The most bytes of a buffer that a READ or WRITE copies; longer buffers are registered."""
STAGE = 4096
"""The most bytes of a buffer that a batch copies; longer buffers are registered."""


class Memory:
    """The memory of one connection, and where in it each buffer lies.

    Receives, SENDs and atomics complete in the order in which they were posted, and no more are posted at a
    time than there are places: so the place of each is its number, modulo the number of places.

    A SEND is copied into a bounce buffer.  To register the caller's buffer would cost more than to copy
    64 KiB, and after a copy the buffer is free at once.
    """

    def __init__(self, pd: PD, config: Config) -> None:
        self.receive_size, self.send_size = config.receive_size, config.send_size
        self.receives = config.receives + SPARE
        self.bounces = min(config.receives, MAX_BOUNCE)
        self.sends_at = self.receives * self.receive_size
        self.results_at = -(-(self.sends_at + self.bounces * self.send_size) // RESULT_SIZE) * RESULT_SIZE
        self.staged_at = self.results_at + MAX_OPS * RESULT_SIZE
        self.staged_size = min(config.send_size, MAX_STAGED)
        total = self.staged_at + self.staged_size
        self.mr: MR = pd.alloc_mr(total, AccessFlags.LOCAL_WRITE)
        self._stage: MR | None = None

    def receive_wr(self, wr_id: int, number: int) -> RecvWR:
        """Return the work request of receive `number`, counted from 0."""
        return RecvWR(wr_id, [SGE(self.mr, number % self.receives * self.receive_size, self.receive_size)])

    def received(self, number: int, length: int) -> memoryview:
        """Return the `length` bytes that receive `number` has got, as a view of its buffer."""
        start = number % self.receives * self.receive_size
        return self.mr.buf[start : start + length]

    def fill(self, number: int, header: bytes, payload: memoryview) -> SGE:
        """Copy SEND `number` into its bounce buffer; return the scatter/gather entry for it."""
        start, middle = self.sends_at + number % self.bounces * self.send_size, len(header)
        length = middle + len(payload)
        with self.mr.buf[start : start + length] as view:
            view[:middle] = header
            view[middle:] = payload
        return SGE(self.mr, start, length)

    def result_sge(self, number: int) -> SGE:
        """Return the entry for the 8 bytes that receive the old value of atomic `number`."""
        return SGE(self.mr, self._result_at(number), RESULT_SIZE)

    def result(self, number: int) -> int:
        """Return the old value that atomic `number` has fetched."""
        start = self._result_at(number)
        with self.mr.buf[start : start + RESULT_SIZE] as view:
            return int.from_bytes(view, "little")

    def staged(self, length: int) -> memoryview:
        """Return `length` bytes of the buffer in which an operation's data is copied."""
        return self.mr.buf[self.staged_at : self.staged_at + length]

    def stage(self, pd: PD) -> MR:
        """Return the memory for a batch's copies, allocated at the first call: few connections need it."""
        if self._stage is None:
            self._stage = pd.alloc_mr(MAX_OPS * STAGE, AccessFlags.LOCAL_WRITE)
        return self._stage

    def let_go(self) -> None:
        """Deregister all memory of the connection."""
        for mr in (self.mr, self._stage):
            if mr is not None:
                let_go_memory(mr)

    def _result_at(self, number: int) -> int:
        return self.results_at + number % MAX_OPS * RESULT_SIZE
