# SPDX-License-Identifier: Apache-2.0
"""Registrations that are kept: for the same bytes, as long as their memory is there, and not for ever."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rnic
from rnic.enums import AccessFlags
from rnic.patterns.rendezvous import RegistrationCache

READ = AccessFlags.REMOTE_READ


@pytest.fixture
def cache() -> Iterator[RegistrationCache]:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd:
        found = RegistrationCache(pd, 10_000)
        yield found
        found.close()


def used(cache: RegistrationCache, buffer: Any, access: AccessFlags = READ) -> Any:
    mr = cache.take(buffer, access)
    cache.give(mr)
    return mr


def kept(cache: RegistrationCache) -> tuple[int, int]:
    found = cache.statistics()
    return found.kept, found.kept_bytes


def test_the_same_bytes_have_the_same_registration(cache: RegistrationCache) -> None:
    array: Any = np.zeros(1000, np.uint8)
    first = used(cache, array)
    for same in array, array[:], memoryview(array), array.reshape(10, 100), array.view(np.float64):
        assert used(cache, same) is first
    assert used(cache, array[:500]) is not first
    assert used(cache, array, AccessFlags.LOCAL_WRITE) is not first
    found = cache.statistics()
    assert (found.hits, found.misses, found.kept) == (5, 3, 3)


def test_it_goes_with_the_memory(cache: RegistrationCache) -> None:
    array = np.zeros(1000, np.uint8)
    view = array[100:200]
    of_all, of_part = used(cache, array), used(cache, view)
    del array
    assert not of_all.closed  # the view keeps the memory
    del view
    assert of_all.closed
    assert of_part.closed
    assert cache.statistics().invalidated == 2
    assert kept(cache) == (0, 0)


def test_it_goes_with_memory_that_is_collected_elsewhere(cache: RegistrationCache) -> None:
    array = np.zeros(1000, np.uint8)
    loop: list[Any] = [array]
    loop.append(loop)
    mr = used(cache, array)
    del array, loop
    collector = threading.Thread(target=gc.collect)
    collector.start()
    collector.join()
    assert mr.closed


def test_memory_that_comes_at_the_same_address_is_registered_anew(cache: RegistrationCache) -> None:
    for value in range(20):
        array = np.full(5000, value, np.uint8)
        mr = cache.take(array, READ)
        assert bytes(mr.buf) == bytes(5000).replace(b"\0", bytes([value]))
        cache.give(mr)
        del mr, array
    assert cache.statistics().hits == 0


def test_an_array_of_which_one_is_kept_is_not_resized(cache: RegistrationCache) -> None:
    array = np.zeros(1000, np.uint8)
    used(cache, array)
    with pytest.raises(ValueError, match="resize"):
        array.resize(100_000)


def test_what_was_not_used_for_the_longest_time_goes_first(cache: RegistrationCache) -> None:
    arrays = [np.zeros(4000, np.uint8) for _ in range(3)]
    first, second = (used(cache, array) for array in arrays[:2])
    assert used(cache, arrays[0]) is first
    third = used(cache, arrays[2])
    assert (first.closed, second.closed, third.closed) == (False, True, False)
    assert cache.statistics().evicted == 1
    assert used(cache, np.zeros(20_000, np.uint8)).closed  # more than all
    assert kept(cache) == (2, 8000)


def test_one_that_is_in_use_stays_and_is_nobody_elses(cache: RegistrationCache) -> None:
    array, others = np.zeros(9000, np.uint8), [np.zeros(6000, np.uint8) for _ in range(3)]
    mr = cache.take(array, READ)
    second = cache.take(array, READ)
    assert second is not mr
    for other in others:
        used(cache, other)
    assert not mr.closed
    del array  # its memory is there as long as it is used
    gc.collect()
    assert not mr.closed
    cache.give(second)
    cache.give(mr)
    assert (mr.closed, second.closed) == (True, True)


@pytest.mark.parametrize(
    "buffer",
    [bytearray(100), b"x" * 100, np.frombuffer(bytearray(100), np.uint8), memoryview(bytearray(100))],
    ids=["bytearray", "bytes", "an array over a bytearray", "a view of one"],
)
def test_memory_that_nobody_tells_the_end_of_is_registered_each_time(
    cache: RegistrationCache, buffer: Any
) -> None:
    assert used(cache, buffer).closed
    assert kept(cache) == (0, 0)


def test_a_right_to_write_ends_with_the_use(cache: RegistrationCache) -> None:
    array = np.zeros(100, np.uint8)
    assert used(cache, array, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE).closed


def test_what_cannot_be_registered_is_said(cache: RegistrationCache) -> None:
    array = np.zeros((10, 10), np.uint8)
    with pytest.raises(ValueError, match="contiguous"):
        cache.take(array[:, 1:])
    array.flags.writeable = False
    with pytest.raises(rnic.VerbsError, match="read-only"):
        cache.take(array)
    assert used(cache, array) is not None
    with pytest.raises(ValueError, match="max_bytes -1"):
        RegistrationCache(cache.pd, -1)


def test_two_threads_that_give_back_the_same_bytes_at_once(cache: RegistrationCache) -> None:
    """The one that comes second keeps nothing, and drops no registration that is open."""
    array = np.zeros(100, np.uint8)
    first, second = cache.take(array, READ), cache.take(array, READ)

    class Switch(dict[Any, Any]):
        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            if not first.closed and first in cache._used:
                cache.give(first)  # the other thread, just now
            return found

    cache._kept = Switch()
    cache.give(second)
    assert sorted((first.closed, second.closed)) == [False, True]
    assert kept(cache) == (1, 100)


def test_another_thread_empties_a_cache_that_is_too_full(
    cache: RegistrationCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = np.zeros(9000, np.uint8), np.zeros(5000, np.uint8)
    used(cache, first)
    real = cache.statistics

    def statistics() -> Any:
        found = real()
        for key in list(cache._kept):  # the other thread, just now
            cache._close(key)
        return found

    monkeypatch.setattr(cache, "statistics", statistics)
    assert used(cache, second).closed


def test_threads_may_share_a_cache(cache: RegistrationCache) -> None:
    def work(seed: int) -> None:
        own = np.zeros(1500, np.uint8)
        for n in range(300):
            mr = cache.take(shared if n % 2 else own, READ)
            assert not mr.closed
            if n % 50 == seed:
                own = np.zeros(1500 + n, np.uint8)
            cache.give(mr)

    shared = np.zeros(1000, np.uint8)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept(cache)[1] <= 10_000
