# SPDX-License-Identifier: Apache-2.0
"""Many producers and one ring: every record comes once, those of a writer in order; a writer that dies stops
nobody; whoever lies is found out.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import pytest

import rnic
import rnic.aio
from patterns.ends import HOST, WAIT
from rnic.patterns.cursor import LiarError
from rnic.patterns.many import AsyncManyReader, AsyncManyWriter, ManyReader, ManyWriter
from rnic.patterns.many.layout import GONE, LENGTH, NUMBER, SLOTS, TAIL, Invitation, stride
from rnic.patterns.ports import Steps, run
from waiting import until

WRITERS = 4


@pytest.fixture(autouse=True)
def doorbells_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that nobody wakes sleeps too long for any test."""
    monkeypatch.setattr("rnic.patterns.many.reader._NAP", 2 * WAIT)


@contextmanager
def reading(**options: int) -> Iterator[tuple[ManyReader, int]]:
    """A reader whose writers are served, and the port for them."""
    with rnic.listen(HOST, 0) as listener:
        reader = ManyReader(listener, **options)
        serving = threading.Thread(target=listener.serve, args=(reader.serve,))
        serving.start()
        try:
            yield reader, listener.port
        finally:
            listener.close()
            serving.join(WAIT)
        assert not serving.is_alive()
        assert reader.writers == 0


@contextmanager
def writing(port: int) -> Iterator[ManyWriter]:
    with rnic.connect(HOST, port) as conn:
        yield ManyWriter.over(conn, WAIT)


def records(seed: int, count: int, longest: int) -> list[bytes]:
    dice = random.Random(seed)
    return [b"%d %d " % (seed, n) + dice.randbytes(dice.randint(0, longest)) for n in range(count)]


def of(writer: int, heard: list[bytes]) -> list[bytes]:
    return [one for one in heard if one.startswith(b"%d " % writer)]


@pytest.mark.parametrize("slots", [2, 64])
def test_records_of_all_come_once_and_each_ones_in_order(slots: int) -> None:
    said = [records(n, 300, 100) for n in range(WRITERS)]

    def write(n: int) -> None:
        dice, left = random.Random(n), said[n][:]
        with writing(port) as writer:
            while left:
                count = dice.choice((1, 1, 5))
                writer.put_many(left[:count], WAIT)
                del left[:count]

    with reading(slots=slots, size=120) as (reader, port), ThreadPoolExecutor(WRITERS) as pool:
        puts = [pool.submit(write, n) for n in range(WRITERS)]
        dice, heard = random.Random(9), list[bytes]()
        while len(heard) < WRITERS * 300:
            heard += reader.get_many(dice.choice((None, 1, 3)), WAIT)
        for one in puts:
            one.result(WAIT)
        assert [of(n, heard) for n in range(WRITERS)] == said
        assert reader.skipped == 0


def test_a_full_ring_and_an_empty_one() -> None:
    with reading(slots=4, size=10) as (reader, port), writing(port) as writer:
        for timeout in (0, 0.01):
            with pytest.raises(TimeoutError, match="no record"):
                reader.get(timeout)
        for n in range(4):
            writer.put(b"%d" % n, WAIT)
        for timeout in (0, 0.01):
            with pytest.raises(TimeoutError, match="no free slot"):
                writer.put(b"one more", timeout)
        assert reader.get_many(2) == [b"0", b"1"]
        writer.put(b"", WAIT)
        writer.put(bytes(10), WAIT)
        assert reader.get_many() == [b"2", b"3", b"", bytes(10)]


def test_a_writer_that_comes_late_and_one_that_was_idle_find_the_place() -> None:
    with reading(slots=4, size=10) as (reader, port), writing(port) as idle, writing(port) as busy:
        for n in range(23):
            busy.put(b"%d" % n, WAIT)
            assert reader.get(WAIT) == b"%d" % n
        with writing(port) as late:
            for writer in (idle, late, busy):
                writer.put(b"here", WAIT)
                assert reader.get(WAIT) == b"here"


def test_a_sleeping_reader_is_woken() -> None:
    with reading() as (reader, port), writing(port) as writer, ThreadPoolExecutor(1) as pool:
        for n in range(50):
            waiting = pool.submit(reader.get, WAIT)
            if n % 2:
                until(lambda: reader.mr.buf[0], "it sleeps")
            writer.put(b"%d" % n, WAIT)
            assert waiting.result(WAIT) == b"%d" % n


