# SPDX-License-Identifier: Apache-2.0
"""Each status that a work completion can have, brought about by what a peer or a fault does, over sockets.

What the specification gives for each: IBA 9.9.2, 9.9.3 and 11.6.2.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import rnic
from rnic import (
    SGE,
    AccessFlags,
    EventType,
    Faults,
    PostError,
    QPAttr,
    QPCap,
    QPState,
    RecvWR,
    SendFlags,
    SendWR,
    VerbsError,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from rnic._nic.nic import MR, WC
from rnic.testing import ALL_ACCESS, End, Options, Pair, complete, connect, prepare
from rnic.wire import AETH, AtomicAckETH, NakCode, Opcode
from transport.impostor import pretend

pytestmark = pytest.mark.roce

NBYTES = 64 << 10
IMPATIENT = Options(timeout=8, retry_cnt=2, rnr_retry=1, min_rnr_timer=1)
SIGNALED = SendFlags.SIGNALED
EVENT_SECONDS = 60.0


class Scene:
    """A pair with memory at both ends; `a` asks, `b` answers."""

    def __init__(self, pair: Pair) -> None:
        self.a, self.b = pair.a, pair.b
        self.closes = ExitStack()
        self.source, self.target = self.a.memory(NBYTES), self.b.memory(NBYTES)

    def ask(
        self,
        opcode: WROpcode,
        *,
        sge: SGE | None = None,
        addr: int | None = None,
        rkey: int | None = None,
        nbytes: int = 64,
        wr_id: int = 1,
    ) -> None:
        """One request from a to b's memory."""
        self.a.qp.post_send(
            SendWR(
                wr_id,
                opcode,
                SIGNALED,
                [sge or SGE(self.source, 0, nbytes)],
                self.target.addr if addr is None else addr,
                self.target.rkey if rkey is None else rkey,
            )
        )

    def answer(self) -> WC:
        (wc,) = self.a.wait()
        return wc

    def event(self) -> EventType:
        """The next asynchronous event at b, about b's queue pair."""
        event = self.b.ctx.get_async_event(EVENT_SECONDS)
        assert event.element is self.b.qp
        return event.event_type


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Pair() as pair:
        made = Scene(pair)
        with made.closes:
            yield made


TOLD = os.environ["RNIC_LOCAL"] != "off"  # the peer tells the exact cause by shared memory


def assert_says(wc: WC, status: WCStatus, *words: str) -> None:
    """The status, and an explanation with these words that names the request and its queue pair."""
    assert wc.status == status
    assert not wc.ok
    text = wc.explain()
    for word in (f"wr_id {wc.wr_id} on QP 0x{wc.qp_num:06x}: {status.name}", "Look here:", *words):
        assert word in text


# ---------------------------------------------------------------- what the requester's own side does wrong


def foreign_memory(scene: Scene) -> SGE:
    pd = scene.closes.enter_context(scene.a.ctx.alloc_pd())
    return SGE(scene.closes.enter_context(pd.alloc_mr(64, ALL_ACCESS)))


def closed_memory(scene: Scene) -> SGE:
    sge = SGE(scene.a.pd.alloc_mr(64, ALL_ACCESS))
    assert sge.mr is not None
    sge.mr.close()
    return sge


