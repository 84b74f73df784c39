# SPDX-License-Identifier: Apache-2.0
"""Rings: every record comes once, in order and whole; nobody misses a wake-up; a peer that lies is found
out."""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import rnic
import rnic.aio
from patterns.ends import HOST, WAIT, connections, ports
from rnic.patterns.cursor import BOARD, OWN, SEEN, WANTED, LiarError
from rnic.patterns.ports import BELL, AsyncPort, ConnectionPort, Look, QueuePairPort, Step, Steps, Write
from rnic.patterns.ring import AsyncRingReader, AsyncRingWriter, RingReader, RingWriter
from rnic.patterns.wait import How
from waiting import until

SIZE = 1024


@contextmanager
def on_queue_pairs(size: int = SIZE, how: How = How.ADAPTIVE) -> Iterator[tuple[RingWriter, RingReader]]:
    with ports(how) as (a, b):
        reader = RingReader(b, size)
        writer = RingWriter(a, b.window(reader.mr))
        reader.begin(a.window(writer.mr))
        yield writer, reader


@contextmanager
def on_connections(size: int = SIZE) -> Iterator[tuple[RingWriter, RingReader]]:
    with connections() as (ours, theirs), ThreadPoolExecutor(1) as pool:
        reading = pool.submit(RingReader.over, theirs, size, WAIT)
        yield RingWriter.over(ours, WAIT), reading.result(WAIT)


WAYS = {"queue pairs": on_queue_pairs, "connections": on_connections}


@pytest.fixture(params=WAYS)
def ring(request: pytest.FixtureRequest) -> Iterator[tuple[RingWriter, RingReader]]:
    with WAYS[request.param]() as both:
        yield both


def records(seed: int, count: int, longest: int) -> list[bytes]:
    dice = random.Random(seed)
    return [dice.randbytes(dice.randint(0, longest)) for _ in range(count)]


def test_records_of_every_length_come_whole_and_in_order(ring: tuple[RingWriter, RingReader]) -> None:
    writer, reader = ring
    said = [bytes([n % 251]) * n for n in range(writer.longest + 1)] + records(1, 2000, writer.longest)

    def write() -> None:
        dice, left = random.Random(2), said[:]
        while left:
            n = dice.choice((1, 1, 3, 50))
            writer.put_many(left[:n], WAIT)
            del left[:n]
        writer.end(WAIT)
        writer.end(WAIT)

    writing = threading.Thread(target=write)
    writing.start()
    heard: list[bytes] = []
    dice = random.Random(3)
    while found := reader.get_many(dice.choice((None, 1, 7)), WAIT):
        heard += found
    writing.join()
    assert heard == said
    assert reader.ended
    assert reader.get_many() == []
    with pytest.raises(EOFError):
        reader.get()
    with pytest.raises(ValueError, match="behind end"):
        writer.put(b"")


@pytest.mark.parametrize("how", How)
def test_ends_that_sleep_are_woken(how: How) -> None:
    """One record at a time, in both directions of waiting: for a record, and for room."""
    with on_queue_pairs(256, how) as (writer, reader):
        said = records(4, 1000, 100)
        writing = threading.Thread(target=lambda: [writer.put(one, WAIT) for one in said])
        writing.start()
        assert [reader.get(WAIT) for _ in said] == said
        writing.join()
        if how is How.EVENT:
            assert reader._cursor is not None
            assert reader._cursor.slept + writer._cursor.slept > 0


def test_one_write_takes_many_records() -> None:
    with on_queue_pairs(1 << 16) as (writer, reader):
        before = writer._port.sends.statistics()  # type: ignore[attr-defined]
        writer.put_many([bytes(64)] * 200, WAIT)
        after = writer._port.sends.statistics()  # type: ignore[attr-defined]
        assert (after.requests - before.requests, after.chains - before.chains) == (2, 1)
        assert len(reader.get_many(timeout=WAIT)) == 200


