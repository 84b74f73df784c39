# SPDX-License-Identifier: Apache-2.0
"""mpi4py between two ranks, timed as pyend.py is:

    mpiexec -n 2 python mpiend.py put|pingpong SIZE WINDOW SECONDS

put: WINDOW times MPI_Put and an MPI_Win_flush, in one passive epoch, to a window of MPI's own memory.
pingpong: MPI_Send and MPI_Recv there, MPI_Recv and MPI_Send here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import batches
from mpi4py import MPI

WORLD = MPI.COMM_WORLD


def tell(count: int) -> None:
    WORLD.bcast(count)


def told() -> int:
    count: int = WORLD.bcast(None)
    return count


def putter(window: MPI.Win, data: bytearray, times: int) -> Callable[[int], None]:
    put, flush = window.Put, window.Flush

    def run(count: int) -> None:
        for _ in range(count):
            for _ in range(times):
                put(data, 1)
            flush(1)

    return run


def sender(data: bytearray) -> Callable[[int], None]:
    send, recv, answer = WORLD.Send, WORLD.Recv, bytearray(len(data))

    def run(count: int) -> None:
        for _ in range(count):
            send(data, 1)
            recv(answer, 1)

    return run


def echo(data: bytearray) -> None:
    send, recv = WORLD.Send, WORLD.Recv
    while count := told():
        for _ in range(count):
            recv(data, 0)
            send(data, 0)


def put(size: int, times: int, seconds: float) -> None:
    window = MPI.Win.Allocate(size, comm=WORLD)
    if WORLD.rank == 0:
        window.Lock(1)
        found = batches.measure(putter(window, bytearray(size), times), tell, seconds)
        window.Unlock(1)
        batches.show({k: v / times if k.endswith("_us") else v for k, v in found.items()}, size)
    else:
        while told():
            pass
    window.Free()


def pingpong(size: int, seconds: float) -> None:
    data = bytearray(size)
    if WORLD.rank:
        echo(data)
    else:
        batches.show(batches.measure(sender(data), tell, seconds), size)


def main() -> None:
    what, size, times, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    if what == "put":
        put(size, times, seconds)
    else:
        pingpong(size, seconds)


if __name__ == "__main__":
    main()
