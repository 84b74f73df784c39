# SPDX-License-Identifier: Apache-2.0
"""Memory windows and invalidation over sockets: b shows a part of its memory, a uses it."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterator
from typing import Any

import pytest

import rnic
from rnic import (
    MW,
    SGE,
    AccessFlags,
    DeviceCap,
    EventType,
    Faults,
    MWBind,
    MWBindInfo,
    MWType,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    ReregMRFlags,
    SendFlags,
    SendWR,
    VerbsError,
    WCFlags,
    WCOpcode,
    WCStatus,
    WROpcode,
    inc_rkey,
)
from rnic._nic.nic import MR, WC
from rnic.testing import ALL_ACCESS, Options, Pair, connect
from transport.scene import arrive

SIGNALED = SendFlags.SIGNALED
BINDABLE = ALL_ACCESS | AccessFlags.MW_BIND
REMOTE = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
LOCAL_ON_DEMAND = AccessFlags.LOCAL_WRITE | AccessFlags.ON_DEMAND | AccessFlags.MW_BIND
NBYTES, AT, LONG = 1 << 16, 8192, 5000


class Scene:
    """A pair; of b's region a window shows [AT, AT + LONG)."""

    def __init__(self, pair: Pair) -> None:
        self.a, self.b = pair.a, pair.b
        self.source = self.a.memory(NBYTES)
        self.region = self.b.memory(NBYTES, BINDABLE)
        self.windows: list[MW] = []

    def window(self, kind: MWType) -> MW:
        self.windows.append(self.b.pd.alloc_mw(kind))
        return self.windows[-1]

    def info(self, access: AccessFlags = REMOTE, at: int = AT, length: int = LONG) -> MWBindInfo:
        return MWBindInfo(self.region, self.region.addr + at, length, access)

    def bind(self, mw: MW, info: MWBindInfo, **more: Any) -> WC:
        """Binds it as its type asks for, and waits for the completion."""
        if mw.type is MWType.TYPE_1:
            self.b.qp.bind_mw(mw, MWBind(info, SIGNALED, 7))
        else:
            key = inc_rkey(mw.rkey)
            self.b.qp.post_send(
                SendWR(7, WROpcode.BIND_MW, SIGNALED, mw=mw, bind_info=info, rkey=key, **more)
            )
            assert mw.rkey == key
        (wc,) = self.b.wait()
        assert wc.wr_id == 7
        return wc

    def bound(self, kind: MWType, access: AccessFlags = REMOTE) -> MW:
        mw = self.window(kind)
        wc = self.bind(mw, self.info(access))
        assert (wc.status, wc.opcode) == (WCStatus.SUCCESS, WCOpcode.BIND_MW)
        return mw

    def ask(self, opcode: WROpcode, addr: int, rkey: int, nbytes: int) -> WC:
        """One request of a."""
        self.a.qp.post_send(SendWR(1, opcode, SIGNALED, [SGE(self.source, 0, nbytes)], addr, rkey))
        (wc,) = self.a.wait()
        if opcode is WROpcode.RDMA_WRITE and wc.ok:
            arrive(self.a)
        return wc

    def send_inv(self, key: int, payload: bytes = b"done") -> tuple[WC, WC]:
        """SEND with invalidate; the completions of both ends."""
        self.b.qp.post_recv(RecvWR(9, [SGE(self.region, 0, 4096)]))
        self.source.buf[: len(payload)] = payload
        sge = SGE(self.source, 0, len(payload))
        self.a.qp.post_send(SendWR(2, WROpcode.SEND_WITH_INV, SIGNALED, [sge], invalidate_rkey=key))
        return self.a.wait()[0], self.b.wait()[0]

    def local_inv(self, key: int) -> WC:
        self.b.qp.post_send(SendWR(3, WROpcode.LOCAL_INV, SIGNALED, invalidate_rkey=key))
        return self.b.wait()[0]

    def close(self) -> None:
        for mw in self.windows:
            mw.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Pair() as pair:
        scene = Scene(pair)
        yield scene
        scene.close()


KINDS = pytest.mark.parametrize("kind", list(MWType))