def beyond_memory(scene: Scene) -> SGE:
    return SGE(addr=scene.source.addr + NBYTES - 8, length=64, lkey=scene.source.lkey)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (foreign_memory, "another protection domain"),
        (closed_memory, "an lkey that is not registered"),
        (beyond_memory, "outside its memory region"),
    ],
)
@pytest.mark.parametrize("opcode", [WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
def test_loc_prot_err_for_an_sge_that_names_other_memory(
    scene: Scene, make: Callable[[Scene], SGE], words: str, opcode: WROpcode
) -> None:
    scene.ask(opcode, sge=make(scene))
    assert_says(scene.answer(), WCStatus.LOC_PROT_ERR, "local side", words)
    assert scene.a.qp.state == QPState.ERR
    assert scene.b.qp.state == QPState.RTS, "nothing reached the peer"


def test_loc_prot_err_for_a_read_into_memory_without_local_write(scene: Scene) -> None:
    with scene.a.pd.reg_mr(bytes(64), AccessFlags(0)) as mr:
        scene.ask(WROpcode.RDMA_READ, sge=SGE(mr))
        assert_says(scene.answer(), WCStatus.LOC_PROT_ERR, "lacks LOCAL_WRITE")


def test_loc_len_err_for_an_atomic_of_other_than_8_bytes(scene: Scene) -> None:
    scene.ask(WROpcode.ATOMIC_FETCH_AND_ADD, nbytes=16)
    assert_says(scene.answer(), WCStatus.LOC_LEN_ERR, "local side")


@pytest.mark.parametrize("opcode", [WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD])
def test_loc_qp_op_err_for_a_read_or_atomic_when_none_may_be_outstanding(opcode: WROpcode) -> None:
    with Pair(options=Options(max_rd_atomic=0)) as pair:
        scene = Scene(pair)
        scene.ask(opcode, nbytes=8)
        assert_says(scene.answer(), WCStatus.LOC_QP_OP_ERR, "max_rd_atomic")


# ---------------------------------------------------------------- what the responder refuses


def without_right(scene: Scene, right: AccessFlags) -> MR:
    return scene.b.memory(NBYTES, ALL_ACCESS & ~right)


def of_another_pd(scene: Scene, _: AccessFlags) -> MR:
    pd = scene.closes.enter_context(scene.b.ctx.alloc_pd())
    return scene.closes.enter_context(pd.alloc_mr(NBYTES, ALL_ACCESS))


def deregistered(scene: Scene, _: AccessFlags) -> MR:
    with scene.b.pd.alloc_mr(NBYTES, ALL_ACCESS) as mr:
        return mr


RIGHTS = [
    (WROpcode.RDMA_WRITE, AccessFlags.REMOTE_WRITE),
    (WROpcode.RDMA_READ, AccessFlags.REMOTE_READ),
    (WROpcode.ATOMIC_CMP_AND_SWP, AccessFlags.REMOTE_ATOMIC),
    (WROpcode.ATOMIC_FETCH_AND_ADD, AccessFlags.REMOTE_ATOMIC),
]


@pytest.mark.parametrize("make", [without_right, of_another_pd, deregistered])
@pytest.mark.parametrize(("opcode", "right"), RIGHTS)
def test_rem_access_err_for_memory_that_does_not_grant_it(
    scene: Scene, opcode: WROpcode, right: AccessFlags, make: Callable[[Scene, AccessFlags], MR]
) -> None:
    mr = make(scene, right)
    scene.ask(opcode, addr=mr.addr, rkey=mr.rkey, nbytes=8)
    assert_says(scene.answer(), WCStatus.REM_ACCESS_ERR, "remote side", "NAK remote access error", "rkey")
    assert scene.event() == EventType.QP_ACCESS_ERR
    assert scene.b.qp.state == QPState.ERR


@pytest.mark.parametrize(("opcode", "right"), RIGHTS)
def test_rem_access_err_for_a_key_that_was_guessed(
    scene: Scene, opcode: WROpcode, right: AccessFlags
) -> None:
    scene.ask(opcode, rkey=scene.target.rkey ^ 0x5A5A0000, nbytes=8)
    assert_says(scene.answer(), WCStatus.REM_ACCESS_ERR)
    assert not any(scene.target.buf), right


@pytest.mark.parametrize(("opcode", "right"), RIGHTS)
@pytest.mark.parametrize("offset", [-8, NBYTES - 4, NBYTES])
def test_rem_access_err_beyond_the_bounds(
    scene: Scene, opcode: WROpcode, right: AccessFlags, offset: int
) -> None:
    assert right in ALL_ACCESS
    scene.ask(opcode, addr=scene.target.addr + offset, nbytes=8)
    words = "of a region of" if TOLD else "its access flags and its PD"
    assert_says(scene.answer(), WCStatus.REM_ACCESS_ERR, words)


@pytest.mark.parametrize(("opcode", "right"), RIGHTS)
def test_rem_inv_req_err_for_what_the_queue_pair_does_not_allow(opcode: WROpcode, right: AccessFlags) -> None:
    with Pair(options=Options(access=Options().access & ~right)) as pair:
        scene = Scene(pair)
        scene.ask(opcode, nbytes=8)
        assert_says(scene.answer(), WCStatus.REM_INV_REQ_ERR, "qp_access_flags")
        assert scene.event() == EventType.QP_REQ_ERR


def test_loc_access_err_where_a_write_with_immediate_hits_memory_it_may_not_write(scene: Scene) -> None:
    scene.b.qp.post_recv(RecvWR(7, [SGE(scene.target)]))
    mr = without_right(scene, AccessFlags.REMOTE_WRITE)
    scene.ask(WROpcode.RDMA_WRITE_WITH_IMM, addr=mr.addr, rkey=mr.rkey)
    assert_says(scene.answer(), WCStatus.REM_ACCESS_ERR)
    (wc,) = scene.b.wait()
    assert wc.wr_id == 7
    assert_says(wc, WCStatus.LOC_ACCESS_ERR, "local side", "does not grant this remote access")
    assert scene.event() == EventType.QP_ACCESS_ERR


def test_rem_inv_req_err_for_a_message_longer_than_the_receive(scene: Scene) -> None:
    scene.b.qp.post_recv(RecvWR(7, [SGE(scene.target, 0, 63)]))
    scene.ask(WROpcode.SEND, nbytes=64)
    words = "and a receive of 63" if TOLD else "is its receive buffer long enough?"
    assert_says(scene.answer(), WCStatus.REM_INV_REQ_ERR, words)
    (wc,) = scene.b.wait()
    assert_says(wc, WCStatus.LOC_LEN_ERR, "the message was longer than the receive buffer")


def test_rem_inv_req_err_for_an_atomic_at_an_odd_address(scene: Scene) -> None:
    scene.ask(WROpcode.ATOMIC_FETCH_AND_ADD, addr=scene.target.addr + 4, nbytes=8)
    assert_says(scene.answer(), WCStatus.REM_INV_REQ_ERR, "multiple of 8")
    assert scene.event() == EventType.QP_REQ_ERR


@pytest.mark.parametrize("opcode", [WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD])
def test_rem_inv_req_err_for_a_read_or_atomic_without_responder_resources(opcode: WROpcode) -> None:
    with Pair(options_b=Options(max_dest_rd_atomic=0)) as pair:
        scene = Scene(pair)
        scene.ask(opcode, nbytes=8)
        assert_says(scene.answer(), WCStatus.REM_INV_REQ_ERR, "max_dest_rd_atomic")
        assert scene.event() == EventType.QP_REQ_ERR


def test_rem_op_err_when_the_peers_receive_names_memory_that_is_gone(scene: Scene) -> None:
    mr = scene.b.pd.alloc_mr(64, ALL_ACCESS)
    scene.b.qp.post_recv(RecvWR(7, [SGE(mr)]))
    mr.close()
    scene.ask(WROpcode.SEND)
    assert_says(scene.answer(), WCStatus.REM_OP_ERR, "remote side", "a reason of its own")
    (wc,) = scene.b.wait()
    assert_says(wc, WCStatus.LOC_PROT_ERR, "an lkey that is not registered")


def test_rem_op_err_when_the_peers_receive_names_memory_of_another_domain(scene: Scene) -> None:
    pd = scene.closes.enter_context(scene.b.ctx.alloc_pd())
    mr = scene.closes.enter_context(pd.alloc_mr(64, ALL_ACCESS))
    scene.b.qp.post_recv(RecvWR(7, [SGE(mr)]))
    scene.ask(WROpcode.SEND)
    assert_says(scene.answer(), WCStatus.REM_OP_ERR, "remote side", "a reason of its own")
    (wc,) = scene.b.wait()
    assert_says(wc, WCStatus.LOC_PROT_ERR, "another protection domain")


# ---------------------------------------------------------------- what the path and the peer's absence do


def test_retry_exc_err_when_nothing_arrives() -> None:
    with Pair(options=IMPATIENT) as pair:
        scene = Scene(pair)
        scene.a.ctx.set_faults(Faults(loss=1.0))
        scene.ask(WROpcode.RDMA_WRITE)
        assert_says(scene.answer(), WCStatus.RETRY_EXC_ERR, "remote side or the path", "did not answer")
        assert scene.a.ctx.counters().timeouts == 3


def test_retry_exc_err_when_no_answer_arrives() -> None:
    with Pair(options=IMPATIENT) as pair:
        scene = Scene(pair)
        scene.b.ctx.set_faults(Faults(loss=1.0))
        scene.ask(WROpcode.SEND)
        assert_says(scene.answer(), WCStatus.RETRY_EXC_ERR, "UDP port 4791")


@pytest.mark.parametrize("gone", ["error state", "reset", "closed"])
def test_retry_exc_err_when_the_peers_queue_pair_is_gone(gone: str) -> None:
    with End() as a, End() as b:
        connect(a.qp, b.qp, IMPATIENT)
        if gone == "closed":
            b.qp.close()
        else:
            b.qp.modify(QPAttr(qp_state=QPState.ERR if gone == "error state" else QPState.RESET))
        a.qp.post_send(SendWR(1, WROpcode.SEND, SIGNALED))
        (wc,) = a.wait()
        assert_says(wc, WCStatus.RETRY_EXC_ERR, "its queue pair in RTR or RTS?")
        until = time.monotonic() + 60  # b's engine thread counts when it gets a processor
        while (dropped := b.ctx.counters()).drop_bad_state + dropped.drop_bad_qpn < 3:
            assert time.monotonic() < until, dropped
            time.sleep(0.01)


def test_rnr_retry_exc_err_when_the_peer_posts_no_receive() -> None:
    with Pair(options=Options(timeout=20, rnr_retry=1, min_rnr_timer=1)) as pair:
        scene = Scene(pair)
        scene.ask(WROpcode.SEND)
        assert_says(scene.answer(), WCStatus.RNR_RETRY_EXC_ERR, "no receive posted", "rnr_retry (7: no end)")
        counters = scene.a.ctx.counters()
        assert counters.rnr_nak_received >= 2
        assert scene.b.qp.state == QPState.RTS


def test_a_receive_that_comes_late_is_waited_for_without_end_when_rnr_retry_is_7(scene: Scene) -> None:
    scene.ask(WROpcode.SEND)
    while scene.a.ctx.counters().rnr_nak_received < 9:
        assert scene.a.cq.poll() == []
    scene.b.qp.post_recv(RecvWR(7, [SGE(scene.target)]))
    assert scene.answer().ok
    assert scene.b.wait_ok()[0].wr_id == 7


@pytest.mark.wire
@pytest.mark.parametrize("reply", ["atomic answer to a READ", "READ answer of another length", "unknown NAK"])
def test_bad_resp_err_for_an_answer_that_fits_no_request(reply: str) -> None:
    with Pair(options=Options(timeout=20)) as pair:
        scene = Scene(pair)
        scene.b.ctx.set_faults(Faults(loss=1.0))  # the impostor answers in its place
        scene.ask(WROpcode.RDMA_READ)
        psn = scene.a.qp.statistics().snd_una
        if reply == "atomic answer to a READ":
            pretend(scene.a.qp, Opcode.RC_ATOMIC_ACK, psn, (AETH.ack(1), AtomicAckETH(0)))
        elif reply == "unknown NAK":
            pretend(scene.a.qp, Opcode.RC_ACK, psn, (AETH(0x7F, 0),))
        else:
            pretend(scene.a.qp, Opcode.RC_READ_RESP_ONLY, psn, (AETH.ack(1),), bytes(60))
        assert_says(scene.answer(), WCStatus.BAD_RESP_ERR, "remote side", "suspect the peer's implementation")


@pytest.mark.wire
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (NakCode.INVALID_REQUEST, WCStatus.REM_INV_REQ_ERR),
        (NakCode.REMOTE_ACCESS_ERROR, WCStatus.REM_ACCESS_ERR),
        (NakCode.REMOTE_OPERATIONAL_ERROR, WCStatus.REM_OP_ERR),
    ],
)
def test_each_nak_has_its_status(code: NakCode, status: WCStatus) -> None:
    with Pair(options=Options(timeout=20)) as pair:
        scene = Scene(pair)
        scene.b.ctx.set_faults(Faults(loss=1.0))
        scene.ask(WROpcode.RDMA_WRITE)
        pretend(scene.a.qp, Opcode.RC_ACK, scene.a.qp.statistics().snd_una, (AETH.nak(0, code),))
        assert_says(scene.answer(), status)


