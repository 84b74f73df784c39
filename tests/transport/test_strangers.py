# SPDX-License-Identifier: Apache-2.0
"""Processes of this host that do not keep to the rules of a lane, or cannot."""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import namespaces
import rnic
from rnic import SGE, AccessFlags, QPAttr, QPState, QPType, SendWR, WCStatus, WROpcode
from rnic.testing import End, Pair
from transport.node import Node, Setting
from transport.scene import NOBODY, perform, send
from transport.stranger import (
    COUNT,
    PARTY,
    Stranger,
    connect_to,
    is_done,
    message,
    party,
    qp_num_in,
    slot_of,
)
from waiting import until

pytestmark = pytest.mark.own_way

ELSEWHERE = "192.0.2.77"  # RFC 5737: nobody's
WAIT = 1.0  # seconds that a deregistration has patience with a copy


@pytest.fixture
def end() -> Iterator[End]:
    with End(local=True) as made:
        yield made


def stranger_of(end: End, *addresses: str, more: tuple[int, ...] = ()) -> Stranger:
    return Stranger(slot_of(end.qp.qp_num), addresses or ("127.0.0.1",), more)


# ---------------------------------------------------------------- marks


def test_a_mark_that_stands_still_is_waited_for_a_second(end: End) -> None:
    """A process of the same user, which might be inside a copy: the region is not given back to be used."""
    with stranger_of(end) as stranger:
        mr = end.pd.alloc_mr(4096, rnic.testing.ALL_ACCESS)
        stranger.mark(7)
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(rnic.VerbsError, match="stopped") as caught:
                mr.close()
            assert caught.value.errno == errno.EBUSY
            assert time.monotonic() - began >= WAIT
        stranger.mark(8)
        mr.close()


def test_what_may_not_be_closed_yet_serves_as_before(end: End) -> None:
    with stranger_of(end) as stranger, End(local=True) as other:
        rnic.testing.connect(end.qp, other.qp)
        mr, source = end.pd.alloc_mr(4096, rnic.testing.ALL_ACCESS), other.memory(64)
        stranger.mark(1)
        with pytest.raises(rnic.VerbsError, match="stopped"):
            mr.close()
        for _ in range(3):
            assert perform(other, WROpcode.RDMA_WRITE, [SGE(source)], mr).ok
        stranger.mark(2)
        mr.close()


@pytest.mark.parametrize("how", ["close", "rereg"])
def test_memory_of_the_program_that_peers_only_read_is_free_after_a_second(end: End, how: str) -> None:
    """A reader that was inside finds the region gone, and asks again: it gets no bytes that came later."""
    with stranger_of(end) as stranger:
        mr = end.pd.reg_mr(bytearray(65536), rnic.AccessFlags.REMOTE_READ)
        stranger.mark(1)
        if how == "close":
            mr.close()
        else:
            mr.rereg(rnic.ReregMRFlags.CHANGE_TRANSLATION, buffer=bytearray(65536))
            stranger.mark(2)
            mr.close()


def test_a_mark_that_moves_is_another_copy(end: End) -> None:
    """Who is always inside some copy, but never for long, keeps nobody waiting."""
    with stranger_of(end) as stranger:
        mr = end.pd.alloc_mr(4096, rnic.testing.ALL_ACCESS)
        stop = threading.Event()

        def copy() -> None:
            mark = 1
            while not stop.wait(0.01):
                mark += 2
                stranger.mark(mark)

        stranger.mark(1)
        thread = threading.Thread(target=copy)
        thread.start()
        try:
            mr.close()
        finally:
            stop.set()
            thread.join()


def test_the_mark_of_the_dead_means_nothing(end: End) -> None:
    mr = end.pd.alloc_mr(4096, rnic.testing.ALL_ACCESS)
    with stranger_of(end) as stranger:
        stranger.mark(7)
    mr.close()


def test_who_dies_inside_a_copy_is_not_waited_for_any_longer(end: End) -> None:
    mr = end.pd.alloc_mr(4096, rnic.testing.ALL_ACCESS)
    with stranger_of(end) as stranger:
        stranger.mark(7)
        timer = threading.Timer(0.2, stranger.close)
        timer.start()
        until(lambda: is_done(mr.close), "the region is closed")
        timer.join()