def test_the_device_says_what_it_has(scene: Scene) -> None:
    attr = scene.a.ctx.query_device()
    flags = attr.device_cap_flags
    assert flags & DeviceCap.MEM_WINDOW
    assert flags & DeviceCap.MEM_WINDOW_TYPE_2B
    assert not flags & DeviceCap.MEM_WINDOW_TYPE_2A
    assert attr.max_mw >= 1 << 16


@KINDS
def test_a_window_shows_its_bytes_to_the_peer(scene: Scene, kind: MWType) -> None:
    mw = scene.bound(kind)
    data = bytes(i * 7 & 0xFF for i in range(LONG))
    scene.region.buf[:] = b"\xee" * NBYTES
    scene.source.buf[:LONG] = data
    assert scene.ask(WROpcode.RDMA_WRITE, scene.region.addr + AT, mw.rkey, LONG).ok
    assert bytes(scene.region.buf[AT : AT + LONG]) == data
    assert bytes(scene.region.buf[:AT]) == b"\xee" * AT
    assert bytes(scene.region.buf[AT + LONG :]) == b"\xee" * (NBYTES - AT - LONG)
    scene.source.buf[:LONG] = bytes(LONG)
    assert scene.ask(WROpcode.RDMA_READ, scene.region.addr + AT, mw.rkey, LONG).ok
    assert bytes(scene.source.buf[:LONG]) == data
    add = SendWR(4, WROpcode.ATOMIC_FETCH_AND_ADD, SIGNALED, [SGE(scene.source, 0, 8)], compare_add=3)
    add.remote_addr, add.rkey = scene.region.addr + AT, mw.rkey
    scene.a.qp.post_send(add)
    scene.a.wait_ok()
    assert bytes(scene.source.buf[:8]) == data[:8]
    assert scene.region.buf[AT] == data[0] + 3
    assert mw.query() == scene.info()


@pytest.mark.roce
@KINDS
@pytest.mark.parametrize(
    ("opcode", "granted", "offset", "nbytes"),
    [
        (WROpcode.RDMA_WRITE, REMOTE, -1, 8),
        (WROpcode.RDMA_WRITE, REMOTE, LONG - 7, 8),
        (WROpcode.RDMA_READ, REMOTE, LONG - 7, 8),
        (WROpcode.RDMA_WRITE, AccessFlags.REMOTE_READ, 0, 8),
        (WROpcode.RDMA_READ, AccessFlags.REMOTE_WRITE, 0, 8),
        (WROpcode.ATOMIC_FETCH_AND_ADD, AccessFlags.REMOTE_WRITE, 0, 8),
    ],
)
def test_what_a_window_does_not_grant_is_refused(
    scene: Scene, kind: MWType, opcode: WROpcode, granted: AccessFlags, offset: int, nbytes: int
) -> None:
    mw = scene.bound(kind, granted)
    before = bytes(scene.region.buf)
    wc = scene.ask(opcode, scene.region.addr + AT + offset, mw.rkey, nbytes)
    assert wc.status is WCStatus.REM_ACCESS_ERR
    assert scene.b.ctx.get_async_event(60).event_type is EventType.QP_ACCESS_ERR
    assert bytes(scene.region.buf) == before


@KINDS
def test_a_zero_based_window_begins_at_0(scene: Scene, kind: MWType) -> None:
    mw = scene.bound(kind, REMOTE | AccessFlags.ZERO_BASED)
    scene.source.buf[:4] = b"zero"
    assert scene.ask(WROpcode.RDMA_WRITE, 2, mw.rkey, 4).ok
    assert bytes(scene.region.buf[AT + 2 : AT + 6]) == b"zero"
    assert scene.ask(WROpcode.RDMA_READ, LONG - 3, mw.rkey, 4).status is WCStatus.REM_ACCESS_ERR


@pytest.mark.roce
def test_a_type_1_window_is_bound_again_and_the_old_key_is_gone(scene: Scene) -> None:
    mw = scene.bound(MWType.TYPE_1)
    old = mw.rkey
    assert scene.bind(mw, scene.info(at=0, length=64)).ok
    assert mw.rkey == inc_rkey(old)
    scene.source.buf[:3] = b"new"
    assert scene.ask(WROpcode.RDMA_WRITE, scene.region.addr, mw.rkey, 3).ok
    assert bytes(scene.region.buf[:3]) == b"new"
    assert scene.ask(WROpcode.RDMA_WRITE, scene.region.addr + AT, old, 3).status is WCStatus.REM_ACCESS_ERR


