# SPDX-License-Identifier: Apache-2.0
"""The short way at its edges: limits of time, interrupts, credits nobody asks for, calls within calls."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import rnic
import rnic.aio
from conn.peers import HOST, WAIT, peer
from conn.test_ends import pair
from conn.test_hostile import HELLO, dialled
from conn.test_short_way import SLEEPY, ends, settle
from rnic._nic.nic import Courier
from rnic.aio.pump import Pump
from rnic.conn import waits
from rnic.conn.core import Core
from rnic.endpoint import Config
from waiting import until


def test_a_time_limit_is_not_waited_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float | None] = []
    with pair(SLEEPY) as (a, b):
        settle(a, b)
        settle(a, b)
        monkeypatch.setattr(waits, "sleep", lambda _, until: slept.append(until))
        with pytest.raises(TimeoutError):
            a.recv(0.05)
        assert not slept  # once by the short way is enough


def test_a_handler_may_raise_timeout_error() -> None:
    def raises(*_: object) -> None:
        raise TimeoutError("of the handler")

    with pair(SLEEPY) as (a, b):
        settle(a, b)
        settle(a, b)
        before = signal.signal(signal.SIGALRM, raises)
        try:
            with pytest.raises(TimeoutError, match="of the handler"):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                a.recv(WAIT)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        settle(a, b)


def say_when_probed(a: rnic.Connection, before: int, b: rnic.Connection) -> None:
    until(lambda: a._core.statistics().probes > before, "it probes")
    b.send(b"now", WAIT)


def test_who_is_silent_is_probed_though_a_send_was_on_its_way_when_recv_began() -> None:
    with pair(Config(idle_interval=0.05, spin=0, receives=3)) as (a, b):
        for _ in range(20):
            settle(a, b)
            before = a.statistics().probes
            a.send(b"the last for long", WAIT)
            later = threading.Thread(target=say_when_probed, args=(a, before, b))
            later.start()
            assert a.recv(WAIT) == b"now"
            later.join()
            assert b.recv(WAIT) == b"the last for long"


def test_so_it_is_for_tasks() -> None:
    async def main() -> None:
        async with ends(Config(idle_interval=0.05, spin=0, receives=3)) as (a, b):
            for _ in range(20):
                await a.send(b"hello")
                assert await b.recv() == b"hello"
                await b.send(b"hello")
                assert await a.recv() == b"hello"
                before = a.statistics().probes
                await a.send(b"the last for long")
                tasks = [asyncio.create_task(a.recv()) for _ in range(2)]
                async with asyncio.timeout(WAIT):
                    while a.statistics().probes == before:
                        await asyncio.sleep(0.01)
                assert await b.recv() == b"the last for long"
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


def test_credits_that_a_credit_makes_worth_it_are_returned() -> None:
    """Else the peer, whose last credit is for CREDIT, and who has nothing to return, waits for ever."""

    def serve(server: rnic.Listener) -> None:
        with server.accept(WAIT) as conn:
            conn.send(b"x1", WAIT)
            while not (conn._core.courier.open or conn._core.take_short_way()):
                with suppress(TimeoutError):
                    conn.recv(0.01)
            conn.send(b"x2", WAIT)
            got.append(conn.recv(WAIT))
            with suppress(rnic.endpoint.EndpointError):
                conn.recv(WAIT)

    got: list[bytes] = []
    config = Config(receive_size=2048, send_size=2048, receives=3, idle_interval=None)
    with rnic.listen(HOST, 0, config=config) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        with dialled(server, HELLO) as peer:
            assert peer.hear()[16:] == b"x1"
            assert peer.hear()[16:] == b"x2"
            peer.post(struct.pack(">BBHIQ", 1, 1, 0, 0, 2) + b"m1")
            until(lambda: bool(got), "m1 has come")
            peer.post(struct.pack(">BBHI", 3, 0, 2, 0))
            assert peer.hear() == struct.pack(">BBHI", 3, 0, 2, 0)
        thread.join(WAIT)
        assert not thread.is_alive()


class Within:
    """A courier, and what a signal's handler or another thread does right behind its recv()."""

    def __init__(self, courier: Courier, conn: rnic.Connection) -> None:
        self.__dict__.update(courier=courier, conn=conn, got=[])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.courier, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.courier, name, value)

    def recv(self, wait: bool) -> bool:
        courier, conn, got = (self.__dict__[name] for name in ("courier", "conn", "got"))
        found: bool = courier.recv(wait)
        if found and not got:
            got.append(None)
            with suppress(RuntimeError):
                got.append(conn.recv(0))
        return found


def test_a_message_is_taken_once_however_calls_meet() -> None:
    with pair() as (a, b):
        settle(a, b)
        settle(a, b)
        within: Any = Within(a._core.courier, a)
        a._core.courier = within
        b.send(b"one", WAIT)
        later = threading.Timer(0.2, b.send, (b"two", WAIT))
        later.start()
        assert [*within.got[1:], a.recv(WAIT)] == ([b"two"] if b"one" in within.got else [b"one"])
        later.join()
        a._core.courier = within.courier