def test_nobody_else_waits_for_a_copy(end: End) -> None:
    """While one thread waits for a peer that stands still, others of the device go on."""
    with stranger_of(end) as stranger, Pair(ctx=end.ctx) as pair:
        source, target = pair.a.memory(64), pair.b.memory(64)
        mr = end.pd.alloc_mr(4096, rnic.testing.ALL_ACCESS)
        stranger.mark(7)

        def done() -> int:
            thread = threading.Thread(target=lambda: suppress_busy(mr.close))
            thread.start()
            writes = 0
            while thread.is_alive():
                assert perform(pair.a, WROpcode.RDMA_WRITE, [SGE(source)], target).ok
                writes += 1
            return writes

        until(lambda: done() > 3, "others go on")  # the first alone may have been under way before
        stranger.mark(8)
        mr.close()


def suppress_busy(call: Callable[[], None]) -> None:
    with suppress(rnic.VerbsError):
        call()


def test_a_region_that_is_being_closed_is_closed_once(end: End) -> None:
    with stranger_of(end) as stranger:
        mr = end.pd.alloc_mr(4096, rnic.testing.ALL_ACCESS)
        stranger.mark(7)
        failures: list[int | None] = []

        def close() -> None:
            try:
                mr.close()
            except rnic.VerbsError as error:
                failures.append(error.errno)

        threads = [threading.Thread(target=close) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: sum(thread.is_alive() for thread in threads) == 1, "the others leave it to one")
        stranger.mark(8)
        for thread in threads:
            thread.join()
        assert set(failures) <= {errno.EBUSY}
        mr.close()


def test_reregistration_waits_too(end: End) -> None:
    with stranger_of(end) as stranger:
        mr = end.pd.alloc_mr(4096, rnic.testing.ALL_ACCESS)
        stranger.mark(7)
        with pytest.raises(rnic.VerbsError, match="stopped"):
            mr.rereg(rnic.ReregMRFlags.CHANGE_ACCESS, access=AccessFlags.LOCAL_WRITE)
        threading.Timer(0.2, stranger.mark, [8]).start()
        again = partial(mr.rereg, rnic.ReregMRFlags.CHANGE_ACCESS, access=AccessFlags.LOCAL_WRITE)
        until(lambda: is_done(again), "the region is registered anew")
        mr.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_mark_means_nothing(end: End) -> None:
    """Nobody gave it the memory, so there is nothing that it could be copying."""
    with Node(Setting(uid=NOBODY)) as node:
        assert node.call("stranger_open", slot_of(end.qp.qp_num))
        mr = end.pd.alloc_mr(4096, rnic.testing.ALL_ACCESS)
        node.call("stranger_mark", 7)
        mr.close()


# ---------------------------------------------------------------- claims


def test_an_address_that_is_not_this_hosts_is_not_believed(end: End) -> None:
    """Else whoever has the slot here would be taken for the process with that slot of another host."""
    with stranger_of(end, "127.0.0.1", ELSEWHERE) as stranger:
        assert stranger.welcome
        connect_to(end.qp, stranger.qp_num(), ELSEWHERE)
        before = end.ctx.counters().tx_packets
        assert send(end, [SGE(end.memory(64))]).status is WCStatus.RETRY_EXC_ERR
        assert stranger.got() == 0
        assert end.ctx.counters().local_sent == 0
        assert end.ctx.counters().tx_packets > before or end.ctx.counters().tx_errors > 0


def test_the_address_that_is_believed_is_gone_to(end: End) -> None:
    """So that the test before this one says something."""
    with stranger_of(end, "127.0.0.1", ELSEWHERE) as stranger:
        connect_to(end.qp, stranger.qp_num(), "127.0.0.1")
        assert send(end, [SGE(end.memory(64))]).status is WCStatus.RETRY_EXC_ERR
        assert stranger.got() > 0


