# SPDX-License-Identifier: Apache-2.0
"""Queue pairs for datagrams, and a subscriber's inbox: its queue pair in the group, with its receives."""

from __future__ import annotations

from contextlib import ExitStack
from errno import EOPNOTSUPP
from typing import TYPE_CHECKING

from rnic import QPAttr, QPCap, QPInitAttr
from rnic._nic.nic import SGE, RecvWR
from rnic.enums import AccessFlags, QPState, QPType, Transport
from rnic.errors import VerbsError
from rnic.patterns.chain import QueueError
from rnic.patterns.pubsub.feed import GRH
from rnic.patterns.wait import How, Waiter

if TYPE_CHECKING:
    from rnic import GID, PD, QP, Context
    from rnic._nic.nic import WC
    from rnic.patterns.pubsub.feed import Feed

__all__ = ["Inbox", "check_device", "queue_pair"]

ROOM = GRH + 4096
"""Of a receive: more than any port's MTU allows. A datagram that does not fit would end the queue pair."""


def check_device(context: Context) -> None:
    """Refuse a device that has no datagrams."""
    device = context.device
    if device.transport is Transport.IWARP:
        raise VerbsError(
            EOPNOTSUPP, f"{device.name}: iWARP has no datagrams and no multicast; use a RoCE device", "pubsub"
        )


def queue_pair(
    stack: ExitStack, context: Context, pd: PD, qkey: int, *, sends: int = 1, receives: int = 1
) -> QP:
    """Ready to send and to receive, with two completion queues that have a channel each."""
    cqs = []
    for depth in (sends, receives):
        channel = stack.enter_context(context.create_comp_channel())
        cqs.append(stack.enter_context(context.create_cq(depth, channel)))
    cap = QPCap(max_send_wr=sends, max_recv_wr=receives)
    init = QPInitAttr(send_cq=cqs[0], recv_cq=cqs[1], qp_type=QPType.UD, cap=cap)
    qp = stack.enter_context(pd.create_qp(init))
    qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qkey=qkey))
    qp.modify(QPAttr(qp_state=QPState.RTR))
    qp.modify(QPAttr(qp_state=QPState.RTS, sq_psn=0))
    return qp


class Inbox:
    """Datagrams of a group, which go to a feed."""

    def __init__(self, context: Context, feed: Feed, qkey: int, group: GID, receives: int, how: How) -> None:
        self._feed = feed
        with ExitStack() as stack:
            pd = stack.enter_context(context.alloc_pd())
            self._mr = stack.enter_context(pd.alloc_mr(receives * ROOM, AccessFlags.LOCAL_WRITE))
            self._qp = queue_pair(stack, context, pd, qkey, receives=receives)
            assert self._qp.recv_cq is not None
            self._waiter = Waiter(self._qp.recv_cq, how)
            self._receives = [RecvWR(n, [SGE(self._mr, n * ROOM, ROOM)]) for n in range(receives)]
            self._qp.post_recv(self._receives)
            self._qp.attach_mcast(group)
            stack.callback(self._qp.detach_mcast, group)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Leave the group."""
        self._stack.close()

    def poll(self) -> None:
        """Take what has come."""
        self._take(self._waiter.last)  # what an exception has kept from it
        self._take(self._waiter.poll())

    def wait(self, timeout: float | None) -> None:
        """Wait for a datagram; raises TimeoutError."""
        self._take(self._waiter.last)
        self._take(self._waiter.wait(timeout=timeout))

    async def wait_async(self) -> None:
        """The same for a task of asyncio."""
        self._take(await self._waiter.wait_async())

    def _take(self, found: list[WC]) -> None:
        if not found:
            return
        buf = self._mr.buf
        for wc in found:
            if not wc.ok:
                raise QueueError(wc)
            at = wc.wr_id * ROOM
            self._feed.datagram(wc.src_qp, bytes(buf[at : at + wc.byte_len]))
        receives = [self._receives[wc.wr_id] for wc in found]
        del found[:]  # from here on no call but the next, or they would be posted never, or twice
        self._qp.post_recv(receives)
