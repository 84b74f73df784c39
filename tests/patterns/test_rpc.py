# SPDX-License-Identifier: Apache-2.0
"""Calls between two ends: threads and tasks, over connections and over channels."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from random import Random
from typing import Any

import pytest

import rnic
import rnic.aio
from forked import FORKS
from patterns.ends import HOST, WAIT, connections, queue_pairs
from rnic.patterns.credits import AsyncChannel, Channel
from rnic.patterns.cursor import LiarError
from rnic.patterns.rpc import (
    AsyncClient,
    AsyncServer,
    Client,
    ClientStalledError,
    DeadlineError,
    RefusedCallError,
    RemoteError,
    Server,
    Status,
)
from rnic.patterns.rpc.frames import Call, Cancel, Failure, Reply, parse
from waiting import until

Both = tuple[Any, Any]


def fail(body: bytes) -> bytes:
    raise KeyError(body.decode())


@contextmanager
def channels() -> Iterator[Both]:
    with queue_pairs() as (a, b):
        ours, theirs = Channel(a), Channel(b)
        for channel in (ours, theirs, ours):  # they say hello
            with pytest.raises(TimeoutError):
                channel.recv(0.01)
        try:
            yield ours, theirs
        finally:
            ours.abort()
            theirs.abort()


WAYS = {"connections": connections, "channels": channels}


@pytest.fixture(params=WAYS)
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    with WAYS[request.param]() as pair:
        yield pair


@contextmanager
def served(both: Both, server: Server, **options: Any) -> Iterator[Client]:
    """A client of that server; the other end runs in a thread, and has to end well."""
    ours, theirs = both
    with ThreadPoolExecutor(1) as pool:

        def serve() -> None:
            server.serve(theirs)
            theirs.close(WAIT)

        serving = pool.submit(serve)
        yield Client(ours, **options)
        ours.close(WAIT)
        serving.result(WAIT)


def in_flight(end: Any) -> int:
    qp: rnic.QP = end._qp if isinstance(end, Channel) else end._core.qp
    return qp.statistics().in_flight


# ------------------------------------------------------------------------------------ threads


def test_a_call_has_its_reply(both: Both) -> None:
    with served(both, Server({"upper": bytes.upper, "none": lambda _: b""})) as client:
        assert client.call("upper", b"hello", WAIT) == b"HELLO"
        assert client.call("none", timeout=WAIT) == b""
        assert client.call("upper", b"x" * 100_000) == b"X" * 100_000
        assert client.outstanding == 0


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError


def test_an_error_without_a_text_is_told_and_the_server_goes_on(both: Both) -> None:
    def fail(_: bytes) -> bytes:
        raise MuteError

    with served(both, Server({"upper": bytes.upper, "fail": fail})) as client:
        with pytest.raises(RemoteError, match="MuteError: its text cannot be told: ValueError"):
            client.call("fail", timeout=WAIT)
        assert client.call("upper", b"hello", WAIT) == b"HELLO"
        assert "<Client: 0 calls outstanding" in repr(client)


def test_what_is_no_name_and_no_handler_says_so(both: Both) -> None:
    with (
        served(both, Server({"upper": bytes.upper})) as client,
        pytest.raises(TypeError, match="a str, not b'up"),
    ):
        client.call(b"upper")  # type: ignore[arg-type]
    for kind in (Server, AsyncServer):
        with pytest.raises(TypeError, match="a: give a function that takes the body, not 5"):
            kind({"a": 5})  # type: ignore[dict-item]


def test_many_calls_are_on_their_way_and_the_window_holds(both: Both) -> None:
    with served(both, Server({"upper": bytes.upper}), limit=8, window=20_000) as client:
        calls = []
        for n in range(100):
            calls.append(client.start("upper", b"x" * n * 100, WAIT))
            assert client.outstanding <= 8
        assert [one.result(WAIT) for one in reversed(calls)] == [b"X" * n * 100 for n in reversed(range(100))]
        assert all(one.done() for one in calls)


def test_replies_that_nobody_takes_do_not_stop_the_calls() -> None:
    """Each reply is long; the client begins all calls before it takes one."""
    with connections() as pair, served(pair, Server({"long": lambda _: bytes(500_000)})) as client:
        calls = [client.start("long", bytes(100_000), WAIT) for _ in range(20)]
        assert {len(one.result()) for one in calls} == {500_000}


def test_an_exception_of_the_handler_travels_as_its_name_and_text(both: Both) -> None:
    with served(both, Server({"fail": fail, "number": lambda _: 3})) as client:  # type: ignore[dict-item, return-value]
        with pytest.raises(RemoteError, match="KeyError: 'k'") as found:
            client.call("fail", b"k", WAIT)
        assert (found.value.kind, found.value.text) == ("KeyError", "'k'")
        with pytest.raises(RemoteError, match="returned int"):
            client.call("number", b"", WAIT)


def test_refusals_say_why(both: Both) -> None:
    server = Server({"twice": lambda body: body * 2}, max_body=100)
    with served(both, server) as client:
        for method, body, status in (
            ("other", b"", Status.UNKNOWN),
            ("twice", bytes(101), Status.TOO_LONG),
            ("twice", bytes(51), Status.TOO_LONG),
        ):
            with pytest.raises(RefusedCallError) as found:
                client.call(method, body, WAIT)
            assert found.value.status == status
        server.close("good night")
        with pytest.raises(RefusedCallError, match="good night"):
            client.call("twice", b"", WAIT)


def test_a_reply_that_the_client_does_not_take_is_refused() -> None:
    config = rnic.Config(max_message=1000, announce=None)
    with connections(config=config) as pair, served(pair, Server({"long": lambda _: bytes(2000)})) as client:
        with pytest.raises(RefusedCallError, match="reply"):
            client.call("long", b"", WAIT)
        with pytest.raises(rnic.MessageTooLongError):
            client.call("long", bytes(2000), WAIT)
        assert client.outstanding == 0


def test_a_call_that_is_late_is_given_up_and_its_answer_dropped(both: Both) -> None:
    gate = threading.Event()

    def wait(_: bytes) -> bytes:
        gate.wait(WAIT)
        return b"late"

    with served(both, Server({"wait": wait, "upper": bytes.upper})) as client:
        with pytest.raises(DeadlineError, match="wait: no answer before its deadline"):
            client.call("wait", b"", 0.01)
        assert client.outstanding == 1
        gate.set()
        assert client.call("upper", b"x", WAIT) == b"X"
        assert client.outstanding == 0


def test_calls_that_could_not_be_sent_free_their_places(both: Both) -> None:
    """The server does not take them: the first went in part, the others not at all."""
    ours, _ = both
    client = Client(ours, limit=4, window=1 << 30)
    for _ in range(4):
        with suppress(DeadlineError):
            client.start("upper", bytes(3 << 20), 0.01)
    assert client.outstanding
    with served(both, Server({"upper": bytes.upper})):
        assert client.call("upper", b"x", WAIT) == b"X"
        assert client.call("upper", b"y", WAIT) == b"Y"
        assert client.outstanding == 0


def test_a_wait_that_ends_is_not_the_end_of_the_call(both: Both) -> None:
    gate = threading.Event()
    with served(both, Server({"wait": lambda _: b"%d" % gate.wait(WAIT)})) as client:
        call = client.start("wait", b"", WAIT)
        with pytest.raises(TimeoutError, match="the call goes on"):
            call.result(0.01)
        gate.set()
        assert call.result(WAIT) == b"1"


def test_calls_that_were_cancelled_behind_a_slow_one_are_not_carried_out(both: Both) -> None:
    gate, carried = threading.Event(), []

    def note(body: bytes) -> bytes:
        carried.append(body)
        if body == b"slow":
            gate.wait(WAIT)
        return body

    with served(both, Server({"note": note})) as client:
        slow = client.start("note", b"slow")
        until(lambda: carried, "it runs")
        others = [client.start("note", b"%d" % n) for n in range(4)]
        assert others[1].cancel()
        assert others[2].cancel()
        assert not others[2].cancel()
        with pytest.raises(CancelledError):
            others[1].result()
        until(lambda: not in_flight(both[0]), "all has come to the server")
        threading.Timer(0.005, gate.set).start()  # slow: the server looks for what has come meanwhile
        assert [slow.result(), others[0].result(), others[3].result()] == [b"slow", b"0", b"3"]
        assert carried == [b"slow", b"0", b"3"]


def test_a_server_that_goes_ends_all_calls(both: Both) -> None:
    ours, theirs = both
    client = Client(ours)
    calls = [client.start("m"), client.start("m")]
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(theirs.close, WAIT)
        with pytest.raises(rnic.ClosedError, match="did not answer"):
            calls[0].result(WAIT)
        with pytest.raises(rnic.ClosedError):
            calls[1].result(0)
        with pytest.raises(rnic.ClosedError):
            client.start("m")
        ours.close(WAIT)
        closing.result(WAIT)


def test_a_server_of_connections_serves_many_clients() -> None:
    server = Server({"upper": bytes.upper})
    with rnic.listen(HOST, 0) as listener:
        serving = threading.Thread(target=listener.serve, args=(server.serve,))
        serving.start()

        def use(n: int) -> bytes:
            with rnic.connect(HOST, listener.port) as conn, Client(conn) as client:
                return client.call("upper", b"x" * n, WAIT)

        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(use, range(3))) == [b"", b"X", b"XX"]
        listener.close()
        serving.join()


def _die(pipe: Any) -> None:
    with rnic.listen(HOST, 0) as listener:
        pipe.send(listener.port)
        Server({"die": lambda _: os._exit(1)}).serve(listener.accept(WAIT))


def test_a_server_that_dies_ends_the_calls() -> None:
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=_die, args=(theirs,))
    process.start()
    theirs.close()
    conn = rnic.connect(HOST, ours.recv())
    client = Client(conn)
    with pytest.raises(ConnectionError):
        client.call("die", b"", WAIT)
    with suppress(rnic.EndpointError):
        conn.close()
    process.join(WAIT)
    ours.close()


@pytest.mark.parametrize(
    "lie", [Reply(9, b"").pack(), b"?", Cancel(1).pack()], ids=["number", "bytes", "kind"]
)
def test_a_server_that_lies_loses_the_connection(both: Both, lie: bytes) -> None:
    ours, theirs = both
    client = Client(ours)
    call = client.start("m")
    with ThreadPoolExecutor(1) as pool:  # the other end has to run while one of them aborts

        def lies() -> None:
            theirs.send(lie, WAIT)
            while theirs.recv(WAIT):
                pass

        lying = pool.submit(lies)
        with pytest.raises(LiarError):
            call.result(WAIT)
        with pytest.raises(LiarError):
            client.start("m")
        with pytest.raises((rnic.AbortedError, rnic.LostError)):
            lying.result(WAIT)


@pytest.mark.parametrize("lie", [Reply(9, b"").pack(), b"?", Failure(1, 1, "", "").pack()])
def test_a_client_that_lies_loses_the_connection(both: Both, lie: bytes) -> None:
    ours, theirs = both
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(Server({"upper": bytes.upper}).serve, theirs)
        ours.send(lie, WAIT)
        with pytest.raises((rnic.AbortedError, rnic.LostError)):
            ours.recv(WAIT)
        with pytest.raises(LiarError):
            serving.result(WAIT)


def test_a_client_that_takes_no_answers_loses_the_connection() -> None:
    with channels() as (ours, theirs), ThreadPoolExecutor(1) as pool:
        server = Server({"long": lambda _: bytes(10 << 20)}, reply_timeout=0.05)
        serving = pool.submit(server.serve, theirs)
        ours.send(Call(1, 0, "long", b"").pack(), WAIT)
        with pytest.raises(ClientStalledError, match=r"0\.05 s"):
            serving.result(WAIT)
        with pytest.raises(ConnectionError):
            ours.recv(WAIT)


def test_a_body_that_is_no_bytes_leaves_the_client_usable(both: Both) -> None:
    with served(both, Server({"upper": bytes.upper})) as client:
        with pytest.raises(TypeError):
            client.call("upper", "text", WAIT)  # type: ignore[arg-type]
        assert client.outstanding == 0
        assert client.call("upper", b"x", WAIT) == b"X"


def test_misuse_is_told() -> None:
    async def handler(_: bytes) -> bytes:
        return b""

    with pytest.raises(TypeError, match="AsyncServer"):
        Server({"m": handler})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="limit 0"):
        Server({}, limit=0)
    with pytest.raises(ValueError, match="window -1"):
        Client(None, window=-1)  # type: ignore[arg-type]
    assert repr(Server({"up": fail, "echo": bytes})) == "<Server of echo, up>"


# ------------------------------------------------------------------------------------ asyncio


@asynccontextmanager
async def async_connections() -> AsyncIterator[Both]:
    async with rnic.aio.listen(HOST, 0) as listener:
        accepting = asyncio.create_task(listener.accept())
        ours = await rnic.aio.connect(HOST, listener.port)
        yield ours, await accepting


@asynccontextmanager
async def async_channels() -> AsyncIterator[Both]:
    with queue_pairs() as (a, b):
        yield AsyncChannel(a), AsyncChannel(b)


ASYNC_WAYS = {"connections": async_connections, "channels": async_channels}
Test = Callable[[AsyncClient, list[str]], Awaitable[None]]


class Handlers:
    """Of a server; `seen` tells what happened."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.go = asyncio.Event()

    async def upper(self, body: bytes) -> bytes:
        return body.upper()

    async def wait(self, body: bytes) -> bytes:
        self.seen.append("begins")
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            raise
        return body

    async def meet(self, body: bytes) -> bytes:
        other = asyncio.get_running_loop().create_future()
        other.cancel()
        await other
        return body

    def thread(self, _: bytes) -> bytes:
        return threading.current_thread().name.encode()

    def server(self, **options: Any) -> AsyncServer:
        names = ("upper", "wait", "meet", "thread")
        return AsyncServer({name: getattr(self, name) for name in names} | {"fail": fail}, **options)