def test_what_is_claimed_later_is_not_believed_either(end: End) -> None:
    with stranger_of(end) as stranger:
        stranger.way.send(message(PARTY, party([stranger.slot], ["127.0.0.1", ELSEWHERE])))
        connect_to(end.qp, stranger.qp_num(), ELSEWHERE)
        assert send(end, [SGE(end.memory(64))]).status is WCStatus.RETRY_EXC_ERR
        assert stranger.got() == 0


def test_who_claims_the_slot_of_another_is_not_welcome(end: End) -> None:
    with End(local=True) as other:
        victim = slot_of(other.qp.qp_num)
        # Same process, same user: only the kernel's word for who owns the slot tells them apart.
        with Node(Setting()) as node:
            assert not node.call("stranger_open", slot_of(end.qp.qp_num), (victim,))
            assert node.call("stranger_open", slot_of(end.qp.qp_num))


def test_what_can_be_bound_is_not_this_hosts_for_that(end: End) -> None:
    """With ip_nonlocal_bind every address can be."""
    if os.geteuid() != 0 or not namespaces.OURS:
        pytest.skip("needs root, and a network namespace of its own")
    Path("/proc/sys/net/ipv4/ip_nonlocal_bind").write_text("1")
    try:
        with stranger_of(end, "127.0.0.1", ELSEWHERE) as stranger:
            connect_to(end.qp, stranger.qp_num(), ELSEWHERE)
            assert send(end, [SGE(end.memory(64))]).status is WCStatus.RETRY_EXC_ERR
            assert stranger.got() == 0
    finally:
        Path("/proc/sys/net/ipv4/ip_nonlocal_bind").write_text("0")


def test_who_has_no_slot_is_not_welcome(end: End) -> None:
    """It could not be anybody's peer."""
    with Stranger(slot_of(end.qp.qp_num), silent=True) as stranger:
        assert not stranger.welcome
    with stranger_of(end) as stranger:
        assert stranger.welcome


