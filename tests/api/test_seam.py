# SPDX-License-Identifier: Apache-2.0
"""Every verb reaches the provider through the operations table, with the right values."""

import dataclasses
import errno
import os
import sys
from typing import Any

import pytest

import rnic
from api.conftest import Objects
from api.recorder import Recorder
from rnic import AccessFlags, QPState, SendFlags, WCFlags, WCOpcode, WCStatus, WROpcode
from rnic._nic import nic


def test_context_queries(recorder: Recorder) -> None:
    with recorder.context as ctx:
        device = ctx.query_device()
        port = ctx.query_port(1)
        table = ctx.query_gid_table()
        assert ctx.query_gid(1, 1) == rnic.GID("10.0.0.1")
        assert ctx.query_pkey(1, 5) == 0xFFFF
    values = list(dataclasses.astuple(device))
    assert (values[0], values[10], values[20]) == ("rec 1", rnic.DeviceCap.RC_RNR_NAK_GEN, rnic.AtomicCap.HCA)
    assert [v for i, v in enumerate(values) if i not in (0, 10, 20, 30)] == [
        i + 1 for i in range(32) if i not in (0, 10, 20, 30)
    ]
    assert device.phys_port_cnt == 1
    assert (port.state, port.max_mtu, port.active_mtu) == (rnic.PortState.ACTIVE, 5, rnic.MTU.MTU_1024)
    assert port.link_layer is rnic.LinkLayer.ETHERNET
    assert dataclasses.astuple(port)[4:19] == tuple(range(5, 20))
    assert table == [rnic.GIDEntry(rnic.GID("10.0.0.1"), 1, 1, rnic.GIDType.ROCE_V2, 7)]
    assert recorder.take()[-4:] == ["query_gid 1 1", "query_gid 1 1", "query_pkey 1 5", "close"]


def test_counters_by_name(recorder: Recorder) -> None:
    with recorder.context as ctx:
        counters = ctx.counters()
    first = 1 << 40
    assert counters.tx_packets == counters["tx_packets"] == first
    assert list(counters.as_dict().values()) == [first + i for i in range(len(counters))]
    assert (counters - counters).as_dict() == dict.fromkeys(counters, 0)
    with pytest.raises(AttributeError, match="no counter nonsense"):
        _ = counters.nonsense


def test_faults(recorder: Recorder) -> None:
    with recorder.context as ctx:
        faults = rnic.Faults(
            seed=7,
            loss=0.01,
            duplicate=0.5,
            reorder=1,
            delay=1e-6,
            flip=0.25,
            delay_s=0.5,
            reorder_gap=2,
            lose=[rnic.Lose(17, 2), rnic.Lose(nth=1, count=4)],
        )
        ctx.set_faults(faults)
        ctx.set_faults(None)
        assert recorder.take() == [
            "set_fault seed=7 loss=10000 duplicate=500000 reorder=1000000 delay=1 flip=250000 gap=2 "
            "delay_ns=500000000",
            "lose opcode=17 nth=2 count=1",
            "lose opcode=-1 nth=1 count=4",
            "set_fault off",
        ]
        with pytest.raises(rnic.VerbsError, match="at most 8 rules"):
            ctx.set_faults(rnic.Faults(lose=[rnic.Lose()] * 9))


def test_objects_are_made_and_given_back(recorder: Recorder) -> None:
    memory = bytearray(100)
    with recorder.context as ctx, ctx.alloc_pd() as pd, ctx.create_comp_channel() as channel:  # noqa: SIM117
        with ctx.create_cq(16, channel, "mine") as cq, ctx.create_cq(8) as other:
            assert (cq.cqe, cq.channel, cq.cq_context, other.channel) == (16, channel, "mine", None)
            cq.resize(32)
            assert cq.cqe == 32
            cq.req_notify()
            other.req_notify(solicited_only=True)
            with pd.reg_mr(memory, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ) as mr:
                assert (mr.length, mr.lkey, mr.rkey, mr.pd) == (100, 0x100, 0x101, pd)
                address = mr.addr
            with pd.reg_mr(addr=address, length=4) as raw:
                assert (raw.addr, raw.length) == (address, 4)
            with pd.alloc_mr(64, AccessFlags.LOCAL_WRITE) as own:
                assert own.length == 64
            cap = rnic.QPCap(1, 2, 3, 4, 5)
            with pd.create_qp(rnic.QPInitAttr(cq, other, sq_sig_all=True, cap=cap, qp_context=[1])) as qp:
                assert (qp.send_cq, qp.recv_cq, qp.pd, qp.qp_context) == (cq, other, pd, [1])
                assert (qp.qp_num, qp.qp_type) == (0x104, rnic.QPType.RC)
                assert qp.cap == rnic.QPCap(2, 2, 3, 4, 5)
    assert recorder.take() == [
        "alloc_pd",
        "create_comp_channel",
        "create_cq 16 channel=1",
        "create_cq 8 channel=0",
        "resize_cq 32",
        "req_notify_cq 0",
        "req_notify_cq 1",
        f"reg_mr 0x{address:x} 100 access=5",
        "dereg_mr lkey=256",
        f"reg_mr 0x{address:x} 4 access=0",
        "dereg_mr lkey=512",
        "alloc_mr 64 access=1",
        "dereg_mr lkey=768",
        "create_qp type=2 sig_all=1 cap=1,2,3,4,5",
        "destroy_qp 260",
        "destroy_cq",
        "destroy_cq",
        "destroy_comp_channel",
        "dealloc_pd",
        "close",
    ]
    assert recorder.alive == 0


