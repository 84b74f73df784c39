# SPDX-License-Identifier: Apache-2.0
"""Objects closed in every order, dropped, left by an exception, in a forked child, at interpreter exit."""

import contextlib
import ctypes
import errno
import gc
import itertools
import os
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import rnic
from api.conftest import Objects
from api.recorder import Recorder
from rnic import AccessFlags
from rnic._nic.nic import when_refused


def family(recorder: Recorder) -> dict[str, Any]:
    """One of each, with nobody to close them."""
    ctx = recorder.context
    pd, channel = ctx.alloc_pd(), ctx.create_comp_channel()
    cq = ctx.create_cq(4, channel)
    mr = pd.reg_mr(bytearray(8), AccessFlags.LOCAL_WRITE)
    qp = pd.create_qp(rnic.QPInitAttr(cq, cq))
    recorder.take()
    return {"ctx": ctx, "pd": pd, "channel": channel, "cq": cq, "mr": mr, "qp": qp}


# Who has to go before whom.
NEEDS = {"ctx": {"pd", "channel", "cq", "mr", "qp"}, "pd": {"mr", "qp"}, "channel": {"cq"}, "cq": {"qp"}}
CLOSERS = {
    "ctx": "close",
    "pd": "dealloc_pd",
    "channel": "destroy_comp_channel",
    "cq": "destroy_cq",
    "mr": "dereg_mr",
    "qp": "destroy_qp",
}


def close_in_order(objects: dict[str, Any], order: tuple[str, ...]) -> None:
    """Closes one after the other, again and again, until all are closed."""
    left = set(order)
    while left:
        for name in order:
            if NEEDS.get(name, set()) & left:
                with pytest.raises(rnic.VerbsError, match="is in use by") as caught:
                    objects[name].close()
                assert caught.value.errno == errno.EBUSY
            else:
                objects[name].close()
                left.discard(name)


def test_any_order_of_close(recorder_library: ctypes.CDLL) -> None:
    for order in itertools.permutations(CLOSERS):
        recorder = Recorder(recorder_library)
        close_in_order(family(recorder), order)
        assert recorder.alive == 0
        recorder.free()


def test_busy_says_who(objects: Objects) -> None:
    with pytest.raises(
        rnic.VerbsError, match=rf"dealloc_pd: PD is in use by MR 0x\w+\+4096 .*QP 0x{objects.qp.qp_num:06x}"
    ):
        objects.pd.close()
    more = [objects.ctx.alloc_pd() for _ in range(9)]
    with pytest.raises(rnic.VerbsError, match=r"close_device: .* and 10 more"):
        objects.ctx.close()
    for pd in more:
        pd.close()


def test_close_is_idempotent_and_closed_objects_say_so(objects: Objects) -> None:
    o = objects
    for thing in (o.qp, o.mr, o.cq, o.channel, o.pd, o.ctx):
        thing.close()
        thing.close()
        assert thing.closed
        assert repr(thing).endswith("closed>")
    calls: list[Any] = [
        lambda: o.qp.post_send(rnic.SendWR()),
        lambda: o.qp.post_recv([]),
        lambda: o.qp.modify(rnic.QPAttr()),
        o.qp.query,
        o.qp.statistics,
        lambda: o.qp.state,
        o.cq.poll,
        o.cq.req_notify,
        o.cq.ack_events,
        lambda: o.cq.resize(1),
        lambda: o.cq.cqe,
        o.channel.fileno,
        lambda: o.channel.get_cq_event(0),
        lambda: o.mr.buf,
        lambda: rnic.SGE(o.mr),
        lambda: o.pd.reg_mr(bytearray(1), 1),
        lambda: o.pd.alloc_mr(1, 1),
        o.ctx.alloc_pd,
        o.ctx.create_comp_channel,
        lambda: o.ctx.create_cq(1),
        o.ctx.query_device,
        o.ctx.counters,
        lambda: o.ctx.get_async_event(0),
        o.ctx.async_fileno,
        o.cq.__enter__,
    ]
    for call in calls:
        with pytest.raises(rnic.VerbsError, match="is closed") as caught:
            call()
        assert caught.value.errno == errno.EINVAL
    with pytest.raises(rnic.VerbsError, match="is closed"):
        o.pd.create_qp(rnic.QPInitAttr(o.cq, o.cq))
    assert o.recorder.alive == 0


