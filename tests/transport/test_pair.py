# SPDX-License-Identifier: Apache-2.0
"""rnic.testing: what it connects works, and what it is told wrong it says."""

from __future__ import annotations

import multiprocessing
import socket
import threading
from typing import Any

import pytest

import rnic
from rnic import GID, MTU, SGE, Faults, QPState, SendFlags, SendWR, WROpcode
from rnic.testing import Address, End, Options, Pair, connect, connect_through
from transport.scene import arrive
from waiting import times_out


def assert_writes(a: End, b: End) -> None:
    source, target = a.register(bytearray(b"through")), b.memory(64)
    wr = SendWR(1, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [SGE(source)], target.addr, target.rkey)
    a.qp.post_send(wr)
    a.wait_ok()
    arrive(a)
    assert bytes(target.buf[:7]) == b"through"


@pytest.mark.parametrize("kind", ["socket", "pipe"])
def test_connect_through_joins_the_two_ends_of_a_way(kind: str) -> None:
    ways: Any = socket.socketpair() if kind == "socket" else multiprocessing.Pipe()
    with ways[0], ways[1], End() as a, End() as b:
        peers: list[Address] = []
        other = threading.Thread(target=lambda: peers.append(connect_through(b.qp, ways[1])))
        other.start()
        peer = connect_through(a.qp, ways[0])
        other.join()
        assert (peer.qp_num, peers[0].qp_num) == (b.qp.qp_num, a.qp.qp_num)
        assert_writes(a, b)
        assert_writes(b, a)


def test_connect_through_says_when_the_peer_has_gone() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, End() as end, pytest.raises(ConnectionError):
        connect_through(end.qp, ours)


def test_two_queue_pairs_of_one_context_can_be_connected() -> None:
    with End() as a, End(ctx=a.ctx) as b:
        connect(a.qp, b.qp)
        assert_writes(a, b)


@pytest.mark.roce
def test_the_smaller_path_mtu_is_taken_and_options_reach_the_queue_pairs() -> None:
    small = Options(path_mtu=MTU.MTU_512, timeout=17, max_rd_atomic=3)
    with Pair(options=Options(path_mtu=MTU.MTU_2048), options_b=small) as pair:
        a, b = pair.a.qp.query()[0], pair.b.qp.query()[0]
        assert (a.path_mtu, b.path_mtu) == (MTU.MTU_512, MTU.MTU_512)
        assert (a.timeout, b.timeout, b.max_rd_atomic) == (14, 17, 3)
        assert (a.rq_psn, b.rq_psn) == (b.sq_psn, a.sq_psn)
        assert {pair.a.qp.state, pair.b.qp.state} == {QPState.RTS}


def test_an_address_that_the_device_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"does not have the address 192.0.2.77; it has .*127.0.0.1"):
        Pair(options=Options(address="192.0.2.77"))


def test_addresses_survive_being_sent() -> None:
    address = Address(GID("::ffff:10.0.0.1"), 0xABCDEF, 0x123456, MTU.MTU_1024)
    assert Address.from_bytes(bytes(address)) == address
    with pytest.raises(ValueError, match="3 bytes are no address"):
        Address.from_bytes(b"abc")


def test_wait_gives_up_at_its_time_and_says_what_has_come() -> None:
    with Pair() as pair:
        pair.a.qp.post_send(SendWR(5, WROpcode.RDMA_WRITE, SendFlags.SIGNALED))
        error = times_out(lambda limit: pair.a.wait(2, limit), "1 of 2 completions came in time")
        assert [wc.wr_id for wc in error.completions] == [5]


@pytest.mark.roce
def test_wait_ok_raises_a_failure_in_its_own_words() -> None:
    with Pair(options=Options(timeout=6, retry_cnt=0)) as pair:
        pair.a.ctx.set_faults(Faults(loss=1.0))
        pair.a.qp.post_send(SendWR(5, WROpcode.RDMA_WRITE, SendFlags.SIGNALED))
        with pytest.raises(RuntimeError, match=r"wr_id 5 .* RETRY_EXC_ERR"):
            pair.a.wait_ok()


def test_a_pair_that_cannot_be_made_leaves_nothing_open() -> None:
    with pytest.raises(rnic.VerbsError):
        Pair(cqe=0)
    with pytest.raises(rnic.VerbsError, match="no device roce_none"):
        Pair("roce_none")
