# SPDX-License-Identifier: Apache-2.0
"""rnic.connect_qps(): two queue pairs of one process, ready to send, in one call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

import rnic
from rnic import (
    MTU,
    SGE,
    AccessFlags,
    AHAttr,
    QPAttr,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    VerbsError,
    WROpcode,
)
from rnic.testing import connect
from transport.netdev import Netdevs
from waiting import until

HEADER = 40  # bytes ahead of a datagram that was received


class One:
    """A new queue pair, and what belongs to it."""

    def __init__(self, stack: ExitStack, ctx: rnic.Context, qp_type: QPType = QPType.RC) -> None:
        self.ctx = ctx
        self.pd, self.cq = stack.enter_context(ctx.alloc_pd()), stack.enter_context(ctx.create_cq(8))
        init = rnic.QPInitAttr(send_cq=self.cq, recv_cq=self.cq, qp_type=qp_type)
        self.qp = stack.enter_context(self.pd.create_qp(init))
        access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
        self.mr = stack.enter_context(self.pd.alloc_mr(256, access))

    def done(self) -> rnic.WC:
        """The next completion, which must be good."""
        found: list[rnic.WC] = []

        def polled() -> bool:
            found.extend(self.cq.poll(1))
            return bool(found)

        until(polled, "a completion")
        assert found[0].ok, found[0].explain()
        return found[0]


@contextmanager
def two(qp_type: QPType = QPType.RC, contexts: int = 1) -> Iterator[tuple[One, One]]:
    with ExitStack() as stack:
        opened = [stack.enter_context(rnic.open_device("roce_lo")) for _ in range(contexts)]
        yield One(stack, opened[0], qp_type), One(stack, opened[-1], qp_type)


def sent(a: One, b: One) -> bytes:
    """What b receives of a message of a's."""
    b.qp.post_recv(RecvWR(sg_list=[SGE(b.mr)]))
    a.mr.buf[:5] = b"hello"
    wr = SendWR(opcode=WROpcode.SEND, send_flags=SendFlags.SIGNALED, sg_list=[SGE(a.mr, 0, 5)])
    is_datagram = a.qp.qp_type is QPType.UD
    with ExitStack() as stack:
        if is_datagram:
            path = AHAttr(dgid=b.ctx.query_gid(1, 0))
            wr.ah = stack.enter_context(a.pd.create_ah(path))
            wr.remote_qpn, wr.remote_qkey = b.qp.qp_num, b.qp.query()[0].qkey or 0
        a.qp.post_send(wr)
        a.done()
        wc = b.done()
    return bytes(b.mr.buf[HEADER * is_datagram : wc.byte_len])


@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("qp_type", [QPType.RC, QPType.UC, QPType.UD])
def test_they_can_send_to_each_other(qp_type: QPType, contexts: int) -> None:
    with two(qp_type, contexts) as (a, b):
        rnic.connect_qps(a.qp, b.qp)
        assert {a.qp.state, b.qp.state} == {QPState.RTS}
        assert sent(a, b) == sent(b, a) == b"hello"


def test_queue_pairs_of_two_devices() -> None:
    """Their first addresses may be of two IP versions."""
    with Netdevs() as devs, ExitStack() as stack:
        devs.address(devs.a, "fd00:99::1/64")
        devs.address(devs.a, "10.99.0.1/24")
        lo, other = (stack.enter_context(rnic.open_device(f"roce_{name}")) for name in ("lo", devs.a))
        a, b = One(stack, lo), One(stack, other)
        rnic.connect_qps(a.qp, b.qp)
        assert sent(a, b) == sent(b, a) == b"hello"


def test_each_change_is_returned_and_shown_when_it_was_made() -> None:
    with two() as (a, b):
        states = []
        shown = []

        def show(change: rnic.QPChange) -> None:
            shown.append(change)
            states.append({a.qp.qp_num: a, b.qp.qp_num: b}[change.qp_num].qp.state)

        changes = rnic.connect_qps(a.qp, b.qp, access=AccessFlags.REMOTE_WRITE, show=show)
        assert changes == shown
        assert [one.attr.qp_state for one in changes] == states
        assert states.count(QPState.RTS) == 2
        assert {one.qp_num for one in changes} == {a.qp.qp_num, b.qp.qp_num}
        assert str(changes[0]) == (
            f"QP 0x{a.qp.qp_num:06x}: RESET to INIT: qp_access_flags=REMOTE_WRITE, pkey_index=0, port_num=1"
        )
        assert "ah_attr=AHAttr(dgid='::ffff:127.0.0.1', sgid_index=0, port_num=1)" in str(changes[2])
        for one in changes:
            assert str(one).startswith(f"QP 0x{one.qp_num:06x}: ")


def test_the_changes_lead_other_queue_pairs_too() -> None:
    """They are what a program gives to modify() itself."""
    with two() as (a, b):
        changes = rnic.connect_qps(a.qp, b.qp)
        for one in (a, b):
            one.qp.modify(QPAttr(qp_state=QPState.RESET))
        for change in changes:
            {a.qp.qp_num: a, b.qp.qp_num: b}[change.qp_num].qp.modify(change.attr)
        assert sent(a, b) == b"hello"


def test_what_is_asked_for_is_set_at_both() -> None:
    with two() as (a, b):
        rnic.connect_qps(
            a.qp,
            b.qp,
            access=AccessFlags.REMOTE_READ,
            path_mtu=MTU.MTU_512,
            timeout=9,
            retry_cnt=3,
            rnr_retry=2,
            min_rnr_timer=5,
            max_rd_atomic=4,
        )
        for one in (a, b):
            attr = one.qp.query()[0]
            assert (attr.qp_access_flags, attr.path_mtu) == (AccessFlags.REMOTE_READ, MTU.MTU_512)
            assert (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer) == (9, 3, 2, 5)
            assert (attr.max_rd_atomic, attr.max_dest_rd_atomic) == (4, 4)


def test_datagrams_have_the_q_key_that_was_asked_for() -> None:
    with two(QPType.UD) as (a, b):
        rnic.connect_qps(a.qp, b.qp, qkey=0x77)
        assert [one.qp.query()[0].qkey for one in (a, b)] == [0x77, 0x77]


def test_what_cannot_be_connected_is_refused_before_anything_changes() -> None:
    with two() as (a, b), two(QPType.UC) as (unreliable, _):
        with pytest.raises(ValueError, match="cannot be peers"):
            rnic.connect_qps(a.qp, unreliable.qp)
        with pytest.raises(ValueError, match="cannot be peers"):
            rnic.connect_qps(a.qp, a.qp)
        with pytest.raises(TypeError, match="two queue pairs, not int"):
            rnic.connect_qps(a.qp, 3)  # type: ignore[arg-type]
        assert {a.qp.state, unreliable.qp.state} == {QPState.RESET}
        b.qp.modify(QPAttr(qp_state=QPState.ERR))
        with pytest.raises(ValueError, match="ERR> is not in RESET"):
            rnic.connect_qps(a.qp, b.qp)
        assert a.qp.state is QPState.RESET


def test_what_modify_refuses_it_refuses() -> None:
    with two() as (a, b), pytest.raises(VerbsError, match="retry_cnt is 8"):
        rnic.connect_qps(a.qp, b.qp, retry_cnt=8)


def test_it_is_what_testing_connects_with() -> None:
    with two() as (a, b):
        connect(a.qp, b.qp)
        assert sent(a, b) == b"hello"
