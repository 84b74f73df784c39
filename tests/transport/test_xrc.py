# SPDX-License-Identifier: Apache-2.0
"""Extended reliable connections over sockets: one connection, many shared receive queues behind it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

import rnic
from rnic import (
    MTU,
    SGE,
    AccessFlags,
    EventType,
    Faults,
    QPAttachCompCntrAttr,
    QPAttachCompCntrOp,
    QPAttr,
    QPInitAttr,
    QPOpenAttr,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    SRQAttr,
    SRQInitAttrEx,
    SRQType,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from rnic.testing import ALL_ACCESS, End, Options, connect
from scarce import no_descriptors
from waiting import until

pytestmark = pytest.mark.roce

SLOT, SLOTS = 8192, 32
NEW, ONLY_NEW = os.O_CREAT, os.O_CREAT | os.O_EXCL


class Queue:
    """A shared receive queue with memory, protection domain and completion queue of its own."""

    def __init__(self, side: Side, xrcd: rnic.XRCD) -> None:
        self.pd = side.enter(side.ctx.alloc_pd())
        self.cq = side.enter(side.ctx.create_cq(64, side.channel))
        self.mr = side.enter(self.pd.alloc_mr(SLOT * SLOTS, ALL_ACCESS))
        init = SRQInitAttrEx(self.pd, SRQType.XRC, xrcd, self.cq, SRQAttr(max_wr=SLOTS, max_sge=2))
        self.srq = side.enter(side.ctx.create_srq_ex(init))

    def post(self, *slots: int, nbytes: int = SLOT) -> None:
        self.srq.post_recv([RecvWR(i, [SGE(self.mr, i * SLOT, nbytes)]) for i in slots])

    def slot(self, i: int, nbytes: int) -> bytes:
        return bytes(self.mr.buf[i * SLOT : i * SLOT + nbytes])


class Side(End):
    """Either side: senders have XRC_SEND queue pairs, receivers a domain with queues."""

    def __init__(self) -> None:
        super().__init__(cqe=1024)
        self.mr = self.memory(SLOT)
        self.xrcd = self.enter(self.ctx.open_xrcd())

    def enter(self, thing):  # type: ignore[no-untyped-def]
        return self._stack.enter_context(thing)

    def sender(self) -> rnic.QP:
        init = QPInitAttr(self.cq, qp_type=QPType.XRC_SEND, sq_sig_all=True)
        qp: rnic.QP = self.enter(self.pd.create_qp(init))
        return qp

    def receiver(self) -> rnic.QP:
        qp: rnic.QP = self.enter(self.xrcd.create_qp())
        return qp

    def wait_at(self, queue: Queue) -> list[rnic.WC]:
        mine, self.cq = self.cq, queue.cq
        try:
            return self.wait()
        finally:
            self.cq = mine


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    with Side() as a, Side() as b:
        yield a, b


def connected(a: Side, b: Side, **options: int) -> tuple[rnic.QP, rnic.QP]:
    ends = a.sender(), b.receiver()
    connect(*ends, Options(path_mtu=MTU.MTU_1024, **options))  # type: ignore[arg-type]
    return ends


def send(a: Side, qp: rnic.QP, srq: rnic.SRQ | int, payload: bytes, **more: object) -> None:
    number = srq if isinstance(srq, int) else srq.get_srq_num()
    a.mr.buf[: len(payload)] = payload
    more = {"opcode": WROpcode.SEND, "sg_list": [SGE(a.mr, 0, len(payload))], **more}
    qp.post_send(SendWR(remote_srqn=number, **more))  # type: ignore[arg-type]


def test_one_connection_serves_every_queue_of_the_domain(sides: tuple[Side, Side]) -> None:
    a, b = sides
    ours, theirs = connected(a, b)
    queues = [Queue(b, b.xrcd) for _ in range(4)]
    assert len({queue.srq.get_srq_num() for queue in queues}) == 4
    for i in range(12):
        queue = queues[i * 3 % 4]
        queue.post(i)
        send(a, ours, queue.srq, b"%d" % i * 2000, opcode=WROpcode.SEND_WITH_IMM, imm_data=i)
        a.wait_ok()
        (wc,) = b.wait_at(queue)
        assert (wc.wr_id, wc.status, wc.opcode, wc.imm_data) == (i, WCStatus.SUCCESS, WCOpcode.RECV, i)
        assert (wc.qp_num, wc.src_qp) == (theirs.qp_num, ours.qp_num)
        assert queue.slot(i, wc.byte_len) == b"%d" % i * 2000


def test_many_connections_share_a_queue(sides: tuple[Side, Side]) -> None:
    a, b = sides
    queue = Queue(b, b.xrcd)
    pairs = [connected(a, b) for _ in range(3)]
    queue.post(*range(9))
    for i in range(9):
        send(a, pairs[i % 3][0], queue.srq, b"%d" % i * 100)
        a.wait_ok()
        (wc,) = b.wait_at(queue)
        assert (wc.wr_id, wc.qp_num) == (i, pairs[i % 3][1].qp_num)
        assert queue.slot(i, wc.byte_len) == b"%d" % i * 100


def test_memory_is_read_and_written_under_the_queues_protection_domain(sides: tuple[Side, Side]) -> None:
    a, b = sides
    ours, _ = connected(a, b)
    queue, other = Queue(b, b.xrcd), Queue(b, b.xrcd)
    where = {"remote_addr": queue.mr.addr, "rkey": queue.mr.rkey}
    send(a, ours, queue.srq, b"written" * 700, opcode=WROpcode.RDMA_WRITE, **where)
    a.wait_ok()
    assert queue.slot(0, 4900) == b"written" * 700
    queue.mr.buf[:4900] = b"reading" * 700
    send(a, ours, queue.srq, bytes(4900), opcode=WROpcode.RDMA_READ, **where)
    a.wait_ok()
    assert bytes(a.mr.buf[:4900]) == b"reading" * 700
    queue.mr.buf[:8] = (41).to_bytes(8, sys.byteorder)
    send(a, ours, queue.srq, bytes(8), opcode=WROpcode.ATOMIC_FETCH_AND_ADD, compare_add=1, **where)
    a.wait_ok()
    assert int.from_bytes(queue.slot(0, 8), sys.byteorder) == 42
    assert int.from_bytes(a.mr.buf[:8], sys.byteorder) == 41
    queue.post(3)
    send(a, ours, queue.srq, b"!", opcode=WROpcode.RDMA_WRITE_WITH_IMM, imm_data=7, **where)
    a.wait_ok()
    (wc,) = b.wait_at(queue)
    assert (wc.wr_id, wc.opcode, wc.imm_data, wc.byte_len) == (3, WCOpcode.RECV_RDMA_WITH_IMM, 7, 1)
    send(a, ours, other.srq, b"no", opcode=WROpcode.RDMA_WRITE, **where)
    (wc,) = a.wait()
    assert wc.status is WCStatus.REM_ACCESS_ERR
    assert queue.slot(0, 1) == b"!"


def test_a_number_of_no_queue_of_the_domain_is_an_invalid_request(sides: tuple[Side, Side]) -> None:
    a, b = sides
    foreign = Queue(b, b.enter(b.ctx.open_xrcd()))
    foreign.post(0)
    closed = Queue(b, b.xrcd)
    number = closed.srq.get_srq_num()
    closed.srq.close()
    for srq in (foreign.srq, number):
        ours, theirs = connected(a, b)
        send(a, ours, srq, b"hello")
        (wc,) = a.wait()
        assert wc.status is WCStatus.REM_INV_REQ_ERR
        events = [b.ctx.get_async_event(60) for _ in range(2)]
        assert [(event.event_type, event.element) for event in events] == [
            (EventType.QP_REQ_ERR, theirs),
            (EventType.QP_LAST_WQE_REACHED, theirs),
        ]
        assert theirs.state is QPState.ERR
    assert foreign.cq.poll() == []


def test_an_empty_queue_makes_the_peer_wait(sides: tuple[Side, Side]) -> None:
    a, b = sides
    ours, _ = connected(a, b, min_rnr_timer=1)
    queue = Queue(b, b.xrcd)
    send(a, ours, queue.srq, b"wait")
    until(lambda: ours.statistics().counters.rnr_nak_received, "it is told that there is no receive")
    assert not a.cq.poll(1)
    queue.post(0)
    a.wait_ok()
    b.wait_at(queue)


def test_the_limit_is_told(sides: tuple[Side, Side]) -> None:
    a, b = sides
    ours, _ = connected(a, b)
    queue = Queue(b, b.xrcd)
    queue.post(0, 1)
    queue.srq.modify(SRQAttr(srq_limit=2))
    send(a, ours, queue.srq, b"x")
    event = b.ctx.get_async_event(60)
    assert (event.event_type, event.element) == (EventType.SRQ_LIMIT_REACHED, queue.srq)


def test_all_arrives_through_loss_duplication_and_reordering(sides: tuple[Side, Side]) -> None:
    a, b = sides
    ours, _ = connected(a, b, timeout=12)
    queues = [Queue(b, b.xrcd) for _ in range(2)]
    for i, side in enumerate((a, b)):
        side.ctx.set_faults(Faults(seed=i + 1, loss=0.05, duplicate=0.05, reorder=0.05))
    for i in range(60):
        queue = queues[i % 2]
        queue.post(i % SLOTS)
        payload = os.urandom(1 + i * 131 % SLOT)
        send(a, ours, queue.srq, payload)
        a.wait_ok()
        (wc,) = b.wait_at(queue)
        assert (wc.wr_id, wc.byte_len) == (i % SLOTS, len(payload))
        assert queue.slot(i % SLOTS, len(payload)) == payload
    for side in (a, b):
        side.ctx.set_faults(None)


# ---------------------------------------------------------------- queue pairs


def test_a_queue_pair_lives_until_all_who_opened_it_have_closed_it(sides: tuple[Side, Side]) -> None:
    a, b = sides
    ours, first = connected(a, b)
    queue = Queue(b, b.xrcd)
    second = b.ctx.open_qp(QPOpenAttr(b.xrcd, first.qp_num, qp_context="second"))
    assert (second.qp_num, second.qp_type, second.state) == (first.qp_num, QPType.XRC_RECV, QPState.RTS)
    assert (second.qp_context, second.pd, second.xrcd) == ("second", None, b.xrcd)
    first.close()
    queue.post(0)
    send(a, ours, queue.srq, b"still here")
    a.wait_ok()
    b.wait_at(queue)
    number = second.qp_num
    third = b.xrcd.open_qp(number)
    third.modify(QPAttr(qp_state=QPState.ERR))
    assert second.query()[0].qp_state is QPState.ERR
    found = {b.ctx.get_async_event(60).element for _ in range(2)}
    assert found == {second, third}
    second.close()
    third.close()
    with pytest.raises(rnic.VerbsError, match="has no queue pair") as caught:
        b.xrcd.open_qp(number)
    assert caught.value.errno == errno.EINVAL


def test_a_handle_stays_until_its_events_are_acknowledged(sides: tuple[Side, Side]) -> None:
    a, b = sides
    _, first = connected(a, b)
    second = b.ctx.open_qp(QPOpenAttr(b.xrcd, first.qp_num))
    first.modify(QPAttr(qp_state=QPState.ERR))
    events = {event.element: event for event in (b.ctx.get_async_event(60) for _ in range(2))}
    events[first].ack()
    first.close()
    with pytest.raises(rnic.VerbsError, match="unacknowledged asynchronous events: 1;") as caught:
        second.close()
    assert caught.value.errno == errno.EBUSY
    events[second].ack()
    second.close()


def test_a_counter_is_the_queue_pairs_and_not_the_handles(sides: tuple[Side, Side]) -> None:
    a, b = sides
    queue = Queue(b, b.xrcd)
    ours, theirs = a.sender(), b.xrcd.create_qp()
    again = b.xrcd.open_qp(theirs.qp_num)
    counter = b.ctx.create_comp_cntr()
    with pytest.raises(rnic.VerbsError) as caught:
        theirs.attach_comp_cntr(counter, QPAttachCompCntrAttr(QPAttachCompCntrOp.SEND))
    assert caught.value.errno == errno.EOPNOTSUPP
    again.attach_comp_cntr(counter, QPAttachCompCntrAttr(QPAttachCompCntrOp.RECV))
    with pytest.raises(rnic.VerbsError, match="have a counter already"):
        theirs.attach_comp_cntr(counter, QPAttachCompCntrAttr(QPAttachCompCntrOp.RECV))
    connect(ours, theirs, Options(path_mtu=MTU.MTU_1024))
    queue.post(0)
    send(a, ours, queue.srq, b"counted")
    a.wait_ok()
    b.wait_at(queue)
    assert counter.read() == 1
    again.close()
    with pytest.raises(rnic.VerbsError, match="until they are destroyed"):
        counter.close()
    theirs.close()
    counter.close()


def test_what_cannot_be_opened(sides: tuple[Side, Side]) -> None:
    _, b = sides
    qp, other = b.receiver(), b.enter(b.ctx.open_xrcd())
    cases = [
        (QPOpenAttr(other, qp.qp_num), "has no queue pair"),
        (QPOpenAttr(b.xrcd, b.qp.qp_num), "has no queue pair"),
        (QPOpenAttr(b.xrcd, qp.qp_num, QPType.RC), "XRC_RECV ones"),
    ]
    for attr, words in cases:
        with pytest.raises(rnic.VerbsError, match=words) as caught:
            b.ctx.open_qp(attr)
        assert caught.value.errno == errno.EINVAL


def test_nothing_is_posted_that_goes_nowhere(sides: tuple[Side, Side]) -> None:
    a, b = sides
    ours, theirs = connected(a, b)
    posts = [
        (lambda: ours.post_recv(RecvWR()), "receives nothing"),
        (lambda: theirs.post_recv(RecvWR()), "post_recv of the SRQ"),
        (lambda: theirs.post_send(SendWR()), "does not send"),
        (lambda: ours.post_send(SendWR(remote_srqn=1 << 24)), "24 bits"),
    ]
    for post, words in posts:
        with pytest.raises(rnic.PostError, match=words) as caught:
            post()
        assert caught.value.errno == errno.EINVAL
    assert (ours.cap.max_recv_wr, ours.cap.max_recv_sge) == (0, 0)
    assert theirs.cap == rnic.QPCap(0, 0, 0, 0, 0)
    _, init = theirs.query()
    assert (init.qp_type, init.xrcd, init.send_cq) == (QPType.XRC_RECV, b.xrcd, None)


def test_a_sending_queue_pair_may_be_given_a_recv_cq(sides: tuple[Side, Side]) -> None:
    a, _ = sides
    with a.pd.create_qp(QPInitAttr(a.cq, a.cq, QPType.XRC_SEND)) as qp, a.ctx.create_cq(1) as other:
        assert qp.qp_type is QPType.XRC_SEND
        with a.pd.create_qp(QPInitAttr(a.cq, other, QPType.XRC_SEND)):
            pass


def test_what_queue_pairs_and_queues_cannot_be_made_of(sides: tuple[Side, Side]) -> None:
    a, b = sides
    queue = Queue(b, b.xrcd)
    makes = [
        (lambda: b.pd.create_qp(QPInitAttr(b.cq, b.cq, QPType.XRC_RECV)), errno.EINVAL, "of an XRC domain"),
        (
            lambda: b.pd.create_qp(QPInitAttr(b.cq, qp_type=QPType.XRC_SEND, srq=queue.srq)),
            errno.EINVAL,
            "is an XRC one",
        ),
        (lambda: b.pd.create_qp(QPInitAttr(qp_type=QPType.XRC_SEND)), errno.EINVAL, "needs a send_cq"),
        (lambda: b.pd.create_qp(QPInitAttr(b.cq, b.cq, srq=queue.srq)), errno.EINVAL, "is an XRC one"),
        (lambda: b.xrcd.create_qp(QPInitAttr(b.cq, b.cq, QPType.RC)), errno.EINVAL, "are XRC_RECV"),
        (
            lambda: b.xrcd.create_qp(QPInitAttr(b.cq, qp_type=QPType.XRC_RECV)),
            errno.EINVAL,
            "no completion queue",
        ),
        (
            lambda: b.pd.create_qp(QPInitAttr(b.cq, b.cq, xrcd=b.xrcd)),
            errno.EINVAL,
            "XRCD.create_qp",
        ),
        (lambda: b.ctx.create_srq_ex(SRQInitAttrEx(b.pd, SRQType.TM)), errno.EINVAL, "needs a cq"),
        (lambda: b.ctx.create_srq_ex(SRQInitAttrEx()), errno.EINVAL, "needs a pd"),
        (lambda: b.ctx.create_srq_ex(SRQInitAttrEx(b.pd, SRQType.XRC)), errno.EINVAL, "needs an xrcd"),
        (lambda: b.ctx.create_srq_ex(SRQInitAttrEx(b.pd, xrcd=b.xrcd)), errno.EINVAL, "give srq_type"),
        (
            lambda: b.ctx.create_srq_ex(SRQInitAttrEx(b.pd, SRQType.XRC, a.xrcd, b.cq)),
            errno.EINVAL,
            "of this device",
        ),
        (
            lambda: b.ctx.create_srq_ex(
                SRQInitAttrEx(b.pd, SRQType.XRC, b.xrcd, b.cq, SRQAttr(max_wr=1 << 20))
            ),
            errno.EINVAL,
            "max_wr is 1048576",
        ),
    ]
    for make, number, words in makes:
        with pytest.raises(rnic.VerbsError, match=words) as caught:
            make()
        assert caught.value.errno == number


def test_an_ordinary_queue_can_be_made_the_extended_way(sides: tuple[Side, Side]) -> None:
    _, b = sides
    with b.ctx.create_srq_ex(SRQInitAttrEx(b.pd, attr=SRQAttr(max_wr=5, max_sge=2))) as srq:
        assert srq.query().max_wr == 8
        with pytest.raises(rnic.VerbsError, match="only XRC") as caught:
            srq.get_srq_num()
        assert caught.value.errno == errno.EOPNOTSUPP
        b.enter(b.pd.create_qp(QPInitAttr(b.cq, b.cq, srq=srq))).close()
    assert rnic.DeviceCap.XRC in b.ctx.query_device().device_cap_flags


# ---------------------------------------------------------------- domains


def test_what_is_in_use_stays(sides: tuple[Side, Side]) -> None:
    _, b = sides
    with b.ctx.open_xrcd() as xrcd:
        queue, qp = Queue(b, xrcd), xrcd.create_qp()
        for thing, user in ((xrcd, "QP"), (queue.cq, "SRQ"), (queue.pd, "SRQ")):
            with pytest.raises(rnic.VerbsError, match=f"in use by .*{user}") as caught:
                thing.close()
            assert caught.value.errno == errno.EBUSY
        qp.close()
        queue.srq.close()


def test_a_file_has_one_domain(sides: tuple[Side, Side], tmp_path: Path) -> None:
    a, b = sides
    ours, theirs = connected(a, b)
    with (tmp_path / "domain").open("w") as file, (tmp_path / "domain").open() as same:
        with pytest.raises(rnic.VerbsError, match="O_CREAT makes one") as caught:
            b.ctx.open_xrcd(file.fileno(), 0)
        assert caught.value.errno == errno.EAGAIN
        with b.ctx.open_xrcd(file.fileno(), ONLY_NEW) as one, b.ctx.open_xrcd(same.fileno(), 0) as two:
            with pytest.raises(rnic.VerbsError, match="O_EXCL") as caught:
                b.ctx.open_xrcd(file.fileno(), ONLY_NEW)
            assert caught.value.errno == errno.EINVAL
            with b.ctx.open_xrcd(file.fileno(), NEW):
                pass
            ours, theirs = a.sender(), one.create_qp()
            connect(ours, theirs)
            queue = Queue(b, two)
            queue.post(0)
            send(a, ours, queue.srq, b"one domain")
            a.wait_ok()
            b.wait_at(queue)
            two.open_qp(theirs.qp_num).close()
            theirs.close()
            queue.srq.close()
        with b.ctx.open_xrcd(file.fileno(), ONLY_NEW):  # the last one that was open has closed it
            pass


def test_contexts_share_the_domain_of_a_file(sides: tuple[Side, Side], tmp_path: Path) -> None:
    a, b = sides
    with (tmp_path / "domain").open("w") as file:
        with b.ctx.open_xrcd(file.fileno()) as theirs, a.ctx.open_xrcd(file.fileno(), 0) as ours:
            ends = [a.sender(), theirs.create_qp()]
            connect(*ends)
            queue, foreign = Queue(b, theirs), Queue(a, ours)
            queue.post(0)
            send(a, ends[0], queue.srq, b"each has its part")
            a.wait_ok()
            b.wait_at(queue)
            with pytest.raises(rnic.VerbsError, match="not this context's") as caught:
                ours.open_qp(ends[1].qp_num)
            assert caught.value.errno == errno.EOPNOTSUPP
            with pytest.raises(rnic.VerbsError, match="O_EXCL") as caught:
                a.ctx.open_xrcd(file.fileno(), ONLY_NEW)
            assert caught.value.errno == errno.EINVAL
            foreign.post(0)
            send(a, ends[0], foreign.srq, b"not of this part")
            assert [wc.status for wc in a.wait()] == [WCStatus.REM_INV_REQ_ERR]
            ends[1].close()
            queue.srq.close()
            foreign.srq.close()
        with a.ctx.open_xrcd(file.fileno(), ONLY_NEW):
            pass


HOLD = """
import os, sys, rnic
with rnic.open_device("roce_lo") as ctx, open(sys.argv[1]) as file, ctx.open_xrcd(file.fileno()):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_dies_leaves_no_domain(sides: tuple[Side, Side], tmp_path: Path) -> None:
    a, _ = sides
    path = tmp_path / "domain"
    with path.open("w") as file:
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=pipe, stdout=pipe) as holder:
            out: IO[bytes] | None = holder.stdout
            assert out is not None
            assert out.readline() == b"open\n"
            with a.ctx.open_xrcd(file.fileno(), 0):
                pass
            with pytest.raises(rnic.VerbsError, match="O_EXCL") as caught:
                a.ctx.open_xrcd(file.fileno(), ONLY_NEW)
            assert caught.value.errno == errno.EINVAL
            holder.kill()
            holder.wait()
        with pytest.raises(rnic.VerbsError, match="O_CREAT makes one"):
            a.ctx.open_xrcd(file.fileno(), 0)