def test_a_full_ring_and_an_empty_one(ring: tuple[RingWriter, RingReader]) -> None:
    writer, reader = ring
    with pytest.raises(TimeoutError, match="get"):
        reader.get(0)
    writer.put_many([bytes(60)] * (SIZE // 64), WAIT)
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError, match="put"):
            writer.put(b"one more", timeout)
    assert reader.get(WAIT) == bytes(60)
    for _ in range(SIZE // 64 - 1):
        reader.get(WAIT)
    writer.put(b"one more", WAIT)
    assert reader.get(WAIT) == b"one more"


def test_drain_waits_until_all_is_taken(ring: tuple[RingWriter, RingReader]) -> None:
    writer, reader = ring
    writer.drain(0)  # there is nothing
    writer.put_many([b"1", b"2"], WAIT)
    writer.end(WAIT)
    for _ in range(2):
        with pytest.raises(TimeoutError, match="drain"):
            writer.drain(0)
        reader.get(WAIT)
    assert reader.get_many() == []
    writer.drain(WAIT)


@pytest.mark.roce
@pytest.mark.wire
def test_what_was_lost_on_the_way_is_there_after_drain() -> None:
    """The end, the tail and the doorbell are lost; the writer's queue pair is destroyed behind drain()."""
    with on_queue_pairs() as (writer, reader), ThreadPoolExecutor(1) as pool:
        reading = pool.submit(reader.get_many, None, WAIT)
        until(lambda: reader._cursor and reader._cursor.slept, "the reader sleeps")
        qp: rnic.QP = writer._port.qp  # type: ignore[attr-defined]
        qp.context.set_faults(rnic.Faults(lose=[rnic.Lose(count=3)]))
        writer.end(WAIT)
        writer.drain(WAIT)
        assert qp.context.counters().fault_lost == 3
        qp.close()
        assert reading.result(WAIT) == []


def test_tasks() -> None:
    said = records(5, 1500, 500)

    async def serve(conn: rnic.aio.Connection) -> None:
        writer = await AsyncRingWriter.over(conn)
        await writer.put_many(said[:1000])
        for one in said[1000:]:
            await writer.put(one)
        await writer.end()
        await writer.drain()
        async for _ in conn:
            pass

    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as listener:
            serving = asyncio.create_task(listener.serve(serve))
            async with await rnic.aio.connect(HOST, listener.port) as conn:
                reader = await AsyncRingReader.over(conn, 4096)
                assert await reader.get() == said[0]
                assert [one async for one in reader] == said[1:]
                with pytest.raises(EOFError):
                    await reader.get()
            listener.close()
            await serving

    asyncio.run(main())


class LatePort(ConnectionPort):
    """Of a reader that has seen nothing yet, and looks for its writer when that has left."""

    def __init__(self, conn: rnic.Connection, meanwhile: Callable[[], None]) -> None:
        super().__init__(conn)
        self._meanwhile = [meanwhile]

    def do(self, step: Step) -> int:
        if isinstance(step, Look) and self._meanwhile:
            self._meanwhile.pop()()
            with pytest.raises(EOFError):
                self.conn.recv(WAIT, tag=BELL)
        return super().do(step)


def test_what_was_put_ahead_of_a_goodbye_is_not_lost() -> None:
    said = records(7, 5, 100)
    with ExitStack() as stack:
        ours, theirs = stack.enter_context(connections())
        pool = stack.enter_context(ThreadPoolExecutor(1))

        def meanwhile() -> None:
            writer.put_many(said, WAIT)
            writer.end(WAIT)
            pool.submit(ours.close, WAIT)

        reader = RingReader(LatePort(theirs, meanwhile), SIZE)
        theirs.share(reader.mr.buf)
        writer = RingWriter.over(ours, WAIT)
        reader.begin(theirs.next_region(WAIT))
        assert list(reader) == said
        theirs.close(WAIT)


class CancelledPort(AsyncPort):
    """Of a reader whose task is cancelled while it tells the writer what it has taken."""

    cancels = 1

    async def do(self, step: Step) -> int:
        if self.cancels and isinstance(step, Write) and step.pieces[-1].offset == OWN:
            self.cancels -= 1
            raise asyncio.CancelledError
        return await super().do(step)


def test_a_cancelled_get_loses_nothing() -> None:
    said = records(8, 5, 100)

    async def serve(conn: rnic.aio.Connection) -> None:
        writer = await AsyncRingWriter.over(conn)
        await writer.put_many(said)
        await writer.end()
        async for _ in conn:
            pass

    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as listener:
            serving = asyncio.create_task(listener.serve(serve))
            async with await rnic.aio.connect(HOST, listener.port) as conn:
                reader = AsyncRingReader(CancelledPort(conn), SIZE)
                await conn.share(reader.mr.buf)
                reader.begin(await conn.next_region())
                with pytest.raises(asyncio.CancelledError):
                    await reader.get_many()
                assert await reader.get() == said[0]
                assert [one async for one in reader] == said[1:]
            listener.close()
            await serving

    asyncio.run(main())


def knows_the_room(writer: RingWriter) -> None:
    """All was taken, and the writer has been told: it need not wait for its next record."""
    cursor = writer._cursor
    until(lambda: cursor.look(cursor.own) == cursor.own, "the writer sees that all was taken")


def sees_all(reader: RingReader, writer: RingWriter) -> None:
    """All that was put has come: the reader need not wait for it."""
    cursor, put = reader._cursor, writer._cursor.own
    assert cursor is not None
    until(lambda: cursor.look(put) == put, "the reader sees all that was put")


def interrupt(end: RingWriter | RingReader, steps: Steps[Any], at: int, done: bool) -> None:
    """Carry out a call's steps up to this one, of which the call does not learn whether it was done."""
    step = next(steps)
    for _ in range(at):
        step = steps.send(end._port.do(step))
    if done:
        end._port.do(step)
    steps.close()


@pytest.mark.parametrize("done", [False, True])
def test_a_put_that_was_interrupted_is_made_up_for(ring: tuple[RingWriter, RingReader], done: bool) -> None:
    writer, reader = ring
    heard = []
    for n in range(100):
        knows_the_room(writer)
        interrupt(writer, writer._put_many([b"%d" % n * 100, b""], None), 0, done)
        if done:
            heard += reader.get_many(dice := 1 + n % 2, WAIT)
            assert len(heard) == 3 * n + dice
        writer.put(b"next", WAIT)
        while len(heard) < 3 * n + 3:
            heard += reader.get_many(None, WAIT)
    assert heard == [one for n in range(100) for one in (b"%d" % n * 100, b"", b"next")]
    interrupt(writer, writer._end(None), 0, done)
    writer.end(WAIT)
    assert list(reader) == []


def test_a_doorbell_that_was_interrupted_rings_with_the_next_record() -> None:
    with on_connections() as (writer, reader), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.get, WAIT)
        until(lambda: reader._cursor is not None and reader._cursor.slept == 1, "the reader sleeps")
        interrupt(writer, writer._put_many((b"first",), None), 1, False)
        writer.put(b"second", WAIT)
        assert waiting.result(WAIT) == b"first"
        assert reader.get(WAIT) == b"second"


@contextmanager
def interrupts(end: RingWriter | RingReader, monkeypatch: pytest.MonkeyPatch, done: bool) -> Iterator[None]:
    """A signal's handler raises while a call that waits for nothing posts its WRITEs."""
    update = end._cursor and end._cursor._update
    assert update is not None
    post = update.post

    def interrupted(offset: int, length: int) -> bool:
        if done:
            post(offset, length)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(update, "post", interrupted)
        yield


@pytest.mark.parametrize("done", [False, True])
def test_short_calls_that_were_interrupted(monkeypatch: pytest.MonkeyPatch, done: bool) -> None:
    with on_queue_pairs() as (writer, reader):
        heard = []
        for n in range(50):
            knows_the_room(writer)
            with interrupts(writer, monkeypatch, done):
                writer.put(b"%d" % n, WAIT)
            writer.put(b"next", WAIT)
            sees_all(reader, writer)
            with interrupts(reader, monkeypatch, done):
                while True:
                    heard.append(reader.get(WAIT))
            while len(heard) < 2 * n + 2:
                heard.append(reader.get(WAIT))
        assert heard == [one for n in range(50) for one in (b"%d" % n, b"next")]


def test_a_drain_that_sleeps_is_woken_by_the_last_get(ring: tuple[RingWriter, RingReader]) -> None:
    writer, reader = ring
    with ThreadPoolExecutor(1) as pool:
        for n in range(1, 20):
            writer.put_many([b"1", b"2"], WAIT)
            draining = pool.submit(writer.drain, WAIT)
            until(lambda slept=n: writer._cursor.slept == slept, "the writer sleeps")
            assert [reader.get(WAIT), reader.get(WAIT)] == [b"1", b"2"]
            draining.result(WAIT)


@pytest.mark.parametrize("done", [False, True])
def test_a_get_that_was_interrupted_loses_nothing(ring: tuple[RingWriter, RingReader], done: bool) -> None:
    writer, reader = ring
    for n in range(50):
        writer.put_many([b"%d" % n * 100, b"more"], WAIT)
        interrupt(reader, reader._get_many(None, None), 0, done)
        assert [reader.get(WAIT), *reader.get_many(None, WAIT)] == [b"%d" % n * 100, b"more"]


def test_a_peer_that_is_gone_ends_both() -> None:
    with ExitStack() as stack:
        ours, theirs = stack.enter_context(connections())
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(RingReader.over, theirs, SIZE, WAIT)
            writer = RingWriter.over(ours, WAIT)
            reader = reading.result(WAIT)
            waiting = pool.submit(reader.get, WAIT)
            ours.abort("enough")
            with pytest.raises(ConnectionError, match="enough"):
                waiting.result(WAIT)
        with pytest.raises(ConnectionError):
            writer.put(b"x", WAIT)


def test_a_ring_that_outlives_its_connection_keeps_no_memory() -> None:
    with on_connections() as (writer, reader):
        writer.put(b"x", WAIT)
        assert reader.get(WAIT) == b"x"
    for end in (writer, reader):
        until(lambda one=end: "closed" in repr(one.mr), "the memory goes with the connection")
    with pytest.raises(EOFError, match="goodbye"):
        writer.put(b"x", WAIT)
    with pytest.raises(EOFError, match="goodbye"):
        reader.get(WAIT)


class Late(ConnectionPort):
    """What `meanwhile` does comes between a look at the board and a look at the connection."""

    meanwhile: Callable[[], object] | None = None

    def check(self) -> None:
        if self.meanwhile is not None:
            self.meanwhile()
        super().check()


@pytest.mark.parametrize("last", ["end", "record", "nothing"])
def test_what_was_put_before_the_goodbye_comes(last: str) -> None:
    with ExitStack() as stack:
        ours, theirs = stack.enter_context(connections())
        pool = stack.enter_context(ThreadPoolExecutor(1))
        reading = pool.submit(RingReader.over, theirs, SIZE, WAIT)
        writer = RingWriter.over(ours, WAIT)
        reader = reading.result(WAIT)
        port = reader._port = Late(theirs)

        def leave() -> None:
            port.meanwhile = None
            if last != "nothing":
                writer.put(b"late", WAIT)
            if last == "end":
                writer.end(WAIT)
            pool.submit(ours.close)
            with pytest.raises(EOFError):
                theirs.recv(WAIT)

        port.meanwhile = leave
        if last != "nothing":
            assert reader.get(WAIT) == b"late"
        with pytest.raises(EOFError if last == "end" else ConnectionError, match=r"the writer|has closed"):
            reader.get(WAIT)
        theirs.close()


# ---------------------------------------------------------------- a peer that lies


def write_word(end: RingWriter | RingReader, at: int, value: int) -> None:
    struct.pack_into("<Q", end.mr.buf, at, value)


@pytest.mark.parametrize("tail", [SIZE + 8, 1 << 63, (1 << 64) - 1])
def test_a_tail_beyond_the_ring(tail: int) -> None:
    with on_queue_pairs() as (_, reader):
        write_word(reader, SEEN, tail)
        with pytest.raises(LiarError, match="is the most"):
            reader.get(WAIT)


def test_a_tail_that_goes_back() -> None:
    with on_queue_pairs() as (writer, reader):
        writer.put(bytes(100), WAIT)
        reader.get(WAIT)
        write_word(reader, SEEN, 8)
        with pytest.raises(LiarError, match="went from"):
            reader.get(WAIT)


@pytest.mark.parametrize("length", [1, 13, SIZE, 0xFFFFFFF0, 0xFFFFFFFD])
def test_a_record_that_is_longer_than_what_was_put(length: int) -> None:
    with on_queue_pairs() as (_, reader):
        struct.pack_into("<I", reader.mr.buf, BOARD, length)
        write_word(reader, SEEN, 4 if length == 1 else 16)
        with pytest.raises(LiarError, match=f"a record of {length} bytes"):
            reader.get(WAIT)


def test_a_skip_beyond_what_was_put() -> None:
    with on_queue_pairs() as (_, reader):
        struct.pack_into("<I", reader.mr.buf, BOARD, 0xFFFFFFFF)
        write_word(reader, SEEN, 8)
        with pytest.raises(LiarError):
            reader.get(WAIT)


@pytest.mark.parametrize("head", [8, 1 << 63])
def test_a_head_ahead_of_the_tail(head: int) -> None:
    with on_queue_pairs() as (writer, _):
        write_word(writer, SEEN, head)
        with pytest.raises(LiarError):
            writer.put(b"x", WAIT)


def test_a_number_that_only_the_question_shows() -> None:
    with on_queue_pairs() as (writer, reader):
        write_word(writer, OWN, 1 << 40)
        with pytest.raises(LiarError, match="is the most"):
            reader.get(WAIT)


@pytest.mark.parametrize("length", [0, 63, BOARD + 255, BOARD + 1000, BOARD + 1025])
def test_memory_that_is_no_ring(length: int) -> None:
    with ports() as (a, b):
        mr = b.memory(4096)
        window = b.window(mr)
        with pytest.raises(LiarError):
            RingWriter(a, type(window)(window.addr, length, window.rkey))


def test_memory_that_is_no_board() -> None:
    with ports() as (a, b):
        reader = RingReader(b, SIZE)
        window = a.window(a.memory(64))
        with pytest.raises(LiarError, match="its board needs 64"):
            reader.begin(type(window)(window.addr, 63, window.rkey))


# ---------------------------------------------------------------- misuse


def test_misuse_is_refused(ring: tuple[RingWriter, RingReader]) -> None:
    writer, reader = ring
    with pytest.raises(ValueError, match="this ring takes 508"):
        writer.put(bytes(509), WAIT)
    writer.put(bytes(508), WAIT)
    with pytest.raises(ValueError, match="give 1 or more"):
        reader.get_many(0)
    assert reader.get(WAIT) == bytes(508)


def test_a_ring_has_a_size_and_a_writer() -> None:
    with ports() as (_, b):
        for size in (0, 128, 1000):
            with pytest.raises(ValueError, match="power of two"):
                RingReader(b, size)
        reader = RingReader(b, SIZE)
        with pytest.raises(ValueError, match="begin"):
            reader.get(WAIT)


def test_a_reader_that_asks_for_doorbells_and_takes_none_stops_no_put(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rnic.patterns.cursor._GRACE", 0.1)
    with on_connections(1 << 16) as (writer, reader):
        for _ in range(50):  # more than the peer's inbox takes
            write_word(writer, WANTED, 1)
            writer.put(b"x", 0.1)
        assert reader.get_many(None, WAIT) == 50 * [b"x"]


@pytest.mark.roce  # over iWARP a doorbell without a receive ends the connection
def test_a_doorbell_that_is_never_taken_stops_a_queue_pair_and_no_put(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The WRITEs behind it fill the send queue; a call that cannot put its record in time has laid it."""
    monkeypatch.setattr("rnic.patterns.cursor._GRACE", 0.1)
    with on_queue_pairs(1 << 16) as (writer, reader):
        said = 0
        with pytest.raises(TimeoutError, match="the next call puts"):
            while True:
                write_word(writer, WANTED, 1)
                said += 1
                writer.put(b"x", 0.1)
        heard: list[bytes] = []
        with ThreadPoolExecutor(1) as pool:
            putting = pool.submit(writer.put, b"last", WAIT)
            while len(heard) <= said:
                heard += reader.get_many(None, WAIT)
            putting.result(WAIT)
        assert heard == [*said * [b"x"], b"last"]


def test_a_queue_pair_without_inline_data_is_refused() -> None:
    with ExitStack() as stack:
        ctx = stack.enter_context(rnic.open_device("roce_lo"))
        channels = [stack.enter_context(ctx.create_comp_channel()) for _ in range(2)]
        cqs = [stack.enter_context(ctx.create_cq(8, channel)) for channel in channels]
        cap = rnic.QPCap(max_inline_data=0)
        init = rnic.QPInitAttr(send_cq=cqs[0], recv_cq=cqs[1], cap=cap)
        qp = stack.enter_context(stack.enter_context(ctx.alloc_pd()).create_qp(init))
        with pytest.raises(ValueError, match="max_inline_data is 0: create the queue pair with 8 or more"):
            QueuePairPort(qp)
