# SPDX-License-Identifier: Apache-2.0
"""Chains: the accounting of a send queue is right, whatever is signaled and however long a chain is."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest

from patterns.ends import WAIT, queue_pairs
from rnic import MR, QP, SGE, AccessFlags, Faults, PostError, QPAttr, QPState, SendFlags, SendWR, WROpcode
from rnic.patterns.chain import QueueError, SendQueue, Update
from waiting import until

ACCESS = (
    AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
)
SIZE = 4096


@pytest.fixture
def ends() -> Iterator[tuple[QP, MR, MR]]:
    """A queue pair with 16 places, its memory, and its peer's."""
    with (
        queue_pairs(depth=16) as (a, b),
        a.pd.alloc_mr(SIZE, ACCESS) as here,
        b.pd.alloc_mr(SIZE, ACCESS) as there,
    ):
        yield a, here, there


def test_one_call_posts_all_of_a_chain(ends: tuple[QP, MR, MR]) -> None:
    qp, here, there = ends
    queue = SendQueue(qp)
    here.buf[:8] = b"the data"
    with queue.chain(signaled=True) as chain:
        chain.write(SGE(here, 0, 8), there.addr + 100, there.rkey)
        chain.read(SGE(here, 200, 8), there.addr + 100, there.rkey)
        chain.fetch_add(SGE(here, 304, 8), 5, there.addr + 304, there.rkey)
        chain.compare_swap(SGE(here, 312, 8), 5, 9, there.addr + 304, there.rkey)
    queue.wait(chain.ticket, WAIT)
    assert bytes(there.buf[100:108]) == bytes(here.buf[200:208]) == b"the data"
    assert here.buf[304:320].cast("Q").tolist() == [0, 5]
    assert int.from_bytes(there.buf[304:312], "little") == 9
    found = queue.statistics()
    assert (found.requests, found.chains, found.inline) == (4, 1, 1)


def test_a_block_that_raises_posts_nothing(ends: tuple[QP, MR, MR]) -> None:
    qp, here, there = ends
    queue = SendQueue(qp)
    with pytest.raises(ZeroDivisionError), queue.chain() as chain:
        chain.write(SGE(here, 0, 8), there.addr, there.rkey)
        _ = 1 // 0
    assert queue.posted == 0


@pytest.mark.parametrize("every", [1, 3, 15, 16])
def test_random_chains_never_run_out_of_places(ends: tuple[QP, MR, MR], every: int) -> None:
    qp, here, there = ends
    queue, dice = SendQueue(qp, every=every), random.Random(every)
    written = 0
    for _ in range(300):
        with queue.chain(signaled=dice.random() < 0.2, timeout=WAIT) as chain:
            for _ in range(dice.randint(1, 16)):
                written += 1
                here.buf[:8] = written.to_bytes(8, "little")  # inline: it may change at once
                chain.write(SGE(here, 0, 8), there.addr, there.rkey)
    queue.flush(WAIT)
    assert queue.room == 16
    found = queue.statistics()
    assert found.chains >= 300
    assert found.signaled >= found.requests // every - found.chains
    until(lambda: int.from_bytes(there.buf[:8], "little") == written, "the last WRITE is there")


@pytest.mark.parametrize("every", [1, 3, 4, 16])
def test_updates_never_run_out_of_places(ends: tuple[QP, MR, MR], every: int) -> None:
    qp, here, there = ends
    queue = SendQueue(qp, every=every)
    update = Update(queue, here, there.addr, there.rkey, 0, 8)
    dice, at = random.Random(every), 64
    for count in range(1, 400):
        length = 8 * dice.randint(0, 3) if at < SIZE - 24 else 0
        here.buf[at : at + length] = dice.randbytes(length)
        struct.pack_into("<Q", here.buf, 0, count)
        while not update.post(at, length):
            queue.post([SendWR(opcode=WROpcode.RDMA_WRITE)], timeout=WAIT)  # which makes room
        at += length
    queue.flush(WAIT)
    until(
        lambda: struct.unpack_from("<Q", there.buf, 8) == (399,), "the last word is there"
    )  # later than TCP has it
    assert bytes(there.buf[64:at]) == bytes(here.buf[64:at])
    assert queue.room == 16


TURNS = 100  # in one of which nobody else has the device at any of five posts, however busy the machine is


