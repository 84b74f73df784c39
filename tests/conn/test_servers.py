# SPDX-License-Identifier: Apache-2.0
"""A listener with an agent for each connection, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EBADF, EINVAL
from queue import Queue

import pytest

import rnic
from conn.peers import HOST, SMALL, WAIT, descriptors, quiet
from rnic import VerbsError
from rnic.conn.waits import LOOK, sleep
from rnic.endpoint import AbortedError, ClosedError, LostError
from waiting import until


def echo(conn: rnic.Connection) -> None:
    for message in conn:
        if message == b"fail":
            raise ValueError("as asked")
        conn.send(message)


@contextmanager
def served(agent: Callable[[rnic.Connection], object], grace: float = WAIT) -> Iterator[rnic.Listener]:
    """A server in another thread, which ends with the block."""
    with rnic.listen(HOST, 0, config=SMALL) as server:
        thread = threading.Thread(target=server.serve, args=(agent,), kwargs={"grace": grace})
        thread.start()
        try:
            yield server
        finally:
            server.close()
            thread.join(WAIT)
            assert not thread.is_alive()


def connect(server: rnic.Listener | rnic.aio.Listener) -> rnic.Connection:
    return rnic.connect(HOST, server.port, config=SMALL)


def test_agents_work_side_by_side() -> None:
    before = descriptors()
    with served(echo) as server:
        conns = [connect(server) for _ in range(8)]
        for n, conn in enumerate(conns):
            conn.send(b"%d" % n)
        for n, conn in reversed(list(enumerate(conns))):
            assert conn.recv(WAIT) == b"%d" % n
        for conn in conns:
            conn.close()
    quiet(before)


def test_an_agent_that_fails_takes_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    with served(echo) as server, connect(server) as good:
        bad = connect(server)
        bad.send(b"fail")
        with pytest.raises(AbortedError, match="the program failed: ValueError"):
            bad.recv(WAIT)
        bad.abort()
        good.send(b"still here")
        assert good.recv(WAIT) == b"still here"
        good.close()
    (record,) = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert "has failed" in record.getMessage()


def test_an_agent_that_fails_by_another_connection_is_heard_of(caplog: pytest.LogCaptureFixture) -> None:
    def agent(conn: rnic.Connection) -> None:
        conn.recv()
        raise ConnectionResetError("the database has gone")

    with served(agent) as server, caplog.at_level(logging.ERROR), connect(server) as conn:
        conn.send(b"ask")
        with pytest.raises(AbortedError, match="ConnectionResetError"):
            conn.recv(WAIT)
        until(lambda: "has failed" in caplog.text, "the failure is logged")
    assert "the database has gone" in caplog.text


def test_an_agent_whose_client_has_gone_is_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    def agent(conn: rnic.Connection) -> None:
        try:
            conn.recv()
        finally:
            ended.set()

    with served(agent) as server, caplog.at_level(logging.WARNING):
        connect(server).abort()
        assert ended.wait(WAIT)
    assert not caplog.text


def test_agents_finish_in_peace() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(conn: rnic.Connection) -> None:
        begun.set()
        go_on.wait(WAIT)
        conn.send(b"last words")

    with served(slow) as server:
        conn = connect(server)
        assert begun.wait(WAIT)
        server.close()
        go_on.set()
        assert conn.recv(WAIT) == b"last words"
        conn.close()


def test_who_takes_too_long_loses_the_connection() -> None:
    ends: Queue[BaseException] = Queue()
    begun = threading.Event()

    def waits(conn: rnic.Connection) -> None:
        begun.set()
        try:
            conn.recv(WAIT)
        except BaseException as error:
            ends.put(error)

    with served(waits, grace=0.05) as server:
        conn = connect(server)
        assert begun.wait(WAIT)
        server.close()
        assert isinstance(ends.get(timeout=WAIT), LostError)
        with pytest.raises(ConnectionError):
            conn.recv(WAIT)
        with suppress(ConnectionError):
            conn.abort()


def test_close_wakes_who_accepts() -> None:
    server = rnic.listen(HOST, 0)
    ends: Queue[BaseException] = Queue()
    waiting = threading.Event()

    def accept() -> None:
        waiting.set()
        try:
            server.accept(WAIT)
        except BaseException as error:
            ends.put(error)

    thread = threading.Thread(target=accept)
    thread.start()
    assert waiting.wait(WAIT)
    server.close()
    error = ends.get(timeout=WAIT)
    assert isinstance(error, rnic.VerbsError)
    assert error.errno == EBADF
    thread.join(WAIT)
    with pytest.raises(rnic.VerbsError, match="the listener is closed"):
        server.accept()


SERVER = """
import signal, rnic
def echo(conn):
    for message in conn:
        conn.send(message)
