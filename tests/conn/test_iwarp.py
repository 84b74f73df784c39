# SPDX-License-Identifier: Apache-2.0
"""What rnic.connect() does on iWARP alone."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from errno import ETIMEDOUT

import pytest

import rnic
from conn.peers import WAIT, settle
from conn.test_loss import REGION, exchange
from rdmacm.ends import all_quiet
from rdmacm.mortal import mortal
from rnic import Faults
from rnic.conn.core import HUNG_UP, SILENT
from rnic.conn.ending import GRACE, Ending
from rnic.endpoint import AbortedError, EndpointError, LostError, Region, State
from rnic.enums import WCStatus
from rnic.rdmacm import Event, EventChannel
from rnic.rdmacm.iwcm.connection import IwConnection
from rnic.rdmacm.registry import registry
from rnic.records import replace

COUNT = 5


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The agent of a test has its environment, and ends with it."""
    yield
    all_quiet()


@pytest.mark.parametrize("crc", ["on", "off"])
def test_crcs_are_switched_by_the_environment(monkeypatch: pytest.MonkeyPatch, crc: str) -> None:
    monkeypatch.setenv("RNIC_MPA_CRC", crc)
    agreed: list[bool] = []
    attach = rnic.QP.attach_stream

    def note(qp: rnic.QP, sock: socket.socket, attr: rnic.StreamAttr) -> None:
        agreed.append(attr.crc)
        attach(qp, sock, attr)

    monkeypatch.setattr(rnic.QP, "attach_stream", note)
    with rnic.listen("127.0.0.1", 0, device="iwarp_lo") as listener:
        at = listener.address[:2]
        caller = threading.Thread(target=lambda: rnic.connect(*at, device="iwarp_lo").close())
        caller.start()
        with listener.accept(60) as served:
            served.close()
        caller.join(60)
    assert agreed == [crc == "on"] * 2


@contextlib.contextmanager
def pair(config: rnic.endpoint.Config | None = None) -> Iterator[tuple[rnic.Connection, rnic.Connection]]:
    with (
        rnic.listen("127.0.0.1", 0, device="iwarp_lo", config=config) as listener,
        ThreadPoolExecutor(1) as pool,
    ):
        asking = pool.submit(
            rnic.connect, "127.0.0.1", listener.port, device="iwarp_lo", config=config, timeout=WAIT
        )
        served = listener.accept(WAIT)
        yield asking.result(WAIT), served


def say_and_close(conn: rnic.Connection, messages: int) -> list[bytes]:
    for number in range(messages):
        conn.send(b"%d" % number, WAIT)
    conn.close(WAIT)
    return [b"%d" % number for number in range(messages)]


@pytest.mark.parametrize("messages", [0, 1, 20])
def test_both_may_close_at_once(messages: int) -> None:
    """Neither end closes the stream before the other knows that its last word has arrived."""
    for _ in range(20):
        with pair() as ends, ThreadPoolExecutor(2) as pool:
            for closing in [pool.submit(say_and_close, end, messages) for end in ends]:
                closing.result(WAIT)
            assert [end._core.error for end in ends] == [None, None]


@contextlib.contextmanager
def faulty(conn: rnic.Connection, faults: Faults) -> Iterator[None]:
    """All connections of its device have the faults."""
    context = conn._core.cm_id.verbs
    assert context is not None
    context.set_faults(faults)
    try:
        yield
    finally:
        context.set_faults(None)


def test_who_closes_waits_until_the_peer_has_asked() -> None:
    """Each write takes its time, so the last word goes while a question is under way, and its own is late."""
    for _ in range(5):
        with pair() as (a, b), ThreadPoolExecutor(1) as pool:
            closing = pool.submit(b.close, WAIT)
            with pytest.raises(EOFError):
                a.recv(WAIT)
            with faulty(a, Faults(delay=1.0, delay_s=0.02)):
                a.send(b"one", WAIT)
                a.send(b"two", WAIT)
                a.close(WAIT)
                closing.result(WAIT)
            assert [end._core.error for end in (a, b)] == [None, None]