def test_an_exception_is_not_replaced(recorder: Recorder) -> None:
    with pytest.raises(KeyError, match="the real one"), recorder.context as ctx, ctx.alloc_pd() as pd:
        mr = pd.reg_mr(bytearray(8))
        raise KeyError("the real one")
    assert not ctx.closed
    assert not pd.closed
    mr.close()
    assert pd.closed
    assert ctx.closed
    assert recorder.take()[-3:] == ["dereg_mr lkey=256", "dealloc_pd", "close"]


def test_an_exception_with_unacknowledged_events(recorder: Recorder) -> None:
    with (
        pytest.raises(KeyError),
        recorder.context as ctx,
        ctx.create_comp_channel() as channel,
        ctx.create_cq(4, channel),
    ):
        recorder.cq_event()
        channel.get_cq_event(0)
        raise KeyError
    assert recorder.take()[-4:] == ["ack_cq_events 1", "destroy_cq", "destroy_comp_channel", "close"]


@contextlib.contextmanager
def said_warnings() -> Iterator[list[str]]:
    """The texts of warnings; the warnings themselves would hold the objects that they are about."""
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: said.append(str(message))
        yield said


def test_dropped_objects_go_in_a_safe_order_and_warn(recorder: Recorder) -> None:
    objects = family(recorder)
    recorder.context = None
    with said_warnings() as said:
        for name in ("ctx", "pd", "cq", "channel"):  # owners first: their users hold them
            del objects[name]
        assert recorder.take() == []
        objects.clear()
        gc.collect()
    log = [line.split()[0] for line in recorder.take()]
    assert sorted(log) == sorted(CLOSERS.values())
    for owner, users in NEEDS.items():
        assert all(log.index(CLOSERS[owner]) > log.index(CLOSERS[user]) for user in users)
    assert {text.split()[1] for text in said} == {"QP", "MR", "CQ", "CompChannel", "PD", "Context"}
    assert {text.split()[0] for text in said} == {"unclosed"}


def test_dropped_in_a_cycle(recorder: Recorder) -> None:
    cycle: dict[str, Any] = {}
    ctx = recorder.context
    recorder.context = None
    pd = ctx.alloc_pd()
    cq = ctx.create_cq(4, cq_context=cycle)
    qp = pd.create_qp(rnic.QPInitAttr(cq, cq, qp_context=cycle))
    cycle.update(ctx=ctx, pd=pd, cq=cq, qp=qp, mr=pd.reg_mr(bytearray(8)))
    recorder.take()
    with said_warnings():
        del cycle, ctx, pd, cq, qp
        gc.collect()
    log = [line.split()[0] for line in recorder.take()]
    assert log[-1] == "close"
    assert sorted(log) == sorted(["destroy_qp", "destroy_cq", "dereg_mr", "dealloc_pd", "close"])
    assert log.index("destroy_qp") < log.index("destroy_cq")
    assert log.index("destroy_qp") < log.index("dealloc_pd")
    assert recorder.alive == 0


@pytest.mark.parametrize("order", range(6))
def test_dropped_in_a_cycle_with_a_view_of_the_devices_memory(recorder: Recorder, order: int) -> None:
    """Garbage is finalized and cleared in the order in which it was made."""
    ctx = recorder.context
    recorder.context = None
    pd = ctx.alloc_pd()
    mr = pd.alloc_mr(64, 1)
    parts = [ctx, pd, mr, mr.buf, mr.buf[8:], mr.buf.cast("B")]
    cycle: list[Any] = [*parts[order:], *parts[:order]]
    cycle.append(cycle)
    recorder.take()
    with said_warnings() as said:
        del cycle, parts, ctx, pd, mr
        gc.collect()
    assert [line.split()[0] for line in recorder.take()] == ["dereg_mr", "dealloc_pd", "close"]
    assert recorder.alive == 0
    assert not any("did not take it back" in text for text in said)


@pytest.mark.parametrize("kind", ["alloc_mr", "reg_mr"])
def test_a_region_that_an_exception_leaves_is_given_back_once(objects: Objects, kind: str) -> None:
    views: list[memoryview] = []
    memory = 64 if kind == "alloc_mr" else bytearray(64)
    with pytest.raises(ZeroDivisionError), getattr(objects.pd, kind)(memory, 1) as mr:
        views.append(mr.buf)
        objects.recorder.take()
        raise ZeroDivisionError
    assert [line.split()[0] for line in objects.recorder.take()] == ["dereg_mr"]
    assert mr.closed
    mr.close()
    assert objects.recorder.take() == []


def test_a_region_that_an_exception_leaves_goes_with_the_last_view_of_it(objects: Objects) -> None:
    views: list[memoryview] = []
    objects.recorder.take()
    with pytest.raises(ZeroDivisionError), objects.pd.alloc_mr(64, 1) as mr:
        views += [mr.buf[:8], mr.buf[8:]]
        raise ZeroDivisionError
    objects.recorder.take()
    views.pop().release()
    assert objects.recorder.take() == []
    assert not mr.closed
    views.pop().release()
    assert [line.split()[0] for line in objects.recorder.take()] == ["dereg_mr"]
    assert mr.closed


@pytest.fixture
def refused() -> Iterator[list[Any]]:
    """What the device does not take back yet."""
    found: list[Any] = []
    before = when_refused(found.append)
    yield found
    when_refused(before)


def test_what_the_device_does_not_take_back_yet_is_handed_over(
    recorder: Recorder, refused: list[Any]
) -> None:
    with recorder.context as ctx:
        pd = ctx.alloc_pd()
        recorder.fail("dealloc_pd", errno.EBUSY)
        with pytest.warns(ResourceWarning, match="unclosed PD, and the device did not take it back yet"):
            del pd
        refused.pop().close()
        assert not refused


def test_a_finaliser_that_fails_only_warns(recorder: Recorder, refused: list[Any]) -> None:
    when_refused(None)
    assert not refused
    with recorder.context as ctx:
        pd = ctx.alloc_pd()
        recorder.fail("dealloc_pd", errno.EBUSY)
        with pytest.warns(ResourceWarning, match="unclosed PD, and the device did not take it back"):
            del pd


def test_a_posted_region_lives_as_long_as_its_queue_pair(objects: Objects) -> None:
    memory = bytearray(64)
    mr = objects.pd.reg_mr(memory)
    objects.qp.post_send(rnic.SendWR(sg_list=[rnic.SGE(mr)]))
    objects.recorder.take()
    del mr
    gc.collect()
    assert objects.recorder.take() == []
    with pytest.raises(BufferError):
        memory.clear()
    with pytest.warns(ResourceWarning, match="unclosed MR"):
        objects.qp.close()
    memory.clear()
    assert [line.split()[0] for line in objects.recorder.take()] == ["destroy_qp", "dereg_mr"]


def test_a_queue_pair_lets_go_of_closed_regions(objects: Objects) -> None:
    wr = rnic.SendWR()
    for _ in range(1000):
        with objects.pd.reg_mr(bytearray(64)) as mr:
            wr.sg_list = [rnic.SGE(mr)]
            objects.qp.post_send(wr)
    del mr, wr
    gc.collect()
    assert sum(isinstance(thing, rnic.MR) for thing in gc.get_objects()) < 200


