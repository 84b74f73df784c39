# SPDX-License-Identifier: Apache-2.0
"""Publish and subscribe on a device: every message once, whole and in order, under loss; who is slow is told;
a publisher that dies is found out; strangers in the group do nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from errno import EINVAL, EOPNOTSUPP
from pathlib import Path

import pytest

import rnic
import rnic.aio
from patterns.ends import HOST, WAIT
from patterns.publishers import Stranger, all_of, published, subscribed
from rnic import Faults, Lose
from rnic.patterns.cursor import LiarError
from rnic.patterns.ports import Piece
from rnic.patterns.pubsub import AsyncSubscriber, MissedError, Publisher, Subscriber
from rnic.patterns.pubsub.subscriber import _merged
from rnic.patterns.pubsub.wire import ENDED, HEAD, HEADER, MAGIC, SLOTS
from waiting import until

pytestmark = pytest.mark.roce
SEND_ONLY = 0x64  # of UD
MANY = 4


def messages(seed: int, count: int, longest: int) -> list[bytes]:
    dice = random.Random(seed)
    return [dice.randbytes(dice.randint(0, longest)) for _ in range(count)]


def test_messages_of_every_length_come_whole_and_in_order() -> None:
    """Those that are longer than a datagram are READ."""
    with published(size=10_000, slots=64) as (publisher, port), subscribed(port) as subscriber:
        longest = publisher.most
        said = [bytes([n % 251]) * n for n in (*range(0, longest, 97), longest - 1, longest)]
        said += [b"a" * (longest + 1), b"b" * 10_000, b"", b"c" * 9999, b"d"]
        for one in said:
            publisher.publish(one, WAIT)
            assert subscriber.get(WAIT) == one
        publisher.publish_many(said[-8:], WAIT)
        publisher.end(WAIT)
        publisher.end(WAIT)
        assert list(subscriber) == said[-8:]
        with pytest.raises(EOFError):
            subscriber.get(WAIT)
        assert publisher.statistics().announced == 6
        assert subscriber.statistics().strange == 0
        assert subscriber.statistics().missed == 0
        with pytest.raises(ValueError, match="has ended"):
            publisher.publish(b"")


def lossy(subscriber: Subscriber, loss: float, seed: int) -> Subscriber:
    """It loses datagrams of its own, and its connection none: one that loses so many does not last."""
    dice, feed = random.Random(seed), subscriber._feed
    hear = feed.datagram

    def lose(qp_num: int, raw: bytes) -> None:
        if dice.random() >= loss:
            hear(qp_num, raw)

    feed.datagram = lose  # type: ignore[method-assign]
    return subscriber


@pytest.mark.parametrize("loss", [0.3, 0.9, 1.0])
def test_much_loss_another_one_at_each(loss: float) -> None:
    said = messages(7, 1000, 1500)
    with published(size=1500) as (publisher, port), ThreadPoolExecutor(MANY) as pool, ExitStack() as stack:
        subscribers = [lossy(stack.enter_context(subscribed(port)), loss, n) for n in range(MANY)]
        hearing = [pool.submit(all_of, one) for one in subscribers]
        for begin in range(0, len(said), 10):
            publisher.publish_many(said[begin : begin + 10], WAIT)
        publisher.end(WAIT)
        for one in hearing:
            assert one.result(WAIT) == (said, 0)
        for subscriber in subscribers:
            assert subscriber.statistics().repaired >= loss * len(said) / 2
            assert loss < 1 or subscriber.statistics().received == 0


def test_slots_that_lie_side_by_side_are_one_read() -> None:
    """Not those on both sides of the ring's end, nor behind a gap."""
    pieces = [
        Piece(64, 10, 100),
        Piece(74, 10, 110),
        Piece(84, 10, 64),
        Piece(94, 10, 74),
        Piece(104, 10, 94),
    ]
    assert _merged(pieces) == [Piece(64, 20, 100), Piece(84, 20, 64), Piece(104, 10, 94)]
    assert _merged([]) == []


def test_duplicates_and_another_order() -> None:
    said = messages(2, 500, 500)
    with published() as (publisher, port), subscribed(port) as subscriber:
        publisher.context.set_faults(Faults(duplicate=0.2, reorder=0.2, seed=5))
        with ThreadPoolExecutor(1) as pool:
            hearing = pool.submit(all_of, subscriber)
            for one in said:
                publisher.publish(one, WAIT)
            publisher.end(WAIT)
            assert hearing.result(WAIT) == (said, 0)
        assert subscriber.statistics().duplicates > 0
        publisher.context.set_faults(None)