@pytest.mark.roce
def test_a_type_1_window_of_length_0_is_unbound(scene: Scene) -> None:
    mw = scene.bound(MWType.TYPE_1)
    mw.bind(scene.b.qp, MWBind(MWBindInfo(), SIGNALED, 7))
    scene.b.wait_ok()
    assert mw.query() == MWBindInfo()
    wc = scene.ask(WROpcode.RDMA_WRITE, scene.region.addr + AT, mw.rkey, 3)
    assert wc.status is WCStatus.REM_ACCESS_ERR


@pytest.mark.roce
def test_the_peer_invalidates_what_it_was_shown(scene: Scene) -> None:
    mw = scene.bound(MWType.TYPE_2)
    for _ in range(3):
        key = mw.rkey
        scene.source.buf[:4] = b"data"
        assert scene.ask(WROpcode.RDMA_WRITE, scene.region.addr + AT, key, 4).ok
        sent, received = scene.send_inv(key, b"done" * 500)
        assert (sent.status, sent.opcode) == (WCStatus.SUCCESS, WCOpcode.SEND)
        assert (received.wr_id, received.opcode, received.byte_len) == (9, WCOpcode.RECV, 2000)
        assert received.wc_flags == WCFlags.WITH_INV
        assert received.invalidated_rkey == key
        assert received.imm_data is None
        assert bytes(scene.region.buf[:2000]) == b"done" * 500
        assert mw.query().mr is None
        assert scene.bind(mw, scene.info()).ok
    assert scene.ask(WROpcode.RDMA_WRITE, scene.region.addr + AT, key, 4).status is WCStatus.REM_ACCESS_ERR


def test_a_shared_queue_takes_it_too_and_inline(scene: Scene) -> None:
    with scene.b.pd.create_srq() as srq:
        init = [QPInitAttr(scene.a.cq, scene.a.cq), QPInitAttr(scene.b.cq, scene.b.cq, srq=srq)]
        with scene.a.pd.create_qp(init[0]) as ours, scene.b.pd.create_qp(init[1]) as theirs:
            connect(ours, theirs, Options())
            mw = scene.window(MWType.TYPE_2)
            key = inc_rkey(mw.rkey)
            bind = SendWR(7, WROpcode.BIND_MW, SIGNALED, mw=mw, rkey=key, bind_info=scene.info())
            theirs.post_send(bind)
            scene.b.wait_ok()
            srq.post_recv(RecvWR(8, [SGE(scene.region, 0, 100)]))
            scene.source.buf[:6] = b"inline"
            sge = SGE(scene.source, 0, 6)
            inv = SendWR(9, WROpcode.SEND_WITH_INV, SIGNALED | SendFlags.INLINE, [sge], invalidate_rkey=key)
            ours.post_send(inv)
            scene.source.buf[:6] = b"gone!!"
            scene.a.wait_ok()
            (wc,) = scene.b.wait_ok()
            assert (wc.wr_id, wc.invalidated_rkey, wc.byte_len) == (8, key, 6)
            assert bytes(scene.region.buf[:6]) == b"inline"
            assert mw.query().mr is None


def test_a_window_that_is_invalidated_here_lets_nothing_through(scene: Scene) -> None:
    mw = scene.bound(MWType.TYPE_2)
    wc = scene.local_inv(mw.rkey)
    assert (wc.status, wc.opcode) == (WCStatus.SUCCESS, WCOpcode.LOCAL_INV)
    assert mw.query() == MWBindInfo()
    wc = scene.ask(WROpcode.RDMA_READ, scene.region.addr + AT, mw.rkey, 4)
    assert wc.status is WCStatus.REM_ACCESS_ERR


def test_a_key_that_is_no_windows_is_not_invalidated_here(scene: Scene) -> None:
    wc = scene.local_inv(scene.region.rkey)
    assert wc.status is WCStatus.LOC_QP_OP_ERR
    assert "deregistered, not invalidated" in wc.explain()
    assert scene.b.qp.state is QPState.ERR