def test_shared_receive_queues(objects: Objects) -> None:
    init = rnic.SRQInitAttr(rnic.SRQAttr(max_wr=5, max_sge=6), srq_context="mine")
    receive = rnic.RecvWR(7, [rnic.SGE(objects.mr, 0, 8)])
    with objects.pd.create_srq(init) as srq:
        assert (srq.pd, srq.srq_context) == (objects.pd, "mine")
        assert srq.query() == rnic.SRQAttr(1, 2, 3)
        srq.modify(rnic.SRQAttr(srq_limit=9))
        srq.modify(rnic.SRQAttr(max_wr=8))
        srq.post_recv([receive, rnic.RecvWR(8)])
        with objects.pd.create_qp(rnic.QPInitAttr(objects.cq, objects.cq, srq=srq)) as qp:
            assert qp.srq is srq
            with pytest.raises(rnic.VerbsError, match="SRQ is in use by QP"):
                srq.close()
    assert objects.recorder.take() == [
        "create_srq 5,6,0",
        "query_srq",
        "modify_srq mask=2 0,0,9",
        "modify_srq mask=1 8,0,0",
        f"post_srq_recv wr_id=7 sge={objects.mr.addr},8,{objects.mr.lkey}",
        "post_srq_recv wr_id=8",
        "create_qp type=2 sig_all=0 cap=128,128,4,4,256 srq=1",
        "destroy_qp 259",
        "destroy_srq",
    ]


def test_extended_reliable_connections(objects: Objects) -> None:
    pd, cq, recorder = objects.pd, objects.cq, objects.recorder
    ctx = pd.context
    assert isinstance(ctx, rnic.Context)
    wr = rnic.SendWR(1, sg_list=[rnic.SGE(objects.mr, 0, 8)], remote_srqn=0x77)
    with ctx.open_xrcd() as xrcd, ctx.open_xrcd(7, os.O_EXCL):
        init = rnic.SRQInitAttrEx(
            pd, rnic.SRQType.XRC, xrcd, cq, rnic.SRQAttr(max_wr=5, max_sge=6), srq_context="mine"
        )
        with ctx.create_srq_ex(init) as srq, ctx.create_srq_ex(rnic.SRQInitAttrEx(pd)) as plain:
            assert (srq.pd, srq.xrcd, srq.cq, srq.srq_context) == (pd, xrcd, cq, "mine")
            assert (plain.pd, plain.xrcd, plain.cq) == (pd, None, None)
            assert srq.get_srq_num() == 0x77
            with pytest.raises(rnic.VerbsError, match="only XRC") as caught:
                plain.get_srq_num()
            assert caught.value.errno == errno.EOPNOTSUPP
            with pytest.raises(rnic.VerbsError, match="in use by SRQ"):
                xrcd.close()
        with xrcd.create_qp() as qp, xrcd.open_qp(qp.qp_num, "other") as other:
            assert (qp.pd, qp.send_cq, qp.recv_cq, qp.srq, qp.xrcd) == (None, None, None, None, xrcd)
            assert (other.qp_num, other.qp_type, other.qp_context) == (
                qp.qp_num,
                rnic.QPType.XRC_RECV,
                "other",
            )
            with pytest.raises(rnic.VerbsError, match="in use by QP"):
                xrcd.close()
        with pd.create_qp(rnic.QPInitAttr(cq, qp_type=rnic.QPType.XRC_SEND)) as sender:
            sender.post_send(wr)
    assert recorder.take() == [
        "open_xrcd fd=-1 oflags=0x40",
        "open_xrcd fd=7 oflags=0x80",
        "create_srq_ex type=1 5,6,0 pd=1 xrcd=1 cq=1",
        "create_srq_ex type=0 128,4,0 pd=1 xrcd=0 cq=0",
        "destroy_srq",
        "destroy_srq",
        "create_xrc_qp type=10",
        f"open_qp {qp.qp_num} type=10 xrcd=1",
        f"destroy_qp {qp.qp_num}",
        f"destroy_qp {qp.qp_num}",
        "create_qp type=9 sig_all=0 cap=128,128,4,4,256",
        f"post_send qp={sender.qp_num} wr_id=1 opcode=2 flags=0 imm=00000000 rdma=0,0 srqn=119"
        f" sge={objects.mr.addr},8,{objects.mr.lkey}",
        f"destroy_qp {sender.qp_num}",
        "close_xrcd",
        "close_xrcd",
    ]


