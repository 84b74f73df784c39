# SPDX-License-Identifier: Apache-2.0
"""Shared receive queues over sockets: many queue pairs, of every service, take from one."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

import rnic
from rnic import (
    MTU,
    SGE,
    AccessFlags,
    AHAttr,
    EventType,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    SRQAttr,
    SRQInitAttr,
    WCStatus,
    WROpcode,
)
from rnic.testing import End, Options, connect
from waiting import until

SLOT, SLOTS, QKEY = 8192, 64, 7


class Shared(End):
    """A side whose queue pairs take from one shared queue; slot i of its memory is receive i's."""

    def __init__(self, max_wr: int = SLOTS, local: bool | None = None) -> None:
        super().__init__(cqe=4096, local=local)
        self.mr = self.memory(SLOT * SLOTS)
        init = SRQInitAttr(SRQAttr(max_wr=max_wr, max_sge=2))
        self.shared = self._stack.enter_context(self.pd.create_srq(init))

    def queue_pair(self, kind: QPType = QPType.RC) -> rnic.QP:
        init = QPInitAttr(self.cq, self.cq, kind, sq_sig_all=True, srq=self.shared)
        return self._stack.enter_context(self.pd.create_qp(init))

    def post(self, *slots: int, nbytes: int = SLOT) -> None:
        self.shared.post_recv([RecvWR(i, [SGE(self.mr, i * SLOT, nbytes)]) for i in slots])

    def slot(self, i: int, nbytes: int, at: int = 0) -> bytes:
        return bytes(self.mr.buf[i * SLOT + at : i * SLOT + at + nbytes])


class Sender(End):
    """A side with ordinary queue pairs."""

    def __init__(self, local: bool | None = None) -> None:
        super().__init__(cqe=4096, local=local)
        self.mr = self.memory(SLOT)

    def queue_pair(self, kind: QPType = QPType.RC) -> rnic.QP:
        init = QPInitAttr(self.cq, self.cq, kind, sq_sig_all=True)
        return self._stack.enter_context(self.pd.create_qp(init))

    def send(self, qp: rnic.QP, payload: bytes, **more: object) -> None:
        self.mr.buf[: len(payload)] = payload
        sges = [SGE(self.mr, 0, len(payload))]
        more = {"opcode": WROpcode.SEND, **more}
        qp.post_send(SendWR(sg_list=sges, **more))  # type: ignore[arg-type]
        self.wait(1)


@pytest.fixture
def sides() -> Iterator[tuple[Sender, Shared]]:
    with Sender() as a, Shared() as b:
        yield a, b


def connected(a: Sender, b: Shared, kind: QPType = QPType.RC, **options: int) -> tuple[rnic.QP, rnic.QP]:
    ends = a.queue_pair(kind), b.queue_pair(kind)
    connect(*ends, Options(path_mtu=MTU.MTU_1024, **options))  # type: ignore[arg-type]
    return ends


@pytest.mark.parametrize("kind", [QPType.RC, pytest.param(QPType.UC, marks=pytest.mark.roce)])
def test_messages_of_many_take_receives_in_the_order_in_which_they_come(
    sides: tuple[Sender, Shared], kind: QPType
) -> None:
    a, b = sides
    pairs = [connected(a, b, kind) for _ in range(5)]
    b.post(*range(20))
    for i in range(20):
        ours, theirs = pairs[i * 3 % 5]
        a.send(ours, b"%d" % i * 2000)
        (wc,) = b.wait_ok()
        assert (wc.wr_id, wc.qp_num) == (i, theirs.qp_num)
        assert b.slot(i, wc.byte_len) == b"%d" % i * 2000


@pytest.mark.roce
def test_datagrams_take_from_it(sides: tuple[Sender, Shared]) -> None:
    a, b = sides
    ours, theirs = a.queue_pair(QPType.UD), b.queue_pair(QPType.UD)
    for qp in (ours, theirs):
        qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qkey=QKEY))
        qp.modify(QPAttr(qp_state=QPState.RTR))
        qp.modify(QPAttr(qp_state=QPState.RTS, sq_psn=0))
    b.post(3)
    with a.pd.create_ah(AHAttr(dgid=b.ctx.query_gid(1, 0))) as ah:
        a.send(ours, b"datagram", ah=ah, remote_qpn=theirs.qp_num, remote_qkey=QKEY)
        (wc,) = b.wait_ok()
    assert (wc.wr_id, b.slot(3, 8, at=40)) == (3, b"datagram")


def test_two_long_messages_at_once_have_a_receive_each(sides: tuple[Sender, Shared]) -> None:
    a, b = sides
    pairs = [connected(a, b) for _ in range(2)]
    b.post(0, 1)
    for ours, _ in pairs:
        a.mr.buf[:SLOT] = bytes(SLOT)
        ours.post_send(SendWR(opcode=WROpcode.SEND, sg_list=[SGE(a.mr, 0, SLOT)]))
    a.wait_ok(2)
    found = b.wait_ok(2)
    assert {wc.wr_id for wc in found} == {0, 1}
    assert {wc.qp_num for wc in found} == {theirs.qp_num for _, theirs in pairs}