def test_a_call_in_another_thread_is_use(objects: Objects) -> None:
    caught = []

    def wait() -> None:
        try:
            objects.channel.get_cq_event(60)
        except TimeoutError as error:  # pragma: no cover
            caught.append(error)

    objects.qp.close()
    thread = threading.Thread(target=wait)
    thread.start()
    try:
        with pytest.raises(rnic.VerbsError, match="in use by CQ"):
            objects.channel.close()
    finally:
        objects.recorder.cq_event()
        thread.join()
    objects.cq.ack_events(1)
    assert not caught


def test_a_forked_child_leaves_the_device_alone(objects: Objects) -> None:
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        code = 1
        try:
            objects.pd.close()
            objects.qp.close()
            objects.mr.close()
            objects.ctx.close()
            gc.collect()
            code = 0 if objects.recorder.take() == [] else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert objects.qp.state == rnic.QPState.RESET


def run(root: str, program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that begins with a recorder `r`."""
    head = f"""
        import sys, tempfile
        from pathlib import Path
        sys.path.insert(0, {root + "/tests"!r})
        from api.recorder import Recorder, build
        import rnic
        with tempfile.TemporaryDirectory() as scratch:
            r = Recorder(build(Path({root!r}), Path(scratch)))
        """
    code = textwrap.dedent(head) + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_end_of_the_interpreter_closes_everything(root: Any) -> None:
    done = run(
        str(root),
        """
        import atexit, rnic._nic.nic as nic
        atexit.unregister(nic.close_contexts)
        atexit.register(lambda: print(*[line.split()[0] for line in r.take()], r.alive))
        atexit.register(nic.close_contexts)
        ctx = r.context
        pd = ctx.alloc_pd(); cq = ctx.create_cq(4); mr = pd.reg_mr(bytearray(8)); own = pd.alloc_mr(8, 1)
        qp = pd.create_qp(rnic.QPInitAttr(cq, cq))
        qp.post_send(rnic.SendWR(sg_list=[rnic.SGE(mr)]))
        keep = [ctx, pd, cq, mr, qp]; keep.append(keep)
        r.take()
        """,
    )
    assert done.stderr == ""
    words = done.stdout.split()
    assert words[-2:] == ["close", "0"]
    assert sorted(words[:-2]) == ["dealloc_pd", "dereg_mr", "dereg_mr", "destroy_cq", "destroy_qp"]
    assert words.index("destroy_qp") < words.index("destroy_cq")


def test_no_object_is_lost_in_many_rounds(recorder: Recorder) -> None:
    recorder.quiet()
    memory = bytearray(8)
    with recorder.context as ctx:
        for _ in range(2000):
            with (
                ctx.alloc_pd() as pd,
                ctx.create_cq(4) as cq,
                pd.reg_mr(memory) as mr,
                pd.create_qp(rnic.QPInitAttr(cq, cq)) as qp,
            ):
                qp.post_send(rnic.SendWR(sg_list=[rnic.SGE(mr)]))
        assert recorder.alive == 0


# ---------------------------------------------------------------- a context with all that is left


def test_a_context_is_closed_with_all_that_is_left_by_one_call(recorder: Recorder) -> None:
    pd = recorder.context.alloc_pd()
    recorder.take()
    recorder.context.close(force=True)
    assert recorder.take() == ["close_all"]
    assert pd.closed


def test_a_context_that_cannot_be_closed_with_all_is_closed_later(recorder: Recorder) -> None:
    ctx = recorder.context
    pd = ctx.alloc_pd()
    recorder.fail("close_all", errno.EBUSY, "a process has been stopped")
    with pytest.raises(rnic.VerbsError, match="close_device: a process has been stopped"):
        ctx.close(force=True)
    assert (ctx.closed, pd.closed) == (False, True)
    ctx.close(force=True)
    assert ctx.closed
