# SPDX-License-Identifier: Apache-2.0
"""What the ends of patterns do, here and in a process that will be killed: for ever, looking at what comes.

Record n has the bytes content(n), so whoever gets it knows whether it is whole, and the next one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from multiprocessing.connection import Connection as Way
from typing import Any

import numpy as np

import rnic
from patterns.ends import HOST, WAIT, channel_through, queue_pair
from patterns.test_onesided import one_more
from rnic.patterns.credits import AsyncChannel, Channel
from rnic.patterns.many import ManyReader, ManyWriter
from rnic.patterns.onesided import Group, Store, Words, serve
from rnic.patterns.ports import QueuePairPort, Window
from rnic.patterns.pubsub import MissedError, Publisher, Subscriber
from rnic.patterns.rendezvous import Rendezvous
from rnic.patterns.ring import RingReader, RingWriter
from rnic.patterns.rpc import Client, Server
from rnic.testing import connect_through

RING = 4096
MEMBERS = 3
Act = Callable[[Any], None]


def content(number: int, scale: int = 1) -> bytes:
    return (b"%d " % number + bytes([number % 251]) * (number * 37 % 400)) * scale


def check(record: bytes, number: int, scale: int = 1) -> None:
    assert record == content(number, scale), f"record {number} is {record[:40]!r}, {len(record)} bytes"


# ---------------------------------------------------------------- two ends, each of which goes on for ever


def write_ring(writer: RingWriter) -> None:
    for number in count(0, 3):
        writer.put_many([content(n) for n in range(number, number + 3)], WAIT)


def read_ring(reader: RingReader) -> None:
    number = 0
    while True:
        for record in reader.get_many(timeout=WAIT):
            check(record, number)
            number += 1


def send(channel: Channel) -> None:
    for number in count():
        channel.send(content(number), WAIT)


def receive(channel: Channel) -> None:
    for number in count():
        check(channel.recv(WAIT), number)


def receive_in_a_task(channel: AsyncChannel) -> None:
    async def main() -> None:
        try:
            for number in count():
                async with asyncio.timeout(WAIT):
                    check(await channel.recv(), number)
        finally:
            await channel.abort()

    asyncio.run(main())


def send_long(end: Rendezvous) -> None:
    for number in count():
        end.send(content(number, 200), WAIT)


def receive_long(end: Rendezvous) -> None:
    buffer = bytearray(200_000)
    for number in count():  # some are invited
        found = buffer[: end.recv_into(buffer, WAIT)] if number % 3 else end.recv(WAIT)
        check(found, number, 200)


def call(conn: rnic.Connection) -> None:
    client = Client(conn)
    for number in count():
        check(client.call("echo", content(number), WAIT), number)


def answer(conn: rnic.Connection) -> None:
    numbers = count()

    def echo(body: bytes) -> bytes:
        check(body, next(numbers))
        return body

    Server({"echo": echo}).serve(conn)
    raise AssertionError("the client has said goodbye")


# ---------------------------------------------------------------- clients, each of which goes on for ever


def update(conn: rnic.Connection) -> None:
    store = Store.over(conn, WAIT)
    for number in count():
        store.update(b"key %d" % (number % 2), one_more, WAIT)


def hold(conn: rnic.Connection) -> None:
    """Both counters grow under the lock; whoever finds that a dead holder has left one behind mends it."""
    words, last = Words.over(conn, WAIT), -1
    while True:
        with words.lock(0, WAIT) as number:
            assert number > last
            last = number
            first, second = (words.value(n, WAIT) for n in range(2))
            assert first - second in (0, 1)
            if first == second:
                words.add(0, timeout=WAIT)
            words.add(1, timeout=WAIT)


def reduce(conn: rnic.Connection) -> None:
    group = Group.over(conn, WAIT)
    for number in count():
        total = group.all_reduce_array(np.full(300, group.rank + number), np.add, WAIT)
        assert (total == MEMBERS * number + sum(range(MEMBERS))).all()
        group.barrier(WAIT)


def put(conn: rnic.Connection) -> None:
    writer = ManyWriter.over(conn, WAIT)
    for number in count(0, 3):
        writer.put_many([b"%d %s" % (writer.number, content(n)) for n in range(number, number + 3)], WAIT)


def subscribe(conn: rnic.Connection) -> None:
    """All messages in order, whole, or counted as missed."""
    with Subscriber.over(conn, timeout=WAIT, replay=True) as subscriber:
        number = None
        while True:
            try:
                message = subscriber.get(WAIT)
            except MissedError as error:
                number = number + error.count if number is not None else None
                continue
            number = int(message.split(b" ")[0]) if number is None else number
            check(message, number)
            number += 1


# ---------------------------------------------------------------- processes, told where the other end is


def connected(_: Way, port: int, act: Act) -> None:
    with rnic.connect(HOST, port) as conn:
        act(conn)


def accepting(way: Way, act: Act) -> None:
    """Serves whoever connects."""
    with rnic.listen(HOST, 0) as listener:
        way.send(listener.port)
        listener.serve(act)


def serving(way: Way, kind: Any, sizes: dict[str, int]) -> None:
    with rnic.listen(HOST, 0) as listener:
        memory = kind(listener.alloc, **sizes)
        way.send(listener.port)
        listener.serve(lambda conn: serve(conn, memory))


def reading(way: Way) -> None:
    """Of many."""
    with rnic.listen(HOST, 0) as listener:
        reader = ManyReader(listener, slots=8, size=500)
        threading.Thread(target=listener.serve, args=(reader.serve,), daemon=True).start()
        way.send(listener.port)
        for number in count():
            check(reader.get(WAIT), number)


def publishing(way: Way, busy: bool) -> None:
    with rnic.listen(HOST, 0) as listener, Publisher(listener, slots=64) as publisher:
        threading.Thread(target=listener.serve, args=(publisher.serve,), daemon=True).start()
        publisher.publish(content(0))
        way.send(listener.port)
        for number in count(1):
            if not busy:
                way.recv()
            publisher.publish(content(number))
            threading.Event().wait(1e-4)  # others run, too


def a_channel(way: Way, act: Act) -> None:
    with ExitStack() as stack:
        channel = channel_through(queue_pair(stack), way)
        stack.callback(channel.abort)
        act(channel)


def a_task_s_channel(way: Way, act: Act) -> None:
    with ExitStack() as stack:
        act(channel_through(queue_pair(stack), way, AsyncChannel))


def a_rendezvous(way: Way, act: Act, how: Any) -> None:
    with ExitStack() as stack:
        end = Rendezvous(channel_through(queue_pair(stack), way), how)
        stack.callback(end.abort)
        act(end)


@contextmanager
def a_port(way: Way) -> Iterator[QueuePairPort]:
    """On a queue pair that is connected with the one at the other end of the pipe."""
    with ExitStack() as stack:
        qp = queue_pair(stack)
        connect_through(qp, way)
        port = QueuePairPort(qp)
        stack.callback(port.close)
        yield port


def _tell(way: Way, window: Window) -> None:
    way.send((window.addr, window.length, window.rkey))


def a_writer(way: Way, act: Act) -> None:
    with a_port(way) as port:
        writer = RingWriter(port, Window(*way.recv()))
        _tell(way, port.window(writer.mr))
        act(writer)


def a_reader(way: Way, act: Act) -> None:
    with a_port(way) as port:
        reader = RingReader(port, RING)
        _tell(way, port.window(reader.mr))
        reader.begin(Window(*way.recv()))
        act(reader)


def write_over(conn: rnic.Connection) -> None:
    write_ring(RingWriter.over(conn, WAIT))


def read_over(conn: rnic.Connection) -> None:
    read_ring(RingReader.over(conn, RING, WAIT))