def test_the_reason_may_come_behind_the_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue pair has failed, and the connection manager says why later: that is waited for."""
    peek = EventChannel.peek
    with pair() as (a, b):
        core = a._core

        def late(channel: EventChannel) -> Event | None:
            return None if channel is core.channel and core._reason_by is None else peek(channel)

        monkeypatch.setattr(EventChannel, "peek", late)
        try:
            with faulty(a, Faults(reset=1.0)), pytest.raises(LostError, match="the TCP connection was reset"):
                a.send(b"lost", WAIT)
                a.recv(WAIT)
        finally:
            a.abort()
            b.abort()


def test_a_connection_that_is_dropped_says_why() -> None:
    """The reason goes out though nobody waits for that."""
    for _ in range(30):
        with pair() as (a, b):
            a._drop("on purpose")
            with pytest.raises(AbortedError, match="on purpose"):
                b.recv(WAIT)
            b.abort()


def test_a_connection_has_not_ended_before_somebody_has_seen_whether_its_peer_has_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[bool] = []
    wind_up = Ending.wind_up

    def note(end: Ending, now: float) -> None:
        core = end._core
        if core.state in (State.CLOSED, State.FAILED) and end.linger_by is None:
            seen.append(core.finished)
        wind_up(end, now)

    monkeypatch.setattr(Ending, "wind_up", note)
    with pair() as ends, ThreadPoolExecutor(2) as pool:
        for closing in [pool.submit(end.close, WAIT) for end in ends]:
            closing.result(WAIT)
    assert seen == [False, False]


def test_who_hangs_up_does_not_wait_for_a_peer_that_is_stopped() -> None:
    with mortal(device="iwarp_lo") as peer:
        conn = rnic.connect("127.0.0.1", peer.do("serve_endpoint"), device="iwarp_lo")
        peer.stop()
        conn._core.end.hang_up()
        assert conn._core.qp.state is rnic.QPState.ERR
        conn.abort()


def test_a_peer_that_does_not_answer_is_told_in_the_words_of_every_transport() -> None:
    with pair() as (a, b):
        conversation = a._core.cm_id.conversation
        agent = a._core.cm_id.agent
        assert isinstance(conversation, IwConnection)
        assert agent is not None
        with registry.lock:
            conversation._ended(-ETIMEDOUT)
            agent.flush()
        with pytest.raises(LostError, match=SILENT):
            a.recv(WAIT)
        a.abort()
        b.abort()


def test_a_write_that_has_returned_is_there() -> None:
    with pair() as (a, b):
        memory = bytearray(1 << 16)
        b.share(memory)
        region = a.next_region(WAIT)
        for number in range(300):
            a.write(number.to_bytes(4, "little"), region, number * 100)
            assert memory[number * 100 : number * 100 + 4] == number.to_bytes(4, "little")
        a.abort()
        b.abort()


def test_what_a_stopped_peer_has_not_read_is_not_delivered() -> None:
    """Its kernel takes all, and says so to this one."""
    with mortal(device="iwarp_lo") as peer:
        conn = rnic.connect("127.0.0.1", peer.do("serve_endpoint"), device="iwarp_lo")
        conn.send(b"there", WAIT)
        assert conn.recv(WAIT) == b"there"
        peer.stop()
        for _ in range(3):
            conn.send(b"not there", WAIT)
        with pytest.raises(AbortedError, match="goodbyes"):
            conn.close(0.5)
        assert conn.undelivered >= 3  # perhaps also the first: short messages complete in groups


def echo(listener: rnic.Listener, rounds: int) -> None:
    for _ in range(rounds):
        try:
            with listener.accept(WAIT) as conn:
                conn.share(bytearray(REGION))
                for message in conn:
                    conn.send(message, WAIT)
        except EndpointError:
            pass  # the other end has heard of it, too


@pytest.mark.parametrize(
    ("faults", "spares"),
    [
        (Faults(chunk=3000), True),
        (Faults(delay=0.1, delay_s=0.002), True),
        (Faults(reset=0.003), False),
        (Faults(flip=0.01), False),
        (Faults(flip_header=0.01), False),
        (Faults(reset_after=30_000), False),
    ],
    ids=str,
)
def test_all_of_it_arrives_or_the_failure_has_a_name(faults: Faults, spares: bool) -> None:
    """Both ends have the faults; those that TCP does not mend end the connection, at both."""
    outcomes: Counter[str] = Counter()
    with rnic.listen("127.0.0.1", 0, device="iwarp_lo") as listener:
        beside = threading.Thread(target=echo, args=(listener, COUNT))
        beside.start()
        for seed in range(COUNT):
            with rnic.connect("127.0.0.1", listener.port, device="iwarp_lo", timeout=WAIT) as conn:
                context = conn._core.cm_id.verbs
                assert context is not None
                context.set_faults(replace(faults, seed=seed))
                try:
                    exchange(conn, random.Random(seed))
                    outcomes["done"] += 1
                except EndpointError as error:
                    outcomes[type(error).__name__] += 1
                    conn.abort()
                finally:
                    context.set_faults(None)
        beside.join(WAIT)
        assert not beside.is_alive()
    print(outcomes)
    assert outcomes["done"] == COUNT if spares else outcomes.total() == COUNT


def test_the_operation_that_the_peer_refused_is_named_though_it_stopped_one_before_it() -> None:
    with pair() as (a, b):
        b.share(bytearray(1 << 24))
        remote = a.next_region(WAIT)
        beyond = Region(remote.id, remote.addr, 2 * remote.length, remote.rkey, remote.access)
        with pytest.raises(LostError, match="REM_ACCESS_ERR") as caught, a.batch(WAIT) as batch:
            first = batch.read(bytearray(remote.length), remote)
            second = batch.write(b"x", beyond, remote.length)
        assert first.status == WCStatus.WR_FLUSH_ERR
        assert batch.failed is second
        assert caught.value.__notes__ == [f"operation 1 of the batch: {second.what()}"]
        a.abort()
        b.abort()


def test_calls_say_that_this_end_hung_up() -> None:
    with pair() as (a, b):
        settle(a, b)
        started = time.monotonic()
        a.hang_up()
        for call in (lambda: a.recv(WAIT), lambda: a.send(b"x")):
            with pytest.raises(LostError, match=re.escape(HUNG_UP)):
                call()
        assert time.monotonic() - started < GRACE  # nobody else is asked why
        with pytest.raises(LostError, match="the peer disconnected without a goodbye"):
            b.recv(WAIT)
        a.abort()
        b.abort()


@pytest.mark.parametrize("turns", [1, 2, 4, 8])
def test_an_abort_while_the_peer_reads_a_message_tells_why(turns: int) -> None:
    message = bytes(30_000_000)
    with pair() as (a, b), ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(took_or_ended, b)
        with contextlib.suppress(TimeoutError):
            a.send(message, turns / 1000)
        a.abort("enough")
        assert receiving.result(WAIT) == "the peer aborted the connection: enough"
        b.abort()


def took_or_ended(conn: rnic.Connection) -> str:
    """What ends the connection, after a message or not."""
    with pytest.raises(EndpointError) as caught:
        for _ in range(2):
            conn.recv(WAIT)
    return str(caught.value)