@pytest.mark.roce
def test_an_empty_one_makes_the_peer_wait(sides: tuple[Sender, Shared]) -> None:
    a, b = sides
    ours, _ = connected(a, b)
    ours.post_send(SendWR(opcode=WROpcode.SEND, sg_list=[SGE(a.mr, 0, 10)]))
    until(lambda: ours.statistics().counters.rnr_nak_received, "it is told that there is no receive")
    assert not a.cq.poll(1)
    b.post(0)
    a.wait_ok()
    b.wait_ok()


@pytest.mark.roce
def test_no_receive_in_time_is_an_error_of_the_sender(sides: tuple[Sender, Shared]) -> None:
    a, b = sides
    ours, _ = connected(a, b, rnr_retry=1, min_rnr_timer=1)
    ours.post_send(SendWR(opcode=WROpcode.SEND, sg_list=[SGE(a.mr, 0, 10)]))
    (wc,) = a.wait()
    assert wc.status is WCStatus.RNR_RETRY_EXC_ERR


def test_the_limit_is_told_once(sides: tuple[Sender, Shared]) -> None:
    a, b = sides
    ours, _ = connected(a, b)
    b.post(*range(6))
    b.shared.modify(SRQAttr(srq_limit=4))
    assert b.shared.query().srq_limit == 4
    for _ in range(2):
        a.send(ours, b"x")
    with pytest.raises(TimeoutError):
        b.ctx.get_async_event(0.05)
    a.send(ours, b"x")
    event = b.ctx.get_async_event(60)
    assert (event.event_type, event.element) == (EventType.SRQ_LIMIT_REACHED, b.shared)
    assert b.shared.query().srq_limit == 0
    a.send(ours, b"x")
    with pytest.raises(TimeoutError):
        b.ctx.get_async_event(0.05)
    with pytest.raises(rnic.VerbsError, match="srq_limit is 65"):
        b.shared.modify(SRQAttr(srq_limit=SLOTS + 1))


def test_a_limit_that_is_armed_above_what_is_posted_is_told_at_once(sides: tuple[Sender, Shared]) -> None:
    _, b = sides
    b.post(0, 1, 2)
    b.shared.modify(SRQAttr(srq_limit=4))
    event = b.ctx.get_async_event(60)
    assert (event.event_type, event.element) == (EventType.SRQ_LIMIT_REACHED, b.shared)
    assert b.shared.query().srq_limit == 0
    b.shared.modify(SRQAttr(srq_limit=3))
    assert b.shared.query().srq_limit == 3
    with pytest.raises(rnic.VerbsError, match="srq_limit is 3; the queue has room for 2"):
        b.shared.modify(SRQAttr(max_wr=2))


@pytest.mark.roce
def test_it_grows_and_shrinks_with_what_is_posted() -> None:
    with Sender() as a, Shared(max_wr=4) as b:
        ours, _ = connected(a, b)
        b.post(0, 1, 2, 3)
        with pytest.raises(rnic.PostError, match="full") as caught:
            b.post(4, 5)
        assert (caught.value.errno, caught.value.index) == (errno.ENOMEM, 0)
        b.shared.modify(SRQAttr(max_wr=16))
        assert b.shared.query().max_wr == 16
        b.post(*range(4, 16))
        with pytest.raises(rnic.VerbsError, match="more than 8 receives are posted"):
            b.shared.modify(SRQAttr(max_wr=8))
        for i in range(10):
            a.send(ours, b"%d" % i)
        b.shared.modify(SRQAttr(max_wr=8))
        for i in range(10, 16):
            a.send(ours, b"%d" % i)
        assert [wc.wr_id for wc in b.wait_ok(16)] == list(range(16))
        assert [b.slot(i, 2).strip(b"\0") for i in range(16)] == [b"%d" % i for i in range(16)]


@pytest.mark.roce
def test_it_can_be_resized_under_load() -> None:
    with Sender() as a, Shared(max_wr=8) as b:
        ours, _ = connected(a, b, rnr_retry=7, min_rnr_timer=1)
        message = SendWR(opcode=WROpcode.SEND, sg_list=[SGE(a.mr, 0, 100)])
        for step in range(100):
            slots = [(6 * step + i) % SLOTS for i in range(6)]
            for _ in range(3):
                ours.post_send(message)
            b.post(*slots[:4])
            b.shared.modify(SRQAttr(max_wr=8 + step % 30))
            for _ in range(3):
                ours.post_send(message)
            b.post(*slots[4:])
            a.wait_ok(6)
            assert [wc.wr_id for wc in b.wait_ok(6)] == slots


def test_what_a_failed_queue_pair_has_not_taken_is_left_to_others(sides: tuple[Sender, Shared]) -> None:
    a, b = sides
    good, _ = connected(a, b)
    bad, theirs = connected(a, b)
    b.post(0, 1, nbytes=100)
    a.send(bad, bytes(200))  # longer than a receive
    (wc,) = b.wait()
    assert (wc.status, wc.wr_id, wc.qp_num) == (WCStatus.LOC_LEN_ERR, 0, theirs.qp_num)
    events = [b.ctx.get_async_event(60) for _ in range(1)]
    assert [(event.event_type, event.element) for event in events] == [
        (EventType.QP_LAST_WQE_REACHED, theirs)
    ]
    a.send(good, b"to the other one")
    (wc,) = b.wait_ok()
    assert wc.wr_id == 1


