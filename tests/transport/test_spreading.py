# SPDX-License-Identifier: Apache-2.0
"""Receive side scaling: frames spread over work queues by the Toeplitz hash of their addresses and ports."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

import rnic
from rnic import (
    SGE,
    EventType,
    FlowAttr,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    RwqIndTableInitAttr,
    RxHashConf,
    RxHashFields,
    SpecActionTag,
    SpecEth,
    VerbsError,
    WCFlags,
    WCStatus,
    WQAttr,
    WQFlags,
    WQInitAttr,
    WQState,
)
from transport.frames import MAC_B, SLOT, TCP, UDP, Frames, ethernet, ip, to_rts

pytestmark = pytest.mark.roce

F = RxHashFields
KEY = bytes.fromhex("6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa")
IPV4, TCP4 = F.SRC_IPV4 | F.DST_IPV4, F.SRC_IPV4 | F.DST_IPV4 | F.SRC_PORT_TCP | F.DST_PORT_TCP
UDP4 = IPV4 | F.SRC_PORT_UDP | F.DST_PORT_UDP
TCP6 = F.SRC_IPV6 | F.DST_IPV6 | F.SRC_PORT_TCP | F.DST_PORT_TCP

# The published verification suite: source, destination, hash of addresses, hash with ports.
VECTORS = [
    (("66.9.149.187", 2794), ("161.142.100.80", 1766), 0x323E8FC2, 0x51CCC178),
    (("199.92.111.2", 14230), ("65.69.140.83", 4739), 0xD718262A, 0xC626B0EA),
    (("24.19.198.95", 12898), ("12.22.207.184", 38024), 0xD2D0A5DE, 0x5C2B394A),
    (("38.27.205.30", 48228), ("209.142.163.6", 2217), 0x82989176, 0xAFC7327F),
    (("153.39.163.191", 44251), ("202.188.127.2", 1303), 0x5D1809C5, 0x10E828A2),
    (("3ffe:2501:200:1fff::7", 2794), ("3ffe:2501:200:3::1", 1766), 0x2CC18CD5, 0x40207D3D),
    (("3ffe:501:8::260:97ff:fe40:efab", 14230), ("ff02::1", 4739), 0x0F0C461C, 0xDDE51BBF),
    (
        ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251),
        ("fe80::200:f8ff:fe21:67cf", 38024),
        0x4B61E985,
        0x02D1FEEF,
    ),
]


class Spread(Frames):
    """A queue pair that spreads over 2**log entries, of which each is a work queue of its own."""

    def __init__(
        self, log: int = 2, fields: RxHashFields = TCP4, receives: int = 4, modify: bool = True
    ) -> None:
        super().__init__()
        enter, count = self.stack.enter_context, 1 << log
        self.cq = enter(self.ctx.create_cq(1024))
        self.mr = enter(self.pd.alloc_mr(SLOT * max(count * receives, 1), rnic.testing.ALL_ACCESS))
        self.wqs = [enter(self.ctx.create_wq(WQInitAttr(self.pd, self.cq, 16, 1))) for _ in range(count)]
        for i, wq in enumerate(self.wqs):
            wq.modify(WQAttr(wq_state=WQState.RDY))
            slots = range(i * receives, (i + 1) * receives)
            wq.post_recv([RecvWR(slot, [SGE(self.mr, slot * SLOT, SLOT)]) for slot in slots])
        self.receives = receives
        self.table = enter(self.ctx.create_rwq_ind_table(RwqIndTableInitAttr(log, tuple(self.wqs))))
        init = QPInitAttr(
            qp_type=QPType.RAW_PACKET, rwq_ind_tbl=self.table, rx_hash_conf=RxHashConf(KEY, fields)
        )
        self.qp = enter(self.pd.create_qp(init))
        if modify:
            to_rts(self.qp)
        enter(self.qp.create_flow(FlowAttr(specs=(SpecEth(MAC_B), SpecActionTag(9)))))
        self.sender = self.queue()

    def entry(self, frame: bytes) -> int:
        """The entry of the table whose work queue got the frame."""
        assert self.sender.send(frame).ok
        (wc,) = self.cq.poll(2)
        assert wc.ok, wc.explain()
        assert bytes(self.mr.buf[wc.wr_id * SLOT : wc.wr_id * SLOT + wc.byte_len]) == frame
        assert (wc.qp_num, wc.flow_tag) == (self.qp.qp_num, 9)
        return wc.wr_id // self.receives


@pytest.fixture
def spread() -> Iterator[Spread]:
    with Spread() as one:
        yield one


@pytest.mark.parametrize(("source", "to", "addresses", "ports"), VECTORS)
@pytest.mark.parametrize("proto", [TCP, UDP])
def test_the_published_hashes_choose_the_work_queue(
    source: tuple[str, int], to: tuple[str, int], addresses: int, ports: int, proto: int
) -> None:
    six = ":" in source[0]
    frame = ip(b"data", source[0], to[0], proto, source[1], to[1])
    both = F.SRC_IPV6 | F.DST_IPV6 if six else IPV4
    of_tcp, of_udp = F.SRC_PORT_TCP | F.DST_PORT_TCP, F.SRC_PORT_UDP | F.DST_PORT_UDP
    own, other = (of_tcp, of_udp) if proto == TCP else (of_udp, of_tcp)
    for fields, value in ((both, addresses), (both | own, ports), (both | other, addresses)):
        with Spread(8, fields, 1) as spread:
            assert spread.entry(frame) == value & 0xFF


def test_a_queue_pair_that_spreads_receives_in_reset() -> None:
    with Spread(modify=False) as spread:
        assert spread.entry(ethernet(b"strange")) == 0


def test_fragments_of_a_datagram_go_where_its_addresses_say() -> None:
    whole = ip(b"data", *("66.9.149.187", "161.142.100.80"), UDP, 2794, 1766)
    first, later = (ip(b"data", "66.9.149.187", "161.142.100.80", fragment=f) for f in (0x2000, 0x2005))
    with Spread(8, UDP4, 3) as spread:
        assert spread.entry(first) == spread.entry(later) == 0xC2
        assert spread.entry(whole) == 0x78
    with Spread(8, IPV4, 1) as plain:
        assert plain.entry(whole) == 0xC2


def test_what_has_none_of_the_fields_goes_to_the_first_entry(spread: Spread) -> None:
    for frame in (ethernet(b"strange"), ip(src="fd00::1", dst="fd00::2")):
        assert spread.entry(frame) == 0


def test_checksums_are_verified_for_work_queues_too(spread: Spread) -> None:
    spread.sender.send(ip(proto=TCP))
    assert spread.cq.poll(1)[0].wc_flags == WCFlags.IP_CSUM_OK


def test_one_work_queue_may_stand_at_every_entry(spread: Spread) -> None:
    with spread.ctx.create_rwq_ind_table(RwqIndTableInitAttr(1, (spread.wqs[0],) * 2)) as table:
        assert table.ind_tbl == (spread.wqs[0],) * 2
        with pytest.raises(VerbsError, match="in use by RwqIndTable"):
            spread.wqs[0].close()


def test_a_work_queue_that_is_not_ready_or_has_no_receive_drops(spread: Spread) -> None:
    frame, wq = ethernet(b"strange"), spread.wqs[0]
    for _ in range(spread.receives):
        spread.entry(frame)
    spread.sender.send(frame)
    assert spread.ctx.counters().drop_no_receive == 1
    wq.modify(WQAttr(wq_state=WQState.RESET))
    spread.sender.send(frame)
    assert spread.ctx.counters().drop_bad_state == 1
    with pytest.raises(rnic.PostError, match="the work queue is in RESET"):
        wq.post_recv(RecvWR(0))
    wq.modify(WQAttr(wq_state=WQState.RDY))
    wq.post_recv(RecvWR(0, [SGE(spread.mr, 0, SLOT)]))
    assert spread.entry(frame) == 0


def test_err_flushes_what_is_posted_and_what_comes_after(spread: Spread) -> None:
    wq = spread.wqs[1]
    wq.modify(WQAttr(wq_state=WQState.ERR, curr_wq_state=WQState.RDY))
    flushed = spread.cq.poll(100)
    assert [(wc.status, wc.wr_id) for wc in flushed] == [(WCStatus.WR_FLUSH_ERR, i) for i in range(4, 8)]
    assert {wc.qp_num for wc in flushed} == {wq.wq_num}
    wq.post_recv(RecvWR(99))
    assert [(wc.status, wc.wr_id) for wc in spread.cq.poll(100)] == [(WCStatus.WR_FLUSH_ERR, 99)]


def test_a_receive_that_is_too_small_stops_its_work_queue_alone(spread: Spread) -> None:
    wq = spread.wqs[0]
    wq.modify(WQAttr(wq_state=WQState.RESET))
    wq.modify(WQAttr(wq_state=WQState.RDY))
    wq.post_recv([RecvWR(0, [SGE(spread.mr, 0, 20)]), RecvWR(1)])
    spread.sender.send(ethernet(b"longer than that"))
    found = [(wc.status, wc.wr_id, wc.qp_num) for wc in spread.cq.poll(9)]
    assert found == [(WCStatus.LOC_LEN_ERR, 0, wq.wq_num), (WCStatus.WR_FLUSH_ERR, 1, wq.wq_num)]
    event = spread.ctx.get_async_event(60)
    assert (event.event_type, event.element) == (EventType.WQ_FATAL, wq)
    assert wq.state is WQState.ERR
    assert spread.qp.state is rnic.QPState.RTS
    assert spread.wqs[1].state is WQState.RDY


def test_a_full_completion_queue_stops_the_work_queue(spread: Spread) -> None:
    with spread.ctx.create_cq(1) as small, spread.ctx.create_wq(WQInitAttr(spread.pd, small, 4, 1)) as wq:
        wq.modify(WQAttr(wq_state=WQState.RDY))
        wq.post_recv([RecvWR(0), RecvWR(1)])
        wq.modify(WQAttr(wq_state=WQState.ERR))
        assert spread.ctx.get_async_event(60).event_type is EventType.CQ_ERR


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ((WQState.ERR,), "RESET -> ERR is not allowed"),
        ((WQState.RDY, WQState.ERR, WQState.RDY), "ERR -> RDY is not allowed"),
        ((WQState.UNKNOWN,), "RESET -> UNKNOWN is not allowed"),
    ],
)
def test_a_change_of_state_that_cannot_be_is_refused(
    spread: Spread, way: tuple[WQState, ...], words: str
) -> None:
    with spread.ctx.create_wq(WQInitAttr(spread.pd, spread.cq)) as wq:
        for state in way[:-1]:
            wq.modify(WQAttr(wq_state=state))
        with pytest.raises(VerbsError, match=words) as caught:
            wq.modify(WQAttr(wq_state=way[-1]))
        assert caught.value.errno == errno.EINVAL


def test_what_else_a_work_queue_refuses(spread: Spread) -> None:
    wq = spread.wqs[0]
    refused: list[tuple[WQAttr, int, str]] = [
        (
            WQAttr(curr_wq_state=WQState.ERR),
            errno.EINVAL,
            "curr_wq_state is ERR, but the work queue is in RDY",
        ),
        (WQAttr(flags_mask=WQFlags.DELAY_DROP), errno.EOPNOTSUPP, "no work queue flags"),
    ]
    for attr, why, words in refused:
        with pytest.raises(VerbsError, match=words) as caught:
            wq.modify(attr)
        assert caught.value.errno == why
    sizes: list[tuple[dict[str, Any], int, str]] = [
        ({"max_wr": 0}, errno.EINVAL, "max_wr is 0"),
        ({"max_wr": 1 << 20}, errno.EINVAL, "max_wr is 1048576"),
        ({"max_sge": 33}, errno.EINVAL, "max_sge is 33"),
        ({"wq_type": 1}, errno.EINVAL, "type 1 does not exist"),
        ({"create_flags": WQFlags.CVLAN_STRIPPING}, errno.EOPNOTSUPP, "no work queue flags"),
    ]
    for given, why, words in sizes:
        with pytest.raises(VerbsError, match=words) as caught:
            spread.ctx.create_wq(WQInitAttr(spread.pd, spread.cq, **given))
        assert caught.value.errno == why
    with pytest.raises(VerbsError, match="log_ind_tbl_size is 13; the largest is 12"):
        spread.ctx.create_rwq_ind_table(RwqIndTableInitAttr(13, (wq,) * 8192))
    with Frames() as other, pytest.raises(VerbsError, match="belongs to another device"):
        other.ctx.create_wq(WQInitAttr(spread.pd, spread.cq))
    with Frames() as other, pytest.raises(VerbsError, match="entry 0 of the table is not a work queue"):
        other.ctx.create_rwq_ind_table(RwqIndTableInitAttr(0, (wq,)))


SPREADS: list[tuple[dict[str, Any], int, str]] = [
    ({"cap": QPCap(max_send_wr=1 << 20)}, errno.EINVAL, "cap.max_send_wr is 1048576"),
    ({"qp_type": QPType.UD}, errno.EOPNOTSUPP, "only RAW_PACKET"),
    ({"rx_hash_conf": None}, errno.EOPNOTSUPP, "rx_hash_function is 0"),
    ({"rx_hash_conf": RxHashConf(KEY[:39], TCP4)}, errno.EINVAL, "the hash key has 39 bytes; it needs 40"),
    ({"rx_hash_conf": RxHashConf(KEY, F.SRC_IPV4 | F.SRC_IPV6)}, errno.EINVAL, "IPv4 and of IPv6"),
    ({"rx_hash_conf": RxHashConf(KEY, F.SRC_PORT_TCP | F.SRC_PORT_UDP)}, errno.EINVAL, "TCP and of UDP"),
    ({"rx_hash_conf": RxHashConf(KEY, F.INNER | F.SRC_IPV4)}, errno.EOPNOTSUPP, "hash fields 0x80000000"),
    ({"rx_hash_conf": RxHashConf(KEY, F.IPSEC_SPI)}, errno.EOPNOTSUPP, "hash fields 0x100"),
]


@pytest.mark.parametrize(("given", "why", "words"), SPREADS, ids=[s[2] for s in SPREADS])
def test_a_queue_pair_that_cannot_spread_is_refused(
    spread: Spread, given: dict[str, Any], why: int, words: str
) -> None:
    fields: dict[str, Any] = {"qp_type": QPType.RAW_PACKET, "rwq_ind_tbl": spread.table}
    fields["rx_hash_conf"] = RxHashConf(KEY, TCP4)
    with pytest.raises(VerbsError, match=words) as caught:
        spread.pd.create_qp(QPInitAttr(**(fields | given)))
    assert caught.value.errno == why


def test_a_queue_pair_that_spreads_has_no_receives_and_perhaps_no_sends(spread: Spread) -> None:
    with pytest.raises(VerbsError, match="has neither recv_cq nor srq"):
        conf = RxHashConf(KEY, TCP4)
        spread.pd.create_qp(
            QPInitAttr(None, spread.cq, QPType.RAW_PACKET, rwq_ind_tbl=spread.table, rx_hash_conf=conf)
        )
    with pytest.raises(rnic.PostError, match="post to its work queues"):
        spread.qp.post_recv(RecvWR(1))
    with pytest.raises(rnic.PostError, match="without a send_cq"):
        spread.qp.post_send(rnic.SendWR(1))
    assert spread.qp.query()[1].rwq_ind_tbl is spread.table
    with pytest.raises(VerbsError, match="in use by QP"):
        spread.table.close()


def test_a_queue_pair_that_spreads_can_send(spread: Spread) -> None:
    init = QPInitAttr(
        spread.cq, qp_type=QPType.RAW_PACKET, rwq_ind_tbl=spread.table, rx_hash_conf=RxHashConf(KEY, TCP4)
    )
    spread.sender.flow(SpecEth("02:00:00:00:00:0c"))
    with spread.pd.create_qp(init) as qp:
        to_rts(qp)
        frame = ethernet(b"out", dst="02:00:00:00:00:0c")
        spread.mr.buf[: len(frame)] = frame
        qp.post_send(
            rnic.SendWR(5, send_flags=rnic.SendFlags.SIGNALED, sg_list=[SGE(spread.mr, 0, len(frame))])
        )
        while not (done := spread.cq.poll(9)):  # the engine's thread may have been at it
            pass
        assert [wc.wr_id for wc in done] == [5]
        assert spread.sender.take() == [frame]
