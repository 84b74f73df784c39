# SPDX-License-Identifier: Apache-2.0
"""Shared memory: READ, WRITE and atomics between two processes, checked byte by byte."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from errno import EBUSY
from time import monotonic

import pytest

import rnic
from conn.peers import HOST, SLEEPY, WAIT, peer, settle
from conn.test_ends import pair
from rnic import SGE, AccessFlags, SendFlags, SendWR, WROpcode
from rnic.endpoint import AbortedError, Config, EndpointError, LostError, Region
from rnic.rdmacm.again import again
from waiting import until

SIZE = 1 << 20
QUICK = Config(idle_interval=0.05)
"""What an end has sent is soon known to be there."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What cannot be given back is tried again at once, and given back by the end."""
    monkeypatch.setattr("rnic.rdmacm.again.PAUSE", 0.01)
    yield
    until(lambda: not again.is_busy, "nothing is left to do")


def sharing(conn: rnic.Connection) -> None:
    """Shares memory, which is then asked for by messages: its bytes, or that it goes."""
    memory = bytearray(random.Random(1).randbytes(SIZE))
    region = conn.share(memory)
    for order in conn:
        if order == b"show":
            conn.send(memory, WAIT)
        elif order == b"withdraw":
            conn.withdraw(region, WAIT)
            conn.send(b"withdrawn", WAIT)


def test_write_read_and_atomics() -> None:
    with peer(sharing) as (port, _), rnic.connect(HOST, port) as conn:
        remote = conn.next_region(WAIT)
        expected = bytearray(random.Random(1).randbytes(SIZE))
        assert remote.length == SIZE
        local = bytearray(SIZE)
        conn.read(local, remote, timeout=WAIT)
        assert local == expected

        new = random.Random(2).randbytes(300_000)
        conn.write(new, remote, 4096, timeout=WAIT)
        expected[4096 : 4096 + len(new)] = new

        before = int.from_bytes(expected[8:16], "little")
        assert conn.fetch_add(remote, 5, 8, timeout=WAIT) == before
        assert conn.compare_swap(remote, before + 5, 77, 8, timeout=WAIT) == before + 5
        assert conn.compare_swap(remote, before, 78, 8, timeout=WAIT) == 77
        expected[8:16] = (77).to_bytes(8, "little")
        conn.send(b"show", WAIT)
        assert conn.recv(WAIT) == expected


def test_a_withdrawn_region_is_refused_here_and_the_connection_lives() -> None:
    with peer(sharing) as (port, _), rnic.connect(HOST, port) as conn:
        remote = conn.next_region(WAIT)
        conn.send(b"withdraw", WAIT)
        assert conn.recv(WAIT) == b"withdrawn"
        assert not conn.regions
        with pytest.raises(ValueError, match="not shared by the peer"):
            conn.write(b"x", remote, timeout=WAIT)
        conn.send(b"show", WAIT)
        assert len(conn.recv(WAIT)) == SIZE


def test_what_a_region_does_not_grant_is_refused_here() -> None:
    region = Region(1, 4096, 64, 7, AccessFlags.REMOTE_READ)
    with peer(sharing) as (port, _), rnic.connect(HOST, port) as conn:
        with pytest.raises(ValueError, match="grants REMOTE_READ, and "):
            conn.write(b"x", region)
        with pytest.raises(ValueError, match="beyond region"):
            conn.read(bytearray(65), region)
        with pytest.raises(ValueError, match="multiple of 8"):
            conn.fetch_add(conn.next_region(WAIT), 1, 4)


def test_a_wrong_key_ends_the_connection_and_names_the_status() -> None:
    with peer(pause, clean=False) as (port, _), rnic.connect(HOST, port) as conn:
        remote = conn.next_region(WAIT)
        with conn.pd.reg_mr(bytearray(1)) as mr:
            wrong = remote.rkey ^ 0x100
            wr = SendWR(2, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [SGE(mr)], remote.addr, wrong)
            conn._core.qp.post_send(wr)
            with pytest.raises(LostError, match="REM_ACCESS_ERR"):
                conn.recv(WAIT)
        with pytest.raises(LostError, match="REM_ACCESS_ERR"):
            conn.send(b"x")


def pause(conn: rnic.Connection) -> None:
    conn.share(bytearray(64))
    conn.recv(WAIT)