def test_memory_windows(objects: Objects) -> None:
    mr, qp = objects.mr, objects.qp
    info = rnic.MWBindInfo(mr, mr.addr + 8, 16, AccessFlags.REMOTE_READ)
    with objects.pd.alloc_mw(rnic.MWType.TYPE_1) as one, objects.pd.alloc_mw(rnic.MWType.TYPE_2) as two:
        assert (one.pd, one.type, two.type) == (objects.pd, rnic.MWType.TYPE_1, rnic.MWType.TYPE_2)
        first, second = one.rkey, two.rkey
        qp.bind_mw(one, rnic.MWBind(info, SendFlags.SIGNALED, 5))
        assert one.rkey == rnic.inc_rkey(first)
        wr = rnic.SendWR(6, WROpcode.BIND_MW, mw=two, rkey=second | 0x77, bind_info=rnic.MWBindInfo())
        qp.post_send(wr)
        assert two.rkey == second | 0x77
        assert one.query() == info
        with pytest.raises(rnic.VerbsError, match=r"MR .* is in use by MW rkey"):
            mr.close()
        one.bind(qp, rnic.MWBind(rnic.MWBindInfo()))
        objects.recorder.fail("bind_mw", errno.EINVAL, "not that")
        with pytest.raises(rnic.VerbsError, match="bind_mw: not that"):
            one.bind(qp, rnic.MWBind(info))
        assert one.query() == rnic.MWBindInfo()
    with pytest.raises(rnic.VerbsError, match="MW is closed"):
        qp.post_send(wr)
    assert [line for line in objects.recorder.take() if line != "query_mw"] == [
        "alloc_mw type=1",
        "alloc_mw type=2",
        f"bind_mw qp={qp.qp_num} wr_id=5 flags=2 bind={first},{first + 1},{mr.lkey},{mr.addr + 8},16,4",
        f"post_send qp={qp.qp_num} wr_id=6 opcode=8 flags=0 imm=00000000 "
        f"bind={second},{second | 0x77},0,0,0,0",
        f"bind_mw qp={qp.qp_num} wr_id=0 flags=0 bind={first + 1},{first + 2},0,0,0,0",
        f"bind_mw qp={qp.qp_num} wr_id=0 flags=0",
        f"dealloc_mw rkey={second | 0x77}",
        f"dealloc_mw rkey={first + 2}",
    ]


def test_the_lower_8_bits_of_a_key_are_counted_on() -> None:
    assert [rnic.inc_rkey(key) for key in (0, 0x12345678, 0xABCDEFFF)] == [1, 0x12345679, 0xABCDEF00]


def test_a_chain_to_a_shared_queue_that_breaks_names_the_request(objects: Objects) -> None:
    wrs = [rnic.RecvWR(i) for i in range(3)]
    with objects.pd.create_srq() as srq:
        objects.recorder.fail("post_srq_recv", errno.ENOMEM, "full", at=1)
        with pytest.raises(rnic.PostError, match="full") as caught:
            srq.post_recv(wrs)
        assert (caught.value.index, caught.value.bad_wr) == (1, wrs[1])


def test_rules_are_handed_over_in_libibverbs_layout(objects: Objects) -> None:
    ctx, qp = objects.recorder.context, objects.qp
    with ctx.create_counters() as counters:
        pointer = counters.pointer.to_bytes(8, sys.byteorder).hex()
        specs = (
            rnic.SpecEth("02:00:00:00:00:01", ether_type=0x800, vlan_tag=5, vlan_tag_mask=0xFFF),
            rnic.SpecIPv4(dst_ip="10.0.0.9", dst_ip_mask="255.255.255.0"),
            rnic.SpecUDP(dst_port=53),
            rnic.SpecActionTag(7),
            rnic.SpecActionDrop(),
            rnic.SpecActionCount(counters),
        )
        attr = rnic.FlowAttr(specs=specs, priority=4, flags=rnic.FlowFlags.DONT_TRAP)
        with qp.create_flow(attr) as flow:
            assert flow.qp is qp
            for used in (qp, counters):
                with pytest.raises(rnic.VerbsError, match="in use by Flow"):
                    used.close()
    eth = "20000000280002000000000100000000000008000005ffffffffffff000000000000ffff0fff0000"
    ipv4 = "3000000018000000000000000a00000900000000ffffff00"
    udp = "41000000100000350000ffff00000000"
    actions = "001000000c0000000700000001100000080000000310000010000000"
    assert objects.recorder.take() == [
        "create_counters",
        f"create_flow qp={qp.qp_num} 0,136,4,6,1,2 {eth}{ipv4}{udp}{actions}{pointer}",
        "destroy_flow",
        "destroy_counters",
    ]


