# SPDX-License-Identifier: Apache-2.0
"""A context that joins others on their address."""

from __future__ import annotations

import resource
import time
from contextlib import ExitStack

import rnic
from rnic import AHAttr, QPAttr, QPCap, QPInitAttr, QPState, QPType, SendFlags, SendWR, WROpcode
from transport.netdev import Netdevs

PACKETS, ROUNDS = 32, 10  # more than wait in a slot's socket
QKEY = 0x1234


def datagram_qp(ctx: rnic.Context, stack: ExitStack) -> tuple[rnic.PD, rnic.QP]:
    pd = stack.enter_context(ctx.alloc_pd())
    cq = stack.enter_context(ctx.create_cq(PACKETS * ROUNDS))
    attr = QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=QPType.UD, cap=QPCap(max_send_wr=PACKETS * ROUNDS))
    qp = stack.enter_context(pd.create_qp(attr))
    qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qkey=QKEY))
    qp.modify(QPAttr(qp_state=QPState.RTR))
    qp.modify(QPAttr(qp_state=QPState.RTS, sq_psn=0))
    return pd, qp


def datagram(ah: rnic.AH, target: rnic.QP) -> SendWR:
    return SendWR(
        opcode=WROpcode.SEND, send_flags=SendFlags.SIGNALED, ah=ah, remote_qpn=target.qp_num, remote_qkey=QKEY
    )


class WithoutLoopback(Netdevs):
    def _make(self) -> None:
        super()._make()
        self.address(self.a, "10.82.0.1/24")
        self.link("lo", "down")


def test_it_waits_for_no_place_that_it_cannot_learn() -> None:
    """Without lo the members of an address cannot hear each other."""
    with WithoutLoopback() as link:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        rnic.open_device(f"roce_{link.a}").close()
        assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before < 1000, "one for each look"


def test_packets_come_straight_to_it_as_soon_as_it_is_open() -> None:
    """What falls to another member comes by a queue of ten: unreliable services lose the rest."""
    with ExitStack() as stack:
        pd, sender = datagram_qp(stack.enter_context(rnic.open_device("roce_lo")), stack)
        for _ in range(ROUNDS):
            ctx = stack.enter_context(rnic.open_device("roce_lo"))
            assert ctx.counters()["port_remaps"] > 0, "its place among the others is known"
            _, target = datagram_qp(ctx, stack)
            ah = stack.enter_context(pd.create_ah(AHAttr(dgid=ctx.query_gid(1, 0), sgid_index=0, port_num=1)))
            sender.post_send([datagram(ah, target) for _ in range(PACKETS)])
            deadline = time.monotonic() + 60
            while ctx.counters()["rx_packets"] < PACKETS and time.monotonic() < deadline:
                sender.send_cq.poll(PACKETS)
            counters = ctx.counters()
            assert (counters["rx_packets"], counters["forwarded_in"]) == (PACKETS, 0)