def test_read_only_memory_is_shared_for_reading() -> None:
    with peer(only_reads) as (port, _), rnic.connect(HOST, port) as conn:
        remote = conn.next_region(WAIT)
        assert remote.access == AccessFlags.REMOTE_READ
        local = bytearray(6)
        conn.read(local, remote, timeout=WAIT)
        assert local == b"stable"


def only_reads(conn: rnic.Connection) -> None:
    conn.share(b"stable")
    assert list(conn) == []


def reach(conn: rnic.Connection, region: Region) -> str:
    """How an end fares that writes into a region although it was withdrawn."""
    with conn.pd.reg_mr(bytearray(b"EVIL")) as mr:
        wr = SendWR(2, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [SGE(mr)], region.addr, region.rkey)
        conn._core.qp.post_send(wr)
        with pytest.raises(LostError) as caught:
            conn.recv(WAIT)
    return str(caught.value)


def until_it_is_there(one: rnic.Connection) -> None:
    """All that this end has sent is in the peer's receives."""
    while one._core.machine.sending:
        with pytest.raises(TimeoutError):
            one.recv(0.001)


def test_a_region_is_closed_when_the_peer_confirms_whoever_waits() -> None:
    memory = bytearray(64)
    with pair(QUICK) as (a, b):
        b.send(b"ready")
        assert a.recv(WAIT) == b"ready"
        mine = a.share(memory)
        theirs = b.next_region(WAIT)
        with pytest.raises(TimeoutError):
            a.withdraw(mine, 0)
        with pytest.raises(BufferError):
            memory.append(0)
        until_it_is_there(a)
        with pytest.raises(TimeoutError):
            b.recv(0)
        b.send(b"released")  # behind the RELEASE
        assert a.recv(WAIT) == b"released"
        assert not a._core.sharing._shared
        memory.append(0)
        a.withdraw(mine, 0)  # once more: it is done
        with pytest.raises(ValueError, match="no region 2 is shared"):
            a.withdraw(Region(2, 0, 8, 1, AccessFlags.REMOTE_READ))
        assert "REM_ACCESS_ERR" in reach(b, theirs)
        assert memory == bytes(65)


def test_a_cancelled_withdraw_closes_the_region_all_the_same() -> None:
    async def main() -> None:
        memory = bytearray(64)
        async with rnic.aio.listen(HOST, 0) as server:
            there = asyncio.create_task(server.accept())
            async with await rnic.aio.connect(HOST, server.port) as a, await there as b:
                mine = await a.share(memory)
                await b.next_region()
                task = asyncio.create_task(a.withdraw(mine))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                async with asyncio.timeout(WAIT):
                    while a._core.sharing._shared:
                        await asyncio.sleep(0.001)
                memory.append(0)
                await a.withdraw(mine)
                await asyncio.gather(a.close(), b.close())

    asyncio.run(main())


def test_a_peer_that_never_confirms_is_revoked() -> None:
    memory = bytearray(64)
    with pair() as (a, b):
        b.send(b"ready")
        assert a.recv(WAIT) == b"ready"
        mine = a.share(memory)
        theirs = b.next_region(WAIT)
        a.revoke(mine)
        memory.append(0)
        a.revoke(mine)
        with pytest.raises(ValueError, match="no region 7 is shared"):
            a.revoke(Region(7, 0, 8, 1, AccessFlags.REMOTE_READ))
        assert "REM_ACCESS_ERR" in reach(b, theirs)
        assert memory == bytes(65)


def test_a_region_that_a_stopped_process_holds_is_closed_later() -> None:
    """EBUSY: the operation, or the withdrawal, waits for it; nobody gets an exception that is not his."""
    with pair(Config(idle_interval=None)) as (a, b):  # no probe wakes it
        b.send(b"ready")
        assert a.recv(WAIT) == b"ready"
        mine = a.share(bytearray(64))
        busy = Busy(a._core.sharing._shared[mine.id], 3)
        a._core.sharing._shared[mine.id] = busy  # type: ignore[assignment]
        b.next_region(WAIT)
        with pytest.raises(TimeoutError):
            a.withdraw(mine, 0)
        with suppress(TimeoutError):
            b.recv(0.1)
        a.withdraw(mine, WAIT / 6)
        assert busy.left == 0


@asynccontextmanager
async def aio_pair() -> AsyncIterator[tuple[rnic.aio.Connection, rnic.aio.Connection]]:
    """Both ends in one loop."""
    async with asyncio.timeout(WAIT), rnic.aio.listen(HOST, 0) as server:
        there = asyncio.create_task(server.accept())
        async with await rnic.aio.connect(HOST, server.port) as a, await there as b:
            yield a, b
            await asyncio.gather(a.close(), b.close())


