# SPDX-License-Identifier: Apache-2.0
"""Either end of every pattern is killed at a random moment: the other end hears of it, and what it has got is
whole.

No call waits for ever, as each has a limit that only a hang meets; how long it took is printed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

import rnic
from patterns import mortals
from patterns.ends import HOST, WAIT
from patterns.memories import client, served
from patterns.mortals import MEMBERS
from patterns.publishers import published, subscribed
from patterns.test_many import reading
from rdmacm.ends import Other, other
from rnic.patterns.onesided import BrokenGroupError, Group, GroupMemory, Store, StoreMemory, WordMemory, Words
from waiting import until

SOAK = bool(os.environ.get("RNIC_SOAK"))
SEEDS = range(20 if SOAK else 1)
LONGEST = 0.05  # seconds until a process is killed, at most


class Moment:
    """A process is killed at one, and it is known when."""

    def __init__(self, process: Other, seed: int) -> None:
        self._process = process
        self._died = 0.0
        self._timer = threading.Timer(Random(seed).uniform(0, LONGEST), self._kill)
        self._timer.start()

    def _kill(self) -> None:
        self._died = monotonic()
        self._process.process.kill()

    def passed(self) -> str:
        """Wait for it; how long ago it was."""
        before = monotonic()
        self._timer.join()
        assert self._died <= before, "something ended ahead of the death"
        return f"{before - self._died:.2f} s"


def hears(process: Other, seed: int, act: Callable[[], None], error: Any = ConnectionError) -> None:
    """Until the process is killed, and `act` has heard of it."""
    moment = Moment(process, seed)
    with pytest.raises(error) as caught:
        act()
    print(f"{type(caught.value).__name__} after {moment.passed()}: {caught.value}")


# ---------------------------------------------------------------- two ends


def on_a_queue_pair(there: Any, here: Any, dies: Any, lives: Any, seed: int) -> None:
    with other(there, dies) as process:
        here(process.way, lambda end: hears(process, seed, partial(lives, end)))


def on_a_connection(dies: Any, lives: Any, seed: int) -> None:
    with rnic.listen(HOST, 0) as listener, other(mortals.connected, listener.port, dies) as process:
        conn = listener.accept(WAIT)
        hears(process, seed, partial(lives, conn))
        conn.abort()


def a_rendezvous(how: str, dies: Any, lives: Any, seed: int) -> None:
    there = mortals.a_rendezvous
    with other(there, dies, how) as process:
        there(process.way, lambda end: hears(process, seed, partial(lives, end)), how)


# ---------------------------------------------------------------- a client dies, and others go on


def of_a_store(seed: int) -> None:
    """Its locks are free again, and no value is torn."""
    with served(StoreMemory, slots=1, value_size=512) as (port, memory), client(Store, port) as store:
        values = []

        def use() -> None:
            store.update(b"key 0", mortals.one_more, WAIT)
            values.append(store.get(b"key 0", WAIT))

        with other(mortals.connected, port, mortals.update) as process:
            until(lambda: memory.clients == 2, "it comes")
            moment = Moment(process, seed)
            until(lambda: use() is None and memory.clients == 1, "the server learns of the death")
            moment.passed()
        store.update(b"key 1", mortals.one_more, WAIT)
        numbers = [int.from_bytes(value[:8], "little") for value in values]
        assert numbers == sorted(set(numbers))
        print(f"{len(numbers)} updates here, {numbers[-1] - len(numbers)} there")


def of_a_lock(seed: int) -> None:
    """The next holder gets it, with a larger number; what the dead one has left half done, it finds."""
    with served(WordMemory, locks=1, counters=2) as (port, memory), client(Words, port) as words:
        numbers, behind = [], 0

        def use() -> None:
            nonlocal behind
            with words.lock(0, WAIT) as number:
                numbers.append(number)
                first, second = (words.value(n, WAIT) for n in range(2))
                assert first - second in (0, 1)
                behind += first - second
                if first == second:
                    words.add(0, timeout=WAIT)
                words.add(1, timeout=WAIT)

        with other(mortals.connected, port, mortals.hold) as process:
            until(lambda: memory.clients == 2, "it comes")
            moment = Moment(process, seed)
            until(lambda: use() is None and memory.clients == 1, "the server learns of the death")
            moment.passed()
        use()
        assert numbers == sorted(set(numbers))
        assert behind <= 1
        assert words.value(0) == words.value(1)
        print(f"{len(numbers)} holders here, {words.value(0) - len(numbers)} there, half done: {behind}")


def of_a_group(seed: int) -> None:
    """All others hear of it; and when they have left, the group is as new."""

    def stay() -> None:
        with rnic.connect(HOST, port) as conn, pytest.raises(BrokenGroupError, match="has left"):
            mortals.reduce(conn)

    with (
        served(GroupMemory, members=MEMBERS, room=4000) as (port, memory),
        ThreadPoolExecutor(MEMBERS) as pool,
    ):
        with other(mortals.connected, port, mortals.reduce) as process:
            others = [pool.submit(stay) for _ in range(MEMBERS - 1)]
            until(lambda: memory.clients == MEMBERS, "all come")
            moment = Moment(process, seed)
            for one in others:
                one.result(WAIT)
            print("BrokenGroupError after", moment.passed())
        until(lambda: memory.clients == 0, "all have left")

        def meet(_: int) -> None:
            with client(Group, port) as group:
                group.barrier(WAIT)

        list(pool.map(meet, range(MEMBERS)))


def of_many(seed: int) -> None:
    """What it had claimed is skipped; its records that came are whole, and another writer's come all."""
    heard: dict[int, int] = {}
    with reading(slots=8, size=500) as (reader, port), ThreadPoolExecutor(1) as pool:
        stop = threading.Event()

        def stay() -> int:
            with rnic.connect(HOST, port) as conn:
                writer, number = mortals.ManyWriter.over(conn, WAIT), 0
                while not stop.is_set():
                    writer.put(b"%d %s" % (writer.number, mortals.content(number)), WAIT)
                    number += 1
                return number

        def take() -> None:
            with suppress(TimeoutError):
                for record in reader.get_many(timeout=0):
                    name, _, rest = record.partition(b" ")
                    mortals.check(rest, heard.setdefault(int(name), 0))
                    heard[int(name)] += 1

        staying = pool.submit(stay)
        with other(mortals.connected, port, mortals.put) as process:
            until(lambda: take() is None and len(heard) == 2, "both write")
            moment = Moment(process, seed)
            until(lambda: take() is None and reader.writers == 1, "the reader learns of the death")
            moment.passed()
        stop.set()
        until(lambda: take() is None and staying.done(), "the other writer goes on")
        total = staying.result()
        until(lambda: take() is None and total in heard.values(), "all that it put comes")
        print(f"records: {heard}, skipped: {reader.skipped}")
        assert reader.skipped <= 1