def test_what_a_handler_leaves_by_the_long_way_is_bytes_too() -> None:
    def two_is_here() -> bool:
        a._core.pump(0.0)
        return courier.hand is not None

    def recv(wait: bool) -> bool:
        found: bool = courier.recv(wait)
        if found and not asked:
            asked.append(True)
            got.append(a.recv(0))
            until(two_is_here, "the next one has come by the long way")
        return found

    asked: list[bool] = []
    got: list[bytes] = []
    with pair() as (a, b):
        settle(a, b)
        settle(a, b)
        courier = a._core.courier
        within: Any = Within(courier, a)
        within.__dict__["recv"] = recv
        a._core.courier = within
        b.send(b"one", WAIT)
        b.send(b"two", WAIT)
        while (found := a.recv(WAIT)) and not asked:  # on a busy machine both may come by the long way
            assert [found, a.recv(WAIT)] == [b"one", b"two"]
            settle(a, b)
            b.send(b"one", WAIT)
            b.send(b"two", WAIT)
        assert [found, *got] == [b"two", b"one"]
        a._core.courier = courier


def interrupted_once(where: str, monkeypatch: pytest.MonkeyPatch) -> list[Core | None]:
    """A core that is put into the list is interrupted there once; then the list has None."""
    mine: list[Core | None] = [None]

    def interrupt(core: Core, here: str) -> None:
        if core is mine[0] and where == here:
            mine[0] = None
            raise InterruptedError

    def woken(core: Core) -> bool:
        found = whole_woken(core)
        interrupt(core, "behind woken()")
        return found

    def run(pump: Pump) -> None:
        interrupt(pump.core, "at the pump's door")
        whole_run(pump)

    def look(pump: Pump, how: Callable[[], bool]) -> None:
        def looks() -> bool:
            found = how()
            if how == pump.core.courier.more:
                interrupt(pump.core, "in the next turn")
            return found

        whole_look(pump, looks)

    whole_woken, whole_run, whole_look = Core.woken, Pump.run, Pump._look
    monkeypatch.setattr(Core, "woken", woken)
    monkeypatch.setattr(Pump, "run", run)
    monkeypatch.setattr(Pump, "_look", look)
    return mine


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("where", ["behind woken()", "at the pump's door", "in the next turn"])
def test_what_interrupts_the_wake_up_of_a_task_loses_nothing(
    where: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = interrupted_once(where, monkeypatch)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with ends(Config(spin=0, idle_interval=None)) as (a, b):
            for _ in range(2):
                await a.send(b"hello")
                assert await b.recv() == b"hello"
                await b.send(b"hello")
                assert await a.recv() == b"hello"
            tasks = [asyncio.create_task(a.recv()) for _ in range(2)]
            while len(a._pump.messages) < 2:
                await asyncio.sleep(0)
            mine[0] = a._core
            for number in range(2):
                await b.send(bytes([number]) * size)
            for number, task in enumerate(tasks):
                assert await asyncio.wait_for(task, WAIT) == bytes([number]) * size
            assert mine == [None] or where == "at the pump's door"  # one that nobody needed
            mine[0] = None

    asyncio.run(main())


def test_a_task_whose_message_another_one_takes_keeps_its_place() -> None:
    async def take(conn: rnic.aio.Connection) -> bytes:
        while conn._core.courier.hand is None:
            await asyncio.sleep(0)
        conn._core.courier.shut()  # by the long way a call takes what is there
        return await conn.recv()

    async def main() -> None:
        async with ends(SLEEPY) as (a, b):
            for _ in range(2):
                await a.send(b"hello")
                assert await b.recv() == b"hello"
                await b.send(b"hello")
                assert await a.recv() == b"hello"
            tasks = []
            for number in (1, 2):
                tasks.append(asyncio.create_task(a.recv()))
                while len(a._pump.messages) < number:
                    await asyncio.sleep(0)
            hasty = asyncio.create_task(take(a))
            await b.send(b"0")
            first = await hasty
            await asyncio.sleep(0.05)
            await b.send(b"1")
            await b.send(b"2")
            assert (first, *await asyncio.gather(*tasks)) == (b"0", b"1", b"2")

    asyncio.run(main())


# They are silent: what threads print when the interpreter ends may end in abort(), as streams have locks.
LEAVES = """
import threading, time, rnic
accepted = []
with rnic.listen("127.0.0.1", 0) as server:
    thread = threading.Thread(target=lambda: accepted.append(server.accept(60)))
    thread.start()
    a = rnic.connect("127.0.0.1", server.port)
    thread.join()
def repeat(call):
    try:
        while True:
            call()
    except Exception:
        pass
for one in (lambda: a.send(bytes(100)), lambda: accepted[0].recv()):
    threading.Thread(target=repeat, args=(one,), daemon=True).start()
time.sleep(0.1)
"""


def test_a_program_ends_while_its_daemon_threads_talk() -> None:
    for _ in range(8):
        done = subprocess.run([sys.executable, "-c", LEAVES], timeout=WAIT, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()


def lends(conn: rnic.Connection) -> None:
    conn.share(bytearray(8))
    with pytest.raises(EOFError):
        conn.recv(WAIT)


def test_a_second_thread_that_is_refused_repeats_nothing() -> None:
    """The call that runs, whose operation takes long, has been posted, and is not posted once more."""

    def meddle() -> None:
        while not over:
            if a._core.courier.busy:
                with suppress(RuntimeError):
                    a.fetch_add(region, 0)

    with peer(lends) as (port, process), rnic.connect(HOST, port, config=Config(spin=0.001)) as a:
        assert process.pid is not None
        region, over = a.next_region(WAIT), False
        thread = threading.Thread(target=meddle)
        thread.start()
        done = 0
        for _ in range(30):
            os.kill(process.pid, signal.SIGSTOP)
            later = threading.Timer(0.02, os.kill, (process.pid, signal.SIGCONT))
            later.start()
            while later.is_alive():
                with suppress(RuntimeError):
                    a.fetch_add(region, 1)
                    done += 1
            later.join()
        over = True
        thread.join(WAIT)
        assert a.fetch_add(region, 0) == done
