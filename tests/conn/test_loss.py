# SPDX-License-Identifier: Apache-2.0
"""Endpoints over a link that loses packets, IPv4 and IPv6: all of it arrives, or the failure has a name."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe

import pytest

import rnic
from conn.peers import WAIT
from rdmacm.ends import LOOPBACKS, other
from rdmacm.load import lose
from rnic.endpoint import Config, EndpointError
from rnic.rdmacm import create_id

SOAK = bool(os.environ.get("RNIC_SOAK"))
COUNT = 40 if SOAK else 2
SIZES = (0, 1, 5000, 40_000)
PATIENT = Config(idle_interval=None)
REGION = 8192
NAMED = ("RETRY_EXC_ERR", "does not answer", "not within", "DISCONNECTED", "aborted", "goodbye")


@contextmanager
def losing(host: str, loss: float) -> Iterator[None]:
    """The device of an address stays open, and loses what this process sends."""
    with create_id() as anchor:
        anchor.bind_addr((host, 0))
        lose(anchor, loss)
        yield
        assert anchor.verbs
        assert bool(anchor.verbs.counters().fault_lost) == bool(loss)
        lose(anchor, 0)


def serve(way: Pipe, host: str, loss: float) -> None:
    with losing(host, loss), rnic.listen(host, 0, config=PATIENT) as server:
        way.send(server.port)
        while not way.poll(0):
            try:
                conn = server.accept(0.1)
            except TimeoutError:
                continue
            try:
                with conn:
                    conn.share(bytearray(REGION))
                    for message in conn:
                        conn.send(message, WAIT)
            except EndpointError:
                pass  # the caller has heard of it, too


def talk(host: str, port: int, rng: random.Random) -> None:
    with rnic.connect(host, port, timeout=WAIT, config=PATIENT) as conn:
        exchange(conn, rng)


def exchange(conn: rnic.Connection, rng: random.Random) -> None:
    """Everything that a connection can do, with one that echoes."""
    for size in SIZES:
        message = rng.randbytes(size)
        conn.send(message, WAIT)
        assert conn.recv(WAIT) == message
    remote = conn.next_region(WAIT)
    data, back = rng.randbytes(REGION - 8), bytearray(REGION - 8)
    conn.write(data, remote, timeout=WAIT)
    conn.read(back, remote, timeout=WAIT)
    assert back == data
    assert [conn.fetch_add(remote, 1, REGION - 8, timeout=WAIT) for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("host", LOOPBACKS)
@pytest.mark.parametrize("loss", [0.0, *(pytest.param(one, marks=pytest.mark.roce) for one in (0.05, 0.2))])
def test_all_of_it_arrives_or_the_failure_has_a_name(host: str, loss: float) -> None:
    """At 20 %, a request that is lost eight times in a row ends a connection: one of some hundred."""
    outcomes: Counter[str] = Counter()
    with other(serve, host, loss) as peer:
        port = peer.hear()
        with losing(host, loss):
            for seed in range(COUNT):
                try:
                    talk(host, port, random.Random(seed))
                    outcomes["done"] += 1
                except EndpointError as error:
                    outcomes[str(error)] += 1
        peer.way.send("stop")
        peer.process.join(WAIT)
        assert peer.process.exitcode == 0
    print(f"\n{host}, loss {loss:.0%}: {dict(outcomes)}")
    if loss < 0.1:
        assert outcomes == {"done": COUNT}
    assert outcomes["done"] >= COUNT / 2
    assert all(any(name in text for name in NAMED) for text in outcomes if text != "done")