@pytest.mark.parametrize("local", [False, True])
def test_a_long_write_that_is_refused_takes_no_receive(local: bool) -> None:
    """Its last packet tells of its immediate, and its first is refused; a ring's packet is both."""
    with Sender(local=local) as a, Shared(local=local) as b:
        good, _ = connected(a, b)
        bad, _ = connected(a, b)
        b.post(0)
        where = {"remote_addr": b.mr.addr, "rkey": b.mr.rkey ^ 0x100}
        a.send(bad, bytes(3000), opcode=WROpcode.RDMA_WRITE_WITH_IMM, **where)
        a.send(good, b"to the other one")
        (wc,) = b.wait_ok()
        assert (wc.wr_id, wc.byte_len) == (0, 16)


def test_receives_are_posted_to_the_shared_queue_alone(sides: tuple[Sender, Shared]) -> None:
    a, b = sides
    _, theirs = connected(a, b)
    assert (theirs.srq, theirs.cap.max_recv_wr, theirs.cap.max_recv_sge) == (b.shared, 0, 0)
    with pytest.raises(rnic.PostError, match="post_recv of the SRQ") as caught:
        theirs.post_recv(RecvWR(0))
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(rnic.VerbsError, match="in use by QP"):
        b.shared.close()


def test_limits_of_receives_are_not_for_a_queue_pair_that_has_none(sides: tuple[Sender, Shared]) -> None:
    _, b = sides
    cap = rnic.QPCap(max_recv_wr=1 << 20, max_recv_sge=1 << 20)
    with b.pd.create_qp(QPInitAttr(b.cq, b.cq, srq=b.shared, cap=cap)) as qp:
        assert (qp.cap.max_recv_wr, qp.cap.max_recv_sge) == (0, 0)
    with pytest.raises(rnic.VerbsError, match="max_recv_wr is 1048576"):
        b.pd.create_qp(QPInitAttr(b.cq, b.cq, cap=cap))


def test_its_memory_is_of_its_own_protection_domain(sides: tuple[Sender, Shared]) -> None:
    a, b = sides
    with b.ctx.alloc_pd() as other:
        qp = b._stack.enter_context(other.create_qp(QPInitAttr(b.cq, b.cq, srq=b.shared)))
        ours = a.queue_pair()
        connect(ours, qp)
        b.post(0)
        a.send(ours, b"across")
        assert b.wait_ok()[0].wr_id == 0
        with pytest.raises(rnic.VerbsError, match="in use by QP"):
            other.close()
        qp.close()


@pytest.mark.parametrize(
    ("attr", "words"),
    [
        (SRQAttr(max_wr=0), "max_wr is 0"),
        (SRQAttr(max_wr=1 << 20), "max_wr is 1048576"),
        (SRQAttr(max_wr=1, max_sge=33), "max_sge is 33"),
    ],
)
def test_a_size_that_cannot_be(sides: tuple[Sender, Shared], attr: SRQAttr, words: str) -> None:
    with pytest.raises(rnic.VerbsError, match=words) as caught:
        sides[1].pd.create_srq(SRQInitAttr(attr))
    assert caught.value.errno == errno.EINVAL


@pytest.mark.roce
def test_credits_are_not_told(sides: tuple[Sender, Shared]) -> None:
    """They would say nothing: without them the sender goes on, and is told RNR where it must be."""
    a, b = sides
    ours, _ = connected(a, b, min_rnr_timer=1)
    b.post(*range(4))
    for _ in range(12):
        ours.post_send(
            SendWR(opcode=WROpcode.SEND, send_flags=SendFlags.SIGNALED, sg_list=[SGE(a.mr, 0, 10)])
        )
    b.wait_ok(4)
    b.post(*range(4, 12))
    b.wait_ok(8)
    a.wait_ok(12)


def test_readonly_access_is_no_receive(sides: tuple[Sender, Shared]) -> None:
    a, b = sides
    ours, theirs = connected(a, b)
    with b.pd.reg_mr(bytearray(64), AccessFlags(0)) as readonly:
        b.shared.post_recv(RecvWR(9, [SGE(readonly)]))
        a.send(ours, b"hello")
        (wc,) = b.wait()
        assert (wc.status, wc.wr_id) == (WCStatus.LOC_PROT_ERR, 9)
        theirs.close()


def test_the_capabilities_are_what_is_granted(sides: tuple[Sender, Shared]) -> None:
    device = sides[1].ctx.query_device()
    assert rnic.DeviceCap.SRQ_RESIZE in device.device_cap_flags
    attr = SRQAttr(max_wr=device.max_srq_wr, max_sge=device.max_srq_sge)
    with sides[1].pd.create_srq(SRQInitAttr(attr)) as shared:
        assert shared.query() == SRQAttr(device.max_srq_wr, device.max_srq_sge, 0)
    assert QPCap().max_recv_wr
