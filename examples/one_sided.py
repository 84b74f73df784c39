# SPDX-License-Identifier: Apache-2.0
"""A lock, a counter and a barrier in one process' memory, which the others use by READ, WRITE and atomics.

The lock protects a file in which all members count; without it some of their changes would get lost.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import numpy as np

import rnic
from rnic.patterns.onesided import Group, GroupMemory, WordMemory, Words, serve

HOST = "127.0.0.1"
MEMBERS, TURNS = 3, 50


def member(words_port: int, group_port: int, file: Path) -> None:
    """Adds to the number in the file and to the counter; then all add up what they have done."""
    with rnic.connect(HOST, words_port) as one, rnic.connect(HOST, group_port) as two:
        words, group = Words.over(one, 5.0), Group.over(two, 5.0)
        group.barrier(timeout=10.0)  # all begin together
        for _ in range(TURNS):
            with words.lock(0, timeout=5.0):
                file.write_text(str(int(file.read_text()) + 1))
            words.add(0, 1, timeout=5.0)  # an atomic: it needs no lock
        group.barrier(timeout=10.0)
        (total,) = group.all_reduce_array(np.array([TURNS]), np.add, timeout=5.0)
        counted, found = words.value(0, timeout=5.0), file.read_text()
        print(f"member {group.rank}: the file has {found}, the counter {counted}, all did {total}")
        group.barrier(timeout=10.0)  # nobody leaves while others read


def main() -> None:
    """The memory, and the members as processes."""
    with (
        rnic.listen(HOST, 0) as first,
        rnic.listen(HOST, 0) as second,
        tempfile.NamedTemporaryFile("w") as file,
    ):
        file.write("0")
        file.flush()
        words = WordMemory(first.alloc, locks=1, counters=1)
        group = GroupMemory(second.alloc, members=MEMBERS, room=4096)
        servers = [
            threading.Thread(target=first.serve, args=(partial(serve, shared=words),)),
            threading.Thread(target=second.serve, args=(partial(serve, shared=group),)),
        ]
        for server in servers:
            server.start()
        command = [sys.executable, __file__, str(first.port), str(second.port), file.name]
        members = [subprocess.Popen(command) for _ in range(MEMBERS)]
        assert [one.wait(30.0) for one in members] == [0] * MEMBERS
        first.close()
        second.close()
        for server in servers:
            server.join()


if len(sys.argv) > 1:
    member(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
else:
    main()
