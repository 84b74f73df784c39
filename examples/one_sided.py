# SPDX-License-Identifier: Apache-2.0
"""A lock, a counter and a barrier in one process' memory, which the others use by READ, WRITE and atomics."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial

import numpy as np

import rnic
from rnic.patterns.onesided import Group, GroupMemory, WordMemory, Words, serve

HOST = "127.0.0.1"
MEMBERS, TURNS = 3, 50


def member(words_port: int, group_port: int) -> None:
    """Adds to a number that only a lock protects; then all add up what they have done."""
    with rnic.connect(HOST, words_port) as one, rnic.connect(HOST, group_port) as two:
        words, group = Words.over(one, 5.0), Group.over(two, 5.0)
        for _ in range(TURNS):
            with words.lock(0, timeout=5.0):
                words.add(0, 1, timeout=5.0)
        group.barrier(timeout=10.0)
        (total,) = group.all_reduce_array(np.array([TURNS]), np.add, timeout=5.0)
        print(
            f"member {group.rank}: the counter is {words.value(0, timeout=5.0)}, all did {total}", flush=True
        )
        group.barrier(timeout=10.0)  # nobody leaves while others read


def main() -> None:
    """The memory, and the members as processes."""
    with rnic.listen(HOST, 0) as first, rnic.listen(HOST, 0) as second:
        words = WordMemory(first.alloc, locks=1, counters=1)
        group = GroupMemory(second.alloc, members=MEMBERS, room=4096)
        servers = [
            threading.Thread(target=first.serve, args=(partial(serve, shared=words),)),
            threading.Thread(target=second.serve, args=(partial(serve, shared=group),)),
        ]
        for server in servers:
            server.start()
        command = [sys.executable, __file__, str(first.port), str(second.port)]
        members = [subprocess.Popen(command) for _ in range(MEMBERS)]
        assert [one.wait(30.0) for one in members] == [0] * MEMBERS
        first.close()
        second.close()
        for server in servers:
            server.join()


if len(sys.argv) > 1:
    member(int(sys.argv[1]), int(sys.argv[2]))
else:
    main()
