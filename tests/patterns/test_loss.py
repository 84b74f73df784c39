# SPDX-License-Identifier: Apache-2.0
"""Every pattern on devices that lose packets: all of it arrives, whole, once and in order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

import rnic
from patterns.ends import HOST, WAIT, connections
from patterns.memories import client, served
from patterns.publishers import all_of, published, subscribed
from patterns.test_credits import channels
from patterns.test_credits import echo as echo_messages
from patterns.test_many import reading, writing
from patterns.test_onesided import one_more
from patterns.test_rendezvous import beside, ends
from patterns.test_rendezvous import echo as echo_announced
from patterns.test_ring import on_connections, on_queue_pairs
from patterns.test_rpc import served as answered
from rnic.patterns.onesided import Group, GroupMemory, Store, StoreMemory, WordMemory, Words
from rnic.patterns.rpc import Server
from rnic.rdmacm import create_id

pytestmark = [pytest.mark.wire, pytest.mark.roce]  # TCP repairs its own loss

Losing = Callable[..., AbstractContextManager[None]]
SEED = 3
MEMBERS = 3


@contextmanager
def losing(loss: float, *contexts: Any) -> Iterator[None]:
    """These devices lose what they send, in this block alone; and they did lose something."""
    before = [context.counters().fault_lost for context in contexts]
    for n, context in enumerate(contexts):
        context.set_faults(rnic.Faults(seed=SEED + n, loss=loss))
    try:
        yield
        lost = [now.counters().fault_lost - was for now, was in zip(contexts, before, strict=True)]
    finally:
        for context in contexts:
            context.set_faults(None)
    assert sum(lost) > 0, "nothing was lost, so nothing was tried"
    print(f"lost packets: {lost}", end=", ")


@contextmanager
def losing_here(losing: Losing) -> Iterator[None]:
    """The device of this process's connections."""
    with create_id() as anchor:
        anchor.bind_addr((HOST, 0))
        with losing(anchor.verbs):
            yield


def records(count: int, longest: int) -> list[bytes]:
    dice = random.Random(SEED)
    return [b"1 %d " % n + dice.randbytes(dice.randint(0, longest)) for n in range(count)]


# ---------------------------------------------------------------- the patterns; each says what was compared


def ring(on: Any, losing: Losing, longest: int = 1000) -> str:
    said, heard = records(400, longest), list[bytes]()

    def write() -> None:
        for begin in range(0, len(said), 10):
            writer.put_many(said[begin : begin + 5], WAIT)
            for one in said[begin + 5 : begin + 10]:
                writer.put(one, WAIT)
        writer.end(WAIT)

    with on(4096) as (writer, reader):
        contexts = {id(one.mr.pd.context): one.mr.pd.context for one in (writer, reader)}
        with losing(*contexts.values()), beside(write):
            while found := reader.get_many(timeout=WAIT):
                heard += found
    assert heard == said
    return f"{len(said)} records"


def credits_(losing: Losing) -> str:
    said = records(40, 2000)
    with channels() as (a, b), beside(echo_messages, b):
        with losing(a.qp.context, b.qp.context):
            for one in said:
                a.send(one, WAIT)
                assert a.recv(WAIT) == one
        a.close(WAIT)
    return f"{len(said)} messages and their echoes"


def rpc(losing: Losing) -> str:
    said = records(150, 3000)
    server = Server({"upper": bytes.upper})
    with connections() as pair, answered(pair, server) as caller, losing_here(losing):
        calls = [caller.start("upper", one, WAIT) for one in said]
        assert [one.result() for one in calls] == [one.upper() for one in said]
    return f"{len(said)} replies"


def store(losing: Losing) -> str:
    """Nobody's update is lost, and no value is torn."""
    times = 15

    def use(_: int) -> None:
        with client(Store, port) as one:
            for _ in range(times):
                one.update(b"k", one_more, WAIT)

    with served(StoreMemory, slots=1, value_size=512) as (port, _), ThreadPoolExecutor(MEMBERS) as pool:
        with losing_here(losing):
            list(pool.map(use, range(MEMBERS)))
        with client(Store, port) as one:
            assert one.get(b"k", WAIT) == (MEMBERS * times).to_bytes(8, "little") * 64
    return f"{MEMBERS * times} updates"


