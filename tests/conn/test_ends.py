# SPDX-License-Identifier: Apache-2.0
"""How connections end: goodbyes from either side, deaths, refusals, time limits; nothing hangs."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import pytest

import rnic
from conn.peers import HOST, SMALL, WAIT, descriptors, peer, quiet, settle, speak
from rnic.endpoint import AbortedError, ClosedError, Config, EndpointError, NoHelloError, RefusedError
from rnic.rdmacm import ConnParam, EventChannel, EventType, create_id
from waiting import times_out, until


@contextmanager
def pair(config: Config | None = None) -> Iterator[tuple[rnic.Connection, rnic.Connection]]:
    """Both ends in this process; they are given back however the test ends."""
    accepted: list[rnic.Connection] = []
    with rnic.listen(HOST, 0, config=config) as server:
        thread = threading.Thread(target=lambda: accepted.append(server.accept(WAIT)))
        thread.start()
        a = rnic.connect(HOST, server.port, config=config)
        thread.join()
    (b,) = accepted
    try:
        yield a, b
    finally:
        for one in (a, b):
            one.abort()


def together(*calls: object) -> None:
    """Each in a thread of its own."""
    errors: list[BaseException] = []

    def call(one: object) -> None:
        assert callable(one)
        try:
            one()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(one,)) for one in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * WAIT)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def closing(conn: rnic.Connection) -> None:
    conn.send(b"the last")


def waiting(conn: rnic.Connection) -> None:
    assert list(conn) == [b"first"]
    with pytest.raises(EOFError):
        conn.recv(WAIT)


def test_the_peer_closes_first() -> None:
    with peer(closing) as (port, _), rnic.connect(HOST, port) as conn:
        assert list(conn) == [b"the last"]
        conn.close()
        assert conn.closed


def test_this_end_closes_first() -> None:
    with peer(waiting) as (port, _), rnic.connect(HOST, port) as conn:
        conn.send(b"first", WAIT)


def test_both_close_at_once_many_times() -> None:
    for _ in range(20):
        with pair() as (a, b):
            together(a.close, b.close)
            assert a.closed
            assert b.closed


def test_large_messages_both_ways_at_once() -> None:
    message = random.Random(3).randbytes(3 << 20)
    with pair(SMALL) as (a, b):

        def talk(one: rnic.Connection) -> None:
            one.send(message, WAIT)
            assert one.recv(WAIT) == message
            one.close()

        together(lambda: talk(a), lambda: talk(b))


def test_nothing_is_left_of_a_connection() -> None:
    before = descriptors()
    for _ in range(5):
        with pair() as (a, b):
            a.send(b"x")
            assert b.recv(WAIT) == b"x"
            together(a.close, b.close)
    quiet(before)


def test_close_has_a_limit_and_the_peer_learns_why() -> None:
    with pair() as (a, b):
        with pytest.raises(AbortedError, match="goodbyes"):
            a.close(0.2)
        assert a.closed
        with pytest.raises(EOFError):
            b.recv(WAIT)
        with pytest.raises(AbortedError, match="goodbyes"):
            b.send(b"", WAIT)


def test_close_tells_of_an_end_that_no_call_has_told_of() -> None:
    """The messages ended with the peer's goodbye, and then its close() came to its limit."""
    with pair() as (a, b):
        a.send(b"perhaps lost")
        with pytest.raises(AbortedError, match="goodbyes"):
            b.close(0.2)
        assert list(a) == []
        with pytest.raises(AbortedError, match="goodbyes"):
            a.close()
        a.close()


def test_an_exception_in_the_block_aborts() -> None:
    with pair() as (a, b):
        with pytest.raises(ZeroDivisionError), a:
            _ = 1 // 0
        with pytest.raises(AbortedError, match="ZeroDivisionError"):
            b.recv(WAIT)


