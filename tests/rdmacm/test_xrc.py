# SPDX-License-Identifier: Apache-2.0
"""Connections of XRC by RDMA-CM: the caller's queue pair sends, the listener's receives."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import pytest

import rnic
from rdmacm.ends import FAST, expect, resolve
from rnic import QPInitAttr, QPState, QPType, SendWR, SRQInitAttrEx, SRQType, VerbsError, WROpcode
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType, PortSpace, create_id
from rnic.testing import End


@contextlib.contextmanager
def calling(caller: QPType, listens: QPType) -> Iterator[tuple[EventChannel, EventChannel, CmId]]:
    """The channels of a caller and of a listener, and the caller's id, which knows its way."""
    with (
        EventChannel() as ours,
        EventChannel() as theirs,
        create_id(theirs, PortSpace.IB, qp_type=listens, timing=FAST) as listener,
        create_id(ours, PortSpace.IB, qp_type=caller, timing=FAST) as one,
    ):
        listener.bind_addr(("127.0.0.1", 0))
        listener.listen()
        resolve(one, ("127.0.0.1", listener.get_src_port()))
        yield ours, theirs, one


def moved(qp: rnic.QP, one: CmId, *states: QPState) -> None:
    for state in states:
        qp.modify(one.init_qp_attr(state))


@pytest.mark.roce
def test_a_message_goes_to_the_queue_that_it_names() -> None:
    with End() as end, calling(QPType.XRC_SEND, QPType.XRC_RECV) as (ours, theirs, one):
        memory = end.memory(64)
        with (
            end.ctx.open_xrcd() as xrcd,
            end.ctx.create_srq_ex(SRQInitAttrEx(end.pd, SRQType.XRC, xrcd, end.cq)) as srq,
            end.pd.create_qp(QPInitAttr(end.cq, qp_type=QPType.XRC_SEND, sq_sig_all=True)) as sends,
            xrcd.create_qp() as receives,
        ):
            moved(sends, one, QPState.INIT)
            one.connect(ConnParam(qp_num=sends.qp_num))
            request = expect(theirs, EventType.CONNECT_REQUEST)
            assert request.param.qp_num == sends.qp_num  # type: ignore[union-attr]
            with request.id as server:
                moved(receives, server, QPState.INIT, QPState.RTR, QPState.RTS)
                server.accept(ConnParam(qp_num=receives.qp_num))
                expect(ours, EventType.CONNECT_RESPONSE)
                moved(sends, one, QPState.RTR, QPState.RTS)
                one.establish()
                expect(theirs, EventType.ESTABLISHED)
                srq.post_recv(rnic.RecvWR(7, [rnic.SGE(memory, 32, 32)]))
                memory.buf[:5] = b"hello"
                wr = SendWR(8, WROpcode.SEND, 0, [rnic.SGE(memory, 0, 5)], remote_srqn=srq.get_srq_num())
                sends.post_send(wr)
                assert {wc.wr_id for wc in end.wait(2) if wc.ok} == {7, 8}
                assert bytes(memory.buf[32:37]) == b"hello"


@pytest.mark.parametrize(
    "kinds", [(QPType.XRC_SEND, QPType.RC), (QPType.RC, QPType.XRC_RECV)], ids=["xrc to rc", "rc to xrc"]
)
def test_a_request_of_another_kind_is_refused(kinds: tuple[QPType, QPType]) -> None:
    with calling(*kinds) as (ours, _, one):
        one.connect(ConnParam(qp_num=0x1234))
        expect(ours, EventType.REJECTED)


def test_an_id_makes_no_queue_pair_of_xrc() -> None:
    with calling(QPType.XRC_SEND, QPType.XRC_RECV) as (_, _, one):
        with pytest.raises(VerbsError, match="makes queue pairs of XRC itself") as caught:
            one.create_qp()
        assert caught.value.errno == errno.EINVAL
