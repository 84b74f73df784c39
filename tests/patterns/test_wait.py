# SPDX-License-Identifier: Apache-2.0
"""The blocking wait: no completion is missed, whenever it comes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from patterns.ends import WAIT, queue_pairs
from rnic import QP, RecvWR, SendFlags, SendWR
from rnic._nic.nic import CQ, WC
from rnic.patterns.wait import How, Waiter
from waiting import until


@pytest.fixture
def pair() -> Iterator[tuple[QP, QP]]:
    with queue_pairs() as both:
        yield both


def send(qp: QP) -> None:
    """A message; its completion is polled, so that it gives its place back."""
    qp.post_send(SendWR(send_flags=SendFlags.SIGNALED))
    assert qp.send_cq is not None
    until(lambda: qp.send_cq is not None and qp.send_cq.poll(), "the SEND completes")


@pytest.mark.parametrize("how", How)
def test_what_is_there_comes_at_once(pair: tuple[QP, QP], how: How) -> None:
    a, b = pair
    assert b.recv_cq is not None
    waiter = Waiter(b.recv_cq, how)
    for number in range(3):
        b.post_recv(RecvWR(wr_id=number))
        send(a)
    found: list[int] = []
    while len(found) < 3:
        found += [wc.wr_id for wc in waiter.wait(timeout=WAIT)]
    assert found == [0, 1, 2]


@pytest.mark.parametrize("how", How)
def test_a_waiter_is_woken(pair: tuple[QP, QP], how: How) -> None:
    a, b = pair
    assert b.recv_cq is not None
    waiter = Waiter(b.recv_cq, how)
    for number in range(200):
        b.post_recv(RecvWR(wr_id=number))
        sending = threading.Thread(target=send, args=(a,))
        sending.start()
        (wc,) = waiter.wait(timeout=WAIT)
        assert wc.wr_id == number
        sending.join()
    assert (waiter.statistics().sleeps > 0) or how is not How.EVENT


class Late:
    """A completion queue into which one more completion comes just when somebody asks for an event."""

    def __init__(self, cq: CQ, sender: QP) -> None:
        self._cq, self._sender = cq, sender
        self.channel = cq.channel

    def poll(self, n: int = 1) -> list[WC]:
        return self._cq.poll(n)

    def req_notify(self) -> None:
        send(self._sender)
        self._cq.req_notify()


@pytest.mark.roce  # over iWARP it may come later than that
def test_one_that_comes_before_the_queue_is_armed_is_not_missed(pair: tuple[QP, QP]) -> None:
    a, b = pair
    assert b.recv_cq is not None
    b.post_recv(RecvWR(wr_id=7))
    waiter = Waiter(Late(b.recv_cq, a), How.EVENT)  # type: ignore[arg-type]
    (wc,) = waiter.wait(timeout=WAIT)
    assert wc.wr_id == 7
    assert waiter.statistics().sleeps == 0


@pytest.mark.parametrize("how", How)
def test_nothing_comes(pair: tuple[QP, QP], how: How) -> None:
    assert pair[1].recv_cq is not None
    waiter = Waiter(pair[1].recv_cq, how)
    for timeout in (0, 0.001):
        with pytest.raises(TimeoutError, match="no completion"):
            waiter.wait(timeout=timeout)


def test_a_task_waits_beside_others(pair: tuple[QP, QP]) -> None:
    a, b = pair

    async def main() -> None:
        assert b.recv_cq is not None
        waiter = Waiter(b.recv_cq)
        for number in range(50):
            b.post_recv(RecvWR(wr_id=number))
            waiting = asyncio.create_task(waiter.wait_async())
            await asyncio.sleep(0)
            send(a)
            assert [wc.wr_id for wc in await waiting] == [number]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await waiter.wait_async()
        b.post_recv(RecvWR(wr_id=99))  # the one that was cancelled left nothing behind
        send(a)
        assert [wc.wr_id for wc in await waiter.wait_async()] == [99]

    asyncio.run(main())


def test_misuse_is_refused(pair: tuple[QP, QP]) -> None:
    a, b = pair
    assert b.recv_cq is not None
    with a.pd.context.create_cq(8) as bare:
        with pytest.raises(ValueError, match="create_comp_channel"):
            Waiter(bare)
        Waiter(bare, How.POLL)
    with pytest.raises(TypeError, match=r"how is 'poll': give How\.POLL"):
        Waiter(b.recv_cq, "poll")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="spin -1"):
        Waiter(b.recv_cq, spin=-1)
    waiter = Waiter(b.recv_cq)
    waiter._inside = True  # of another thread
    with pytest.raises(RuntimeError, match="another thread or task"):
        waiter.wait(timeout=0)