@pytest.mark.parametrize("version", [1, 2])
def test_a_time_limit_leaves_the_connection_usable(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer of version 1 cannot be told that a message is taken back: it goes on, from a copy."""
    speak(version, monkeypatch)
    with pair(SMALL) as (a, b):
        with pytest.raises(TimeoutError):
            a.recv(0.05)
        with pytest.raises(TimeoutError):
            a.next_region(0.05)
        message = bytearray(b"m" * 200_000)
        with pytest.raises(TimeoutError):
            a.send(message, 0.05)  # nobody pumps the other end
        message[:] = bytes(len(message))  # it is ours again
        expected = [b"m" * 200_000, b"next"] if version == 1 else [b"next"]
        together(lambda: a.send(b"next", WAIT), lambda: check(b, expected))
        together(a.close, b.close)


def check(b: rnic.Connection, expected: list[bytes]) -> None:
    assert [b.recv(WAIT) for _ in expected] == expected


def test_after_close_every_call_says_so() -> None:
    with pair() as (a, b):
        together(a.close, b.close)
        for call in (lambda: a.send(b""), a.recv, a.next_region, lambda: a.share(bytearray(1))):
            with pytest.raises((ClosedError, EOFError)):
                call()


def test_what_the_peer_has_not_confirmed_is_undelivered() -> None:
    with pair() as (a, b):
        settle(a, b)
        for _ in range(3):
            a.send(b"to nobody", WAIT)
        a.hang_up()
        with pytest.raises(EndpointError):
            a.recv(WAIT)
        assert 3 <= a.undelivered <= 4  # perhaps also the first: short messages complete in groups


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


def test_nobody_listens() -> None:
    with rnic.listen(HOST, 0) as server:
        port = server.port
    with pytest.raises(RefusedError, match="nobody listens"):
        rnic.connect(HOST, port)


def test_a_peer_that_never_answers() -> None:
    with rnic.listen(HOST, 0) as server:
        times_out(lambda limit: rnic.connect(HOST, server.port, timeout=limit), "no answer")


def test_who_says_no_hello_is_refused_in_words() -> None:
    with rnic.listen(HOST, 0) as server, EventChannel() as channel, create_id(channel) as one:
        one.resolve_addr(None, (HOST, server.port))
        channel.get_cm_event(WAIT).ack()
        one.resolve_route()
        channel.get_cm_event(WAIT).ack()
        one.create_qp()
        one.connect(ConnParam(b"something else"))

        def is_told() -> bool:
            with pytest.raises(TimeoutError):
                server.accept(0.05)
            return channel.has_events

        until(is_told, "it is refused")
        with channel.get_cm_event(WAIT) as event:
            assert event.event is EventType.REJECTED
            assert isinstance(event.param, ConnParam)
            assert b"no rnic endpoint" in event.param.private_data


def test_a_listener_that_says_no_hello_is_refused_here() -> None:
    with EventChannel() as channel, create_id(channel) as listener:
        listener.bind_addr((HOST, 0))
        listener.listen()

        def answer() -> None:
            with channel.get_cm_event(WAIT) as event:
                one = event.id
            one.create_qp()
            one.accept()
            kinds = set()
            while EventType.DISCONNECTED not in kinds:
                with channel.get_cm_event(WAIT) as event:
                    kinds.add(event.event)
            one.destroy()

        def ask() -> None:
            with pytest.raises(NoHelloError, match="no rnic endpoint"):
                rnic.connect(HOST, listener.get_src_port())

        together(answer, ask)


def test_another_version_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with rnic.listen(HOST, 0) as server:
        hello = Config().hello()
        new = type(hello)(9, 9, *[getattr(hello, one.name) for one in fields(hello)[2:]])
        monkeypatch.setattr(Config, "hello", lambda *_: new)

        told = threading.Event()

        def is_told() -> bool:
            with pytest.raises(TimeoutError):
                server.accept(0.05)
            return told.is_set()

        def ask() -> None:
            with pytest.raises(rnic.endpoint.VersionError, match="no common version"):
                rnic.connect(HOST, server.port)
            told.set()

        together(lambda: until(is_told, "it is told"), ask)


def test_who_says_no_hello_is_served_raw_by_option() -> None:
    config = Config(raw=True)
    with rnic.listen(HOST, 0, config=config) as server, create_id() as one:

        def ask() -> None:
            one.resolve_addr(None, (HOST, server.port))
            one.resolve_route()
            one.create_qp()
            memory = bytearray(64)
            with one.reg_msgs(memory) as mr:
                one.post_recv(rnic.SGE(mr, 0, 32))
                one.connect()
                memory[32:36] = b"ping"
                one.post_send(rnic.SGE(mr, 32, 4))
                one.get_send_comp()
                assert bytes(memory[: one.get_recv_comp(WAIT).byte_len]) == b"pong"
                one.disconnect()

        def serve() -> None:
            with server.accept(WAIT) as conn:
                assert conn.raw
                assert conn.recv(WAIT) == b"ping"
                conn.send(b"pong")
                with pytest.raises(EOFError):
                    conn.recv(WAIT)

        together(ask, serve)
