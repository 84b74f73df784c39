# SPDX-License-Identifier: Apache-2.0
"""One end of a transfer of arrays between two processes of Dask, or a cluster of two workers.

    daskend.py FD serve SCHEME
    daskend.py FD use SCHEME size=BYTES seconds=0.4
    daskend.py cluster SCHEME size=BYTES seconds=0.4

SCHEME: tcp or rnic.  FD is a line to the other end, which the server tells where it listens.  The first two
are comms alone: each array is sent and confirmed, as when a worker asks another one for data.  In the cluster
a task on one worker takes the array that a task on the other has made, which is then asked for again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
import time
from statistics import median
from typing import Any

import numpy as np
from distributed import Client, LocalCluster, wait
from distributed.comm import connect, listen
from distributed.comm.core import Comm
from distributed.protocol import Serialize

LEAST = 4
"""The least number of transfers that are measured, after one that is not."""


def made(size: int, number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """An array whose memory is there, all of it."""
    return np.full(size, number % 251, np.uint8)


def ends(array: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    return int(array[0]) + int(array[-1])


def result(size: int, times: list[float]) -> str:
    return json.dumps({"gbytes_per_s": size / median(times) / 1e9, "transfers": len(times)})


async def answer(comm: Comm) -> None:
    try:
        while True:
            message = await comm.read()
            await comm.write({"sum": ends(message["data"])})
            del message
    except OSError:
        comm.abort()


async def serve(line: socket.socket, scheme: str) -> None:
    async with listen(f"{scheme}://127.0.0.1:0", answer) as listener:
        line.sendall(listener.contact_address.encode() + b"\n")
        await asyncio.to_thread(line.recv, 1)  # until the other end has gone


async def use(address: str, size: int, seconds: float) -> list[float]:
    comm = await connect(address)
    times: list[float] = []
    array, until = made(size, 7), time.perf_counter() + seconds
    while len(times) <= LEAST or time.perf_counter() < until:
        begun = time.perf_counter()
        await comm.write({"data": Serialize(array)})
        assert (await comm.read())["sum"] == 14
        times.append(time.perf_counter() - begun)
    await comm.close()
    return times[1:]


def cluster(scheme: str, size: int, seconds: float) -> list[float]:
    times: list[float] = []
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            protocol=f"{scheme}://",
            dashboard_address=None,
            memory_limit=0,
            silence_logs=logging.CRITICAL,
        ) as running,
        Client(running) as client,
    ):
        first, second = client.scheduler_info()["workers"]
        until = time.perf_counter() + seconds
        while len(times) <= LEAST or time.perf_counter() < until:
            number = len(times)
            array = client.submit(made, size, number, workers=first, key=f"made-{number}")
            wait(array)
            begun = time.perf_counter()
            found = client.submit(ends, array, workers=second, key=f"ends-{number}").result()
            times.append(time.perf_counter() - begun)
            assert found == 2 * (number % 251)
    return times[1:]


def main() -> None:
    logging.disable(logging.CRITICAL)
    words = [word for word in sys.argv[1:] if "=" not in word]
    given = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
    size, seconds = int(given.get("size", 256 << 20)), float(given.get("seconds", 0.4))
    if words[0] == "cluster":
        print(result(size, cluster(words[1], size, seconds)))
        return
    with socket.socket(fileno=int(words[0])) as line:
        if words[1] == "serve":
            asyncio.run(serve(line, words[2]))
        else:
            address = line.makefile().readline().strip()
            print(result(size, asyncio.run(use(address, size, seconds))))


if __name__ == "__main__":
    main()