def test_a_packet_of_a_strange_opcode_sequence_is_an_invalid_request_at_the_responder(scene: Scene) -> None:
    pretend(scene.b.qp, Opcode.RC_SEND_MIDDLE, scene.b.qp.statistics().rcv_psn, payload=bytes(4096))
    assert scene.event() == EventType.QP_REQ_ERR
    assert scene.b.qp.state == QPState.ERR


# ---------------------------------------------------------------- flushes and events


def test_wr_flush_err_for_all_that_was_posted_behind_a_failure(scene: Scene) -> None:
    scene.a.qp.post_recv([RecvWR(100 + i, [SGE(scene.source)]) for i in range(3)])
    wrong = [0, 1, 0, 0, 0]
    scene.a.qp.post_send(
        [
            SendWR(
                i,
                WROpcode.RDMA_WRITE,
                0,  # a failed request completes, SIGNALED or not
                [SGE(scene.source, 0, 8)],
                scene.target.addr,
                scene.target.rkey ^ (wrong[i] << 8),
            )
            for i in range(5)
        ]
    )
    failed, *flushed = scene.a.wait(1 + 3 + 3)
    assert (failed.wr_id, failed.status) == (1, WCStatus.REM_ACCESS_ERR)
    assert sorted(wc.wr_id for wc in flushed) == [2, 3, 4, 100, 101, 102]
    for wc in flushed:
        assert_says(wc, WCStatus.WR_FLUSH_ERR, "this is a consequence")


