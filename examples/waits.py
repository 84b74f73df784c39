# SPDX-License-Identifier: Apache-2.0
"""Three ways to wait for a message, with what each costs: a ping-pong whose answers come 1 ms late."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import rnic
from rnic.patterns.wait import How, Waiter

ROUNDS = 100
PAUSE = 0.001  # seconds


def queue_pair(stack: ExitStack, ctx: rnic.Context, pd: rnic.PD) -> rnic.QP:
    """With a completion channel for its receives, which a wait by events needs."""
    sent = stack.enter_context(ctx.create_cq(256))
    channel = stack.enter_context(ctx.create_comp_channel())
    received = stack.enter_context(ctx.create_cq(256, channel))
    return stack.enter_context(pd.create_qp(rnic.QPInitAttr(send_cq=sent, recv_cq=received)))


def message(qp: rnic.QP) -> None:
    """Send nothing but the message itself, and take the completion."""
    qp.post_send(rnic.SendWR(send_flags=rnic.SendFlags.SIGNALED))
    assert qp.send_cq is not None
    Waiter(qp.send_cq, How.POLL).wait(timeout=5.0)


def answer(qp: rnic.QP) -> None:
    """The other end: waits by events, pauses, answers."""
    assert qp.recv_cq is not None
    waiter = Waiter(qp.recv_cq, How.EVENT)
    for _ in range(ROUNDS):
        waiter.wait(timeout=5.0)
        time.sleep(PAUSE)
        message(qp)


def main() -> None:
    """Each way once."""
    for how in How:
        with ExitStack() as stack:
            ctx = stack.enter_context(rnic.open_device("roce_lo"))
            pd = stack.enter_context(ctx.alloc_pd())
            ours, theirs = queue_pair(stack, ctx, pd), queue_pair(stack, ctx, pd)
            rnic.connect_qps(ours, theirs)
            for _ in range(ROUNDS):
                ours.post_recv(rnic.RecvWR())
                theirs.post_recv(rnic.RecvWR())
            other = threading.Thread(target=answer, args=(theirs,))
            other.start()
            assert ours.recv_cq is not None
            waiter, began = Waiter(ours.recv_cq, how), time.thread_time()
            for _ in range(ROUNDS):
                message(ours)
                waiter.wait(1, timeout=5.0)
            used = (time.thread_time() - began) / ROUNDS * 1e6
            other.join()
            done = waiter.statistics()
        print(
            f"{how.value:8}  {used:4.0f} us of processor a message, {done.sleeps} sleeps, {done.polls} polls"
        )


main()
