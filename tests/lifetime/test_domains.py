# SPDX-License-Identifier: Apache-2.0
"""Device memory, domains and imports go in every order, as others do; a forked child has none of them."""

from __future__ import annotations

import gc
import random
import warnings
from typing import Any

import pytest

import rnic
from lifetime.model import close_all, no_warnings, users_by, warnings_of
from lifetime.scripts import run
from rnic import AccessFlags, AllocDMAttr, ParentDomainInitAttr
from rnic.testing import ALL_ACCESS

pytestmark = pytest.mark.usefixtures("balanced")

# Who needs whom: the second context, and what is imported there, is the first one's.
NEEDS = {
    "ctx": (),
    "pd": ("ctx",),
    "td": ("ctx",),
    "parent": ("ctx", "pd", "td"),
    "dm": ("ctx",),
    "mr": ("ctx", "parent"),
    "dmr": ("ctx", "pd", "dm"),
    "again": (),
    "pd2": ("again", "pd"),
    "mr2": ("again", "pd2", "mr"),
    "dm2": ("again", "dm"),
}


def open_objects() -> dict[str, Any]:
    o: dict[str, Any] = {"ctx": rnic.open_device("roce_lo")}
    ctx = o["ctx"]
    o["pd"], o["td"], o["dm"] = ctx.alloc_pd(), ctx.alloc_td(), ctx.alloc_dm(AllocDMAttr(4096))
    o["parent"] = ctx.alloc_parent_domain(ParentDomainInitAttr(o["pd"], o["td"]))
    o["mr"] = o["parent"].reg_mr(bytearray(64), ALL_ACCESS)
    o["dmr"] = o["pd"].reg_dm_mr(o["dm"], 0, 64, ALL_ACCESS | AccessFlags.ZERO_BASED)
    o["again"] = rnic.import_device(ctx.cmd_fd)
    o["pd2"] = o["again"].import_pd(o["pd"].handle)
    o["mr2"] = o["pd2"].import_mr(o["mr"].handle)
    o["dm2"] = o["again"].import_dm(o["dm"].handle)
    return {name: o[name] for name in NEEDS}


def orders(soak: bool, seed: int) -> list[list[str]]:
    dice = random.Random(seed)
    return [dice.sample(list(NEEDS), len(NEEDS)) for _ in range(2000 if soak else 40)]


def test_close_is_refused_exactly_while_something_needs_the_object(soak: bool) -> None:
    for order in orders(soak, 1):
        close_all(open_objects(), order, users_by(NEEDS))


def test_dropped_in_every_order_all_go(soak: bool) -> None:
    for order in orders(soak, 2):
        kinds = sorted(text.split()[1] for text in warnings_of(open_objects(), order))
        assert kinds == ["Context"] * 2 + ["DM"] * 2 + ["MR"] * 3 + ["PD"] * 3 + ["TD"], order


def test_a_cycle_of_everything_is_collected() -> None:
    for _ in range(10):
        objects = open_objects()
        objects["self"] = objects
        with no_warnings():
            del objects


def test_what_an_exception_leaves_goes_with_its_last_user() -> None:
    objects = open_objects()
    with pytest.raises(ZeroDivisionError), objects["ctx"], objects["mr"], objects["dm"]:
        raise ZeroDivisionError
    assert not objects["ctx"].closed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for name in ("mr2", "dm2", "dmr", "pd2", "parent", "td", "pd"):
            objects[name].close()
        assert objects["mr"].closed
        assert objects["dm"].closed
        assert objects["ctx"].closed
        objects["again"].close()
        gc.collect()


def test_a_forked_child_has_none_of_it() -> None:
    ended = run(
        """
        ctx = rnic.open_device("roce_lo")
        pd, dm, td = ctx.alloc_pd(), ctx.alloc_dm(AllocDMAttr(64)), ctx.alloc_td()
        mr = pd.alloc_mr(8192, ALL_ACCESS, lock=True)
        fd = os.dup(ctx.cmd_fd)
        handles = pd.handle, mr.handle
        child = os.fork()
        if not child:
            for call in (lambda: dm.copy_to(0, b"abcd"), lambda: ctx.alloc_td(), lambda: pd.alloc_null_mr(),
                         lambda: ctx.import_pd(handles[0]), lambda: ctx.alloc_dm(AllocDMAttr(4))):
                try:
                    call()
                except VerbsError as error:
                    assert "fork" in str(error), error
                else:
                    os._exit(1)
            for thing in (mr, dm, td, pd, ctx):
                thing.close()
            try:
                os.fstat(ctx.cmd_fd)
                os._exit(2)
            except (OSError, VerbsError):
                pass
            # but a copy of the descriptor is another process' context to it
            with rnic.import_device(fd) as ours, ours.import_pd(handles[0]) as theirs:
                with theirs.import_mr(handles[1]) as shared:
                    shared.buf[0] = 7
                with ours.alloc_pd() as own, own.alloc_mr(4096, ALL_ACCESS, lock=True):
                    pass
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert mr.buf[0] == 7
        dm.copy_to(0, b"abcd")
        for thing in (mr, dm, td, pd, ctx):
            thing.close()
        print("fine")
        """,
        "-Werror",
    )
    assert (ended.out, ended.code) == ("fine\n", 0), ended.err