def test_wr_flush_err_for_what_is_posted_in_the_error_state(scene: Scene) -> None:
    scene.a.qp.modify(QPAttr(qp_state=QPState.ERR))
    scene.ask(WROpcode.RDMA_WRITE, wr_id=5)
    scene.a.qp.post_recv(RecvWR(6, [SGE(scene.source)]))
    flushed = scene.a.wait(2)
    assert sorted(wc.wr_id for wc in flushed) == [5, 6]
    assert {wc.status for wc in flushed} == {WCStatus.WR_FLUSH_ERR}


def test_the_flushed_receives_of_the_refusing_side_keep_their_order(scene: Scene) -> None:
    scene.b.qp.post_recv([RecvWR(i, [SGE(scene.target)]) for i in range(4)])
    scene.ask(WROpcode.RDMA_READ, rkey=1)
    scene.answer()
    assert [(wc.wr_id, wc.status) for wc in scene.b.wait(4)] == [(i, WCStatus.WR_FLUSH_ERR) for i in range(4)]


def test_a_pair_connects_again_after_a_failure(scene: Scene) -> None:
    scene.ask(WROpcode.RDMA_WRITE, rkey=1)
    assert scene.answer().status == WCStatus.REM_ACCESS_ERR
    for end in (scene.a, scene.b):
        end.qp.modify(QPAttr(qp_state=QPState.RESET))
    connect(scene.a.qp, scene.b.qp)
    scene.source.buf[:64] = bytes(range(64))
    scene.ask(WROpcode.RDMA_WRITE)
    assert scene.answer().ok
    assert scene.target.buf[:64] == bytes(range(64))