def words(losing: Losing) -> str:
    """Nobody else adds between a holder's look and its addition."""
    times, plain = 15, [0]

    def use(_: int) -> list[int]:
        numbers = []
        with client(Words, port) as one:
            for _ in range(times):
                with one.lock(0, WAIT) as number:
                    numbers.append(number)
                    before = plain[0]
                    assert one.add(0, timeout=WAIT) == before
                    plain[0] = before + 1
        return numbers

    memory = served(WordMemory, locks=1, counters=1)
    with memory as (port, _), ThreadPoolExecutor(MEMBERS) as pool, losing_here(losing):
        numbers = [number for found in pool.map(use, range(MEMBERS)) for number in found]
    assert plain == [MEMBERS * times]
    assert sorted(numbers) == list(range(MEMBERS * times))
    return f"{MEMBERS * times} holders of a lock, and a counter"


def group(losing: Losing) -> str:
    times = 10

    def use(rank: int) -> None:
        with client(Group, port) as one:
            for n in range(times):
                total = one.all_reduce_array(np.full(500, rank + n), np.add, WAIT)
                assert (total == MEMBERS * n + sum(range(MEMBERS))).all()
                one.barrier(WAIT)

    memory = served(GroupMemory, members=MEMBERS, room=4000)
    with memory as (port, _), ThreadPoolExecutor(MEMBERS) as pool, losing_here(losing):
        list(pool.map(use, range(MEMBERS)))
    return f"{times} sums and barriers of {MEMBERS} members"


def pubsub(losing: Losing) -> str:
    """Datagrams and the connections of those who repair lose packets."""
    said = records(400, 2000)
    with published(size=2100) as (publisher, port), ThreadPoolExecutor(MEMBERS) as pool, ExitStack() as stack:
        subscribers = [stack.enter_context(subscribed(port)) for _ in range(MEMBERS)]
        hearing = [pool.submit(all_of, one) for one in subscribers]
        with losing(publisher.context):
            for begin in range(0, len(said), 10):
                publisher.publish_many(said[begin : begin + 10], WAIT)
            publisher.end(WAIT)
            for one in hearing:
                assert one.result(WAIT) == (said, 0)
        repaired = [one.statistics().repaired for one in subscribers]
        assert min(repaired) > 0
    return f"{len(said)} messages at {MEMBERS} subscribers, of which {repaired} were repaired"


def many(losing: Losing) -> str:
    said, heard = records(300, 100), list[bytes]()

    def write(port: int) -> None:
        with writing(port) as writer:
            for begin in range(0, len(said), 5):
                writer.put_many(said[begin : begin + 5], WAIT)

    with reading(slots=32, size=120) as (reader, port), ThreadPoolExecutor(2) as pool, losing_here(losing):
        puts = [pool.submit(write, port) for _ in range(2)]
        while len(heard) < 2 * len(said):
            heard += reader.get_many(timeout=WAIT)
        for one in puts:
            one.result(WAIT)
        assert reader.skipped == 0
    assert sorted(heard) == sorted(2 * said)
    return f"{2 * len(said)} records of two writers"


def rendezvous(how: str, losing: Losing) -> str:
    rows = np.random.default_rng(SEED).integers(0, 256, (100, 4000), np.uint8)[:, :3000]
    with ends(how) as (a, b), beside(echo_announced, b):
        with losing(a._channel.qp.context, b._channel.qp.context):
            back = np.zeros_like(rows)
            for _ in range(5):
                a.send(rows, WAIT)
                assert a.recv_into(back, WAIT) == rows.nbytes  # from the second on it is invited
                assert (back == rows).all()
                back[...] = 0
        a.close(WAIT)
    return f"{5 * rows.nbytes} bytes and their echo"


PATTERNS: dict[str, Callable[[Losing], str]] = {
    "ring on queue pairs": partial(ring, on_queue_pairs),
    "ring of short records on queue pairs": partial(ring, on_queue_pairs, longest=50),
    "ring on a connection": partial(ring, on_connections),
    "credits": credits_,
    "rpc": rpc,
    "store": store,
    "lock and counter": words,
    "barrier and all-reduce": group,
    "pubsub": pubsub,
    "many": many,
    "rendezvous, read": partial(rendezvous, "read"),
    "rendezvous, write": partial(rendezvous, "write"),
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_loss_changes_nothing(pattern: str, loss: float) -> None:
    print(f"\n{pattern}, {loss:.0%} loss:", end=" ")
    print("compared:", PATTERNS[pattern](partial(losing, loss)))