@pytest.mark.parametrize("count", [1, 3])
def test_the_last_messages_are_repaired_when_nothing_follows(count: int) -> None:
    with published() as (publisher, port), subscribed(port, quiet=0.01) as subscriber:
        publisher.context.set_faults(Faults(lose=[Lose(opcode=SEND_ONLY, nth=2, count=9)]))
        said = [b"%d" % n for n in range(1 + count)]
        for one in said:
            publisher.publish(one, WAIT)
        assert [subscriber.get(WAIT) for _ in said] == said
        assert subscriber.statistics().repaired == count
        publisher.end(WAIT)
        with pytest.raises(EOFError):
            subscriber.get(WAIT)


def test_who_is_too_slow_is_told_how_much_it_has_missed() -> None:
    with published(slots=16) as (publisher, port), subscribed(port, receives=4) as slow:
        said = [b"%d" % n for n in range(100)]
        for begin in range(0, 100, 4):
            publisher.publish_many(said[begin : begin + 4], WAIT)
        until(lambda: publisher.context.counters().drop_no_receive >= 96, "all datagrams but four are lost")
        assert [slow.get(WAIT) for _ in range(4)] == said[:4]
        with pytest.raises(MissedError, match="81 messages") as missed:
            slow.get(WAIT)
        assert missed.value.count == 81
        assert [slow.get(WAIT) for _ in range(15)] == said[85:]
        with pytest.raises(TimeoutError, match="no message"):
            slow.get(0)
        publisher.publish(b"and on")
        assert slow.get(WAIT) == b"and on"
        assert slow.statistics().missed == 81


def test_a_slow_one_does_not_stop_the_others() -> None:
    said = messages(3, 1000, 100)
    with published(slots=32) as (publisher, port), ExitStack() as stack:
        slow, quick = (stack.enter_context(subscribed(port, receives=n)) for n in (2, 1000))
        for begin in range(0, len(said), 8):
            publisher.publish_many(said[begin : begin + 8], WAIT)
            assert [quick.get(WAIT) for _ in range(8)] == said[begin : begin + 8]
        publisher.end()
        heard, missed = all_of(slow)
        assert len(heard) + missed == len(said)
        assert heard == said[: len(heard) - 31] + said[-31:]
        assert all_of(quick) == ([], 0)


def test_who_comes_later_begins_there_or_with_what_is_in_the_ring() -> None:
    with published(slots=8) as (publisher, port):
        publisher.publish_many([b"%d" % n for n in range(20)], WAIT)
        with subscribed(port) as now, subscribed(port, replay=True) as before:
            publisher.publish(b"new", WAIT)
            publisher.end(WAIT)
            assert list(now) == [b"new"]
            assert all_of(before)[0][-6:] == [b"%d" % n for n in range(15, 20)] + [b"new"]
        with subscribed(port) as late:
            assert list(late) == []


def test_threads_that_publish() -> None:
    with published() as (publisher, port), subscribed(port) as subscriber, ThreadPoolExecutor(4) as pool:
        hearing = pool.submit(all_of, subscriber)
        parts = [[b"%d %d" % (n, m) for m in range(100)] for n in range(3)]
        for done in [
            pool.submit(lambda part=part: [publisher.publish(one, WAIT) for one in part]) for part in parts
        ]:
            done.result(WAIT)
        publisher.end(WAIT)
        heard, missed = hearing.result(WAIT)
        assert missed == 0
        assert [[one for one in heard if one.startswith(b"%d " % n)] for n in range(3)] == parts


def test_tasks() -> None:
    said = messages(5, 300, 1000)

    async def hear(port: int) -> list[bytes]:
        async with (
            await rnic.aio.connect(HOST, port) as conn,
            await AsyncSubscriber.over(conn, quiet=0.01) as subscriber,
        ):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await subscriber.get()
            started.release()
            heard = [one async for one in subscriber]
            with pytest.raises(EOFError):
                await subscriber.get()
            return heard

    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as listener:
            with Publisher(listener) as publisher:
                serving = asyncio.create_task(listener.serve(publisher.serve_async))
                hearing = [asyncio.create_task(hear(listener.port)) for _ in range(2)]
                for _ in hearing:
                    await started.acquire()
                publisher.context.set_faults(Faults(loss=0.05, seed=1))
                for one in said:
                    publisher.publish(one)
                    await asyncio.sleep(0)
                publisher.end()
                assert await asyncio.gather(*hearing) == [said, said]
                publisher.context.set_faults(None)
                listener.close()
                await serving

    started = asyncio.Semaphore(0)
    asyncio.run(main())


