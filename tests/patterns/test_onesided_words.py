# SPDX-License-Identifier: Apache-2.0
"""Locks, counters and groups on connections, in threads, and those that go."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest

import rnic
from patterns.ends import HOST, WAIT
from patterns.memories import client, served
from rnic.endpoint import AbortedError
from rnic.patterns.onesided import BrokenGroupError, Group, GroupMemory, StoreMemory, WordMemory, Words
from waiting import times_out, until

# ---------------------------------------------------------------------- locks, counters, groups


def test_locks_and_counters() -> None:
    with served(WordMemory, locks=2, counters=2) as (port, memory):
        with client(Words, port) as one, client(Words, port) as two:
            with one.lock(0) as first:
                with two.lock(1):
                    times_out(lambda limit: two.lock(0, limit).__enter__(), "client 1 holds the lock")
                with pytest.raises(ValueError, match="holds the lock already"), one.lock(0):
                    pass
            with two.lock(0, WAIT) as second:
                assert second > first
            assert (one.add(1, 5), two.add(1, -2), one.value(1), one.value(0)) == (0, 5, 3, 0)
            with pytest.raises(TypeError, match="integer"):
                one.add(0, "1")
            assert repr(one) == "<Words: client 1 of 32 bytes>"
            for call in (partial(one.add, 2), partial(one.value, -1)):
                with pytest.raises(IndexError, match="of 2"):
                    call()
            with pytest.raises(IndexError, match="lock 2 of 2"), one.lock(2):
                pass
        assert list(memory._words)[2:] == [0, 3]


def test_who_waits_for_a_lock_does_not_keep_others_of_the_client_from_releasing_theirs() -> None:
    def take() -> None:
        waiting.set()
        with one.lock(1, WAIT):
            pass

    waiting = threading.Event()
    with ExitStack() as stack:
        port, _ = stack.enter_context(served(WordMemory, locks=2))
        one, two = (stack.enter_context(client(Words, port)) for _ in range(2))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        with two.lock(1):
            with one.lock(0):
                taken = pool.submit(take)
                assert waiting.wait(WAIT)
            with two.lock(0, WAIT):
                assert not taken.done()
        taken.result(WAIT)


def test_ctrl_c_at_the_moment_of_the_lock_leaves_it_free(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Words._run

    def interrupted(words: Words, steps: Any, until: float | None) -> Any:
        found = run(words, steps, until)
        if words is one and isinstance(found, tuple):
            raise KeyboardInterrupt
        return found

    with served(WordMemory, locks=1) as (port, _), client(Words, port) as one, client(Words, port) as two:
        monkeypatch.setattr(Words, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt), one.lock(0, WAIT):
            pytest.fail("it was interrupted")
        with two.lock(0, WAIT):
            pass


def test_a_lock_whose_holder_goes() -> None:
    with served(WordMemory, locks=1) as (port, _), client(Words, port) as other:
        with rnic.connect(HOST, port) as conn:
            held = Words.over(conn, WAIT).lock(0)
            number = held.__enter__()
            conn.abort("dies")
        with other.lock(0, WAIT) as later:
            assert later > number
        with pytest.raises(ConnectionError):
            held.__exit__(None, None, None)


def together(port: int, n: int, use: Any) -> list[Any]:
    """A member in a thread each."""

    def one(_: int) -> Any:
        with client(Group, port) as group:
            found = use(group)
            group.barrier(WAIT)  # so that no one leaves early
            return found

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(one, range(n)))


def test_a_group() -> None:
    def use(group: Group) -> Any:
        many = np.full(1000, group.rank + 0.1)
        found = [group.all_reduce_array(many * turn, np.add, WAIT) for turn in range(4)]
        assert (
            group.all_reduce(b"\1\2", lambda a, b: bytes(x + y for x, y in zip(a, b, strict=True)))
            == b"\4\10"
        )
        assert group.all_reduce_array(np.zeros((0, 3)), np.add).shape == (0, 3)
        scalar = group.all_reduce_array(np.array(group.rank), np.maximum, WAIT)
        assert (scalar.shape, scalar) == ((), 3)
        assert (many == group.rank + 0.1).all()
        return found

    with served(GroupMemory, members=4, room=8000) as (port, _):
        for _ in range(2):
            results = together(port, 4, use)
            for turn in range(4):
                assert np.allclose(results[0][turn], 6.4 * turn)
                assert all((one[turn] == results[0][turn]).all() for one in results)  # the same bits


def test_members_that_differ() -> None:
    def use(group: Group) -> None:
        with pytest.raises(ValueError, match="different numbers of bytes, or types"):
            group.all_reduce(bytes(2 + group.rank), max, timeout=WAIT)
        for wrong, item in ((bytes(65), 1), (b"123", 2), (b"", 0), (bytes(64), 65)):
            with pytest.raises(ValueError, match="bytes"):
                group.all_reduce(wrong, max, item=item)
        with pytest.raises(TypeError, match="Python objects"):
            group.all_reduce_array(np.array([None]), np.add)
        for array in (np.array(["ab"]), np.array([b"ab"]), np.zeros(1, "i4, f4"), np.zeros(1, "M8[s]")):
            with pytest.raises(TypeError, match="give an array of numbers"):
                group.all_reduce_array(array, np.add)
        assert group.all_reduce(b"ab", min, item=2, timeout=WAIT) == b"ab"  # and they go on

    with served(GroupMemory, members=2, room=64) as (port, _):
        together(port, 2, use)


def test_a_member_that_goes_or_is_late() -> None:
    def late(limit: float) -> None:
        try:
            with client(Group, port) as group:
                try:
                    group.barrier(limit)
                finally:
                    with pytest.raises(BrokenGroupError, match="join anew"):
                        group.barrier()
        finally:
            until(lambda: memory.clients == 0, "it has left")

    with served(GroupMemory, members=2) as (port, memory):
        times_out(late, "1 of 2 members have not come")
        with client(Group, port) as group:
            with (
                client(Group, port),
                pytest.raises(AbortedError, match="has its 2 members"),
                client(Group, port),
            ):
                pass
            with pytest.raises(BrokenGroupError, match="member 1 has left"):
                group.barrier(WAIT)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (StoreMemory, {"slots": 0}),
        (StoreMemory, {"value_size": 1 << 30}),
        (WordMemory, {}),
        (WordMemory, {"locks": -1, "counters": 2}),
        (GroupMemory, {"members": 0}),
        (GroupMemory, {"members": 1, "room": -1}),
    ],
)
def test_sizes_that_cannot_be(kind: Any, sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="give"):
        kind(bytearray, **sizes)