def test_a_withdrawal_that_has_to_wait_keeps_no_other_from_its_end() -> None:
    async def main() -> None:
        async with aio_pair() as (a, b):
            first, second = await a.share(bytearray(64)), await a.share(bytearray(64))
            await b.next_region(), await b.next_region()
            busy = Busy(a._core.sharing._shared[first.id], 1 << 30)
            a._core.sharing._shared[first.id] = busy  # type: ignore[assignment]
            waits = asyncio.create_task(a.withdraw(first))
            await asyncio.sleep(0)
            other = asyncio.create_task(a.withdraw(second))
            await asyncio.sleep(0)
            await a.revoke(second)
            await asyncio.wait_for(other, WAIT)
            assert not waits.done()
            busy.left = 0
            await a.revoke(first)
            await waits

    asyncio.run(main())


def test_a_withdrawal_does_not_end_while_the_region_is_open() -> None:
    """Whoever waits for it when the connection is closed is told so, unless the region was closed with it."""

    async def main() -> None:
        async with aio_pair() as (a, b):
            mine = await a.share(bytearray(64))
            await b.next_region()
            busy = Busy(a._core.sharing._shared[mine.id], 1 << 30)
            a._core.sharing._shared[mine.id] = busy  # type: ignore[assignment]
            waits = asyncio.create_task(a.withdraw(mine))
            await asyncio.sleep(0)
            await a.abort()
            with pytest.raises(EndpointError):
                await waits
            busy.left = 0
            with pytest.raises(AbortedError):  # no call has told of it
                await b.close()

    asyncio.run(main())


@pytest.mark.parametrize("what", ["withdraw", "revoke"])
def test_a_region_of_another_connection_is_none_of_this_one(what: str) -> None:
    with pair() as (a, b), pair() as (c, d):
        mine, other = a.share(bytearray(64)), c.share(bytearray(64))
        assert mine.id == other.id
        with pytest.raises(ValueError, match=f"no region {mine.id} is shared"):
            getattr(a, what)(other)
        assert mine.id in a._core.sharing._shared
        c.revoke(other)
        with pytest.raises(ValueError, match=f"no region {mine.id} is shared"):
            getattr(a, what)(other)  # nor when it has gone
        for one in (b, d):
            one.abort()


def test_a_region_is_revoked_also_beside_a_close() -> None:
    async def main() -> None:
        memory = bytearray(64)
        async with aio_pair() as (a, b):
            mine = await a.share(memory)
            await b.next_region()
            closing = asyncio.create_task(a.close(WAIT))
            await asyncio.sleep(0)
            await a.revoke(mine)
            memory.append(0)
            assert not closing.done()
            await b.close()
            await closing

    asyncio.run(main())