IPV6 = """
import threading
import rnic
from rnic.patterns.pubsub import Publisher, Subscriber
with rnic.listen("fd77::1", 0) as listener, Publisher(listener) as publisher:
    serving = threading.Thread(target=listener.serve, args=(publisher.serve,))
    serving.start()
    with rnic.connect("fd77::1", listener.port) as conn, Subscriber.over(conn, quiet=60) as subscriber:
        publisher.publish(b"hello")
        print(subscriber.get(60), subscriber.statistics().received)
    listener.close()
    serving.join()
"""
DEVICE = (
    "link set lo up",
    "link add rnic0 type veth peer name rnic1",
    "link set rnic0 up",
    "link set rnic1 up",
    "addr add fd77::1/64 dev rnic0 nodad",
)


def test_ipv6(root: Path) -> None:
    """The loopback interface has no multicast of IPv6."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("a network interface needs root and ip(8)")
    script = " && ".join(
        [f"ip {words}" for words in DEVICE] + [f"exec {sys.executable} -W error -c '{IPV6}'"]
    )
    command = [sys.executable, str(root / "tests/namespaces.py"), "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
    assert (done.returncode, done.stdout) == (0, "b'hello' 1\n"), done.stderr


def test_a_slot_whose_datagram_has_not_left_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes would go under the number of another message."""
    with published(slots=8) as (publisher, _):
        with monkeypatch.context() as patch:  # nothing completes
            patch.setattr(publisher._sends.waiter, "poll", lambda *_: [])
            for number in range(8):
                publisher.publish(b"%d" % number, 0)
            before = bytes(publisher.mr.buf)
            with pytest.raises(TimeoutError):
                publisher.publish(b"one more", 0)
            assert bytes(publisher.mr.buf) == before
            assert publisher.statistics().published == 8
        publisher.publish(b"one more", WAIT)
        assert publisher.statistics().published == 9


# ---------------------------------------------------------------- the publisher is gone


def test_a_publisher_that_closes_the_connection_without_an_end() -> None:
    with rnic.listen(HOST, 0) as listener, Publisher(listener) as publisher, ThreadPoolExecutor(1) as pool:
        closing = threading.Event()
        parting = pool.submit(_serve_until, listener, publisher, closing)
        with subscribed(listener.port) as subscriber:
            closing.set()
            with pytest.raises(ConnectionError, match=r"without an end|closed"):
                subscriber.get(WAIT)
        parting.result(WAIT)


def _serve_until(listener: rnic.Listener, publisher: Publisher, closing: threading.Event) -> None:
    """As serve() does it, but for the end."""
    with listener.accept(WAIT) as conn:
        conn.share(publisher.mr.buf, rnic.AccessFlags.REMOTE_READ)
        conn.send(publisher._welcome)
        assert closing.wait(WAIT)


# ---------------------------------------------------------------- strangers, and a publisher that lies


def test_strangers_in_the_group_do_nothing() -> None:
    with published() as (publisher, port), subscribed(port) as subscriber, ExitStack() as stack:
        stranger = Stranger(stack, publisher.group, publisher._qkey)
        unkeyed = Stranger(stack, publisher.group, publisher._qkey ^ 1)
        true = HEADER.pack(MAGIC, 0, publisher._epoch, 0, 4, 0) + b"news"
        for data in (
            b"",
            b"x",
            bytes(4096),
            true,
            true[:32],
            true[:-1],
            HEADER.pack(MAGIC, 0, 0, 1 << 63, 0, 0),
        ):
            stranger.send(data)
            unkeyed.send(data)
        until(lambda: _strange(subscriber) >= 7, "all of them came")
        publisher.publish(b"true", WAIT)
        assert subscriber.get(WAIT) == b"true"
        assert subscriber.statistics().strange == 7


def _strange(subscriber: Subscriber) -> int:
    with pytest.raises(TimeoutError):
        subscriber.get(0)
    return subscriber.statistics().strange


