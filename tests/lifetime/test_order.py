# SPDX-License-Identifier: Apache-2.0
"""Objects of the device go in every order: closed, dropped, with and without work under way."""

from __future__ import annotations

import errno
import gc
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

import rnic
from lifetime.model import close_all, leave, no_warnings, users_by, warnings_of
from rnic import SGE, Faults, QPInitAttr, RecvWR, SendFlags, SendWR, VerbsError, WROpcode
from rnic.testing import ALL_ACCESS, Options, connect

pytestmark = pytest.mark.usefixtures("balanced")

# Who needs whom, directly: an object is in use while one that needs it is open.
NEEDS = {
    "ctx": (),
    "pd": ("ctx",),
    "channel": ("ctx",),
    "cq": ("ctx", "channel"),
    "mr": ("ctx", "pd"),
    "a": ("ctx", "pd", "cq"),
    "b": ("ctx", "pd", "cq"),
}
NAMES = tuple(NEEDS)
ORDERS = list(itertools.permutations(NAMES))
SAMPLE = 60
CLOSED_CALLS: dict[str, Callable[[Any], object]] = {
    "ctx": lambda ctx: ctx.alloc_pd(),
    "pd": lambda pd: pd.alloc_mr(64, ALL_ACCESS),
    "channel": lambda channel: channel.get_cq_event(0),
    "cq": lambda cq: cq.poll(),
    "mr": lambda mr: SGE(mr),
    "a": lambda qp: qp.post_send(SendWR()),
    "b": lambda qp: qp.post_recv(RecvWR()),
}


def orders(soak: bool, seed: int) -> list[tuple[str, ...]]:
    return ORDERS if soak else random.Random(seed).sample(ORDERS, SAMPLE)


def open_objects() -> dict[str, Any]:
    ctx = rnic.open_device("roce_lo")
    pd, channel = ctx.alloc_pd(), ctx.create_comp_channel()
    cq, mr = ctx.create_cq(64, channel), pd.alloc_mr(1 << 20, ALL_ACCESS)
    a, b = (pd.create_qp(QPInitAttr(cq, cq)) for _ in range(2))
    return {"ctx": ctx, "pd": pd, "channel": channel, "cq": cq, "mr": mr, "a": a, "b": b}


def begin_work(objects: dict[str, Any]) -> None:
    """WRITEs and SENDs that are on their way, or wait for an answer that is lost, and receives."""
    a, b, mr = objects["a"], objects["b"], objects["mr"]
    connect(a, b, Options(timeout=20))
    objects["ctx"].set_faults(Faults(loss=0.5, delay=0.5))
    b.post_recv([RecvWR(i, [SGE(mr, 0, 1 << 19)]) for i in range(4)])
    source, half = SGE(mr, 1 << 19, 1 << 19), mr.addr
    for opcode in (WROpcode.RDMA_WRITE, WROpcode.SEND, WROpcode.RDMA_READ):
        a.post_send([SendWR(i, opcode, SendFlags.SIGNALED, [source], half, mr.rkey) for i in range(2)])
    objects["cq"].req_notify()


@pytest.mark.parametrize("working", [False, True], ids=["idle", "with work under way"])
def test_close_in_every_order_is_refused_exactly_while_something_needs_the_object(
    soak: bool, working: bool
) -> None:
    for order in orders(soak, 1):
        objects = open_objects()
        if working:
            begin_work(objects)
        close_all(objects, order, users_by(NEEDS))
        for name, thing in objects.items():
            thing.close()  # the second time does nothing
            with pytest.raises(VerbsError, match="is closed") as caught:
                CLOSED_CALLS[name](thing)
            assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("working", [False, True], ids=["idle", "with work under way"])
def test_dropped_in_every_order_all_go_and_each_says_that_it_was_not_closed(
    soak: bool, working: bool
) -> None:
    for order in orders(soak, 2):
        objects = open_objects()
        if working:
            begin_work(objects)
        kinds = sorted(text.split()[1] for text in warnings_of(objects, order))
        assert kinds == ["CQ", "CompChannel", "Context", "MR", "PD", "QP", "QP"], order


