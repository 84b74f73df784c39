# SPDX-License-Identifier: Apache-2.0
"""Tag matching over sockets: what its users write, from the SRQ to the last FIN."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic

import pytest

import rnic
from rnic import (
    SGE,
    AccessFlags,
    CQInitAttrEx,
    CreateCQWCFlags,
    Faults,
    OpsFlags,
    OpsWR,
    OpsWROpcode,
    QPInitAttr,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    SRQAttr,
    SRQInitAttrEx,
    SRQType,
    TMCap,
    WCFlags,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from rnic.testing import Options, connect

pytestmark = pytest.mark.roce

NO_TAG, RNDV, FIN, EAGER = range(4)
TMH = struct.Struct("!B3xIQ")
RVH = struct.Struct("!QII")
MATCHED = WCFlags.TM_MATCH | WCFlags.TM_DATA_VALID


class Sender:
    """An ordinary RC queue pair: nothing there knows of tags."""

    def __init__(self, stack: ExitStack) -> None:
        self.ctx = stack.enter_context(rnic.open_device("roce_lo"))
        self.pd = stack.enter_context(self.ctx.alloc_pd())
        self.cq = stack.enter_context(self.ctx.create_cq(256))
        self.fins = stack.enter_context(self.ctx.create_cq(256))
        self.qp = stack.enter_context(self.pd.create_qp(QPInitAttr(send_cq=self.cq, recv_cq=self.fins)))
        access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ
        self.mr = stack.enter_context(self.pd.alloc_mr(1 << 20, access))

    def send(self, opcode: int, tag: int, data: bytes, app_ctx: int = 0) -> None:
        message = TMH.pack(opcode, app_ctx, tag) + data
        self.mr.buf[: len(message)] = message
        wr = SendWR(1, send_flags=SendFlags.SIGNALED, sg_list=[SGE(self.mr, 0, len(message))])
        self.qp.post_send(wr)
        (wc,) = wait(self.cq)
        assert wc.status is WCStatus.SUCCESS

    def offer(self, tag: int, offset: int, nbytes: int) -> None:
        """A rendezvous: the peer may read it."""
        self.send(RNDV, tag, RVH.pack(self.mr.addr + offset, self.mr.rkey, nbytes))


class Receiver:
    """A queue pair that takes from a tag matching SRQ."""

    def __init__(self, stack: ExitStack, max_num_tags: int = 16) -> None:
        self.ctx = stack.enter_context(rnic.open_device("roce_lo"))
        self.pd = stack.enter_context(self.ctx.alloc_pd())
        self.cq = stack.enter_context(self.ctx.create_cq(256))
        init = SRQInitAttrEx(
            srq_type=SRQType.TM,
            pd=self.pd,
            cq=self.cq,
            attr=SRQAttr(max_wr=16, max_sge=4),
            tm_cap=TMCap(max_num_tags=max_num_tags, max_ops=8),
        )
        self.srq = stack.enter_context(self.ctx.create_srq_ex(init))
        self.qp = stack.enter_context(
            self.pd.create_qp(QPInitAttr(send_cq=self.cq, recv_cq=self.cq, srq=self.srq))
        )
        self.mr = stack.enter_context(self.pd.alloc_mr(1 << 20, AccessFlags.LOCAL_WRITE))

    def add(self, tag: int, offset: int, nbytes: int, **more: int) -> OpsWR:
        wr = OpsWR(sg_list=[SGE(self.mr, offset, nbytes)], tag=tag, recv_wr_id=tag, **more)
        self.srq.post_ops(wr)
        return wr


def wait(cq: rnic.CQ, n: int = 1, seconds: float = 60.0) -> list[rnic.WC]:
    found = cq.poll(n)
    deadline = monotonic() + seconds
    while len(found) < n and monotonic() < deadline:
        found += cq.poll(n - len(found))
    assert len(found) == n, found
    return found


@pytest.fixture
def ends() -> Iterator[tuple[Sender, Receiver]]:
    with ExitStack() as stack:
        a, b = Sender(stack), Receiver(stack)
        connect(a.qp, b.qp, Options(timeout=12))
        yield a, b


def test_an_eager_message_finds_its_receive(ends: tuple[Sender, Receiver]) -> None:
    a, b = ends
    b.add(7, 0, 100)
    b.add(8, 100, 100)
    a.send(EAGER, 8, b"eight")
    (wc,) = wait(b.cq)
    assert (wc.wr_id, wc.opcode, wc.byte_len) == (8, WCOpcode.TM_RECV, 5)
    assert wc.wc_flags == MATCHED
    assert bytes(b.mr.buf[100:105]) == b"eight"


def test_its_send_queue_is_the_devices_by_every_way(ends: tuple[Sender, Receiver]) -> None:
    """Also where the peer is on this host, and a message could go at once."""
    a, b = ends
    b.add(8, 0, 100)
    a.send(EAGER, 8, b"eight")
    wait(b.cq)
    for opcode in (WROpcode.SEND, WROpcode.RDMA_WRITE):
        wr = SendWR(1, opcode, SendFlags.SIGNALED, [SGE(b.mr, 0, 8)], a.mr.addr, a.mr.rkey)
        with pytest.raises(rnic.PostError, match="is the device's"):
            b.qp.post_send(wr)


def test_a_rendezvous_is_read_and_finished(ends: tuple[Sender, Receiver]) -> None:
    a, b = ends
    data = bytes(range(256)) * 1000
    a.mr.buf[4096 : 4096 + len(data)] = data
    fin = a.pd.alloc_mr(64, AccessFlags.LOCAL_WRITE)
    with fin:
        a.qp.post_recv(RecvWR(5, [SGE(fin)]))
        b.add(9, 0, len(data) + 10)
        a.offer(9, 4096, len(data))
        first, second = wait(b.cq, 2)
        assert (first.wr_id, first.wc_flags) == (9, WCFlags.TM_MATCH)
        assert (second.wr_id, second.wc_flags, second.byte_len) == (9, WCFlags.TM_DATA_VALID, len(data))
        assert bytes(b.mr.buf[: len(data)]) == data
        (wc,) = wait(a.fins)
        assert (wc.wr_id, wc.byte_len) == (5, 32)
        assert TMH.unpack_from(fin.buf) == (FIN, 0, 9)


def test_what_matches_nothing_is_the_programs(ends: tuple[Sender, Receiver]) -> None:
    a, b = ends
    b.srq.post_recv(RecvWR(3, [SGE(b.mr, 5000, 100)]))
    a.send(EAGER, 1, b"who knows", app_ctx=77)
    (wc,) = wait(b.cq)
    assert (wc.wr_id, wc.opcode, wc.byte_len) == (3, WCOpcode.TM_RECV, TMH.size + 9)
    assert wc.wc_flags == WCFlags(0)
    assert TMH.unpack_from(b.mr.buf, 5000) == (EAGER, 77, 1)
    waiting = OpsWR(1, flags=OpsFlags.SIGNALED, sg_list=[SGE(b.mr, 0, 10)], tag=2, recv_wr_id=2)
    b.srq.post_ops(waiting)
    (wc,) = wait(b.cq)
    assert (wc.opcode, wc.wc_flags) == (WCOpcode.TM_ADD, WCFlags.TM_SYNC_REQ)
    b.srq.post_ops(OpsWR(2, OpsWROpcode.TAG_SYNC, OpsFlags.SIGNALED, unexpected_cnt=1))
    (wc,) = wait(b.cq)
    assert (wc.wr_id, wc.opcode, wc.wc_flags) == (2, WCOpcode.TM_SYNC, WCFlags(0))
    a.send(EAGER, 2, b"two")
    (wc,) = wait(b.cq)
    assert (wc.wr_id, wc.opcode) == (2, WCOpcode.TM_RECV)


def test_a_receive_can_be_taken_back_until_a_message_has_it(ends: tuple[Sender, Receiver]) -> None:
    a, b = ends
    first, second = b.add(1, 0, 10), b.add(2, 10, 10)
    a.send(EAGER, 1, b"one")
    wait(b.cq)
    for handle, status in ((first.handle, WCStatus.TM_ERR), (second.handle, WCStatus.SUCCESS)):
        b.srq.post_ops(OpsWR(4, OpsWROpcode.TAG_DEL, OpsFlags.SIGNALED, handle=handle))
        (wc,) = wait(b.cq)
        assert (wc.wr_id, wc.opcode, wc.status) == (4, WCOpcode.TM_DEL, status)


def test_a_message_without_a_tag_is_told_apart(ends: tuple[Sender, Receiver]) -> None:
    a, b = ends
    b.srq.post_recv(RecvWR(3, [SGE(b.mr, 0, 100)]))
    a.send(NO_TAG, 0, b"plain")
    (wc,) = wait(b.cq)
    assert (wc.opcode, wc.wc_flags, wc.byte_len) == (WCOpcode.TM_NO_TAG, WCFlags(0), TMH.size + 5)


def test_a_rendezvous_without_room_is_left_to_the_program(ends: tuple[Sender, Receiver]) -> None:
    a, b = ends
    b.add(1, 0, 100)
    a.offer(1, 4096, 101)
    (wc,) = wait(b.cq)
    assert (wc.wr_id, wc.opcode, wc.byte_len) == (1, WCOpcode.TM_RECV, 32)
    assert wc.status is WCStatus.TM_RNDV_INCOMPLETE
    assert RVH.unpack_from(b.mr.buf, TMH.size) == (a.mr.addr + 4096, a.mr.rkey, 101)


def test_messages_and_rendezvous_over_a_bad_link(ends: tuple[Sender, Receiver]) -> None:
    a, b = ends
    count, size = 12, 3000
    for end in ends:
        end.ctx.set_faults(Faults(seed=4, loss=0.05, duplicate=0.05, reorder=0.05))
    fins = [a.pd.alloc_mr(64, AccessFlags.LOCAL_WRITE) for _ in range(count)]
    for i in range(count):
        a.mr.buf[8192 + i * size : 8192 + (i + 1) * size] = bytes([i + 1]) * size
        a.qp.post_recv(RecvWR(100 + i, [SGE(fins[i])]))
        b.add(i, i * size, size)
    rendezvous = 0
    for i in range(count):
        if i % 2:
            a.offer(i, 8192 + i * size, size)
            rendezvous += 1
        else:
            a.send(EAGER, i, bytes([i + 1]) * size)
    valid = {wc.wr_id for wc in wait(b.cq, count + rendezvous) if wc.wc_flags & WCFlags.TM_DATA_VALID}
    assert valid == set(range(count))
    for i in range(count):
        assert bytes(b.mr.buf[i * size : (i + 1) * size]) == bytes([i + 1]) * size
    assert {wc.byte_len for wc in wait(a.fins, rendezvous)} == {32}
    for end in ends:
        end.ctx.set_faults(None)
    a.qp.close()
    for fin in fins:
        fin.close()


def test_an_extended_queue_tells_tag_and_app_ctx() -> None:
    flags = CreateCQWCFlags.WITH_TM_INFO | CreateCQWCFlags.WITH_BYTE_LEN
    with ExitStack() as stack:
        a = Sender(stack)
        ctx = stack.enter_context(rnic.open_device("roce_lo"))
        pd = stack.enter_context(ctx.alloc_pd())
        cq = stack.enter_context(ctx.create_cq_ex(CQInitAttrEx(cqe=64, wc_flags=flags)))
        mr = stack.enter_context(pd.alloc_mr(4096, AccessFlags.LOCAL_WRITE))
        init = SRQInitAttrEx(srq_type=SRQType.TM, pd=pd, cq=cq, tm_cap=TMCap(max_num_tags=4))
        srq = stack.enter_context(ctx.create_srq_ex(init))
        qp = stack.enter_context(pd.create_qp(QPInitAttr(send_cq=cq, recv_cq=cq, srq=srq)))
        connect(a.qp, qp)
        srq.post_ops(OpsWR(sg_list=[SGE(mr)], tag=0x1200, mask=0xFF00, recv_wr_id=3))
        a.send(EAGER, 0x1234, b"x", app_ctx=99)
        deadline = monotonic() + 60
        while not cq.start_poll():
            assert monotonic() < deadline
        assert (cq.wr_id, cq.read_byte_len()) == (3, 1)
        assert cq.read_tm_info() == (0x1234, 99)
        cq.end_poll()


# ---------------------------------------------------------------- misuse


def test_its_send_queue_is_the_devices(ends: tuple[Sender, Receiver]) -> None:
    _, b = ends
    with pytest.raises(rnic.PostError, match="send by another queue pair") as caught:
        b.qp.post_send(SendWR(1))
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("wr", "number", "words"),
    [
        (OpsWR(opcode=9), errno.EINVAL, "opcode 9"),
        (OpsWR(flags=8), errno.EINVAL, "flags 0x8"),
    ],
)
def test_an_operation_that_is_none(ends: tuple[Sender, Receiver], wr: OpsWR, number: int, words: str) -> None:
    _, b = ends
    with pytest.raises(rnic.PostError, match=words) as caught:
        b.srq.post_ops(wr)
    assert caught.value.errno == number


def test_a_full_list_and_too_many_operations_at_once() -> None:
    with ExitStack() as stack:
        b = Receiver(stack, max_num_tags=4)
        with pytest.raises(rnic.PostError, match="max_num_tags 4") as caught:
            b.srq.post_ops([OpsWR(tag=i) for i in range(5)])
        assert (caught.value.errno, caught.value.index) == (errno.ENOMEM, 4)
        with pytest.raises(rnic.PostError, match="max_ops") as caught:
            b.srq.post_ops([OpsWR(opcode=OpsWROpcode.TAG_SYNC) for _ in range(9)])
        assert caught.value.index == 8


def test_an_ordinary_srq_matches_no_tags() -> None:
    with (
        rnic.open_device("roce_lo") as ctx,
        ctx.alloc_pd() as pd,
        pd.create_srq() as srq,
        pytest.raises(rnic.PostError, match="srq_type TM"),
    ):
        srq.post_ops(OpsWR())


@pytest.mark.parametrize(
    ("cap", "words"), [(TMCap(0), "max_num_tags is 0"), (TMCap(1, 1 << 20), "max_ops is 1048576")]
)
def test_what_a_list_cannot_hold(cap: TMCap, words: str) -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd, ctx.create_cq(16) as cq:
        with pytest.raises(rnic.VerbsError, match=words):
            ctx.create_srq_ex(SRQInitAttrEx(srq_type=SRQType.TM, pd=pd, cq=cq, tm_cap=cap))
        with pytest.raises(rnic.VerbsError, match="needs a cq"):
            ctx.create_srq_ex(SRQInitAttrEx(srq_type=SRQType.TM, pd=pd, tm_cap=TMCap(4)))


def test_only_rc_queue_pairs_match_tags() -> None:
    with ExitStack() as stack:
        b = Receiver(stack)
        init = QPInitAttr(send_cq=b.cq, recv_cq=b.cq, srq=b.srq, qp_type=QPType.UC)
        with pytest.raises(rnic.VerbsError, match="RC") as caught:
            b.pd.create_qp(init)
        assert caught.value.errno == errno.EOPNOTSUPP
        caps = b.ctx.query_device_ex().tm_caps
        assert caps.flags == rnic.TMCapFlags.RC
        assert caps.max_rndv_hdr_size >= 32


def test_its_cq_is_in_use_while_it_lives() -> None:
    with ExitStack() as stack:
        b = Receiver(stack)
        b.qp.close()
        with pytest.raises(rnic.VerbsError) as caught:
            b.cq.close()
        assert caught.value.errno == errno.EBUSY
