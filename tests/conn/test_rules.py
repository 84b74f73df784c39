# SPDX-License-Identifier: Apache-2.0
"""Rules of the endpoint protocol that one sees from the other end: a peer made by hand, which counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import pytest

import rnic
from conn.frames import (
    ABORT,
    CREDIT,
    GOODBYE,
    LAST,
    RELEASE,
    SHARE,
    STOP,
    TAGGED,
    TAKEN,
    WITHDRAW,
    announce,
    frame,
    message,
    share,
)
from conn.peers import HOST, WAIT, settle
from conn.test_ends import pair, together
from conn.test_hostile import HELLO, Dialled, dialled
from rdmacm.ends import IWARP
from rnic.endpoint import AbortedError, Config, EndpointError, Hello, LostError
from rnic.enums import AccessFlags
from rnic.rdmacm import ConnParam, EventType
from rnic.records import replace
from waiting import until

READ = AccessFlags.REMOTE_READ
QUIET = Config(receive_size=2048, send_size=2048, receives=16, announce=None, idle_interval=None)
over_roce = pytest.mark.skipif(IWARP, reason="the disconnect of iWARP carries no private data")


@contextmanager
def accepted(config: Config, hello: bytes = HELLO) -> Iterator[tuple[rnic.Connection, Dialled]]:
    """An end of rnic, and its peer."""
    conns: list[rnic.Connection] = []
    with rnic.listen(HOST, 0, config=config) as server:
        thread = threading.Thread(target=lambda: conns.append(server.accept(WAIT)))
        thread.start()
        with dialled(server, hello) as one:
            thread.join(WAIT)
            try:
                yield conns[0], one
            finally:
                conns[0]._drop("the test has ended")


def hello(receives: int, receive_size: int = 2048) -> bytes:
    """The hello of a peer of version 1."""
    return Hello(1, 1, QUIET.access, receive_size, receives, 4, 1 << 16).emit()


def pumped(conn: rnic.Connection, is_so: Callable[[], object]) -> None:
    """The end does what it can, and no call waits, until something is so."""

    def look() -> object:
        conn._core.pump(monotonic())
        return is_so()

    until(look, "it comes")


# ---------------------------------------------------------------- credits


@pytest.mark.parametrize("receives", range(3, 12))
def test_credits_are_returned_when_half_of_them_are_owed_but_two_at_least(receives: int) -> None:
    due = max(2, receives // 2)
    with accepted(replace(QUIET, receives=receives)) as (conn, one):
        for number in range(due):
            assert conn.statistics().credit_sends == 0
            one.post(message(number, b"x"))
            assert conn.recv(WAIT) == b"x"
        assert one.hear() == frame(CREDIT, refill=due)


def test_the_last_credit_is_for_credit_and_abort_alone() -> None:
    with accepted(QUIET, hello(receives=5)) as (conn, one):
        for _ in range(4):
            conn.send(b"x", WAIT)
        with pytest.raises(TimeoutError):
            conn.send(b"never", 0.05)
        conn.abort("with the last one")
        assert [one.hear() for _ in range(4)] == [message(number, b"x") for number in range(4)]
        assert one.hear() == frame(ABORT, 1, b"with the last one")


@over_roce
def test_an_abort_without_a_credit_rides_in_the_disconnect_request() -> None:
    """The last credit went into a CREDIT."""
    with accepted(replace(QUIET, receives=4), hello(receives=3)) as (conn, one):
        for _ in range(2):
            conn.send(b"x", WAIT)
        for number in range(2):
            one.post(message(number, b"y"))
            assert conn.recv(WAIT) == b"y"
        assert [one.hear()[:1] for _ in range(3)] == [b"\1", b"\1", b"\3"]
        assert conn.statistics().credits == 0
        conn.abort("no room to say so")
        assert said_goodbye(one).startswith(frame(ABORT, 1, b"no room to say so"))


def said_goodbye(one: Dialled) -> bytes:
    """The private data of the peer's disconnect."""
    with one.one.channel.get_cm_event(WAIT) as event:
        assert event.event is EventType.DISCONNECTED
        assert isinstance(event.param, ConnParam)
        return event.param.private_data


def test_a_release_comes_between_the_pieces_of_a_message() -> None:
    """Its receiver may wait for it, and takes no message meanwhile."""
    with accepted(QUIET, hello(receives=4, receive_size=64)) as (conn, one):
        with pytest.raises(TimeoutError):
            conn.send(bytes(1000), 0.05)
        assert [one.hear()[:1] for _ in range(3)] == [b"\1", b"\2", b"\2"]
        one.post(share(1), frame(WITHDRAW, 1))
        pumped(conn, lambda: conn.statistics().receives == 2)
        one.post(frame(CREDIT, refill=3))
        pumped(conn, lambda: conn.statistics().sends == 6)
        assert one.hear() == frame(RELEASE, 1, refill=3)
        assert one.hear()[:1] == b"\2"


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_receives_are_held_back_from_the_byte_that_fills_the_backlog(over: int) -> None:
    waiting = 3 * (64 + 40)  # what three messages weigh
    with accepted(replace(QUIET, max_backlog=waiting - over)) as (conn, one):
        for count in range(1, 4):
            one.post(message(count - 1, bytes(40)))
            pumped(conn, lambda: conn.statistics().receives == count)  # noqa: B023
            assert conn.statistics().backlog == count * 104
        assert conn.statistics().held == (1 if over >= 0 else 0)
        assert conn.recv(WAIT) == bytes(40)
        assert conn.statistics().held == 0


