# SPDX-License-Identifier: Apache-2.0
"""Partitions over sockets (IBA 10.9): the table, who may talk with whom, what is counted."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

import rnic
from rnic import (
    MTU,
    SGE,
    AHAttr,
    EventType,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    WCStatus,
)
from rnic.testing import End
from transport.netdev import wait_event
from waiting import until

pytestmark = pytest.mark.roce

QKEY = 9


def table(ctx: rnic.Context) -> list[int]:
    return [key for i in range(ctx.query_port().pkey_tbl_len) if (key := ctx.query_pkey(1, i))]


def test_the_table_is_what_the_device_was_opened_with(monkeypatch: pytest.MonkeyPatch) -> None:
    with rnic.open_device("roce_lo") as ctx:
        assert table(ctx) == [0xFFFF]
        assert ctx.query_device().max_pkeys == ctx.query_port().pkey_tbl_len == 32
        with pytest.raises(rnic.VerbsError, match="the table has 32 entries"):
            ctx.query_pkey(1, 32)
    monkeypatch.setenv("RNIC_PKEYS", "0xffff, 32769")
    with rnic.open_device("roce_lo") as ctx:
        assert table(ctx) == [0xFFFF, 0x8001]
    with rnic.open_device("roce_lo", pkeys=[0x7FFF, 0, 0x8002]) as ctx:
        assert [ctx.query_pkey(1, i) for i in range(4)] == [0x7FFF, 0, 0x8002, 0]
    monkeypatch.setenv("RNIC_PKEYS", "all of them")
    with pytest.raises(rnic.VerbsError, match="RNIC_PKEYS"):
        rnic.open_device("roce_lo")


@pytest.mark.parametrize("keys", [[0x8000], [0x10000], [-1], [0x8001, 0x8001], range(1, 34), range(1, 1000)])
def test_a_table_that_cannot_be_is_refused(keys: list[int]) -> None:
    with pytest.raises(rnic.VerbsError) as caught:
        rnic.open_device("roce_lo", pkeys=keys)
    assert caught.value.errno == errno.EINVAL


def connect(a: End, b: End, index_a: int, index_b: int) -> None:
    """RC, each in the partition at its index."""
    for end, peer, index in ((a, b, index_a), (b, a, index_b)):
        end.qp.modify(
            QPAttr(qp_state=QPState.INIT, pkey_index=index, port_num=1, qp_access_flags=rnic.AccessFlags(0))
        )
        end.qp.modify(
            QPAttr(
                qp_state=QPState.RTR,
                path_mtu=MTU.MTU_1024,
                dest_qp_num=peer.qp.qp_num,
                rq_psn=7,
                max_dest_rd_atomic=1,
                min_rnr_timer=1,
                ah_attr=AHAttr(peer.ctx.query_gid(1, 0)),
            )
        )
        end.qp.modify(
            QPAttr(qp_state=QPState.RTS, sq_psn=7, timeout=14, retry_cnt=3, rnr_retry=7, max_rd_atomic=1)
        )


def send(a: End, b: End) -> WCStatus:
    out, into = a.memory(5), b.memory(5)
    out.buf[:] = b"hello"
    b.qp.post_recv(RecvWR(1, [SGE(into)]))
    a.qp.post_send(SendWR(2, send_flags=SendFlags.SIGNALED, sg_list=[SGE(out)]))
    (wc,) = a.wait()
    if wc.ok:
        b.wait_ok()
        assert bytes(into.buf) == b"hello"
    return wc.status


@pytest.mark.parametrize(
    ("key_a", "key_b", "talk"),
    [(0x8001, 0x8001, True), (0x8001, 0x0001, True), (0x0001, 0x0001, False), (0x8001, 0x8002, False)],
)
def test_a_connection_is_within_one_partition(key_a: int, key_b: int, talk: bool) -> None:
    with End(pkeys=[0xFFFF, key_a]) as a, End(pkeys=[0xFFFF, 0, key_b]) as b:
        connect(a, b, 1, 2)
        assert send(a, b) is (WCStatus.SUCCESS if talk else WCStatus.RETRY_EXC_ERR)
        assert a.qp.query()[0].pkey_index == 1
        until(lambda: talk or b.ctx.query_port().bad_pkey_cntr > 0, "the violation is counted")
        violations = b.ctx.query_port().bad_pkey_cntr
        assert violations == b.ctx.counters().drop_bad_pkey
        assert (violations == 0) == talk


def test_an_empty_entry_is_of_no_partition() -> None:
    with End() as a:
        attr = QPAttr(qp_state=QPState.INIT, pkey_index=1, port_num=1, qp_access_flags=rnic.AccessFlags(0))
        with pytest.raises(rnic.VerbsError, match="empty at index 1"):
            a.qp.modify(attr)
        with pytest.raises(rnic.VerbsError, match="allowed are 0 to 31"):
            a.qp.modify(replace(attr, pkey_index=32))


def test_queue_pairs_follow_the_table() -> None:
    with End() as a, End() as b:
        connect(a, b, 0, 0)
        assert send(a, b) is WCStatus.SUCCESS
        for end in (a, b):
            end.ctx.set_pkeys([0x8005])
            assert wait_event(end.ctx, EventType.PKEY_CHANGE) == rnic.AsyncEvent(EventType.PKEY_CHANGE, 1)
            end.ctx.set_pkeys([0x8005])  # no change
            with pytest.raises(TimeoutError):
                while True:
                    assert end.ctx.get_async_event(0).event_type is not EventType.PKEY_CHANGE
        assert send(a, b) is WCStatus.SUCCESS
        b.ctx.set_pkeys([0, 0x8005])
        assert send(a, b) is WCStatus.RETRY_EXC_ERR
        until(lambda: b.ctx.query_port().bad_pkey_cntr > 0, "the violation is counted")
        with pytest.raises(rnic.VerbsError, match="port 2 does not exist"):
            b.ctx.set_pkeys([0xFFFF], 2)
        with pytest.raises(rnic.VerbsError, match="1 to 32"):
            b.ctx.set_pkeys([])


def datagram_qp(end: End, index: int) -> rnic.QP:
    qp = end.pd.create_qp(QPInitAttr(end.cq, end.cq, QPType.UD))
    qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=index, port_num=1, qkey=QKEY))
    qp.modify(QPAttr(qp_state=QPState.RTR))
    qp.modify(QPAttr(qp_state=QPState.RTS, sq_psn=0))
    return qp


def test_a_datagram_tells_the_index_of_its_partition() -> None:
    with (
        End(pkeys=[0xFFFF, 0x8001]) as a,
        End(pkeys=[0xFFFF, 0, 0, 0x0001]) as b,
        datagram_qp(a, 1) as sender,
        datagram_qp(b, 3) as member,
        datagram_qp(b, 0) as stranger,
        a.pd.create_ah(AHAttr(b.ctx.query_gid(1, 0))) as ah,
    ):
        out, into = a.memory(4), b.memory(64)
        for qp in (member, stranger):
            qp.post_recv(RecvWR(1, [SGE(into)]))
        for qp in (member, stranger):
            to = {"remote_qpn": qp.qp_num, "remote_qkey": QKEY}
            sender.post_send(SendWR(1, send_flags=SendFlags.SIGNALED, sg_list=[SGE(out)], ah=ah, **to))
            a.wait_ok()
        (wc,) = b.wait_ok()
        assert (wc.qp_num, wc.pkey_index) == (member.qp_num, 3)
        until(lambda: b.ctx.query_port().bad_pkey_cntr == 1, "the stranger's datagram is counted")
        assert b.cq.poll() == []
