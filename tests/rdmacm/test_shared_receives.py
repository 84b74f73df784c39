# SPDX-License-Identifier: Apache-2.0
"""Shared receive queues of ids: one for the connections of a server."""

from __future__ import annotations

import errno

import pytest

import rnic
from rdmacm.ends import FAST, WAIT, expect, joined, listening, resolve, resolved
from rnic import SRQAttr, SRQInitAttr, SRQInitAttrEx, SRQType, VerbsError
from rnic.rdmacm import EventChannel, EventType, create_id

SMALL = SRQInitAttr(SRQAttr(max_wr=8, max_sge=1), srq_context="mine")


def test_a_server_has_one_queue_for_all_of_its_connections() -> None:
    with EventChannel() as ours, EventChannel() as theirs, listening(theirs) as listener:
        srq = listener.create_srq(init_attr=SMALL)
        assert (listener.srq, srq.srq_context, listener.pd) == (srq, "mine", srq.pd)
        memory = bytearray(200)
        with listener.reg_msgs(memory) as mr:
            for i in range(2):
                listener.post_recv(rnic.SGE(mr, 100 * i, 100), wr_id=i)
            for i in range(2):
                with create_id(ours, timing=FAST) as one:
                    resolve(one, ("127.0.0.1", listener.get_src_port()))
                    one.create_qp()
                    one.connect()
                    with expect(theirs, EventType.CONNECT_REQUEST).id as server:
                        cq = server.need_agent("test").context.create_cq(16)
                        server.create_qp(init_attr=rnic.QPInitAttr(cq, cq, srq=srq))
                        server.accept()
                        expect(ours, EventType.ESTABLISHED)
                        expect(theirs, EventType.ESTABLISHED)
                        with one.reg_msgs(bytearray(b"hello %d" % i)) as message:
                            one.post_send(message)
                            assert one.get_send_comp(WAIT).ok
                        (wc,) = wait(cq)
                        assert (wc.wr_id, bytes(memory[100 * i : 100 * i + 7])) == (i, b"hello %d" % i)
                        with pytest.raises(VerbsError, match="in use by QP") as caught:
                            listener.destroy_srq()
                        assert caught.value.errno == errno.EBUSY
                        server.destroy_qp()
                        cq.close()
            listener.destroy_srq()
            assert listener.srq is None
            listener.destroy_srq()


def wait(cq: rnic.CQ) -> list[rnic.WC]:
    while not (found := cq.poll(1)):
        pass
    return found


@pytest.mark.roce
def test_the_ids_own_queue_pair_takes_from_it_and_the_peer_is_told() -> None:
    with resolved() as (ours, theirs, one):
        srq = one.create_srq(init_attr=SMALL)
        qp = one.create_qp()
        assert qp.srq is srq
        memory = bytearray(64)
        with one.reg_msgs(memory) as mr:
            one.post_recv(mr, wr_id=5)
            one.connect()
            request = expect(theirs, EventType.CONNECT_REQUEST)
            assert request.param is not None
            assert request.param.srq is True  # type: ignore[union-attr]
            with request.id as server:
                server.create_qp()
                server.accept()
                accepted = expect(ours, EventType.ESTABLISHED)
                assert accepted.param.srq is False  # type: ignore[union-attr]
                expect(theirs, EventType.ESTABLISHED)
                with server.reg_msgs(bytearray(b"through the shared queue")) as message:
                    server.post_send(message)
                    assert server.get_send_comp(WAIT).ok
                wc = one.get_recv_comp(WAIT)
                assert (wc.wr_id, bytes(memory[:24])) == (5, b"through the shared queue")


def test_an_id_has_one_and_needs_a_device() -> None:
    with EventChannel() as channel, create_id(channel) as one:
        with pytest.raises(VerbsError, match="has no device yet") as caught:
            one.create_srq()
        assert caught.value.errno == errno.EINVAL
        one.bind_addr(("127.0.0.1", 0))
        one.create_srq()
        with pytest.raises(VerbsError, match="has a shared receive queue"):
            one.create_srq()
        with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as foreign:
            one.destroy_srq()
            with pytest.raises(VerbsError, match="another context"):
                one.create_srq(foreign)


@pytest.mark.roce
def test_an_extended_one_gets_what_it_lacks() -> None:
    with EventChannel() as channel, create_id(channel) as one:
        one.bind_addr(("127.0.0.1", 0))
        srq = one.create_srq_ex(SRQInitAttrEx(srq_type=SRQType.XRC))
        assert srq.cq is one.recv_cq
        assert one.recv_cq is not None
        assert one.recv_cq.channel is one.recv_cq_channel
        assert srq.get_srq_num()
        with pytest.raises(VerbsError, match="is an XRC one"):
            one.create_qp()
        assert isinstance(srq.xrcd, rnic.XRCD)
        with srq.xrcd.create_qp(), pytest.raises(VerbsError, match="in use by"):
            srq.xrcd.close()
        one.destroy_srq()
        made: list[object] = [one.srq, one.recv_cq, one.recv_cq_channel]
        assert made == [None] * 3
        plain = one.create_srq_ex(SRQInitAttrEx())
        assert plain.xrcd is None


def test_it_goes_with_its_id() -> None:
    with joined() as pair:
        srq = pair.listener.create_srq()
        pair.listener.destroy()
        assert srq.closed