def test_the_end_of_a_connection_waits_once_for_a_stopped_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try takes a second, in whose thread it is: one is enough, for this connection and for others."""
    monkeypatch.setattr("rnic.rdmacm.again.PAUSE", 1)
    monkeypatch.setattr("rnic.rdmacm.again.LONG", 0)
    busy: list[Busy] = []
    with pair() as (a, b), pair() as (c, d):
        for end in (a, c):
            for _ in range(5):
                mine = end.share(bytearray(64))
                busy.append(Busy(end._core.sharing._shared[mine.id], 1 << 30))
                end._core.sharing._shared[mine.id] = busy[-1]  # type: ignore[assignment]
        for end in (a, b, c, d):
            end.abort()
        assert [one.tried.count(threading.get_ident()) for one in busy] == [1] + 9 * [0]
        with pair():
            assert sum(one.tried.count(threading.get_ident()) for one in busy) == 1
    for one in busy:
        one.left = 0
    until(lambda: all(one.closed for one in busy), "they are given back")


def test_an_operation_is_not_over_while_its_queue_pair_may_carry_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushed = False
    monkeypatch.setattr("rnic.conn.ending.is_flushed", lambda _: flushed)
    with pair() as (a, b):
        b.share(bytearray(64))
        remote = a.next_region(WAIT)
        core = a._core
        op = core.rdma(WROpcode.RDMA_READ, bytearray(64), remote, 0)
        core.abort("on purpose")
        while not core.finished:
            core.pump(monotonic())
        core.pump(monotonic())
        assert not op.done
        due = core.deadline()
        assert due is not None
        flushed = True
        core.pump(due)
        assert isinstance(op.error, EndpointError)
        b.abort()


class Busy:
    """A region that cannot be closed so many times."""

    def __init__(self, mr: rnic.MR, times: int) -> None:
        self._mr, self.left = mr, times
        self.tried: list[int] = []  # by which threads

    @property
    def closed(self) -> bool:
        return self._mr.closed

    def __exit__(self, *_: object) -> None:
        with suppress(rnic.VerbsError):
            self.close()

    def close(self) -> None:
        self.tried.append(threading.get_ident())
        if self.left:
            self.left -= 1
            raise rnic.VerbsError(EBUSY, "a process is stopped in the middle of a copy", "dereg_mr")
        self._mr.close()


# ---------------------------------------------------------------- beside messages; below signals


@pytest.mark.parametrize("config", [None, SLEEPY], ids=["looks", "sleeps"])
def test_operations_and_messages_do_not_mix(config: Config | None) -> None:
    rng = random.Random(3)
    memory, mirror = bytearray(1 << 16), bytearray(1 << 16)
    with pair(config) as (a, b):
        b.share(memory)
        region = a.next_region(WAIT)
        sent: list[bytes] = []
        for _ in range(400):
            match rng.randrange(5):
                case 0:
                    length, at = rng.choice([0, 1, 64, 16384, 16385, 30000]), rng.randrange(1 << 15)
                    mirror[at : at + length] = data = rng.randbytes(length)
                    a.write(data, region, at, timeout=WAIT)
                case 1:
                    length, at = rng.choice([0, 1, 64, 16384, 16385, 30000]), rng.randrange(1 << 15)
                    found = bytearray(length)
                    a.read(found, region, at, timeout=WAIT)
                    assert found == mirror[at : at + length]
                case 2:
                    at, more = rng.randrange(1 << 12) * 8, rng.randrange(1 << 64)
                    before = int.from_bytes(mirror[at : at + 8], "little")
                    assert a.fetch_add(region, more, at, timeout=WAIT) == before
                    mirror[at : at + 8] = ((before + more) % (1 << 64)).to_bytes(8, "little")
                case 3 if len(sent) < 3:
                    sent.append(rng.randbytes(rng.choice([1, 100, 20000])))
                    b.send(sent[-1], WAIT)
                case _ if sent:
                    assert a.recv(WAIT) == sent.pop(0)
        assert memory == mirror


@pytest.mark.parametrize("offset", [-1, 57, (1 << 63) - 8, (1 << 63) - 1, 1 << 70])
def test_what_lies_beyond_the_region_is_refused_here(offset: int) -> None:
    with pair() as (a, b):
        b.share(bytearray(64))
        region = a.next_region(WAIT)
        with pytest.raises(ValueError, match="are beyond region"):
            a.read(bytearray(8), region, offset)
        settle(a, b)


def lends(conn: rnic.Connection) -> None:
    conn.share(bytearray(8))
    with pytest.raises(EOFError):
        conn.recv(WAIT)


def test_a_second_thread_that_is_refused_repeats_nothing() -> None:
    """The call that runs, whose operation takes long, has been posted, and is not posted once more."""

    def meddle() -> None:
        while not over:
            if a._core.machine.busy:
                with suppress(RuntimeError):
                    a.fetch_add(region, 0)

    with peer(lends) as (port, process), rnic.connect(HOST, port, config=Config(spin=0.001)) as a:
        assert process.pid is not None
        region, over = a.next_region(WAIT), False
        thread = threading.Thread(target=meddle)
        thread.start()
        done = 0
        for _ in range(30):
            os.kill(process.pid, signal.SIGSTOP)
            later = threading.Timer(0.02, os.kill, (process.pid, signal.SIGCONT))
            later.start()
            while later.is_alive():
                with suppress(RuntimeError):
                    a.fetch_add(region, 1)
                    done += 1
            later.join()
        over = True
        thread.join(WAIT)
        assert a.fetch_add(region, 0) == done


# ---------------------------------------------------------------- notice of what is withdrawn


def test_a_region_that_the_peer_withdraws_is_told_once() -> None:
    with pair() as (a, b):
        ours = [b.share(bytearray(8)) for _ in range(3)]
        b.send(b"a message that nobody takes", WAIT)
        regions = [a.next_region(WAIT) for _ in ours]
        with pytest.raises(TimeoutError, match=r"next_withdrawn: not within 0\.01 s"):
            a.next_withdrawn(0.01)

        def withdraw() -> None:
            for one in ours[1:]:
                b.withdraw(one, WAIT)

        going = threading.Thread(target=withdraw)
        going.start()
        assert [a.next_withdrawn(WAIT), a.next_withdrawn(WAIT)] == regions[1:]
        a.recv(WAIT)
        going.join(WAIT)
        with pytest.raises(TimeoutError):
            a.next_withdrawn(0.01)
        b.abort()
        with pytest.raises(EndpointError):
            a.next_withdrawn(WAIT)


def test_a_task_is_woken_when_a_region_is_withdrawn() -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0) as server:
            calling = asyncio.create_task(rnic.aio.connect(HOST, server.port))
            b = await server.accept()
            a = await calling
            ours = await b.share(bytearray(8))
            region = await a.next_region()
            waiting = asyncio.create_task(a.next_withdrawn())
            await asyncio.sleep(0)
            await b.withdraw(ours)
            async with asyncio.timeout(WAIT):
                assert await waiting is region
            await asyncio.gather(a.close(), b.close())

    asyncio.run(main())


def test_regions_are_taken_in_their_order_but_those_that_were_withdrawn_before() -> None:
    with pair() as (a, b):
        ours = [b.share(bytearray(8)) for _ in range(6)]
        b.send(b"shared", WAIT)
        assert a.recv(WAIT) == b"shared"
        taken = [a.next_region(WAIT).id]
        for one in (ours[0], ours[1], ours[4]):
            with suppress(TimeoutError):
                b.withdraw(one, 0)
        ours.append(b.share(bytearray(8)))
        b.send(b"withdrawn", WAIT)
        assert a.recv(WAIT) == b"withdrawn"
        taken += [a.next_region(WAIT).id for _ in range(4)]
        assert taken == [ours[number].id for number in (0, 2, 3, 5, 6)]
        with pytest.raises(TimeoutError):
            a.next_region(0.01)


def test_to_take_a_region_takes_no_look_at_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    count, sorted_ones = 100, 0

    def counted(found: Iterable[int]) -> list[int]:
        nonlocal sorted_ones
        result = sorted(found)
        sorted_ones += len(result)
        return result

    async def main() -> None:
        async with aio_pair() as (a, b):
            for _ in range(count):
                await b.share(bytearray(8))
            await b.send(b"shared")
            assert await a.recv() == b"shared"
            monkeypatch.setattr("rnic.conn.sharing.sorted", counted, raising=False)
            tasks = [asyncio.create_task(a.next_region()) for _ in range(count)]
            async with asyncio.timeout(WAIT):
                found = [one.id for one in await asyncio.gather(*tasks)]
            assert found == sorted(found)
            assert len(set(found)) == count

    asyncio.run(main())
    assert sorted_ones <= 2 * count


def test_ones_own_region_is_no_target_and_the_cure_is_told() -> None:
    cure = r"region \d+ is not shared by the peer.*next_region\(\) returns the peer's regions, and share\(\)"
    with pair() as (a, _):
        own = a.share(bytearray(8))
        for call in (
            lambda: a.write(b"x", own, timeout=WAIT),
            lambda: a.read(bytearray(1), own, timeout=WAIT),
            lambda: a.fetch_add(own, 1, timeout=WAIT),
        ):
            with pytest.raises(ValueError, match=cure):
                call()
        with pytest.raises(ValueError, match=cure), a.batch(WAIT) as batch:
            batch.write(b"x", own)


def test_share_says_what_it_takes() -> None:
    with pair() as (a, _):
        with pytest.raises(TypeError, match=r"share\(\) needs a buffer, .* not str: give text.encode\(\)"):
            a.share("x")  # type: ignore[arg-type]
        with pytest.raises(
            TypeError, match=r"access is AccessFlags, such as AccessFlags\.REMOTE_READ .* not str"
        ):
            a.share(bytearray(8), "r")  # type: ignore[arg-type]
        with pytest.raises(
            ValueError, match=r"access is .*LOCAL_WRITE.*Config\.access allows REMOTE_WRITE\|REMOTE_READ"
        ):
            a.share(bytearray(8), AccessFlags.LOCAL_WRITE)
        assert not a._core.sharing._shared
