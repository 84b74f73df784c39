# SPDX-License-Identifier: Apache-2.0
"""Rules, counters, work queues and tables of them go in every order, as all other objects do."""

from __future__ import annotations

import contextlib
import errno
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rnic
from lifetime.model import close_all, users_by, warnings_of
from rnic import (
    SGE,
    FlowAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    SpecActionCount,
    SpecEth,
    VerbsError,
)
from rnic.testing import ALL_ACCESS

pytestmark = pytest.mark.usefixtures("balanced")

# Who needs whom, directly.
NEEDS = {
    "ctx": (),
    "pd": ("ctx",),
    "cq": ("ctx",),
    "mr": ("ctx", "pd"),
    "wq": ("ctx", "pd", "cq"),
    "table": ("ctx", "wq"),
    "counters": ("ctx",),
    "qp": ("ctx", "pd", "table"),
    "flow": ("ctx", "qp", "counters"),
    "sender": ("ctx", "pd", "cq"),
}
KEY = bytes(range(40))


def orders(soak: bool, seed: int) -> Iterator[list[str]]:
    dice = random.Random(seed)
    for _ in range(1000 if soak else 40):
        yield dice.sample(list(NEEDS), len(NEEDS))


def open_objects() -> dict[str, Any]:
    """A queue pair that spreads over a work queue, and a sender whose frames are on their way to it."""
    ctx = rnic.open_device("roce_lo")
    pd, cq = ctx.alloc_pd(), ctx.create_cq(1024)
    mr, wq = pd.alloc_mr(4096, ALL_ACCESS), ctx.create_wq(rnic.WQInitAttr(pd, cq))
    wq.modify(rnic.WQAttr(wq_state=rnic.WQState.RDY))
    wq.post_recv([RecvWR(i, [SGE(mr)]) for i in range(4)])
    table = ctx.create_rwq_ind_table(rnic.RwqIndTableInitAttr(1, (wq, wq)))
    conf = rnic.RxHashConf(KEY, rnic.RxHashFields.SRC_IPV4)
    qp = pd.create_qp(QPInitAttr(qp_type=QPType.RAW_PACKET, rwq_ind_tbl=table, rx_hash_conf=conf))
    sender = pd.create_qp(QPInitAttr(cq, cq, QPType.RAW_PACKET))
    to_rts(qp)
    to_rts(sender)
    counters = ctx.create_counters()
    flow = qp.create_flow(FlowAttr(specs=(SpecEth(ether_type=0), SpecActionCount(counters))))
    ctx.set_faults(rnic.Faults(delay=0.5, delay_s=0.001))
    sender.post_send([SendWR(i, sg_list=[SGE(mr, 0, 60)]) for i in range(4)])
    return {name: value for name, value in locals().items() if name in NEEDS}


def to_rts(qp: rnic.QP) -> None:
    for state, port in ((QPState.INIT, 1), (QPState.RTR, None), (QPState.RTS, None)):
        qp.modify(rnic.QPAttr(qp_state=state, port_num=port))


def test_close_in_every_order_is_refused_exactly_while_something_needs_the_object(soak: bool) -> None:
    for order in orders(soak, 1):
        objects = open_objects()
        close_all(objects, order, users_by(NEEDS))
        for thing in objects.values():
            thing.close()


def test_dropped_in_every_order_all_go_and_each_says_that_it_was_not_closed(soak: bool) -> None:
    for order in orders(soak, 2):
        objects = open_objects()
        names = [type(thing).__name__ for thing in objects.values()]
        assert sorted(text.split()[1] for text in warnings_of(objects, order)) == sorted(names), order


def send(objects: dict[str, Any]) -> None:
    with contextlib.suppress(rnic.PostError):  # full
        frame = [SGE(objects["mr"], 0, 60)]
        objects["sender"].post_send(SendWR(1, send_flags=rnic.SendFlags.SIGNALED, sg_list=frame))


def receive(objects: dict[str, Any]) -> None:
    for wc in objects["cq"].poll(16):
        if wc.ok and wc.opcode == rnic.WCOpcode.RECV:
            objects["wq"].post_recv(RecvWR(wc.wr_id, [SGE(objects["mr"])]))


@contextlib.contextmanager
def meanwhile(*steps: Callable[[], object]) -> Iterator[None]:
    """A thread for each step, which does it again and again until the block ends."""
    done, errors = threading.Event(), []

    def repeat(step: Callable[[], object]) -> None:
        try:
            while not done.is_set():
                step()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    yield
    done.set()
    for thread in threads:
        thread.join()
    assert not errors


def test_threads_send_and_poll_while_others_make_and_end_rules_and_queue_pairs(soak: bool) -> None:
    objects = open_objects()
    ctx, pd, cq = objects["ctx"], objects["pd"], objects["cq"]
    with meanwhile(lambda: send(objects), lambda: receive(objects)):
        for i in range(300 if soak else 60):
            with pd.create_qp(QPInitAttr(cq, cq, QPType.RAW_PACKET)) as qp:
                to_rts(qp)
                attr = FlowAttr(priority=i % 4, flags=rnic.FlowFlags.DONT_TRAP)
                flows = [qp.create_flow(attr) for _ in range(4)]
                ctx.set_faults(rnic.Faults(delay=0.5, delay_s=1e-4) if i % 2 else None)
                for flow in flows[:: 1 if i % 2 else -1]:
                    flow.close()
    for name in ("flow", "sender", "qp", "table", "wq", "counters", "mr", "cq", "pd", "ctx"):
        objects[name].close()


def test_calls_on_closed_objects_say_so() -> None:
    objects = open_objects()
    for name in ("flow", "sender", "qp", "table", "wq", "counters", "mr", "cq", "pd", "ctx"):
        objects[name].close()
    calls = (
        lambda: objects["qp"].create_flow(FlowAttr()),
        lambda: objects["wq"].post_recv(RecvWR()),
        lambda: objects["wq"].modify(rnic.WQAttr()),
        lambda: objects["wq"].state,
        lambda: objects["counters"].read(1),
        lambda: SpecActionCount(objects["counters"]).as_bytes(),
        lambda: objects["ctx"].create_counters(),
        lambda: objects["ctx"].query_raw_packet(),
    )
    for call in calls:
        with pytest.raises(VerbsError, match="is closed") as caught:
            call()
        assert caught.value.errno == errno.EINVAL
