# SPDX-License-Identifier: Apache-2.0
"""A parameter server: workers read the parameters by RDMA READ, and write their gradients by RDMA WRITE.

Each worker takes the next batch by an atomic addition to a counter in the server's memory.  It reads the
parameters, writes what is to be added to a place of its own, and says so by a message; the server adds it and
answers.  A worker that reads meanwhile gets some numbers from before and some from after: stochastic gradient
descent does not mind.  This program needs NumPy.
"""

import asyncio
import multiprocessing

import numpy as np
from numpy.typing import NDArray

import rnic
from rnic import AccessFlags

PARAMETERS = 1 << 20  # of 4 bytes
RATE = np.float32(0.1)
Array = NDArray[np.float32]


class Server:
    """The parameters, and who changes them."""

    def __init__(self, listener: rnic.aio.Listener, size: int = PARAMETERS) -> None:
        self._counter = listener.alloc(8).buf  # batches that were taken
        self.params: Array = listener.empty(size, np.float32)
        self.params[:] = 0

    async def serve(self, conn: rnic.aio.Connection) -> None:
        """One worker, until it says goodbye."""
        step = conn.empty(self.params.shape, np.float32)
        await conn.share(self._counter, AccessFlags.REMOTE_ATOMIC)
        await conn.share(self.params, AccessFlags.REMOTE_READ)
        await conn.share(step, AccessFlags.REMOTE_WRITE)
        async for _ in conn:
            self.add(step)
            await conn.send(b"added")

    def add(self, step: Array) -> None:
        """Change the parameters."""
        self.params += step


class Worker:
    """What a worker has of the server."""

    def __init__(self, conn: rnic.Connection) -> None:
        self._conn = conn
        self._counter, self._params, self._step = (conn.next_region() for _ in range(3))
        self.params, self.step = (conn.empty(self._params.shape, np.float32) for _ in range(2))

    def next_batch(self) -> int:
        """The number of a batch that no other worker has taken."""
        return self._conn.fetch_add(self._counter, 1)

    def pull(self) -> None:
        """Get the parameters as they are now."""
        self._conn.read(self.params, self._params)

    def push(self) -> None:
        """Have the step added to the parameters; returns when it was."""
        self._conn.write(self.step, self._step)
        self._conn.send(b"add it")
        self._conn.recv()


def sample(batch: int) -> Array:
    """The data: noise around 1, 2, 3, 4, 1, 2, 3, 4 ..."""
    noise = np.random.default_rng(batch).standard_normal(PARAMETERS, np.float32)
    return np.resize(np.arange(1, 5, dtype=np.float32), PARAMETERS) + noise


def work(port: int, batches: int) -> None:
    """A process: learn what the data have in common."""
    with rnic.connect("127.0.0.1", port) as conn:
        worker = Worker(conn)
        while (batch := worker.next_batch()) < batches:
            data = sample(batch)
            worker.pull()
            np.multiply(RATE, data - worker.params, out=worker.step)
            worker.push()


async def main(workers: int = 8, batches: int = 80) -> None:
    """The server; workers in processes of their own."""
    async with rnic.aio.listen("127.0.0.1", 0) as listener:
        server = Server(listener)
        serving = asyncio.create_task(listener.serve(server.serve))
        spawn = multiprocessing.get_context("spawn")
        processes = [spawn.Process(target=work, args=(listener.port, batches)) for _ in range(workers)]
        for process in processes:
            process.start()
        for process in processes:
            await asyncio.to_thread(process.join)
        listener.close()
        await serving
        print(f"{batches} batches by {workers} workers:", server.params.reshape(-1, 4).mean(axis=0).round(1))


if __name__ == "__main__":
    asyncio.run(main())
