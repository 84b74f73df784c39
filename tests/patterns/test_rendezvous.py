# SPDX-License-Identifier: Apache-2.0
"""Rendezvous on queue pairs: messages come whole and in order, from where they lie to where they belong."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from typing import Any, cast

import numpy as np
import pytest

import rnic
from forked import FORKS
from patterns.ends import WAIT, channel_through, queue_pair, queue_pairs
from rnic.patterns.credits import AsyncChannel, Channel
from rnic.patterns.cursor import LiarError
from rnic.patterns.rendezvous import AsyncRendezvous, RegistrationCache, Rendezvous, taking, words
from rnic.patterns.rendezvous.layout import Remote
from rnic.patterns.rendezvous.words import Kind
from waiting import until

Pair = tuple[Rendezvous, Rendezvous]
HOWS = ["read", "write"]
SIZES = [0, 1, 100, 4079, 4080, 4081, 200_000]
both_ways = pytest.mark.parametrize("how", HOWS)


@contextmanager
def ends(how: Any = "read", device: str | None = None, **options: Any) -> Iterator[Pair]:
    with queue_pairs(device) as (a, b), ExitStack() as stack:
        pair = Rendezvous(Channel(a), how, **options), Rendezvous(Channel(b), how, **options)
        for end in pair:
            stack.callback(end.abort)  # which does nothing after close()
        yield pair


@contextmanager
def beside(work: Callable[..., object], *args: object) -> Iterator[None]:
    """It runs in a thread meanwhile, and has to end well."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work, *args)
        yield
        future.result(WAIT)


def data(size: int) -> bytes:
    return Random(size).randbytes(size)


def echo(end: Rendezvous) -> None:
    """Until the peer closes its end."""
    try:
        while True:
            end.send(end.recv(WAIT), WAIT)
    except EOFError:
        end.close(WAIT)


def close(a: Rendezvous, b: Rendezvous) -> None:
    with beside(b.close, WAIT):
        a.close(WAIT)


@both_ways
@pytest.mark.parametrize("device", ["roce_lo", "iwarp_lo"])
def test_messages_of_every_length_come_back(how: str, device: str) -> None:
    with ends(how, device) as (a, b), beside(echo, b):
        for size in SIZES:
            a.send(data(size), WAIT)
            assert a.recv(WAIT) == data(size)
        buffer = bytearray(200_000)
        for size in SIZES:
            a.send(data(size), WAIT)
            assert a.recv_into(buffer, WAIT) == size
            assert buffer[:size] == data(size)
        a.close(WAIT)
        assert a.statistics().announced == 4  # what one SEND takes goes as it is
        assert a.statistics().eager == 10


@both_ways
def test_two_ends_that_send_first_do_not_wait_for_each_other(how: str) -> None:
    def talk(end: Rendezvous) -> list[bytes]:
        for size in SIZES:
            end.send(data(size), WAIT)
        return [end.recv(WAIT) for _ in SIZES]

    with ends(how) as (a, b), ThreadPoolExecutor(2) as pool:
        assert [list(got) for got in pool.map(talk, (a, b))] == [[data(size) for size in SIZES]] * 2
        assert a.statistics().backlog == 0