def of_a_publisher(seed: int) -> None:
    """The publisher and other subscribers do not notice."""
    with published(slots=64) as (publisher, port), subscribed(port) as subscriber:
        publisher.publish(mortals.content(0))
        number = 0

        def use() -> None:
            nonlocal number
            mortals.check(subscriber.get(WAIT), number)
            number += 1
            publisher.publish(mortals.content(number), WAIT)

        with other(mortals.connected, port, mortals.subscribe) as process:
            until(lambda: use() is None and publisher.statistics().subscribers == 2, "it comes")
            moment = Moment(process, seed)
            until(lambda: use() is None and publisher.statistics().subscribers == 1, "it is missed")
            moment.passed()
        print(f"{number} messages")


# ---------------------------------------------------------------- a server dies


def a_server(there: Any, args: tuple[Any, ...], act: Any, seed: int) -> None:
    with other(there, *args) as process:
        conn = rnic.connect(HOST, process.hear())
        hears(process, seed, partial(act, conn))
        conn.abort()


def put_alone(conn: rnic.Connection) -> None:
    writer, number = mortals.ManyWriter.over(conn, WAIT), 0
    while True:
        writer.put_many([mortals.content(n) for n in range(number, number + 3)], WAIT)
        number += 3


M = mortals
STORE, LOCK = {"slots": 1, "value_size": 512}, {"locks": 1, "counters": 2}
RINGS = (M.a_writer, M.a_reader)
DEATHS: dict[str, Callable[[int], None]] = {
    "a ring's writer, queue pairs": partial(
        on_a_queue_pair, M.a_writer, M.a_reader, M.write_ring, M.read_ring
    ),
    "a ring's reader, queue pairs": partial(
        on_a_queue_pair, M.a_reader, M.a_writer, M.read_ring, M.write_ring
    ),
    "a ring's writer, connection": partial(on_a_connection, M.write_over, M.read_over),
    "a ring's reader, connection": partial(on_a_connection, M.read_over, M.write_over),
    "a channel's receiver": partial(on_a_queue_pair, M.a_channel, M.a_channel, M.receive, M.send),
    "a channel's sender": partial(on_a_queue_pair, M.a_channel, M.a_channel, M.send, M.receive),
    "a channel's sender, of a task": partial(
        on_a_queue_pair, M.a_channel, M.a_task_s_channel, M.send, M.receive_in_a_task
    ),
    "a server of calls": partial(on_a_connection, M.answer, M.call),
    "a client of calls": partial(on_a_connection, M.call, M.answer),
    "a rendezvous' sender, read": partial(a_rendezvous, "read", M.send_long, M.receive_long),
    "a rendezvous' sender, write": partial(a_rendezvous, "write", M.send_long, M.receive_long),
    "a rendezvous' receiver, read": partial(a_rendezvous, "read", M.receive_long, M.send_long),
    "a rendezvous' receiver, write": partial(a_rendezvous, "write", M.receive_long, M.send_long),
    "a client of a store": of_a_store,
    "a client of locks": of_a_lock,
    "a member of a group": of_a_group,
    "a writer of many": of_many,
    "a subscriber": of_a_publisher,
    "a store's server": partial(a_server, M.serving, (StoreMemory, STORE), M.update),
    "a lock's server": partial(a_server, M.serving, (WordMemory, LOCK), M.hold),
    "a reader of many": partial(a_server, M.reading, (), put_alone),
    "a publisher": partial(a_server, M.publishing, (True,), M.subscribe),
}


