# SPDX-License-Identifier: Apache-2.0
"""RAW_PACKET queue pairs: whole frames, steered by rules, within a context and by a network device."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest

import rnic
from rnic import (
    SGE,
    CounterAttachAttr,
    CounterDescription,
    Faults,
    FlowAttr,
    FlowAttrType,
    FlowFlags,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    ReadCountersFlags,
    RecvWR,
    SendFlags,
    SendWR,
    SpecActionCount,
    SpecActionDrop,
    SpecActionTag,
    SpecEth,
    SpecIPv4,
    SpecIPv4Ext,
    SpecIPv6,
    SpecTCP,
    SpecUDP,
    SRQAttr,
    SRQInitAttr,
    VerbsError,
    WCFlags,
    WCStatus,
    WROpcode,
)
from transport.frames import GROUP, MAC_A, MAC_B, SLOT, TCP, UDP, Frames, Queue, ethernet, ip, mac, to_rts

pytestmark = pytest.mark.roce

ANY = ethernet(b"x" * 50)


@pytest.fixture
def frames() -> Iterator[Frames]:
    with Frames() as one:
        yield one


# ---------------------------------------------------------------- from queue pair to queue pair


@pytest.mark.parametrize("nbytes", [14, 15, 60, 1500, SLOT])
def test_a_frame_arrives_byte_for_byte(frames: Frames, nbytes: int) -> None:
    a, b = frames.queue(), frames.queue()
    b.flow(SpecEth(dst_mac=MAC_B))
    frame = (ethernet(b"") + bytes(i % 251 for i in range(nbytes)))[:nbytes]
    assert a.send(frame).ok
    (wc,) = b.wait()
    assert (wc.ok, wc.opcode, wc.byte_len, wc.qp_num) == (True, rnic.WCOpcode.RECV, nbytes, b.qp.qp_num)
    assert b.frame(wc) == frame
    assert (wc.flow_tag, wc.wc_flags, wc.imm_data) == (0, 0, None)
    assert a.nothing()


def test_a_frame_is_gathered_from_pieces_and_inline_and_scattered(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue(slots=0)
    b.flow(SpecEth(dst_mac=MAC_B))
    pieces = [SGE(b.mr, at, n) for at, n in ((0, 14), (100, 1), (200, 1000))]
    b.qp.post_recv([RecvWR(i, pieces) for i in range(2)])
    frame = ethernet(bytes(range(200)))
    a.mr.buf[: len(frame)] = frame
    parts = [SGE(a.mr, 0, 5), SGE(a.mr, 5, 100), SGE(a.mr, 105, len(frame) - 105)]
    for flags in (SendFlags.SIGNALED, SendFlags.SIGNALED | SendFlags.INLINE):
        a.qp.post_send(SendWR(1, send_flags=flags, sg_list=parts))
        assert a.wait()[0].ok
        assert b.wait()[0].ok
        assert bytes(b.mr.buf[:14]) + bytes(b.mr.buf[100:101]) == frame[:15]
        assert bytes(b.mr.buf[200 : 200 + len(frame) - 15]) == frame[15:]
        b.mr.buf[:2000] = bytes(2000)


def test_nobody_gets_a_frame_without_a_rule(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue()
    assert a.send(ANY).ok
    assert b.nothing()
    assert frames.ctx.counters().drop_no_flow == 1


def test_a_queue_pair_does_not_get_its_own_frames(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue()
    for one in (a, b):
        one.flow(SpecEth(dst_mac=MAC_B))
    a.send(ANY)
    assert b.take() == [ANY]
    assert a.nothing()


def test_frames_reach_the_rules_of_other_contexts(frames: Frames) -> None:
    if not frames.ctx.query_raw_packet().wire:
        pytest.skip(frames.ctx.query_raw_packet().why)
    with Frames() as other:
        a, near, far = frames.queue(), frames.queue(), other.queue()
        for one in (a, near, far):
            one.flow(SpecEth(dst_mac=MAC_B))
        for frame in (ANY, ethernet(b"second")):
            a.send(frame)
            assert (near.take(), far.take()) == ([frame], [frame])
        assert a.nothing()
        assert near.nothing()


def test_a_packet_that_says_it_is_longer_matches_by_its_headers(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue()
    b.flow(SpecEth(dst_mac=MAC_B), SpecIPv6(dst_ip="fd00::2"), SpecTCP(dst_port=80))
    whole = ip(b"data", "fd00::1", "fd00::2", TCP, dport=80)
    longer = whole[:18] + (999).to_bytes(2, "big") + whole[20:]
    a.send(longer)
    assert b.take() == [longer]


def test_frames_may_come_into_shared_receives(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue()
    with frames.pd.create_srq(SRQInitAttr(SRQAttr(max_wr=4, max_sge=1))) as srq:
        init = QPInitAttr(b.cq, b.cq, QPType.RAW_PACKET, srq=srq)
        with frames.pd.create_qp(init) as qp, qp.create_flow(FlowAttr(specs=(SpecEth(MAC_B),))):
            to_rts(qp)
            srq.post_recv(RecvWR(3, [SGE(b.mr, 3 * SLOT, SLOT)]))
            a.send(ANY)
            a.send(ANY)
            assert b.take() == [ANY]
    assert frames.ctx.counters().drop_no_receive == 1


def test_a_frame_without_a_receive_is_dropped_and_counted(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue(slots=1)
    b.flow(SpecEth(dst_mac=MAC_B))
    a.send(ANY)
    a.send(ANY)
    assert b.take() == [ANY]
    assert b.nothing()
    assert b.qp.statistics().counters.drop_no_receive == 1


def test_a_receive_that_is_too_small_fails_and_stops_its_queue_pair(frames: Frames) -> None:
    a, b = frames.queue(), Queue(frames, 2, len(ANY) - 1)
    b.flow(SpecEth(dst_mac=MAC_B))
    assert a.send(ANY).ok
    assert [wc.status for wc in b.wait(2)] == [WCStatus.LOC_LEN_ERR, WCStatus.WR_FLUSH_ERR]
    assert b.qp.state is QPState.ERR
    a.send(ANY)
    assert frames.ctx.counters().drop_bad_state == 1


def test_a_receive_into_foreign_memory_fails(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue(slots=0)
    b.flow(SpecEth(dst_mac=MAC_B))
    b.qp.post_recv(RecvWR(1, [SGE(addr=b.mr.addr, length=2000, lkey=b.mr.lkey ^ 1)]))
    a.send(ANY)
    assert b.wait()[0].status is WCStatus.LOC_PROT_ERR
    assert b.qp.state is QPState.ERR


def test_nothing_is_received_before_rtr(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue(slots=0)
    b.flow(SpecEth(dst_mac=MAC_B))
    b.qp.modify(QPAttr(qp_state=QPState.RESET))
    b.qp.modify(QPAttr(qp_state=QPState.INIT, port_num=1))
    b.qp.post_recv(RecvWR(0, [SGE(b.mr, 0, SLOT)]))
    a.send(ANY)
    assert b.nothing()
    b.qp.modify(QPAttr(qp_state=QPState.RTR))
    a.send(ANY)
    assert b.take() == [ANY]


# ---------------------------------------------------------------- sends that fail


@pytest.mark.parametrize("nbytes", [0, 13])
def test_a_send_that_is_no_frame_fails_and_the_send_queue_stops(frames: Frames, nbytes: int) -> None:
    a = frames.queue()
    assert a.send(bytes(nbytes)).status is WCStatus.LOC_LEN_ERR
    assert a.qp.state is QPState.SQE
    assert a.send(ANY).status is WCStatus.WR_FLUSH_ERR
    a.qp.modify(QPAttr(qp_state=QPState.RTS))
    assert a.send(ANY).ok


def test_a_send_of_foreign_memory_fails(frames: Frames) -> None:
    a = frames.queue()
    sge = SGE(addr=a.mr.addr, length=60, lkey=a.mr.lkey ^ 1)
    a.qp.post_send(SendWR(1, send_flags=SendFlags.SIGNALED, sg_list=[sge]))
    assert a.wait()[0].status is WCStatus.LOC_PROT_ERR


def test_a_send_that_is_longer_than_the_mtu_fails(frames: Frames) -> None:
    a, longest = frames.queue(), frames.ctx.query_raw_packet().max_frame
    assert a.send(bytes(longest)).ok
    assert a.send(bytes(longest + 1)).status is WCStatus.LOC_LEN_ERR
    a.qp.modify(QPAttr(qp_state=QPState.RTS))
    assert a.send(ethernet(bytes(longest - 14), vlan=5)).ok
    assert a.send(ethernet(bytes(longest - 13), vlan=5)).status is WCStatus.LOC_LEN_ERR


@pytest.mark.parametrize(
    ("opcode", "why"),
    [
        (WROpcode.SEND_WITH_IMM, errno.EINVAL),
        (WROpcode.RDMA_WRITE, errno.EINVAL),
        (WROpcode.TSO, errno.EOPNOTSUPP),
    ],
)
def test_other_operations_are_refused(frames: Frames, opcode: WROpcode, why: int) -> None:
    with pytest.raises(rnic.PostError, match="a RAW_PACKET queue pair can SEND, nothing else") as caught:
        frames.queue().qp.post_send(SendWR(1, opcode))
    assert caught.value.errno == why


# ---------------------------------------------------------------- states


def test_a_raw_packet_queue_pair_needs_its_port_and_nothing_else(frames: Frames) -> None:
    a = frames.queue()
    with frames.pd.create_qp(QPInitAttr(a.cq, a.cq, QPType.RAW_PACKET)) as qp:
        with pytest.raises(VerbsError, match="RESET -> INIT needs port_num"):
            qp.modify(QPAttr(qp_state=QPState.INIT))
        with pytest.raises(VerbsError, match="RESET -> INIT does not take qkey"):
            qp.modify(QPAttr(qp_state=QPState.INIT, port_num=1, qkey=1))
        to_rts(qp)
        qp.modify(QPAttr(qp_state=QPState.SQD, en_sqd_async_notify=True))
        assert frames.ctx.get_async_event(60).event_type is rnic.EventType.SQ_DRAINED
        qp.modify(QPAttr(qp_state=QPState.RTS))
        qp.modify(QPAttr(qp_state=QPState.ERR))
        qp.post_recv(RecvWR(9, [SGE(a.mr, 0, SLOT)]))
        assert a.wait()[0].status is WCStatus.WR_FLUSH_ERR


def test_a_rate_may_come_with_a_change_of_state(frames: Frames) -> None:
    a = frames.queue()
    a.qp.modify(QPAttr(rate_limit=8000))
    assert a.qp.query()[0].rate_limit == 8000
    a.qp.modify(QPAttr(qp_state=QPState.RTS, rate_limit=0))
    assert a.qp.query()[0].rate_limit == 0
    with pytest.raises(VerbsError, match="rate_limit is 4294967295"):
        a.qp.modify(QPAttr(rate_limit=2**32 - 1))


def test_the_device_says_what_it_can_do_with_frames(frames: Frames) -> None:
    caps = frames.ctx.query_device().device_cap_flags
    assert caps & rnic.DeviceCap.MANAGED_FLOW_STEERING
    assert caps & rnic.DeviceCap.RAW_IP_CSUM
    attr, extended = frames.ctx.query_raw_packet(), frames.ctx.query_device_ex()
    assert attr.wire or "CAP_NET_RAW" in attr.why
    assert extended.tso_caps == rnic.TSOCaps(0, 0)
    assert extended.raw_packet_caps == rnic.RawPacketCaps.IP_CSUM
    assert extended.rss_caps.supported_qpts == 1 << QPType.RAW_PACKET


def test_packets_of_a_transport_are_not_for_it(frames: Frames) -> None:
    a = frames.queue()
    a.flow(type=FlowAttrType.SNIFFER)
    path = rnic.AHAttr(dgid=frames.ctx.query_gid(1, 0))
    init = QPInitAttr(a.cq, a.cq, QPType.UD)
    with frames.pd.create_qp(init) as qp, frames.pd.create_ah(path) as ah:
        qp.modify(QPAttr(qp_state=QPState.INIT, port_num=1, pkey_index=0, qkey=7))
        qp.modify(QPAttr(qp_state=QPState.RTR))
        qp.modify(QPAttr(qp_state=QPState.RTS, sq_psn=0))
        sge = [SGE(a.mr, 0, 10)]
        qp.post_send(SendWR(1, sg_list=sge, ah=ah, remote_qpn=a.qp.qp_num, remote_qkey=7))
        deadline = monotonic() + 60
        while not frames.ctx.counters().drop_bad_opcode and monotonic() < deadline:
            assert a.nothing()
    assert a.qp.statistics().counters.drop_bad_opcode == 1


# ---------------------------------------------------------------- checksums


@pytest.mark.parametrize("proto", [TCP, UDP])
@pytest.mark.parametrize("data", [b"", b"odd", b"even" * 100])
def test_checksums_are_written_and_verified(frames: Frames, proto: int, data: bytes) -> None:
    a, b = frames.queue(), frames.queue()
    b.flow(SpecEth(dst_mac=MAC_B))
    right, wrong = ip(data, proto=proto), ip(data, proto=proto, csum=False)
    a.send(wrong)
    (wc,) = b.wait()
    assert (b.frame(wc), wc.wc_flags) == (wrong, 0)
    a.send(wrong, SendFlags.IP_CSUM)
    (wc,) = b.wait()
    assert (b.frame(wc), wc.wc_flags) == (right, WCFlags.IP_CSUM_OK)


def test_ipv6_has_a_checksum_in_its_transport_alone(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue()
    b.flow(SpecEth(dst_mac=MAC_B))
    six = {"src": "fd00::1", "dst": "fd00::2", "vlan": 7}
    a.send(ip(b"abc", csum=False, **six), SendFlags.IP_CSUM)
    (wc,) = b.wait()
    assert (b.frame(wc), wc.wc_flags) == (ip(b"abc", **six), 0)


def test_a_datagram_without_a_checksum_is_right(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue()
    b.flow(SpecEth(dst_mac=MAC_B))
    frame = bytearray(ip(b"abc"))
    frame[14 + 20 + 6 : 14 + 20 + 8] = b"\0\0"
    a.send(bytes(frame))
    assert b.wait()[0].wc_flags == WCFlags.IP_CSUM_OK


def test_checksums_are_for_raw_packet_queue_pairs() -> None:
    with (
        rnic.testing.Pair() as pair,
        pytest.raises(rnic.PostError, match="send flags 0x10 are not supported"),
    ):
        pair.a.qp.post_send(SendWR(1, send_flags=SendFlags.IP_CSUM))


# ---------------------------------------------------------------- rules


MATCHES: list[tuple[str, tuple[Any, ...], bytes, bytes]] = [
    ("dst_mac", (SpecEth(dst_mac=MAC_B),), ethernet(b"", dst=MAC_B), ethernet(b"", dst=MAC_A)),
    ("src_mac", (SpecEth(src_mac=mac(MAC_A)),), ethernet(b"", src=MAC_A), ethernet(b"", src=MAC_B)),
    ("mac mask", (SpecEth(dst_mac=GROUP, dst_mac_mask="01:00:00:00:00:00"),), ethernet(b"", GROUP), ANY),
    ("ether_type", (SpecEth(ether_type=0x800),), ip(), ethernet(b"")),
    ("ether_type behind a tag", (SpecEth(ether_type=0x800),), ip(vlan=3), ethernet(b"", vlan=3)),
    ("vlan", (SpecEth(vlan_tag=3, vlan_tag_mask=0xFFF),), ip(vlan=0xE003), ip(vlan=4)),
    ("vlan 0 is not none", (SpecEth(vlan_tag=0, vlan_tag_mask=0xFFF),), ip(vlan=0), ip()),
    ("ipv4", (SpecIPv4(),), ip(), ip(src="fd00::1", dst="fd00::2")),
    ("src_ip", (SpecIPv4(src_ip="10.0.0.1"),), ip(), ip(src="10.0.0.3")),
    ("dst_ip", (SpecIPv4(dst_ip="10.0.0.2"),), ip(), ip(dst="10.0.0.3")),
    ("net", (SpecIPv4(dst_ip="10.0.0.0", dst_ip_mask="255.255.255.0"),), ip(), ip(dst="10.0.1.2")),
    ("proto", (SpecIPv4Ext(proto=TCP),), ip(proto=TCP), ip(proto=UDP)),
    ("ttl", (SpecIPv4Ext(ttl=9),), ip(ttl=9), ip(ttl=8)),
    ("tos", (SpecIPv4Ext(tos=0xB8, tos_mask=0xFC),), ip(tos=0xB9), ip(tos=0x10)),
    ("flags", (SpecIPv4Ext(flags=2),), ip(fragment=0x4000), ip()),
    ("more fragments", (SpecIPv4Ext(flags=4, flags_mask=4),), ip(fragment=0x2000), ip(fragment=0x4000)),
    ("ipv6", (SpecIPv6(),), ip(src="fd00::1", dst="fd00::2"), ip()),
    (
        "ipv6 src",
        (SpecIPv6(src_ip="fd00::1"),),
        ip(src="fd00::1", dst="fd00::2"),
        ip(src="fd00::3", dst="fd00::2"),
    ),
    (
        "ipv6 net",
        (SpecIPv6(dst_ip="fd00::", dst_ip_mask="ffff::"),),
        ip(src="fd00::1", dst="fd00::2"),
        ip(src="fd00::1", dst="fe80::2"),
    ),
    (
        "ipv6 rest",
        (SpecIPv6(next_hdr=UDP, traffic_class=8, hop_limit=3, flow_label=0),),
        ip(src="fd00::1", dst="fd00::2", ttl=3, tos=8),
        ip(src="fd00::1", dst="fd00::2", ttl=4, tos=8),
    ),
    ("udp", (SpecUDP(),), ip(), ip(proto=TCP)),
    ("tcp port", (SpecTCP(dst_port=80),), ip(proto=TCP, dport=80), ip(proto=TCP, dport=81)),
    ("udp ports", (SpecUDP(dst_port=53, src_port=9),), ip(sport=9, dport=53), ip(sport=8, dport=53)),
    ("port is of its protocol", (SpecTCP(dst_port=80),), ip(proto=TCP, dport=80), ip(proto=UDP, dport=80)),
    ("no ports in a fragment", (SpecUDP(dst_port=53),), ip(dport=53), ip(dport=53, fragment=0x2000)),
    ("port mask", (SpecUDP(dst_port=0x100, dst_port_mask=0xFF00),), ip(dport=0x1FF), ip(dport=0x2FF)),
    ("all layers", (SpecEth(MAC_B), SpecIPv4("10.0.0.1"), SpecUDP(2000)), ip(), ip(dport=1)),
]


@pytest.mark.parametrize(("specs", "yes", "no"), [m[1:] for m in MATCHES], ids=[m[0] for m in MATCHES])
def test_a_rule_takes_what_matches_all_of_it(
    frames: Frames, specs: tuple[Any, ...], yes: bytes, no: bytes
) -> None:
    a, b = frames.queue(), frames.queue()
    b.flow(*specs)
    a.send(no)
    assert b.nothing()
    a.send(yes)
    assert b.take() == [yes]


def test_the_lowest_priority_number_goes_first(frames: Frames) -> None:
    a, b, c = frames.queue(), frames.queue(), frames.queue()
    b.flow(SpecEth(MAC_B), priority=5)
    first = c.flow(SpecUDP(), priority=4)
    frame = ip()
    a.send(frame)
    assert (c.take(), b.nothing()) == ([frame], True)
    first.close()
    a.send(frame)
    assert (c.nothing(), b.take()) == (True, [frame])


def test_of_equal_priority_the_oldest_rule_takes_the_frame(frames: Frames) -> None:
    a, b, c = frames.queue(), frames.queue(), frames.queue()
    b.flow(SpecEth(MAC_B))
    c.flow(SpecUDP())
    a.send(ip())
    assert (len(b.take()), c.nothing()) == (1, True)


def test_equal_rules_get_a_copy_each(frames: Frames) -> None:
    a, queues = frames.queue(), [frames.queue() for _ in range(3)]
    for queue in queues:
        queue.flow(SpecEth(GROUP))
    frame = ethernet(b"to all", dst=GROUP)
    a.send(frame)
    assert [queue.take() for queue in queues] == [[frame]] * 3


def test_a_rule_that_does_not_trap_lets_the_frame_go_on(frames: Frames) -> None:
    a, b, c = frames.queue(), frames.queue(), frames.queue()
    b.flow(SpecEth(MAC_B), SpecActionTag(1), flags=FlowFlags.DONT_TRAP)
    c.flow(SpecEth(MAC_B), SpecActionTag(0xFFFFFF), priority=1)
    a.send(ANY)
    assert [queue.wait()[0].flow_tag for queue in (b, c)] == [1, 0xFFFFFF]


def test_an_extended_queue_keeps_the_tag(frames: Frames) -> None:
    wanted = rnic.CreateCQWCFlags.WITH_FLOW_TAG
    a = frames.queue()
    with (
        frames.ctx.create_cq_ex(rnic.CQInitAttrEx(8, wc_flags=wanted)) as cq,
        frames.pd.create_qp(QPInitAttr(cq, cq, QPType.RAW_PACKET)) as qp,
    ):
        to_rts(qp)
        qp.post_recv([RecvWR(i, [SGE(a.mr, 0, SLOT)]) for i in range(2)])
        with (
            qp.create_flow(FlowAttr(specs=(SpecEth(MAC_B), SpecActionTag(77)))),
            qp.create_flow(FlowAttr(specs=(SpecEth(MAC_A),))),
        ):
            a.send(ANY)
            a.send(ethernet(b"", dst=MAC_A))
            assert cq.start_poll()
            assert cq.read_flow_tag() == 77
            assert cq.next_poll()
            assert cq.read_flow_tag() == 0
            cq.end_poll()


def test_defaults_get_what_nobody_takes(frames: Frames) -> None:
    a, b, c, d = (frames.queue() for _ in range(4))
    b.flow(type=FlowAttrType.ALL_DEFAULT)
    c.flow(type=FlowAttrType.MC_DEFAULT)
    d.flow(SpecEth(MAC_A), priority=0xFFFF)
    for dst, who in ((MAC_B, b), (GROUP, c), (MAC_A, d)):
        frame = ethernet(b"", dst=dst)
        a.send(frame)
        assert who.take() == [frame]
    assert all(queue.nothing() for queue in (b, c, d))


def test_a_sniffer_gets_a_copy_of_all(frames: Frames) -> None:
    a, b, c = frames.queue(), frames.queue(), frames.queue()
    c.flow(type=FlowAttrType.SNIFFER)
    b.flow(SpecEth(MAC_B))
    strange = ethernet(b"", dst=MAC_A)
    a.send(ANY)
    a.send(strange)
    assert b.take() == [ANY]
    assert c.take(2) == [ANY, strange]


def test_a_rule_can_drop(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue()
    b.flow(SpecUDP(dst_port=53), SpecActionDrop())
    b.flow(SpecEth(MAC_B), priority=1)
    a.send(ip(dport=53))
    a.send(ip(dport=54))
    assert b.take() == [ip(dport=54)]
    assert b.nothing()
    assert frames.ctx.counters().drop_flow_rule == 1


def test_rules_count(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue()
    with frames.ctx.create_counters() as counters:
        attach = counters.attach_counters_point_flow
        attach(CounterAttachAttr(CounterDescription.PACKETS, 0))
        attach(CounterAttachAttr(CounterDescription.BYTES, 2))
        with (
            b.qp.create_flow(FlowAttr(specs=(SpecUDP(), SpecActionCount(counters)))),
            b.qp.create_flow(FlowAttr(specs=(SpecTCP(), SpecActionDrop(), SpecActionCount(counters)))),
        ):
            sent = [ip(), ip(b"more"), ip(proto=TCP), ANY]
            for frame in sent:
                a.send(frame)
            assert counters.read(3) == [3, 0, sum(len(frame) for frame in sent[:3])]
            assert counters.read(1, ReadCountersFlags.PREFER_CACHED) == [3]
            with pytest.raises(VerbsError, match="FlowCounters is in use by Flow"):
                counters.close()
        for bad, why in (
            (lambda: attach(CounterAttachAttr(CounterDescription.BYTES, 2)), "index 2 has a counter"),
            (lambda: attach(CounterAttachAttr(CounterDescription.BYTES, 16)), "room for 16"),
            (lambda: attach(CounterAttachAttr(CounterDescription.BYTES, 1, comp_mask=1)), "must be 0"),
            (lambda: attach(CounterAttachAttr(7, 1)), "there are PACKETS"),  # type: ignore[arg-type]
            (lambda: counters.read(17), "17 values; a set has room for 16"),
        ):
            with pytest.raises(VerbsError, match=why) as caught:
                bad()
            assert caught.value.errno == errno.EINVAL


def packed(**changed: Any) -> bytes:
    """The bytes of a rule, of which some fields of the attribute are changed."""
    from rnic.verbs.flow import _ATTR

    names = ("comp_mask", "type", "size", "priority", "num_of_specs", "port", "flags")
    raw = FlowAttr(specs=(SpecEth(MAC_B),)).as_bytes()
    values = dict(zip(names, _ATTR.unpack_from(raw), strict=True)) | changed
    return _ATTR.pack(*values.values()) + raw[_ATTR.size :]


def spec(kind: int, nbytes: int) -> bytes:
    body = kind.to_bytes(4, "little") + nbytes.to_bytes(2, "little") + bytes(nbytes - 6)
    return packed(size=20 + nbytes)[:20] + body


REFUSED: list[tuple[bytes, int, str]] = [
    (packed(comp_mask=1), errno.EINVAL, "comp_mask"),
    (packed(type=4), errno.EINVAL, "rule type 4 does not exist"),
    (packed(port=2), errno.EINVAL, "port 2 does not exist"),
    (packed(flags=FlowFlags.EGRESS), errno.EOPNOTSUPP, "EGRESS"),
    (packed(flags=1), errno.EINVAL, "flags 0x1 are unknown"),
    (packed(type=1, flags=FlowFlags.DONT_TRAP), errno.EINVAL, "DONT_TRAP is for rules of type NORMAL"),
    (packed(type=1), errno.EINVAL, "only a rule of type NORMAL takes"),
    (packed(type=3), errno.EINVAL, "only a rule of type NORMAL takes"),
    (packed(size=19), errno.EINVAL, "the attribute alone has 20 bytes"),
    (packed()[:-1], errno.EINVAL, "the rule has 59 bytes, fewer than its size says"),
    (b"", errno.EINVAL, "the rule has 0 bytes"),
    (packed(size=24), errno.EINVAL, "fewer specifications follow"),
    (packed(size=59), errno.EINVAL, "a specification ETH of 40 bytes"),
    (packed(num_of_specs=2), errno.EINVAL, "fewer specifications follow"),
    (spec(0x20, 38), errno.EINVAL, "a specification ETH of 38 bytes; it has 40"),
    *(
        (spec(kind, 40), errno.EOPNOTSUPP, f"flow specification 0x{kind:x}")
        for kind in (0x34, 0x50, 0x51, 0x60)
    ),
    (spec(0x120, 40), errno.EOPNOTSUPP, "flow specification 0x120"),
    (spec(0x1002, 16), errno.EOPNOTSUPP, "flow specification 0x1002"),
    (spec(0x1003, 16), errno.EINVAL, "ACTION_COUNT names no counters"),
    (FlowAttr(specs=(SpecEth(MAC_A), SpecEth(MAC_B))).as_bytes(), errno.EINVAL, "another one has described"),
    (FlowAttr(specs=(SpecIPv4(), SpecIPv6())).as_bytes(), errno.EINVAL, "another one has described"),
    (FlowAttr(specs=(SpecTCP(), SpecUDP())).as_bytes(), errno.EINVAL, "another one has described"),
    (
        FlowAttr(specs=(SpecIPv4Ext(flags=1, flags_mask=1),)).as_bytes(),
        errno.EINVAL,
        "mask of the IPv4 flags",
    ),
    (FlowAttr(specs=(SpecIPv6(flow_label=1, flow_label_mask=1 << 20),)).as_bytes(), errno.EINVAL, "20 bits"),
    (FlowAttr(specs=(SpecActionTag(1 << 24),)).as_bytes(), errno.EINVAL, "a flow tag has 24 bits"),
    (
        FlowAttr(specs=(SpecActionDrop(),), flags=FlowFlags.DONT_TRAP).as_bytes(),
        errno.EINVAL,
        "a rule that drops frames cannot let them go on",
    ),
]


@pytest.mark.parametrize(
    ("attr", "why", "words"), REFUSED, ids=[f"{i} {r[2]}" for i, r in enumerate(REFUSED)]
)
def test_a_rule_that_cannot_be_is_refused(frames: Frames, attr: bytes, why: int, words: str) -> None:
    a = frames.queue()
    with pytest.raises(VerbsError, match=words) as caught:
        rnic.Flow(a.qp, attr)
    assert caught.value.errno == why


def test_rules_are_for_raw_packet_queue_pairs() -> None:
    with rnic.testing.End() as end, pytest.raises(VerbsError, match="RAW_PACKET") as caught:
        end.qp.create_flow(FlowAttr())
    assert caught.value.errno == errno.EOPNOTSUPP


@pytest.mark.parametrize(
    "make",
    [
        lambda: SpecEth(dst_mac="02:00"),
        lambda: SpecEth(ether_type=0x10000),
        lambda: SpecIPv4(src_ip="fd00::1"),
        lambda: SpecUDP(dst_port=-1),
        lambda: SpecUDP(dst_port_mask=1),
    ],
)
def test_a_specification_that_cannot_be_says_so(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"Ethernet address|does not fit|Expected 4|without"):
        make().as_bytes()


def test_what_a_rule_uses_cannot_be_closed_before_it(frames: Frames) -> None:
    a = frames.queue()
    flow = a.flow(SpecEth(MAC_B))
    with pytest.raises(VerbsError, match="is in use by Flow") as caught:
        a.qp.close()
    assert caught.value.errno == errno.EBUSY
    flow.close()
    flow.close()
    a.qp.close()


# ---------------------------------------------------------------- faults


def test_the_injector_loses_and_doubles_frames(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue()
    b.flow(SpecEth(MAC_B))
    frames.ctx.set_faults(Faults(lose=[rnic.Lose(nth=2, count=2)]))
    for i in range(5):
        a.send(ANY + bytes([i]))
    assert [frame[-1] for frame in b.take(3)] == [0, 3, 4]
    frames.ctx.set_faults(Faults(duplicate=1))
    a.send(ANY)
    assert b.take(2) == [ANY, ANY]
    frames.ctx.set_faults(None)
    a.send(ANY)
    assert (b.take(), b.nothing()) == ([ANY], True)


def test_the_injector_reorders_and_delays_frames(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue(slots=64)
    b.flow(SpecEth(MAC_B))
    frames.ctx.set_faults(Faults(seed=3, reorder=0.3, delay=0.3, delay_s=0.001))
    for i in range(50):
        a.send(ANY + bytes([i]))
    got = [frame[-1] for frame in b.take(50)]
    assert sorted(got) == list(range(50))
    assert got != sorted(got)


def test_frames_that_are_held_go_with_their_queue_pair(frames: Frames) -> None:
    a, b = frames.queue(), frames.queue()
    b.flow(SpecEth(MAC_B))
    frames.ctx.set_faults(Faults(delay=1, delay_s=0.05))
    a.send(ANY)
    a.qp.close()
    with pytest.raises(TimeoutError):
        b.cq.req_notify()
        b.channel.get_cq_event(0.2)