with rnic.listen("127.0.0.1", 0) as server:
    signal.signal(signal.SIGTERM, lambda *_: server.close())
    print(server.port, flush=True)
    server.serve(echo)
print("served")
"""


class Left:
    """A connection that is not established yet when the listener is closed."""

    released = False

    def release(self) -> None:
        self.released = True


def test_what_is_left_behind_a_server_beside_which_somebody_accepts_is_given_back() -> None:
    left = Left()
    with rnic.listen(HOST, 0, config=SMALL) as server:
        desk = server._desk
        with desk.waiting():  # as accept() in another thread does
            thread = threading.Thread(target=server.serve, args=(echo,))
            thread.start()
            until(lambda: desk._waiters == 2, "it serves")
            desk._half_open[-1] = left  # type: ignore[assignment]
            server.close()
            thread.join(WAIT)
            assert not thread.is_alive()
    assert left.released


def test_a_signal_ends_a_server_gracefully() -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-X", "dev", "-c", SERVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        with rnic.connect(HOST, int(process.stdout.readline())) as conn:
            conn.send(b"before")
            assert conn.recv(WAIT) == b"before"
            os.kill(process.pid, signal.SIGTERM)
            conn.send(b"after")
            assert conn.recv(WAIT) == b"after"
        out, err = process.communicate(timeout=WAIT)
    assert (out, err, process.returncode) == ("served\n", "", 0)


def test_the_main_thread_looks_for_signals_that_came_just_ahead_of_a_sleep() -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        sleep((reader.fileno(),), None)  # comes back
        other = threading.Thread(target=sleep, args=((reader.fileno(),), None))
        other.start()
        other.join(2 * LOOK)
        assert other.is_alive()  # another thread runs no handlers
        writer.send(b"x")
        other.join(WAIT)
        assert not other.is_alive()


def until_the_end(conn: rnic.Connection) -> None:
    while True:
        conn.send(conn.recv())


def test_the_end_of_a_connection_is_no_error_of_its_agent(caplog: pytest.LogCaptureFixture) -> None:
    with served(until_the_end) as server, connect(server) as conn:
        conn.send(b"once")
        assert conn.recv(WAIT) == b"once"
        conn.close(WAIT)  # AbortedError if the server calls this a failure
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_another_end_of_file_is_an_error_of_the_agent(caplog: pytest.LogCaptureFixture) -> None:
    def agent(conn: rnic.Connection) -> None:
        for _ in conn:
            pass
        raise EOFError("of a file")

    with served(agent) as server, caplog.at_level(logging.ERROR):
        with suppress(AbortedError), connect(server):
            pass
        until(lambda: "of a file" in caplog.text, "the failure is logged")


INTERRUPTED = """
import os, signal, rnic
def stop(*_):
    signal.signal(signal.SIGINT, lambda *_: None)  # the test repeats it until it is heard
    os.write(1, b"stopping\\n")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise KeyboardInterrupt
def agent(conn):
    conn.share(bytearray(8))
    for message in conn:
        if message == b"work":
            conn.send(b"at work")
            signal.sigwait([signal.SIGUSR1])
        conn.send(message)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
signal.signal(signal.SIGINT, stop)
with rnic.listen("127.0.0.1", 0) as server:
    print(server.port, flush=True)
    try:
        server.serve(agent, grace=600)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@contextmanager