def test_work_queues_and_their_tables(objects: Objects) -> None:
    ctx, receive = objects.recorder.context, rnic.RecvWR(7, [rnic.SGE(objects.mr, 0, 8)])
    with ctx.create_wq(rnic.WQInitAttr(objects.pd, objects.cq, 5, 6, wq_context="mine")) as wq:
        assert (wq.pd, wq.cq, wq.wq_context, wq.max_wr, wq.max_sge) == (objects.pd, objects.cq, "mine", 6, 6)
        assert wq.state is rnic.WQState.RDY
        wq.modify(rnic.WQAttr(wq_state=rnic.WQState.RDY, curr_wq_state=rnic.WQState.ERR))
        wq.post_recv([receive])
        objects.recorder.fail("post_wq_recv", errno.ENOMEM, "full", at=1)
        with pytest.raises(rnic.PostError, match="full") as caught:
            wq.post_recv([rnic.RecvWR(1), rnic.RecvWR(2)])
        assert caught.value.index == 1
        with pytest.raises(rnic.VerbsError, match="ind_tbl has 2 work queues, not 2\\*\\*2"):
            ctx.create_rwq_ind_table(rnic.RwqIndTableInitAttr(2, (wq, wq)))
        with ctx.create_rwq_ind_table(rnic.RwqIndTableInitAttr(1, (wq, wq))) as table:
            assert (table.ind_tbl, table.ind_tbl_num) == ((wq, wq), 9)
            conf = rnic.RxHashConf(bytes(range(40)), rnic.RxHashFields.SRC_IPV4 | rnic.RxHashFields.DST_IPV4)
            init = rnic.QPInitAttr(qp_type=rnic.QPType.RAW_PACKET, rwq_ind_tbl=table, rx_hash_conf=conf)
            with objects.pd.create_qp(init) as qp:
                parts: list[object] = [qp.rwq_ind_tbl, qp.send_cq, qp.recv_cq]
                assert parts == [table, None, None]
                with pytest.raises(rnic.VerbsError, match="RwqIndTable is in use by QP"):
                    table.close()
            with pytest.raises(rnic.VerbsError, match="is in use by RwqIndTable"):
                wq.close()
    number = wq.wq_num
    assert objects.recorder.take() == [
        "create_wq 0,5,6,0",
        "query_wq",
        "modify_wq mask=3 1,2,0,0",
        f"post_wq_recv wr_id=7 sge={objects.mr.addr},8,{objects.mr.lkey}",
        "post_wq_recv wr_id=1",
        f"create_rwq_ind_table 1: {number} {number}",
        "create_qp type=8 sig_all=0 cap=128,128,4,4,256",
        f"spread table=9 1,40,3 cqs=0,0 {bytes(range(40)).hex()}",
        f"destroy_qp {qp.qp_num}",
        "destroy_rwq_ind_table",
        "destroy_wq",
    ]


def test_what_frames_a_device_can_do(recorder: Recorder) -> None:
    with recorder.context as ctx:
        assert ctx.query_raw_packet() == rnic.RawPacketAttr(10, True, "no reason")
        device = ctx.query_device_ex()
        rss = rnic.RSSCaps(41, 42, 43, rnic.RxHashFields.SRC_IPV6, rnic.RxHashFunction.TOEPLITZ)
        assert (device.rss_caps, device.max_wq_type_rq) == (rss, 44)
        assert (device.raw_packet_caps, device.tso_caps) == (rnic.RawPacketCaps.IP_CSUM, rnic.TSOCaps(45, 46))


