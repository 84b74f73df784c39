# SPDX-License-Identifier: Apache-2.0
"""Two ends on this host, two opinions: one goes by the wire, the other by shared memory."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

import rnic
from rnic import SGE, RecvWR, SendWR, WROpcode
from rnic.testing import connect
from transport.scene import SIZE, Scene, alternate, by_lane, request, unreliable
from waiting import until

pytestmark = pytest.mark.own_way


@contextmanager
def of_two_minds() -> Iterator[tuple[Scene, Scene]]:
    """a, which has an alternate path, takes the wire, b the lane; neither has heard of the other."""
    with by_lane() as there:
        there.a.qp.modify(alternate(there.b.ctx))
        yield there, Scene(there.b, there.a, there.target, there.source)


def both_first(there: Scene, back: Scene, post: Callable[[Scene], None]) -> None:
    """Neither gets the other's first packet before it has sent its own."""
    there.a.ctx.set_faults(rnic.Faults(seed=1, loss=1.0))
    post(there)
    until(lambda: there.counted("fault_lost"), "the first packet is lost")
    post(back)
    until(lambda: back.counted("local_sent"), "the other's goes")
    there.a.ctx.set_faults(None)


def test_peers_that_choose_different_ways_understand_each_other() -> None:
    """Requests go the way that their sender has chosen, answers the way that the requests came."""
    with of_two_minds() as (there, back):
        half = SIZE // 2
        there.source.buf[:half], back.source.buf[half:] = os.urandom(half), os.urandom(half)
        both_first(there, back, lambda one: one.post(WROpcode.RDMA_WRITE, 8, at=0 if one is there else half))
        there.a.wait_ok()
        back.a.wait_ok()
        for one, at in ((there, 0), (back, half)):
            for i in range(20):
                end = one.b
                end.qp.post_recv(RecvWR(i, [SGE(one.target, at, half)]))
                assert one.do(WROpcode.SEND, half, at=at).ok
                end.wait_ok()
                assert bytes(one.target.buf[at : at + half]) == bytes(one.source.buf[at : at + half])
                one.source.buf[at : at + half] = os.urandom(half)
                assert one.do(WROpcode.RDMA_WRITE, half, at=at, to=at).ok
                assert bytes(one.target.buf[at : at + half]) == bytes(one.source.buf[at : at + half])
                one.target.buf[at : at + half] = os.urandom(half)
                assert one.do(WROpcode.RDMA_READ, half, at=at, to=at).ok
                assert bytes(one.target.buf[at : at + half]) == bytes(one.source.buf[at : at + half])
            one.target.buf[at : at + 8] = bytes(8)
            for i in range(20):
                assert one.do(WROpcode.ATOMIC_FETCH_AND_ADD, 8, at=at, to=at, compare_add=1).ok
                assert struct.unpack("=Q", one.source.buf[at : at + 8]) == (i,)
        assert there.counted("local_direct") == 0, "a has chosen the wire"
        assert back.counted("local_direct") > 0


# Of a fifth both ways eight attempts in a row fail once in some 3,500 losses, and there are a thousand here.
@pytest.mark.parametrize("loss", [0.05, 0.1])
def test_two_ways_lose_packets_like_one(loss: float) -> None:
    length = 70000
    with of_two_minds() as (there, back):
        both_first(there, back, lambda one: one.post(WROpcode.RDMA_WRITE, 8))
        there.a.wait_ok()
        back.a.wait_ok()
        for end in (there.a, back.a):
            end.ctx.set_faults(rnic.Faults(seed=5, loss=loss, duplicate=loss, reorder=loss))
        for _ in range(50):
            for one, at in ((there, 0), (back, SIZE // 2)):
                one.source.buf[at : at + length] = os.urandom(length)
                assert one.do(WROpcode.RDMA_WRITE, length, at=at, to=at).ok
                assert bytes(one.target.buf[at : at + length]) == bytes(one.source.buf[at : at + length])
                one.target.buf[at : at + length] = os.urandom(length)
                assert one.do(WROpcode.RDMA_READ, length, at=at, to=at).ok
                assert bytes(one.source.buf[at : at + length]) == bytes(one.target.buf[at : at + length])


def taken(cq: rnic.CQ) -> rnic.WC:
    (wc,) = until(lambda: cq.poll(1), "a completion")
    return wc


def test_an_unreliable_connection_hears_both_ways() -> None:
    with ExitStack() as stack:
        a, b = (stack.enter_context(rnic.open_device("roce_lo", local=True)) for _ in range(2))
        (qp, _, source), (peer, _, target) = (unreliable(ctx, stack) for ctx in (a, b))
        connect(qp, peer)
        qp.modify(alternate(b))
        a.set_faults(rnic.Faults(seed=1, loss=1.0))
        for one, mr, to in ((qp, source, target), (peer, target, source)):  # into no receive: one may be late
            one.post_send(request(WROpcode.RDMA_WRITE, [SGE(mr, 0, 8)], (to.addr + (3 << 19), to.rkey)))
        for one in (qp, peer):
            assert taken(one.send_cq).ok
        a.set_faults(None)
        assert b.counters().local_sent == 1
        for one, mr, other, to in ((qp, source, peer, target), (peer, target, qp, source)):
            mr.buf[:100000] = os.urandom(100000)
            other.post_recv(RecvWR(1, [SGE(to, 1 << 20, 100000)]))
            one.post_send(SendWR(sg_list=[SGE(mr, 0, 100000)]))
            assert taken(other.recv_cq).ok
            assert bytes(to.buf[1 << 20 : (1 << 20) + 100000]) == bytes(mr.buf[:100000])
        assert b.counters().local_sent == 3
        assert a.counters().tx_syscalls > 0
