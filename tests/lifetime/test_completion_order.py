# SPDX-License-Identifier: Apache-2.0
"""Extended completion queues and counters go in every order, with work under way."""

from __future__ import annotations

import errno
import gc
import itertools
import warnings
from typing import Any

import pytest

import rnic
from rnic import SGE, CQInitAttrEx, CreateCQWCFlags, ModerateCQ, ModifyCQAttr, QPInitAttr, SendFlags, SendWR
from rnic.testing import ALL_ACCESS, complete, prepare

pytestmark = pytest.mark.usefixtures("balanced")

# Who needs whom, directly.
NEEDS = {
    "ctx": (),
    "channel": ("ctx",),
    "cq": ("ctx", "channel"),
    "cntr": ("ctx",),
    "flows": ("ctx",),
    "qp": ("ctx", "cq", "cntr"),
}
ORDERS = list(itertools.permutations(NEEDS))
OPS = rnic.QPAttachCompCntrOp.RDMA_WRITE | rnic.QPAttachCompCntrOp.REMOTE_RDMA_WRITE


def open_objects() -> dict[str, Any]:
    """A queue pair to itself that writes, with an event of its queue that waits for company."""
    ctx = rnic.open_device("roce_lo")
    pd, channel, cntr = ctx.alloc_pd(), ctx.create_comp_channel(), ctx.create_comp_cntr()
    stamps = CreateCQWCFlags.WITH_COMPLETION_TIMESTAMP
    cq = ctx.create_cq_ex(CQInitAttrEx(64, channel=channel, wc_flags=stamps))
    cq.modify(ModifyCQAttr(ModerateCQ(cq_count=9, cq_period=60_000)))
    qp = pd.create_qp(QPInitAttr(cq, cq))
    qp.attach_comp_cntr(cntr, rnic.QPAttachCompCntrAttr(OPS))
    own = prepare(qp)
    complete(qp, own, own)  # its own peer
    mr = pd.alloc_mr(4096, ALL_ACCESS)
    cq.req_notify()
    write = (rnic.WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [SGE(mr)], mr.addr, mr.rkey)
    qp.post_send([SendWR(i, *write) for i in range(2)])
    found = {"ctx": ctx, "channel": channel, "cq": cq, "cntr": cntr, "flows": ctx.create_counters()}
    return {**found, "qp": qp, "mr": mr}


def test_close_is_refused_exactly_while_something_needs_the_object(soak: bool) -> None:
    for order in ORDERS if soak else ORDERS[::20]:
        objects, living = open_objects(), set(NEEDS)
        pd = objects["qp"].pd
        objects.pop("mr").close()
        while living - {"ctx"}:
            for name in [name for name in order if name in living and name != "ctx"]:
                users = {user for user in living if name in NEEDS[user]}
                if users:
                    with pytest.raises(rnic.VerbsError, match="is in use by") as caught:
                        objects[name].close()
                    assert caught.value.errno == errno.EBUSY
                    continue
                objects[name].close()
                living.remove(name)
        pd.close()
        objects["ctx"].close()


def test_dropped_in_every_order_all_go(soak: bool) -> None:
    for order in ORDERS if soak else ORDERS[7::20]:
        objects = open_objects()
        texts: list[str] = []
        with warnings.catch_warnings():
            warnings.simplefilter("always", ResourceWarning)
            warnings.showwarning = lambda message, *_, to=texts, **__: to.append(str(message))
            for name in ("mr", *order):
                del objects[name]
            gc.collect()
        kinds = sorted(text.split()[1] for text in texts)
        assert kinds == ["CQEX", "CompChannel", "CompCntr", "Context", "FlowCounters", "MR", "PD", "QP"], (
            order
        )


def test_a_queue_dropped_within_a_batch_goes() -> None:
    objects = open_objects()
    while not objects["cq"].start_poll():
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        objects.clear()
        gc.collect()
