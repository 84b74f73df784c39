# SPDX-License-Identifier: Apache-2.0
"""Messages that fit one SEND take the short way (Courier), and nothing but their speed tells."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest

import rnic
import rnic.aio
from conn.peers import HOST, SMALL, WAIT, speak
from conn.test_ends import pair, together
from conn.test_regions import until_it_is_there
from rnic.aio import waiting
from rnic.conn.core import Core
from rnic.endpoint import Config, EndpointError
from waiting import until

SLEEPY = Config(spin=0)


@contextmanager
def pumps_of(conn: rnic.Connection | rnic.aio.Connection, patch: pytest.MonkeyPatch) -> Iterator[list[None]]:
    """What grows by one with each step of the long way."""
    pumps: list[None] = []
    whole = Core.pump

    def pump(core: Core, now: float) -> None:
        if core is conn._core:
            pumps.append(None)
        whole(core, now)

    patch.setattr(Core, "pump", pump)
    yield pumps


@asynccontextmanager
async def ends(
    config: Config | None = None,
) -> AsyncIterator[tuple[rnic.aio.Connection, rnic.aio.Connection]]:
    async with rnic.aio.listen(HOST, 0, config=config) as server:
        calling = asyncio.create_task(rnic.aio.connect(HOST, server.port, config=config))
        b = await server.accept()
        a = await calling
    try:
        yield a, b
    finally:
        await asyncio.gather(a.abort(), b.abort())


def closed_to(conn: rnic.Connection) -> None:
    """This end takes the long way from now on."""


def settle(a: rnic.Connection, b: rnic.Connection) -> None:
    a.send(b"hello", WAIT)
    assert b.recv(WAIT) == b"hello"
    b.send(b"hello", WAIT)
    assert a.recv(WAIT) == b"hello"


# ---------------------------------------------------------------- it is taken


def test_messages_go_and_come_without_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with pair() as (a, b):
        settle(a, b)
        settle(a, b)
        with pumps_of(a, monkeypatch) as pumps:
            for number in range(1000):
                a.send(b"%d" % number, WAIT)
                assert b.recv(WAIT) == b"%d" % number
                b.send(bytes(number), WAIT)
                assert a.recv(WAIT) == bytes(number)
        assert not pumps


def test_nor_does_the_asyncio_face_take_it_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SECONDS", 60.0)  # so that a turn of the loop is so many calls

    async def main() -> int:
        async with ends() as (a, b):
            with pumps_of(a, monkeypatch) as pumps:
                for number in range(1000):
                    await a.send(b"%d" % number)
                    assert await b.recv() == b"%d" % number
                    await b.send(bytes(number))
                    assert await a.recv() == bytes(number)
            return len(pumps)

    # Each turn of the loop may look once. On a busy machine a wait is a turn: one run of some has few.
    assert any(asyncio.run(main()) < 500 for _ in range(20))


def test_a_row_of_messages_one_way_returns_its_credits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pair() as (a, b):
        settle(a, b)
        settle(a, b)
        with pumps_of(b, monkeypatch) as pumps:
            for number in range(1000):
                a.send(b"%d" % number, WAIT)
                assert b.recv(WAIT) == b"%d" % number
            assert not pumps
        assert b.statistics().credit_sends > 10
        settle(b, a)
        assert a.statistics().messages_sent >= 1000 - 16  # the last ones are not known to be there
        assert a.statistics().sends == b.statistics().receives


# ---------------------------------------------------------------- nothing but its speed tells


@pytest.mark.parametrize("long_ways", [(), (0,), (1,), (0, 1)], ids=["short", "a long", "b long", "long"])
@pytest.mark.parametrize("config", [None, SMALL, SLEEPY], ids=["default", "small", "sleepy"])
def test_messages_of_all_sizes_come_in_order_whichever_way_they_take(
    config: Config | None, long_ways: tuple[int, ...]
) -> None:
    rng = random.Random(len(long_ways))
    with pair(config) as ends:
        for which in long_ways:
            closed_to(ends[which])
        said: list[list[bytes]] = [[], []]
        for _ in range(400):
            who = rng.randrange(2)
            if (
                len(said[who]) < (1 if config is SMALL else 3) and rng.random() < 0.6
            ):  # send() waits for nobody
                sizes = (
                    [0, 1, 300, 2031, 2032, 2033] if config is SMALL else [0, 8, 2000, 16368, 16369, 40000]
                )
                message = rng.randbytes(rng.choice(sizes))
                ends[who].send(message, WAIT)
                said[who].append(message)
            elif said[who]:
                assert ends[1 - who].recv(WAIT) == said[who].pop(0)
        for who in (0, 1):
            for message in said[who]:
                assert ends[1 - who].recv(WAIT) == message
        for one, other in (ends, ends[::-1]):
            assert one.statistics().messages_received == one._core.protocol.flow.complete  # type: ignore[union-attr]
            assert one.statistics().receives <= other.statistics().sends


def test_a_region_is_released_ahead_of_what_is_sent_behind_its_end() -> None:
    with pair() as (a, b):
        settle(a, b)
        mine = a.share(bytearray(64))
        b.next_region(WAIT)
        settle(a, b)
        with pytest.raises(TimeoutError):
            a.withdraw(mine, 0)
        until_it_is_there(a)
        b.send(b"released", WAIT)
        assert a.recv(WAIT) == b"released"
        assert not a._core.sharing._shared


def test_what_the_peer_has_not_confirmed_is_undelivered() -> None:
    with pair() as (a, b):
        settle(a, b)
        settle(a, b)
        for _ in range(3):
            a.send(b"to nobody", WAIT)
        outstanding = a._core.protocol.flow.short_between(  # type: ignore[union-attr]
            a._core.protocol.completed,
            a._core.protocol.flow.handed_out,  # type: ignore[union-attr]
        )
        assert outstanding >= 3
        a.hang_up()
        with pytest.raises(EndpointError):
            a.recv(WAIT)
        assert a.undelivered == outstanding


def test_who_is_silent_after_a_short_message_is_probed() -> None:
    with pair(Config(idle_interval=0.05)) as (a, b):
        settle(a, b)
        a.send(b"the last for long", WAIT)

        def probes() -> int:
            with pytest.raises(TimeoutError):
                a.recv(0.1)
            return a.statistics().probes

        until(probes, "it probes")
        assert b.recv(WAIT) == b"the last for long"


# ---------------------------------------------------------------- waiting


@pytest.mark.parametrize("config", [None, SLEEPY], ids=["looks", "sleeps"])
def test_a_recv_that_sleeps_is_woken_and_comes_to_its_limit(config: Config | None) -> None:
    with pair(config) as (a, b):
        settle(a, b)
        settle(a, b)
        with pytest.raises(TimeoutError, match=r"recv: not within 0\.05 s"):
            a.recv(0.05)
        with pytest.raises(TimeoutError):
            a.recv(0)
        for _ in range(20):
            later = threading.Timer(0.005, b.send, (b"now", WAIT))
            later.start()
            assert a.recv(WAIT) == b"now"
            later.join()


def test_a_second_thread_is_refused_while_a_recv_sleeps() -> None:
    with pair(SLEEPY) as (a, b):
        settle(a, b)
        settle(a, b)
        got: list[bytes] = []
        thread = threading.Thread(target=lambda: got.append(a.recv(WAIT)))
        thread.start()
        until(lambda: a._core.courier.busy, "the thread sleeps in recv()")
        for call in (lambda: a.send(b"x"), lambda: a.recv(0), lambda: a.share(bytearray(8)), a.close):
            with pytest.raises(RuntimeError, match=r"while .* of this connection runs"):
                call()
        b.send(b"there", WAIT)
        thread.join(WAIT)
        assert got == [b"there"]


def test_hang_up_ends_a_recv_that_sleeps() -> None:
    with pair(SLEEPY) as (a, b):
        settle(a, b)
        settle(a, b)
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                a.recv(WAIT)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: a._core.courier.busy, "the thread sleeps in recv()")
        a.hang_up()
        thread.join(WAIT)
        assert isinstance(raised[0], EndpointError)


def test_a_signal_ends_a_recv_that_sleeps_and_takes_no_message() -> None:
    def raises(*_: object) -> None:
        raise KeyboardInterrupt

    with pair(SLEEPY) as (a, b):
        settle(a, b)
        settle(a, b)
        before = signal.signal(signal.SIGALRM, raises)
        try:
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                a.recv(WAIT)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        settle(a, b)


def test_the_peers_end_is_heard_behind_its_last_message() -> None:
    for spin in (0.0, Config().spin):
        with pair(Config(spin=spin)) as (a, b):
            settle(a, b)
            b.send(b"the last", WAIT)
            closing = threading.Thread(target=b.close)
            closing.start()
            assert a.recv(WAIT) == b"the last"
            with pytest.raises(EOFError):
                a.recv(WAIT)
            a.close()
            closing.join(WAIT)


def test_tasks_get_messages_in_the_order_of_their_calls() -> None:
    async def main() -> None:
        async with ends() as (a, b):
            for _ in range(20):
                tasks = [asyncio.create_task(a.recv()) for _ in range(5)]
                await asyncio.sleep(0)
                tasks[1].cancel()
                for number in range(5):
                    await b.send(b"%d" % number)
                done = await asyncio.gather(*tasks, return_exceptions=True)
                assert [one for one in done if isinstance(one, bytes)] == [b"0", b"1", b"2", b"3"]
                assert await a.recv() == b"4"

    asyncio.run(main())


def test_a_task_that_is_cancelled_when_its_message_has_come_leaves_it_to_the_next() -> None:
    async def main() -> None:
        async with ends(SLEEPY) as (a, b):
            for number in range(20):
                task = asyncio.create_task(a.recv())
                await asyncio.sleep(0.001)
                await b.send(b"%d" % number)
                if number % 2:
                    while not task.done() and a._core.courier.hand is None:
                        await asyncio.sleep(0)
                task.cancel()
                (got,) = await asyncio.gather(task, return_exceptions=True)
                assert (got if isinstance(got, bytes) else await a.recv()) == b"%d" % number

    asyncio.run(main())


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("spin", [-1e-6, 0.0011, float("nan")])
def test_the_time_to_look_has_limits(spin: float) -> None:
    with pytest.raises(ValueError, match=r"it can be 0 to 0\.001 seconds"):
        Config(spin=spin)


def test_messages_of_every_length_that_can_be_said_may_be_taken() -> None:
    with pair(Config(max_message=(1 << 64) - 1)) as (a, b):
        settle(a, b)


def test_calls_after_the_end_say_so() -> None:
    with pair() as (a, b):
        settle(a, b)
        settle(a, b)
        closing = threading.Thread(target=b.close)
        closing.start()
        a.close()
        closing.join(WAIT)
        for call in (lambda: a.send(b"x"), lambda: a.recv(0)):
            with pytest.raises((EndpointError, EOFError)):
                call()


# ---------------------------------------------------------------- long messages, in pieces

LONG = 200_001
PIECES = Config(announce=None, receive_size=16384, send_size=16384)


@contextmanager
def echo_of(b: rnic.Connection, count: int) -> Iterator[None]:
    """The other end, in a thread: it sends back so many messages."""

    def answer() -> None:
        for _ in range(count):
            b.send(b.recv(WAIT), WAIT)

    thread = threading.Thread(target=answer)
    thread.start()
    yield
    thread.join(WAIT)
    assert not thread.is_alive()


def test_long_messages_go_and_come_without_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    message = random.Random(5).randbytes(LONG)
    with pair(PIECES) as (a, b):
        settle(a, b)
        settle(a, b)
        with pumps_of(a, monkeypatch) as pumps, echo_of(b, 5):
            for _ in range(5):
                a.send(message, WAIT)
                assert a.recv(WAIT) == message
        assert not pumps


def test_a_long_message_leaves_the_loop_to_others() -> None:
    message = bytes(8 << 20)

    async def main() -> None:
        async with ends(PIECES) as (a, b):
            turns = 0

            async def beside() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            task = asyncio.create_task(beside())
            coming = asyncio.create_task(b.recv())
            await a.send(message)
            assert await coming == message
            task.cancel()
            assert turns >= len(message) // (PIECES.send_size * 64)  # one each 64 pieces

    asyncio.run(main())


@pytest.mark.parametrize("others", [b"short", bytes(50_000)], ids=["short", "long"])
def test_tasks_that_send_at_once_do_not_mix_their_messages(others: bytes) -> None:
    rng = random.Random(6)
    long = [rng.randbytes(rng.randrange(1 << 20, 3 << 20)) for _ in range(3)]

    async def main() -> None:
        async with ends(PIECES) as (a, b):
            expected = [one for message in long for one in (message, others)]
            sends = [asyncio.create_task(a.send(one)) for one in expected]
            assert [await b.recv() for _ in expected] == expected
            await asyncio.gather(*sends)

    asyncio.run(main())


@pytest.mark.parametrize("version", [1, 2])
def test_a_long_message_that_is_cancelled_in_the_middle_comes_whole_or_not_at_all(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(version, monkeypatch)

    async def main() -> None:
        async with ends(PIECES) as (a, b):
            for _ in range(10):
                message = bytearray(random.Random(7).randbytes(10 * LONG))
                wanted = bytes(message)
                protocol = a._core.protocol
                assert isinstance(protocol, Protocol)
                begun = protocol.flow.begun
                task = asyncio.create_task(a.send(message))
                while protocol.flow.begun == begun and not task.done():  # by whichever way
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                message[:] = bytes(10 * LONG)
                following = asyncio.create_task(a.send(b"behind it"))
                if version == 1 or (task.done() and not task.cancelled()):
                    assert await b.recv() == wanted
                assert await b.recv() == b"behind it"
                await following

    asyncio.run(main())


@pytest.mark.parametrize("version", [1, 2])
def test_a_long_message_to_a_peer_that_takes_nothing_comes_to_its_limit(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(version, monkeypatch)
    message = bytearray(random.Random(8).randbytes(10 * LONG))
    wanted = bytes(message)
    with pair(PIECES) as (a, b):
        settle(a, b)
        settle(a, b)
        with pytest.raises(TimeoutError, match=r"send: not within 0\.05 s"):
            a.send(message, 0.05)
        message[:] = bytes(10 * LONG)
        expected = [wanted, b"next"] if version == 1 else [b"next"]
        together(lambda: a.send(b"next", WAIT), lambda: took(b, expected))


def took(conn: rnic.Connection, expected: list[bytes]) -> None:
    assert [conn.recv(WAIT) for _ in expected] == expected


def test_what_has_come_of_a_long_message_is_not_lost_with_the_limit() -> None:
    message = random.Random(9).randbytes(LONG)
    with pair(PIECES) as (a, b):
        settle(a, b)
        settle(a, b)
        sending = threading.Thread(target=b.send, args=(message, WAIT))
        for limit in (0, 1e-6, 1e-4, 1e-3):
            with suppress(TimeoutError):
                assert a.recv(limit) == b"nothing yet"
        sending.start()
        for limit in (1e-6, 1e-5, 1e-4, 1e-4, WAIT):
            with suppress(TimeoutError):
                assert a.recv(limit) == message
                break
        else:
            pytest.fail("the message did not come")
        sending.join(WAIT)
        settle(a, b)


# ---------------------------------------------------------------- operations


def test_operations_go_without_the_long_way_when_they_are_over_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = bytearray(4096)
    with pair(Config(spin=0.001)) as (a, b):
        b.share(memory)
        region = a.next_region(WAIT)
        settle(a, b)
        settle(a, b)
        own = a.pd.reg_mr(bytearray(64), rnic.AccessFlags.LOCAL_WRITE)
        own.buf[:5] = b"hello"
        small = bytearray(3)
        short = 0
        for number in range(100):
            with pumps_of(a, monkeypatch) as pumps:
                assert a.fetch_add(region, 1, 8) == number
                assert a.fetch_add(region, -1, 16) == -number % (1 << 64)
                assert a.compare_swap(region, number, number + 1, 24) == number
                a.write(b"abc%d" % number, region, 100)
                a.read(small, region, 102)
                a.write(own, region, 200)
                a.read(own, region, 200)
            short += not pumps
            assert small == (b"abc%d" % number)[2:5].ljust(3, bytes(1))
            assert memory[200:205] == b"hello"
            small[:] = bytes(3)
        assert short > 0  # on a machine with much other work few are over soon
        own.close()


@pytest.mark.parametrize("config", [None, SLEEPY], ids=["looks", "sleeps"])
def test_operations_and_messages_of_both_ways_do_not_mix(config: Config | None) -> None:
    rng = random.Random(3)
    memory, mirror = bytearray(1 << 16), bytearray(1 << 16)
    with pair(config) as (a, b):
        b.share(memory)
        region = a.next_region(WAIT)
        sent: list[bytes] = []
        for _ in range(400):
            match rng.randrange(5):
                case 0:
                    length, at = rng.choice([0, 1, 64, 16384, 16385, 30000]), rng.randrange(1 << 15)
                    mirror[at : at + length] = data = rng.randbytes(length)
                    a.write(data, region, at, timeout=WAIT)
                case 1:
                    length, at = rng.choice([0, 1, 64, 16384, 16385, 30000]), rng.randrange(1 << 15)
                    found = bytearray(length)
                    a.read(found, region, at, timeout=WAIT)
                    assert found == mirror[at : at + length]
                case 2:
                    at, more = rng.randrange(1 << 12) * 8, rng.randrange(1 << 64)
                    before = int.from_bytes(mirror[at : at + 8], "little")
                    assert a.fetch_add(region, more, at, timeout=WAIT) == before
                    mirror[at : at + 8] = ((before + more) % (1 << 64)).to_bytes(8, "little")
                case 3 if len(sent) < 3:
                    sent.append(rng.randbytes(rng.choice([1, 100, 20000])))
                    b.send(sent[-1], WAIT)
                case _ if sent:
                    assert a.recv(WAIT) == sent.pop(0)
        assert memory == mirror


def test_what_the_short_way_does_not_take_is_refused_in_words() -> None:
    with pair() as (a, b):
        b.share(bytearray(64), rnic.AccessFlags.REMOTE_READ)
        region = a.next_region(WAIT)
        settle(a, b)
        with pytest.raises(ValueError, match="needs REMOTE_"):
            a.write(b"x", region)
        with pytest.raises(ValueError, match="needs REMOTE_"):
            a.fetch_add(region, 1)
        with pytest.raises(ValueError, match="are beyond region"):
            a.read(bytearray(65), region)
        with pytest.raises(ValueError, match="are beyond region"):
            a.read(bytearray(1), region, -1)
        for offset in (1 << 70, (1 << 63) - 1, (1 << 63) - 8):
            with pytest.raises(ValueError, match="are beyond region"):
                a.read(bytearray(8), region, offset)
        with pytest.raises(ValueError, match="read-only"):
            a.read(b"bytes", region)
        with pytest.raises(TypeError, match="remote is a Region"):
            a.read(bytearray(1), "region")  # type: ignore[arg-type]
        settle(a, b)


def test_a_withdrawn_region_is_not_operated_on() -> None:
    with pair() as (a, b):
        mine = b.share(bytearray(64))
        region = a.next_region(WAIT)
        a.write(b"x", region)
        with pytest.raises(TimeoutError):
            b.withdraw(mine, 0)
        until_it_is_there(b)
        settle(b, a)
        with pytest.raises(ValueError, match="not shared by the peer"):
            a.write(b"x", region)
        settle(b, a)
