# SPDX-License-Identifier: Apache-2.0
"""An exception at any place, as a signal's handler raises it: nothing is lost, doubled or left behind."""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import pytest

import rnic
from conn.peers import HOST, SLEEPY, WAIT, descriptors, ends, quiet, settle
from conn.test_ends import pair
from rnic.aio.pump import Pump
from rnic.endpoint import Config, EndpointError
from rnic.rdmacm.registry import registry

pytestmark = pytest.mark.usefixtures("unheard_finalisers")

ROOMS = tuple(str(Path(rnic.__file__).parent / room) for room in ("conn", "aio", "endpoint", "rdmacm"))
SOAK = bool(os.environ.get("RNIC_SOAK"))
TINY = Config(receive_size=256, send_size=256, receives=4, max_backlog=1024)
MANY = 3000 if SOAK else 250
FAR = 300
"""A call has about so many places."""


class InterruptError(Exception):
    """What the handler raises."""


class Raiser:
    """Raises at the nth place where a signal's handler can run while these rooms are at work, once.

    The interpreter runs it when a function begins and when a call of C code is over (and at the end of a
    loop's round, which is near one of these): never between a store and what stands next to it.
    """

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.at = "nowhere"

    def profile(self, frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        if event not in ("call", "c_return") or code.co_name == "__del__":  # where no exception gets out
            return
        if code.co_filename.startswith(ROOMS):
            self.left -= 1
            if self.left == 0:
                self.at = f"{frame.f_code.co_filename}:{frame.f_lineno}, {event}"
                raise InterruptError

    @contextmanager
    def armed(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self.profile)
        try:
            yield
        finally:
            sys.setprofile(before)

    def call(self, what: Callable[[], Any]) -> Any:
        """The result of a call; InterruptError."""
        with self.armed():
            return what()

    def until(self, what: Callable[[], Any]) -> Any:
        """The result of a call that is made again when it was interrupted."""
        with suppress(InterruptError):
            return self.call(what)
        return what()


def raisers() -> Iterator[Raiser]:
    """One for each place in a call; without RNIC_SOAK for some of them, others each time."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for n in range(MANY):
        yield Raiser(n % FAR + 1 if SOAK else rng.randrange(1, FAR))


def payload(number: int) -> bytes:
    """Of up to four fragments; none; its number in front."""
    return number.to_bytes(4, "big") * (number * 37 % 200)


@contextmanager
def beside(what: Callable[[], None]) -> Iterator[threading.Thread]:
    """Something that another thread does meanwhile, to its end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            what()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread
    thread.join(3 * WAIT)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_recv_takes_each_message_once() -> None:
    def say() -> None:
        for number in range(MANY):
            b.send(payload(number), WAIT)

    with pair(TINY) as (a, b), beside(say):
        for number, raiser in enumerate(raisers()):
            assert raiser.until(lambda: a.recv(WAIT)) == payload(number), raiser.at


def test_send_says_what_it_says_in_order_and_at_most_once() -> None:
    heard: list[bytes] = []
    said: list[int] = []

    def hear() -> None:
        heard.extend(b)
        b.close(WAIT)

    with pair(TINY) as (a, b), beside(hear):
        for number, raiser in enumerate(raisers()):
            message = bytearray(payload(number))
            with suppress(InterruptError):
                raiser.call(partial(a.send, message, WAIT))
                said.append(number)
            message.append(0)  # its buffer is free, and of use to nobody
        a.close(WAIT)
    numbers = [one for one in range(MANY) if payload(one)]
    positions = {payload(one): one for one in numbers}
    found = [positions[one] for one in heard if one]
    assert found == sorted(set(found))
    assert {one for one in said if payload(one)} <= set(found)


def test_operations_are_carried_out_once_and_memory_is_given_back() -> None:
    memory = bytearray(4096)

    def serve() -> None:
        b.share(memory)
        with suppress(EndpointError):
            b.recv(30 * WAIT)

    with pair(TINY) as (a, b):
        a.send(b"ready")
        assert b.recv(WAIT) == b"ready"
        with beside(serve):
            remote = a.next_region(WAIT)
            total, most = 0, 0
            for number, raiser in enumerate(raisers()):
                data = payload(number)[:500]
                raiser.until(partial(a.write, data, remote, 8, timeout=WAIT))
                local = bytearray(len(data))
                Raiser(raiser.left).until(partial(a.read, local, remote, 8, timeout=WAIT))
                assert local == data, raiser.at
                adder = Raiser(random.randrange(1, FAR))
                most += 1
                with suppress(InterruptError):
                    adder.call(lambda: a.fetch_add(remote, 1, timeout=WAIT))
                    total += 1
            assert total <= a.fetch_add(remote, 0, timeout=WAIT) <= most
            assert not a._core.machine.operates
            a.send(b"done")


def hear(conn: rnic.Connection) -> None:
    """What the peer says is of no interest; closed when the peer closes."""
    for _ in conn:
        pass
    conn.close(WAIT)


def test_regions_come_and_go() -> None:
    with pair(TINY) as (a, b), beside(partial(hear, b)):
        for raiser in raisers():
            memory = bytearray(64)
            region = a.share(memory)
            raiser.until(partial(a.withdraw, region, WAIT))
            assert region.id not in a._core.sharing._shared, raiser.at
            memory.append(0)
        a.close(WAIT)


@pytest.mark.parametrize("end", ["close", "abort"])
def test_an_end_that_is_interrupted_gives_everything_back(end: str) -> None:
    before = descriptors()
    rng = random.Random(end)
    for _ in range(200 if SOAK else 20):
        raiser = Raiser(rng.randrange(1, 800))
        with pair(TINY) as (a, b):
            memory = bytearray(64)
            a.share(memory)
            a.send(b"before")
            assert b.recv(WAIT) == b"before"
            with beside(b.abort if end == "abort" else partial(suppressed, b.close)):
                with suppress(EndpointError):
                    raiser.until(getattr(a, end))
                assert a.closed
                memory.append(0)  # nothing exports it
            assert a._core.given_back, raiser.at
            assert a._core.cm_id not in {one for agent in registry.agents() for one in agent.ids}, raiser.at
    quiet(before)


def test_an_accept_that_is_interrupted_answers_every_request() -> None:
    """Who asked is served, or hears that it is not; the next one is served."""
    before = descriptors()
    rng = random.Random("accept")
    # No time limit of the listener's takes away a half-open connection that an exception has left.
    with rnic.listen(HOST, 0, config=TINY, handshake_timeout=math.inf) as server:
        desk = server._desk
        for _ in range(200 if SOAK else 25):
            raiser = Raiser(rng.randrange(1, 1200))
            made: list[rnic.Connection] = []

            def call(made: list[rnic.Connection] = made) -> None:
                with suppress(EndpointError):
                    made.append(rnic.connect(HOST, server.port, config=TINY, timeout=WAIT))

            with beside(call) as calling:
                accepted = None
                with suppress(InterruptError):
                    accepted = raiser.call(partial(server.accept, WAIT))
                until = monotonic() + WAIT
                # A client is connected before the server has taken in its last message.
                while accepted is None and (calling.is_alive() or desk._half_open or desk._event):
                    assert monotonic() < until, raiser.at
                    with suppress(TimeoutError):
                        accepted = server.accept(0.1)
            for one in (accepted, *made):
                if one is not None:
                    one.abort()
            assert not desk._half_open, raiser.at
        left = {one for agent in registry.agents() for one in agent.ids} - {desk.cm_id}
        assert not left
    quiet(before)


def test_a_connect_that_is_interrupted_says_so_and_leaves_nothing() -> None:
    before = descriptors()
    rng = random.Random("connect")
    with rnic.listen(HOST, 0, config=TINY) as server:

        def end_all() -> None:
            for one in server:
                one.abort()

        with beside(end_all):
            for _ in range(1000 if SOAK else 150):
                raiser, call = Raiser(rng.randrange(1, 900)), partial(rnic.connect, HOST, server.port)
                try:
                    raiser.call(partial(call, config=TINY, timeout=WAIT)).abort()
                except InterruptError:
                    pass
                except BaseException as error:
                    raise AssertionError(raiser.at) from error
            server.close()
        left = {one for agent in registry.agents() for one in agent.ids} - {server._desk.cm_id}
        assert not left
    quiet(before)


def test_a_share_that_is_interrupted_leaves_no_region_that_nobody_has() -> None:
    with pair(TINY) as (a, b), beside(partial(hear, b)):
        for raiser in raisers():
            memory = bytearray(64)
            try:
                a.withdraw(raiser.call(partial(a.share, memory)), WAIT)
            except InterruptError:
                later = a.share(bytearray(8))
                a.withdraw(later, WAIT)  # what was withdrawn before has been confirmed then
            assert not a._core.sharing._shared, raiser.at
            memory.append(0)
        a.close(WAIT)


def suppressed(call: Callable[[], None]) -> None:
    with suppress(EndpointError):
        call()


def test_a_signal_that_raises_again_and_again() -> None:
    """As an alarm does that is a program's idea of a time limit."""

    def alarm(*_: object) -> None:
        if armed:
            raise InterruptError

    def say() -> None:
        for number in range(2000):
            b.send(number.to_bytes(4, "big"), WAIT)

    armed, interrupted, got = False, 0, 0
    before = signal.signal(signal.SIGALRM, alarm)
    try:
        with pair() as (a, b), beside(say):
            signal.setitimer(signal.ITIMER_REAL, 0.002, 0.0011)
            while got < 2000:
                try:
                    armed = True
                    message = a.recv(WAIT)
                    armed = False
                except InterruptError:
                    armed = False
                    interrupted += 1
                    continue
                assert message == got.to_bytes(4, "big")
                got += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    print(f"{interrupted} calls were interrupted")


@contextmanager
def handled(handler: Callable[..., None]) -> Iterator[None]:
    """A signal comes meanwhile, in 50 ms."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TimeoutError("of the handler")], ids=repr)
def test_a_signal_ends_a_recv_that_sleeps_and_takes_no_message(error: BaseException) -> None:
    def raises(*_: object) -> None:
        raise error

    with pair(SLEEPY) as (a, b):
        settle(a, b)
        with handled(raises), pytest.raises(type(error)) as caught:
            a.recv(WAIT)
        assert caught.value is error
        settle(a, b)


def test_a_handler_cannot_take_the_message_of_the_call_that_it_interrupts() -> None:
    def meddles(*_: object) -> None:
        with pytest.raises(RuntimeError, match=r"while recv.. of this connection runs.*handler of a signal"):
            a.recv(0)
        refused.append(True)
        b.send(b"one", WAIT)

    refused: list[bool] = []
    with pair(SLEEPY) as (a, b):
        settle(a, b)
        with handled(meddles):
            assert a.recv(WAIT) == b"one"
        assert refused
        settle(a, b)


@pytest.mark.parametrize("size", [1, 100_000])
def test_what_interrupts_the_wake_up_of_a_task_loses_nothing(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine: list[Pump] = []
    whole = Pump.run

    def run(pump: Pump) -> None:
        if pump in mine:
            mine.remove(pump)
            raise InterruptedError
        whole(pump)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with ends(Config(spin=0, idle_interval=None)) as (a, b):
            tasks = [asyncio.create_task(a.recv()) for _ in range(2)]
            while len(a._pump.messages) < 2:
                await asyncio.sleep(0)
            mine.append(a._pump)
            for number in range(2):
                await b.send(bytes([number]) * size)
            for number, task in enumerate(tasks):
                assert await asyncio.wait_for(task, WAIT) == bytes([number]) * size
            assert not mine

    monkeypatch.setattr(Pump, "run", run)
    asyncio.run(main())


def test_the_asyncio_face_goes_on_after_an_exception() -> None:
    """In a task it is the task's; in a callback the loop's, which says so."""

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with rnic.aio.listen(HOST, 0, config=TINY) as server:
            there = asyncio.create_task(server.accept())
            a = await rnic.aio.connect(HOST, server.port, config=TINY)
            b = await there
            for number, raiser in enumerate(raisers()):
                getting = asyncio.create_task(b.recv())
                await asyncio.sleep(0)
                await a.send(payload(number))
                got = None
                with raiser.armed():
                    while got is None:
                        try:
                            async with asyncio.timeout(WAIT):
                                got = await asyncio.shield(getting)
                        except InterruptError:
                            if getting.done():
                                getting = asyncio.create_task(b.recv())
                assert got == payload(number), raiser.at
            await asyncio.gather(a.close(), b.close())

    asyncio.run(main())