def test_modify_hands_over_every_attribute(objects: Objects) -> None:
    path = rnic.AHAttr("10.1.2.3", 1, 2, 3, 4, 5, 6, 7, True, 8, 9)  # type: ignore[arg-type]
    attr = rnic.QPAttr(
        qp_state=QPState.RTR,
        cur_qp_state=QPState.INIT,
        path_mtu=rnic.MTU.MTU_4096,
        path_mig_state=rnic.MigState.ARMED,
        qkey=10,
        rq_psn=11,
        sq_psn=12,
        dest_qp_num=13,
        qp_access_flags=AccessFlags.REMOTE_WRITE,
        cap=rnic.QPCap(14, 15, 16, 17, 18),
        ah_attr=path,
        alt_ah_attr=path,
        pkey_index=19,
        alt_pkey_index=20,
        en_sqd_async_notify=True,
        sq_draining=True,
        max_rd_atomic=21,
        max_dest_rd_atomic=22,
        min_rnr_timer=23,
        port_num=24,
        timeout=25,
        retry_cnt=6,
        rnr_retry=7,
        alt_port_num=26,
        alt_timeout=27,
        rate_limit=28,
    )
    objects.qp.modify(attr)
    where = "00000000000000000000ffff0a010203,5,1,3,4,7,6,9,8,1,2"
    everything = 0x21FFFFF
    assert objects.recorder.take() == [
        f"modify_qp mask=0x{everything:x} state=2,1 mtu=5 mig=2 qkey=10 psn=11,12 dest=13 access=2 "
        f"cap=14,15,16,17,18 ah={where} alt={where} pkey=19,20 sqd=1,1 rd=21,22 rnr=23 port=24 "
        "timeout=25 retry=6,7 alt=26,27 rate=28"
    ]
    queried, init = objects.qp.query()
    assert queried == attr
    assert init == rnic.QPInitAttr(objects.cq, objects.cq, cap=objects.qp.cap)
    assert objects.qp.state is QPState.RTR
    assert repr(objects.qp) == f"<QP 0x{objects.qp.qp_num:06x} RC RTR>"


@pytest.mark.parametrize(
    ("attr", "mask"),
    [
        ({"qp_state": QPState.RESET}, 1),
        ({"qp_access_flags": AccessFlags(0)}, 1 << 3),
        ({"pkey_index": 0, "port_num": 1}, 1 << 4 | 1 << 5),
        ({"alt_timeout": 3}, 1 << 14),
        ({}, 0),
    ],
)
def test_what_is_set_is_what_counts(objects: Objects, attr: dict[str, Any], mask: int) -> None:
    objects.qp.modify(rnic.QPAttr(**attr))
    assert objects.recorder.take()[0].startswith(f"modify_qp mask=0x{mask:x} ")


def test_a_mask_wins_but_must_not_lie(objects: Objects) -> None:
    attr = rnic.QPAttr(qp_state=QPState.INIT, port_num=1)
    objects.qp.modify(attr, rnic.QPAttrMask.STATE)
    assert objects.recorder.take()[0].startswith("modify_qp mask=0x1 ")
    with pytest.raises(rnic.VerbsError, match="the mask names pkey_index, which attr does not set") as caught:
        objects.qp.modify(attr, rnic.QPAttrMask.STATE | rnic.QPAttrMask.PKEY_INDEX)
    assert caught.value.errno == errno.EINVAL
    assert objects.recorder.take() == []


def test_statistics(objects: Objects) -> None:
    stats = objects.qp.statistics()
    assert stats.counters.tx_packets == 12
    assert dataclasses.astuple(stats)[1:] == tuple(range(1, 13))


def test_a_chain_of_sends(objects: Objects) -> None:
    mr, qp = objects.mr, objects.qp
    write = rnic.SendWR(
        1, WROpcode.RDMA_WRITE_WITH_IMM, SendFlags.SIGNALED | SendFlags.FENCE, [rnic.SGE(mr, 8, 16)]
    )
    write.remote_addr, write.rkey, write.imm_data = 1 << 40, 77, 0x01020304
    swap = rnic.SendWR(
        2,
        WROpcode.ATOMIC_CMP_AND_SWP,
        sg_list=[rnic.SGE(addr=1, length=8, lkey=3)],
        remote_addr=8,
        rkey=9,
        compare_add=10,
        swap=11,
    )
    invalidate = rnic.SendWR(3, WROpcode.SEND_WITH_INV, invalidate_rkey=0xAABBCCDD)
    qp.post_send([write, swap, invalidate])
    number = qp.qp_num
    assert objects.recorder.take() == [
        f"post_send qp={number} wr_id=1 opcode=1 flags=3 imm=04030201 rdma={1 << 40},77 "
        f"sge={mr.addr + 8},16,{mr.lkey}",
        f"post_send qp={number} wr_id=2 opcode=5 flags=0 imm=00000000 atomic=8,10,11,9 sge=1,8,3",
        f"post_send qp={number} wr_id=3 opcode=9 flags=0 imm=aabbccdd rdma=0,0",
    ]
    swap.opcode, swap.wr_id, swap.sg_list = WROpcode.RDMA_READ, 5, (rnic.SGE(mr, length=1), rnic.SGE(mr, 1))
    qp.post_send(swap)
    assert objects.recorder.take() == [
        f"post_send qp={number} wr_id=5 opcode=4 flags=0 imm=00000000 rdma=8,9 "
        f"sge={mr.addr},1,{mr.lkey} sge={mr.addr + 1},4095,{mr.lkey}"
    ]