@pytest.mark.roce
@pytest.mark.wire
def test_updates_gather_behind_what_is_under_way_and_leave_by_themselves(ends: tuple[QP, MR, MR]) -> None:
    """The first one is lost; when it has been repeated, the others leave, though nobody posts or polls."""
    qp, here, there = ends
    queue = SendQueue(qp, every=16)
    update = Update(queue, here, there.addr, there.rkey, 0, 8)
    for turn in range(TURNS):
        here.buf[64:] = random.Random(turn).randbytes(SIZE - 64)
        depths, reached = [], queue.reached
        qp.context.set_faults(Faults(loss=1.0))
        for count in range(1, 6):
            struct.pack_into("<Q", here.buf, 0, 5 * turn + count)
            assert update.post(64 * count, 64 if count < 5 else SIZE - 320)
            depths.append(qp.statistics().sq_depth)
        qp.context.set_faults(None)
        until(lambda: there.buf[8:16] == here.buf[:8], "the last word is there")
        assert there.buf[64:] == here.buf[64:]
        assert queue.reached == reached
        if depths == [2, 4, 4, 4, 4]:  # the others are one pair
            return
        queue.flush(WAIT)
    raise AssertionError(f"they do not gather: {depths}")


@pytest.mark.roce  # over iWARP a WRITE is complete when TCP has it
def test_an_update_that_fails_is_told(ends: tuple[QP, MR, MR]) -> None:
    qp, here, there = ends
    queue = SendQueue(qp)
    assert Update(queue, here, there.addr, there.rkey + 1, 0, 8).post(64, 8)
    with pytest.raises(QueueError) as caught:
        queue.flush(WAIT)
    assert caught.value.wc.wr_id == 1


def test_an_update_that_is_refused_posts_nothing(ends: tuple[QP, MR, MR]) -> None:
    qp, here, there = ends
    queue = SendQueue(qp)
    update = Update(queue, here, there.addr, there.rkey, 0, 8)
    qp.modify(QPAttr(qp_state=QPState.RESET))
    for length in (0, 8):
        with pytest.raises(PostError, match="RESET"):
            update.post(64, length)
    assert queue.posted == 0


def test_a_ticket_that_nobody_signals_is_refused(ends: tuple[QP, MR, MR]) -> None:
    qp, here, there = ends
    queue = SendQueue(qp)
    with queue.chain() as chain:
        chain.write(SGE(here, 0, 8), there.addr, there.rkey)
    with pytest.raises(ValueError, match="signaled=True"):
        queue.wait(chain.ticket, WAIT)
    queue.flush(WAIT)
    queue.wait(chain.ticket, WAIT)


def test_long_data_is_not_inline(ends: tuple[QP, MR, MR]) -> None:
    qp, here, there = ends
    queue = SendQueue(qp)
    with queue.chain(signaled=True) as chain:
        chain.write(SGE(here), there.addr, there.rkey)
    queue.wait(chain.ticket, WAIT)
    assert queue.statistics().inline == 0


def test_other_flags_stay(ends: tuple[QP, MR, MR]) -> None:
    qp = ends[0]
    kept = SendFlags.SOLICITED | SendFlags.FENCE
    wr = SendWR(opcode=WROpcode.RDMA_WRITE, send_flags=kept | SendFlags.SIGNALED)
    SendQueue(qp, every=16).post([wr])
    assert wr.send_flags & ~SendFlags.INLINE == kept


@pytest.mark.roce  # over iWARP a WRITE is complete when TCP has it
def test_a_failure_is_told(ends: tuple[QP, MR, MR]) -> None:
    qp, here, there = ends
    queue = SendQueue(qp)
    with queue.chain(signaled=True) as chain:
        chain.write(SGE(here, 0, 8), there.addr, there.rkey + 1)
    with pytest.raises(QueueError, match="REM_ACCESS_ERR") as caught:
        queue.wait(chain.ticket, WAIT)
    assert caught.value.wc.wr_id == chain.ticket


def test_what_was_posted_of_a_refused_chain_counts(ends: tuple[QP, MR, MR]) -> None:
    qp, here, there = ends
    queue = SendQueue(qp)
    good = SendWR(opcode=WROpcode.RDMA_WRITE, sg_list=[SGE(here, 0, 8)])
    good.remote_addr, good.rkey = there.addr, there.rkey
    bad = SendWR(opcode=WROpcode.SEND, sg_list=[SGE(here, 0, 8)] * 100)
    with pytest.raises(PostError):
        queue.post([good, bad])
    assert queue.posted == 1
    queue.flush(WAIT)
    assert queue.room == 16


def test_misuse_is_refused(ends: tuple[QP, MR, MR]) -> None:
    qp = ends[0]
    for every in (0, 17):
        with pytest.raises(ValueError, match="give 1 to 16"):
            SendQueue(qp, every=every)
    queue = SendQueue(qp)
    with pytest.raises(ValueError, match="17 requests in one chain"):
        queue.post([SendWR() for _ in range(17)])
    assert queue.post([]) == 0
    qp.modify(QPAttr(qp_state=QPState.ERR))
    queue.post([SendWR()], signaled=True)
    with pytest.raises(QueueError, match="FLUSH"):
        queue.flush(WAIT)
