# SPDX-License-Identifier: Apache-2.0
"""The shared receive queue of an id, and a refusal because of vendor options."""

from __future__ import annotations

from errno import EBUSY, EINVAL

import pytest

from rdmacm.ends import WAIT, expect, resolved
from rnic import QPInitAttr, SRQAttr, SRQInitAttr, VerbsError
from rnic.rdmacm import ECE, ConnParam, EventChannel, EventType, PortSpace, create_id


@pytest.mark.roce
def test_an_ids_shared_queue_serves_its_queue_pair_and_its_peer_is_told() -> None:
    with resolved() as (ours, theirs, one):
        one.create_qp()
        one.connect()
        with expect(theirs, EventType.CONNECT_REQUEST).id as server:
            shared = server.create_srq(init_attr=SRQInitAttr(SRQAttr(max_wr=8, max_sge=1)))
            room, text = bytearray(64), bytearray(b"by way of the shared queue")
            with server.reg_msgs(room) as room_mr, one.reg_msgs(text) as mr:
                server.post_recv(room_mr, wr_id=9)  # before there is a queue pair
                assert server.create_qp().srq is shared
                server.accept()
                param = expect(ours, EventType.ESTABLISHED).param
                assert isinstance(param, ConnParam)
                assert param.srq
                one.post_send(mr)
                got = server.get_recv_comp(WAIT)
                assert (got.ok, got.wr_id) == (True, 9)
                assert room[: len(text)] == text
            with pytest.raises(VerbsError, match="in use by QP") as caught:
                server.destroy_srq()
            assert caught.value.errno == EBUSY
            server.destroy_qp()
            server.destroy_srq()
            assert shared.closed
            server.destroy_srq()


@pytest.mark.roce
def test_a_request_says_that_its_queue_pair_shares_receives() -> None:
    with resolved() as (_, theirs, one):
        one.create_srq()
        one.create_qp()
        one.connect(ConnParam(srq=False))  # the id's own queue pair decides
        request = expect(theirs, EventType.CONNECT_REQUEST)
        assert isinstance(request.param, ConnParam)
        assert request.param.srq
        request.id.destroy()


def test_queue_pairs_of_other_ids_may_share_it() -> None:
    with EventChannel() as channel, create_id(channel) as one, create_id(channel) as other:
        for cm_id in (one, other):
            cm_id.bind_addr(("127.0.0.1", 0))
        shared = one.create_srq()
        assert other.verbs
        cq = other.verbs.create_cq(4)
        assert other.create_qp(init_attr=QPInitAttr(cq, cq, srq=shared)).srq is shared
        with pytest.raises(VerbsError, match="in use by QP"):
            one.destroy()
        other.destroy_qp()
        cq.close()


def test_what_cannot_have_a_shared_queue_says_so() -> None:
    with create_id() as one:
        with pytest.raises(VerbsError, match="no device yet") as caught:
            one.create_srq()
        assert caught.value.errno == EINVAL
        one.bind_addr(("127.0.0.1", 0))
        one.create_srq()
        with pytest.raises(VerbsError, match="has a shared receive queue"):
            one.create_srq()
        one.destroy_srq()
        one.create_qp()
        with pytest.raises(VerbsError, match="has a queue pair"):
            one.create_srq()


@pytest.mark.roce
def test_vendor_options_are_a_reason_to_refuse() -> None:
    with resolved() as (ours, theirs, one):
        one.create_qp()
        one.set_local_ece(ECE(0x1234, 1))
        one.connect()
        with expect(theirs, EventType.CONNECT_REQUEST).id as server:
            server.reject_ece(b"none of these")
            event = expect(ours, EventType.REJECTED)
            assert event.status == 35
            assert event.param
            assert event.param.private_data.startswith(b"none of these")
            assert "vendor option not supported" in event.explain()


def test_a_datagram_service_refuses_without_a_reason() -> None:
    with resolved(PortSpace.UDP) as (ours, theirs, one):
        one.connect()
        with expect(theirs, EventType.CONNECT_REQUEST).id as server:
            with pytest.raises(VerbsError, match=r"use reject\(\)"):
                server.reject_ece()
            server.reject()
            expect(ours, EventType.UNREACHABLE)