@pytest.mark.roce
@pytest.mark.parametrize("whose", ["region's", "type 1 window's", "nobody's"])
def test_a_peer_that_may_not_invalidate_is_refused(scene: Scene, whose: str) -> None:
    keys = {
        "region's": scene.region.rkey,
        "type 1 window's": scene.bound(MWType.TYPE_1).rkey,
        "nobody's": scene.region.rkey ^ 0x12345600,
    }
    sent, received = scene.send_inv(keys[whose])
    assert sent.status is WCStatus.REM_ACCESS_ERR
    assert received.status is WCStatus.REM_INV_REQ_ERR
    assert scene.b.ctx.get_async_event(60).event_type is EventType.QP_ACCESS_ERR


@pytest.mark.roce
def test_a_type_2_window_is_of_the_queue_pair_that_bound_it(scene: Scene) -> None:
    init = [QPInitAttr(end.cq, end.cq) for end in (scene.a, scene.b)]
    with scene.a.pd.create_qp(init[0]) as ours, scene.b.pd.create_qp(init[1]) as theirs:
        connect(ours, theirs, Options())
        mw = scene.bound(MWType.TYPE_2)
        sge = [SGE(scene.source, 0, 4)]
        write = SendWR(5, WROpcode.RDMA_WRITE, SIGNALED, sge, scene.region.addr + AT, mw.rkey)
        scene.a.qp.post_send(write)
        scene.a.wait_ok()
        ours.post_send(write)
        assert scene.a.wait()[0].status is WCStatus.REM_ACCESS_ERR


def test_a_type_1_window_is_of_the_protection_domain(scene: Scene) -> None:
    init = [QPInitAttr(end.cq, end.cq) for end in (scene.a, scene.b)]
    with scene.a.pd.create_qp(init[0]) as ours, scene.b.pd.create_qp(init[1]) as theirs:
        connect(ours, theirs, Options())
        mw = scene.bound(MWType.TYPE_1)
        sge = [SGE(scene.source, 0, 4)]
        ours.post_send(SendWR(5, WROpcode.RDMA_WRITE, SIGNALED, sge, scene.region.addr + AT, mw.rkey))
        scene.a.wait_ok()


# ---------------------------------------------------------------- binds that fail


def memory_for(scene: Scene, access: AccessFlags) -> MR:
    return scene.b.memory(4096, access)


@KINDS
@pytest.mark.parametrize(
    ("rights", "asked", "words"),
    [
        (ALL_ACCESS, AccessFlags.REMOTE_READ, "lacks MW_BIND"),
        (AccessFlags.MW_BIND, AccessFlags.REMOTE_WRITE, "LOCAL_WRITE"),
        (AccessFlags.MW_BIND, AccessFlags.REMOTE_ATOMIC, "LOCAL_WRITE"),
    ],
)
def test_a_region_without_the_rights_takes_no_window(
    scene: Scene, kind: MWType, rights: AccessFlags, asked: AccessFlags, words: str
) -> None:
    mr = memory_for(scene, rights)
    wc = scene.bind(scene.window(kind), MWBindInfo(mr, mr.addr, 64, asked))
    assert wc.status is WCStatus.MW_BIND_ERR
    assert words in wc.explain()
    assert scene.b.qp.state is QPState.ERR


def test_a_region_of_reads_only_can_be_shown(scene: Scene) -> None:
    mr = scene.b.register(b"read me" * 10, AccessFlags.MW_BIND)
    mw = scene.window(MWType.TYPE_2)
    assert scene.bind(mw, MWBindInfo(mr, mr.addr + 7, 7, AccessFlags.REMOTE_READ)).ok
    assert scene.ask(WROpcode.RDMA_READ, mr.addr + 7, mw.rkey, 7).ok
    assert bytes(scene.source.buf[:7]) == b"read me"
    mw.close()


@KINDS
@pytest.mark.parametrize(("at", "length"), [(-1, 8), (NBYTES - 7, 8), (0, NBYTES + 1), (0, 2**64 - 1)])
def test_a_window_beyond_its_region_is_not_bound(scene: Scene, kind: MWType, at: int, length: int) -> None:
    assert scene.bind(scene.window(kind), scene.info(at=at, length=length)).status is WCStatus.MW_BIND_ERR


