# SPDX-License-Identifier: Apache-2.0
"""Send-receive on bare queue pairs with credits: a fast sender waits for a slow receiver."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import rnic
from rnic.patterns.credits import Channel

MESSAGES = 50


def queue_pair(stack: ExitStack, ctx: rnic.Context, pd: rnic.PD) -> rnic.QP:
    """With completion queues of its own, as a channel needs them."""
    sent, received = (
        stack.enter_context(ctx.create_cq(256, stack.enter_context(ctx.create_comp_channel()))) for _ in "ab"
    )
    return stack.enter_context(pd.create_qp(rnic.QPInitAttr(send_cq=sent, recv_cq=received)))


def receive(channel: Channel) -> None:
    """Four receives are posted; each gives its credit back when the message was taken."""
    with channel:
        for number, message in enumerate(channel):
            assert message == b"message %d" % number
            time.sleep(0.002)


def main() -> None:
    """Both ends in one program."""
    with ExitStack() as stack:
        ctx = stack.enter_context(rnic.open_device("roce_lo"))
        pd = stack.enter_context(ctx.alloc_pd())
        a, b = queue_pair(stack, ctx, pd), queue_pair(stack, ctx, pd)
        rnic.connect_qps(a, b)
        ours, theirs = Channel(a), Channel(b, receives=4, size=64)
        receiver = threading.Thread(target=receive, args=(theirs,))
        receiver.start()
        began = time.monotonic()
        for number in range(MESSAGES):
            ours.send(b"message %d" % number, timeout=5.0)
        print(f"the last of {MESSAGES} messages was posted after {time.monotonic() - began:.2f} s")
        ours.close()
        receiver.join()
        print("messages that met no receive:", ctx.counters()["rnr_nak_sent"])


main()
