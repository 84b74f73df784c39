# SPDX-License-Identifier: Apache-2.0
"""Congestion control over sockets: the injector's marks reach the peer, and its notifications the sender."""

from __future__ import annotations

import hashlib

import pytest

from rnic import SGE, Faults, SendFlags, SendWR, WROpcode
from rnic.testing import Options, Pair

pytestmark = pytest.mark.roce

MIB = 1 << 20
ADDRESSES = ["127.0.0.1", "::1"]


def write(pair: Pair, data: bytes) -> bytes:
    """A WRITE of data from a to b; what has arrived."""
    source, target = pair.a.register(bytearray(data)), pair.b.memory(len(data))
    wr = SendWR(1, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [SGE(source)], target.addr, target.rkey)
    pair.a.qp.post_send(wr)
    pair.a.wait_ok()
    return bytes(target.buf)


def content(nbytes: int) -> bytes:
    return b"".join(hashlib.sha256(bytes([i % 256])).digest() for i in range(nbytes // 32))


def test_a_marked_packet_slows_its_sender_down() -> None:
    data = content(8 * MIB)
    with Pair(congestion_control=True) as pair:
        assert write(pair, data) == data
        assert pair.a.qp.statistics().rate == 0
        pair.a.ctx.set_faults(Faults(mark=1.0))
        assert write(pair, data) == data
        a, b = pair.a.ctx.counters(), pair.b.ctx.counters()
        assert b.ecn_marked > 0
        assert b.ecn_marked <= a.fault_marked
        assert 0 < b.cnp_sent <= b.ecn_marked
        assert 0 < a.cnp_handled <= b.cnp_sent
        assert pair.a.qp.statistics().rate > 0
        assert pair.b.qp.statistics().rate == 0


@pytest.mark.parametrize("address", ADDRESSES)
def test_marks_are_seen_over_ipv4_and_ipv6(address: str) -> None:
    with Pair(options=Options(address=address), congestion_control=True) as pair:
        pair.a.ctx.set_faults(Faults(mark=1.0))
        assert write(pair, b"marked") == b"marked"
        assert pair.b.ctx.counters().ecn_marked > 0


@pytest.mark.parametrize("switch", [False, None], ids=["off", "loopback"])
def test_without_congestion_control_nothing_may_be_marked(switch: bool | None) -> None:
    with Pair(congestion_control=switch) as pair:
        pair.a.ctx.set_faults(Faults(mark=1.0))
        assert write(pair, b"unmarked") == b"unmarked"
        assert pair.a.ctx.counters().fault_marked == 0
        assert pair.b.ctx.counters().ecn_marked == 0


def test_an_end_that_controls_and_one_that_does_not_get_on() -> None:
    data = content(MIB)
    with Pair(congestion_control=True) as with_control, Pair(congestion_control=False) as without:
        assert write(with_control, data) == data
        assert write(without, data) == data


def test_marks_and_losses_together_lose_nothing() -> None:
    data = content(4 * MIB)
    with Pair(congestion_control=True) as pair:
        for end in (pair.a, pair.b):
            end.ctx.set_faults(Faults(seed=3, mark=0.2, loss=0.02, reorder=0.02, duplicate=0.02))
        assert write(pair, data) == data
        assert pair.a.ctx.counters().cnp_handled > 0