def test_a_bound_type_2_window_is_not_bound_again(scene: Scene) -> None:
    mw = scene.bound(MWType.TYPE_2)
    wc = scene.bind(mw, scene.info())
    assert wc.status is WCStatus.MW_BIND_ERR
    assert "invalidate it" in wc.explain()


def test_a_window_of_another_protection_domain_is_not_bound(scene: Scene) -> None:
    with scene.b.ctx.alloc_pd() as pd, pd.alloc_mw(MWType.TYPE_2) as mw:
        assert scene.bind(mw, scene.info()).status is WCStatus.MW_BIND_ERR


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({"bind_info": None}, errno.EINVAL, "needs mw"),
        ({"mw": None}, errno.EINVAL, "needs mw"),
        ({"rkey": 5}, errno.EINVAL, "more than its lower 8 bits"),
        ({"bind_info": MWBindInfo(None, 8, 8)}, errno.EINVAL, "no memory region"),
        ({"send_flags": SendFlags.INLINE}, errno.EINVAL, "INLINE is for"),
        (
            {"bind_info": MWBindInfo(mw_access_flags=AccessFlags.MW_BIND)},
            errno.EINVAL,
            "mw_access_flags 0x10",
        ),
    ],
)
def test_a_bind_that_cannot_be_meant_is_refused(
    scene: Scene, more: dict[str, Any], code: int, words: str
) -> None:
    mw = scene.window(MWType.TYPE_2)
    given = {"mw": mw, "rkey": inc_rkey(mw.rkey), "bind_info": scene.info(), **more}
    with pytest.raises(VerbsError, match=words) as caught:
        scene.b.qp.post_send(SendWR(1, WROpcode.BIND_MW, **given))
    assert caught.value.errno == code
    assert scene.b.qp.state is QPState.RTS


def test_bind_mw_is_for_type_1_of_one_protection_domain(scene: Scene) -> None:
    with pytest.raises(VerbsError, match="BIND_MW work request") as caught:
        scene.b.qp.bind_mw(scene.window(MWType.TYPE_2), MWBind(scene.info()))
    assert caught.value.errno == errno.EINVAL
    with scene.b.ctx.alloc_pd() as pd, pd.alloc_mw(MWType.TYPE_1) as mw:
        with pytest.raises(VerbsError, match="another protection domain") as caught:
            scene.b.qp.bind_mw(mw, MWBind(scene.info()))
        assert caught.value.errno == errno.EPERM
    with pytest.raises(VerbsError, match="type 3") as caught:
        scene.b.pd.alloc_mw(3)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.roce
@pytest.mark.parametrize("opcode", [WROpcode.SEND_WITH_INV, WROpcode.BIND_MW, WROpcode.LOCAL_INV])
def test_datagrams_know_no_windows(scene: Scene, opcode: WROpcode) -> None:
    init = QPInitAttr(scene.b.cq, scene.b.cq, QPType.UD)
    with scene.b.pd.create_qp(init) as qp:
        for state in (QPState.INIT, QPState.RTR, QPState.RTS):
            more = {"pkey_index": 0, "port_num": 1, "qkey": 1} if state is QPState.INIT else {}
            more |= {"sq_psn": 0} if state is QPState.RTS else {}
            qp.modify(rnic.QPAttr(qp_state=state, **more))  # type: ignore[arg-type]
        wr = SendWR(1, opcode, mw=scene.window(MWType.TYPE_2), bind_info=scene.info())
        with pytest.raises(VerbsError, match="nothing else") as caught:
            qp.post_send(wr)
        assert caught.value.errno == errno.EINVAL


# ---------------------------------------------------------------- who uses whom


@KINDS
def test_a_region_with_a_bound_window_is_in_use(scene: Scene, kind: MWType) -> None:
    mr = memory_for(scene, BINDABLE)
    mw = scene.window(kind)
    assert scene.bind(mw, MWBindInfo(mr, mr.addr, 64, REMOTE)).ok
    with pytest.raises(VerbsError, match=f"in use by MW rkey 0x{mw.rkey:08x}") as caught:
        mr.close()
    assert caught.value.errno == errno.EBUSY
    if kind is MWType.TYPE_1:
        scene.b.qp.bind_mw(mw, MWBind(MWBindInfo(), SIGNALED))
        scene.b.wait_ok()
    else:
        assert scene.send_inv(mw.rkey)[0].ok
    mr.close()


