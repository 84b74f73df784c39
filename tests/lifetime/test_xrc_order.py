# SPDX-License-Identifier: Apache-2.0
"""The objects of an extended reliable connection go in every order, with messages on their way or without."""

from __future__ import annotations

import errno
import gc
import itertools
import random
import warnings
from typing import Any

import pytest

import rnic
from rnic import SGE, QPInitAttr, QPType, RecvWR, SendFlags, SendWR, SRQInitAttrEx, SRQType, VerbsError
from rnic.testing import ALL_ACCESS, connect

pytestmark = pytest.mark.usefixtures("balanced")

NEEDS = {
    "ctx": (),
    "pd": ("ctx",),
    "cq": ("ctx",),
    "xrcd": ("ctx",),
    "srq": ("ctx", "pd", "cq", "xrcd"),
    "target": ("ctx", "xrcd"),
    "again": ("ctx", "xrcd"),
    "sender": ("ctx", "pd", "cq"),
}
NAMES = tuple(NEEDS)
SAMPLE = 40


def orders(soak: bool, seed: int) -> list[tuple[str, ...]]:
    found = list(itertools.permutations(NAMES))
    return random.Random(seed).sample(found, 2000 if soak else SAMPLE)


def open_objects() -> dict[str, Any]:
    ctx = rnic.open_device("roce_lo")
    pd, cq, xrcd = ctx.alloc_pd(), ctx.create_cq(64), ctx.open_xrcd()
    srq = ctx.create_srq_ex(SRQInitAttrEx(pd, SRQType.XRC, xrcd, cq))
    target = xrcd.create_qp()
    again = xrcd.open_qp(target.qp_num)
    sender = pd.create_qp(QPInitAttr(cq, qp_type=QPType.XRC_SEND))
    return dict(zip(NAMES, (ctx, pd, cq, xrcd, srq, target, again, sender), strict=True))


def begin_work(objects: dict[str, Any]) -> Any:
    """More messages than receives."""
    mr = objects["pd"].alloc_mr(1 << 16, ALL_ACCESS)
    connect(objects["sender"], objects["target"])
    objects["srq"].post_recv([RecvWR(i, [SGE(mr)]) for i in range(3)])
    number = objects["srq"].get_srq_num()
    wrs = [SendWR(i, send_flags=SendFlags.SIGNALED, sg_list=[SGE(mr)], remote_srqn=number) for i in range(8)]
    objects["sender"].post_send(wrs)
    return mr


@pytest.mark.parametrize("working", [False, True], ids=["idle", "with work under way"])
def test_close_in_every_order_is_refused_exactly_while_something_needs_the_object(
    soak: bool, working: bool
) -> None:
    for order in orders(soak, 3):
        objects, living = open_objects(), set(NAMES)
        mr = begin_work(objects) if working else None
        while living:
            for name in [name for name in order if name in living]:
                needed = any(name in NEEDS[user] for user in living)
                if name == "pd" and not needed and mr is not None:
                    mr.close()
                if not needed:
                    objects[name].close()
                    living.remove(name)
                    continue
                with pytest.raises(VerbsError, match="is in use by") as caught:
                    objects[name].close()
                assert caught.value.errno == errno.EBUSY


@pytest.mark.parametrize("working", [False, True], ids=["idle", "with work under way"])
def test_dropped_in_every_order_all_go(soak: bool, working: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for order in orders(soak, 4):
            objects = open_objects()
            if working:
                begin_work(objects)
            for name in order:
                del objects[name]
            gc.collect()


def test_a_queue_goes_before_what_takes_from_it() -> None:
    objects = open_objects()
    with objects["ctx"], objects["pd"], objects["cq"], objects["xrcd"], objects["target"], objects["sender"]:
        mr = begin_work(objects)
        objects["again"].close()
        objects["srq"].close()
        mr.close()
