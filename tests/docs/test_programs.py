# SPDX-License-Identifier: Apache-2.0
"""What the example programs promise: no value that was never put, no step that is lost."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rnic
from conn.peers import HOST, WAIT
from forked import FORKS
from waiting import until

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import key_value
import parameter_server

KEY = b"key"
VALUES = [bytes((n,)) * 100 for n in range(8)]
PROCESSES = 3
STEPS = 20


@contextmanager
def served(make: Callable[[rnic.aio.Listener], Any]) -> Iterator[tuple[int, Any]]:
    """An example's server in a thread: its port, and what make() makes of its listener."""
    begun, found = threading.Event(), []

    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as listener:
            made = make(listener)
            stop = asyncio.Event()
            found.append((listener.port, made, asyncio.get_running_loop(), stop))
            serving = asyncio.create_task(listener.serve(made.serve))
            begun.set()
            await stop.wait()
            listener.close()
            await serving

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert begun.wait(WAIT)
    port, made, loop, stop = found[0]
    try:
        yield port, made
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(WAIT)
        assert not thread.is_alive()


def new_table(listener: rnic.aio.Listener) -> key_value.Table:
    return key_value.Table(listener.alloc(key_value.ENTRIES * key_value.ENTRY).buf)


# ------------------------------------------------------------ the key-value store


def test_an_entry_that_is_being_changed_is_never_taken() -> None:
    old, new = (key_value.pack(KEY, value) for value in VALUES[:2])
    first = next(key_value.places(KEY))
    with served(new_table) as (port, table), rnic.connect(HOST, port) as conn:
        store = key_value.Client(conn)
        store.put(KEY, VALUES[0])
        assert store.get(KEY) == VALUES[0]
        for length in range(1, len(old)):
            mixed = new[:length] + old[length:]
            known = key_value.unpack(memoryview(mixed))
            assert known is None or mixed in (old, new)
        table.memory[first : first + 60] = new[:60]
        got: list[bytes | None] = []
        reader = threading.Thread(target=lambda: got.append(store.get(KEY)))
        reader.start()
        until(lambda: store.torn > 10, "the client reads again")
        assert not got
        table.memory[first + 60 : first + len(new)] = new[60:]
        reader.join(WAIT)
        assert got == [VALUES[1]]


def change(port: int, ready: Any) -> None:
    """Another process: puts, until it is killed."""
    with rnic.connect(HOST, port) as conn:
        store = key_value.Client(conn)
        ready.set()
        while True:
            for value in VALUES:
                store.put(KEY, value)


def write_slowly(table: key_value.Table, stop: threading.Event) -> None:
    """As put() does it, but byte by byte, so that others see each entry half written."""
    at = next(key_value.places(KEY))
    while not stop.is_set():
        for value in VALUES:
            for i, byte in enumerate(key_value.pack(KEY, value), at):
                table.memory[i] = byte


def test_gets_beside_puts_give_values_that_were_put() -> None:
    """Puts come by messages; and somebody changes the entry slowly, in another process than the reader."""
    with served(new_table) as (port, table):
        table.put(KEY, VALUES[0])
        ready, seen, stop = FORKS.Event(), FORKS.Value("i", 0), threading.Event()
        reader = FORKS.Process(target=read, args=(port, ready, seen))
        reader.start()
        assert ready.wait(WAIT)
        slow = threading.Thread(target=write_slowly, args=(table, stop))
        slow.start()
        try:
            until(lambda: seen.value or reader.exitcode is not None, "the reader has seen torn entries")
        finally:
            stop.set()
            slow.join(WAIT)
            reader.join(WAIT)
        assert reader.exitcode == 0

        writer = FORKS.Process(target=change, args=(port, ready := FORKS.Event()))
        writer.start()
        assert ready.wait(WAIT)
        with rnic.connect(HOST, port) as conn:
            store = key_value.Client(conn)
            got = {store.get(KEY) for _ in range(20_000)}
        writer.kill()
        writer.join()
        assert got <= set(VALUES)


def read(port: int, ready: Any, seen: Any) -> None:
    """Another process: gets, until some entries were torn."""
    with rnic.connect(HOST, port) as conn:
        store = key_value.Client(conn)
        ready.set()
        while store.torn < 100:
            assert store.get(KEY) in VALUES
        seen.value = store.torn


def test_what_does_not_fit_is_refused() -> None:
    with served(new_table) as (port, _), rnic.connect(HOST, port) as conn:
        store = key_value.Client(conn)
        with pytest.raises(ValueError, match="key and value have 122 together"):
            store.put(KEY, bytes(120))
        numbers = range(2 * key_value.ENTRIES)
        with pytest.raises(ValueError, match="no room for"):
            for number in numbers:
                store.put(b"%d" % number, b"here")
        assert store.get(b"0") == b"here"
        assert store.get(b"%d" % numbers[-1]) is None


# ------------------------------------------------------------ the parameter server


def train(port: int) -> None:
    """Another process: a worker whose every step is 1."""
    with rnic.connect(HOST, port) as conn:
        worker = parameter_server.Worker(conn)
        worker.step[:] = 1
        while worker.next_batch() < STEPS:
            worker.pull()
            worker.push()


def test_no_step_of_a_worker_is_lost() -> None:
    with served(lambda listener: parameter_server.Server(listener, 100_000)) as (port, server):
        processes = [FORKS.Process(target=train, args=(port,)) for _ in range(PROCESSES)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(WAIT)
            assert process.exitcode == 0
        assert np.all(server.params == STEPS)