def test_an_overrun_completion_queue_is_reported_and_stops_its_queue_pair() -> None:
    with Pair(cqe=4) as pair:
        scene = Scene(pair)
        room = scene.a.cq.cqe
        for i in range(room + 1):
            scene.ask(WROpcode.RDMA_WRITE, wr_id=i)
        events = [scene.a.ctx.get_async_event(EVENT_SECONDS) for _ in range(2)]
        assert [(event.event_type, event.element) for event in events] == [
            (EventType.CQ_ERR, scene.a.cq),
            (EventType.QP_FATAL, scene.a.qp),
        ]
        for event in events:
            event.ack()
        assert len(scene.a.cq.poll(room)) == room
        with pytest.raises(VerbsError, match="overran") as caught:
            scene.a.cq.poll()
        assert caught.value.errno == errno.EOVERFLOW
        assert scene.a.qp.state == QPState.ERR


def test_comm_est_when_the_first_packet_comes_before_rts() -> None:
    with End() as a, End() as b:
        own_a, own_b = prepare(a.qp), prepare(b.qp)
        complete(a.qp, own_a, own_b)
        b.qp.modify(
            QPAttr(
                qp_state=QPState.RTR,
                path_mtu=own_a.mtu,
                dest_qp_num=own_a.qp_num,
                rq_psn=own_a.psn,
                max_dest_rd_atomic=1,
                min_rnr_timer=1,
                ah_attr=rnic.AHAttr(dgid=own_a.gid),
            )
        )
        a.qp.post_send(SendWR(1, WROpcode.RDMA_WRITE, SIGNALED))
        assert a.wait_ok()
        event = b.ctx.get_async_event(EVENT_SECONDS)
        assert (event.event_type, event.element) == (EventType.COMM_EST, b.qp)
        event.ack()


# ---------------------------------------------------------------- what is refused before it is posted


