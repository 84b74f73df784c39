# SPDX-License-Identifier: Apache-2.0
"""A process of an MPI program, in the system's Python: messages, a sum of all, access to others' memory."""

import sys
import time
from array import array

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
TURNS = 100


def pattern(rank: int, size: int) -> bytes:
    """Bytes that only this rank sends."""
    return bytes((rank * 7 + i) & 255 for i in range(size))


def around(size: int) -> None:
    """Everyone sends to the next one, and receives from the one before."""
    room = bytearray(size)
    WORLD.Sendrecv(pattern(RANK, size), (RANK + 1) % SIZE, recvbuf=room, source=(RANK - 1) % SIZE)
    assert room == pattern((RANK - 1) % SIZE, size)


def sum_of_all(count: int) -> None:
    """An allreduce, of which everyone knows the result."""
    mine, total = array("d", (RANK + i for i in range(count))), array("d", bytes(8 * count))
    WORLD.Allreduce(mine, total)
    assert list(total) == [SIZE * i + SIZE * (SIZE - 1) / 2 for i in range(count)]


def memory_of_others() -> None:
    """Everyone puts a number into the memory of everyone."""
    memory, mine = array("q", [0] * SIZE), array("q", [RANK + 100])
    window = MPI.Win.Create(memory, 8, comm=WORLD)
    window.Fence()
    for rank in range(SIZE):
        window.Put(mine, rank, (RANK, 1, MPI.INT64_T))
    window.Fence()
    assert list(memory) == [100 + rank for rank in range(SIZE)], memory
    window.Free()


def latency() -> float:
    """Half of a round trip of 8 bytes around all ranks, in microseconds."""
    WORLD.Barrier()
    began = time.perf_counter()
    for _ in range(TURNS):
        around(8)
    return (time.perf_counter() - began) / TURNS * 1e6


for length in (1, 1000, 9000, 1 << 20):
    around(length)
sum_of_all(10000)
memory_of_others()
sys.stdout.write(f"rank {RANK} of {SIZE}: all is well, {latency():.1f} us\n")
