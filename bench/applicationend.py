# SPDX-License-Identifier: Apache-2.0
"""One end of the examples' parameter server or key-value store, or of what others use for the same.

    applicationend.py FD serve WHAT HOW
    applicationend.py FD use WHAT HOW

WHAT: moving (each worker pulls 4 MiB and pushes 4 MiB), adding (and the server adds them), get, put.
HOW: rnic (the example), sockets (a thread for each connection), shared (multiprocessing.shared_memory).
Options: seconds=0.4 workers=8.  FD is a line to the other end, which the server tells where it is.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client as PipeClient
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import Listener as PipeListener
from multiprocessing.resource_tracker import unregister
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, Protocol

import batches
import numpy as np

import rnic
import rnic.aio

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
import key_value
import parameter_server

HOST = "127.0.0.1"
SIZE = 4 << 20
KEYS = 1000
VALUE = bytes(range(64))
FORK = multiprocessing.get_context("fork")
Say = Callable[[str], None]


class Worker(Protocol):
    """What the example's worker can do."""

    def pull(self) -> None: ...
    def push(self) -> None: ...


class Store(Protocol):
    """What the example's client can do."""

    def get(self, key: bytes) -> bytes | None: ...
    def put(self, key: bytes, value: bytes) -> None: ...


def key(number: int) -> bytes:
    return b"key %d" % (number % KEYS)


def receive(line: socket.socket, into: memoryview) -> None:
    while into:
        if (got := line.recv_into(into)) == 0:
            raise EOFError
        into = into[got:]


# ------------------------------------------------------------------ rnic


class Parameters(parameter_server.Server):
    """The example's, which may leave the additions out."""

    adds = True

    def add(self, step: parameter_server.Array) -> None:
        if self.adds:
            super().add(step)


def serve_rnic(say: Say, what: str) -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as listener:
            agent: Callable[[rnic.aio.Connection], Any]
            if what in ("get", "put"):
                table = key_value.Table(listener.alloc(key_value.ENTRIES * key_value.ENTRY).buf)
                for number in range(KEYS):
                    table.put(key(number), VALUE)
                agent = table.serve
            else:
                parameters = Parameters(listener)
                parameters.adds = what == "adding"
                agent = parameters.serve
            say(f"{listener.port}")
            await listener.serve(agent)

    asyncio.run(main())


def rnic_worker(port: str) -> Worker:
    return parameter_server.Worker(rnic.connect(HOST, int(port)))


def rnic_store(port: str) -> Store:
    return key_value.Client(rnic.connect(HOST, int(port)))


# ------------------------------------------------------------------ sockets