def test_tasks() -> None:
    said = [records(n, 150, 50) for n in range(WRITERS)]

    async def write(port: int, n: int) -> None:
        async with await rnic.aio.connect(HOST, port) as conn:
            writer = await AsyncManyWriter.over(conn)
            await writer.put_many(said[n][:100])
            for one in said[n][100:]:
                await writer.put(one)

    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as listener:
            reader = AsyncManyReader(listener, slots=16, size=70)
            serving = asyncio.create_task(listener.serve(reader.serve))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await reader.get()
            puts = [asyncio.create_task(write(listener.port, n)) for n in range(WRITERS)]
            heard = [await reader.get()]
            while len(heard) < WRITERS * 150:
                heard += await reader.get_many()
            await asyncio.gather(*puts)
            assert [of(n, heard) for n in range(WRITERS)] == said
            listener.close()
            await serving

    asyncio.run(main())


# ---------------------------------------------------------------- a writer that goes

WRITER = """
import sys
import rnic
from rnic.patterns.many import ManyWriter
from rnic.patterns.ports import Steps, run
with rnic.connect("127.0.0.1", int(sys.argv[1])) as conn:
    writer = ManyWriter.over(conn)
    writer.put(b"whole")
    run(writer._port, writer._claim(None))
    print("claimed", flush=True)
    sys.stdin.read()
"""


