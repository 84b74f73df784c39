# SPDX-License-Identifier: Apache-2.0
"""NIXL: one agent writes into the other one's memory by UCX, for so many seconds; contents are compared."""

import os
import sys
import time

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config

BYTES = 1 << 20

first, second = (nixl_agent(name, nixl_agent_config(backends=["UCX"])) for name in ("first", "second"))
source, target = (np.zeros(BYTES, np.uint8) for _ in range(2))
for agent, array in ((first, source), (second, target)):
    agent.register_memory([(array.ctypes.data, BYTES, 0, "")], "DRAM")
peer = first.add_remote_agent(second.get_agent_metadata())
ours = first.get_xfer_descs([(source.ctypes.data, BYTES, 0)], "DRAM")
theirs = first.get_xfer_descs([(target.ctypes.data, BYTES, 0)], "DRAM")
rounds, end = 0, time.monotonic() + float(sys.argv[1])
while not rounds or time.monotonic() < end:
    source[:] = np.frombuffer(os.urandom(BYTES), np.uint8)
    work = first.initialize_xfer("WRITE", ours, theirs, peer, b"")
    state = first.transfer(work)
    while state != "DONE":
        assert state == "PROC", state
        state = first.check_xfer_state(work)
    first.release_xfer_handle(work)
    assert (source == target).all(), f"round {rounds}"
    rounds += 1
print(f"{rounds} MiB written and compared")