@pytest.mark.roce
def test_a_window_that_is_closed_is_unbound(scene: Scene) -> None:
    mr = memory_for(scene, BINDABLE)
    mw = scene.window(MWType.TYPE_2)
    assert scene.bind(mw, MWBindInfo(mr, mr.addr, 64, REMOTE)).ok
    key, addr = mw.rkey, mr.addr
    mw.close()
    mr.close()
    with pytest.raises(VerbsError, match="is closed"):
        mw.query()
    assert scene.ask(WROpcode.RDMA_WRITE, addr, key, 8).status is WCStatus.REM_ACCESS_ERR


@pytest.mark.roce
def test_a_bind_whose_region_goes_first_fails(scene: Scene) -> None:
    mr, mw = memory_for(scene, BINDABLE), scene.window(MWType.TYPE_2)
    scene.b.ctx.set_faults(Faults(loss=1.0))
    scene.b.qp.post_send(  # the fence waits for the READ's answer, which waits for the wire
        [
            SendWR(1, WROpcode.RDMA_READ, SIGNALED, [SGE(mr, 0, 8)], scene.source.addr, scene.source.rkey),
            SendWR(
                2,
                WROpcode.BIND_MW,
                SIGNALED | SendFlags.FENCE,
                mw=mw,
                rkey=mw.rkey,
                bind_info=MWBindInfo(scene.region, scene.region.addr, 8, REMOTE),
            ),
        ]
    )
    assert mw.query() == MWBindInfo()
    mw.close()
    scene.windows.clear()
    scene.b.ctx.set_faults(None)
    first, second = scene.b.wait(2)
    assert first.ok
    assert (second.status, second.wr_id) == (WCStatus.MW_BIND_ERR, 2)
    assert "no memory window has this rkey" in second.explain()


def test_a_queue_pair_that_closes_unbinds_its_type_2_windows(scene: Scene) -> None:
    init = [QPInitAttr(end.cq, end.cq) for end in (scene.a, scene.b)]
    mr, mw = memory_for(scene, BINDABLE), scene.window(MWType.TYPE_2)
    with scene.a.pd.create_qp(init[0]) as ours, scene.b.pd.create_qp(init[1]) as theirs:
        connect(ours, theirs, Options())
        info = MWBindInfo(mr, mr.addr, 64, REMOTE)
        theirs.post_send(SendWR(1, WROpcode.BIND_MW, SIGNALED, mw=mw, rkey=inc_rkey(mw.rkey), bind_info=info))
        scene.b.wait_ok()
        assert mw.query() == info
    assert mw.query() == MWBindInfo()
    mr.close()


# ---------------------------------------------------------------- zero-based regions


@pytest.mark.roce
def test_a_zero_based_region_is_named_from_0_on(scene: Scene) -> None:
    mr = scene.b.memory(NBYTES, BINDABLE | AccessFlags.ZERO_BASED)
    assert mr.iova == 0
    assert scene.region.iova == scene.region.addr
    scene.source.buf[:6] = b"remote"
    assert scene.ask(WROpcode.RDMA_WRITE, 100, mr.rkey, 6).ok
    assert bytes(mr.buf[100:106]) == b"remote"
    data = bytes(i % 251 for i in range(20000))
    mr.buf[7 : 7 + len(data)] = data
    scene.a.qp.post_send(
        SendWR(1, WROpcode.RDMA_READ, SIGNALED, [SGE(scene.source, 0, len(data))], 7, mr.rkey)
    )
    scene.a.wait_ok()
    assert bytes(scene.source.buf[: len(data)]) == data
    # as local memory: gathered from, and scattered into, in several pieces
    scene.a.qp.post_recv(RecvWR(1, [SGE(scene.source, 0, 30000)]))
    scene.b.qp.post_send(SendWR(2, WROpcode.SEND, SIGNALED, [SGE(mr, 7, 1), SGE(mr, 8, len(data) - 1)]))
    scene.b.wait_ok()
    scene.a.wait_ok()
    assert bytes(scene.source.buf[: len(data)]) == data
    scene.b.qp.post_recv(RecvWR(3, [SGE(mr, 30000, 3), SGE(addr=40000, length=5000, lkey=mr.lkey)]))
    scene.a.qp.post_send(SendWR(4, WROpcode.SEND, SIGNALED, [SGE(scene.source, 0, 5003)]))
    scene.a.wait_ok()
    scene.b.wait_ok()
    assert bytes(mr.buf[30000:30003]) + bytes(mr.buf[40000:45000]) == data[:5003]
    mw = scene.window(MWType.TYPE_2)
    assert scene.bind(mw, MWBindInfo(mr, 500, 64, REMOTE)).ok
    scene.source.buf[:4] = b"both"
    assert scene.ask(WROpcode.RDMA_WRITE, 500, mw.rkey, 4).ok
    assert bytes(mr.buf[500:504]) == b"both"
    mw.close()
    assert scene.ask(WROpcode.RDMA_WRITE, mr.addr, mr.rkey, 4).status is WCStatus.REM_ACCESS_ERR