@pytest.mark.parametrize(("head", "ended"), [(0, 0), (1, 1), (5, 2), (5, 1 << 63)])
def test_a_board_that_cannot_be(head: int, ended: int) -> None:
    with published() as (publisher, port), subscribed(port, quiet=0.01) as subscriber:
        publisher.publish_many([b"a", b"b"], WAIT)
        assert [subscriber.get(WAIT) for _ in range(2)] == [b"a", b"b"]
        until(lambda: _looks(subscriber) >= 3, "it has seen the board")
        words = publisher.mr.buf.cast("Q")
        words[HEAD // 8], words[ENDED // 8] = head, ended
        with pytest.raises(LiarError, match="went from 2"):
            subscriber.get(WAIT)
        words.release()


def _looks(subscriber: Subscriber) -> int:
    with pytest.raises(TimeoutError):
        subscriber.get(0.01)
    return subscriber.statistics().looks


def test_messages_that_are_not_in_the_ring() -> None:
    with published() as (publisher, port), subscribed(port, quiet=0.01) as subscriber:
        publisher.mr.buf[HEAD] = 3
        with pytest.raises(LiarError, match="message 0 is in its ring, and it is not"):
            subscriber.get(WAIT)


def test_a_message_that_is_torn_for_a_while() -> None:
    with published() as (publisher, port), subscribed(port, quiet=0.01) as subscriber:
        publisher.context.set_faults(Faults(lose=[Lose(opcode=SEND_ONLY, count=1)]))
        publisher.publish(b"whole", WAIT)
        at = SLOTS + HEADER.size
        publisher.mr.buf[at] ^= 1
        assert subscriber._feed.next == 0
        run = subscriber._catch_up(None)
        subscriber._port.do(next(run))
        subscriber._port.do(run.send(0))
        with pytest.raises(StopIteration):
            run.send(0)
        assert not subscriber._feed.ready
        assert subscriber._feed.due
        publisher.mr.buf[at] ^= 1
        assert subscriber.get(WAIT) == b"whole"


# ---------------------------------------------------------------- misuse


def test_misuse_is_refused() -> None:
    with published(size=10) as (publisher, port), subscribed(port) as subscriber:
        with pytest.raises(ValueError, match="make it with size=11"):
            publisher.publish_many([b"", bytes(11)])
        assert publisher.statistics().published == 0
        with ThreadPoolExecutor(1) as other, pytest.raises(RuntimeError, match="another thread"):
            subscriber._turn.run(lambda: other.submit(subscriber.get, 0).result())
        subscriber.close()
        subscriber.close()
        with pytest.raises(ValueError, match="behind close"):
            subscriber.get(0)
        for options in ({"quiet": 0}, {"quiet": float("inf")}, {"receives": 0}):
            with rnic.connect(HOST, port) as conn, pytest.raises(ValueError, match="give"):
                Subscriber.over(conn, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has ended"):
        publisher.publish(b"")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slots": 7}, "7 slots: give 8"),
        ({"size": 0}, "0 bytes: give 1"),
        ({"size": (16 << 20) + 1}, "send the address"),
        ({"group": "10.1.1.1"}, "multicast address of IPv4"),
        ({"group": "ff18::1"}, "multicast address of IPv4"),
    ],
)
def test_a_publisher_that_cannot_be(options: dict[str, object], words: str) -> None:
    with rnic.listen(HOST, 0) as listener, pytest.raises(ValueError, match=words):
        Publisher(listener, **options)  # type: ignore[arg-type]


def test_a_listener_without_a_device() -> None:
    with rnic.listen("0.0.0.0", 0) as listener, pytest.raises(rnic.VerbsError) as refused:
        Publisher(listener)
    assert refused.value.errno == EINVAL


def test_iwarp_has_no_datagrams() -> None:
    with rnic.listen(HOST, 0, device="iwarp_lo") as listener:
        with pytest.raises(rnic.VerbsError, match="iwarp_lo: iWARP has no datagrams") as refused:
            Publisher(listener)
        assert refused.value.errno == EOPNOTSUPP
        with ThreadPoolExecutor(1) as pool:
            accepting = pool.submit(listener.accept, WAIT)
            with (
                rnic.connect(HOST, listener.port, device="iwarp_lo") as conn,
                accepting.result(WAIT) as other,
            ):
                with pytest.raises(rnic.VerbsError, match="use a RoCE device"):
                    Subscriber.over(conn)
                closing = pool.submit(other.close)
                conn.close()
                closing.result(WAIT)


def test_a_peer_that_is_no_publisher() -> None:
    def part(listener: rnic.Listener) -> None:
        with listener.accept(WAIT) as conn:
            conn.share(bytearray(64), rnic.AccessFlags.REMOTE_READ)
            conn.send(b"hello")
            for _ in conn:
                pass

    with rnic.listen(HOST, 0) as listener, ThreadPoolExecutor(1) as pool:
        parting = pool.submit(part, listener)
        with rnic.connect(HOST, listener.port) as conn, pytest.raises(ValueError, match="no publisher"):
            Subscriber.over(conn, timeout=WAIT)
        parting.result(WAIT)
