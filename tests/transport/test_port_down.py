# SPDX-License-Identifier: Apache-2.0
"""A port that is down on purpose: nothing comes or goes, by shared memory as by the wire."""

from __future__ import annotations

import pytest

from rnic import EventType, RecvWR, WCStatus, WROpcode
from rnic.testing import Options, Pair
from transport.scene import Scene

pytestmark = pytest.mark.own_way

SOON = Options(timeout=8, retry_cnt=3)  # 1 ms, four times
ASK = (WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD)


def change(scene: Scene, end: str, event: EventType) -> None:
    ctx = getattr(scene, end).ctx
    ctx.raise_event(event)
    assert ctx.get_async_event(60).event_type is event


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("end", ["a", "b"])
@pytest.mark.parametrize("opcode", ASK)
@pytest.mark.parametrize("ordinary", [False, True])
def test_no_work_comes_through(local: bool, end: str, opcode: WROpcode, ordinary: bool) -> None:
    """Of memory that the other end could map, and of memory that the kernel could copy."""
    with Pair(local=local, options=SOON) as pair:
        memory = bytearray(64)
        target = pair.b.register(memory) if ordinary else pair.b.memory(64)
        scene = Scene(pair.a, pair.b, pair.a.memory(64), target)
        scene.b.qp.post_recv(RecvWR())
        assert scene.do(WROpcode.RDMA_WRITE, 8).ok  # the ends know each other
        scene.source.buf[:8] = b"12345678"
        change(scene, end, EventType.PORT_ERR)
        assert scene.do(opcode, 8).status is WCStatus.RETRY_EXC_ERR
        assert bytes(target.buf[:8]) == bytes(8)


@pytest.mark.parametrize("local", [True, False])
def test_work_comes_through_when_the_port_is_up_again(local: bool) -> None:
    """Also by a queue pair that was connected meanwhile."""
    with Pair(local=local, options=Options(timeout=14, retry_cnt=7)) as pair:
        scene = Scene(pair.a, pair.b, pair.a.memory(64), pair.b.memory(64))
        assert scene.do(WROpcode.RDMA_WRITE, 8).ok
        change(scene, "b", EventType.PORT_ERR)
        scene.source.buf[:8] = b"12345678"
        scene.post(WROpcode.RDMA_WRITE, 8)
        change(scene, "b", EventType.PORT_ACTIVE)
        (wc,) = scene.a.wait()
        assert wc.ok
        assert bytes(scene.target.buf[:8]) == b"12345678"
        before = scene.counted("local_direct")
        assert scene.do(WROpcode.RDMA_WRITE, 8).ok
        assert scene.counted("local_direct") == before + local