def run(
    way: str, test: Callable[[AsyncClient, Handlers, AsyncServer], Awaitable[None]], **options: Any
) -> None:
    """Run a test with a client and a server of tasks."""

    async def main() -> None:
        handlers = Handlers()
        server = handlers.server(**options)
        async with ASYNC_WAYS[way]() as (ours, theirs):

            async def serve() -> None:
                await server.serve(theirs)
                await theirs.close(WAIT)

            serving = asyncio.create_task(serve())
            async with AsyncClient(ours) as client:
                await test(client, handlers, server)
            await asyncio.gather(ours.close(WAIT), serving)

    asyncio.run(asyncio.wait_for(main(), WAIT))


async def turns(look: Callable[[], object]) -> None:
    """Let the loop run until something is so."""
    while not look():
        await asyncio.sleep(0)


@pytest.fixture(params=ASYNC_WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_many_tasks_call_at_the_same_time(way: str) -> None:
    async def test(client: AsyncClient, *_: object) -> None:
        calls = [client.call("upper", b"x" * n, WAIT) for n in range(200)]
        assert await asyncio.gather(*calls) == [b"X" * n for n in range(200)]

    run(way, test)


def test_a_quick_call_overtakes_a_slow_one(way: str) -> None:
    async def test(client: AsyncClient, handlers: Handlers, _: AsyncServer) -> None:
        slow = asyncio.create_task(client.call("wait", b"slow", WAIT))
        await turns(lambda: handlers.seen)
        assert await client.call("upper", b"x", WAIT) == b"X"
        handlers.go.set()
        assert await slow == b"slow"

    run(way, test)


def test_a_cancelled_call_cancels_its_handler(way: str) -> None:
    async def test(client: AsyncClient, handlers: Handlers, _: AsyncServer) -> None:
        call = asyncio.create_task(client.call("wait"))
        await turns(lambda: handlers.seen)
        call.cancel()
        await turns(lambda: not client.outstanding)
        assert call.cancelled()
        assert handlers.seen == ["begins", "cancelled"]

    run(way, test)


def test_a_handler_that_meets_the_cancellation_of_something_else_has_failed(way: str) -> None:
    async def test(client: AsyncClient, *_: object) -> None:
        with pytest.raises(RemoteError, match="CancelledError"):
            await client.call("meet", b"", WAIT)

    run(way, test)


def test_a_deadline_cancels_the_handler_and_is_told(way: str) -> None:
    async def test(client: AsyncClient, handlers: Handlers, _: AsyncServer) -> None:
        with pytest.raises(DeadlineError):
            await client.call("wait", b"", 0.02)
        await turns(lambda: not client.outstanding)
        assert handlers.seen in ([], ["begins", "cancelled"])

    run(way, test)


@pytest.mark.parametrize("seed", range(3))
def test_calls_that_end_in_any_way_at_any_time_leave_nothing_behind(way: str, seed: int) -> None:
    async def test(client: AsyncClient, handlers: Handlers, _: AsyncServer) -> None:
        dice = Random(seed)

        async def one(number: int) -> None:
            body = b"%d" % number
            method, timeout = dice.choice(["upper", "wait"]), dice.choice([0.0, 0.001, 0.02, WAIT])
            call = asyncio.create_task(client.call(method, body, timeout))
            for _ in range(dice.choice([0, 1, 5, 50, 1000])):
                await asyncio.sleep(0)
            if method == "wait" or dice.random() < 0.5:
                call.cancel()
            with suppress(asyncio.CancelledError, DeadlineError):
                assert await call == body

        await asyncio.gather(*(one(number) for number in range(60)))
        await turns(lambda: not client.outstanding)
        assert await client.call("upper", b"x", WAIT) == b"X"
        assert handlers.seen.count("begins") == handlers.seen.count("cancelled")

    run(way, test)


class Slow:
    """A call, and a CANCEL which comes while its answer is being sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.calls = iter([Call(7, 0, "upper", b"x").pack(), Cancel(7).pack()])
        self.sending, self.go = asyncio.Event(), asyncio.Event()

    async def send(self, message: bytes) -> None:
        if isinstance(parse(message), Reply):
            self.sending.set()
            await self.go.wait()
        self.sent.append(message)

    async def recv(self) -> bytes:
        if (call := next(self.calls, None)) is None:
            self.go.set()
            await turns(lambda: Reply(7, b"X").pack() in self.sent)
            raise EOFError
        if isinstance(parse(call), Cancel):
            await self.sending.wait()
        return call

    async def abort(self, text: str) -> None:
        raise AssertionError(text)


def test_a_cancel_that_meets_the_answer_on_its_way_has_no_answer_of_its_own() -> None:
    """It could overtake the answer, and then the client would hear a second one."""
    slow = Slow()
    asyncio.run(asyncio.wait_for(Handlers().server().serve(slow), WAIT))
    assert [*map(parse, slow.sent)] == [Reply(7, b"X")]


def test_errors_of_plain_and_unknown_handlers(way: str) -> None:
    async def test(client: AsyncClient, *_: object) -> None:
        with pytest.raises(RemoteError, match="KeyError: 'k'"):
            await client.call("fail", b"k", WAIT)
        with pytest.raises(RefusedCallError, match="no such method"):
            await client.call("other", b"", WAIT)

    run(way, test)


def test_a_plain_handler_runs_in_the_executor_if_there_is_one() -> None:
    async def test(client: AsyncClient, *_: object) -> None:
        names.append(await client.call("thread", b"", WAIT))

    names: list[bytes] = []
    run("connections", test)
    with ThreadPoolExecutor(1, "beside") as pool:
        run("connections", test, executor=pool)
    assert names[0] == threading.current_thread().name.encode()
    assert names[1].startswith(b"beside")


def test_a_server_that_closes_answers_what_it_has_and_refuses_the_rest(way: str) -> None:
    async def test(client: AsyncClient, handlers: Handlers, server: AsyncServer) -> None:
        call = asyncio.create_task(client.call("wait", b"last", WAIT))
        await turns(lambda: handlers.seen)
        server.close("good night")
        with pytest.raises(RefusedCallError, match="good night"):
            await client.call("upper", b"", WAIT)
        handlers.go.set()
        assert await call == b"last"

    run(way, test)


def test_the_limit_of_the_server_holds() -> None:
    async def test(client: AsyncClient, handlers: Handlers, _: AsyncServer) -> None:
        call = asyncio.create_task(client.call("wait", b"", WAIT))
        await turns(lambda: handlers.seen)
        with pytest.raises(RefusedCallError) as found:
            await client.call("upper", b"", WAIT)
        assert found.value.status == Status.BUSY
        handlers.go.set()
        await call

    run("connections", test, limit=1)


def test_a_client_that_goes_has_its_handlers_cancelled(way: str) -> None:
    async def test(client: AsyncClient, handlers: Handlers, _: AsyncServer) -> None:
        call = asyncio.create_task(client.call("wait"))
        await turns(lambda: handlers.seen)
        await client.close()
        with pytest.raises(rnic.ClosedError):
            await call
        seen.append(handlers.seen)

    seen: list[list[str]] = []
    run(way, test)
    assert seen == [["begins", "cancelled"]]


@pytest.mark.parametrize("from_server", [False, True])
def test_a_liar_loses_the_connection(way: str, from_server: bool) -> None:
    async def main() -> None:
        async with ASYNC_WAYS[way]() as (ours, theirs):
            if from_server:
                call = asyncio.create_task(AsyncClient(ours).call("m"))
                await theirs.recv()
            else:
                call = asyncio.create_task(AsyncServer({}).serve(ours))  # type: ignore[arg-type]
            await theirs.send(b"?")
            with pytest.raises((rnic.AbortedError, rnic.LostError)):
                await theirs.recv()
            with pytest.raises(LiarError):
                await call
            await asyncio.gather(ours.abort(), theirs.abort())

    asyncio.run(asyncio.wait_for(main(), WAIT))


def test_a_thread_calls_a_server_of_tasks() -> None:
    with queue_pairs() as (a, b):
        ours, theirs = Channel(a), AsyncChannel(b)

        async def serve() -> None:
            async with theirs:
                await Handlers().server().serve(theirs)

        with ThreadPoolExecutor(1) as pool:
            serving = pool.submit(lambda: asyncio.run(serve()))
            client = Client(ours)
            calls = [client.start("upper", b"x" * n, WAIT) for n in range(100)]
            assert [one.result() for one in calls] == [b"X" * n for n in range(100)]
            ours.close(WAIT)
            serving.result(WAIT)


def test_a_call_says_how_much_time_is_left() -> None:
    with channels() as (ours, theirs):
        with ThreadPoolExecutor(1) as pool:
            hearing = pool.submit(theirs.recv, WAIT)
            Client(ours).start("m", b"", 1000.0)
            frame = parse(hearing.result(WAIT))
        assert isinstance(frame, Call)
        assert 0 < frame.left <= 1_000_000_000