@both_ways
def test_a_send_takes_what_was_announced_ahead_of_it(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """READs and WRITEs have the time of the call, not that in which an invitation may come."""
    times: list[float] = []
    carry_out = Channel.carry_out

    def carry_out_and_note(self: Channel, wrs: Any, timeout: float, **options: Any) -> None:
        times.append(timeout)
        carry_out(self, wrs, timeout, **options)

    def talk() -> None:
        b.send(data(3_000_000), WAIT)
        assert b.recv(WAIT) == data(200_000)

    with ends(how) as (a, b):
        for sender, receiver in (a, b), (b, a):  # they know of each other
            with beside(sender.send, b"", WAIT):
                assert receiver.recv(WAIT) == b""
        channel = cast("Channel", a._channel)
        monkeypatch.setattr(Channel, "carry_out", carry_out_and_note)
        with beside(talk):
            until(lambda: channel._move() or channel.is_waiting, "the OFFER, or the ASK")
            a.send(data(200_000), WAIT)
        assert a.recv(WAIT) == data(3_000_000)
        assert min(times) > WAIT / 2
        close(a, b)


@both_ways
def test_a_recv_writes_what_an_earlier_send_has_left(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two ends that ask and answer would wait for each other."""
    carry_out = Channel.carry_out

    def give_up(*_: object, **__: object) -> None:
        monkeypatch.setattr(Channel, "carry_out", carry_out)
        raise TimeoutError

    def answer() -> None:
        assert b.recv_into(buffer, WAIT) == len(buffer)
        b.send(b"the answer", WAIT)

    with ends(how) as (a, b):
        buffer = bytearray(200_000)
        with beside(b.recv_into, buffer, WAIT):
            a.send(data(200_000), WAIT)
        with beside(answer):  # it invites the next one
            channel = cast("Channel", a._channel)
            until(lambda: channel._move() or channel.is_waiting, "the INVITE")
            monkeypatch.setattr(Channel, "carry_out", give_up)
            with pytest.raises(TimeoutError, match="a copy waits"):
                a.send(data(200_000)[::-1], WAIT)
            assert a.recv(WAIT) == b"the answer"
        assert buffer == data(200_000)[::-1]
        close(a, b)


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda a: a,
    "columns": lambda a: a[:, 100:1500],
    "rows": lambda a: a[::3],
    "backwards": lambda a: a[::-1, :1500],
    "every second": lambda a: a[:, ::2],
    "short rows": lambda a: a[:, :7],
    "transposed": lambda a: a.T,
    "three axes": lambda a: a.reshape(6, 20, 2000)[::2, ::-1, :1600],
    "doubles": lambda a: a.view(np.float64)[:, 3:203],
    "nothing": lambda a: a[:0],
    "a scalar": lambda a: a[3, 4, ...],
    "dates": lambda a: a.view("M8[s]")[:, 10:200],
    "a list": lambda a: [a[:, :1200], b"abc", bytearray(3), a[5]],
}


def plain(what: Any) -> bytes:
    """The bytes that an array, or a list of them, stands for."""
    if isinstance(what, list):
        return b"".join(map(plain, what))
    return bytes(what) if isinstance(what, bytes | bytearray) else bytes(what.tobytes())


@both_ways
def test_arrays_go_in_the_order_of_their_elements(how: str) -> None:
    with ends(how, threshold=0) as (a, b):
        for cut in ARRAYS.values():
            source = cut(np.random.default_rng(1).integers(0, 255, (120, 2000), dtype=np.uint8))
            with beside(a.send, source, WAIT):
                assert b.recv(WAIT) == plain(source)
        close(a, b)


@both_ways
def test_arrays_are_filled_where_they_lie(how: str) -> None:
    with ends(how) as (a, b):
        for name, cut in ARRAYS.items():
            if name != "a list":
                for size in (100, None):  # eager and announced, short and full
                    whole = np.zeros((120, 2000), np.uint8)
                    target, size_there = cut(whole), cut(whole).nbytes
                    message = data(size_there)[:size]
                    with beside(a.send, message, WAIT):
                        assert b.recv_into(target, WAIT) == len(message)
                    assert plain(target)[: len(message)] == message
                    assert not plain(target)[len(message) :].strip(b"\0")
                    target[...] = 0
                    assert not whole.any()  # nothing lies beside
        close(a, b)


@both_ways
def test_a_message_fills_a_list_of_buffers(how: str) -> None:
    with ends(how, threshold=0) as (a, b):
        parts: list[Any] = [
            bytearray(10),
            np.zeros((4, 3000), np.uint8)[:, :2000],
            bytearray(0),
            bytearray(5),
        ]
        with beside(a.send, [data(8000), data(12)], WAIT):
            assert b.recv_into(parts, WAIT) == 8012
        assert plain(parts)[:8012] == data(8000) + data(12)
        close(a, b)


def test_rows_are_not_copied_and_what_is_copied_is_counted() -> None:
    rows = np.ones((100, 4000), np.uint8)[:, :2000]
    for how, many in ("read", rows), ("write", np.ones((1000, 2000), np.uint8)[:, :1500]):
        room = np.zeros((1000, 4000), np.uint8)[:, :3000] if how == "read" else bytearray(1 << 21)
        with ends(how) as (a, b):
            with beside(a.send, many, WAIT):
                b.recv_into(room)
            assert (a.statistics().copied, b.statistics().copied) == (0, 0)
            with beside(a.send, rows[:, ::2], WAIT):
                b.recv(WAIT)
            assert a.statistics().copied == 100_000
            close(a, b)


@both_ways
def test_both_ends_measure_their_threshold(how: str) -> None:
    with ends(how) as (a, b), ThreadPoolExecutor(1) as pool:
        assert a.threshold is None
        with beside(echo, b):
            a.send(b"early", WAIT)
            assert a.recv(WAIT) == b"early"
            assert a.threshold == 4081  # what no single SEND takes
            a.close(WAIT)
    with ends(how) as (a, b), ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(b.measure, WAIT)
        assert a.measure(WAIT) == a.threshold
        assert theirs.result(WAIT) == b.threshold
        for end in (a, b):
            assert 1024 <= cast(int, end.threshold) <= 1 << 24
            assert end.statistics().announced == end.statistics().received == 0
        with beside(echo, b):
            a.send(b"x" * 100_000, WAIT)
            assert a.recv(WAIT) == b"x" * 100_000
            a.close(WAIT)


def test_messages_ahead_of_measuring_are_not_lost() -> None:
    with ends() as (a, b):
        with beside(b.measure, WAIT):
            a.send(b"first", WAIT)
            a.measure(WAIT)
        assert b.recv(WAIT) == b"first"
        close(a, b)


def test_measuring_alone_ends_the_channel() -> None:
    with ends() as (a, b):
        greet(a, b)
        with pytest.raises(TimeoutError):
            a.measure(0)
        with pytest.raises(ValueError, match="closed"):
            a.send(b"x")
        with pytest.raises(rnic.AbortedError, match="measure"):
            b.recv(WAIT)


# ------------------------------------------------------------------------------------ time limits


def greet(a: Rendezvous, b: Rendezvous) -> None:
    with beside(a.send, b"hello", WAIT):
        assert b.recv(WAIT) == b"hello"


def ends_too_early(end: Rendezvous, buffer: Any) -> bool:
    """Whether recv_into() has no time for what it begins."""
    try:
        end.recv_into(buffer, 0)
    except TimeoutError:
        return True
    return False


@both_ways
def test_a_message_that_nobody_took_in_time_comes_from_a_copy(how: str) -> None:
    with ends(how) as (a, b):
        greet(a, b)
        memory, rows = bytearray(b"x" * 50_000), np.full((10, 5000), ord("x"), np.uint8)[:, :4000]
        for buffer in memory, rows:
            size = len(plain(buffer))
            with pytest.raises(TimeoutError, match="a copy waits"):
                a.send(buffer, 0)
            memory.clear()  # nobody uses it
            rows[...] = ord("y") if buffer is rows else ord("x")
            with pytest.raises(TimeoutError):
                a.send(b"next", 0)  # keeps its place
            with beside(a.send, b"behind", WAIT):
                assert b.recv(WAIT) == b"x" * size
                assert b.recv(WAIT) == b"behind"
        close(a, b)


@both_ways
@pytest.mark.wire
def test_recv_that_ends_in_time_leaves_the_buffer_and_loses_nothing(how: str) -> None:
    with ends(how) as (a, b):
        greet(a, b)
        early, target = bytearray(50_000), np.zeros(50_000, np.uint8)
        with pytest.raises(TimeoutError):
            b.recv_into(early, 0)
        with pytest.raises(TimeoutError, match="copy"):
            a.send(data(50_000), 0)
        for buffer in early, target:
            while not ends_too_early(b, buffer):  # it was through at once
                assert bytes(buffer) == data(50_000)
                with pytest.raises(TimeoutError, match="copy"):
                    a.send(data(50_000), 0)
        early.clear()  # nobody uses it
        kept = target.copy()
        with beside(a.send, b"behind", WAIT):
            assert b.recv(WAIT) == data(50_000)
            assert b.recv(WAIT) == b"behind"
        assert (target == kept).all()
        close(a, b)


# ------------------------------------------------------------------------------------ invitations


def send_invited(a: Rendezvous, b: Rendezvous, message: Any, target: Any) -> None:
    """The sender waits until it is invited."""
    with beside(b.recv_into, target, WAIT):
        hope(a)
        a.send(message, WAIT)
        a._dealings._hopes = False


def hope(end: Rendezvous | AsyncRendezvous) -> None:
    """An invitation will come, if it takes long on a busy machine."""
    end._dealings._hopes, end._dealings._patience = True, WAIT


def begin(a: Rendezvous, b: Rendezvous) -> None:
    """A long message has come by recv_into(): so the next one is invited."""
    target = bytearray(50_000)
    with beside(a.send, data(50_000), WAIT):
        assert b.recv_into(target, WAIT) == 50_000
    assert target == data(50_000)


@pytest.mark.wire
@both_ways
@pytest.mark.parametrize("device", ["roce_lo", "iwarp_lo"])
def test_a_receiver_that_waits_is_written_to_at_once(how: str, device: str) -> None:
    with ends(how, device) as (a, b):
        begin(a, b)
        whole = np.zeros((40, 5000), np.uint8)
        for number, target in enumerate([whole, whole, whole[:, :4000], whole[::-1, 100:2000], whole.T], 1):
            message = data(target.nbytes - number)
            send_invited(a, b, message, target)
            assert plain(target)[: len(message)] == message
            assert a.statistics().invited == number
        send_invited(a, b, b"eager", whole)
        assert whole.tobytes()[:5] == b"eager"
        with beside(a.send, data(10_000), WAIT):
            assert b.recv(WAIT) == data(10_000)
        assert a.statistics().invited == number
        close(a, b)
        assert b.statistics().received == number + 3


@both_ways
def test_long_messages_one_behind_the_other_are_invited(how: str) -> None:
    """Header and body, and a receiver that is as fast as its sender."""
    with ends(how) as (a, b):

        def take() -> None:
            target = np.zeros(200_000, np.uint8)
            for number in range(30):
                assert b.recv(WAIT) == b"%d" % number
                assert b.recv_into(target, WAIT) == 200_000 - number
                assert target.tobytes()[: 200_000 - number] == data(200_000 - number)

        with beside(take):
            for number in range(30):
                a.send(b"%d" % number, WAIT)
                a.send(data(200_000 - number), WAIT)
        close(a, b)


@pytest.mark.wire
@both_ways
def test_a_place_that_is_too_small_is_not_used(how: str) -> None:
    with ends(how) as (a, b), ThreadPoolExecutor(1) as pool:
        begin(a, b)
        call = pool.submit(b.recv_into, bytearray(20_000), WAIT)
        until(lambda: b._dealings._room is not None, "an invitation")
        sending = pool.submit(b.recv, WAIT)  # runs when the first has failed
        a.send(data(20_001), WAIT)
        with pytest.raises(ValueError, match="20001 bytes and the buffer 20000"):
            call.result(WAIT)
        assert sending.result(WAIT) == data(20_001)
        close(a, b)


@pytest.mark.wire
@both_ways
@pytest.mark.parametrize("withdrawn", [True, False])
def test_an_invitation_in_vain_leaves_the_buffer(how: str, withdrawn: bool) -> None:
    with ends(how) as (a, b):
        begin(a, b)
        early, target = bytearray(50_000), bytearray(50_000)
        with pytest.raises(TimeoutError):
            b.recv_into(early, 0)
        if withdrawn:
            with pytest.raises(TimeoutError):
                b.recv(0)

        def is_heard() -> bool:
            with suppress(TimeoutError):
                a.recv(0)
            return a._dealings._invited is not None and bool(a._dealings._invited) != withdrawn

        until(is_heard, "the invitation, or its end")
        with pytest.raises(TimeoutError, match="copy"):
            a.send(data(50_000), 0)  # it may be written by now, but not to the buffer
        early.clear()
        with beside(b.recv_into, target, WAIT):
            a.send(b"behind", WAIT)
        assert target == data(50_000)
        assert b.recv(WAIT) == b"behind"
        assert a.statistics().invited == (not withdrawn)
        close(a, b)


@pytest.mark.wire
def test_after_an_invitation_in_vain_there_is_none_for_a_while() -> None:
    with ends() as (a, b):
        begin(a, b)
        with pytest.raises(TimeoutError):
            b.recv_into(bytearray(50_000), 0)
        for _ in range(16):
            begin(a, b)
        assert a.statistics().invited <= 1
        send_invited(a, b, data(50_000), bytearray(50_000))
        close(a, b)


@pytest.mark.wire
def test_an_array_that_comes_again_is_registered_ahead() -> None:
    with ends() as (a, b):
        begin(a, b)
        target = np.zeros(50_000, np.uint8)
        for _ in range(5):
            send_invited(a, b, data(50_000), target)
        assert b.cache.statistics().hits == 3
        assert b.cache.statistics().kept == 1
        del target
        assert b.cache.statistics().kept == 0
        close(a, b)


@pytest.mark.wire
def test_who_ends_while_the_peer_may_write_takes_the_memory_back() -> None:
    with ends() as (a, b):
        begin(a, b)
        target = bytearray(50_000)

        def take() -> None:
            with pytest.raises(rnic.AbortedError, match="enough"):
                b.recv_into(target, WAIT)

        with beside(take):
            until(lambda: b._dealings._room is not None, "an invitation")
            a.abort("enough")
        assert not b.cache._used


@both_ways
@pytest.mark.own_way
def test_in_shared_memory_nobody_is_invited_to_read(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_LOCAL", "on")
    with ends(how) as (a, b):
        for _ in range(3):
            begin(a, b)
        assert b._dealings._reads_memory() == (how == "read")
        assert how == "write" or not a.statistics().invited
        close(a, b)


# ------------------------------------------------------------------------------------ calls that end early


def speak_and_listen(end: Rendezvous, seed: int) -> list[bytes]:
    """Each call may end at once; what was announced must come all the same, and whole."""
    dice, got = Random(seed), list[bytes]()
    for number in range(40):
        buffer = bytearray(b"%02d" % number + data(dice.choice([10, 5000, 60_000])))
        target = np.zeros(100_000, np.uint8)
        with suppress(TimeoutError):
            end.send(buffer, dice.choice([0, 0.001, 0.1]))
        buffer[:] = bytes(len(buffer))
        try:
            if dice.random() < 0.5:
                got.append(end.recv(dice.choice([0, 0.001])))
            else:
                length = end.recv_into(target, dice.choice([0, 0.001]))
                got.append(target[:length].tobytes())
        except TimeoutError:
            pass
    end.send(b"99", WAIT)
    while not got or got[-1] != b"99":
        got.append(end.recv(WAIT))
    return got


@both_ways
@pytest.mark.parametrize("pause", [0, 16])
def test_calls_that_end_early_tear_no_message(how: str, pause: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "_PAUSE", pause)
    with ends(how) as (a, b), ThreadPoolExecutor(2) as pool:
        for got in pool.map(speak_and_listen, (a, b), (1, 2)):
            assert [int(message[:2]) for message in got] == sorted({int(message[:2]) for message in got})
            assert all(message[2:] == data(len(message) - 2) for message in got[:-1])


def test_a_message_that_is_too_long_stays() -> None:
    with ends() as (a, b):
        with beside(a.send, data(50_000), WAIT):
            with pytest.raises(ValueError, match="50000 bytes and the buffer 10"):
                b.recv_into(bytearray(10), WAIT)
            assert b.recv(WAIT) == data(50_000)
        a.send(b"eager", WAIT)
        with pytest.raises(ValueError, match="5 bytes and the buffer 1"):
            b.recv_into(bytearray(1), WAIT)
        assert b.recv(WAIT) == b"eager"
        close(a, b)


def test_what_the_peer_does_not_take_is_refused_here() -> None:
    with queue_pairs() as (a, b):
        sender, receiver = Rendezvous(Channel(a)), Rendezvous(Channel(b), max_message=10_000)
        greet(sender, receiver)
        with pytest.raises(rnic.MessageTooLongError, match="10001 bytes: the peer takes 10000"):
            sender.send(bytes(10_001))
        close(sender, receiver)


def test_a_queue_pair_is_no_channel() -> None:
    with queue_pairs() as (a, _), pytest.raises(TypeError, match="give a Channel or AsyncChannel"):
        Rendezvous(a)  # type: ignore[arg-type]


def test_a_full_backlog_is_told_with_the_cure() -> None:
    with ends(max_backlog=1000) as (a, b):
        greet(a, b)
        for _ in range(3):
            b.send(bytes(900), WAIT)
        with pytest.raises(BufferError, match=r"take them by recv\(\)"):
            a.send(bytes(50_000), WAIT)
        with beside(b.recv, WAIT):
            assert [len(a.recv(WAIT)) for _ in range(3)] == [900] * 3
            a.send(b"", WAIT)
        close(a, b)


# ------------------------------------------------------------------------------------ ends


def test_a_peer_that_has_closed_takes_no_message() -> None:
    with ends() as (a, b):
        greet(a, b)
        with beside(b.close, WAIT):
            with pytest.raises(ConnectionError, match="closed its end"):
                a.send(bytes(50_000), WAIT)
            with pytest.raises(EOFError):
                a.recv(WAIT)
            a.close(WAIT)
        with pytest.raises(ValueError, match="closed"):
            a.send(b"")


def test_close_waits_for_a_message_of_an_earlier_call() -> None:
    with ends() as (a, b):
        greet(a, b)
        with pytest.raises(TimeoutError):
            a.send(data(50_000), 0)

        def take() -> None:
            assert b.recv(WAIT) == data(50_000)
            b.close(WAIT)

        with beside(take):
            a.close(WAIT)


def test_an_abort_is_told() -> None:
    with ends() as (a, b):
        greet(a, b)
        a.abort("enough")
        for call in (lambda: b.recv(WAIT), lambda: b.send(bytes(50_000), WAIT)):
            with pytest.raises(rnic.AbortedError, match="enough"):
                call()


def _serve_until_killed(sock: socket.socket, how: Any) -> None:
    with ExitStack() as stack:
        qp = queue_pair(stack)
        echo(Rendezvous(channel_through(qp, sock), how))


@pytest.mark.one_in(3)
@both_ways
@pytest.mark.parametrize("waits", ["sender", "receiver", "both"])
def test_a_peer_that_dies_is_told(how: str, waits: str) -> None:
    ours, theirs = socket.socketpair()
    process = FORKS.Process(target=_serve_until_killed, args=(theirs, how))
    process.start()
    theirs.close()
    with ours, ExitStack() as stack:
        qp = queue_pair(stack)
        end = Rendezvous(channel_through(qp, ours), cast(Any, how))
        stack.callback(end.abort)
        end.send(data(100_000), WAIT)
        assert end.recv(WAIT) == data(100_000)
        process.kill()
        if waits != "both":  # else it dies while they talk
            process.join(WAIT)
        with pytest.raises(ConnectionError):
            if waits == "receiver":
                end.recv(WAIT)
            while waits == "both":
                end.send(data(100_000), WAIT)
                assert end.recv(WAIT) == data(100_000)
            end.send(data(100_000), WAIT)
        process.join(WAIT)


def test_a_second_thread_is_refused() -> None:
    with ends() as (a, b):
        greet(a, b)
        with beside(a.recv, WAIT):
            while not a._inside:
                pass
            with pytest.raises(RuntimeError, match="another thread"):
                a.send(b"")
            b.send(b"x", WAIT)
        close(a, b)


# ------------------------------------------------------------------------------------ lies


def lie(end: Rendezvous, word: bytes) -> None:
    end._channel.send(word, WAIT)


@pytest.mark.parametrize("kind", [Kind.OFFER, Kind.CLEAR, Kind.INVITE])
def test_memory_that_is_not_the_peers_to_give_ends_the_channel(kind: Kind) -> None:
    with ends("write") as (a, b), ThreadPoolExecutor(1) as pool:
        greet(a, b)
        pieces = words.pack_pieces([Remote(0, 50_000, 0xDEAD)])
        if kind is Kind.OFFER:
            lie(b, words.pack(kind, 1, pieces))
            call = pool.submit(a.recv, WAIT)
        else:
            if kind is Kind.INVITE:
                lie(b, words.pack(kind, 2, pieces))
            call = pool.submit(a.send, data(50_000), WAIT)
            if kind is Kind.CLEAR:
                assert b._channel.recv(WAIT)[0] == Kind.ASK
                lie(b, words.pack(kind, 2, pieces))
        with pytest.raises(LiarError, match="not what it says"):
            call.result(WAIT)
        with pytest.raises(ConnectionError):
            a.send(b"x", WAIT)
        with pytest.raises(ConnectionError):
            b.recv(WAIT)


def test_a_liar_is_told() -> None:
    with ends() as (a, b):
        greet(a, b)
        lie(b, words.pack(Kind.DONE, 7))
        with pytest.raises(LiarError, match="message 7, which it was not given") as found:
            a.recv(WAIT)
        with pytest.raises(LiarError):
            a.recv(WAIT)
        with pytest.raises(rnic.AbortedError, match=str(found.value)[:20]):
            b.recv(WAIT)


def test_memory_is_the_owners_when_all_is_over() -> None:
    for how in HOWS:
        with queue_pairs() as (a, b):
            cache = RegistrationCache(cast(rnic.PD, a.pd))
            ours, theirs = Rendezvous(Channel(a), cast(Any, how), cache=cache), Rendezvous(Channel(b))
            greet(ours, theirs)
            buffer = bytearray(50_000)
            with pytest.raises(TimeoutError):
                ours.send(buffer, 0)
            lie(theirs, b"?")
            with pytest.raises(LiarError):
                ours.recv(WAIT)
            buffer.clear()
            ours.abort()
            theirs.abort()
            cache.close()
            # what is left of regions lets the end of queue_pairs() fail


def test_what_a_rendezvous_needs_is_said() -> None:
    with queue_pairs() as (a, b):
        short, channel = Channel(a, max_message=100), Channel(b)
        with pytest.raises(ValueError, match="max_message=5128 is needed"):
            Rendezvous(short)
        short.abort()
        with pytest.raises(ValueError, match="give 'read' or 'write'"):
            Rendezvous(channel, cast(Any, "push"))
        with pytest.raises(ValueError, match="threshold -1"):
            Rendezvous(channel, threshold=-1)
        with pytest.raises(ValueError, match="another protection domain"):
            Rendezvous(channel, cache=RegistrationCache(cast(rnic.PD, a.pd)))
        end = Rendezvous(channel)
        with pytest.raises(ValueError, match="needs a buffer that can be written"):
            end.recv_into(cast(Any, b"abc"))
        with pytest.raises(ValueError, match="Python objects"):
            end.send(np.array([object()]))
        with pytest.raises(TypeError, match="text"):
            end.send(cast(Any, "text"))
        channel.abort()


# ------------------------------------------------------------------------------------ asyncio


@contextmanager
def async_ends(how: Any, **options: Any) -> Iterator[tuple[AsyncRendezvous, AsyncRendezvous]]:
    with queue_pairs() as (a, b):
        yield (
            AsyncRendezvous(AsyncChannel(a), how, **options),
            AsyncRendezvous(AsyncChannel(b), how, **options),
        )


async def within(work: Any) -> Any:
    return await asyncio.wait_for(work, WAIT)


@both_ways
def test_tasks_talk(how: str) -> None:
    async def serve(end: AsyncRendezvous) -> None:
        async with end:
            await end.measure()
            for _ in SIZES:
                await end.send(await end.recv())

    async def talk(a: AsyncRendezvous, b: AsyncRendezvous) -> None:
        serving = asyncio.create_task(serve(b))
        async with a:
            assert await a.measure() == a.threshold
            for size in SIZES:
                await a.send(data(size))
                buffer = bytearray(size + 1)
                assert await a.recv_into(buffer) == size
                assert buffer[:size] == data(size)
        await serving

    with async_ends(how) as (a, b):
        asyncio.run(within(talk(a, b)))


@pytest.mark.wire
@both_ways
def test_tasks_that_wait_are_written_to_at_once(how: str) -> None:
    async def talk(a: AsyncRendezvous, b: AsyncRendezvous) -> None:
        buffer = bytearray(50_000)
        for _ in range(10):
            receiving = asyncio.create_task(b.recv_into(buffer))
            if a.statistics().announced:
                hope(a)
            await a.send(data(50_000))
            assert await receiving == 50_000
            assert buffer == data(50_000)
        assert a.statistics().invited == 9
        await asyncio.gather(a.close(WAIT), b.close(WAIT))

    with async_ends(how) as (a, b):
        asyncio.run(within(talk(a, b)))


@both_ways
@pytest.mark.parametrize("invited", [False, True])
def test_a_cancelled_task_leaves_its_buffer(how: str, invited: bool) -> None:
    async def talk(a: AsyncRendezvous, b: AsyncRendezvous) -> None:
        await asyncio.gather(a.send(b"hello"), b.recv())
        if invited:
            await asyncio.gather(a.send(data(50_000)), b.recv_into(bytearray(50_000)))
        buffer, target = bytearray(data(50_000)), bytearray(50_000)
        for call in b.recv_into(target), a.send(buffer), b.recv_into(target):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await call
        buffer.clear()
        target.clear()
        got, _ = await asyncio.gather(b.recv(), a.send(b"behind"))
        assert got == data(50_000)
        assert await b.recv() == b"behind"
        await asyncio.gather(a.close(WAIT), b.close(WAIT))

    with async_ends(how) as (a, b):
        asyncio.run(within(talk(a, b)))


def test_tasks_learn_of_a_lie() -> None:
    async def talk(a: AsyncRendezvous, b: AsyncRendezvous) -> None:
        await asyncio.gather(a.send(b"hello"), b.recv())
        await b._channel.send(words.pack(Kind.OFFER, 1, words.pack_pieces([Remote(0, 50_000, 0xDEAD)])))
        with pytest.raises(LiarError, match="not what it says"):
            await a.recv()
        with pytest.raises(ConnectionError):
            await b.recv()
        await a.abort()
        await b.abort()

    with async_ends("read") as (a, b):
        asyncio.run(within(talk(a, b)))


def test_a_thread_and_a_task_understand_each_other() -> None:
    async def talk(end: AsyncRendezvous) -> None:
        async with end:
            for size in SIZES:
                await end.send(data(size))
                assert await end.recv() == data(size)

    with queue_pairs() as (a, b):
        threaded, own = Rendezvous(Channel(b), "write"), AsyncRendezvous(AsyncChannel(a), "read")
        serving = threading.Thread(target=echo, args=(threaded,))
        serving.start()
        asyncio.run(within(talk(own)))
        serving.join(WAIT)
        assert not serving.is_alive()
