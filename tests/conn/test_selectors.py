# SPDX-License-Identifier: Apache-2.0
"""Many synchronous connections in one thread, with selectors."""

from __future__ import annotations

import contextlib
import select
import selectors
import threading
from collections.abc import Iterator

import rnic
from conn.peers import SLEEPY, WAIT, settle
from conn.test_ends import pair

PEERS, MESSAGES = 5, 40


def drained(conn: rnic.Connection) -> Iterator[bytes]:
    """All messages that are here."""
    with contextlib.suppress(TimeoutError):
        while True:
            yield conn.recv(0)


def test_a_selector_waits_for_many_connections() -> None:
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        ends = [stack.enter_context(pair()) for _ in range(PEERS)]
        got: dict[rnic.Connection, list[bytes]] = {b: list(drained(b)) for _, b in ends}
        for b in got:
            selector.register(b, selectors.EVENT_READ)
        sent = 0
        for number in range(MESSAGES):
            for a, _ in ends[number % PEERS :]:
                a.send(b"%d" % number, WAIT)
            sent += PEERS - number % PEERS
            while sum(map(len, got.values())) < sent:
                ready = selector.select(WAIT)
                assert ready, got
                for key, _ in ready:
                    assert isinstance(key.fileobj, rnic.Connection)
                    got[key.fileobj] += drained(key.fileobj)
        for place, (_, b) in enumerate(ends):
            assert got[b] == [b"%d" % number for number in range(MESSAGES) if number % PEERS <= place]


def test_a_call_that_slept_leaves_the_descriptor_awake() -> None:
    with pair(SLEEPY) as (a, b):
        settle(a, b)

        def later() -> None:
            for _ in range(41):  # a waits for credits meanwhile
                b.recv(WAIT)
            took.wait(WAIT)
            b.send(b"news", WAIT)

        took, other = threading.Event(), threading.Thread(target=later)
        assert list(drained(a)) == []
        for number in range(41):
            a.send(bytes(60_000), WAIT)
            if number == 20:
                other.start()
        took.set()
        while not (found := list(drained(a))):
            assert select.select([a.fileno()], [], [], WAIT)[0]
        assert found == [b"news"]
        other.join(WAIT)


def test_no_message_is_left_that_the_descriptor_does_not_tell_of() -> None:
    """A look takes only so much of what a busy peer sends, and is told that there is more."""
    lengths = [1, 100, 5_000, 200_000, 3_000_000]
    messages = [bytes([number]) * lengths[number % 7 % 5] for number in range(150)]
    got: list[bytes] = []
    with pair() as (a, b), selectors.DefaultSelector() as selector:

        def send() -> None:
            for message in messages:
                a.send(message, WAIT)

        sender = threading.Thread(target=send)
        sender.start()
        selector.register(b, selectors.EVENT_READ)
        got += drained(b)
        while len(got) < len(messages):
            assert selector.select(WAIT), len(got)
            got += drained(b)
        sender.join()
        assert got == messages


def test_a_closed_connection_has_no_descriptor() -> None:
    with pair() as (a, b):
        assert a.fileno() >= 0
        a.abort()
        assert a.fileno() == -1
        b.abort()