def test_a_writer_that_is_killed_in_the_middle_of_a_record_is_skipped() -> None:
    with reading(slots=4) as (reader, port), writing(port) as other:
        for _ in range(3):
            with subprocess.Popen(
                [sys.executable, "-c", WRITER, str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as process:
                try:
                    assert process.stdout is not None
                    assert process.stdout.readline() == "claimed\n"
                    other.put(b"behind", WAIT)
                    assert reader.get(WAIT) == b"whole"
                    with pytest.raises(TimeoutError, match="does not complete its record"):
                        reader.get(0)
                finally:
                    process.kill()
            assert reader.get(WAIT) == b"behind"
        assert reader.skipped == 3
        other.put(b"and on", WAIT)
        assert reader.get(WAIT) == b"and on"


def claim(writer: ManyWriter) -> int:
    """As put() begins."""
    return run(writer._port, writer._claim(None))


def test_a_claim_that_a_call_has_left_behind_is_used_by_the_next_one() -> None:
    with reading(slots=4) as (reader, port), writing(port) as writer, writing(port) as other:
        assert claim(writer) == claim(writer) == 0
        other.put(b"second", WAIT)
        writer.put(b"first", WAIT)
        assert reader.get_many() == [b"first", b"second"]


def test_a_record_that_a_call_has_left_complete_is_not_written_again() -> None:
    with reading(slots=4) as (reader, port), writing(port) as writer:
        for step in writer._lay(claim(writer), memoryview(b"first"), None):
            writer._port.do(step)
        assert writer._next == 0
        writer.put(b"second", WAIT)
        assert reader.get_many() == [b"first", b"second"]


class Barriers:
    """A reader's fence; at one of them something happens."""

    def __init__(self, number: int, happens: Callable[[], None]) -> None:
        self._left, self._happens = number, happens

    def __enter__(self) -> None:
        self._left -= 1
        if not self._left:
            self._happens()

    def __exit__(self, *_: object) -> None:
        """Nothing to give back."""


@pytest.mark.parametrize("barrier", [1, 2, 3], ids=["claimed", "emptied", "given"])
def test_a_record_that_is_taken_while_its_writer_looks_whether_it_is_there(barrier: int) -> None:
    """Of a call that ended early. The claim was used, though its slot is empty soon."""
    with reading(slots=4) as (reader, port), writing(port) as writer:
        for step in writer._lay(claim(writer), memoryview(b"first"), None):
            writer._port.do(step)
        steps, numbers = writer._claim(None), []
        old = writer._port.do(next(steps))

        def rest() -> Steps[None]:
            step = steps.send(old)
            with suppress(StopIteration):
                while True:
                    step = steps.send((yield step))
            numbers.append(writer._next)

        fence, reader._fence = reader._fence, cast(Any, Barriers(barrier, lambda: run(writer._port, rest())))
        assert reader._take(None) == [b"first"]
        reader._fence = fence
        if barrier == 3:
            run(writer._port, rest())
        assert numbers == [1]
        writer.put(b"second", WAIT)
        assert reader.get_many() == [b"second"]


class Interrupted:
    """A reader's memory; between its first look at a slot and the next one something happens."""

    def __init__(self, words: memoryview, happens: Callable[[], None]) -> None:
        self._words, self._happens = words, happens

    def cast(self, _: str) -> Interrupted:
        return self

    def __getitem__(self, at: Any) -> Any:
        found = self._words.cast("Q")[at] if isinstance(at, int) else self._words[at]
        happens, self._happens = self._happens, lambda: None
        happens()
        return found

    def __setitem__(self, at: int, value: int) -> None:
        self._words.cast("Q")[at] = value


def test_a_record_that_comes_between_two_looks_at_its_slot_is_no_lie() -> None:
    with reading(slots=4) as (reader, port), writing(port) as writer:
        memory = reader.mr
        view = Interrupted(memory.buf, lambda: writer.put(b"meanwhile", WAIT))
        reader.mr = cast(Any, SimpleNamespace(buf=view))
        try:
            first = reader._take(None)
        finally:
            reader.mr = memory
        assert first + reader._take(None) == [b"meanwhile"]


# ---------------------------------------------------------------- whoever lies


@pytest.mark.parametrize(
    ("state", "length", "words"),
    [
        (1, 101, "writer 1 says that a record has 100 bytes"),
        (1, GONE - 1, "writer 1 says"),
        (0, 5, "which no writer does"),
        (1 << NUMBER | 1, 5, "record 0 says 0x10001"),
        ((1 << 64) - 1, 0, "which no writer does"),
    ],
)
def test_a_slot_that_no_writer_leaves_so(state: int, length: int, words: str) -> None:
    with reading(slots=4, size=99) as (reader, port), writing(port) as writer:
        memory = reader.mr.buf.cast("Q")
        memory[SLOTS // 8], memory[(SLOTS + LENGTH) // 8] = state, length
        memory.release()
        with pytest.raises(LiarError, match=words):
            reader.get(WAIT)
        writer.put(b"and on", WAIT)
        assert reader.get(WAIT) == b"and on"


def test_a_tail_that_is_too_far_is_not_believed() -> None:
    with reading(slots=4) as (reader, port), writing(port) as one, writing(port) as other:
        one.put(b"a", WAIT)
        reader.mr.buf.cast("Q")[TAIL // 8] = 1 << 40
        other.put(b"b", WAIT)
        assert reader.get_many() == [b"a", b"b"]


@pytest.mark.parametrize("tail", [1 << 48, (1 << 64) - 1])
def test_a_number_that_cannot_be(tail: int) -> None:
    with reading() as (reader, port):
        reader.mr.buf.cast("Q")[TAIL // 8] = tail
        with rnic.connect(HOST, port) as conn, pytest.raises(LiarError, match="records were claimed"):
            ManyWriter.over(conn, WAIT)


def test_a_reader_whose_answers_never_fit_is_met_by_the_timeout() -> None:
    with reading(slots=4) as (_, port), writing(port) as writer:
        steps = writer._claim(0.0)  # a time that is over
        next(steps)
        with pytest.raises(TimeoutError):
            steps.send((1 << 63) | 7)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"writer": 0}, "writer 0"),
        ({"slots": 1}, "1 slots"),
        ({"size": (16 << 20) + 1}, "slots for"),
        ({"slots": 5}, "too few"),
    ],
)
def test_an_invitation_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    good = {"writer": 1, "slots": 4, "size": 100}
    room = SLOTS + 4 * stride(100)
    assert Invitation.parse(Invitation(**good).pack(), room) == Invitation(**good)
    with pytest.raises(ValueError, match=words):
        Invitation.parse(Invitation(**{**good, **changes}).pack(), room)
    with pytest.raises(ValueError, match="no reader"):
        Invitation.parse(b"hello", room)


# ---------------------------------------------------------------- misuse


def test_all_that_a_writer_does_has_the_limit_of_its_call() -> None:
    class Port:
        def do(self, step: Any) -> Any:
            limits.append((type(step).__name__, step.until))
            return writer._port.do(step)

        def check(self) -> None:
            writer._port.check()

    limits: list[tuple[str, float | None]] = []
    limit = monotonic() + WAIT
    with reading(slots=4, size=10) as (_, port), writing(port) as writer:
        run(Port(), writer._put_many((b"one", b""), limit))
    assert {name for name, _ in limits} >= {"CompareSwap", "Write", "Read"}
    assert {until for _, until in limits} == {limit}


def test_misuse_is_refused() -> None:
    with reading(size=10) as (reader, port), writing(port) as writer, ExitStack() as stack:
        with pytest.raises(ValueError, match="this ring takes 10"):
            writer.put_many([b"", bytes(11)], WAIT)
        with pytest.raises(ValueError, match="give 1 or more"):
            reader.get_many(0)
        stack.enter_context(reader._alone())
        with pytest.raises(RuntimeError, match="one reader"):
            reader.get(0)
    with rnic.listen(HOST, 0) as listener:
        for options in ({"slots": 1}, {"slots": (1 << 20) + 1}, {"size": 0}, {"size": (16 << 20) + 1}):
            with pytest.raises(ValueError, match="give"):
                ManyReader(listener, **options)
