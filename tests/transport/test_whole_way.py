# SPDX-License-Identifier: Apache-2.0
"""Every verb of an ordinary program, one after the other, with what each of them does."""

from __future__ import annotations

import errno

import pytest

import rnic
from rnic import (
    MTU,
    SGE,
    AccessFlags,
    AHAttr,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from rnic.testing import Pair

TEXT = b"from the first verb to the last"
QKEY = 0x11


def test_a_message_by_verbs_alone_from_open_to_close() -> None:
    ctx = rnic.open_device("roce_lo")
    pd, channel = ctx.alloc_pd(), ctx.create_comp_channel()
    cq = ctx.create_cq(16, channel, "mine")
    source = pd.reg_mr(bytearray(TEXT), 0)
    target = pd.reg_mr(bytearray(64), AccessFlags.LOCAL_WRITE)
    a, b = (pd.create_qp(QPInitAttr(cq, cq, sq_sig_all=True)) for _ in range(2))
    path = AHAttr(dgid=ctx.query_gid(1, 0))
    for qp, peer in ((a, b), (b, a)):
        qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=AccessFlags(0)))
        receive = {"path_mtu": MTU.MTU_256, "rq_psn": 5, "max_dest_rd_atomic": 1, "min_rnr_timer": 12}
        qp.modify(QPAttr(qp_state=QPState.RTR, dest_qp_num=peer.qp_num, ah_attr=path, **receive))
        qp.modify(
            QPAttr(qp_state=QPState.RTS, sq_psn=5, timeout=14, retry_cnt=7, rnr_retry=7, max_rd_atomic=1)
        )
    attr, init = a.query()
    assert (attr.qp_state, attr.dest_qp_num, init.qp_type) == (QPState.RTS, b.qp_num, QPType.RC)

    b.post_recv(RecvWR(1, [SGE(target)]))
    cq.req_notify()
    a.post_send(SendWR(2, WROpcode.SEND, sg_list=[SGE(source)]))
    done: list[rnic.WC] = []
    while len(done) < 2:
        assert channel.get_cq_event(60) is cq
        cq.ack_events()
        cq.req_notify()
        done += cq.poll(16)
    assert {wc.wr_id: (wc.status, wc.opcode) for wc in done} == {
        1: (WCStatus.SUCCESS, WCOpcode.RECV),
        2: (WCStatus.SUCCESS, WCOpcode.SEND),
    }
    assert bytes(target.buf[: len(TEXT)]) == TEXT

    for thing in (a, b, source, target, cq, channel, pd, ctx):
        thing.close()
        assert thing.closed
    with pytest.raises(rnic.VerbsError, match="closed"):
        ctx.alloc_pd()


def test_a_datagram_and_its_answer_by_address_handles() -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd, ctx.create_cq(16) as cq:
        init = QPInitAttr(cq, cq, QPType.UD, sq_sig_all=True)
        with (
            pd.alloc_mr(256, AccessFlags.LOCAL_WRITE) as mr,
            pd.create_qp(init) as a,
            pd.create_qp(init) as b,
        ):
            for qp in (a, b):
                qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qkey=QKEY))
                qp.modify(QPAttr(qp_state=QPState.RTR))
                qp.modify(QPAttr(qp_state=QPState.RTS, sq_psn=0))
                qp.post_recv(RecvWR(qp.qp_num, [SGE(mr, 0, 100)]))
            ah = pd.create_ah(AHAttr(dgid=ctx.query_gid(1, 0), traffic_class=8, hop_limit=3))
            got = datagram(cq, a, b.qp_num, ah)
            ah.close()
            back = ctx.init_ah_from_wc(1, got, mr.buf)
            assert (back.dgid, back.traffic_class, got.src_qp) == (ctx.query_gid(1, 0), 8, a.qp_num)
            with pd.create_ah_from_wc(got, mr.buf) as answer:
                assert answer.query() == back
                assert datagram(cq, b, got.src_qp, answer).src_qp == b.qp_num


def datagram(cq: rnic.CQ, source: rnic.QP, qpn: int, ah: rnic.AH) -> rnic.WC:
    """Send an empty one; its receive."""
    source.post_send(SendWR(0, WROpcode.SEND, ah=ah, remote_qpn=qpn, remote_qkey=QKEY))
    done: dict[int, rnic.WC] = {}
    for _ in range(10**6):
        done |= {wc.wr_id: wc for wc in cq.poll(4)}
        if len(done) == 2:
            break
    assert all(wc.ok for wc in done.values())
    return done[qpn]


def test_a_completion_queue_grows_with_what_it_holds_and_does_not_shrink_below() -> None:
    with Pair(cqe=4) as pair:
        pair.a.qp.post_recv([RecvWR(i) for i in range(4)])
        pair.a.qp.modify(QPAttr(qp_state=QPState.ERR))
        while pair.a.qp.statistics().rq_depth:
            pass
        pair.a.cq.resize(64)
        assert pair.a.cq.cqe >= 64
        with pytest.raises(
            rnic.VerbsError, match="holds 4 completions, more than 1: poll them first"
        ) as caught:
            pair.a.cq.resize(1)
        assert caught.value.errno == errno.EINVAL
        done = pair.a.cq.poll(16)
        assert [(wc.wr_id, wc.status) for wc in done] == [(i, WCStatus.WR_FLUSH_ERR) for i in range(4)]
        pair.a.cq.resize(1)
