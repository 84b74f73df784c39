# SPDX-License-Identifier: Apache-2.0
"""Every pattern on a link that loses packets: all that was said arrives, once, whole and in order.

Each runs again until a packet of its own was lost. What is done by publish and subscribe has tests of its own
(test_pubsub.py): there the datagrams are lost for good, and repaired.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from threading import Thread
from typing import Any

import numpy as np
import pytest

import rnic
from patterns.ends import HOST, WAIT, connections, queue_pairs
from patterns.memories import client, served
from rnic import Faults
from rnic.patterns.credits import Channel
from rnic.patterns.many import ManyReader, ManyWriter
from rnic.patterns.onesided import Group, GroupMemory, Store, StoreMemory, WordMemory, Words
from rnic.patterns.ports import QueuePairPort
from rnic.patterns.rendezvous import Rendezvous
from rnic.patterns.ring import RingReader, RingWriter
from rnic.patterns.rpc import Client, Server
from rnic.rdmacm import create_id

pytestmark = [pytest.mark.wire, pytest.mark.roce]
TIMES = 20  # at 1 %, each of some hundred packets: none is lost in so many only if nothing loses any

Context = Any


def said(seed: int, number: int, longest: int) -> list[bytes]:
    dice = random.Random(seed)
    return [dice.randbytes(dice.randint(0, longest)) for _ in range(number)]


def both(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
    """At the same time."""
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(first), pool.submit(second)
        return one.result(WAIT), two.result(WAIT)


# ------------------------------------------------------------------------------------ what each does


def through_a_ring(writer: RingWriter, reader: RingReader, seed: int) -> None:
    records = said(seed, 300, writer.longest)

    def write() -> None:
        for at in range(0, 300, 3):
            writer.put_many(records[at : at + 3], WAIT)
        writer.end(WAIT)

    assert both(write, lambda: list(reader))[1] == records


def ring_on_queue_pairs(a: rnic.QP, b: rnic.QP, seed: int) -> None:
    with closing(QueuePairPort(a)) as here, closing(QueuePairPort(b)) as there:
        reader = RingReader(there, 4096)
        writer = RingWriter(here, there.window(reader.mr))
        reader.begin(here.window(writer.mr))
        through_a_ring(writer, reader, seed)


def ring_on_connections(seed: int) -> None:
    with connections() as (ours, theirs):
        ends = both(lambda: RingWriter.over(ours, WAIT), lambda: RingReader.over(theirs, 4096, WAIT))
        through_a_ring(*ends, seed)


def credited(a: rnic.QP, b: rnic.QP, seed: int) -> None:
    messages = said(seed, 100, 2000)

    def talk(channel: Channel) -> None:
        for message in messages:
            channel.send(message, WAIT)
        channel.close(WAIT)

    def listen(channel: Channel) -> list[bytes]:
        heard = list(channel)
        channel.close(WAIT)
        return heard

    ours, theirs = Channel(a), Channel(b, receives=8, size=512)
    assert both(lambda: talk(ours), lambda: listen(theirs))[1] == messages


def calls(ours: Any, theirs: Any, seed: int) -> None:
    bodies = said(seed, 100, 3000)

    def serve() -> None:
        Server({"backwards": lambda body: body[::-1]}).serve(theirs)
        theirs.close(WAIT)

    def ask() -> list[bytes]:
        asked = Client(ours)
        begun = [asked.start("backwards", body, WAIT) for body in bodies]
        answers = [one.result(WAIT) for one in begun]
        ours.close(WAIT)
        return answers

    assert both(serve, ask)[1] == [body[::-1] for body in bodies]


def rpc_on_channels(a: rnic.QP, b: rnic.QP, seed: int) -> None:
    calls(Channel(a), Channel(b), seed)


def rpc_on_connections(seed: int) -> None:
    with connections() as (ours, theirs):
        calls(ours, theirs, seed)


def rendezvous(how: Any) -> Callable[[rnic.QP, rnic.QP, int], None]:
    def run(a: rnic.QP, b: rnic.QP, seed: int) -> None:
        messages = said(seed, 10, 200_000)
        ours, theirs = (Rendezvous(Channel(qp), how) for qp in (a, b))

        def talk() -> None:
            for message in messages:
                ours.send(message, WAIT)
            ours.close(WAIT)

        def listen() -> list[bytes]:
            heard = [theirs.recv(WAIT) for _ in messages]
            with pytest.raises(EOFError):
                theirs.recv(WAIT)
            theirs.close(WAIT)
            return heard

        assert both(talk, listen)[1] == messages

    return run


def store(seed: int) -> None:
    """Two clients on keys of their own, and one that they share, whose updates are all there."""

    def use(number: int) -> None:
        dice, kept = random.Random(seed + number), dict[bytes, bytes]()
        with client(Store, port) as one:
            for _ in range(40):
                key = b"%d %d" % (number, dice.randrange(4))
                if dice.random() < 0.3:
                    assert one.delete(key, timeout=WAIT) == (kept.pop(key, None) is not None)
                else:
                    kept[key] = dice.randbytes(dice.randrange(500))
                    one.put(key, kept[key], timeout=WAIT)
                assert one.get(key, WAIT) == kept.get(key)
                one.update(b"shared", lambda old: b"%d" % (int(old or b"0") + 1), WAIT)

    with served(StoreMemory, slots=32, value_size=512) as (port, _):
        both(lambda: use(0), lambda: use(1))
        with client(Store, port) as one:
            assert one.get(b"shared", WAIT) == b"80"


def words(_: int) -> None:
    """What is read and written under a lock is never two clients' at once; a counter counts all."""
    inside: list[int] = []

    def use(number: int) -> None:
        with client(Words, port) as one:
            for _ in range(30):
                with one.lock(0, WAIT):
                    inside.append(number)
                    assert inside == [number]
                    inside.pop()
                one.add(0, 1, WAIT)

    with served(WordMemory, locks=1, counters=1) as (port, _memory):
        both(lambda: use(0), lambda: use(1))
        with client(Words, port) as one:
            assert one.value(0, WAIT) == 60


