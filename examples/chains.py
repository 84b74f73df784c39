# SPDX-License-Identifier: Apache-2.0
"""What a send queue can save: the same WRITEs signaled each, signaled seldom, and in chains."""

from __future__ import annotations

import time
from contextlib import ExitStack

import rnic
from rnic.patterns.chain import SendQueue

WRITES = 2048
ACCESS = rnic.AccessFlags.LOCAL_WRITE | rnic.AccessFlags.REMOTE_WRITE


def write_all(queue: SendQueue, mr: rnic.MR, length: int) -> None:
    """WRITE numbers, in chains of so many, and wait for the last."""
    for begin in range(0, WRITES, length):
        with queue.chain(timeout=5.0) as chain:
            for number in range(begin, begin + length):
                mr.buf[:8] = number.to_bytes(8, "little")  # inline: copied when it is posted
                chain.write(rnic.SGE(mr, 0, 8), mr.addr + 64, mr.rkey)
    queue.flush(timeout=5.0)
    assert int.from_bytes(mr.buf[64:72], "little") == WRITES - 1


def main() -> None:
    """Two queue pairs of this process; the memory is both ends'."""
    for title, every, length in (
        ("each signaled", 1, 1),
        ("every 32nd signaled", 32, 1),
        ("and in chains of 32", 32, 32),
    ):
        with ExitStack() as stack:
            ctx = stack.enter_context(rnic.open_device("roce_lo"))
            pd = stack.enter_context(ctx.alloc_pd())
            channel = stack.enter_context(ctx.create_comp_channel())
            sent = stack.enter_context(ctx.create_cq(256, channel))
            received = stack.enter_context(ctx.create_cq(64))
            init = rnic.QPInitAttr(send_cq=sent, recv_cq=received, cap=rnic.QPCap(max_send_wr=128))
            ours = stack.enter_context(pd.create_qp(init))
            theirs = stack.enter_context(pd.create_qp(rnic.QPInitAttr(send_cq=received, recv_cq=received)))
            rnic.connect_qps(ours, theirs)
            mr = stack.enter_context(pd.alloc_mr(4096, ACCESS))
            queue = SendQueue(ours, every=every)
            began = time.perf_counter()
            write_all(queue, mr, length)
            took = (time.perf_counter() - began) / WRITES * 1e6
            done = queue.statistics()
        print(f"{title:20} {took:5.2f} us each: {done.chains} calls, {done.signaled} completions")


main()
