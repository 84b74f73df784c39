# SPDX-License-Identifier: Apache-2.0
"""Memory windows and the regions that they are bound to go in every order: closed, dropped, in a cycle."""

from __future__ import annotations

import itertools
import random
import threading
from typing import Any

import pytest

import rnic
from lifetime.model import close_all, leave, no_warnings, users_by, warnings_of
from rnic import MWBind, MWBindInfo, MWType, QPInitAttr, SendFlags, SendWR, VerbsError, WROpcode, inc_rkey
from rnic.enums import AccessFlags
from rnic.testing import ALL_ACCESS, Options, connect

pytestmark = pytest.mark.usefixtures("balanced")

NEEDS = {
    "ctx": (),
    "pd": ("ctx",),
    "cq": ("ctx",),
    "mr": ("ctx", "pd"),
    "mw": ("ctx", "pd", "mr"),
    "a": ("ctx", "pd", "cq"),
    "b": ("ctx", "pd", "cq"),
}
ORDERS = list(itertools.permutations(NEEDS))
KINDS = pytest.mark.parametrize("kind", list(MWType))


def orders(soak: bool, seed: int) -> list[tuple[str, ...]]:
    return ORDERS if soak else random.Random(seed).sample(ORDERS, 60)


def bind(qp: rnic.QP, mw: rnic.MW, info: MWBindInfo) -> None:
    """Binds it as its type asks for; returns when it has been done."""
    if mw.type is MWType.TYPE_1:
        qp.bind_mw(mw, MWBind(info, SendFlags.SIGNALED))
    else:
        wr = SendWR(0, WROpcode.BIND_MW, SendFlags.SIGNALED, mw=mw, rkey=inc_rkey(mw.rkey), bind_info=info)
        qp.post_send(wr)
    while not (done := qp.send_cq.poll()):
        pass
    assert done[0].ok


def open_objects(kind: MWType) -> dict[str, Any]:
    """b's window is bound to the region."""
    ctx = rnic.open_device("roce_lo")
    pd, cq = ctx.alloc_pd(), ctx.create_cq(64)
    mr = pd.alloc_mr(4096, ALL_ACCESS | AccessFlags.MW_BIND)
    a, b = (pd.create_qp(QPInitAttr(cq, cq)) for _ in range(2))
    connect(a, b, Options())
    mw = pd.alloc_mw(kind)
    bind(b, mw, MWBindInfo(mr, mr.addr, 64, AccessFlags.REMOTE_READ))
    return {"ctx": ctx, "pd": pd, "cq": cq, "mr": mr, "mw": mw, "a": a, "b": b}


def users_of_type_2(name: str, living: set[str]) -> set[str]:
    """Such a window is unbound with its queue pair."""
    unbound = {"mw"} if name == "mr" and "b" not in living else set()
    return users_by(NEEDS)(name, living) - unbound


@KINDS
def test_close_is_refused_exactly_while_something_needs_the_object(soak: bool, kind: MWType) -> None:
    for order in orders(soak, 1):
        objects = open_objects(kind)
        close_all(objects, order, users_of_type_2 if kind is MWType.TYPE_2 else users_by(NEEDS))
        for thing in objects.values():
            thing.close()


@KINDS
def test_dropped_in_every_order_all_go_and_each_says_that_it_was_not_closed(soak: bool, kind: MWType) -> None:
    for order in orders(soak, 2):
        texts = warnings_of(open_objects(kind), order)
        assert sorted(text.split()[1] for text in texts) == ["CQ", "Context", "MR", "MW", "PD", "QP", "QP"]
        assert not [text for text in texts if "did not take it back" in text]


@KINDS
def test_a_cycle_of_everything_is_collected(kind: MWType) -> None:
    for _ in range(20):
        objects = open_objects(kind)
        objects["self"] = objects
        with no_warnings():
            del objects


@KINDS
def test_a_with_block_that_an_exception_leaves_closes_all(soak: bool, kind: MWType) -> None:
    for order in orders(soak, 3):
        objects = open_objects(kind)
        with pytest.raises(ZeroDivisionError):
            leave(objects, list(order))
        assert all(thing.closed for thing in objects.values())


def test_a_window_that_moves_on_lets_the_region_go() -> None:
    objects = open_objects(MWType.TYPE_1)
    pd, b, mw = objects["pd"], objects["b"], objects["mw"]
    regions = [pd.alloc_mr(4096, ALL_ACCESS | AccessFlags.MW_BIND) for _ in range(5)]
    for mr in regions:
        bind(b, mw, MWBindInfo(mr, mr.addr, 8, AccessFlags.REMOTE_READ))
    objects["mr"].close()
    for mr in regions[:-1]:
        mr.close()
    with pytest.raises(VerbsError, match="is in use by MW rkey"):
        regions[-1].close()
    bind(b, mw, MWBindInfo())
    regions[-1].close()
    for name in ("mw", "a", "b", "cq", "pd", "ctx"):
        objects[name].close()


def test_threads_that_bind_and_close_at_once_leave_nothing() -> None:
    """Each thread has a connection and windows of its own; the regions are everybody's, and come and go."""
    stop, errors = threading.Event(), list[BaseException]()
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd:

        def work(seed: int) -> None:
            dice = random.Random(seed)
            with ctx.create_cq(64) as cq:
                init = QPInitAttr(cq, cq)
                with pd.create_qp(init) as a, pd.create_qp(init) as b:
                    while not stop.is_set():
                        one_round(pd, a, b, dice)

        def one_round(pd: rnic.PD, a: rnic.QP, b: rnic.QP, dice: random.Random) -> None:
            for qp in (a, b):
                qp.modify(rnic.QPAttr(qp_state=rnic.QPState.RESET))
            connect(a, b, Options())
            mr = pd.alloc_mr(4096, ALL_ACCESS | AccessFlags.MW_BIND)
            with pd.alloc_mw(MWType.TYPE_1) as one, pd.alloc_mw(MWType.TYPE_2) as two:
                info = MWBindInfo(mr, mr.addr, 1 + dice.randrange(4096), AccessFlags.REMOTE_WRITE)
                bind(a, one, info)
                bind(b, two, info)
                with pytest.raises(VerbsError, match="in use"):
                    mr.close()
                if dice.random() < 0.5:
                    bind(a, one, MWBindInfo())
            mr.close()

        def run(seed: int) -> None:
            try:
                work(seed)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        stop.wait(1)
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors
