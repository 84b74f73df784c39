# SPDX-License-Identifier: Apache-2.0
"""The registered memory of a connection: receives, bounce buffers for SENDs, results of atomics."""

from __future__ import annotations

from rnic._nic.nic import MR
from rnic.conn.device import let_go_memory
from rnic.endpoint import SPARE, Config
from rnic.enums import AccessFlags
from rnic.verbs.pd import PD

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
        self.receives = config.receives + SPARE
        self.bounces = min(config.receives, MAX_BOUNCE)
        self.sends_at = self.receives * config.receive_size
        self.results_at = -(-(self.sends_at + self.bounces * config.send_size) // RESULT_SIZE) * RESULT_SIZE
        self.mr: MR = pd.alloc_mr(self.results_at + MAX_OPS * RESULT_SIZE, AccessFlags.LOCAL_WRITE)

    def let_go(self) -> None:
        """Deregister it."""
        let_go_memory(self.mr)