# ---------------------------------------------------------------- what the version allows


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (announce(0, 10), b"there is no SEND of type 9"),
        (frame(TAKEN), b"there is no SEND of type 10"),
        (frame(STOP), b"there is no SEND of type 11"),
        (frame(1, 0, bytes(16), LAST | TAGGED), b"MESSAGE has the flags 0x03"),
        (frame(SHARE, 1, bytes(40), 4), b"SHARE has the flags 0x04"),
    ],
)
def test_a_peer_of_version_1_may_not_say_what_it_does_not_know(data: bytes, words: bytes) -> None:
    with accepted(QUIET, HELLO) as (conn, one):
        one.post(data)
        with pytest.raises(EndpointError, match=words.decode()):
            conn.recv(WAIT)
        assert words in one.hear()


def test_of_what_the_peer_does_not_know_nothing_is_said() -> None:
    """A message of any length goes in pieces, and a region holds no array."""
    with accepted(replace(QUIET, announce=1), HELLO) as (conn, one):
        conn.send(bytes(100), WAIT)
        conn.share(bytearray(8))
        assert one.hear() == message(0, bytes(100))
        assert (shared := one.hear())[:2] == bytes([SHARE, 0])
        assert len(shared) == 32


# ---------------------------------------------------------------- regions


@pytest.mark.parametrize("access", [2, 4, 6, 8, 10, 12, 14])
@pytest.mark.parametrize(
    ("addr", "length"), [(0, 0), (0, (1 << 64) - 1), ((1 << 64) - 1, 1), (1 << 63, 1 << 63), (1 << 63, 0)]
)
def test_a_region_may_lie_anywhere_in_the_address_space(addr: int, length: int, access: int) -> None:
    with accepted(QUIET) as (conn, one):
        one.post(share(0xFFFFFFFF, addr, length, access))
        found = conn.next_region(WAIT)
        assert (found.id, found.addr, found.length, found.rkey) == (0xFFFFFFFF, addr, length, 0xABCD)
        assert found.access == AccessFlags(access)


def test_no_more_regions_than_the_peer_takes() -> None:
    with pair(Config(max_regions=4)) as (a, b):
        regions = [a.share(bytearray(8)) for _ in range(4)]
        with pytest.raises(ValueError, match="takes 4 regions at a time"):
            a.share(bytearray(8))
        theirs = [b.next_region(WAIT) for _ in range(4)]
        assert [region.id for region in theirs] == [region.id for region in regions]
        with pytest.raises(TimeoutError):
            a.withdraw(regions[0], 0)
        together(lambda: a.withdraw(regions[0], WAIT), lambda: b.next_withdrawn(WAIT / 6))
        a.share(bytearray(8))


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize(
    "private_data",
    [
        b"",
        *(pytest.param(one, marks=over_roce) for one in (bytes(148), frame(GOODBYE, 9), b"\4" + bytes(99))),
    ],
    ids=["nothing", "zeros", "a wrong number", "another SEND"],
)
def test_a_disconnect_without_a_goodbye_is_a_loss(private_data: bytes) -> None:
    with accepted(QUIET) as (conn, one):
        conn.send(b"lost", WAIT)
        one.one.sync = False
        one.one.disconnect(private_data)
        with pytest.raises(LostError, match="without a goodbye"):
            conn.recv(WAIT)
        with pytest.raises(LostError, match="without a goodbye"):
            conn.send(b"more")


@over_roce
def test_a_farewell_says_how_many_messages_came() -> None:
    with accepted(QUIET) as (conn, one):
        one.post(*(message(number, bytes(number)) for number in range(3)))
        assert [conn.recv(WAIT) for _ in range(3)] == [bytes(number) for number in range(3)]
        one.post(frame(GOODBYE, 3))
        conn.close(WAIT)
        assert one.hear()[:1] == bytes([GOODBYE])
        assert said_goodbye(one).startswith(frame(GOODBYE, 3))


def test_messages_that_came_before_the_end_can_be_taken() -> None:
    with pair() as (a, b):
        settle(a, b)
        a.send(b"in time", WAIT)
        a.send(b"too", WAIT)
        a.abort("enough")
        assert [b.recv(WAIT), b.recv(WAIT)] == [b"in time", b"too"]
        with pytest.raises(AbortedError, match="enough"):
            b.recv(WAIT)


def test_a_message_that_is_longer_than_the_peer_takes_is_refused_and_the_connection_lives() -> None:
    with pair(Config(max_message=4096)) as (a, b):
        with pytest.raises(rnic.MessageTooLongError, match="4097 bytes is longer than 4096"):
            a.send(bytes(4097), WAIT)
        settle(a, b)


@pytest.mark.parametrize(
    ("of_this_end", "access"),
    [(None, QUIET.access), (0.02, READ)],
    ids=["switched off", "the peer's queue pair takes no WRITE"],
)
def test_no_probe(of_this_end: float | None, access: AccessFlags) -> None:
    says = Hello(1, 1, access, 2048, 16, 4, 1 << 16).emit()
    with accepted(replace(QUIET, idle_interval=of_this_end), says) as (conn, _):
        with pytest.raises(TimeoutError):
            conn.recv(0.2)
        assert conn.statistics().probes == 0
