# SPDX-License-Identifier: Apache-2.0
"""Keys are checked by shared memory as on the wire; what is taken away is not touched any more."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

import rnic
from rnic import SGE, AccessFlags, QPAttr, QPState, WCStatus, WROpcode
from rnic.testing import End, connect
from transport.scene import HASTY, SIZE, Scene, request

pytestmark = pytest.mark.own_way

READ_ONLY = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ


def wrong_key(scene: Scene) -> None:
    assert scene.do(WROpcode.RDMA_WRITE, 8).ok
    scene.post(WROpcode.RDMA_WRITE, 8, there=(scene.target.addr, scene.target.rkey ^ 1))


def deregistered(scene: Scene) -> None:
    assert scene.do(WROpcode.RDMA_WRITE, 8).ok
    there = scene.target.addr, scene.target.rkey
    scene.target.close()
    scene.post(WROpcode.RDMA_WRITE, 8, there=there)


def out_of_bounds(scene: Scene) -> None:
    scene.post(WROpcode.RDMA_WRITE, 8, to=SIZE - 7)


def read_only(scene: Scene) -> None:
    assert scene.do(WROpcode.RDMA_WRITE, 8).ok
    scene.target.rereg(rnic.ReregMRFlags.CHANGE_ACCESS, access=READ_ONLY)
    assert scene.do(WROpcode.RDMA_READ, 8).ok
    scene.post(WROpcode.RDMA_WRITE, 8)


def of_another_domain(scene: Scene) -> None:
    with scene.b.ctx.alloc_pd() as other, other.alloc_mr(64, rnic.testing.ALL_ACCESS) as mr:
        assert scene.do(WROpcode.RDMA_WRITE, 8, there=mr).status is WCStatus.REM_ACCESS_ERR
        assert bytes(mr.buf[:8]) == bytes(8)


def without_the_queue_pairs_consent(scene: Scene) -> None:
    scene.b.qp.modify(QPAttr(qp_access_flags=AccessFlags.REMOTE_READ))
    scene.post(WROpcode.RDMA_WRITE, 8)


@pytest.mark.parametrize(
    "misdeed",
    [wrong_key, deregistered, out_of_bounds, read_only, of_another_domain, without_the_queue_pairs_consent],
)
def test_keys_are_checked_as_on_the_wire(scene: Scene, misdeed: Callable[[Scene], None]) -> None:
    misdeed(scene)
    if misdeed is not of_another_domain:
        (wc,) = scene.a.wait()
        consents = misdeed is not without_the_queue_pairs_consent
        assert wc.status is (WCStatus.REM_ACCESS_ERR if consents else WCStatus.REM_INV_REQ_ERR)
    assert scene.a.qp.state is QPState.ERR
    assert scene.b.qp.state is QPState.ERR


def test_a_misaligned_atomic_is_refused(scene: Scene) -> None:
    assert scene.do(WROpcode.ATOMIC_FETCH_AND_ADD, 8, to=4, compare_add=1).status is WCStatus.REM_INV_REQ_ERR


def test_a_queue_pair_in_error_lets_nobody_in(scene: Scene) -> None:
    assert scene.do(WROpcode.RDMA_WRITE, 8).ok
    scene.b.qp.modify(QPAttr(qp_state=QPState.ERR))
    before = scene.counted("local_direct")
    assert scene.do(WROpcode.RDMA_WRITE, 8).status is WCStatus.RETRY_EXC_ERR
    assert scene.counted("local_direct") == before


def test_nobody_writes_into_a_region_once_it_is_closed(scene: Scene, soak: bool) -> None:
    """By a thread that does nothing else: what was under way has ended, or does not begin."""
    length = 1 << 17
    source = scene.a.register(bytearray(b"a" * length))
    writes, rounds = 0, 1000 if soak else 60
    for number in range(100 * rounds):
        if number >= rounds and writes > 10:
            break
        target = bytearray(length)
        mr = scene.b.register(target)
        writer = Writer(scene.a, source, mr)
        writer.start()
        time.sleep(random.random() * 0.002)
        mr.close()
        target[:] = bytes(length)
        writer.join()
        assert target.count(0) == length
        assert writer.status in (WCStatus.REM_ACCESS_ERR, WCStatus.RETRY_EXC_ERR)
        writes += writer.done
        for qp in (scene.a.qp, scene.b.qp):
            qp.modify(QPAttr(qp_state=QPState.RESET))
        connect(scene.a.qp, scene.b.qp, HASTY)
        assert scene.do(WROpcode.RDMA_WRITE, 0).ok
    assert writes > 10
    assert scene.counted("local_direct") > 0


class Writer(threading.Thread):
    """WRITEs to the same place until that is refused."""

    def __init__(self, end: End, source: rnic.MR, target: rnic.MR) -> None:
        super().__init__()
        self.end, self.done, self.status = end, 0, WCStatus.SUCCESS
        self.wr = request(WROpcode.RDMA_WRITE, [SGE(source)], target)

    def run(self) -> None:
        while self.status is WCStatus.SUCCESS:
            self.end.qp.post_send(self.wr)
            (wc,) = self.end.wait()
            self.status, self.done = wc.status, self.done + wc.ok
