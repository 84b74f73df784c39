# SPDX-License-Identifier: Apache-2.0
"""Stores, locks and groups without a device: clients in random turns, READs and WRITEs in pieces, deaths."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest

from patterns.pretend import Memory, PretendPort, interleave, stepping, window
from rnic.patterns.onesided import (
    BrokenGroupError,
    ConflictError,
    FullError,
    Group,
    GroupMemory,
    HostileMemoryError,
    NoPlaceError,
    Store,
    StoreMemory,
    WordMemory,
    Words,
)
from rnic.patterns.onesided.invitation import Invitation
from rnic.patterns.onesided.table import Geometry, Key, pack_block, parse_block
from rnic.patterns.ports import FetchAdd, Write

KEYS = [b"a", b"key 2", b"k" * 64]
SEEDS = range(60)


def store_on(memory: StoreMemory) -> tuple[Store, bytes]:
    invitation = memory.join()
    return Store(PretendPort(memory.mr), window(memory.mr), invitation), invitation  # type: ignore[arg-type]


def served(slots: int = 8, value_size: int = 100) -> StoreMemory:
    return StoreMemory(Memory, slots=slots, value_size=value_size)  # type: ignore[arg-type]


def value_of(key: bytes, number: int, length: int) -> bytes:
    """A value in which each piece tells whose it is."""
    return (struct.pack("<Q", number) + key[:1] * 8) * (length // 16 + 1)


def check_value(key: bytes, value: bytes) -> None:
    assert value == value_of(key, struct.unpack_from("<Q", value)[0], len(value) - 16)


# ---------------------------------------------------------------------- one client: as a dictionary


@pytest.mark.parametrize("seed", range(10))
def test_a_store_is_a_dictionary(seed: int) -> None:
    chosen, model, versions = random.Random(seed), {}, set()
    store, _ = store_on(served(slots=40))
    keys = [bytes((n,)) * chosen.randint(1, 64) for n in range(1, 30)]
    for _ in range(400):
        key = chosen.choice(keys)
        match chosen.randrange(4):
            case 0:
                value = chosen.randbytes(chosen.randint(0, 100))
                version = store.put(key, value)
                assert (key, version) not in versions
                versions.add((key, version))
                model[key] = value
            case 1:
                assert store.delete(key) == (model.pop(key, None) is not None)
            case 2:
                assert store.get(key) == model.get(key)
            case 3:
                assert sorted(store.keys()) == sorted(model)
    assert store.statistics().torn == store.statistics().conflicts == 0


def test_a_store_takes_what_it_was_made_for() -> None:
    for slots in (100, 1000):
        store, _ = store_on(served(slots=slots, value_size=8))
        for number in range(slots):
            store.put(b"%d" % number, b"")


def test_a_full_store_says_so_and_goes_on() -> None:
    store, _ = store_on(served(slots=1))
    put = []
    with pytest.raises(FullError, match="full"):
        for number in range(100):
            store.put(b"%d" % number, b"%d" % number)
            put.append(b"%d" % number)
    assert len(put) == 14  # two buckets of seven
    assert sorted(store.keys()) == sorted(put)
    store.put(put[0], b"new")
    assert store.delete(put[1])
    store.put(b"another", b"")
    assert store.get(put[0]) == b"new"


def test_versions() -> None:
    store, _ = store_on(served())
    first = store.put(b"k", b"1", version=0)
    with pytest.raises(ConflictError) as found:
        store.put(b"k", b"2", version=0)
    assert found.value.version == first
    second = store.put(b"k", b"2", version=first)
    for old in (first, second + 8):
        with pytest.raises(ConflictError):
            store.delete(b"k", version=old)
    assert store.delete(b"k", version=second)
    with pytest.raises(ConflictError, match="no such key"):
        store.put(b"k", b"3", version=second)
    assert store.put(b"k", b"3") not in (first, second)


@pytest.mark.parametrize(("key", "value"), [(b"", b""), (b"k" * 65, b""), (b"k", b"v" * 101)])
def test_what_is_too_long(key: bytes, value: bytes) -> None:
    with pytest.raises(ValueError, match="bytes"):
        store_on(served())[0].put(key, value)


# ---------------------------------------------------------------------- many clients, in any order


def life(
    store: Store, chosen: random.Random, done: Counter[str], seen: Counter[str]
) -> Generator[None, None, None]:
    """What a client does: each count of `add` is known to be there, each of `begun` may be."""
    port: Any = store._port
    newest = 0

    def one_more(old: bytes | None) -> bytes:
        return struct.pack("<Q", 1 + (struct.unpack("<Q", old)[0] if old else 0))

    for number in range(25):
        key = chosen.choice(KEYS)
        match chosen.randrange(5):
            case 0:
                value = value_of(key, number, chosen.randint(0, 580))
                yield from stepping(port, store._put(key, value, None, None))
            case 1:
                entry = yield from stepping(port, store._get(key, None))
                if entry is not None:
                    check_value(key, entry.value)
            case 2:
                yield from stepping(port, store._change(key, None, None, None))
            case 3:
                entry = yield from stepping(port, store._get(b"counter", None))
                count = struct.unpack("<Q", entry.value)[0] if entry else 0
                assert count >= newest
                newest = count
            case 4:
                before = seen["most"]  # that was there when an earlier call returned
                done["begun"] += 1
                yield from stepping(port, store._update(b"counter", one_more, None))
                done["begun"] -= 1
                done["added"] += 1
                entry = yield from stepping(port, store._get(b"counter", None))
                assert entry is not None
                (count,) = struct.unpack("<Q", entry.value)
                assert count > before
                seen["most"] = max(seen["most"], count)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_torn_value_and_no_lost_update(seed: int) -> None:
    chosen, done, seen = random.Random(seed), Counter[str](), Counter[str]()
    memory = served(slots=1, value_size=600)  # two buckets: all keys meet
    clients = [store_on(memory) for _ in range(4)]
    invitations = {at: invitation for at, (_, invitation) in enumerate(clients)}
    tasks = {
        at: life(store, random.Random(f"{seed} {at}"), done, seen) for at, (store, _) in enumerate(clients)
    }
    for dead in interleave(chosen, tasks, deaths=(seed % 3) * 0.0005):
        memory.leave(invitations.pop(dead))
        store, invitations[dead] = store_on(memory)  # with a number that others do not have
        tasks[dead] = life(store, random.Random(f"{seed} {dead} again"), done, seen)
    store, _ = store_on(memory)
    found = store.get(b"counter")
    total = struct.unpack("<Q", found)[0] if found else 0
    assert done["added"] <= total <= done["added"] + done["begun"]
    for key in sorted(store.keys()):
        if key != b"counter":
            value = store.get(key)
            assert value is not None
            check_value(key, value)
    assert not any(memory._words[at] & 0xFFFF for at in memory._locks())


def test_torn_reads_and_conflicts_were_met() -> None:
    """The test above has what it is for."""
    torn = conflicts = 0
    for seed in range(20):
        memory = served(slots=1, value_size=600)
        clients = [store_on(memory)[0] for _ in range(3)]
        tasks = {
            at: life(store, random.Random(f"{seed} {at}"), Counter(), Counter())
            for at, store in enumerate(clients)
        }
        assert not list(interleave(random.Random(seed), tasks))
        torn += sum(one.statistics().torn for one in clients)
        conflicts += sum(one.statistics().conflicts for one in clients)
    assert torn > 10
    assert conflicts > 10


def test_a_call_that_ends_at_any_step_leaves_nothing_locked() -> None:
    """By a timeout or a cancelled task: the client goes on, and so do others."""
    for key in (b"there", b"new"):
        for stop in range(100):
            memory = served()
            (store, _), (other, _) = store_on(memory), store_on(memory)
            other.put(b"there", b"old")
            steps = store._put(key, b"later", None, None)
            call = stepping(store._port, steps)  # type: ignore[arg-type]
            ended = False
            for _ in range(stop):
                ended = ended or next(call, True) is True
            call.close()
            steps.close()
            assert other.get(b"there") in (b"old", b"later")
            assert store.put(key, b"last")
            assert other.get(key) == b"last"
            assert other.put(key, b"other's", timeout=0)
            assert not any(memory._words[at] & 0xFFFF for at in memory._locks())
            if ended:
                break
        assert ended


def test_who_waits_is_told_whom_for_and_readers_do_not_wait() -> None:
    memory = served(slots=1)
    (store, gone), (other, _) = store_on(memory), store_on(memory)
    store.put(b"k", b"old")
    steps = store._put(b"k", b"new", None, None)
    step = next(steps)
    while not isinstance(step, Write):
        step = steps.send(store._port.do(step))
    assert other.get(b"k") == b"old"
    with pytest.raises(TimeoutError, match="client 1 is writing"):
        other.put(b"k", b"other's", timeout=0.01)
    assert memory.leave(gone) == 1
    assert other.get(b"k") == b"old"
    other.put(b"k", b"other's", timeout=0)


def test_the_version_of_a_writer_that_died_before_it_released_is_used_up() -> None:
    memory = served(slots=1)
    (store, gone), (other, _) = store_on(memory), store_on(memory)
    other.put(b"k", b"old")
    steps = store._put(b"k", b"new", None, None)
    step = next(steps)
    while not isinstance(step, FetchAdd):
        step = steps.send(store._port.do(step))
    found = other.entry(b"k")
    assert found is not None
    assert found.value == b"new"
    memory.leave(gone)
    assert other.put(b"k", b"newer", version=found.version) > found.version


# ---------------------------------------------------------------------- hostile memory


@pytest.mark.parametrize("seed", range(40))
def test_any_bytes_in_the_memory(seed: int) -> None:
    """Whatever is there, a call ends: by a value, or an error of its own. No access is out of bounds."""
    chosen = random.Random(seed)
    memory = served(slots=8)
    (store, _), (other, _) = store_on(memory), store_on(memory)
    for number in range(6):
        other.put(b"%d" % number, b"value %d" % number)
    buf = memory.mr.buf
    if seed % 2:
        for _ in range(chosen.choice((1, 10, 300))):
            buf[chosen.randrange(len(buf))] = chosen.randrange(256)
    else:
        buf[:] = chosen.randbytes(len(buf))
    allowed = (HostileMemoryError, TimeoutError, ConflictError, FullError)
    for number in range(8):
        for call in (
            store.get,
            store.delete,
            lambda key: store.put(key, b"v", timeout=0),
            lambda _: store.keys(),
        ):
            with suppress(*allowed):
                call(b"%d" % number)  # type: ignore[operator]


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_invitations_that_lie(kind: int) -> None:
    chosen = random.Random(kind)
    client: Any = {1: Store, 2: Words, 3: Group}[kind]
    remote = Memory(1 << 16)
    for _ in range(300):
        sizes = tuple(chosen.choice((0, 1, 2, 64, 1 << 12, (1 << 32) - 1)) for _ in range(3))
        told = Invitation(kind, chosen.choice((1, 7, 0xFFFF)), sizes, chosen.choice((0, 1 << 16, 1 << 60)))  # type: ignore[arg-type]
        try:
            found = client(PretendPort(remote), window(remote), told.pack())
        except ValueError:
            continue
        assert found._mr.length <= 1 << 20
    for wrong in (b"", b"rnic1sid", bytes(32), Invitation(kind % 3 + 1, 1, (1, 1, 1), 8).pack()):
        with pytest.raises(ValueError, match="the server"):
            client(PretendPort(remote), window(remote), wrong)


def test_sizes_that_need_too_much_here() -> None:
    remote = Memory(8)
    remote.length = 1 << 62
    told = Invitation(3, 1, (4096, (1 << 32) - 1, 0), 1 << 61).pack()
    with pytest.raises(ValueError, match="are the most"):
        Group(PretendPort(remote), window(remote), told)  # type: ignore[arg-type]


def test_geometry() -> None:
    for size in (0, 1, 43, 44, 45, 256, 1 << 16):
        geometry = Geometry.of(10, size)
        for length in range(20, geometry.block + 1, max(1, geometry.block // 300)):
            assert length <= geometry.to_read(geometry.part(length)) <= geometry.block
            assert 0 <= geometry.part(length) < 256
    for number in range(100):
        first, second = Key.of(b"%d" % number, Geometry.of(8, 0)).buckets
        assert {first, second} == {0, 1}


# ---------------------------------------------------------------------- locks, counters, groups


@pytest.mark.parametrize("seed", range(20))
def test_one_client_at_a_time_holds_a_lock(seed: int) -> None:
    memory = WordMemory(Memory, locks=1, counters=1)  # type: ignore[arg-type]
    inside: list[int] = []
    counts: list[int] = []
    adds = 0
    invitations: dict[int, bytes] = {}

    def life(at: int) -> Generator[None, None, None]:
        nonlocal adds
        invitations[at] = memory.join()
        port = PretendPort(memory.mr)  # type: ignore[arg-type]
        words = Words(port, window(memory.mr), invitations[at])  # type: ignore[arg-type]
        for _ in range(5):
            count, holder = 0, 0
            while holder != words.number:
                yield
                count, holder = yield from stepping(port, words._take(0, None))
            assert not inside
            assert count > max(counts, default=-1)
            counts.append(count)
            inside.append(at)
            yield
            inside.remove(at)
            words._doubts.add(0)
            yield from stepping(port, words._settle(0, None))
            yield from stepping(port, words._add(0, 3, None))
            adds += 3

    tasks = {at: life(at) for at in range(3)}
    for dead in interleave(random.Random(seed), tasks, deaths=0.002 if seed % 2 else 0):
        if dead in invitations:
            inside[:] = [one for one in inside if one != dead]
            memory.leave(invitations.pop(dead))
        tasks[dead] = life(dead)
    value = memory._words[1]
    assert adds <= value
    assert seed % 2 or value == adds


@pytest.mark.parametrize("seed", range(20))
def test_all_reduce_in_any_order(seed: int) -> None:
    chosen = random.Random(seed)
    n, rounds, length = chosen.randint(1, 5), 4, chosen.choice((0, 1, 2, 16, 50))
    memory = GroupMemory(Memory, n, room=64)  # type: ignore[arg-type]
    gave = [[bytes(chosen.randrange(256) for _ in range(length)) for _ in range(n)] for _ in range(rounds)]
    ended: list[list[bytes]] = [[] for _ in range(rounds)]

    def xor(a: bytes, b: bytes) -> bytes:
        return bytes(x ^ y for x, y in zip(a, b, strict=True))

    def life() -> Generator[None, None, None]:
        port = PretendPort(memory.mr)  # type: ignore[arg-type]
        group = Group(port, window(memory.mr), memory.join())  # type: ignore[arg-type]
        for at in range(rounds):
            data = gave[at][group.rank]
            ended[at].append((yield from stepping(port, group._reduce_bytes(data, xor, 1, None))))

    assert not list(interleave(chosen, {at: life() for at in range(n)}))
    for at in range(rounds):
        expected = gave[at][0]
        for one in gave[at][1:]:
            expected = xor(expected, one)
        assert ended[at] == [expected] * n


def test_a_group_is_as_new_when_all_have_left() -> None:
    memory = GroupMemory(Memory, 2)  # type: ignore[arg-type]
    for _ in range(2):
        one, two = memory.join(), memory.join()
        port = PretendPort(memory.mr)  # type: ignore[arg-type]
        group = Group(port, window(memory.mr), one)  # type: ignore[arg-type]
        with pytest.raises(NoPlaceError, match="has its 2 members"):
            memory.join()
        memory.leave(two)
        with pytest.raises(BrokenGroupError, match="member 1 has left"):
            group.barrier()
        with pytest.raises(NoPlaceError, match="the others must leave"):
            memory.join()
        memory.leave(one)


def test_a_block_that_does_not_fit_its_entry() -> None:
    block = memoryview(bytearray(300))
    end = pack_block(block, 5, b"key", b"value")
    assert parse_block(block[:end], 5) == (b"key", b"value")
    assert parse_block(block[:end], 6) is None
    assert parse_block(block[: end - 1], 5) is None
    block[end - 1] ^= 1
    assert parse_block(block[:end], 5) is None
    end = pack_block(block, 5, b"k" * 65, b"value")  # whose checksum is right
    assert parse_block(block[:end], 5) is None