@pytest.fixture
def small() -> Iterator[tuple[End, MR]]:
    cap = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1, max_inline_data=32)
    with Pair(cap=cap) as pair:
        yield pair.a, pair.a.memory(4096)


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({"opcode": WROpcode.TSO}, errno.EOPNOTSUPP, "opcode 10 is not supported"),
        ({"opcode": WROpcode.LOCAL_INV}, errno.EINVAL, "opcode 7 takes no scatter/gather elements"),
        ({"sges": 2}, errno.EINVAL, "2 scatter/gather elements, max_send_sge is 1"),
        ({"send_flags": SendFlags.INLINE}, errno.EINVAL, "4096 bytes inline, max_inline_data is"),
        (
            {"opcode": WROpcode.RDMA_READ, "send_flags": SendFlags.INLINE},
            errno.EINVAL,
            "INLINE is for SEND, RDMA_WRITE and ATOMIC_WRITE only",
        ),
        ({"send_flags": SendFlags.IP_CSUM}, errno.EOPNOTSUPP, "send flags 0x10 are not supported"),
    ],
)
def test_a_chain_is_posted_up_to_the_request_that_cannot_be(
    small: tuple[End, MR], more: dict[str, object], code: int, words: str
) -> None:
    end, mr = small
    fields = {"opcode": WROpcode.RDMA_WRITE, **more}
    sges = [SGE(mr)] * int(str(fields.pop("sges", 1)))
    bad = SendWR(3, sg_list=sges, **fields)  # type: ignore[arg-type]
    empty = [SendWR(i, WROpcode.RDMA_WRITE, SIGNALED) for i in (1, 2, 4)]
    with pytest.raises(PostError, match=words) as caught:
        end.qp.post_send([empty[0], empty[1], bad, empty[2]])
    assert caught.value.bad_wr is bad
    assert (caught.value.index, caught.value.errno, caught.value.verb) == (2, code, "post_send")
    assert [wc.wr_id for wc in end.wait_ok(2)] == [1, 2]
    assert end.cq.poll() == []


def test_a_queue_that_is_full_says_so_and_takes_work_again_when_it_has_room() -> None:
    with Pair(options=Options(timeout=20), cap=QPCap(max_send_wr=4, max_recv_wr=4)) as pair:
        end, room = pair.a, pair.a.qp.cap.max_send_wr
        pair.b.ctx.set_faults(Faults(loss=1.0))  # nothing is acknowledged
        wrs = [SendWR(i, WROpcode.RDMA_WRITE, SIGNALED) for i in range(room + 1)]
        with pytest.raises(PostError, match="the send queue is full") as caught:
            end.qp.post_send(wrs)
        assert (caught.value.errno, caught.value.index) == (errno.ENOMEM, room)
        assert caught.value.bad_wr is wrs[room]
        pair.b.ctx.set_faults(None)
        assert [wc.wr_id for wc in end.wait_ok(room)] == list(range(room))
        end.qp.post_send(wrs[room])
        assert end.wait_ok()[0].wr_id == room


def test_receives_are_refused_when_the_queue_is_full_or_in_reset(small: tuple[End, MR]) -> None:
    end, mr = small
    room = end.qp.cap.max_recv_wr
    with pytest.raises(PostError, match="the receive queue is full") as caught:
        end.qp.post_recv([RecvWR(i, [SGE(mr)]) for i in range(room + 1)])
    assert (caught.value.errno, caught.value.index) == (errno.ENOMEM, room)
    end.qp.modify(QPAttr(qp_state=QPState.RESET))
    with pytest.raises(PostError, match="from INIT on") as caught:
        end.qp.post_recv(RecvWR(1, [SGE(mr)]))
    assert (caught.value.errno, caught.value.index) == (errno.EINVAL, 0)


@pytest.mark.parametrize("state", [QPState.RESET, QPState.INIT])
def test_sends_are_refused_before_rts(state: QPState) -> None:
    with End() as end:
        if state == QPState.INIT:
            end.qp.modify(QPAttr(qp_state=state, pkey_index=0, port_num=1, qp_access_flags=AccessFlags(0)))
        with pytest.raises(PostError, match=f"in {state.name}; sending needs RTS") as caught:
            end.qp.post_send(SendWR(1, WROpcode.SEND))
        assert (caught.value.errno, caught.value.index) == (errno.EINVAL, 0)


def test_a_completion_that_succeeded_explains_itself_too(scene: Scene) -> None:
    scene.ask(WROpcode.RDMA_READ, wr_id=9)
    wc = scene.answer()
    assert (wc.ok, wc.opcode, wc.byte_len) == (True, WCOpcode.RDMA_READ, 64)
    assert wc.explain() == f"wr_id 9 on QP 0x{scene.a.qp.qp_num:06x}: completed"
