# SPDX-License-Identifier: Apache-2.0
"""Context.close(force=True): a context is closed with all that is left in it."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from typing import Any

import pytest

import rnic
from rdmacm.ends import descriptors
from rnic import AccessFlags, EventType, testing


def left_in(ctx: rnic.Context) -> list[Any]:
    pd, channel = ctx.alloc_pd(), ctx.create_comp_channel()
    cq = ctx.create_cq(16, channel)
    mr = pd.reg_mr(bytearray(64), AccessFlags.LOCAL_WRITE)
    qp = pd.create_qp(rnic.QPInitAttr(cq, cq))
    xrcd = ctx.open_xrcd()
    return [pd, channel, cq, mr, qp, xrcd, xrcd.create_qp(), ctx.cm_listen(0x100, hold=True)]


def test_all_that_is_left_is_closed() -> None:
    before = descriptors()
    ctx = rnic.open_device("roce_lo")
    buffer = bytearray(64)
    left = left_in(ctx)
    left.append(left[0].reg_mr(buffer, AccessFlags.LOCAL_WRITE))
    with pytest.raises(rnic.VerbsError, match="in use by"):
        ctx.close()
    ctx.close(force=True)
    assert ctx.closed
    assert all(one.closed for one in left)
    buffer.extend(b"it is no longer exported")
    for one in (*left, ctx):
        one.close()
    with pytest.raises(rnic.VerbsError, match="is closed"):
        left[0].reg_mr(buffer, AccessFlags.LOCAL_WRITE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del left, one
    assert descriptors() == before


def test_events_and_work_hold_nothing_back() -> None:
    end, peer = testing.End(), testing.End()
    testing.connect(end.qp, peer.qp)
    end.qp.post_send(rnic.SendWR(opcode=rnic.WROpcode.SEND))  # no receive is posted: it waits
    srq = end.pd.create_srq(rnic.SRQInitAttr(rnic.SRQAttr(max_wr=4)))
    srq.modify(rnic.SRQAttr(srq_limit=1), rnic.SRQAttrMask.LIMIT)
    event = end.ctx.get_async_event(60)
    assert event.element is srq
    end.ctx.close(force=True)
    event.ack()
    peer.ctx.close(force=True)


def refused_while_a_thread_waits(ctx: rnic.Context) -> bool:
    """False: the thread had not begun to wait, and the context is closed."""

    def wait() -> None:
        with contextlib.suppress(rnic.VerbsError):  # it is closed
            assert ctx.get_async_event(60).event_type is EventType.CLIENT_REREGISTER

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.01)
    try:
        ctx.close(force=True)
    except rnic.VerbsError as error:
        refused = "a call in another thread uses Context" in str(error)
        ctx.raise_event(EventType.CLIENT_REREGISTER)
    else:
        refused = False
    thread.join()
    return refused


def test_a_call_in_another_thread_is_not_closed_under_it() -> None:
    ctx = rnic.open_device("roce_lo")
    pd = ctx.alloc_pd()
    while not refused_while_a_thread_waits(ctx):
        assert pd.closed
        ctx = rnic.open_device("roce_lo")
        pd = ctx.alloc_pd()
    assert not pd.closed
    assert not ctx.closed
    ctx.close(force=True)
    assert pd.closed


def test_memory_that_is_looked_at_stays() -> None:
    ctx = rnic.open_device("roce_lo")
    mr = ctx.alloc_pd().alloc_mr(64, AccessFlags.LOCAL_WRITE)
    view = mr.buf[:8]
    with pytest.raises(rnic.VerbsError, match="still used"):
        ctx.close(force=True)
    assert not mr.closed
    assert bytes(view) == bytes(8)
    view.release()
    ctx.close(force=True)
    assert mr.closed


def test_the_last_owner_takes_what_others_have_left() -> None:
    ctx = rnic.open_device("roce_lo")
    same = rnic.import_device(ctx.cmd_fd)
    pd = same.alloc_pd()
    same.close(force=True)
    assert same.closed
    assert pd.closed
    with pytest.raises(rnic.VerbsError, match="still open: 1 protection domains"):
        ctx.close()
    ctx.close(force=True)