def take_event(objects: dict[str, Any]) -> None:
    """An asynchronous event of `b`, taken and not acknowledged."""
    a, b, mr = objects["a"], objects["b"], objects["mr"]
    connect(a, b)
    a.post_send(SendWR(1, WROpcode.RDMA_WRITE, 0, [SGE(mr, 0, 8)], mr.addr, mr.rkey ^ 1 << 20))
    objects["event"] = objects["ctx"].get_async_event(60)
    assert objects["event"].element is b


def test_an_event_that_is_held_keeps_nothing_from_going(soak: bool) -> None:
    for order in orders(soak, 4):
        objects = open_objects()
        take_event(objects)
        at = random.Random(str(order)).randrange(len(order) + 1)
        kinds = sorted(text.split()[1] for text in warnings_of(objects, (*order[:at], "event", *order[at:])))
        assert kinds == ["CQ", "CompChannel", "Context", "MR", "PD", "QP", "QP"], order
        objects = open_objects()
        take_event(objects)
        with pytest.raises(ZeroDivisionError):
            leave(objects, list(order))
        assert all(objects[name].closed for name in NAMES)


def test_a_queue_pair_is_busy_until_its_event_is_acknowledged() -> None:
    objects = open_objects()
    take_event(objects)
    with pytest.raises(VerbsError, match="unacknowledged") as caught:
        objects["b"].close()
    assert caught.value.errno == errno.EBUSY
    objects["event"].ack()
    for name in reversed(NAMES):
        objects[name].close()
    objects["event"] = None


@pytest.mark.parametrize("with_event", [False, True])
def test_a_cycle_of_everything_is_collected(soak: bool, with_event: bool) -> None:
    for _ in range(100 if soak else 10):
        objects = open_objects()
        if with_event:
            take_event(objects)
        else:
            begin_work(objects)
        objects["self"] = objects
        with no_warnings():
            del objects


def test_a_with_block_that_an_exception_leaves_passes_it_on_and_closes(soak: bool) -> None:
    for order in orders(soak, 3):
        objects = open_objects()
        with pytest.raises(ZeroDivisionError):
            leave(objects, list(order))
        assert all(thing.closed for thing in objects.values())


def test_a_queue_pair_keeps_the_memory_of_posted_work() -> None:
    with no_warnings():
        objects = open_objects()
        ctx, pd, cq, a, b = (objects[name] for name in ("ctx", "pd", "cq", "a", "b"))
        connect(a, b, Options(timeout=20))
        objects["mr"].buf[:4] = b"gone"
        target = pd.alloc_mr(64, ALL_ACCESS)
        ctx.set_faults(Faults(loss=1.0))
        mr = pd.reg_mr(bytearray(b"kept"), ALL_ACCESS)
        a.post_send(SendWR(1, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [SGE(mr)], target.addr, target.rkey))
        del mr
        gc.collect()  # nobody but the queue pair has it now
        ctx.set_faults(None)
        while not (done := cq.poll()):
            pass
        assert done[0].ok
        assert bytes(target.buf[:4]) == b"kept"
        del objects, ctx, pd, cq, a, b, target


def test_a_region_closed_under_work_fails_the_work_and_nothing_else() -> None:
    with no_warnings():
        objects = open_objects()
        a, b, cq = objects["a"], objects["b"], objects["cq"]
        connect(a, b, Options(timeout=20))
        target = objects["pd"].alloc_mr(1 << 20, ALL_ACCESS)
        sge = SGE(objects["mr"])
        write = SendWR(1, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [sge], target.addr, target.rkey)
        for _ in range(8):
            a.post_send([write])
        target.close()
        found: list[Any] = []
        while len(found) < 8:
            found += cq.poll(8)
        statuses = {wc.status.name for wc in found}
        assert statuses <= {"SUCCESS", "REM_ACCESS_ERR", "WR_FLUSH_ERR"}
        del objects, a, b, cq, target, sge, write
