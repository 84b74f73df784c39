# SPDX-License-Identifier: Apache-2.0
"""Ends of patterns that go on until the other one dies: each checks what it gets, and tells of each piece."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from multiprocessing.connection import Connection as Way
from threading import Event, Thread
from typing import Any

import numpy as np

import rnic
from patterns.ends import HOST, WAIT, queue_pair
from patterns.memories import served
from patterns.publishers import published
from rnic.patterns.credits import Channel
from rnic.patterns.many import ManyReader, ManyWriter
from rnic.patterns.onesided import Group, GroupMemory, Store, StoreMemory, WordMemory, Words
from rnic.patterns.ports import QueuePairPort
from rnic.patterns.pubsub import MissedError, Subscriber
from rnic.patterns.rendezvous import Rendezvous
from rnic.patterns.ring import RingReader, RingWriter
from rnic.patterns.rpc import Client, Server
from rnic.testing import connect_through

Told = Callable[[], object]
OnQueuePair = Callable[[rnic.QP, Way, Told], object]
OnConnection = Callable[[rnic.Connection, Told], object]


def piece(number: int, longest: int = 400) -> bytes:
    """The number, and bytes that belong to it."""
    dice = random.Random(number)
    return number.to_bytes(4, "big") + dice.randbytes(dice.randint(0, longest))


def check(get: Callable[[], bytes], told: Told, longest: int = 400) -> None:
    """Pieces come, in their order."""
    for number in count():
        assert get() == piece(number, longest)
        told()


# ------------------------------------------------------------------------------------ on queue pairs


def on_queue_pair(life: OnQueuePair, way: Way, told: Told) -> None:
    with ExitStack() as stack:
        qp = queue_pair(stack)
        connect_through(qp, way)
        life(qp, way, told)


def puts(writer: RingWriter, told: Told) -> None:
    for number in count(0, 3):
        writer.put_many([piece(number + n) for n in range(3)], WAIT)
        told()


def ring_writes(qp: rnic.QP, way: Way, told: Told) -> None:
    with closing(QueuePairPort(qp)) as port:
        assert way.poll(WAIT)
        writer = RingWriter(port, way.recv())
        way.send(port.window(writer.mr))
        puts(writer, told)


def ring_reads(qp: rnic.QP, way: Way, told: Told) -> None:
    with closing(QueuePairPort(qp)) as port:
        reader = RingReader(port, 4096)
        way.send(port.window(reader.mr))
        assert way.poll(WAIT)
        reader.begin(way.recv())
        check(lambda: reader.get(WAIT), told)


def channel_sends(qp: rnic.QP, _: Way, told: Told) -> None:
    with Channel(qp) as channel:
        for number in count():
            channel.send(piece(number), WAIT)
            told()


def channel_receives(qp: rnic.QP, _: Way, told: Told) -> None:
    with Channel(qp, receives=8, size=128) as channel:
        check(lambda: channel.recv(WAIT), told)


def rendezvous_sends(how: Any) -> OnQueuePair:
    def life(qp: rnic.QP, _: Way, told: Told) -> None:
        with Rendezvous(Channel(qp), how) as end:
            for number in count():
                end.send(piece(number, 50_000), WAIT)
                told()

    return life


def rendezvous_receives(how: Any) -> OnQueuePair:
    def life(qp: rnic.QP, _: Way, told: Told) -> None:
        with Rendezvous(Channel(qp), how) as end:
            check(lambda: end.recv(WAIT), told, 50_000)

    return life


# ------------------------------------------------------------------------------------ on connections


def ring_puts(conn: rnic.Connection, told: Told) -> None:
    puts(RingWriter.over(conn, WAIT), told)


def ring_gets(conn: rnic.Connection, told: Told) -> None:
    reader = RingReader.over(conn, 4096, WAIT)
    check(lambda: reader.get(WAIT), told)


def calls(conn: rnic.Connection, told: Told) -> None:
    """Eight at a time."""
    client = Client(conn)
    for number in count(0, 8):
        asked = [client.start("backwards", piece(number + n), WAIT) for n in range(8)]
        assert [one.result(WAIT) for one in asked] == [piece(number + n)[::-1] for n in range(8)]
        told()


def answers(conn: rnic.Connection, told: Told) -> None:
    def backwards(body: bytes) -> bytes:
        told()
        return body[::-1]

    Server({"backwards": backwards}).serve(conn)


def stores(conn: rnic.Connection, told: Told) -> None:
    """Adds to a number that all clients add to, which is repeated, so that a torn value is seen."""
    store, last = Store.over(conn, WAIT), 0
    while True:
        store.update(b"n", one_more, WAIT)
        now = number_in(store.get(b"n", WAIT))
        assert now > last
        last = now
        told()


def one_more(old: bytes | None) -> bytes:
    return (number_in(old) + 1).to_bytes(8, "little") * 60


def number_in(value: bytes | None) -> int:
    assert value is None or value == value[:8] * 60
    return int.from_bytes(value[:8], "little") if value else 0


def locks(conn: rnic.Connection, told: Told) -> None:
    """What it adds under the lock nobody else does meanwhile."""
    words = Words.over(conn, WAIT)
    while True:
        with words.lock(0, WAIT):
            before = words.add(0, 1, WAIT)
            assert words.value(0, WAIT) == before + 1
        told()


def reduces(conn: rnic.Connection, told: Told) -> None:
    group = Group.over(conn, WAIT)
    for number in count():
        given = np.full(40, number, np.uint64)
        assert (group.all_reduce_array(given, np.add, WAIT) == 2 * given).all()
        told()


def many_puts(conn: rnic.Connection, told: Told) -> None:
    writer = ManyWriter.over(conn, WAIT)
    for number in count():
        writer.put(piece(number, 50), WAIT)
        told()


def hears(conn: rnic.Connection, told: Told) -> None:
    """News in their order; some may be missed."""
    with Subscriber.over(conn, timeout=WAIT) as subscriber:
        last = -1
        while True:
            try:
                one = subscriber.get(WAIT)
            except MissedError:
                continue
            number = int.from_bytes(one[:4], "big")
            assert number > last
            assert one == piece(number)
            last = number
            told()


# ------------------------------------------------------------------------------------ by name

ON_QUEUE_PAIRS: dict[str, OnQueuePair] = {
    "ring writes": ring_writes,
    "ring reads": ring_reads,
    "channel sends": channel_sends,
    "channel receives": channel_receives,
    "rendezvous sends, to READ": rendezvous_sends("read"),
    "rendezvous receives, by READ": rendezvous_receives("read"),
    "rendezvous sends, by WRITE": rendezvous_sends("write"),
    "rendezvous receives, as told": rendezvous_receives("write"),
}
ON_CONNECTIONS: dict[str, OnConnection] = {
    "ring writes": ring_puts,
    "ring reads": ring_gets,
    "calls": calls,
    "answers": answers,
    "store": stores,
    "locks": locks,
    "all-reduce": reduces,
    "many": many_puts,
    "news": hears,
}


# ------------------------------------------------------------------------------------ servers


@contextmanager
def store_served() -> Iterator[int]:
    with served(StoreMemory, slots=2, value_size=480) as (port, _):
        yield port


@contextmanager
def words_served() -> Iterator[int]:
    with served(WordMemory, locks=1, counters=1) as (port, _):
        yield port


@contextmanager
def group_served() -> Iterator[int]:
    with served(GroupMemory, members=2, room=320) as (port, _):
        yield port


@contextmanager
def many_served() -> Iterator[int]:
    with rnic.listen(HOST, 0) as listener:
        reader = ManyReader(listener, slots=16, size=64)
        Thread(target=listener.serve, args=(reader.serve,), daemon=True).start()
        Thread(target=check, args=(lambda: reader.get(None), nobody, 50), daemon=True).start()
        yield listener.port


@contextmanager
def news_served() -> Iterator[int]:
    def publish() -> None:
        for number in count():
            if stopping.is_set():
                return
            publisher.publish(piece(number))

    stopping = Event()
    with published(size=500, slots=64) as (publisher, port):
        publishing = Thread(target=publish)
        publishing.start()
        yield port
        stopping.set()
        publishing.join()


SERVERS = {
    "store": store_served,
    "locks": words_served,
    "all-reduce": group_served,
    "many": many_served,
    "news": news_served,
}


# ------------------------------------------------------------------------------------ who dies


def nobody() -> None:
    """Who is to die tells nobody of what it does."""


def live_on_queue_pair(way: Way, name: str) -> None:
    on_queue_pair(ON_QUEUE_PAIRS[name], way, nobody)


def accept_and_live(way: Way, name: str) -> None:
    with rnic.listen(HOST, 0) as listener:
        way.send(listener.port)
        with listener.accept(WAIT) as conn:
            ON_CONNECTIONS[name](conn, nobody)


def connect_and_live(way: Way, name: str, port: int) -> None:
    def alive() -> None:
        if not way.closed:
            way.send("alive")
            way.close()

    with rnic.connect(HOST, port) as conn:
        ON_CONNECTIONS[name](conn, alive)


def serve_until_killed(way: Way, name: str) -> None:
    with SERVERS[name]() as port:
        way.send(port)
        if name == "all-reduce":  # which takes two
            connect_and_live(way, name, port)
        way.poll(None)
