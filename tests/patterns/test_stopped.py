# SPDX-License-Identifier: Apache-2.0
"""Servers beside a process of this host that is stopped in the middle of a copy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

import rnic
from patterns.ends import HOST, WAIT
from patterns.memories import client, served
from rnic.patterns.many import ManyReader, ManyWriter
from rnic.patterns.onesided import AsyncWords, Store, StoreMemory, WordMemory, Words, serve_async
from transport.stranger import Stranger, slot_of
from waiting import until

pytestmark = pytest.mark.own_way
INSIDE, OUTSIDE = 7, 8  # marks of a process


@pytest.fixture(autouse=True)
def shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_LOCAL", "on")


@contextmanager
def stopped_beside(memory: Any) -> Iterator[Callable[[], None]]:
    """A process that is stopped in the middle of a copy of this memory, until the call or the end."""
    pd = memory.mr.pd
    with (
        pd.context.create_cq(1) as cq,
        pd.create_qp(rnic.QPInitAttr(send_cq=cq, recv_cq=cq)) as qp,
        Stranger(slot_of(qp.qp_num)) as stranger,
    ):
        stranger.mark(INSIDE)
        try:
            yield partial(stranger.mark, OUTSIDE)
        finally:
            stranger.mark(OUTSIDE)


def test_a_lock_of_the_dead_is_free_when_no_process_is_stopped_any_more() -> None:
    with served(WordMemory, locks=1, counters=0) as (port, memory), stopped_beside(memory) as go_on:
        lost = rnic.connect(HOST, port)
        words = Words.over(lost, WAIT)
        with pytest.raises(rnic.EndpointError), words.lock(0, WAIT):
            lost.hang_up()
        lost.abort()
        with client(Words, port) as other:
            with pytest.raises(TimeoutError, match="holds the lock"), other.lock(0, 2.0):
                pass
            assert memory.clients == 2
            go_on()
            with other.lock(0, WAIT):
                assert memory.clients == 1


def test_clients_of_a_store_come_and_go_beside_a_stopped_process() -> None:
    """What they hear is no error, though their access ends later."""
    with served(StoreMemory, slots=8, value_size=64) as (port, memory), stopped_beside(memory) as go_on:
        for value in (b"1", b"2", b"3"):
            with client(Store, port) as store:
                store.put(b"key", value, timeout=WAIT)
        assert memory.clients == 3
        go_on()
        until(lambda: memory.clients == 0, "their access has ended")


def test_a_server_of_tasks_goes_on_beside_a_stopped_process() -> None:
    async def scene() -> None:
        async with rnic.aio.listen(HOST, 0) as listener:
            memory = WordMemory(listener.alloc, locks=1, counters=1)
            with stopped_beside(memory) as go_on:
                serving = asyncio.create_task(listener.serve(partial(serve_async, shared=memory)))
                for count in range(2):
                    async with asyncio.timeout(WAIT), await rnic.aio.connect(HOST, listener.port) as conn:
                        words = await AsyncWords.over(conn)
                        assert await words.add(0) == count
                assert memory.clients == 2
                go_on()
                while memory.clients:
                    await asyncio.sleep(0.01)
            listener.close()
            await serving

    asyncio.run(scene())


def test_claims_of_the_dead_are_skipped_when_no_process_is_stopped_any_more() -> None:
    with rnic.listen(HOST, 0) as listener:
        reader = ManyReader(listener, slots=4, size=64)
        serving = threading.Thread(target=listener.serve, args=(reader.serve,))
        serving.start()
        with stopped_beside(reader) as go_on:
            with rnic.connect(HOST, listener.port) as conn:
                ManyWriter.over(conn, WAIT).put(b"one", WAIT)
            assert reader.get(WAIT) == b"one"
            go_on()
        listener.close()
        serving.join(WAIT)
        assert not serving.is_alive()