def test_receives(objects: Objects) -> None:
    mr, number = objects.mr, objects.qp.qp_num
    wr = rnic.RecvWR(9, [rnic.SGE(mr)])
    objects.qp.post_recv(wr)
    objects.qp.post_recv((wr, rnic.RecvWR(10)))
    line = f"post_recv qp={number} wr_id=9 sge={mr.addr},4096,{mr.lkey}"
    assert objects.recorder.take() == [line, line, f"post_recv qp={number} wr_id=10"]


def test_a_refused_work_request_is_named(objects: Objects) -> None:
    chain = [rnic.SendWR(i) for i in range(4)]
    objects.recorder.fail("post_send", errno.ENOMEM, "the send queue is full", at=2)
    with pytest.raises(rnic.PostError, match="post_send: the send queue is full") as caught:
        objects.qp.post_send(chain)
    assert caught.value.bad_wr is chain[2]
    assert (caught.value.index, caught.value.errno, caught.value.verb) == (2, errno.ENOMEM, "post_send")
    assert len(objects.recorder.take()) == 2
    objects.qp.post_send(chain)
    receives = [rnic.RecvWR(i) for i in range(2)]
    objects.recorder.fail("post_recv", errno.EINVAL, "", at=1)
    with pytest.raises(rnic.PostError, match="post_recv: Invalid argument") as caught:
        objects.qp.post_recv(receives)
    assert caught.value.bad_wr is receives[1]


def test_completions(objects: Objects) -> None:
    for i in range(100):
        objects.recorder.complete(wr_id=i, opcode=WCOpcode.RDMA_READ, byte_len=i, qp_num=5)
    assert [wc.wr_id for wc in objects.cq.poll(3)] == [0, 1, 2]
    with objects.ctx.create_cq(128) as cq:
        rest = cq.poll(1000)
    assert [wc.byte_len for wc in rest] == list(range(3, 100))
    assert rest[0].opcode is WCOpcode.RDMA_READ
    assert rest[0].status is WCStatus.SUCCESS
    assert rest[0].ok
    assert rest[0].imm_data is None
    assert rest[0].explain() == "wr_id 3 on QP 0x000005: completed"
    assert objects.cq.poll() == []
    log = objects.recorder.take()
    assert [line for line in log if "poll" in line] == [
        "poll_cq 3",
        "poll_cq 128",
        "poll_cq 1",
    ]


def test_a_completion_with_everything(objects: Objects) -> None:
    objects.recorder.complete(
        wr_id=2**64 - 1,
        status=0,
        opcode=129,
        vendor_err=0,
        byte_len=7,
        imm_data=0x04030201,
        qp_num=5,
        src_qp=6,
        wc_flags=3,
        pkey_index=8,
        slid=9,
        sl=10,
        dlid_path_bits=11,
    )
    (wc,) = objects.cq.poll()
    assert (wc.wr_id, wc.opcode, wc.imm_data) == (2**64 - 1, WCOpcode.RECV_RDMA_WITH_IMM, 0x01020304)
    assert wc.wc_flags == WCFlags.GRH | WCFlags.WITH_IMM
    assert (wc.src_qp, wc.pkey_index, wc.slid, wc.sl, wc.dlid_path_bits) == (6, 8, 9, 10, 11)
    assert wc.invalidated_rkey is None


def test_a_failed_completion_explains_itself(objects: Objects) -> None:
    causes = [name for name, _ in nic.vendor_err_texts()]
    objects.recorder.complete(
        wr_id=4, status=WCStatus.LOC_PROT_ERR, vendor_err=causes.index("SGE_PD"), qp_num=5
    )
    (wc,) = objects.cq.poll()
    assert not wc.ok
    assert "LOC_PROT_ERR, local side" in wc.explain()
    assert "belongs to another protection domain" in wc.explain()
    assert repr(wc) == "<WC 4 QP 0x000005 LOC_PROT_ERR>"


@pytest.mark.parametrize("status", WCStatus)
def test_every_status_explains_itself(objects: Objects, status: WCStatus) -> None:
    causes = [name for name, _ in nic.vendor_err_texts()]
    objects.recorder.complete(wr_id=4, status=status, vendor_err=causes.index("SGE_PD"), qp_num=5)
    text = objects.cq.poll()[0].explain()
    assert text.startswith("wr_id 4 on QP 0x000005: ")
    if status is WCStatus.SUCCESS:
        assert text.endswith("completed")
        return
    for words in (
        f"{status.name}, ",
        " side",
        "(a scatter/gather element's memory region belongs",
        "Look here: ",
    ):
        assert words in text