# ---------------------------------------------------------------- a bad wire


@pytest.mark.roce
def test_on_a_bad_wire_each_window_serves_once(scene: Scene) -> None:
    for seed, end in enumerate((scene.a, scene.b)):
        end.ctx.set_faults(Faults(seed=seed, loss=0.02, duplicate=0.1, reorder=0.1))
    mw = scene.window(MWType.TYPE_2)
    for i in range(100):
        assert scene.bind(mw, scene.info()).ok
        data = b"%d " % i * 1000
        scene.source.buf[: len(data)] = data
        assert scene.ask(WROpcode.RDMA_WRITE, scene.region.addr + AT, mw.rkey, len(data)).ok
        assert bytes(scene.region.buf[AT : AT + len(data)]) == data
        sent, received = scene.send_inv(mw.rkey)
        assert sent.ok
        assert received.invalidated_rkey == mw.rkey
        assert mw.query().mr is None


@pytest.mark.roce
@KINDS
def test_a_window_shows_memory_that_comes_and_goes(scene: Scene, kind: MWType) -> None:
    access = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ
    memory = mmap.mmap(-1, NBYTES)
    scene.region = scene.b.pd.reg_mr(memory, access | LOCAL_ON_DEMAND)
    mw = scene.bound(kind, access)
    scene.source.buf[:100] = bytes(range(100))
    assert scene.ask(WROpcode.RDMA_WRITE, scene.region.addr + AT, mw.rkey, 100).status is WCStatus.SUCCESS
    assert memory[AT : AT + 100] == bytes(range(100))
    scene.source.buf[:100] = bytes(100)
    assert scene.ask(WROpcode.RDMA_READ, scene.region.addr + AT, mw.rkey, 100).status is WCStatus.SUCCESS
    assert bytes(scene.source.buf[:100]) == bytes(range(100))
    with pytest.raises(VerbsError, match="window") as caught:
        scene.region.rereg(ReregMRFlags.CHANGE_ACCESS, access=AccessFlags.LOCAL_WRITE)
    assert caught.value.errno == errno.EBUSY
    atomic = scene.window(kind)
    assert scene.bind(atomic, scene.info(REMOTE)).ok
    assert scene.ask(WROpcode.ATOMIC_WRITE, scene.region.addr + AT, atomic.rkey, 8).ok
    assert memory[AT : AT + 8] == scene.source.buf[:8]
    scene.close()
    scene.region.close()


@KINDS
def test_a_parent_domain_stands_for_its_own_with_windows_too(scene: Scene, kind: MWType) -> None:
    b = scene.b
    with b.ctx.alloc_parent_domain(rnic.ParentDomainInitAttr(b.pd)) as parent, parent.alloc_mw(kind) as mw:
        assert scene.bind(mw, scene.info()).status is WCStatus.SUCCESS
        assert scene.ask(WROpcode.RDMA_WRITE, scene.region.addr + AT, mw.rkey, 8).status is WCStatus.SUCCESS


@KINDS
def test_local_write_means_nothing_for_a_window(scene: Scene, kind: MWType) -> None:
    mw = scene.window(kind)
    assert scene.bind(mw, scene.info(AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE)).ok
    assert mw.query().mw_access_flags == AccessFlags.REMOTE_WRITE