DATAGRAMS = dict.fromkeys(("a subscriber", "a publisher"), pytest.mark.roce)


def freeze(process: Other) -> None:
    """It is not dead, and does nothing."""
    os.kill(process.process.pid, signal.SIGSTOP)
    status = Path(f"/proc/{process.process.pid}/stat")
    until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "it has stopped")


@pytest.mark.roce
def test_a_publisher_of_this_host_that_is_stopped_is_waited_for() -> None:
    with (
        other(mortals.publishing, False) as process,
        subscribed(process.hear(), replay=True) as subscriber,
    ):
        mortals.check(subscriber.get(WAIT), 0)
        freeze(process)
        process.way.send("go on")
        for _ in range(2):
            with pytest.raises(TimeoutError, match="in time"):
                subscriber.get(0.3)
        os.kill(process.process.pid, signal.SIGCONT)
        mortals.check(subscriber.get(WAIT), 1)
        process.kill()
        with pytest.raises(ConnectionError):
            subscriber.get(WAIT)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("who", [pytest.param(who, marks=DATAGRAMS.get(who, ())) for who in DEATHS])
@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_killed_is_missed_at_once_and_has_broken_nothing(who: str, seed: int) -> None:
    print(f"\n{who}, seed {seed}:", end=" ")
    DEATHS[who](seed)