def interruptible() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server with a grace that is longer than a test waits."""
    command = [sys.executable, "-W", "error", "-c", INTERRUPTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def interrupt(process: subprocess.Popen[str]) -> None:
    """Python does not hear of a signal that comes just before it sleeps, until it wakes."""
    out = process.stdout
    assert out

    def is_heard() -> bool:
        process.send_signal(signal.SIGINT)
        return bool(select.select([out], [], [], 0)[0])

    until(is_heard, "the signal is heard")
    assert out.readline() == "stopping\n"


def ends_well(process: subprocess.Popen[str]) -> None:
    assert process.stdout
    assert process.stderr
    assert process.wait(WAIT) == 0
    assert (process.stdout.read(), process.stderr.read()) == ("interrupted\n", "")


@pytest.mark.parametrize("talked", [False, True])
def test_ctrl_c_does_not_wait_for_idle_clients(talked: bool) -> None:
    with interruptible() as (process, port), rnic.connect(HOST, port) as conn:
        conn.next_region(WAIT)  # the agent has begun
        if talked:
            conn.send(b"before")
            assert conn.recv(WAIT) == b"before"
        interrupt(process)
        ends_well(process)
        with pytest.raises(AbortedError, match="the server was stopped"):
            conn.recv(WAIT)
        conn.abort()


def test_ctrl_c_lets_an_agent_finish_its_message() -> None:
    with interruptible() as (process, port), rnic.connect(HOST, port) as conn:
        conn.send(b"work")
        conn.send(b"next")
        conn.fetch_add(conn.next_region(WAIT), 1)  # after it: "next" is there
        assert conn.recv(WAIT) == b"at work"
        interrupt(process)
        process.send_signal(signal.SIGUSR1)
        assert [conn.recv(WAIT), conn.recv(WAIT)] == [b"work", b"next"]
        ends_well(process)
        with suppress(ConnectionError):
            conn.abort()


def test_a_second_ctrl_c_ends_without_grace() -> None:
    with interruptible() as (process, port), rnic.connect(HOST, port) as conn:
        conn.send(b"work")
        assert conn.recv(WAIT) == b"at work"
        interrupt(process)

        def ended() -> bool:
            process.send_signal(signal.SIGTERM)  # it does what SIGINT did
            return process.poll() is not None

        until(ended, "it ends")
        with suppress(ConnectionError):
            conn.abort()


# -- asyncio


async def aio_echo(conn: rnic.aio.Connection) -> None:
    async for message in conn:
        if message == b"fail":
            raise ValueError("as asked")
        await conn.send(message)


def run(main: Callable[[], object]) -> None:
    before = descriptors()
    asyncio.run(asyncio.wait_for(main(), WAIT), debug=True)  # type: ignore[arg-type]
    quiet(before)


async def aio_connect(server: rnic.aio.Listener) -> rnic.aio.Connection:
    return await rnic.aio.connect(HOST, server.port, config=SMALL)


def test_tasks_serve_until_the_listener_is_closed() -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0, config=SMALL) as server:
            serving = asyncio.create_task(server.serve(aio_echo))
            conns = [await aio_connect(server) for _ in range(4)]
            server.close()
            for n, conn in enumerate(conns):
                await conn.send(b"%d" % n)
                assert await conn.recv() == b"%d" % n
            assert not serving.done()
            await asyncio.gather(*(conn.close() for conn in conns))
            await serving

    run(main)


def test_a_task_that_fails_takes_its_connection_alone() -> None:
    async def main() -> None:
        heard: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
        async with rnic.aio.listen(HOST, 0, config=SMALL) as server:
            serving = asyncio.create_task(server.serve(aio_echo))
            bad = await aio_connect(server)
            async with await aio_connect(server) as good:
                await bad.send(b"fail")
                with pytest.raises(AbortedError, match="the program failed: ValueError"):
                    await bad.recv()
                await bad.abort()
                await good.send(b"still here")
                assert await good.recv() == b"still here"
            server.close()
            await serving
        (context,) = heard
        assert isinstance(context["exception"], ValueError)

    run(main)


def test_a_task_that_fails_by_another_connection_is_heard_of() -> None:
    async def agent(conn: rnic.aio.Connection) -> None:
        await conn.recv()
        raise ConnectionResetError("the database has gone")

    async def main() -> None:
        told: asyncio.Queue[BaseException] = asyncio.Queue()
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.put_nowait(what["exception"]))
        async with rnic.aio.listen(HOST, 0, config=SMALL) as server:
            serving = asyncio.create_task(server.serve(agent))
            conn = await aio_connect(server)
            await conn.send(b"ask")
            with pytest.raises(AbortedError, match="ConnectionResetError"):
                await conn.recv()
            assert "the database has gone" in str(await told.get())
            await conn.close()
            server.close()
            await serving

    run(main)


def test_the_end_of_a_connection_is_no_error_of_its_task() -> None:
    async def agent(conn: rnic.aio.Connection) -> None:
        while True:
            await conn.send(await conn.recv())

    async def main() -> None:
        heard: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
        async with rnic.aio.listen(HOST, 0, config=SMALL) as server:
            serving = asyncio.create_task(server.serve(agent))
            async with await aio_connect(server) as conn:
                await conn.send(b"once")
                assert await conn.recv() == b"once"
            server.close()
            await serving
        assert not heard

    run(main)


@pytest.mark.parametrize("talked", [False, True])
def test_a_cancelled_server_does_not_wait_for_idle_clients(talked: bool) -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0, config=SMALL) as server:
            serving = asyncio.create_task(server.serve(aio_echo, grace=10 * WAIT))
            conn = await aio_connect(server)
            if talked:
                await conn.send(b"before")
                assert await conn.recv() == b"before"
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            with pytest.raises(AbortedError, match="the server was stopped"):
                await conn.recv()
            await conn.abort()

    run(main)


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_tasks_that_take_too_long_are_cancelled(how: str) -> None:
    ends: list[type[BaseException]] = []

    async def waits(conn: rnic.aio.Connection) -> None:
        try:
            await conn.recv()
        except BaseException as error:
            ends.append(type(error))
            raise

    async def main() -> None:
        async with rnic.aio.listen(HOST, 0, config=SMALL) as server:
            serving = asyncio.create_task(server.serve(waits, grace=0.05))
            conns = [await aio_connect(server) for _ in range(3)]
            if how == "close":
                server.close()
                await serving
            else:
                serving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await serving
            for conn in conns:
                with pytest.raises(ConnectionError):
                    await conn.recv()
                await conn.abort()
        assert ends == [asyncio.CancelledError if how == "close" else ClosedError] * 3

    run(main)


def test_close_wakes_the_task_that_accepts() -> None:
    async def main() -> None:
        server = rnic.aio.listen(HOST, 0)
        task = asyncio.create_task(server.accept())
        await asyncio.sleep(0)
        server.close()
        with pytest.raises(rnic.VerbsError, match="the listener is closed"):
            await task

    run(main)


# ------------------------------------------------------------ memory of a listener


def test_a_listener_shares_one_memory_with_all_connections() -> None:
    memory: list[rnic.MR] = []

    def agent(conn: rnic.Connection) -> None:
        conn.share(memory[0].buf)
        for _ in conn:
            pass

    with served(agent) as server:
        memory.append(server.alloc(24))
        array = server.empty(10, "<f4")
        array[:] = 7
        conns = [connect(server) for _ in range(3)]
        for n, conn in enumerate(conns):
            conn.write(bytes((n + 1,)) * 8, conn.next_region(WAIT), 8 * n)
        for conn in conns:
            conn.close()
    assert bytes(memory[0].buf) == b"\1" * 8 + b"\2" * 8 + b"\3" * 8
    assert array.sum() == 70  # after close(), too


def test_a_listener_at_all_addresses_has_no_memory() -> None:
    with rnic.listen("0.0.0.0", 0) as server:
        for make in (server.alloc, server.empty):
            with pytest.raises(VerbsError, match="listen at one") as caught:
                make(8)
            assert caught.value.errno == EINVAL


def test_a_forked_child_hears_that_the_listener_is_its_parents() -> None:
    """It would wait for ever: connections come to the process that listens."""
    with rnic.listen(HOST, 0) as server:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                server.accept(1)
            except VerbsError as error:
                status = 0 if error.errno == EINVAL and "forked" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
