# SPDX-License-Identifier: Apache-2.0
"""The registered memory of a connection: receives, bounce buffers for SENDs, results of atomics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic._nic.nic import MR, Machine
from rnic.conn.device import let_go_memory
from rnic.endpoint import SPARE, Config
from rnic.enums import AccessFlags
from rnic.verbs.pd import PD

if TYPE_CHECKING:
    from rnic._nic.nic import CQ, QP
    from rnic.conn.pool import Pool

RESULT_SIZE = 8
MAX_BOUNCE = 32
MAX_OPS = 64
"""The most READs, WRITEs and atomics that are posted at a time; further ones wait."""


class Memory:
    """The memory of one connection, and where in it each buffer lies.

    A SEND is copied into a bounce buffer.  To register the caller's buffer would cost more than to copy
    64 KiB, and after a copy the buffer is free at once.
    """

    def __init__(self, pd: PD, config: Config) -> None:
        self._config = config
        self.receives = config.receives + SPARE
        self.bounces = min(config.receives, MAX_BOUNCE)
        self.sends_at = self.receives * config.receive_size
        self.results_at = -(-(self.sends_at + self.bounces * config.send_size) // RESULT_SIZE) * RESULT_SIZE
        self.mr: MR = pd.alloc_mr(self.results_at + MAX_OPS * RESULT_SIZE, AccessFlags.LOCAL_WRITE)

    def machine(
        self, qp: QP, send_cq: CQ, recv_cq: CQ, bounces: int | None = None, pool: Pool | None = None
    ) -> Machine:
        """The machine that moves messages on a queue pair, by this memory; the completion queues may be one.

        `bounces`: how many of the buffers for SENDs it uses; None: all.  `pool`: memory for rdma().
        """
        return Machine(
            qp,
            send_cq,
            self.mr,
            self._config,
            recv_cq=recv_cq,
            bounces=self.bounces if bounces is None else bounces,
            sends_at=self.sends_at,
            results_at=self.results_at,
            places=None if pool is None else pool.places,
            find=None if pool is None else pool.find,
        )

    def let_go(self) -> None:
        """Deregister it."""
        let_go_memory(self.mr)
