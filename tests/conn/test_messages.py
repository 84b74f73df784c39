# SPDX-License-Identifier: Apache-2.0
"""Messages of any size and what is told of them, over the synchronous face."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

import pytest

import rnic
from conn.frames import CREDIT, frame, message
from conn.peers import HOST, SLEEPY, SMALL, WAIT, peer, settle
from conn.test_ends import pair
from conn.test_hostile import HELLO, dialled
from rnic.endpoint import Config, EndpointError
from waiting import until

SIZES = [0, 1, 7, 8, 2040, 2048, 16384, 16385, 100_000, 3 << 20]


def echo(conn: rnic.Connection) -> None:
    for one in conn:
        conn.send(one, WAIT)


def test_hello_there_and_back() -> None:
    with peer(echo) as (port, _):
        with rnic.connect(HOST, port) as conn:
            conn.send(b"hello", WAIT)
            assert conn.recv(WAIT) == b"hello"
        assert conn.closed


@pytest.mark.parametrize("config", [None, SMALL], ids=["default", "small"])
def test_every_size_comes_back(config: Config | None) -> None:
    with peer(echo, config=SMALL) as (port, _), rnic.connect(HOST, port, config=config) as conn:
        for size in SIZES:
            data = random.Random(size).randbytes(size)
            conn.send(data, WAIT)
            assert conn.recv(WAIT) == data


@pytest.mark.parametrize("config", [None, SMALL, SLEEPY], ids=["default", "small", "sleepy"])
def test_messages_of_both_ends_come_in_order_and_are_counted(config: Config | None) -> None:
    rng = random.Random(2)
    most = 1 if config is SMALL else 3  # so many are sent though nobody takes one
    sizes = [0, 1, 300, 2031, 2032, 2033] if config is SMALL else [0, 8, 2000, 16368, 16369, 40000]
    with pair(config) as ends:
        said: list[list[bytes]] = [[], []]
        count = [0, 0]
        for _ in range(400):
            who = rng.randrange(2)
            if len(said[who]) < most and rng.random() < 0.6:
                said[who].append(rng.randbytes(rng.choice(sizes)))
                ends[who].send(said[who][-1], WAIT)
                count[who] += 1
            elif said[who]:
                assert ends[1 - who].recv(WAIT) == said[who].pop(0)
        for who in (0, 1):
            for one in said[who]:
                assert ends[1 - who].recv(WAIT) == one
        for who, (here, there) in enumerate((ends, ends[::-1])):
            assert here.statistics().messages_received == count[1 - who]
            assert here.statistics().receives <= there.statistics().sends


def test_a_row_of_messages_one_way_returns_its_credits() -> None:
    with pair() as (a, b):
        settle(a, b)
        for number in range(1000):
            a.send(b"%d" % number, WAIT)
            assert b.recv(WAIT) == b"%d" % number
        assert b.statistics().credit_sends > 10
        settle(b, a)
        assert a.statistics().messages_sent >= 1000 - 16  # the last ones are not known to be there
        assert a.statistics().sends == b.statistics().receives


def test_credits_that_a_credit_makes_worth_it_are_returned() -> None:
    """Else the peer, whose last credit is for CREDIT, and who has nothing to return, waits for ever."""

    def serve(server: rnic.Listener) -> None:
        with server.accept(WAIT) as conn:
            conn.send(b"x1", WAIT)
            conn.send(b"x2", WAIT)
            got.append(conn.recv(WAIT))
            with suppress(EndpointError):
                conn.recv(WAIT)

    got: list[bytes] = []
    config = Config(receive_size=2048, send_size=2048, receives=3, idle_interval=None)
    with rnic.listen(HOST, 0, config=config) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        with dialled(server, HELLO) as one:
            assert one.hear()[16:] == b"x1"
            assert one.hear()[16:] == b"x2"
            one.post(message(0, b"m1"))
            until(lambda: bool(got), "m1 has come")
            one.post(frame(CREDIT, refill=2))
            assert one.hear() == frame(CREDIT, refill=2)
        thread.join(WAIT)
        assert not thread.is_alive()


@pytest.mark.parametrize("config", [None, SLEEPY], ids=["looks", "sleeps"])
def test_a_recv_that_sleeps_is_woken_and_comes_to_its_limit(config: Config | None) -> None:
    with pair(config) as (a, b):
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


def test_what_has_come_of_a_long_message_is_not_lost_with_the_limit() -> None:
    long = random.Random(9).randbytes(200_001)
    with pair(Config(announce=None, receive_size=16384, send_size=16384)) as (a, b):
        settle(a, b)
        sending = threading.Thread(target=b.send, args=(long, WAIT))
        for limit in (0, 1e-6, 1e-4, 1e-3):
            with suppress(TimeoutError):
                assert a.recv(limit) == b"nothing yet"
        sending.start()
        for limit in (1e-6, 1e-5, 1e-4, 1e-4, WAIT):
            with suppress(TimeoutError):
                assert a.recv(limit) == long
                break
        else:
            pytest.fail("the message did not come")
        sending.join(WAIT)
        settle(a, b)


def test_a_message_may_be_as_long_as_a_hello_can_say() -> None:
    with pair(Config(max_message=(1 << 64) - 1)) as (a, b):
        settle(a, b)


# ---------------------------------------------------------------- who is silent is probed


def say_when_probed(a: rnic.Connection, before: int, b: rnic.Connection) -> None:
    until(lambda: a.statistics().probes > before, "it probes")
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