def group(seed: int) -> None:
    """Members that add up what each gives, again and again."""
    rounds = np.random.default_rng(seed).integers(1 << 32, size=(20, 50), dtype=np.uint64)

    def member(number: int) -> None:
        with client(Group, port) as one:
            for values in rounds:
                total = one.all_reduce_array(values * np.uint64(number), np.add, WAIT)
                assert (total == values * np.uint64(0 + 1 + 2)).all()
            one.barrier(WAIT)

    with served(GroupMemory, members=3, room=400) as (port, _), ThreadPoolExecutor(3) as pool:
        list(pool.map(member, range(3)))


def many(seed: int) -> None:
    records = [[b"%d " % writer + one for one in said(seed + writer, 80, 100)] for writer in range(2)]

    def write(writer: int) -> None:
        with rnic.connect(HOST, listener.port) as conn:
            one = ManyWriter.over(conn, WAIT)
            for record in records[writer]:
                one.put(record, WAIT)

    def read() -> list[bytes]:
        return [reader.get(WAIT) for _ in range(160)]

    with rnic.listen(HOST, 0) as listener, ThreadPoolExecutor(1) as pool:
        reader = ManyReader(listener, slots=16, size=120)
        serving = Thread(target=listener.serve, args=(reader.serve,))
        serving.start()
        reading = pool.submit(read)
        both(lambda: write(0), lambda: write(1))
        heard = reading.result(WAIT)
        listener.close()
        serving.join(WAIT)
    assert [[one for one in heard if one.startswith(b"%d " % writer)] for writer in range(2)] == records
    assert reader.skipped == 0


# ------------------------------------------------------------------------------------ with losses

ON_QUEUE_PAIRS: dict[str, Callable[[rnic.QP, rnic.QP, int], None]] = {
    "ring": ring_on_queue_pairs,
    "credits": credited,
    "rpc": rpc_on_channels,
    "rendezvous by READ": rendezvous("read"),
    "rendezvous by WRITE": rendezvous("write"),
}
ON_CONNECTIONS: dict[str, Callable[[int], None]] = {
    "ring": ring_on_connections,
    "rpc": rpc_on_connections,
    "store": store,
    "lock and counter": words,
    "all-reduce": group,
    "many": many,
}


@contextmanager
def losing(loss: float, *contexts: Context) -> Iterator[Callable[[], int]]:
    """They lose what they send. Gives how many packets it was so far."""
    for seed, ctx in enumerate(contexts):
        ctx.set_faults(Faults(seed=seed, loss=loss))
    try:
        yield lambda: sum(ctx.counters().fault_lost for ctx in contexts)
    finally:
        for ctx in contexts:
            ctx.set_faults(Faults())


losses = pytest.mark.parametrize("loss", [0.01, 0.05])


@losses
@pytest.mark.parametrize("pattern", ON_QUEUE_PAIRS)
def test_on_queue_pairs(pattern: str, loss: float) -> None:
    lost = 0
    for seed in count():
        with queue_pairs() as (a, b), losing(loss, a.context, b.context) as so_far:
            ON_QUEUE_PAIRS[pattern](a, b, seed)
            lost += so_far()
        if lost:
            return
        assert seed < TIMES


@losses
@pytest.mark.parametrize("pattern", ON_CONNECTIONS)
def test_on_connections(pattern: str, loss: float) -> None:
    with ExitStack() as stack:
        anchor = stack.enter_context(create_id())
        anchor.bind_addr((HOST, 0))
        lost = stack.enter_context(losing(loss, anchor.verbs))
        for seed in count():
            ON_CONNECTIONS[pattern](seed)
            if lost():
                return
            assert seed < TIMES
