# SPDX-License-Identifier: Apache-2.0
"""The binding of src/msg: messages are bytes, buffers belong to the machine until messages have left them."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from errno import EINVAL, EMSGSIZE, ENOENT, ESHUTDOWN
from functools import partial
from time import monotonic
from typing import Any

import pytest

from rnic._nic.nic import MR, Machine, Places, Result
from rnic.endpoint import Config, Region
from rnic.enums import AccessFlags, WROpcode
from rnic.errors import VerbsError
from rnic.records import replace
from rnic.testing import ALL_ACCESS, End, Pair
from rnic.verbs.qp import QPCap

OPEN, SAID_GOODBYE, PEER_LEFT, CLOSED, ABORTING, FAILED = range(2, 8)
REMOTE = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC
RECEIVES, SIZE = 8, 4096
CONFIG = Config(
    receives=RECEIVES, receive_size=SIZE, send_size=SIZE, max_regions=16, idle_interval=None, spin=0.0
)


class Side:
    """An end with its machine."""

    def __init__(self, end: End) -> None:
        sends_at = (RECEIVES + 1) * SIZE
        results_at = sends_at + RECEIVES * SIZE
        self.end = end
        self.places = Places()
        self.m = Machine(
            end.qp,
            end.cq,
            end.memory(results_at + 64 * 8),
            CONFIG,
            bounces=RECEIVES,
            sends_at=sends_at,
            results_at=results_at,
            places=self.places,
            find=self.find,
        )
        self.m.post_receives()

    def rdma(self, *what: Any) -> Result:
        one = self.m.rdma(*what)
        assert one is not None
        return one

    def atomic(self, *what: Any) -> Result:
        one = self.m.atomic(*what)
        assert one is not None
        return one

    def close(self) -> None:
        if (stage := self.m.release()) is not None:
            stage.close()
        assert self.m.deregister()

    def find(self, addr: int, length: int, reads: bool) -> MR:
        access = AccessFlags.LOCAL_WRITE if reads else AccessFlags(0)
        return self.end.register((ctypes.c_char * length).from_address(addr), access)


class Talk:
    def __init__(self, pair: Pair) -> None:
        self.a, self.b = Side(pair.a), Side(pair.b)
        for side in (self.a, self.b):
            side.m.greet(CONFIG.hello())
            side.m.establish()

    def until(self, is_so: Callable[[], object]) -> None:
        limit = monotonic() + 60
        while not is_so():
            self.a.m.pump()
            self.b.m.pump()
            assert monotonic() < limit


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair(cap=QPCap(RECEIVES + 66, RECEIVES + 1, 1, 1, 0)) as pair:
        yield pair


@pytest.fixture
def talk(pair: Pair) -> Iterator[Talk]:
    talk = Talk(pair)
    yield talk
    for side in (talk.a, talk.b):
        side.close()


def taken(m: Machine, tag: int | None = None) -> Any:
    assert m.take(tag)
    found, m.hand = m.hand, None
    return found


@pytest.mark.parametrize("size", [0, 1, 4080, 4081, 50_000, (1 << 20) - 1, 1 << 20, 3_000_000])
def test_a_message_comes_as_bytes_of_its_own(talk: Talk, size: int) -> None:
    a, b = talk.a.m, talk.b.m
    data = os.urandom(size)
    sent = a.send(data, 5)
    assert sent == 0 or sent == a.handle == 1
    b.want(True)
    talk.until(b.has)
    found = taken(b, 5)
    assert type(found) is bytes
    assert found == data
    assert not size or sys.getrefcount(found) == 2
    talk.until(lambda: a.left == 1)


def test_a_buffer_is_held_until_the_message_has_left_it(talk: Talk) -> None:
    a, b = talk.a.m, talk.b.m
    data = bytearray(3_000_000)
    handle = a.send(data)
    assert handle == 1
    with pytest.raises(BufferError):
        data.append(1)
    b.want(True)
    talk.until(lambda: a.left == handle)
    data.append(1)
    assert len(taken(b)) == 3_000_000


def test_a_message_that_is_taken_back_frees_its_buffer(talk: Talk) -> None:
    a, b = talk.a.m, talk.b.m
    data = bytearray(3_000_000)
    a.take_back(a.send(data))
    data.append(1)
    assert a.left == 1
    a.send(b"next")
    talk.until(b.has)
    assert taken(b) == b"next"


def test_a_message_is_read_into_the_memory_that_waits(talk: Talk) -> None:
    a, b = talk.a.m, talk.b.m
    data, room = os.urandom(1 << 20), bytearray(1 << 20)
    b.aim(memoryview(room))
    b.want(True)
    a.send(data)
    talk.until(b.has)
    assert taken(b) == 1 << 20
    assert room == data
    b.aim(None)
    room.append(1)


def test_memory_that_is_withdrawn_gets_no_message(talk: Talk) -> None:
    a, b = talk.a.m, talk.b.m
    data, room = os.urandom(1 << 20), bytearray(1 << 20)
    b.aim(memoryview(room))
    b.want(True)
    a.send(data)
    talk.until(b.has)
    b.aim(None)
    room[:] = bytes(1 << 20)
    assert taken(b) == data


def test_a_tag_finds_its_message_and_leaves_the_others(talk: Talk) -> None:
    a, b = talk.a.m, talk.b.m
    for tag in (3, 1, 2):
        a.send(b"%d" % tag, tag)
        talk.until(partial(b.has, tag))
    assert b.first_tag() == 3
    few, many = [(), (4,), (2, 1), (1, 2, 3), (2, (1 << 64) - 1)], [range(4, 100), range(2, 100), range(100)]
    for tags in (*few, *many):
        assert b.first_tag(tags) == next((tag for tag in (3, 1, 2) if tag in tags), None)
    assert taken(b, 2) == b"2"
    assert b.take()  # it is in hand,
    assert b.hand == b"3"
    assert taken(b, 1) == b"1"  # and goes back, as another one is asked for
    assert not b.take(7)
    assert taken(b) == b"3"
    assert not b.take()


def test_what_is_refused_is_told_by_number(talk: Talk) -> None:
    a = talk.a.m
    assert a.send(b"") == 0
    a.close(None)
    assert a.send(b"") == -ESHUTDOWN
    assert a.send("text") == -EINVAL
    with pytest.raises(ValueError, match=r"tag -1, it can be 0 to 2\*\*64 - 1"):
        a.send(b"", -1)


def test_too_long_a_message_is_refused(pair: Pair) -> None:
    side = Side(pair.a)
    side.m.greet(replace(CONFIG.hello(), version_max=1, max_message=10))
    assert side.m.send(bytes(11)) == -EMSGSIZE


def region(talk: Talk) -> tuple[bytearray, Region]:
    """Memory of b that a may use."""
    memory = bytearray(1 << 20)
    mr = talk.b.end.register(memory, ALL_ACCESS)
    number = talk.b.m.share(mr, int(REMOTE))
    talk.until(lambda: talk.a.m.changes)
    ((_, ident, addr, length, rkey, access, array),) = talk.a.m.regions()
    assert (ident, length, access, array) == (number, 1 << 20, int(REMOTE), b"")
    return memory, Region(ident, addr, length, rkey, AccessFlags(access))


@pytest.mark.parametrize("size", [0, 1, 5000, 16384, 16385, 300_000])
def test_reads_and_writes_of_any_length(talk: Talk, size: int) -> None:
    memory, remote = region(talk)
    _a, data = talk.a.m, bytearray(os.urandom(size))
    write = talk.a.rdma(WROpcode.RDMA_WRITE, data, remote, 8)
    talk.until(lambda: write.done)
    assert write.result() is None
    assert memory[8 : 8 + size] == data
    room = bytearray(size)
    read = talk.a.rdma(WROpcode.RDMA_READ, room, remote, 8)
    talk.until(lambda: read.done)
    assert room == data


def test_many_operations_share_the_memory_for_copies(talk: Talk) -> None:
    memory, remote = region(talk)
    _a, rng = talk.a.m, random.Random(1)
    want, ones = bytearray(1 << 20), []
    for _ in range(300):
        at, data = rng.randrange(1 << 19), rng.randbytes(rng.randrange(16385))
        want[at : at + len(data)] = data
        ones.append(talk.a.rdma(WROpcode.RDMA_WRITE, data, remote, at))
    talk.until(lambda: all(one.done for one in ones))
    assert memory == want


def test_registered_memory_is_found_by_its_address(talk: Talk) -> None:
    memory, remote = region(talk)
    mr = talk.a.end.memory(8192)
    talk.a.places.add(mr)
    mr.buf[100:104] = b"here"
    one = talk.a.rdma(WROpcode.RDMA_WRITE, mr.buf[100:104], remote, 0)
    talk.until(lambda: one.done)
    assert memory[:4] == b"here"
    one = talk.a.rdma(WROpcode.RDMA_WRITE, mr, remote, 0)
    talk.until(lambda: one.done)
    assert memory[100:104] == b"here"


def test_atomics(talk: Talk) -> None:
    memory, remote = region(talk)
    add = talk.a.atomic(WROpcode.ATOMIC_FETCH_AND_ADD, remote, 8, 5)
    swap = talk.a.atomic(WROpcode.ATOMIC_CMP_AND_SWP, remote, 8, 5, 77)
    with pytest.raises(RuntimeError, match="has not ended"):
        add.result()
    talk.until(lambda: swap.done)
    assert (add.result(), swap.result()) == (0, 5)
    assert int.from_bytes(memory[8:16], sys.byteorder) == 77


def test_an_operation_on_a_withdrawn_region_fails(talk: Talk) -> None:
    _, remote = region(talk)
    assert talk.b.m.withdraw(remote.id) == 0
    talk.until(lambda: talk.b.m.released == 1)
    one = talk.a.rdma(WROpcode.RDMA_WRITE, b"late", remote, 0)
    talk.until(lambda: talk.a.m.failures() == [one] or one.done)
    assert one.status == -ENOENT
    one.finish(ValueError("no such region"))
    with pytest.raises(ValueError, match="no such region"):
        one.result()


def test_both_say_goodbye(talk: Talk) -> None:
    a, b = talk.a.m, talk.b.m
    a.send(b"last")
    a.close(None)
    talk.until(lambda: b.state == PEER_LEFT)
    assert b.heard_goodbye
    assert not b.spent
    assert taken(b) == b"last"
    assert b.spent
    b.close(60.0)
    talk.until(lambda: a.state == b.state == CLOSED)
    assert a.error == (0, 0, b"")
    assert len(a.farewell()) == 8


def test_an_abort_is_told_in_words(talk: Talk) -> None:
    a, b = talk.a.m, talk.b.m
    a.abort("gen\u00fcg")
    talk.until(lambda: b.state == FAILED and a.state == FAILED)
    assert b.error == (2, 1, b"the peer aborted the connection: gen\xc3\xbcg")
    assert a.error[0] == 2


def test_operations_that_are_left_when_the_connection_ends_fail(talk: Talk) -> None:
    _, remote = region(talk)
    a = talk.a.m
    data = bytearray(100)
    one = talk.a.rdma(WROpcode.RDMA_READ, data, remote, 0)
    a.lost("the cable was cut")
    a.fail_operations()
    assert a.failures() == [one]
    one.finish(OSError("cut"))
    data.append(1)


def test_a_wait_ends_when_a_message_comes(talk: Talk) -> None:
    a, b = talk.a.m, talk.b.m
    sender = threading.Timer(0.05, a.send, (b"now",))
    sender.start()
    assert b.recv(None, monotonic() + 60)
    assert b.hand == b"now"
    sender.join()


def test_a_wait_ends_in_time(talk: Talk) -> None:
    assert not talk.b.m.recv(None, monotonic() + 0.05)
    assert not talk.b.m.recv(9, monotonic())


def test_buffers_are_given_back_with_the_connection(talk: Talk) -> None:
    a, b, data, room = talk.a.m, talk.b.m, bytearray(3_000_000), bytearray(3_000_000)
    a.send(data)
    b.aim(memoryview(room))
    b.want(True)
    talk.until(lambda: b.landing or b.has())
    while not b.landing:  # the READ has ended already: once more
        taken(b)
        b.aim(memoryview(room))
        a.send(data)
        talk.until(lambda: b.landing or b.has())
    for side in (talk.a, talk.b):
        side.end.qp.close()
        side.close()
    data.append(1)
    b.aim(None)
    room.append(1)


def test_a_machine_of_closed_objects_says_so(pair: Pair) -> None:
    side = Side(pair.a)
    pair.a.qp.close()
    with pytest.raises(VerbsError, match="given back"):
        side.m.pump()