def test_a_ring_of_huge_pages_is_not_welcome(end: End) -> None:
    """Its owner could take the pages away from under us, in spite of the seals."""
    try:
        with Stranger(slot_of(end.qp.qp_num), flags=os.MFD_HUGETLB) as stranger:
            assert not stranger.welcome
    except OSError as error:
        pytest.skip(f"this kernel has no files of huge pages: {error.strerror}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_says_who_it_is_16_times(end: End) -> None:
    with Node(Setting(uid=NOBODY)) as node:
        assert node.call("stranger_open", slot_of(end.qp.qp_num))
        assert node.call("stranger_says_who", 17)
    with stranger_of(end) as stranger:  # of ours, whoever is killing us has other means
        stranger.say_who(100)
        stranger.mark(7)
        mr = end.pd.alloc_mr(4096, rnic.testing.ALL_ACCESS)
        with pytest.raises(rnic.VerbsError, match="stopped"):  # so it is there, and believed
            mr.close()
        stranger.mark(8)
        assert not stranger.hung_up()
        mr.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_have_64_lanes(end: End) -> None:
    with Node(Setting(uid=NOBODY)) as node:
        welcome = [node.call("stranger_open", slot_of(end.qp.qp_num)) for _ in range(70)]
        assert welcome == [True] * 64 + [False] * 6
        with stranger_of(end) as stranger:
            assert stranger.welcome


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_are_let_in_500_times_a_second(end: End) -> None:
    """A connection costs them little and the owner more; what is too much stays in the kernel's queue."""
    queued = 1024
    with Node(Setting(uid=NOBODY)) as node:
        calls, seconds = node.call("knock", slot_of(end.qp.qp_num), 20000)
    assert queued < calls <= queued + 128 + 500 * seconds + 64  # and those of one more look

    def called() -> Stranger | None:
        with suppress(BlockingIOError):
            return stranger_of(end)
        return None

    with until(called, "the queue is shorter") as stranger:
        assert stranger.welcome


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_slot_that_was_given_up_leads_to_nobody(end: End) -> None:
    """Whoever has it next is not who had it when the lane was made."""
    with Node(Setting(uid=NOBODY)) as node:
        assert node.call("stranger_open", slot_of(end.qp.qp_num))
        slot = node.call("stranger_give_up")
        connect_to(end.qp, qp_num_in(slot), "127.0.0.1")
        assert send(end, [SGE(end.memory(64))]).status is WCStatus.RETRY_EXC_ERR
        assert node.call("stranger_got") == 0
        assert end.ctx.counters().local_sent == 0


# ---------------------------------------------------------------- rings


def unreliable(end: End, stranger: Stranger) -> tuple[rnic.QP, rnic.CQ]:
    cq = end.ctx.create_cq(4096)
    init = rnic.QPInitAttr(
        send_cq=cq, recv_cq=cq, qp_type=QPType.UC, cap=rnic.QPCap(max_send_wr=4000), sq_sig_all=True
    )
    qp = end.pd.create_qp(init)
    connect_to(qp, stranger.qp_num(), "127.0.0.1")
    return qp, cq


def fill(end: End, stranger: Stranger, qp: rnic.QP, cq: rnic.CQ) -> None:
    """Posts twice what a ring holds; half of it goes out, and no more."""
    source = end.memory(64)
    qp.post_send([SendWR(i, sg_list=[SGE(source, 0, 8)]) for i in range(2 * COUNT)])
    until(lambda: stranger.got() == COUNT, "the ring is full")
    until(stranger.stuck, "the writer says that it waits")
    assert settled(cq, 0, COUNT) == COUNT
    until(stranger.asleep, "and sleeps")
    assert poll_all(cq) == 0
    assert stranger.got() == COUNT


def poll_all(cq: rnic.CQ) -> int:
    count = 0
    while found := cq.poll(256):
        assert all(wc.ok for wc in found)
        count += len(found)
    return count


def settled(cq: rnic.CQ, count: int, more: int) -> int:
    """How many have completed in all, once they are so many."""

    def all_told() -> int:
        nonlocal count
        count += poll_all(cq)
        return count if count >= more else 0

    return until(all_told, f"{more} completions")


def test_a_full_ring_goes_on_when_its_reader_tells(end: End) -> None:
    with stranger_of(end) as stranger:
        qp, cq = unreliable(end, stranger)
        with cq, qp:
            fill(end, stranger, qp, cq)
            stranger.take(COUNT)
            stranger.stuck(0)
            stranger.wake()
            until(lambda: stranger.got() == 2 * COUNT, "what waited goes on")
            assert settled(cq, COUNT, 2 * COUNT) == 2 * COUNT


def test_a_reader_that_clears_the_writers_flag_harms_itself_alone(end: End) -> None:
    """It makes room and tells nobody: what waits goes on with whatever else the device does."""
    with stranger_of(end) as stranger, Pair(ctx=end.ctx) as pair:
        source, target = pair.a.memory(64), pair.b.memory(64)
        qp, cq = unreliable(end, stranger)
        with cq, qp:
            fill(end, stranger, qp, cq)
            stranger.stuck(0)
            stranger.take(COUNT)
            for i in range(50):
                struct.pack_into("=Q", source.buf, 0, i)
                assert perform(pair.a, WROpcode.RDMA_WRITE, [SGE(source)], target).ok
                assert struct.unpack_from("=Q", target.buf) == (i,)
            until(lambda: stranger.got() == 2 * COUNT, "what waited goes on")


def test_a_full_ring_keeps_no_queue_pair_from_ending(end: End) -> None:
    with stranger_of(end) as stranger:
        qp, cq = unreliable(end, stranger)
        fill(end, stranger, qp, cq)
        stranger.stuck(0)
        qp.modify(QPAttr(qp_state=QPState.ERR))
        limit = time.monotonic() + 60
        flushed = 0
        while flushed < COUNT and time.monotonic() < limit:
            flushed += sum(wc.status is WCStatus.WR_FLUSH_ERR for wc in cq.poll(256))
        assert flushed == COUNT
        qp.close()
        cq.close()


def test_who_waits_for_room_goes_on_when_the_reader_dies(end: End) -> None:
    """Of an unreliable connection, whose sends are complete when they have gone out."""
    with stranger_of(end) as stranger:
        qp, cq = unreliable(end, stranger)
        with cq, qp:
            fill(end, stranger, qp, cq)
            stranger.close()
            assert settled(cq, COUNT, 2 * COUNT) == 2 * COUNT
