# SPDX-License-Identifier: Apache-2.0
"""Queue pairs with builders go in every order, also in the middle of what they build."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import rnic
from lifetime.model import no_warnings
from lifetime.test_order import NAMES, open_objects
from rnic import SGE, QPInitAttrEx, SendFlags, SendOpsFlags
from rnic.testing import Options, connect

pytestmark = pytest.mark.usefixtures("balanced")


def open_building() -> dict[str, Any]:
    """One of each; `a` has a builder's request that names the memory, and has not been completed."""
    objects = open_objects()
    objects["a"].close()
    cq, pd, mr = objects["cq"], objects["pd"], objects["mr"]
    ops = SendOpsFlags.RDMA_WRITE
    objects["a"] = qp = objects["ctx"].create_qp_ex(QPInitAttrEx(cq, cq, pd=pd, send_ops_flags=ops))
    connect(qp, objects["b"], Options(timeout=20))
    qp.wr_start()
    qp.wr_flags = SendFlags.SIGNALED
    qp.wr_rdma_write(mr.rkey, mr.addr)
    qp.wr_set_sge(SGE(mr, 0, 64))
    return objects


def drop(objects: dict[str, Any], order: list[str]) -> None:
    for name in order:
        del objects[name]


def close_then_drop(objects: dict[str, Any], order: list[str]) -> None:
    for name in order:
        with suppress(rnic.VerbsError):  # in use by others
            objects[name].close()
    drop(objects, order)


@pytest.mark.parametrize("go", [drop, close_then_drop])
def test_every_order_while_a_request_is_built(go: Callable[[dict[str, Any], list[str]], None]) -> None:
    dice = random.Random(4)
    for _ in range(20):
        objects = open_building()
        with no_warnings():
            go(objects, dice.sample(NAMES, len(NAMES)))
            gc.collect()


def test_a_built_request_outlives_nothing_that_it_names() -> None:
    """The region is closed before wr_complete(): the work fails as any that names a key of nobody."""
    objects = open_building()
    objects["mr"].close()
    objects["a"].wr_complete()
    while not (done := objects["cq"].poll()):
        pass
    assert done[0].status is rnic.WCStatus.LOC_PROT_ERR
    with no_warnings():
        drop(objects, list(NAMES))
        del done
        gc.collect()
