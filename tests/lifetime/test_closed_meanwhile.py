# SPDX-License-Identifier: Apache-2.0
"""An argument is read in Python, where another thread may run and close the object that the call is for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from rnic import AccessFlags, Context, ReregMRFlags, VerbsError, open_device

ACCESS = AccessFlags.LOCAL_WRITE


class Closing:
    """A number that closes an object when it is read, as another thread might."""

    def __init__(self, thing: Any, value: int = 4096) -> None:
        self.thing, self.value = thing, value

    def __index__(self) -> int:
        self.thing.close()
        return self.value


def calls(ctx: Context, keep: ExitStack) -> dict[str, Callable[[], Any]]:
    """Calls with a number that closes what they need."""
    pd, empty = keep.enter_context(ctx.alloc_pd()), keep.enter_context(ctx.alloc_pd())
    cq, other = keep.enter_context(ctx.create_cq(16)), keep.enter_context(ctx.create_cq(16))
    memory = keep.enter_context(pd.alloc_mr(4096, ACCESS))
    mr = keep.enter_context(pd.reg_mr(bytearray(4096), ACCESS))
    late: Any = Closing
    return {
        "rereg_mr": lambda: mr.rereg(ReregMRFlags.CHANGE_TRANSLATION, addr=memory.addr, length=late(mr)),
        "resize_cq": lambda: cq.resize(late(cq)),
        "ack_cq_events": lambda: other.ack_events(late(other)),
        "alloc_mr": lambda: empty.alloc_mr(late(empty), ACCESS),
        "reg_mr": lambda: empty.reg_mr(addr=memory.addr, length=late(empty), access=ACCESS),
    }


@pytest.mark.parametrize("verb", ["rereg_mr", "resize_cq", "ack_cq_events", "alloc_mr", "reg_mr"])
def test_a_call_whose_object_is_closed_meanwhile_is_refused(verb: str) -> None:
    with open_device("roce_lo") as ctx, ExitStack() as keep, pytest.raises(VerbsError, match="is closed"):
        calls(ctx, keep)[verb]()


def test_a_queue_of_a_context_that_is_closed_meanwhile_is_refused() -> None:
    ctx = open_device("roce_lo")
    late: Any = Closing(ctx)
    with pytest.raises(VerbsError, match="is closed"):
        ctx.create_cq(late)
