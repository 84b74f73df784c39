# SPDX-License-Identifier: Apache-2.0
"""Two ends for the tests of patterns: queue pairs with completion queues of their own, or connections."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import rnic
from rnic.patterns.credits import AsyncChannel, Channel
from rnic.patterns.ports import QueuePairPort
from rnic.patterns.wait import How
from rnic.testing import connect, connect_through, loopback, prepare

C = TypeVar("C", Channel, AsyncChannel)
HOST = "127.0.0.1"
WAIT = 180.0  # seconds that only a hang takes


def queue_pair(stack: ExitStack, device: str | None = None, *, depth: int = 64, **options: Any) -> rnic.QP:
    """In RESET, with a channel for each completion queue; of the first loopback device."""
    ctx = stack.enter_context(rnic.open_device(device or loopback(), **options))
    pd = stack.enter_context(ctx.alloc_pd())
    cqs = [
        stack.enter_context(ctx.create_cq(256, stack.enter_context(ctx.create_comp_channel())))
        for _ in range(2)
    ]
    cap = rnic.QPCap(max_send_wr=depth)
    return stack.enter_context(pd.create_qp(rnic.QPInitAttr(send_cq=cqs[0], recv_cq=cqs[1], cap=cap)))


@contextmanager
def queue_pairs(device: str | None = None, **options: Any) -> Iterator[tuple[rnic.QP, rnic.QP]]:
    """Two that are connected."""
    with ExitStack() as stack:
        a, b = queue_pair(stack, device, **options), queue_pair(stack, device, **options)
        connect(a, b)
        yield a, b


def channel_through(qp: rnic.QP, way: Any, kind: type[C] = Channel) -> C:  # type: ignore[assignment]
    """Connected with the peer's; it has its receives before the peer can send, as iWARP needs it."""
    own = prepare(qp)
    channel = kind(qp)
    connect_through(qp, way, own=own)
    return channel


@contextmanager
def ports(how: How = How.ADAPTIVE, **options: Any) -> Iterator[tuple[QueuePairPort, QueuePairPort]]:
    """On two queue pairs."""
    with queue_pairs(**options) as (a, b), ExitStack() as stack:
        pair = QueuePairPort(a, how), QueuePairPort(b, how)
        for port in pair:
            stack.callback(port.close)
        yield pair


@contextmanager
def connections(**options: Any) -> Iterator[tuple[rnic.Connection, rnic.Connection]]:
    """Of this process: the one that has connected, and the other."""
    with rnic.listen(HOST, 0, **options) as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, WAIT)
        ours = rnic.connect(HOST, listener.port, **options)
        theirs = accepting.result(WAIT)
        try:
            yield ours, theirs
        finally:  # each waits for the other
            closing = pool.submit(theirs.close)
            ours.close()
            closing.result(WAIT)
