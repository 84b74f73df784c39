# SPDX-License-Identifier: Apache-2.0
"""Parts of arrays go to parts of arrays without a copy; both ends in one program, on two queue pairs."""

import asyncio
import threading
from contextlib import ExitStack

import numpy as np

import rnic
from rnic.patterns.credits import AsyncChannel, Channel
from rnic.patterns.rendezvous import AsyncRendezvous, RegistrationCache, Rendezvous


def queue_pair(stack: ExitStack, ctx: rnic.Context, pd: rnic.PD) -> rnic.QP:
    """With completion queues of its own, as a channel needs them."""
    sent, received = (
        stack.enter_context(ctx.create_cq(256, stack.enter_context(ctx.create_comp_channel()))) for _ in "ab"
    )
    return stack.enter_context(pd.create_qp(rnic.QPInitAttr(send_cq=sent, recv_cq=received)))


def pair(stack: ExitStack) -> tuple[rnic.PD, rnic.QP, rnic.QP]:
    """Two that are connected, of one protection domain."""
    ctx = stack.enter_context(rnic.open_device("roce_lo"))
    pd = stack.enter_context(ctx.alloc_pd())
    a, b = queue_pair(stack, ctx, pd), queue_pair(stack, ctx, pd)
    rnic.connect_qps(a, b)
    return pd, a, b


def fill(end: Rendezvous, grid: np.ndarray) -> None:
    """Take the border of the other grid into this one, three times."""
    with end:
        end.measure(timeout=10.0)
        for _ in range(3):
            print(end.recv_into(grid[:, :1000], timeout=5.0), "bytes came to their columns")


def with_threads() -> None:
    """The receiver READs; the second time its memory is registered already."""
    with ExitStack() as stack:
        _, a, b = pair(stack)
        ours, theirs = Rendezvous(Channel(a)), Rendezvous(Channel(b))
        receiver = threading.Thread(target=fill, args=(theirs, np.zeros((64, 4000))))
        receiver.start()
        grid = np.ones((64, 4000))
        with ours:
            ours.measure(timeout=10.0)
            for _ in range(3):
                ours.send(grid[:, -1000:], timeout=5.0)
            print("registrations found in the cache:", ours.cache.statistics().hits)
        receiver.join()


async def with_tasks() -> None:
    """A list of buffers is one message; the sender WRITEs it."""
    with ExitStack() as stack:
        pd, a, b = pair(stack)
        cache = RegistrationCache(pd, max_bytes=64 << 20)  # of both ends
        ours = AsyncRendezvous(AsyncChannel(a), "write", cache=cache)
        theirs = AsyncRendezvous(AsyncChannel(b), "write", cache=cache)
        got, _ = await asyncio.gather(
            theirs.recv(), ours.send([b"head", np.zeros(100_000, np.uint8), b"tail"])
        )
        print(len(got), "bytes, from", got[:4].decode(), "to", got[-4:].decode())
        try:
            async with asyncio.timeout(0.1):
                await ours.send(bytearray(100_000))
        except TimeoutError:
            print("nobody takes it: the buffer is free, and a copy waits")
        got, _ = await asyncio.gather(theirs.recv(), ours.send(b"behind"))  # which lets the copy go first
        print(len(got), "bytes came from the copy")
        await asyncio.gather(ours.close(), theirs.close())
        cache.close()


with_threads()
asyncio.run(with_tasks())