def serve_sockets(say: Say, what: str) -> None:
    params = np.zeros(SIZE // 4, np.float32)
    values = {key(number): VALUE for number in range(KEYS)}

    def parameters(line: socket.socket) -> None:
        step, word = np.empty_like(params), bytearray(1)
        while True:
            receive(line, memoryview(word))
            if word == b"r":
                line.sendall(params)
                continue
            receive(line, memoryview(step).cast("B"))
            if what == "adding":
                np.add(params, step, out=params)
            line.sendall(b"a")

    def store(line: socket.socket) -> None:
        head = bytearray(3)
        while True:
            receive(line, memoryview(head))
            content = bytearray(head[1] + head[2])
            receive(line, memoryview(content))
            name = bytes(content[: head[1]])
            if head[0]:
                values[name] = bytes(content[head[1] :])
            value = values.get(name, b"")
            line.sendall(bytes((len(value),)) + value)

    def attend(line: socket.socket) -> None:
        with line, suppress(EOFError, ConnectionError):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            (store if what in ("get", "put") else parameters)(line)

    with socket.create_server((HOST, 0)) as server:
        say(f"{server.getsockname()[1]}")
        while True:
            threading.Thread(target=attend, args=(server.accept()[0],), daemon=True).start()


class SocketWorker:
    def __init__(self, port: str) -> None:
        self._line = socket.create_connection((HOST, int(port)))
        self._line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.params, self.step = (np.zeros(SIZE // 4, np.float32) for _ in range(2))

    def pull(self) -> None:
        self._line.sendall(b"r")
        receive(self._line, memoryview(self.params).cast("B"))

    def push(self) -> None:
        self._line.sendall(b"w")
        self._line.sendall(self.step)
        receive(self._line, memoryview(bytearray(1)))


class SocketStore:
    def __init__(self, port: str) -> None:
        self._line = socket.create_connection((HOST, int(port)))
        self._line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, key: bytes) -> bytes:
        return self._ask(bytes((0, len(key), 0)) + key)

    def put(self, key: bytes, value: bytes) -> None:
        self._ask(bytes((1, len(key), len(value))) + key + value)

    def _ask(self, question: bytes) -> bytes:
        self._line.sendall(question)
        answer = self._line.recv(256)
        while len(answer) <= answer[0]:
            answer += self._line.recv(256)
        return answer[1:]


# ------------------------------------------------------------------ multiprocessing.shared_memory


def serve_shared(say: Say, what: str) -> None:
    workers = 64
    memory = SharedMemory(create=True, size=(1 + workers) * SIZE)
    params, *steps = np.frombuffer(memory.buf, np.float32).reshape(1 + workers, -1)

    def attend(pipe: Pipe, step: Any) -> None:
        with pipe, suppress(EOFError, ConnectionError):
            while True:
                pipe.recv_bytes()
                if what == "adding":
                    np.add(params, step, out=params)
                pipe.send_bytes(b"added")

    try:
        with PipeListener(family="AF_UNIX") as server:
            say(f"{memory.name} {server.address}")
            for number, step in enumerate(steps, 1):
                pipe = server.accept()
                pipe.send(number)
                threading.Thread(target=attend, args=(pipe, step), daemon=True).start()
    finally:
        memory.unlink()


class SharedWorker:
    def __init__(self, where: str) -> None:
        name, address = where.split()
        self._memory = SharedMemory(name)
        unregister(f"/{name}", "shared_memory")  # else it is unlinked when this process ends
        self._pipe = PipeClient(address)
        places = np.frombuffer(self._memory.buf, np.float32).reshape(-1, SIZE // 4)
        self._params, self._step = places[0], places[self._pipe.recv()]
        self.params, self.step = (np.zeros(SIZE // 4, np.float32) for _ in range(2))

    def pull(self) -> None:
        self.params[:] = self._params

    def push(self) -> None:
        self._step[:] = self.step
        self._pipe.send_bytes(b"add it")
        self._pipe.recv_bytes()


# ------------------------------------------------------------------ measure

SERVERS = {"rnic": serve_rnic, "sockets": serve_sockets, "shared": serve_shared}
WORKERS: dict[str, Callable[[str], Worker]] = {
    "rnic": rnic_worker,
    "sockets": SocketWorker,
    "shared": SharedWorker,
}
STORES: dict[str, Callable[[str], Store]] = {"rnic": rnic_store, "sockets": SocketStore}


def train(worker: Worker, ready: Any, seconds: float) -> tuple[int, float, float]:
    """Steps, and when they began and ended."""
    for _ in range(2):
        worker.pull()
        worker.push()
    ready.wait()
    began, steps = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        worker.pull()
        worker.push()
        steps += 1
    ended = time.monotonic()
    ready.wait()  # nobody goes while others are measured
    return steps, began, ended


def train_all(how: str, where: str, workers: int, seconds: float) -> dict[str, float]:
    """What all workers together have moved."""
    ready, found = FORK.Barrier(workers), FORK.SimpleQueue()

    def child() -> None:
        found.put(train(WORKERS[how](where), ready, seconds))
        os._exit(0)  # connections are not closed one by one

    children = [FORK.Process(target=child) for _ in range(workers)]
    for one in children:
        one.start()
    steps, began, ended = zip(*(found.get() for _ in children), strict=True)
    for one in children:
        one.join()
    took = max(ended) - min(began)
    return {"gbytes_per_s": 2 * SIZE * sum(steps) / took / 1e9, "steps_per_s": sum(steps) / took}


def use(what: str, how: str, where: str, seconds: float) -> dict[str, float]:
    store = STORES[how](where)

    def get(count: int) -> None:
        for number in range(count):
            store.get(key(number))

    def put(count: int) -> None:
        for number in range(count):
            store.put(key(number), VALUE)

    assert store.get(key(7)) == VALUE
    return batches.measure(get if what == "get" else put, lambda _: None, seconds)


def main() -> None:
    fd, role, what, how, *rest = sys.argv[1:]
    given = dict(word.split("=") for word in rest)
    seconds, workers = float(given.get("seconds", 0.4)), int(given.get("workers", 8))
    with socket.socket(fileno=int(fd)) as line, line.makefile("r") as heard:
        if role == "serve":

            def tell(where: str) -> None:
                line.sendall(f"{where}\n".encode())
                threading.Thread(target=leave_with, args=(heard,), daemon=True).start()

            SERVERS[how](tell, what)
        where = heard.readline().strip()
        if what in ("get", "put"):
            found = use(what, how, where, seconds)
        else:
            found = train_all(how, where, workers, seconds)
        print(json.dumps(found), flush=True)


def leave_with(heard: Any) -> None:
    """The server ends with the other end of the line."""
    heard.readline()
    os.kill(os.getpid(), 2)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
