# SPDX-License-Identifier: Apache-2.0
"""The registered memory of a connection: receives, bounce buffers for SENDs, results of atomics."""

from __future__ import annotations

from rnic._nic.nic import MR, SGE, RecvWR
from rnic.conn.device import let_go_memory
from rnic.endpoint import Config
from rnic.enums import AccessFlags
from rnic.verbs.pd import PD

RESULT_SIZE = 8
MAX_BOUNCE = 32
MAX_OPS = 64
"""READs, WRITEs and atomics that are posted at a time; more wait."""


STAGE = 4096
"""Bytes of a buffer that a batch copies, and does not register, at most."""


class Memory:
    """Where everything lies.

    Receives, SENDs and atomics complete in the order in which they were posted, and no more are posted at a
    time than there are places: so the place of each is its number, modulo the number of places.

    What is sent is copied into a bounce buffer, not registered as it comes: to register costs more than to
    copy 16 KiB, and the caller's buffer is free at once.
    """

    def __init__(self, pd: PD, config: Config) -> None:
        self.receive_size, self.send_size = config.receive_size, config.send_size
        self.receives = config.receives
        self.bounces = min(config.receives, MAX_BOUNCE)
        self.sends_at = config.receives * self.receive_size
        self.results_at = -(-(self.sends_at + self.bounces * self.send_size) // RESULT_SIZE) * RESULT_SIZE
        self.staged_at = self.results_at + MAX_OPS * RESULT_SIZE
        total = self.staged_at + self.send_size
        self.mr: MR = pd.alloc_mr(total, AccessFlags.LOCAL_WRITE)
        self._stage: MR | None = None

    def receive_wr(self, wr_id: int, number: int) -> RecvWR:
        """The work request of a receive."""
        return RecvWR(wr_id, [SGE(self.mr, number % self.receives * self.receive_size, self.receive_size)])

    def received(self, number: int, length: int) -> memoryview:
        """What has arrived there."""
        start = number % self.receives * self.receive_size
        return self.mr.buf[start : start + length]

    def fill(self, number: int, header: bytes, payload: memoryview) -> SGE:
        """Copy a SEND into a bounce buffer."""
        start, middle = self.sends_at + number % self.bounces * self.send_size, len(header)
        length = middle + len(payload)
        with self.mr.buf[start : start + length] as view:
            view[:middle] = header
            view[middle:] = payload
        return SGE(self.mr, start, length)

    def result_sge(self, number: int) -> SGE:
        """Where an atomic leaves what was there before."""
        return SGE(self.mr, self._result_at(number), RESULT_SIZE)

    def result(self, number: int) -> int:
        """What it left."""
        start = self._result_at(number)
        with self.mr.buf[start : start + RESULT_SIZE] as view:
            return int.from_bytes(view, "little")

    def staged(self, length: int) -> memoryview:
        """The buffer for a copy."""
        return self.mr.buf[self.staged_at : self.staged_at + length]

    def stage(self, pd: PD) -> MR:
        """Memory for the copies of a batch: most connections have none."""
        if self._stage is None:
            self._stage = pd.alloc_mr(MAX_OPS * STAGE, AccessFlags.LOCAL_WRITE)
        return self._stage

    def let_go(self) -> None:
        """Give all of it back."""
        for mr in (self.mr, self._stage):
            if mr is not None:
                let_go_memory(mr)

    def _result_at(self, number: int) -> int:
        return self.results_at + number % MAX_OPS * RESULT_SIZE
