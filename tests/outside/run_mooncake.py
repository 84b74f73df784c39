# SPDX-License-Identifier: Apache-2.0
"""Mooncake's transfer engine: WRITE and READ between two engines for so many seconds, compared."""

import ctypes
import os
import sys
import time

from mooncake.engine import TransferEngine

BYTES = 1 << 20

seconds, device = float(sys.argv[1]), sys.argv[2]
first, second = TransferEngine(), TransferEngine()
for engine in (first, second):
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", device) == 0
source, target = (ctypes.create_string_buffer(BYTES) for _ in range(2))
ours, theirs = ctypes.addressof(source), ctypes.addressof(target)
assert first.register_memory(ours, BYTES) == 0
assert second.register_memory(theirs, BYTES) == 0
peer = f"127.0.0.1:{second.get_rpc_port()}"
rounds, end = 0, time.monotonic() + seconds
while not rounds or time.monotonic() < end:
    data = os.urandom(BYTES)
    source.raw = data
    assert first.transfer_sync_write(peer, ours, theirs, BYTES) == 0
    assert target.raw == data, f"WRITE of round {rounds}"
    ctypes.memset(ours, 0, BYTES)
    assert first.transfer_sync_read(peer, ours, theirs, BYTES) == 0
    assert source.raw == data, f"READ of round {rounds}"
    rounds += 1
print(f"{rounds} MiB written, read and compared", flush=True)
os._exit(0)  # its threads do not end by themselves