def test_a_new_file_has_no_domain_of_an_old_one(sides: tuple[Side, Side], tmp_path: Path) -> None:
    a, _ = sides
    path = tmp_path / "domain"
    for _ in range(2):  # file systems give a number again that is free
        with path.open("w") as file:
            a.enter(a.ctx.open_xrcd(file.fileno(), ONLY_NEW))
        path.unlink()


TWO = """
import os, sys, rnic
with rnic.open_device("one") as one, rnic.open_device("two") as two, open(sys.argv[1]) as file:
    with one.open_xrcd(file.fileno(), os.O_CREAT | os.O_EXCL):
        two.open_xrcd(file.fileno(), os.O_CREAT | os.O_EXCL).close()
"""


def test_each_device_has_a_domain_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "domain"
    path.touch()
    names = os.environ | {"RNIC_NAMES": "one=lo,two=lo"}
    subprocess.run([sys.executable, "-c", TWO, path], check=True, env=names)


def test_no_descriptor_for_the_domain_of_a_file(sides: tuple[Side, Side], tmp_path: Path) -> None:
    a, _ = sides
    with (tmp_path / "domain").open("w") as file, no_descriptors(), pytest.raises(rnic.VerbsError) as caught:
        a.ctx.open_xrcd(file.fileno(), ONLY_NEW)
    assert caught.value.errno == errno.EMFILE


def test_what_is_no_domain(sides: tuple[Side, Side]) -> None:
    _, b = sides
    cases = [(None, 0, errno.EINVAL), (None, os.O_TRUNC, errno.EINVAL), (9999, NEW, errno.EBADF)]
    for fd, oflags, number in cases:
        with pytest.raises(rnic.VerbsError) as caught:
            b.ctx.open_xrcd(fd, oflags)
        assert caught.value.errno == number


def test_the_receiver_grants_what_its_queue_pair_does(sides: tuple[Side, Side]) -> None:
    a, b = sides
    queue, ours, theirs = Queue(b, b.xrcd), a.sender(), b.receiver()
    connect(ours, theirs, Options(), Options(access=AccessFlags(0)))
    send(a, ours, queue.srq, b"x", opcode=WROpcode.RDMA_WRITE, remote_addr=queue.mr.addr, rkey=queue.mr.rkey)
    (wc,) = a.wait()
    assert wc.status is WCStatus.REM_INV_REQ_ERR