def test_statuses_and_causes_that_nobody_knows_are_no_crash(objects: Objects) -> None:
    objects.recorder.complete(wr_id=4, status=99, vendor_err=0xFFFFFFFF, qp_num=1)
    assert objects.cq.poll()[0].explain() == "wr_id 4 on QP 0x000001: status 99, which rnic does not know"
    objects.recorder.complete(wr_id=4, status=WCStatus.LOC_PROT_ERR, vendor_err=0xFFFFFFFF, qp_num=1)
    assert "(" not in objects.cq.poll()[0].explain().split("Look here")[0]


def test_an_overrun_queue_raises(objects: Objects) -> None:
    objects.recorder.fail("poll_cq", errno.EOVERFLOW)
    with pytest.raises(rnic.VerbsError, match="overran") as caught:
        objects.cq.poll(4)
    assert caught.value.errno == errno.EOVERFLOW


def test_pkeys_reach_the_provider_in_order(recorder: Recorder) -> None:
    with recorder.context as ctx:
        ctx.set_pkeys([0xFFFF, 0, 0x8001])
        ctx.set_pkeys((key for key in [1]), 2)
        assert recorder.take() == ["set_pkeys 1 ffff 0000 8001", "set_pkeys 2 0001"]


@pytest.mark.parametrize(
    "verb",
    [
        "alloc_pd",
        "create_comp_channel",
        "create_cq",
        "query_device",
        "query_port",
        "query_gid",
        "query_pkey",
        "query_counters",
        "set_fault",
        "get_async_event",
        "set_pkeys",
    ],
)
def test_a_verb_of_the_context_raises_what_the_provider_says(recorder: Recorder, verb: str) -> None:
    calls = {
        "create_cq": lambda ctx: ctx.create_cq(1),
        "query_port": lambda ctx: ctx.query_port(1),
        "query_gid": lambda ctx: ctx.query_gid(1, 0),
        "query_pkey": lambda ctx: ctx.query_pkey(1, 0),
        "query_counters": lambda ctx: ctx.counters(),
        "set_fault": lambda ctx: ctx.set_faults(None),
        "get_async_event": lambda ctx: ctx.get_async_event(0),
        "set_pkeys": lambda ctx: ctx.set_pkeys([0xFFFF]),
    }
    with recorder.context as ctx:
        recorder.fail(verb, errno.EIO, "the disk is on fire")
        with pytest.raises(rnic.VerbsError, match=f"^{verb}: the disk is on fire .EIO.$") as caught:
            calls.get(verb, lambda ctx: getattr(ctx, verb)())(ctx)
        assert (caught.value.errno, caught.value.verb) == (errno.EIO, verb)


@pytest.mark.parametrize(
    "verb",
    [
        "reg_mr",
        "alloc_mr",
        "create_qp",
        "modify_qp",
        "query_qp",
        "query_qp_stats",
        "resize_cq",
        "req_notify_cq",
    ],
)
def test_a_verb_of_an_object_raises_what_the_provider_says(objects: Objects, verb: str) -> None:
    o = objects
    calls: dict[str, Any] = {
        "reg_mr": lambda: o.pd.reg_mr(bytearray(1), 1),
        "alloc_mr": lambda: o.pd.alloc_mr(1, 1),
        "create_qp": lambda: o.pd.create_qp(rnic.QPInitAttr(o.cq, o.cq)),
        "modify_qp": lambda: o.qp.modify(rnic.QPAttr()),
        "query_qp": o.qp.query,
        "query_qp_stats": o.qp.statistics,
        "resize_cq": lambda: o.cq.resize(1),
        "req_notify_cq": o.cq.req_notify,
    }
    o.recorder.fail(verb, errno.ENOMEM)
    with pytest.raises(rnic.VerbsError, match=f"^{verb}: Cannot allocate memory"):
        calls[verb]()


def test_the_destroying_verbs_raise_and_change_nothing(objects: Objects) -> None:
    o = objects
    for verb, thing in [("destroy_qp", o.qp), ("dereg_mr", o.mr)]:
        o.recorder.fail(verb, errno.EBUSY, "not now")
        with pytest.raises(rnic.VerbsError, match=f"^{verb}: not now"):
            thing.close()
        assert not thing.closed


