# SPDX-License-Identifier: Apache-2.0
"""Finalisers run in the middle of whatever a thread does, also while it holds a lock: they take none."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import rnic
from rdmacm.ends import WAIT, all_quiet
from rnic.conn.face import ListenerFace
from rnic.errors import VerbsError
from rnic.rdmacm import EventChannel, EventType, create_id
from rnic.rdmacm.registry import registry
from waiting import until

HOST = "127.0.0.1"


@contextmanager
def held(lock: threading.RLock) -> Iterator[None]:
    """By another thread: whoever takes it meanwhile would wait."""
    taken, free = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            free.wait(WAIT)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(WAIT)
    try:
        yield
    finally:
        free.set()
        thread.join()


def in_time(call: Callable[[], object]) -> None:
    """It returns while others hold locks."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive(), "it waits for a lock"


def collect(garbage: list[object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        cycle = [*garbage]
        garbage.clear()
        cycle.append(cycle)
        del cycle
        gc.collect()


@contextmanager
def pair() -> Iterator[tuple[list[object], rnic.Connection]]:
    with rnic.listen(HOST, 0) as server:
        taken: list[rnic.Connection] = []
        thread = threading.Thread(target=lambda: taken.append(server.accept(WAIT)))
        thread.start()
        ours: list[object] = [rnic.connect(HOST, server.port)]
        thread.join()
        yield ours, taken[0]
        taken[0].abort()


def test_a_connection_that_is_collected_waits_for_no_lock() -> None:
    with pair() as (garbage, theirs):
        with held(registry.lock):
            in_time(lambda: collect(garbage))
            assert not theirs.closed
        with pytest.raises(ConnectionError):  # it was released afterwards, and the peer hears so
            theirs.recv(WAIT)


def test_an_event_that_is_collected_waits_for_no_lock() -> None:
    with EventChannel() as channel, create_id(channel) as one:
        one.write_cm_event(EventType.USER)
        garbage: list[object] = [channel.get_cm_event(WAIT)]
        with held(channel.lock):
            in_time(lambda: collect(garbage))
        one.destroy()  # it counts as acknowledged


def test_an_id_and_its_channel_that_are_collected_wait_for_no_lock() -> None:
    one = create_id()
    lock = one.channel.lock
    garbage: list[object] = [one, EventChannel()]
    del one
    with held(registry.lock), held(lock):
        in_time(lambda: collect(garbage))


def test_a_connection_of_a_loop_that_has_ended_waits_for_no_lock() -> None:
    async def connect(port: int) -> list[object]:
        return [await rnic.aio.connect(HOST, port)]

    with rnic.listen(HOST, 0) as server:
        taken: list[rnic.Connection] = []
        thread = threading.Thread(target=lambda: taken.append(server.accept(WAIT)))
        thread.start()
        garbage = asyncio.run(connect(server.port))
        thread.join()
        with held(registry.lock):
            in_time(lambda: collect(garbage))
        with pytest.raises(ConnectionError):
            taken[0].recv(WAIT)
        taken[0].abort()
        until(
            lambda: all(not agent.ids - {server._desk.cm_id} for agent in registry.agents()),
            "all is released",
        )


async def listen_in_a_loop(host: str) -> list[object]:
    return [rnic.aio.listen(host, 0)]


@pytest.mark.parametrize("kind", ["sync", "aio"])
@pytest.mark.parametrize("host", [HOST, "0.0.0.0"])
def test_a_listener_that_is_collected_listens_no_longer(kind: str, host: str) -> None:
    garbage: list[object] = [rnic.listen(host, 0)] if kind == "sync" else asyncio.run(listen_in_a_loop(host))
    assert isinstance(garbage[0], ListenerFace)
    port = garbage[0].port
    with held(registry.lock):
        in_time(lambda: collect(garbage))

    def is_free() -> bool:
        try:
            rnic.listen(HOST, port).close()
        except VerbsError:
            return False
        return True

    until(is_free, "the port is free")


def test_a_listener_that_is_collected_warns() -> None:
    garbage = [rnic.listen(HOST, 0, device="roce_lo")]
    assert repr(garbage[0]) == f"<Listener at {garbage[0].address} on roce_lo>"
    with pytest.warns(ResourceWarning, match="unclosed <Listener at"):
        garbage.clear()
    with rnic.listen(HOST, 0, device="iwarp_lo") as server:
        pass
    assert repr(server) == f"<Listener at {server.address} on iwarp_lo, closed>"


def test_an_agent_whose_last_id_is_collected_ends() -> None:
    garbage: list[object] = [rnic.listen(HOST, 0)]
    collect(garbage)  # nobody else wakes the agent: it has to look again at what its finaliser has left
    all_quiet()