def test_extended_queues_moderation_and_clocks(recorder: Recorder) -> None:
    stamps = rnic.CreateCQWCFlags.WITH_COMPLETION_TIMESTAMP | rnic.CreateCQWCFlags.WITH_BYTE_LEN
    with recorder.context as ctx, ctx.create_comp_channel() as channel:
        assert ctx.num_comp_vectors == 4
        device = ctx.query_device_ex()
        assert device.orig_attr == ctx.query_device()
        assert (device.completion_timestamp_mask, device.hca_core_clock) == (33, 34)
        assert device.cq_mod_caps == rnic.CQModerationCaps(35, 36)
        assert ctx.query_rt_values_ex() == rnic.ValuesEx(rnic.ValuesMask.RAW_CLOCK, 3_000_000_005)
        assert ctx.query_rt_values_ex(rnic.ValuesMask(0)).raw_clock is None
        recorder.take()
        with ctx.create_cq(5, comp_vector=3):
            pass
        single = rnic.CreateCQAttrFlags.SINGLE_THREADED
        init = rnic.CQInitAttrEx(9, "mine", channel, 2, stamps, flags=single)
        with ctx.create_cq_ex(init) as cq:
            assert (cq.cqe, cq.channel, cq.cq_context) == (9, channel, "mine")
            assert repr(cq) == "<CQEX of 9>"
            cq.modify(rnic.ModifyCQAttr(rnic.ModerateCQ(7, 8)))
            cq.modify(rnic.ModifyCQAttr())
            recorder.cq_event()
            assert channel.get_cq_event(0) is cq
            cq.ack_events()
            for i in (4, 5):
                recorder.complete(wr_id=i, byte_len=10 * i, status=0)
            assert cq.start_poll()
            assert (cq.wr_id, cq.status, cq.read_byte_len()) == (4, WCStatus.SUCCESS, 40)
            assert cq.read_completion_ts() == 1004
            assert cq.next_poll()
            assert (cq.wr_id, cq.read_completion_ts()) == (5, 1005)
            assert not cq.next_poll()
            cq.end_poll()
            recorder.fail("poll_cq", errno.EBUSY)
            with pytest.raises(rnic.VerbsError, match="SINGLE_THREADED, and another thread"):
                cq.start_poll()
    assert [line for line in recorder.take() if "cq" in line] == [
        "create_cq 5 channel=0 vector=3",
        "destroy_cq",
        "create_cq_ex 9 channel=1 vector=2 wc_flags=81 mask=1 flags=1 parent=0",
        "modify_cq mask=1 7,8",
        "modify_cq mask=0 0,0",
        "get_cq_event",
        "ack_cq_events 1",
        "poll_cq 1",
        "poll_cq 1",
        "poll_cq 1",
        "poll_cq 1",
        "destroy_cq",
    ]


def test_counters_of_completions_and_flows(objects: Objects) -> None:
    ctx, qp = objects.ctx, objects.qp
    assert ctx.query_comp_cntr_caps() == rnic.CompCntrCaps(
        1, 2, rnic.QPAttachCompCntrOp.SEND | rnic.QPAttachCompCntrOp.RECV
    )
    init = rnic.CompCntrInitAttr(type=rnic.CompCntrType.BYTES)
    with ctx.create_comp_cntr(init) as counter, ctx.create_counters() as flows:
        counter.set(1 << 63)
        counter.inc()
        counter.set_err(4)
        counter.inc_err(5)
        assert (counter.read(), counter.read_err()) == ((1 << 63) + 1, 9)
        flows.attach_counters_point_flow(rnic.CounterAttachAttr(rnic.CounterDescription.BYTES, 6))
        assert flows.read(3, rnic.ReadCountersFlags.PREFER_CACHED) == [100, 101, 102]
        assert flows.read(0) == []
        with pytest.raises(OverflowError):
            counter.set(-1)
    with ctx.create_comp_cntr() as counter:
        qp.attach_comp_cntr(counter, rnic.QPAttachCompCntrAttr(rnic.QPAttachCompCntrOp.REMOTE_RDMA_WRITE))
        qp.attach_comp_cntr(counter, rnic.QPAttachCompCntrAttr(rnic.QPAttachCompCntrOp.SEND))
        with pytest.raises(rnic.VerbsError, match="CompCntr is in use by QP") as caught:
            counter.close()
        assert caught.value.errno == errno.EBUSY
        qp.close()
    number = qp.qp_num
    assert objects.recorder.take() == [
        "query_comp_cntr_caps",
        "create_comp_cntr 0,1,0",
        "create_counters",
        "set_comp_cntr 0 9223372036854775808",
        "inc_comp_cntr 0 1",
        "set_comp_cntr 1 4",
        "inc_comp_cntr 1 5",
        "read_comp_cntr 0",
        "read_comp_cntr 1",
        "attach_counters_point_flow 1,6,0 flow=0",
        "read_counters 3 flags=1",
        "read_counters 0 flags=0",
        "destroy_counters",
        "destroy_comp_cntr",
        "create_comp_cntr 0,0,0",
        f"attach_comp_cntr qp={number} cntr=1 ops=32",
        f"attach_comp_cntr qp={number} cntr=1 ops=1",
        f"destroy_qp {number}",
        "destroy_comp_cntr",
    ]
